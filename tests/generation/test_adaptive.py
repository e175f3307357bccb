"""The choice from an adaptive softmax by kernels, against plain torch."""

import pytest
import torch

from statespan.generation.adaptive import _fused, _plain, choose
from statespan.nn import AdaptiveTokens
from statespan.ops import use_path
from statespan.ops.sample import VocabularyPart, fused_sample
from tests.ops.make import poison

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ENDS = [0.0, 1e-300, 1e-9, 1 - 1e-9, 1 - 2**-53]
CASES = {  # rows, vocabulary, features, cutoffs, divisor, temperature, dtype: widths 40, 20, 10; 40, 1; 16, 4; 1
    "cold, more rows than a tile": (33, 690, 40, (129, 257), 2, 0.7, torch.float64),
    "float32, more rows than a tile": (130, 300, 40, (171,), 40, 1.0, torch.float32),
    "float32, hot": (21, 560, 40, (129, 257), 2, 1.5, torch.float32),
    "three rows": (3, 400, 16, (256,), 4, 1.0, torch.float64),
    "one of each": (1, 2, 1, (1,), 1, 2.0, torch.float64),
}


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


def given(rows, vocabulary, d_model, cutoffs, div_val, dtype, std=0.3):
    """Tokens with as much probability in each cluster as in the first words, features and numbers up to both ends."""
    tokens = AdaptiveTokens(vocabulary, d_model, cutoffs=cutoffs, div_val=div_val, dtype=dtype, device=DEVICE)
    for p in tokens.parameters():
        torch.nn.init.normal_(p, std=std)
    torch.nn.init.constant_(tokens.clusters.bias, torch.tensor(float(cutoffs[0])).log().item())
    uniform = torch.rand(rows, dtype=torch.float64)
    uniform[: len(ENDS)] = torch.tensor(ENDS, dtype=torch.float64)[:rows]
    return tokens, torch.randn(rows, d_model, dtype=dtype).to(DEVICE), uniform.to(DEVICE)


def parts_of(tokens, features):
    head = tokens.head(features)
    inner = [head, *(tokens._inner(features, i) for i in range(1, len(tokens.tables)))]
    parts = [
        VocabularyPart(z, table.weight, tokens.bias[low:high])
        for z, (table, _, low, high) in zip(inner, tokens._parts())
    ]
    return parts, tokens.clusters(head)


def in_float32(parts, clusters, uniform, temperature):
    wide = [VocabularyPart(*(x.float() for x in part)) for part in parts]
    return fused_sample(wide, clusters.float(), uniform, temperature)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_kernels_choose_what_plain_torch_chooses(case):
    pytest.importorskip("triton")
    rows, vocabulary, d_model, cutoffs, div_val, temperature, dtype = CASES[case]
    tokens, features, uniform = given(rows, vocabulary, d_model, cutoffs, div_val, dtype)
    token, log_prob = _fused(tokens, features, uniform, temperature)
    wanted, wanted_log_prob = _plain(tokens, features, uniform, temperature)
    assert token.tolist() == wanted.tolist()
    assert log_prob.dtype == wanted_log_prob.dtype == dtype
    bound = 1e-12 if dtype == torch.float64 else 1e-6 * wanted_log_prob.abs().max()
    assert (log_prob - wanted_log_prob).abs().max() < bound
    if rows > 20:
        parts = torch.bucketize(token.cpu(), torch.tensor(cutoffs), right=True)
        assert torch.bincount(parts, minlength=len(cutoffs) + 1).min() >= 2


@torch.no_grad()
def test_wide_tables_of_16_bits():
    """Two blocks of words in a tile, and features that fill no whole number of tiles."""
    pytest.importorskip("triton")
    tokens, features, uniform = given(9, 700, 520, (400,), 8, torch.float16, std=0.04)
    token, log_prob = _fused(tokens, features, uniform, 1.3)
    wanted, wanted_log_prob = in_float32(*parts_of(tokens, features), uniform, 1.3)
    assert token.tolist() == wanted.tolist()
    assert log_prob.dtype == torch.float32
    assert (log_prob - wanted_log_prob).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of interpreted kernels, at what is not a number
