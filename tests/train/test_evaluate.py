"""What is measured is all that is made."""

import pytest

from statespan import data
from statespan.models import build
from statespan.papers.datasets.pathfinder import dataset as pathfinder
from statespan.train import evaluate, recipes
from statespan.train.config import write_recipe
from statespan.train.run import without_others
from tests.cli.make import invoke


@pytest.mark.parametrize(
    ("name", "split", "changes"),
    [
        ("lra-pathx-s4d-inv", "test", ["data.train=1", "data.valid=1"]),
        ("lra-listops-s4d-inv", "valid", ["data.train=1", "data.test=1"]),
        ("smnist-s4d", "test", []),  # its data is read, and the share of validation would change the training rows
        ("digits-s4d", "test", []),
    ],
)
def test_other_splits_are_left_out_where_rows_are_made(name, split, changes):
    assert without_others(recipes.read(name), split) == changes


@pytest.fixture
def drawn(monkeypatch):
    """How many images are drawn, set by set."""
    counts = []
    draw = pathfinder.images
    monkeypatch.setattr(pathfinder, "images", lambda s, seed, n: counts.append((seed, len(n))) or draw(s, seed, n))
    return counts


SMALL = ["model.d_model=4", "model.n_layers=1", "model.d_state=4", "data.test=6", "train.seed=3"]
SOME = [(126, 1), (127, 1), (128, 6)]  # seeds and numbers of training, validation and test images


@pytest.fixture
def recipe():
    return recipes.read("lra-pathfinder-s4d-inv", SMALL)


def of(recipe, info):
    options = dict(recipe.model)
    return build(options.pop("name"), info, options)


def test_the_number_is_that_of_the_whole_dataset(recipe, drawn, tmp_path):
    whole = data.load("pathfinder", tmp_path / "whole", train=9, valid=5, test=6)
    model = of(recipe, whole.info)
    wanted = evaluate(recipe, data=whole, model=model, device="cpu")
    drawn.clear()
    assert evaluate(recipe, data=tmp_path / "part", model=model, device="cpu") == wanted
    assert drawn == SOME


def test_the_command_draws_no_training_images(recipe, drawn, tmp_path):
    info = data.load("pathfinder", tmp_path / "whole", train=1, valid=1, test=1).info
    of(recipe, info).save_pretrained(tmp_path / "model")
    (tmp_path / "model/recipe.yaml").write_text(write_recipe(recipe))
    drawn.clear()
    done = invoke("eval", tmp_path / "model", "train.batch=3", "--data", tmp_path / "part")
    assert "pathfinder test, 6 rows" in done.stdout
    assert drawn == SOME
