"""Recipes in several forms: as printed, as in the authors' code, and selected on the test data as in that code."""

import pytest

from statespan.train import recipes

NAMES = recipes.names()
KINDS = ("s4", "s4-fout", "s4d-inv", "s4d-legs", "s4d-lin")


def differences(name, other):
    """Dotted keys of data, model and train in which two recipes differ, with both values."""
    found = {}

    def compare(prefix, one, two):
        for key in {**one, **two}:
            a, b = one.get(key), two.get(key)
            if isinstance(a, dict) and isinstance(b, dict):
                compare(f"{prefix}{key}.", a, b)
            elif a != b:
                found[f"{prefix}{key}"] = (a, b)

    one, two = (recipes.read(each).to_dict() for each in (name, other))
    for section in ("data", "model", "train"):
        compare(f"{section}.", one[section], two[section])
    return found


FAST = {"train.fast_dt": (False, True)}
CODE = {
    "lra-text-{}": FAST,
    "lra-listops-{}": {**FAST, "train.decay_steps": (None, 80_000)},
    "lra-retrieval-{}": {**FAST, "train.decay_steps": (None, 50_000)},
    "lra-image-{}": FAST,
    "lra-pathfinder-{}": {"train.warmup": (2500, 50_000), "train.weight_decay": (0.03, 0.05)},
    "ablation-scifar-{}": {"train.lr": (0.004, 0.01), "model.dropout": (0.0, 0.1)},
}


@pytest.mark.parametrize("family", CODE)
def test_as_in_the_code(family):
    """Beside recipes that have records, and so keep their settings, stands the form of the authors' code."""
    for kind in KINDS:
        name = family.format(kind)
        name = name if name in NAMES else f"{name}-legs"
        code = f"{name}-code"
        assert differences(name, code) == CODE[family], name
        assert recipes.read(name).about.number == recipes.read(code).about.number
        assert recipes.read(name).about.table == recipes.read(code).about.table
    prefix = family.format("")
    assert sum(name.startswith(prefix) and name.endswith("-code") for name in NAMES) == (7 if "abl" in family else 5)


C = {"train.slow_C": (False, True)}
LESS = {"train.lr": (0.001, 0.0005), "train.batch": (16, 32), "train.warmup": (50_000, 5000)}
TEXT = {
    "lra-text-s4-original": {
        **C, "data.length": (2048, 4096), "model.d_model": (128, 64), "train.lr": (0.01, 0.001),
        "train.epochs": (40, 20), "train.plateau_patience": (10, 5),
    },
    "lra-listops-s4-original": {**C, "train.batch": (50, 100)},
    "lra-retrieval-s4-original": {**C, "train.epochs": (25, 20)},
    "lra-image-s4-original": {
        **C, "model.norm": ("batch", "layer"), "train.epochs": (100, 200), "train.plateau_patience": (10, 20)
    },
    "lra-pathfinder-s4-original": {**C, "model.pool": ("last", "mean")},
    "lra-pathx-s4-original": {**C, "train.plateau_patience": (40, 20)},
    "scifar-s4": C,
    "lra-pathx-small-s4d": {**LESS, "model.ssm.dt_max": (0.1, 0.01)},
    "lra-pathx-small-dss": {**LESS, "model.ssm.dt_max": (0.1, 0.01)},
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT)
def test_as_printed(name):
    """S4 Table 11 and S4D Table 12 print other settings than the authors' code has; -text has the printed ones."""
    assert differences(name, f"{name}-text") == TEXT[name]


def test_text_as_published():
    """The code selects on the test reviews and trains on all others; only these recipes do, and lists mark them."""
    everything = {"data.valid": (None, 0.0004), "train.select": ("valid", "test")}
    for kind in KINDS:
        found = differences(f"lra-text-{kind}-code", f"lra-text-{kind}-published")
        assert found == {**everything, "train.decay_steps": (None, 50_000)}
    assert differences("lra-text-s4-original", "lra-text-s4-original-published") == everything
    published = [name for name in NAMES if recipes.read(name).train.select == "test"]
    assert published == [name for name in NAMES if name.endswith("-published")]
    assert [one.name for one in recipes.table() if one.select == "test"] == published
    assert len(published) == 6
    for name in published:
        header = recipes.text(name).partition("\nname:")[0]
        assert "too good; tables mark it with ¶" in " ".join(header.replace("#", "").split())
