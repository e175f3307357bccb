"""Families: rows become complete recipes, aliases find them, and a family cannot say what a recipe cannot."""

import types
from pathlib import Path

import pytest

from statespan import _plugins
from statespan.papers import recipes as paper_recipes
from statespan.train import ConfigError, read_recipe, recipes
from statespan.train._family import expand, is_family

FOLDER = Path(paper_recipes.__file__).parent
FAMILY = """
title: "{label} on digits."
needs: scikit-learn
data: {name: digits}
model: {name: classifier, d_model: 8, ssm: {init: legs, n_ssm: 1}}
train: {epochs: 3}
rows:
  one-s4d: {label: S4D, number: "90.0", table: S4D Table 5, note: "test accuracy, %"}
groups:
  - train: {epochs: 5, lr: 0.1}
    rows:
      one-s4d-inv:
        model: {ssm: {init: inv}}
        others: |
          Table 6, wide | 91.0 | model.d_model=16
        after_test_scores: |
          train.lr=0.1 | it was
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A folder that stands for an installed package's recipes."""
    module = types.ModuleType("others")
    module.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setattr(_plugins, "modules", lambda group: {"others": module})
    return tmp_path


def test_a_row_is_a_complete_recipe(plugin):
    (plugin / "one.yaml").write_text(FAMILY)
    assert recipes.names() == ["one-s4d", "one-s4d-inv"]
    plain, inv = recipes.read("one-s4d"), recipes.read("one-s4d-inv", ["train.batch=7"])
    assert plain.about.number == "90.0"
    assert plain.model == {"name": "classifier", "d_model": 8, "ssm": {"init": "legs", "n_ssm": 1}}
    assert inv.model["ssm"] == {"init": "inv", "n_ssm": 1}
    assert (plain.train.epochs, inv.train.epochs, inv.train.lr, inv.train.batch) == (3, 5, 0.1, 7)
    assert (plain.overrides, inv.overrides) == ((), ("train.batch=7",))
    assert recipes.rows("one-s4d-inv") == [("Table 6, wide", "91.0", ("model.d_model=16",))]
    assert recipes.late_settings("one-s4d-inv") == [("train.lr=0.1", "it was")]
    assert recipes.rows("one-s4d") == recipes.late_settings("one-s4d") == []
    assert recipes.text("one-s4d").splitlines()[:4] == [
        "# S4D on digits.", "#", "# Paper: S4D Table 5: 90.0 (test accuracy, %)", "# Needs: scikit-learn"
    ]  # fmt: skip


def test_a_package_may_have_plain_recipes_and_edit_them(plugin):
    text = "# Mine.\nname: mine\ndata: {name: digits}\nmodel: {name: classifier}\n"
    (plugin / "mine.yaml").write_text(text)
    (plugin / "one.yaml").write_text(FAMILY)
    assert recipes.names() == ["mine", "one-s4d", "one-s4d-inv"]
    assert recipes.text("mine") == text
    (plugin / "mine.yaml").write_text(text + "train: {epochs: 77, batch: 9}\n")
    assert recipes.read("mine").train.epochs == 77


@pytest.mark.parametrize("name", recipes.names())
def test_what_is_printed_can_be_saved_and_read(name, tmp_path):
    (tmp_path / "saved.yaml").write_text(recipes.text(name))
    assert read_recipe(tmp_path / "saved.yaml").to_dict() == recipes.read(name).to_dict()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("scifar-s4d", "scifar-s4d-legs"),  # without its initialization: LegS
        ("lra-pathx-s4d", "lra-pathx-s4d-legs"),
        ("sc35-ar-s4", "sc35-ar-s4-legs"),
        ("lra-listops-s4-legs", "lra-listops-s4"),  # with it, where the name leaves it out
        ("smnist-s4d-lin", "smnist-s4d"),
        ("scifar-s4", "scifar-s4"),  # a recipe of that very name, of another paper, comes first
        ("smnist-s4d-inv", None),  # it has another initialization
        ("scifar", None),
        ("", None),
        ("-legs", None),
    ],
)
def test_aliases(alias, name):
    assert recipes.find(alias) == name
    if name is not None:
        assert recipes.read(alias).to_dict() == recipes.read(name).to_dict()
        assert recipes.read(alias).name == name  # records have one name


def test_few_files_and_nothing_twice():
    """All recipes, and no recipe in two files."""
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) <= 35
    rows = [name for file in files if is_family(file.read_text()) for name in expand(file.read_text(), file.name)]
    plain = [file.stem for file in files if not is_family(file.read_text())]
    assert sorted(rows + plain) == recipes.names()
    assert len(recipes.names()) == 245
    assert sum(len(file.read_text().splitlines()) for file in files) < 2800


