"""Noise and choices against published words and enumerated distributions."""

import itertools

import pytest
import torch

from statespan.generation import Sampling, uniforms
from statespan.generation.adaptive import choose
from statespan.generation.noise import threefry
from statespan.generation.sampling import invert
from statespan.nn import AdaptiveTokens
from tests.mistakes import assert_one_clear_line

WORDS = [  # of Random123: key, counter, result
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "wanted"), WORDS)
def test_threefry(key, counter, wanted):
    first, second = threefry(key, *(torch.tensor(word) for word in counter))
    assert (int(first), int(second)) == wanted


def test_uniforms():
    rows, positions = torch.arange(100), torch.arange(200)
    u = uniforms(5, rows, positions[:, None])
    assert u.shape == (200, 100)
    assert u.min() >= 0
    assert u.max() < 1
    assert len(u.unique()) == u.numel()
    counts = torch.histc(u.float(), 20, 0, 1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi square of 19, 99.9 %
    assert abs(torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]) < 0.03
    assert (uniforms(5, torch.tensor(7), torch.tensor(9)) == u[9, 7]).all()
    assert (uniforms(6, rows, positions[:, None]) != u).any()
    large = 2**64 - 1
    assert 0 <= uniforms(large, torch.tensor(2**32 - 1), torch.tensor(0)) < 1
    for seed in (-1, 2**64):
        assert_one_clear_line(lambda s=seed: uniforms(s, rows, rows), ValueError, ["seed", str(seed)])


def enumerated(scores, temperature, top_k, top_p, min_p):
    """The distribution by plain loops over sorted tokens."""
    p = {i: 2.718281828459045 ** (s / temperature) for i, s in enumerate(scores)}

    def normal(p):
        total = sum(p.values())
        return {i: v / total for i, v in p.items()}

    p = normal(p)
    if top_k is not None:
        last = sorted(p.values(), reverse=True)[min(top_k, len(p)) - 1]
        p = normal({i: v for i, v in p.items() if v >= last})
    if top_p is not None:
        kept, total = {}, 0.0
        for i, v in sorted(p.items(), key=lambda item: -item[1]):
            if total >= top_p:
                break
            kept[i], total = v, total + v
        p = normal(kept)
    if min_p is not None:
        p = normal({i: v for i, v in p.items() if v >= min_p * max(p.values())})
    return [p.get(i, 0.0) for i in range(len(scores))]


def test_distributions():
    scores = [0.3, -1.0, 2.0, 1.1, -4.0, 1.9, 0.0]
    options = itertools.product((0.5, 1.0, 2.0), (None, 1, 3, 6, 50), (None, 0.3, 0.8, 1.0), (None, 0.2, 1.0))
    for option in options:
        found = Sampling(*option).probabilities(torch.tensor([scores], dtype=torch.float64))[0]
        torch.testing.assert_close(
            found, torch.tensor(enumerated(scores, *option), dtype=torch.float64), msg=str(option)
        )


def test_top_p_needs_no_token_more_than_reaches_it():
    """Probabilities that are exact: 1/2, 1/4, 1/8, 1/8."""
    scores = torch.tensor([[1.0, 0.5, 0.25, 0.25]], dtype=torch.float64).log()
    assert Sampling().probabilities(scores).tolist() == [[0.5, 0.25, 0.125, 0.125]]
    for top_p, kept in ((0.25, 1), (0.5, 1), (0.5 + 1e-9, 2), (0.75, 2), (0.75 + 1e-9, 4), (1.0, 4)):
        assert int((Sampling(top_p=top_p).probabilities(scores) > 0).sum()) == kept, top_p


def test_choice_inverts_the_distribution():
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-52], dtype=torch.float64)
    assert invert(p.expand(6, 6), u).tolist() == [1, 1, 3, 3, 4, 4]  # never what has no probability
    scores = torch.randn(1, 30)
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    counts = torch.bincount(Sampling()(scores.expand(100_000, 30), u), minlength=30)
    assert (counts / 100_000 - scores.softmax(-1)[0]).abs().max() < 2e-5
    assert (Sampling(temperature=0)(scores, u[:1]) == scores.argmax()).all()


MISTAKES = {
    "temperature": {"temperature": -1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.5},
    "min_p": {"min_p": 0.0},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    assert_one_clear_line(lambda: Sampling(**MISTAKES[name]), ValueError, [name, str(MISTAKES[name][name])])


def test_blocks_of_many_tokens():
    """More tokens than are summed up at once, not a multiple of a block."""
    p = torch.rand(50, 9001) ** 4
    u = torch.rand(50, dtype=torch.float64)
    sums = p.double().cumsum(-1)
    wanted = (sums <= u[:, None] * sums[:, -1:]).sum(-1)
    assert (invert(p, u) == wanted).all()
    ends = torch.tensor([0.0, 1 - 2**-52], dtype=torch.float64)
    p[:2, 0] = p[:2, -1] = 0.0
    found = invert(p[:2], ends)
    assert found.tolist() == [1, 8999]
    p = torch.zeros(100, 9001)
    p[:, -1] = 1.0  # all in the last block, which is not whole
    assert (invert(p, torch.arange(100) / 100) == 9000).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_adaptive_choice_is_that_of_all_probabilities(temperature):
    tokens = AdaptiveTokens(9000, 32, cutoffs=(20, 100), div_val=2, dtype=torch.float64)
    for p in tokens.parameters():
        torch.nn.init.normal_(p, std=0.25)
    torch.nn.init.constant_(tokens.clusters.bias, 3.0)
    features, u = torch.randn(400, 32, dtype=torch.float64), torch.rand(400, dtype=torch.float64)
    with torch.no_grad():
        scores = tokens.log_probs(features)
        token, log_prob = choose(tokens, features, u, temperature)
    wanted = Sampling(temperature)(scores, u)
    assert (token == wanted).float().mean() >= 0.99  # float32 against float64: a number may lie on an edge
    clusters = torch.bucketize(token, torch.tensor([20, 100]), right=True)
    assert torch.bincount(clusters, minlength=3).min() >= 3
    assert (log_prob - scores.gather(-1, token[:, None])[:, 0]).abs().max() < 1e-5
