"""Each published weight file reproduces its number."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import statespan
from statespan.data import inputs
from statespan.data.base import Arrays, Batch, Dataset, Info, Raw
from statespan.data.registry import entry
from statespan.papers.datasets.images import Pixels
from statespan.papers.records import publish
from statespan.papers.records.card import write_card
from statespan.papers.records.record import model_name, stem
from statespan.train import evaluate, read_recipe
from statespan.train.run import without_others
from tests.data.real import real

ROOT = Path(__file__).parents[3]
MODELS = sorted(path.parent for path in ROOT.glob("models/*/config.json"))


def close(found, recorded, rows):
    """Rounding may turn one answer in 32 and two in 256; everything else agrees to a thousandth."""
    for name, number in recorded.items():
        if name == "accuracy":
            assert abs(found[name] - number) * rows <= (1.01 if rows < 256 else 2.01), (found, recorded)
        else:
            assert abs(found[name] - number) <= 1e-3 * abs(number), (found, recorded)


def needs_files(folder):
    """Whether the data that a model was tested on has to be there; other datasets are made, or come with a package."""
    recipe = json.loads((folder / "record.json").read_text())["recipe"]
    return not all(source.optional for source in entry(recipe["data"]["name"]).files)


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """From a recipe to the data that its model was tested on; models of one dataset share what it keeps on disk."""
    folders = {}

    def load(recipe, rows):
        name, options = recipe["data"]["name"], {k: v for k, v in recipe["data"].items() if k != "name"}
        made, kept = all(source.optional for source in entry(name).files), entry(name).folder
        if kept not in folders:
            empty = tmp_path_factory.mktemp("data")
            folders[kept] = empty if made else real(empty, kept)
        if without_others(read_recipe(recipe), "test"):  # made row by row: the first are the same of fewer
            options |= {"generate": True, "train": 1, "valid": 1, "test": rows}
        return statespan.data.load(name, folders[kept], **options)

    return load


TESTED = [pytest.param(path, id=path.name, marks=[pytest.mark.real_data] * needs_files(path)) for path in MODELS]


def test_there_are_models():
    assert "digits-s4d" in [path.name for path in MODELS]


@pytest.mark.parametrize("rows", [32, pytest.param(256, marks=pytest.mark.soak)])
@pytest.mark.parametrize("folder", TESTED)
def test_each_published_model_reproduces_its_number(folder, rows, data_of):
    record = json.loads((folder / "record.json").read_text())
    recorded = record["check"]["rows"][str(rows)]
    data = data_of(record["recipe"], rows)
    if publish.fingerprint(data) != pytest.approx(record["check"]["data"], rel=1e-4):
        assert needs_files(folder), "made data is the same everywhere"
        pytest.skip("the data here is not what the model was tested on")
    found = evaluate(folder, overrides=["train.precision=fp32"], data=data, device="cpu", rows=rows)
    assert found.keys() == recorded.keys()
    close(found, recorded, rows)


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: path.name)
def test_what_lies_beside_the_weights(folder):
    record = json.loads((folder / "record.json").read_text())
    assert record == json.loads((ROOT / "results/tasks" / f"{stem(record)}.json").read_text())
    assert folder.name.startswith(model_name(record)[:5])
    model = statespan.load(folder.name)
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    (weights,) = folder.glob("*.safetensors")
    assert weights.stat().st_size <= publish.LARGEST
    first = record["first"]
    metric = record["metric"]
    assert abs(first[metric] - record["check"]["rows"]["256"][metric]) <= publish.slack(metric, first[metric])
    card = (folder / "README.md").read_text()
    about = json.loads((folder / "inputs.json").read_text())
    file = f"results/tasks/{stem(record)}.json"
    assert card == write_card(folder.name, record, about, file=file, size=weights.stat().st_size)
    known = record["recipe"]["data"].get("split") == "windows"
    assert ("says nothing of new patients" in card) == known
    for words in (f'statespan.load("{folder.name}")', "## Limits", "Licence: ", "**Data**", "**Test**", stem(record)):
        assert words in card


def dataset(x, prepare, raw, **options):
    split = Arrays({"x": x, "y": np.zeros(len(x), np.uint8)}, prepare)
    return Dataset("d", Info("classification", x.shape[1], 2, None, 3, **options), split, split, split, raw=raw)


def test_inputs_are_prepared_without_the_data_as_with_them(tmp_path):
    random = np.random.default_rng(0)
    order = tuple(random.permutation(6).tolist())
    pixels = Pixels(255.0, (0.3, 0.4), (0.5, 0.2))
    raw = Raw(order, (4.0, 5.0), (2.0, 8.0))
    data = dataset(random.normal(size=(4, 6, 2)).astype(np.float32), pixels, raw, classes=("a", "b", "c"))
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps(inputs.to_json(data)))
    kept = inputs.read(path)
    assert (kept.info.classes, kept.info.task, kept.whole) == (("a", "b", "c"), "classification", False)
    x = random.normal(size=(3, 6, 2)).astype(np.float32)
    scaled = (x[:, order] - [4, 5]) / [2, 8]
    wanted = (scaled / 255 - [0.3, 0.4]) / [0.5, 0.2]
    for prepared in (kept.prepare(x).x, inputs.of_dataset(data).prepare(x).x):
        assert np.abs(prepared.numpy() - wanted).max() < 1e-6
    with pytest.raises(ValueError, match="series must have length 6, got 5"):
        kept.prepare(x[:, :5])


def test_what_is_more_than_scaling_needs_the_data():
    def each(rows):
        return Batch(rows["x"] - rows["x"].mean(1, keepdim=True), rows["y"])

    data = dataset(np.ones((4, 6, 2), np.float32), each, None)
    assert inputs.to_json(data)["prepare"] is None
