"""The benchmarks in a list: what each measures and at which sizes. No torch here: `statespan bench --help` shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Listing:
    """A benchmark as the help shows it.

    Args:
        name: Its name on the command line.
        summary: One line for the list.
        sizes: The sizes by name: a number, or a tuple of numbers or of shapes.
        quick: The same for ``--quick``.
    """

    name: str
    summary: str
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]


_EVERY = (
    Listing(
        "op",
        "one SSM applied to a sequence: each path against a plain copy of the tensor",
        {"shapes": ((64, 512, 1024), (64, 512, 4096), (16, 512, 16384)), "d_state": 64},
        {"shapes": ((2, 8, 300),), "d_state": 16},
    ),
    Listing(
        "layer",
        "a whole layer (SSM, GELU, GLU), forward and backward, at several lengths; beside flash attention",
        {"lengths": (1024, 4096, 16384, 65536), "tokens": 65536, "d_model": 512, "d_state": 64, "n_heads": 8},
        {"lengths": (64, 200), "tokens": 400, "d_model": 8, "d_state": 16, "n_heads": 2},
    ),
    Listing(
        "model",
        "a training step of the sCIFAR and ListOps models: eager, torch.compile, CUDA graph",
        {"batch": 50, "d_state": 64},
        {"batch": 2, "d_state": 16},
    ),
    Listing(
        "loop",
        "what the training loop adds to a bare training step of the sCIFAR and ListOps recipes",
        {"batch": 50},
        {"batch": 4},
    ),
    Listing(
        "table2",
        "S4 against LSSL at widths 128, 256 and 512: Table 2 of the S4 paper",
        {"d_model": (128, 256, 512), "batch": 1, "length": 1024},
        {"d_model": (8, 16), "batch": 1, "length": 100},
    ),
    Listing(
        "table3",
        "S4 against Transformer, Performer and Linear Transformer: Table 3 of the S4 paper",
        {"lengths": (1024, 4096), "batch": 32, "d_model": 256, "n_heads": 4},
        {"lengths": (64, 128), "batch": 3, "d_model": 16, "n_heads": 2},
    ),
    Listing(
        "step",
        "one step of one layer at several batches, and its drift over thousands of steps",
        {"batches": (1, 64, 1024, 4096), "d_model": 1024, "d_state": 64, "steps": 16384},
        {"batches": (1, 3), "d_model": 8, "d_state": 16, "steps": 300},
    ),
    Listing(
        "table7",
        "images a second of the CIFAR-10 density models: Table 7 of the S4 paper",
        {
            "batches": (1, 512, 2048, 4096, 6144, 8192),
            "base": (128, 8),
            "large": (192, 16),
            "pools": (3, 4, 4),
            "d_state": 64,
            "transformer": (256, 8, 8),
            "transformer_batches": (64, 512, 1024),
            "contexts": (256, 1024, 3072),
            "length": 3072,
            "memory_gb": 16,
        },
        {
            "batches": (1, 3),
            "base": (8, 1),
            "large": (12, 1),
            "pools": (3, 2),
            "d_state": 4,
            "transformer": (8, 1, 2),
            "transformer_batches": (2,),
            "contexts": (8, 24),
            "length": 24,
            "memory_gb": 16,
        },
    ),
    Listing(
        "table8",
        "tokens a second of the WikiText-103 models: Table 8 of the S4 paper",
        {
            "batches": (1, 64, 256, 1024, 2048, 4096, 8192),
            "contexts": (1024, 8192, 32768, 65536),
            "hugging_face": (1024, 8192, 32768),
            "as_it_comes": (8192,),
            "after": (1024, 10240, 102400, 1048576),
            "d_model": 1024,
            "d_state": 64,
            "n_layers": 16,
            "n_heads": 8,
            "vocabulary": 267735,
            "cutoffs": (20000, 40000, 200000),
        },
        {
            "batches": (1, 4),
            "contexts": (16, 32),
            "hugging_face": (16,),
            "as_it_comes": (16,),
            "after": (16, 128),
            "d_model": 32,
            "d_state": 8,
            "n_layers": 1,
            "n_heads": 2,
            "vocabulary": 50,
            "cutoffs": (10, 20),
        },
    ),
    Listing(
        "scaling",
        "one layer at growing lengths, up to 1M samples, and the exponents of its growth",
        {
            "lengths": (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576),
            "batch": 1,
            "d_model": 256,
            "d_state": 64,
            "n_heads": 4,
            "limit_ms": 4000,
        },
        {"lengths": (64, 128, 256, 512), "batch": 1, "d_model": 8, "d_state": 16, "n_heads": 2, "limit_ms": 1000},
    ),
    Listing(
        "cpu",
        "an SSM and a layer on the CPU against naive Vandermonde and Cauchy kernels: same parameters, same numbers",
        {"batch": 4, "length": 16384, "d_model": 64, "d_state": 64},
        {"batch": 2, "length": 256, "d_model": 8, "d_state": 16},
    ),
)
LISTED = {listing.name: listing for listing in _EVERY}