# What decides a result, of one recipe a family: the paper's number, model and training
KEY_NUMBERS = {
    "ablation-bidmc-s4d-inv": ("0.1132", "s4d", "inv", 128, 4, 200, 32, 0.004, 0.01),
    "ablation-sc35-s4-legs-fout": ("91.01", "s4", "legs/fout", 128, 4, 10, 32, 0.004, 0.01),
    "ablation-scifar-s4-legt": ("86.12", "s4", "legt", 128, 4, 100, 50, 0.004, 0.01),
    "bidmc-hr-s4-legs": ("0.332", "s4", "legs", 128, 6, 500, 32, 0.01, 0.05),
    "bidmc-rr-s4-crop": (None, "s4", "legs/fout", 128, 6, 250, 32, 0.01, 0.05),
    "cifar-density-large": ("2.85", "s4", "legs", 192, 16, 200, 50, 0.005, 0.0),
    "digits-s4d": (None, "s4d", "lin", 32, 2, 25, 32, 0.01, 0.05),
    "etth1-s4": ("0.116", "s4", "legs", 128, 2, 10, 50, 0.01, 0.0),
    "lra-image-s4-fout": ("89.07", "s4", "fout", 512, 6, 200, 50, 0.01, 0.05),
    "lra-listops-s4-original": ("58.35", "s4", "legs", 128, 6, 50, 50, 0.01, 0.01),
    "lra-pathfinder-s4d-lin": ("93.96", "s4d", "lin", 256, 6, 200, 64, 0.004, 0.03),
    "lra-pathx-s4": ("96.35", "s4", "legs", 256, 6, 50, 16, 0.001, 0.05),
    "lra-pathx-small-dss": ("89.72", "dss", "legs", 128, 4, 50, 16, 0.001, 0.05),
    "lra-retrieval-s4d-inv": ("91.09", "s4d", "inv", 256, 6, 20, 64, 0.01, 0.05),
    "lra-text-s4d-pretrained": (None, "s4d", "inv", 256, 6, 12, 50, 0.002, 0.05),
    "sc10-s4-reference": (None, "s4", "legs", 128, 6, 200, 20, 0.01, 0.0),
    "sc10-s4d-lin": (None, "s4d", "lin", 128, 6, 40, 16, 0.01, 0.05),
    "sc10-s4": ("98.32", "s4", "legs", 128, 6, 150, 20, 0.01, 0.0),
    "sc35-ar-s4d-legs": ("93.57", "s4d", "legs", 128, 6, 40, 16, 0.01, 0.05),
    "scifar-s4-legs": ("91.80", "s4", "legs", 512, 6, 200, 50, 0.01, 0.05),
    "smnist-s4": ("99.63", "s4", "legs", 256, 6, 40, 50, 0.01, 0.05),
    "wikitext103-s4": ("20.95", "s4", "legs", 1024, 16, 10, 8, 0.0005, 0.1),
}


@pytest.mark.parametrize("name", KEY_NUMBERS)
def test_key_numbers(name):
    recipe = recipes.read(name)
    model, train = recipe.model, recipe.train
    sizes = (model["layer"], model["ssm"].get("init", "legs"), model["d_model"], model["n_layers"])
    assert (recipe.about.number, *sizes, train.epochs, train.batch, train.lr, train.weight_decay) == KEY_NUMBERS[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: {a: {modle: {}}}", r"^f: a: modle is not a key of a family; did you mean model\?$"),
        ("rows: {a: {zzz: 1}}", "f: a: zzz is not a key of a family; allowed: data, model, train, sweep, title"),
        ("rows: {a: {groups: []}}", "f: a: groups is not a key of a family"),
        ("rows: {a: 3}", "f: a is 3; allowed: a mapping"),
        ("rows: [a]", r"f: groups must be a list and rows a mapping, got \[\] and \['a'\]"),
        ("groups: {a: {}}", "groups must be a list"),
        ("groups: [7]", "f is 7; allowed: a mapping"),
        ("rows: {a: {data: digits}}", "f: a: data is digits; allowed: a mapping"),
        ("rows: {a: {number: 90.0}}", "f: a: number is 90.0; allowed: text"),
        ("rows: {a: {others: x}}", "f: a: others has the line x; allowed: lines of 'row | number | overrides'"),
        ("rows: {a: {after_test_scores: x}}", "after_test_scores has the line x"),
        ("rows: {a: {}}\ngroups: [{rows: {a: {}}}]", "f has two rows a; each name may occur once"),
        ("rows: {../a: {}}", "f has the key ../a"),
        ("rows: {a: !!python/object/apply:os.system [ls]}", "f has the tag"),
        ("rows: {a: &x {}, b: *x}", "f has the anchor"),
        ("rows: {a: [", "f is not readable YAML"),
    ],
)
def test_a_wrong_family_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        expand(text, "f")
    assert "\n" not in str(caught.value)


def test_a_row_is_checked_like_any_recipe(plugin):
    """Whatever a row merges, the recipe's own rules decide."""
    (plugin / "one.yaml").write_text(FAMILY.replace("lr: 0.1}", "lrr: 0.1}"))
    with pytest.raises(ConfigError, match=r"train\.lrr is not a key of train"):
        recipes.read("one-s4d-inv")
