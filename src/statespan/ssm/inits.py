"""Initializations: the diagonal laws of S4D sections 4 and 5.2, and mixtures that share the heads among several.

Those that users give or register are in :mod:`statespan.ssm.given`.

Shapes: N state size (N/2 complex modes are kept), S number of independent SSMs.
"""

from __future__ import annotations

import math
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

DIAGONAL = ("legs", "inv", "lin", "inv2", "quad", "real", "random")
_LAWS = ("inv", "lin", "inv2", "quad")  # imaginary part given by a formula in the mode's index
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
    ===========  ============================================  ==================

    B is 1, except for ``legs``, where it is HiPPO's own B in the eigenbasis (not halved: Theorem 3 needs B/2 for the
    basis of S4-LegS itself; the factor is absorbed by C). Equation (13) prints the imaginary part only; the text
    fixes the real part to -1/2.

    Args:
        name: One of the names above.
        N: State size, even, at least 2.
        imag_scale: Factor on all imaginary parts (0.01 and 100 in Table 3a); at least 0.
        random_imag: Replace the index n by N/2 · U[0, 1] in the law, for ``inv``, ``lin``, ``inv2`` and ``quad``.
            Equations (10) and (11) print N · U[0, 1]; the paper's remark that equally spaced values give back (8) and
            (9) fixes the range to that of the N/2 kept modes.
        random_real: Draw the real parts from -U[0, 1] (all names but ``real``).
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
    n = torch.arange(M, dtype=torch.float64)
    if random_imag:
        n = M * torch.rand(M, dtype=torch.float64, generator=generator)
    real, imag, B = _modes(name, n, generator)
    if random_real:
        real = -torch.rand(M, dtype=torch.float64, generator=generator)
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

    Args:
        init: One name, or several joined by "/". What is not a built-in name is that of every SSM.
        n_ssm: Number of SSMs; at least the number of names.
        allowed: The names that may be used.

    Returns:
        A list of ``n_ssm`` names, in equal shares (the first ones take the remainder).

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
    """Diagonal initializations for many SSMs; random ones are drawn separately for each.

    Args:
        init: A name of :func:`diagonal`, or several joined by "/"; a registered name; a pair (A, B) of (N/2,); or a
            function from N to one.
        n_ssm: Number of SSMs S.
        N: State size.
        **options: The keyword arguments of :func:`diagonal`.

    Returns:
        A and B of shape (S, N/2), complex128.
    """
    if (own := _given(init, DIAGONAL)) is not None:
        if options:
            raise ValueError(f"init_options must be empty unless init is one of {DIAGONAL}, got {sorted(options)}")
        return given.diagonal(own, n_ssm, N)
    names = split_mixture(init, n_ssm, DIAGONAL)
    unknown = set(options) - {"imag_scale", "random_imag", "random_real", "generator"}
    if unknown:
        raise ValueError(
            f"init_options must have keys among ('imag_scale', 'random_imag', 'random_real', 'generator'), "
            f"got {sorted(unknown)}"
        )
    fixed = "random" not in names and not (options.get("random_imag") or options.get("random_real"))
    made: dict[str, tuple[Tensor, Tensor]] = {}
    A, B = [], []
    for name in names:
        if not (fixed and name in made):
            made[name] = diagonal(name, N, **options)
        A.append(made[name][0])
        B.append(made[name][1])
    return torch.stack(A), torch.stack(B)


def mix_dplr(init: Init, n_ssm: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """DPLR initializations for many SSMs, such as "legs/fout" for S4-(LegS/FouT).

    Args:
        init: A measure of :mod:`statespan.ssm.hippo`, or several joined by "/"; a registered name; a pair (A, B) of
            (N, N) and (N,); or a function from N to one.
        n_ssm: Number of SSMs S.
        N: State size.

    Returns:
        Lambda (S, N/2), P (R, S, N/2) and B (S, N/2), complex128; R is the largest rank, smaller ones filled with 0.
    """
    if (own := _given(init, hippo.MEASURES)) is not None:
        return given.dplr(own, n_ssm, N)
    names = split_mixture(init, n_ssm, hippo.MEASURES)
    made = {name: hippo.dplr(name, N) for name in set(names)}
    rank = max(P.shape[0] for _, P, _ in made.values())
    P = torch.stack([torch.nn.functional.pad(made[n][1], (0, 0, 0, rank - made[n][1].shape[0])) for n in names], 1)
    return torch.stack([made[n][0] for n in names]), P, torch.stack([made[n][2] for n in names])


def mix_dense(init: Init, n_ssm: int, N: int) -> tuple[Tensor, Tensor]:
    """Dense real HiPPO initializations for many SSMs.

    Args:
        init: A measure of :mod:`statespan.ssm.hippo`, or several joined by "/"; a registered name; a pair (A, B) of
            (N, N) and (N,); or a function from N to one.
        n_ssm: Number of SSMs S.
        N: State size.

    Returns:
        A (S, N, N) and B (S, N), float64.
    """
    if (own := _given(init, hippo.MEASURES)) is not None:
        return given.dense(own, n_ssm, N)
    makers = {"legs": hippo.legs, "legt": hippo.legt, "fout": hippo.fout}
    made = [makers[name](N) for name in split_mixture(init, n_ssm, hippo.MEASURES)]
    return torch.stack([A for A, _ in made]), torch.stack([B for _, B in made])
