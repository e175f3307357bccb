"""Every benchmark runs through the command, and its record says what it must."""

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from statespan._registry import Registered
from statespan.generation.tree import leaves
from statespan.papers.bench.case import TOLERANCE
from statespan.papers.bench.catalog import CATALOG
from statespan.papers.bench.options import choose_options, find
from tests.papers.bench.run import invoke, ok, quick

EXPECTED = {  # rows in quick mode on a CPU, by name and how often
    "op": {"u.clone()": 1, "S4D chunks": 3, "S4D fft": 3, "S4 chunks": 3, "S4 fft": 3},
    "layer": {"S4D chunks": 2, "S4D fft": 2, "S4 chunks": 2, "S4 fft": 2, "flash attention": 2},
    "eager": {"S4D": 2, "S4": 2, "attention": 2, "LSTM": 2, "S4D, AdamW step": 1},
    "model": {"S4D eager": 2, "S4D eager, fft": 2, "S4 eager": 2, "S4 eager, fft": 2},
    "loop": {"bare step": 2, "loop": 2},
    "s4_table2": dict.fromkeys(
        ("LSSL Krylov", "LSSL fft", "LSSL chunks", "S4 Cauchy", "S4 Cauchy, plain torch", "S4 fft", "S4"), 2
    ),
    "s4_table3": dict.fromkeys(
        ("Transformer", "Performer", "Linear Transformer", "Transformer, flash", "S4", "S4, fft"), 2
    ),
    "step": {f"{kind}, {state} states": 2 for kind in ("S4D", "S4") for state in ("float32", "float64")},
    "s4_table7": {"S4 base": 2, "S4 large": 2, "Transformer at 8": 1, "Transformer at 24": 1},
    "s4_table8": {
        "S4": 2,
        "S4 without a graph": 1,
        "Transformer at 16": 1,
        "Transformer at 32": 1,
        "S4 after 16": 1,
        "S4 after 128": 1,
    },
    "scaling": {"S4D": 4, "S4": 4, "flash attention": 4},
    "cpu": {
        "S4D chunks": 2,
        "S4D fft": 2,
        "S4D naive Vandermonde, c128": 2,
        "S4 chunks": 2,
        "S4 fft": 2,
        "S4 naive Cauchy, c64": 2,
        "S4 naive Cauchy, c128": 2,
        "S4D naive Vandermonde, c64": 3,
        "S4 naive Cauchy, one matrix, c64": 3,
        "S4D": 2,
        "S4": 2,
        "LSTM": 1,
        **dict.fromkeys((f"{kind}, set-up {how}" for kind in ("S4D", "S4") for how in ("kept", "made")), 1),
    },
}
if find_spec("transformers") is not None:
    EXPECTED["s4_table8"] |= {"Hugging Face GPT-2 at 16": 1, "Hugging Face GPT-2 as it comes at 16": 1}


