"""``statespan import-reference``: from a checkpoint to a folder that the other commands read."""

import numpy as np
import pytest
import torch

import statespan
from statespan import models
from statespan.data import load
from tests.cli.make import one_line
from tests.cli.test_models import invoke, said
from tests.models.reference import brute
from tests.models.reference.brute import Block, Sizes, Stack, draw, error, rand


def stack(d=6):
    return Stack([Block(ssm, brute.v4(ssm)) for ssm in (draw(Sizes(H=d, S=d)) for _ in range(2))], d=d)


@pytest.fixture
def classifier(tmp_path):
    """A classifier of digits, as a file and as a function."""
    layers = stack()
    tensors = {f"model.{name}": value for name, value in layers.tensors.items()}
    W, b, V, c = rand(6, 1), rand(6), rand(10, 6), rand(10)
    tensors |= {"encoder.0.weight": W, "encoder.0.bias": b}
    tensors |= {"decoder.0.output_transform.weight": V, "decoder.0.output_transform.bias": c}
    path = tmp_path / "digits.ckpt"
    torch.save({"state_dict": tensors}, path)
    return path, lambda x: layers(x @ W.T + b).mean(1) @ V.T + c


def test_a_model_for_predict_stream_and_export(tmp_path, classifier):
    path, compute = classifier
    folder = tmp_path / "model"
    shown = said(invoke("import-reference", path, "--out", folder, "--dt-transform", "exp"))
    assert "classifier: 2 × s4, d_model 6, d_state 6" in shown
    assert "read with dt_transform=exp, real_transform=exp, disc=bilinear, activation=gelu, pool=mean" in shown
    x = rand(1, 30, 1)
    wanted = compute(x)
    assert error(statespan.load(folder)(x.float()).double(), wanted) <= 1e-5
    np.savetxt(tmp_path / "x.csv", x[0])
    said(invoke("predict", folder, tmp_path / "x.csv", "--out", tmp_path / "y.npz"))
    with np.load(tmp_path / "y.npz", allow_pickle=False) as answers:
        assert np.abs(answers["probabilities"] - wanted.softmax(-1).numpy()).max() < 1e-6
    lines = said(invoke("stream", folder, stdin=(tmp_path / "x.csv").read_bytes())).splitlines()
    number, kind, probability = lines[-1].split(",")[:3]
    assert (int(number), int(kind)) == (30, wanted.argmax())
    assert abs(float(probability) - wanted.softmax(-1).max()) < 1e-4
    assert len(lines) == 31
    said(invoke("export", folder, "--to", "torch-export", "--view", "sequence", "--out", tmp_path / "y.pt2"))
    again = invoke("import-reference", path, "--out", folder)
    assert "--out must be a folder without a model" in one_line(again)


def test_a_recipe_names_the_data_for_eval(tmp_path, classifier):
    path, compute = classifier
    folder = tmp_path / "model"
    options = ("--dt-transform", "exp", "--recipe", "digits-s4d")
    said(invoke("import-reference", path, "--out", folder, *options))
    batch = load("digits").test.batch(range(359))
    scores = compute(batch.x.double())
    right, loss = (scores.argmax(-1) == batch.y).double().mean(), torch.nn.functional.cross_entropy(scores, batch.y)
    shown = said(invoke("eval", folder)).split()
    assert shown[shown.index("accuracy") + 1] == f"{100 * right:.2f}"
    assert abs(float(shown[shown.index("loss") + 1]) - loss) < 2e-3


@pytest.mark.parametrize("alone", [True, False])
def test_a_layer_or_a_stack_is_saved_as_a_model(tmp_path, alone):
    made = stack(4)
    made = made.layers[0] if alone else made
    torch.save(made.tensors, tmp_path / "s4.pt")
    said(invoke("import-reference", tmp_path / "s4.pt", "--out", tmp_path / "model", "--dtype", "float64"))
    model = statespan.load(tmp_path / "model")
    assert type(model) is models.Transducer
    x = rand(1, 20, 4)
    assert error(model(x), made(x)) <= 1e-11
    text = "\n".join(",".join(f"{v:.17g}" for v in row) for row in x[0].tolist()).encode()
    lines = said(invoke("stream", tmp_path / "model", stdin=text)).splitlines()[1:]
    rows = torch.tensor([[float(v) for v in line.split(",")[1:]] for line in lines])
    assert error(rows, made(x)[0].float()) < 1e-4
    said(invoke("export", tmp_path / "model", "--to", "torch-export", "--out", tmp_path / "y.pt2"))


def test_mistakes_are_one_line(tmp_path, classifier):
    path, _ = classifier
    out = ("--out", tmp_path / "model")
    assert "is not a file" in one_line(invoke("import-reference", tmp_path / "none.pt", *out))
    (tmp_path / "bad.pt").write_bytes(b"garbage")
    assert "bad.pt is not a whole file" in one_line(invoke("import-reference", tmp_path / "bad.pt", *out), 1)
    assert "dt_transform must be" in one_line(invoke("import-reference", path, *out, "--dt-transform", "x"))
    assert "--dtype must be" in one_line(invoke("import-reference", path, *out, "--dtype", "int8"))
    torch.save({"weight": rand(2)}, tmp_path / "other.pt")
    assert "no S4 layer" in one_line(invoke("import-reference", tmp_path / "other.pt", *out), 1)
    assert "no recipe" in one_line(invoke("import-reference", path, *out, "--recipe", "digits-s4x"))
    assert not (tmp_path / "model").exists()
