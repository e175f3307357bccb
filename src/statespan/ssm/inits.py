"""Initializations: the diagonal laws of S4D sections 4 and 5.2, and mixtures that share the heads among several.

Those that users give or register are in :mod:`statespan.ssm.given`.

Shapes: N state size (N/2 complex modes are kept), S number of independent SSMs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan._registry import Registry, check_function
from statespan._suggest import suggest
from statespan.ssm import given, hippo
from statespan.ssm.given import SAVED, Arrays, Init, saved_name

__all__ = [
    "DIAGONAL", "Init", "diagonal", "mix_dense", "mix_diagonal", "mix_dplr", "register_init", "saved_name",
    "split_mixture",
]  # fmt: skip

DIAGONAL = ("legs", "inv", "lin", "inv2", "quad", "real", "random", "dfout")
UNIT_STEP = ("dfout",)  # initializations in radians per sample: their step size is 1
_LAWS = ("inv", "lin", "inv2", "quad")  # imaginary part given by a formula in the mode's index
_DRAWN = ("random", "dfout")
_OPTIONS = ("imag_scale", "random_imag", "random_real", "random_B", "generator")
_DAMPING = (1e-3, 1e-1)  # of "dfout": the range of Δ in S4D, whose modes decay by Δ/2 a sample
ADDED_INITS: Registry[Callable[[int], Arrays]] = Registry(
    "initialization",
    "statespan.inits",
    built_in=(*DIAGONAL, *(measure for measure in hippo.MEASURES if measure not in DIAGONAL), *SAVED),
    check=lambda name, item: check_function("initialization", item),
)


def register_init(name: str, make: Callable[[int], Arrays]) -> None:
    """Give an initialization a name that layers and recipes can use: ``init=NAME``, ``model.ssm.init=NAME``.

    Installed packages need not call it: they name the function in the entry-point group ``statespan.inits``.

    Args:
        name: At most 64 letters, digits, "_" and "-".
        make: A function from the state size N to a pair (A, B) of tensors or numpy arrays: for S4D and DSS, one mode of
            each conjugate pair, both (N/2,); for S4 and LSSL a real A of (N, N) and B of (N,). It is called once for
            each SSM, so it may draw random numbers.

    Example:
        >>> from statespan import S4D
        >>> def evenly(d_state):
        ...     n = torch.arange(d_state // 2, dtype=torch.float64)
        ...     return torch.complex(-torch.ones_like(n), n), torch.ones_like(n)
        >>> register_init("evenly", evenly)
        >>> S4D(2, 8, init="evenly").structure().A[0].real.mean().item()
        -1.0
    """
    ADDED_INITS.register(name, make)


def diagonal(
    name: str,
    N: int,
    *,
    imag_scale: float = 1.0,
    random_imag: bool = False,
    random_real: bool = False,
    random_B: bool = False,
    offset: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """A diagonal initialization (A, B) of S4D, one mode of each conjugate pair.

    ===========  ============================================  ==================
    name         A_n, n = 0 … N/2-1                            source (S4D paper)
    ===========  ============================================  ==================
    ``legs``     eigenvalues of the normal HiPPO-LegS matrix   equation (5)
    ``inv``      -1/2 + i N/π (N/(2n+1) - 1)                   equation (8)
    ``lin``      -1/2 + i π n                                  equation (9)
    ``inv2``     -1/2 + i N/π (N/(n+1) - 1)                    equation (12)
    ``quad``     -1/2 + i (1+2n)²/π                            equation (13)
    ``real``     -(n+1)                                        section 5.2
    ``random``   -1/2 + i exp(ξ_n), ξ_n ~ N(0, 1)              section 5.2
    ``dfout``    -ξ/2 + i 2π n/N, log ξ uniform                Solozabal et al. 2025
    ===========  ============================================  ==================

    B is 1, except for ``legs``: HiPPO's own B in the eigenbasis (not halved: Theorem 3 needs B/2 for the basis of
    S4-LegS itself; C absorbs the factor). Equation (13) prints the imaginary part only; the text fixes the real part to
    -1/2. ``dfout`` (arXiv 2508.20441) is in radians per sample, for Δ = 1, and draws one ξ in (0.001, 0.1) for all its
    modes.

    Args:
        name: One of the names above.
        N: State size, even, at least 2.
        imag_scale: Factor on all imaginary parts (0.01 and 100 in Table 3a; 3 and 5 in S4D-FT), at least 0.
        random_imag: Replace the index n by N/2 · U[0, 1] in the law, for ``inv``, ``lin``, ``inv2`` and ``quad``:
            equations (10) and (11), corrected (docs/mathematics.md).
        random_real: Draw the real parts from -U[0, 1] (all names but ``real``).
        random_B: Draw B from the complex normal distribution with E |B_n|² = 1, as S4D-FT (arXiv 2410.02035) does.
        offset: Added to the index n of ``dfout``; h/H in SSM h of H, which spaces the modes of all evenly.
        generator: Source of the random numbers; torch's global one by default.

    Returns:
        A and B of shape (N/2,), complex128.

    Example:
        >>> A, B = diagonal("lin", 4)
        >>> A.imag.tolist() == [0.0, math.pi]
        True
    """
    _check_random(check_choice("name", name, DIAGONAL), random_imag, random_real)
    M = check_int("N", N, minimum=2, even=True) // 2
    check_number("imag_scale", imag_scale, above=0.0, closed=True)
    n = torch.arange(M, dtype=torch.float64) + (offset if name == "dfout" else 0.0)
    n = M * torch.rand(M, dtype=torch.float64, generator=generator) if random_imag else n
    real, imag, B = _modes(name, n, generator)
    real = -torch.rand(M, dtype=torch.float64, generator=generator) if random_real else real
    if check_bool("random_B", random_B):
        B = torch.randn(M, dtype=torch.complex128, generator=generator)
    return torch.complex(real, imag_scale * imag), B


def _modes(name: str, n: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
    """Real and imaginary parts and B of the modes with these (possibly random) indices n, of which there are N/2."""
    N = 2 * len(n)
    real, B = torch.full_like(n, -0.5), torch.ones(len(n), dtype=torch.complex128)
    if name == "legs":
        Lambda, _, B = hippo.dplr("legs", N)
        return real, Lambda.imag, B
    if name == "real":
        return -(n + 1), torch.zeros_like(n), B
    if name == "random":
        return real, torch.randn(len(n), dtype=torch.float64, generator=generator).exp(), B
    if name == "dfout":
        smallest, largest = (math.log(bound) for bound in _DAMPING)
        draw = smallest + (largest - smallest) * torch.rand(1, dtype=torch.float64, generator=generator)
        return real * draw.exp(), 2 * math.pi * n / N, B
    if name == "inv":
        return real, N / math.pi * (N / (2 * n + 1) - 1), B
    if name == "lin":
        return real, math.pi * n, B
    if name == "inv2":
        return real, N / math.pi * (N / (n + 1) - 1), B
    return real, (1 + 2 * n) ** 2 / math.pi, B  # "quad"


def _check_random(name: str, random_imag: bool, random_real: bool) -> None:
    if check_bool("random_imag", random_imag) and name not in _LAWS:
        raise ValueError(
            f"random_imag=True is allowed for {_LAWS} only, whose imaginary part is a law; got name={name!r}"
        )
    if check_bool("random_real", random_real) and name == "real":
        raise ValueError("random_real=True is allowed for complex initializations only; got name='real'")


def _given(init: Any, allowed: tuple[str, ...]) -> Any:
    """What is given in place of the names of a layer: a pair, a function, or the name of saved values; else None."""
    if not isinstance(init, str):
        given.check_init(init, (*allowed, *ADDED_INITS.added()))
        return init
    if init in SAVED:
        return init
    names = init.split("/")
    if all(name in allowed for name in names):
        return None
    known = (*allowed, *ADDED_INITS.added())
    if len(names) > 1 or init not in known:
        wrong = next((name for name in names if name not in allowed), init)
        raise ValueError(
            f"init must be one of {known} or several built-in ones joined by '/', got {init!r}{suggest(wrong, known)}"
        )
    return ADDED_INITS.find(init, "init")


def split_mixture(init: Init, n_ssm: int, allowed: tuple[str, ...]) -> list[Any]:
    """The initialization of each SSM: "legs/fout" gives the first half of them LegS, the second half FouT.

    The shares are equal; the first ones take the remainder. There must be at least one SSM for each name. What is not a
    built-in name is that of every SSM.

    Example:
        >>> split_mixture("legs/fout", 4, hippo.MEASURES)
        ['legs', 'legs', 'fout', 'fout']
    """
    if _given(init, allowed) is not None or not isinstance(init, str):
        return [init] * n_ssm
    names = init.split("/")
    if len(names) > n_ssm:
        raise ValueError(
            f"init {init!r} mixes {len(names)} initializations and needs n_ssm >= {len(names)}, got {n_ssm}"
        )
    share, rest = divmod(n_ssm, len(names))
    return [name for i, name in enumerate(names) for _ in range(share + (i < rest))]


def mix_diagonal(init: Init, n_ssm: int, N: int, **options: Any) -> tuple[Tensor, Tensor]:
    """A and B (S, N/2) of S SSMs by :func:`diagonal`, which takes the options; random ones are drawn separately.

    ``init`` may also be a registered name, a pair (A, B) of (N/2,), or a function from N to one.
    """
    if (own := _given(init, DIAGONAL)) is not None:
        if options:
            raise ValueError(f"init_options must be empty unless init is one of {DIAGONAL}, got {sorted(options)}")
        return given.diagonal(own, n_ssm, N)
    names = split_mixture(init, n_ssm, DIAGONAL)
    unknown = set(options) - set(_OPTIONS)
    if unknown:
        raise ValueError(f"init_options must have keys among {_OPTIONS}, got {sorted(unknown)}")
    drawn = any(name in _DRAWN for name in names) or any(
        options.get(key) for key in ("random_imag", "random_real", "random_B")
    )
    made: dict[str, tuple[Tensor, Tensor]] = {}
    A, B, seen = [], [], Counter[str]()
    for name in names:
        if drawn or name not in made:
            made[name] = diagonal(name, N, offset=seen[name] / names.count(name), **options)
        seen[name] += 1
        A.append(made[name][0])
        B.append(made[name][1])
    return torch.stack(A), torch.stack(B)


def has_unit_step(init: Init, n_ssm: int) -> Tensor:
    """Which of the SSMs (S,) that :func:`mix_diagonal` initializes start at Δ = 1."""
    return torch.tensor([name in UNIT_STEP for name in split_mixture(init, n_ssm, DIAGONAL)])


def mix_dplr(init: Init, n_ssm: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda (S, N/2), P (R, S, N/2) and B (S, N/2) of S SSMs by :func:`statespan.ssm.hippo.dplr`.

    R is the largest rank; smaller ones are filled with 0. "legs/fout" gives S4-(LegS/FouT). ``init`` may also be a
    registered name, a pair (A, B) of (N, N) and (N,), or a function from N to one.
    """
    if (own := _given(init, hippo.MEASURES)) is not None:
        return given.dplr(own, n_ssm, N)
    names = split_mixture(init, n_ssm, hippo.MEASURES)
    made = {name: hippo.dplr(name, N) for name in set(names)}
    rank = max(P.shape[0] for _, P, _ in made.values())
    P = torch.stack([torch.nn.functional.pad(made[n][1], (0, 0, 0, rank - made[n][1].shape[0])) for n in names], 1)
    return torch.stack([made[n][0] for n in names]), P, torch.stack([made[n][2] for n in names])


def mix_dense(init: Init, n_ssm: int, N: int) -> tuple[Tensor, Tensor]:
    """The HiPPO matrices A (S, N, N) and B (S, N) of S SSMs; ``init`` may also be as in :func:`mix_dplr`."""
    if (own := _given(init, hippo.MEASURES)) is not None:
        return given.dense(own, n_ssm, N)
    makers = {"legs": hippo.legs, "legt": hippo.legt, "fout": hippo.fout}
    made = [makers[name](N) for name in split_mixture(init, n_ssm, hippo.MEASURES)]
    return torch.stack([A for A, _ in made]), torch.stack([B for _, B in made])