FORWARD_ONLY = ("copy", "forward", "build + forward", "short, evaluation", "one step")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Each benchmark's record, run once."""
    folder = tmp_path_factory.mktemp("bench")
    found = {}

    def get(name):
        if name not in found:
            done, found[name] = quick(folder, name)
            assert done.exit_code == 0, done.output
            assert (folder / f"{name}-cpu-quick.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        return found[name]

    return get


@pytest.mark.parametrize("name", CATALOG)
def test_quick_run_records_every_row(name, records):
    record = records(name)
    rows = ok(record)
    counts = {row["name"]: sum(other["name"] == row["name"] for other in rows) for row in rows}
    assert counts == EXPECTED[name]
    assert record["benchmark"] == name
    assert record["settings"]["quick"] is True
    assert record["settings"]["dtype"] == "float32"
    bandwidth, matmul = record["machine"]["copy_gb_per_s"] * 1e9, record["machine"]["matmul_tflop_per_s"] * 1e12
    assert 1e8 < bandwidth < 1e13
    assert 1e8 < matmul < 1e16
    for row in rows:
        assert 0 < row["low_ms"] <= row["time_ms"] <= row["high_ms"] < 1e5
        assert row["ratio"] == pytest.approx(row["time_ms"] / row["floor_ms"], rel=1e-12)
        assert row["memory_mb"] > 0
        assert all(math.isfinite(value) for value in row["extra"].values())


@pytest.mark.parametrize("name", CATALOG)
def test_results_were_compared_with_their_reference(name, records):
    for row in records(name)["rows"]:
        # torch's own kernel, at lengths whose weights do not fit; steps of a model that other benchmarks compare;
        # somebody else's model
        if row["name"] in ("flash attention", "attention", "LSTM", "loop") or row["name"].startswith("Hugging Face"):
            assert (row["error"], row["tolerance"], row["compared"]) == (None, None, {})
            continue
        assert row["error"] == max(row["compared"].values())
        assert row["error"] <= row["tolerance"]
        assert "output" in row["compared"]
        if name == "loop":  # on a CPU the captured step is the step itself
            assert row["error"] == 0.0
            assert "gradient of encoder.map.weight" in row["compared"]
            continue
        trains = name not in ("step", "s4_table7", "s4_table8")
        if trains and row["setting"].get("part") not in FORWARD_ONLY:
            assert "input gradient" in row["compared"]
        if row["name"] != "u.clone()":  # rounding there is: the comparison was not of a tensor with itself
            assert row["error"] > 0
        assert row["tolerance"] <= 5e-5 or "c64" in row["name"]


def test_op_floor_and_copies(records):
    record = records("op")
    bandwidth = record["machine"]["copy_gb_per_s"] * 1e9
    copy = next(row for row in record["rows"] if row["name"] == "u.clone()")
    tensor = 2 * 8 * 300 * 4  # batch, heads, length, bytes of a float32
    for row in record["rows"]:
        tensors = 5 if row["setting"]["part"].endswith("backward") else 2
        assert row["floor_ms"] == pytest.approx(1e3 * tensors * tensor / bandwidth, rel=1e-9)
        assert row["extra"]["copies"] == pytest.approx(row["time_ms"] / copy["time_ms"], rel=1e-12)
    assert copy["memory_mb"] == tensor / 1e6
    backward = [row for row in record["rows"] if row["setting"]["part"].endswith("backward")]
    parameters = {"S4D": ("A", "B", "C", "dt"), "S4": ("A", "P", "B", "C", "dt")}
    for row in backward:
        assert {f"gradient of {p}" for p in parameters[row["name"].split()[0]]} < set(row["compared"])


def test_layer_keeps_the_number_of_tokens(records):
    shapes = {(row["setting"]["batch"], row["setting"]["length"]) for row in records("layer")["rows"]}
    assert shapes == {(6, 64), (2, 200)}


def test_model_has_the_sizes_of_the_papers():
    from statespan.papers.bench.model import build, tasks

    cifar, listops = tasks(choose_options(find("model"), device="cpu"))
    assert (cifar.n_layers, cifar.d_model, cifar.batch, cifar.length) == (6, 512, 50, 1024)
    assert (listops.n_layers, listops.d_model, listops.batch, listops.length) == (8, 128, 50, 2048)
    model = build(listops, "S4D", 64, "cpu")
    assert all(block.layer.bidirectional and block.layer.d_output == 128 for block in model.blocks)
    assert model.blocks[0].layer.mix[0].out_features == 256  # GLU
    assert type(model.blocks[0].norm).__name__ == "BatchNorm"


def test_model_has_baselines_by_name(tmp_path):
    names = ("resnet2d", "convnet", "wavegan")
    done, record = quick(tmp_path, "model", "--size", f"baselines={','.join(names)}")
    assert done.exit_code == 0, done.stderr
    rows = {row["name"]: row for row in ok(record) if row["setting"]["task"] == "sCIFAR"}
    assert set(rows) == {*EXPECTED["model"], *(f"{name} eager" for name in names)}
    for name in names:
        row = rows[f"{name} eager"]
        assert row["setting"] == {"task": "sCIFAR", "length": 64, "batch": 2}
        assert row["floor_ms"] > 0
        assert row["parameters"] > 10_000
        assert row["extra"]["sequences_per_s"] == pytest.approx(2e3 / row["time_ms"])
        assert row["error"] is None
    assert sum(row["setting"]["task"] == "ListOps" for row in record["rows"]) == 4  # tokens, which no CNN reads


def test_a_baseline_layer_stands_in_the_same_blocks(tmp_path, monkeypatch):
    from statespan.models.config import ADDED_LAYERS
    from statespan.nn import FeedForward

    monkeypatch.setitem(ADDED_LAYERS._items, "forward", Registered(FeedForward, "test"))
    done, record = quick(tmp_path, "model", "--size", "baselines=forward")
    assert done.exit_code == 0, done.stderr
    rows = [row for row in ok(record) if row["name"] == "forward eager"]
    assert [row["setting"]["task"] for row in rows] == ["sCIFAR", "ListOps"]


def test_an_unknown_baseline_gets_one_line(tmp_path):
    done = invoke("bench", "model", "--size", "baselines=resnet2", "--quick", "--device", "cpu", "--out", tmp_path)
    assert done.exit_code == 2
    assert "--size baselines must be names of convnet, " in done.stderr
    assert "got 'resnet2'; did you mean resnet2d?" in done.stderr


def test_model_counts_sequences(records):
    for row in records("model")["rows"]:
        assert row["extra"]["sequences_per_s"] == pytest.approx(1e3 * row["setting"]["batch"] / row["time_ms"])


def test_table2_has_the_appendix_s_sizes(records):
    from statespan import LSSL, S4

    assert dict(find("s4_table2").listing.sizes)["d_model"] == (128, 256, 512)
    rows = records("s4_table2")["rows"]
    for row in rows:
        d = row["setting"]["d_model"]
        assert row["setting"]["d_state"] == (d if row["name"].startswith("LSSL") else d // 2)
        base = next(r for r in rows if r["name"] == "LSSL Krylov" and r["setting"]["d_model"] == d)
        assert row["extra"]["speedup"] == pytest.approx(base["time_ms"] / row["time_ms"])
        assert row["extra"]["memory_saving"] == pytest.approx(base["memory_mb"] / row["memory_mb"])
    count = {
        kind: sum(p.numel() for p in kind.parameters())
        for kind in (LSSL(256, 256, mix="linear"), S4(256, 128, mix="linear"))
    }
    lssl, s4 = count.values()
    assert abs(s4 / lssl - 1) < 0.002  # "to parameter-match the LSSL"


def test_cpu_compares_what_has_the_same_around_it(records):
    rows = [row for row in records("cpu")["rows"] if row["setting"]["part"] in ("SSM alone", "layer")]
    assert len(rows) == 18
    for row in rows:
        mine = [r for r in rows if r["setting"] == row["setting"] and r["name"].split()[0] == row["name"].split()[0]]
        assert mine[-1]["name"].endswith("c128")
        assert row["extra"]["speedup"] == pytest.approx(mine[-1]["time_ms"] / row["time_ms"])
        mixed = row["parameters"] - min(r["parameters"] for r in rows if r["name"] == row["name"])
        assert mixed == (8 * 8 + 8 if row["setting"]["part"] == "layer" else 0)


def test_cpu_compares_short_work_with_its_baselines(records):
    rows = {(row["setting"]["part"], row["name"]): row for row in records("cpu")["rows"]}
    baselines = {
        ("short, training", "S4D"): "S4D naive Vandermonde, c64",
        ("short, training", "S4"): "S4 naive Cauchy, one matrix, c64",
        ("short, evaluation", "S4, set-up kept"): "S4, set-up made",
        ("one step", "S4D"): "LSTM",
        ("one step", "S4"): "LSTM",
    }
    for (part, name), base in baselines.items():
        row = rows[part, name]
        assert row["extra"]["speedup"] == pytest.approx(rows[part, base]["time_ms"] / row["time_ms"])
    assert sum(part in ("short, training", "short, evaluation", "one step") for part, _ in rows) == 11
    assert {row["setting"]["layers"] for (part, _), row in rows.items() if part == "one step"} == {2}


def test_table3_parameters_match_at_the_paper_s_size(records):
    from statespan.papers.bench import s4_table3

    settings = choose_options(find("s4_table3"), device="cpu")
    counts = {
        name: sum(p.numel() for p in s4_table3.build(make, 256).parameters())
        for name, make in s4_table3.mixers(settings).items()
    }
    assert set(counts.values()) == {597_002, 600_586}  # "roughly 600k parameters"
    for row in records("s4_table3")["rows"]:
        assert row["parameters"] == pytest.approx(6602, rel=0.05)
        base = next(r for r in records("s4_table3")["rows"] if r["setting"] == row["setting"])
        assert base["name"] == "Transformer"
        assert row["extra"]["speed"] == pytest.approx(base["time_ms"] / row["time_ms"])
        assert row["extra"]["memory"] == pytest.approx(row["memory_mb"] / base["memory_mb"])


def test_table3_transformer_holds_its_weights(records):
    """Quadratic memory where the weights are held, at most linear elsewhere, from length 64 to 128."""
    memory = {(r["name"], r["setting"]["length"]): r["memory_mb"] for r in records("s4_table3")["rows"]}
    growth = {name: memory[name, 128] / memory[name, 64] for name, _ in memory}
    assert growth.pop("Transformer") > 3.2
    assert max(growth.values()) < 2.1


def test_table7_and_table8_have_the_models_of_the_appendix(records):
    """249M parameters for words; for images a Transformer of about the base model's size."""
    from statespan.models import LanguageModel, PixelModel
    from statespan.papers.bench import s4_table7, s4_table8
    from statespan.papers.bench.decoding import STATE

    def count(model):
        return sum(p.numel() for p in model.parameters())

    words = choose_options(find("s4_table8"), device="cpu")
    ours = LanguageModel(s4_table8.config(words), device="meta")
    assert 249e6 <= count(ours) < 250e6
    assert 240e6 <= count(s4_table8.transformer(words, 1024, torch.device("meta"))) < 256e6
    assert sum(leaf.numel() for leaf in leaves(ours.initial_state(1, dtype=STATE))) == 32 * 1024 * 64
    images = choose_options(find("s4_table7"), device="cpu")
    configs = s4_table7.models(images)
    base = count(PixelModel(configs["S4 base"], device="meta"))
    assert abs(count(s4_table7.transformer(images, torch.device("meta"))) / base - 1) < 0.1
    shape = PixelModel(configs["S4 base"], device="meta").initial_state(1, dtype=STATE)
    shares = {share: sum(x.numel() for x in leaves(state)) for state, share in s4_table7._shares(shape, (3, 4, 4))}
    assert shares == {1.0: 16 * 128 * 64, 1 / 3: 16 * 128 * 64, 1 / 12: 16 * 128 * 64, 1 / 48: 8 * 128 * 64}


def test_generation_rates(records):
    for row in records("s4_table8")["rows"]:
        assert row["extra"]["tokens_per_s"] == pytest.approx(1e3 * row["setting"]["batch"] / row["time_ms"])
    for row in records("s4_table7")["rows"]:
        per_image = row["time_ms"] * 24 / row["setting"]["steps"]
        assert row["extra"]["images_per_s"] == pytest.approx(1e3 * row["setting"]["batch"] / per_image)
    assert any(line.startswith("S4 over Transformer at 32: ") for line in records("s4_table8")["findings"])
    assert any(line.startswith("a step after 128 tokens takes ") for line in records("s4_table8")["findings"])
    assert any(line.startswith("S4 base over Transformer: ") for line in records("s4_table7")["findings"])
    ours = "S4 over Hugging Face GPT-2 as it comes at 16: "
    said = [line for line in records("s4_table8")["findings"] if line.startswith(ours)]
    assert len(said) == (find_spec("transformers") is not None)
    assert all(line.endswith("x (paper: 60x)") for line in said)


@pytest.mark.parametrize("graph", [True, False])
def test_memory_of_steps_does_not_count_the_case_before(graph, monkeypatch):
    """The peak is counted from the start of the case, also for steps that are not captured in a graph."""
    from statespan.papers.bench import decoding, s4_table8

    peaks = [1000]  # the case before left this peak behind
    monkeypatch.setattr(decoding, "reset_peak", lambda _: peaks.append(10), raising=False)
    monkeypatch.setattr(decoding, "peak_over", lambda before, device: peaks[-1])
    options = choose_options(find("s4_table8"), device="cpu", quick=True)
    assert s4_table8._work(options, 1, graph=graph).peak_bytes == 10


def test_batches_fill_the_memory(monkeypatch):
    """Rows of caches up to 0.8 of a GPU of 100 GB, a power of two, and fractions of that."""
    from types import SimpleNamespace

    from statespan.papers.bench import s4_table8

    settings = replace(choose_options(find("s4_table8"), device="cpu"), device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=100 * 10**9))
    cached = 2 * 16 * 8192 * 1024
    assert s4_table8.batches(settings, cached, 10**8, 2) == [8, 32, 128]  # 0.54 GB each
    assert s4_table8.batches(settings, 3 * cached, 10**8, 4) == [1, 4, 16]
    assert s4_table8.batches(settings, 4 * cached, 10**8, 2, few=True) == [8, 32]
    assert s4_table8.batches(settings, 500 * cached, 10**8, 4) == [1]


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_hugging_face_s_caches_hold_the_context():
    """Both attend to the whole context at every step, and give what one pass over the same keys and values gives."""
    from statespan.papers.bench.kv_cache import StackSizes, hugging_face_work

    settings = choose_options(find("s4_table8"), device="cpu", dtype="float32", quick=True)
    outputs = []
    for as_it_comes in (False, True):
        torch.manual_seed(3)
        work = hugging_face_work(settings, StackSizes(16, 2, 2), 2, 7, as_it_comes=as_it_comes)
        first, again = work.run()["output"].clone(), work.run()["output"]
        assert torch.equal(first, again)
        outputs.append(first)
    assert (outputs[0] - outputs[1]).abs().max() < 1e-6  # zeros before, and the token itself at the last place


def test_scaling_fits_exponents(records):
    record = records("scaling")
    memory = {row["name"]: row["extra"]["memory_exponent"] for row in record["rows"]}
    assert 0.9 < memory["flash attention"] < 1.1
    assert memory["S4"] < 1.1
    assert [line.split(":")[0] for line in record["findings"]] == ["S4D", "S4", "flash attention"]


def test_half_precision_runs_under_autocast(tmp_path):
    done, record = quick(tmp_path, "layer", "--dtype", "bf16", "--size", "lengths=64", "--no-plot")
    assert done.exit_code == 0, done.output
    for row in ok(record):
        if row["tolerance"]:
            assert row["tolerance"] == TOLERANCE[torch.bfloat16]
            assert 1e-4 < row["error"] < 2e-2  # rounded to 8 bits, and no worse
    assert list(tmp_path.iterdir()) == [tmp_path / "layer-cpu-quick.json"]
