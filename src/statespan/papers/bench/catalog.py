"""The benchmarks by name: what each measures and at which sizes. No torch here: `statespan bench --help` shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Listing:
    """A benchmark as the help shows it; a size is a number, or a tuple of numbers or of shapes."""

    name: str
    summary: str
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]  # the sizes of ``--quick``


def _listing(name: str, summary: str, **sizes: tuple[Any, Any]) -> Listing:
    """A benchmark whose sizes are given as pairs: the usual one, and that of ``--quick``."""
    usual, quick = ({size: pair[which] for size, pair in sizes.items()} for which in (0, 1))
    return Listing(name, summary, usual, quick)


# fmt: off
_LISTINGS = (
    _listing("op", "one SSM applied to a sequence: each path against a plain copy of the tensor",
        shapes=(((64, 512, 1024), (64, 512, 4096), (16, 512, 16384)), ((2, 8, 300),)), d_state=(64, 16)),
    _listing("layer",
        "a whole layer (SSM, GELU, GLU), forward and backward, at several lengths; beside flash attention",
        lengths=((1024, 4096, 16384, 65536), (64, 200)), tokens=(65536, 400), d_model=(512, 8), d_state=(64, 16),
        n_heads=(8, 2)),
    _listing("model", "a training step of the sCIFAR and ListOps models: eager, torch.compile, CUDA graph",
        batch=(50, 2), d_state=(64, 16)),
    _listing("loop", "what the training loop adds to a bare training step of the sCIFAR and ListOps recipes",
        batch=(50, 4)),
    _listing("s4_table2", "S4 against LSSL at widths 128, 256 and 512: Table 2 of the S4 paper",
        d_model=((128, 256, 512), (8, 16)), batch=(1, 1), length=(1024, 100)),
    _listing("s4_table3", "S4 against Transformer, Performer and Linear Transformer: Table 3 of the S4 paper",
        lengths=((1024, 4096), (64, 128)), batch=(32, 3), d_model=(256, 16), n_heads=(4, 2)),
    _listing("step", "one step of one layer at several batches, and its drift over thousands of steps",
        batches=((1, 64, 1024, 4096), (1, 3)), d_model=(1024, 8), d_state=(64, 16), steps=(16384, 300)),
    _listing("s4_table7", "images per second of the CIFAR-10 density models: Table 7 of the S4 paper",
        batches=((1, 512, 2048, 4096, 6144, 8192), (1, 3)), base=((128, 8), (8, 1)), large=((192, 16), (12, 1)),
        pools=((3, 4, 4), (3, 2)), d_state=(64, 4), transformer=((256, 8, 8), (8, 1, 2)),
        transformer_batches=((64, 512, 1024), (2,)), contexts=((256, 1024, 3072), (8, 24)), length=(3072, 24),
        memory_gb=(16, 16)),
    _listing("s4_table8", "tokens per second of the WikiText-103 models: Table 8 of the S4 paper",
        batches=((1, 64, 256, 1024, 2048, 4096, 8192), (1, 4)), contexts=((1024, 8192, 32768, 65536), (16, 32)),
        hugging_face=((1024, 8192, 32768), (16,)), as_it_comes=((8192,), (16,)),
        after=((1024, 10240, 102400, 1048576), (16, 128)), d_model=(1024, 32), d_state=(64, 8), n_layers=(16, 1),
        n_heads=(8, 2), vocabulary=(267735, 50), cutoffs=((20000, 40000, 200000), (10, 20))),
    _listing("scaling", "one layer at growing lengths, up to 1M samples, and the exponents of its growth",
        lengths=(tuple(1 << n for n in range(10, 21)), (64, 128, 256, 512)), batch=(1, 1), d_model=(256, 8),
        d_state=(64, 16), n_heads=(4, 2), limit_ms=(4000, 1000)),
    _listing("cpu", "an SSM and a layer on the CPU against naive Vandermonde and Cauchy kernels: same parameters, "
        "same numbers", batch=(4, 2), length=(16384, 256), d_model=(64, 8), d_state=(64, 16)),
)
# fmt: on
CATALOG = {listing.name: listing for listing in _LISTINGS}