def test_words_that_cannot_be():
    """Whole blocks and the ends of others have probability 0; what is not a number still gives a token that exists."""
    pytest.importorskip("triton")
    tokens, features, uniform = given(5, 520, 8, (260,), 2, torch.float64)
    banned = torch.ones(520, dtype=torch.bool)
    banned[[3, 200, 270, 518]] = False
    tokens.bias.masked_fill_(banned.to(DEVICE), -torch.inf)
    token, log_prob = _fused(tokens, features, uniform, 0.9)
    wanted, wanted_log_prob = _plain(tokens, features, uniform, 0.9)
    assert token.tolist() == wanted.tolist()
    assert {3, 518} <= set(token.tolist()) <= {3, 200, 270, 518}
    assert (log_prob - wanted_log_prob).abs().max() < 1e-12
    token, _ = _fused(tokens, features * torch.nan, uniform, 0.9)
    assert ((token >= 0) & (token < 520)).all()
    token, _ = _fused(tokens, features, uniform, 1e-200)  # so cold that only the likeliest is left
    assert (token == tokens.log_probs(features).argmax(-1)).all()


def test_who_chooses(monkeypatch):
    """The kernels where they are forced, or on a GPU; not where a gradient or another precision is wanted."""
    pytest.importorskip("triton")
    tokens, features, uniform = given(2, 20, 4, (10,), 2, torch.float32)
    calls = []

    def fused(*arguments):
        calls.append(1)
        return _fused(*arguments)

    monkeypatch.setattr("statespan.generation.adaptive._fused", fused)

    def count():
        calls.clear()
        choose(tokens, features, uniform, 1.0)
        return len(calls)

    with use_path("triton"):
        assert count() == 0  # the parameters require gradients
    with torch.no_grad():
        assert count() == (DEVICE == "cuda")
        with use_path("chunks"):
            assert count() == 0
        with use_path("triton"):
            assert count() == 1
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                assert count() == 0
            token, log_prob = choose(tokens, features, uniform, 1.0)
    assert (token.dtype, log_prob.dtype) == (torch.int64, torch.float32)


@torch.no_grad()
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu(dtype, temperature):
    """All widths of the large model; the same bits in a graph, and alone."""
    tokens, features, uniform = given(4096, 3000, 1024, (1000, 1500, 2500), 4, dtype, std=0.03)
    assert [table.embedding_dim for table in tokens.tables] == [1024, 256, 64, 16]
    token, log_prob = _fused(tokens, features, uniform, temperature)
    parts, clusters = parts_of(tokens, features)
    if dtype == torch.float32:
        wanted, wanted_log_prob = _plain(tokens, features, uniform, temperature)
    else:  # plain torch rounds the scores to 8 bits, the kernels do not: they do what those of float32 do
        wanted, wanted_log_prob = in_float32(parts, clusters, uniform, temperature)
    same = token == wanted
    assert same.float().mean() >= (0.999 if dtype == torch.float32 else 0.995)
    assert (log_prob - wanted_log_prob)[same].abs().max() <= 1e-5 * wanted_log_prob.abs().max()
    assert torch.equal(choose(tokens, features, uniform, temperature)[0], token)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = choose(tokens, features, uniform, temperature)
    graph.replay()
    assert torch.equal(captured[0], token)
    assert torch.equal(captured[1], log_prob)
    for rows in (slice(7, 8), slice(100, 300)):
        some = [part._replace(z=part.z[rows]) for part in parts]
        alone = fused_sample(some, clusters[rows], uniform[rows], temperature)
        assert torch.equal(alone[0], token[rows])
        assert torch.equal(alone[1], log_prob[rows])
