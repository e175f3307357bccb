"""Exported models against the models: frozen, as programs of torch, and in onnxruntime where that is installed."""

import pytest
import torch

from statespan.export import ExportError, export, write
from statespan.export.frozen import freeze
from statespan.export.views import example, view_of
from tests.mistakes import assert_one_clear_line
from tests.models.make import ALL, inputs, make
from tests.nn.make import peak_error

f32, f64 = torch.float32, torch.float64
SMALL = {"n_layers": 1}


BOTH_WAYS = {"both ways": {"layer": "s4"}, "both ways, foh": {"layer": "s4d", "ssm": {"discretization": "foh"}},
             "both ways, S5": {"layer": "s5", "ssm": {"channels": 2}}}  # fmt: skip


@pytest.mark.parametrize("case", [*ALL, *BOTH_WAYS])
def test_frozen_models_are_the_models(case):
    """At lengths around those of chunks, at another rate."""
    model = make("classifier", bidirectional=True, **BOTH_WAYS[case]) if case in BOTH_WAYS else make(case)
    frozen = freeze(model, 1.5)
    for length in (8, 63, 64, 129):
        x, more = inputs(model, 2, length)
        with torch.no_grad():
            assert peak_error(frozen(x, **more), model(x, **more, dt_scale=1.5)) < 1e-10


def no_complex(program):
    """Whether no tensor of a program is complex."""
    values = [value for node in program.graph.nodes for value in _listed(node.meta.get("val"))]
    assert values
    return not any(value.is_complex() for value in values)


def _listed(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [v for one in value for v in _listed(one)] if isinstance(value, (tuple, list)) else []


@pytest.mark.parametrize("view", ["step", "sequence"])
def test_program(view, tmp_path):
    model = make("classifier", dtype=f32, **SMALL, layer="s4", norm="layer", feed_forward=0)
    path = tmp_path / "model.pt2"
    assert export(model, path, to="torch-export", view=view, dt_scale=2.0) < 1e-6
    program = torch.export.load(path)
    assert no_complex(program)
    found, _ = view_of(model, view, 2.0, f64)
    given = example(model, found, 3, 41)
    wanted = model(given[0], dt_scale=2.0) if view == "sequence" else found.module(*given)[0]
    got = program.module()(*given)
    assert peak_error(got if view == "sequence" else got[0], wanted) < 1e-6


def test_a_difference_is_an_error(tmp_path, monkeypatch):
    """What is written is compared with the model at other sizes; the file stays to be looked at."""
    model = make("regressor", dtype=f32, **SMALL)
    monkeypatch.setattr(write, "TOLERANCE", 1e-30)
    monkeypatch.setattr(
        write, "_program", lambda view, inputs, path, check: lambda *x: [y + 1e-3 for y in view.module(*x)]
    )
    with pytest.raises(ExportError, match=r"y is off by .* of its peak, allowed: 1e-30"):
        export(model, tmp_path / "model.pt2", to="torch-export")


def run_onnx(path, given):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {one.name: x.numpy() for one, x in zip(session.get_inputs(), given, strict=True)}
    return session, [torch.from_numpy(y) for y in session.run(None, feed)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("view", ["step", "sequence"])
def test_onnx(view, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    import onnx

    model = make("classifier", dtype=f32, **SMALL, layer="s4", norm="layer", feed_forward=0)
    path = tmp_path / "model.onnx"
    assert export(model, path, view=view) < 1e-5
    found, _ = view_of(model, view, 1.0, f64)
    given = example(model, found, 5, 77)
    session, got = run_onnx(path, given)
    assert peak_error(got[0], model(given[0]) if view == "sequence" else found.module(*given)[0]) < 1e-5
    assert [one.name for one in session.get_inputs()] == list(found.inputs)
    assert session.get_inputs()[0].shape == (["batch", "length", 3] if view == "sequence" else ["batch", 3])
    graph = onnx.load(path).graph
    types = {value.type.tensor_type.elem_type for value in [*graph.input, *graph.output, *graph.value_info]}
    assert not types & {onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128}


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", write.FORMATS)
@pytest.mark.parametrize("view", ["step", "sequence"])
@pytest.mark.parametrize("case", ALL)
def test_every_model(case, view, to, tmp_path):
    if to == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    assert export(make(case, dtype=f32, **SMALL), tmp_path / "model", to=to, view=view) < 1e-5


MISTAKES = {
    "both ways": (
        lambda path: export(make("classifier", bidirectional=True), path), ValueError, ["causal", "bidirectional"],
    ),
    "format": (lambda path: export(make("classifier"), path, to="tflite"), ValueError, ["to", "tflite", "onnx"]),
    "view": (lambda path: export(make("classifier"), path, view="scan"), ValueError, ["view", "scan", "sequence"]),
    "dt_scale": (lambda path: export(make("classifier"), path, dt_scale=0.0), ValueError, ["dt_scale", "0.0"]),
    "model": (lambda path: export(torch.nn.Linear(2, 2), path), TypeError, ["model", "Linear"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, tmp_path):
    call, error, words = MISTAKES[name]
    assert_one_clear_line(lambda: call(tmp_path / "model"), error, words)
    assert not list(tmp_path.iterdir())
