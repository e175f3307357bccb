"""Every recipe and every row it lists: it parses, its data and model exist, and it takes a training step."""

import re
from pathlib import Path

import pytest
import torch

from statespan import models
from statespan.data.registry import check_options, entry
from statespan.papers.records.matching import FORMS
from statespan.train import ConfigError, recipes
from statespan.train.optim import build_optimizer
from statespan.train.tasks import TASKS, Objective
from tests.papers.recipes.make import batch, info, shrink

NAMES = recipes.names()
ROWS = {name: [row.overrides for row in recipes.rows(name) if row.overrides] for name in NAMES}


def options(recipe):
    return {key: value for key, value in recipe.model.items() if key != "name"}


def meta(recipe):
    return models.build(recipe.model["name"], info(recipe), options(recipe), device="meta")


def count(name, overrides=()):
    return sum(p.numel() for p in meta(recipes.read(name, overrides)).parameters())


@pytest.mark.parametrize("name", NAMES)
def test_header(name):
    recipe, lines = recipes.read(name), recipes.text(name).splitlines()
    assert recipe.name == name
    header = lines[: lines.index(f"name: {name}")]
    assert header[0].endswith(".")
    assert all(line.startswith("#") for line in header)
    paper = header[2]
    assert header[3].startswith("# Needs: ")
    assert f"# Time: {recipe.about.time or 'not measured yet'}" in header
    if recipe.about.number is None:
        assert paper == "# Paper: none"
        assert recipe.about.table == ""
    else:
        table, number = re.fullmatch(r"# Paper: (.+): ([\d.]+|X)(?: .+)?", paper).groups()
        assert (table, number) == (recipe.about.table, recipe.about.number)
        assert re.match(r"S4D? (Tables?|section) \d", table)


@pytest.mark.parametrize("name", NAMES)
def test_builds(name):
    """The model at its full width, one layer of those that are all alike; test_parameters has whole ones."""
    recipe = recipes.read(name)
    if "n_layers" in recipe.model:
        recipe = recipes.read(name, ["model.n_layers=1"])
    model = meta(recipe)
    assert model.config.d_model == recipe.model["d_model"]
    assert info(recipe).task in type(model).tasks


def test_steps():
    """Every recipe and row: the data has the options, and a tiny model of the same kind takes a step."""
    seen = set()
    for name in NAMES:
        smaller = shrink(recipes.read(name))
        for overrides in [(), *ROWS[name]]:
            length = ["model.ssm.softmax_length=24"] if "softmax_length" in str(overrides) else []
            recipe = recipes.read(name, [*overrides, *smaller, *length])
            check_options(entry(recipe.data["name"]), {key: v for key, v in recipe.data.items() if key != "name"})
            data, about = batch(info(recipe))
            kind = repr((dict(recipe.model), about.task, about.d_input, recipe.train.optimizer, recipe.train.slow_C))
            if kind not in seen:  # such as the three signs of BIDMC
                seen.add(kind)
                check_step(recipe, data, about)
    assert len(seen) > 90


def check_step(recipe, data, about):
    """The gradient reaches every parameter that is trained, and the update is finite."""
    torch.manual_seed(0)
    model = models.build(recipe.model["name"], about, options(recipe))
    for gain in (p for key, p in model.named_parameters() if key.endswith("last_norm.weight")):
        torch.nn.init.ones_(gain)  # the blocks of XResNet begin as the identity
    optimizer = build_optimizer(model, recipe.train)
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    before = {key: p.detach().clone() for key, p in trained.items()}
    loss = Objective(model, TASKS[about.task])(*data)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss), (recipe.name, recipe.overrides)
    reached = {key for key, p in trained.items() if p.grad is not None and p.grad.any()}
    moved = {key for key, p in trained.items() if p.isfinite().all() and not torch.equal(p, before[key])}
    wrong = trained.keys() - (reached & moved)
    assert not wrong, (recipe.name, recipe.overrides, wrong)


@pytest.mark.parametrize(
    ("pattern", "low", "high"),
    [
        pytest.param(r"sc35-s4-.*", 306.5e3, 307.5e3, id="S4D Table 11, S4: 307K"),
        pytest.param(r"sc35-s4d-.*", 305.5e3, 306.5e3, id="S4D Table 11, S4D: 306K"),
        pytest.param(r"ablation-sc35-.*", 95e3, 110e3, id="S4D section 5, causal: about 100K"),
        pytest.param(r"ablation-(scifar|bidmc)-.*", 125e3, 140e3, id="the same with a C for each direction"),
        pytest.param(r"lra-pathx-small-.*", 150e3, 200e3, id="S4D Table 6: 150K to 200K"),
        pytest.param(r"scifar-s4", 7.85e6, 7.95e6, id="S4 section 4.3: 7.9M"),
        pytest.param(r"sc10-s4", 0.25e6, 0.35e6, id="S4 appendix D.2: 0.3M"),
        pytest.param(r"sc10-ckconv", 96e3, 100e3, id="CKConv's paper: 98K"),
        pytest.param(r"[sp]mnist-ckconv", 1.0e6, 1.03e6, id="CKConv's paper: 1M"),
        pytest.param(r"[sp]mnist-exprnn", 136e3, 138e3, id="ExpRNN's paper: 137K"),
        pytest.param(r"[sp]mnist-lipschitz-rnn", 33.5e3, 34.7e3, id="LipschitzRNN's paper: 34K"),
        pytest.param(r"wikitext103-s4", 249e6, 250e6, id="S4 Table 8: 249M"),
        pytest.param(r"sc10-wavegan", 25.8e6, 26.8e6, id="S4 appendix D.2: 26.3M"),
        pytest.param(r"scifar-resnet18", 10.8e6, 11.2e6, id="S4 section 4.3: 11.0M"),
        pytest.param(r"sc35-convnet", 25.7e6, 26.7e6, id="S4D Table 11: 26.2M"),
        pytest.param(r"sc35-inception", 480.5e3, 481.5e3, id="S4D Table 11: 481K"),
        pytest.param(r"sc35-resnet18", 215.5e3, 216.5e3, id="S4D Table 11: 216K"),
        pytest.param(r"sc35-xresnet50", 903.5e3, 904.5e3, id="S4D Table 11: 904K"),
    ],
)
def test_parameters(pattern, low, high):
    found = {name: count(name) for name in NAMES if re.fullmatch(pattern, name)}
    assert found
    assert all(low <= n < high for n in found.values()), found


def test_small_path_x():
    """The models of S4D Table 6 differ in B only: real and imaginary parts of 128 heads with 32 modes, 4 layers."""
    frozen = recipes.read("lra-pathx-small-s4d", ["model.ssm.train_B=false"])
    trained = count("lra-pathx-small-s4d")
    assert trained - sum(p.numel() for p in meta(frozen).parameters() if p.requires_grad) == 4 * 128 * 32 * 2


def test_all_rows():
    """Each table is there as a whole, one recipe or row for each of its entries; others are further forms of one."""
    assert [one.name for one in recipes.table()] == NAMES
    entries = [one for one in recipes.table() if not one.name.endswith(FORMS)]
    every = [row.label for name in NAMES for row in recipes.rows(name)]

    def tables(paper, table):
        return sum(bool(re.search(rf"{paper} Tables? (\d+\w?, )*{table}\b", one.table)) for one in entries)

    papers = {
        "S4": {4: 6, 5: 15, 6: 18, 7: 2, 8: 1, 9: 5, 10: 6, 12: 17},
        "S4D": {4: 30, 5: 30, 6: 2, 9: 6, 10: 18, 11: 10},
    }
    assert {paper: {table: tables(paper, table) for table in found} for paper, found in papers.items()} == papers
    rows = {"Table 2": 30, "Table 3a": 48, "Table 3b": 21, "Table 6": 5, "Table 13": 20, "Table 14": 25}
    assert {table: sum(label.startswith(f"{table},") for label in every) for table in rows} == rows


CHOSEN = {
    "bidmc-hr-s4-crop", "bidmc-rr-s4-crop", "bidmc-spo2-s4-crop", "digits-s4d", "lra-listops-s4d-shuffled",
    "lra-text-s4d-inv", "lra-text-s4d-pretrained", "path-x-6-s4d-again", "smnist-s4", "smnist-s4d",
}  # fmt: skip


def test_settings_that_were_chosen_after_test_scores():
    found = {name: recipes.late_settings(name) for name in NAMES if recipes.late_settings(name)}
    assert set(found) == CHOSEN
    for name, chosen in found.items():
        assert all(choice.why for choice in chosen)
        for choice in chosen:
            if choice.setting != "always":
                recipes.read(name, [choice.setting])  # a wrong key raises
    for name in NAMES:  # what is said about test scores is said where tables can see it
        header = recipes.text(name).partition("\nname:")[0]
        said = re.search(r"had been tested|unseen|in view|test scores", header)
        assert bool(said) == (name in found), name


def test_a_number_in_a_header_has_a_record():
    """ "Seen" names files that are there, and no percentages of its own."""
    root = Path(__file__).parents[3]
    for name in NAMES:
        header = recipes.text(name).partition("\nname:")[0]
        seen = header.partition("# Seen: ")[2]
        assert not re.search(r"\d ?%", seen), name
        if seen:
            files = re.findall(r"results/[\w/.-]+\.json", seen)
            assert files, name
            assert [file for file in files if not (root / file).is_file()] == [], name


@pytest.mark.parametrize("kind", ["s4", "s4-fout", "s4d-inv", "s4d-legs", "s4d-lin"])
def test_path_x_as_printed_and_as_in_the_code(kind):
    """S4D Table 12 prints other settings than the code has that gave the paper's numbers; both have 50 epochs."""
    code, text = (recipes.read(f"lra-pathx-{kind}{form}") for form in ("", "-text"))
    found = [
        (one.train.lr, one.train.batch, one.train.warmup, one.model["ssm"]["dt_min"], one.model["ssm"]["dt_max"])
        for one in (code, text)
    ]
    assert found == [(0.001, 16, 50_000, 0.0001, 0.1), (0.0005, 32, 5000, 0.0001, 0.01)]
    same = [
        ({**one.model, "ssm": one.model["ssm"]["init"]}, one.train.epochs, one.train.ssm_lr, one.train.weight_decay)
        for one in (code, text)
    ]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    "overrides", [["model.layer=s5", "model.ssm={init: lin, blocks: 2}"], ["model.layer=lru", "model.ssm={r_min: 0.5}"]]
)
def test_a_recipe_takes_a_layer_with_one_ssm(overrides):
    recipe = recipes.read("digits-s4d", [*overrides, "model.n_layers=1"])
    check_step(recipe, *batch(info(recipe)))
    with pytest.raises(ValueError, match=r"ssm has no '(n_ssm|init)'"):
        meta(recipes.read("digits-s4d", overrides[:1]))


LONG_RANGE = {"listops": 3.0, "text": 5.0, "retrieval": 3.0, "image": 3.0, "pathfinder": 3.0, "pathx": 5.0}


@pytest.mark.parametrize("task", LONG_RANGE)
def test_initializations_since_the_papers(task):
    """S4D-FT and S4D-DFouT: no number of ours and none of the two papers; each head has its own (A, B)."""
    tuned, dfout = (recipes.read(f"lra-{task}-s4d-{init}") for init in ("ft", "dfout"))
    assert tuned.about.number is dfout.about.number is None
    assert tuned.model["ssm"]["init_options"] == {"imag_scale": LONG_RANGE[task], "random_B": True}
    assert (dfout.model["ssm"]["init"], dfout.model["ssm"]["discretization"]) == ("dfout", "zoh")
    for recipe in (tuned, dfout):
        assert recipe.model["ssm"]["n_ssm"] is None
        layer = meta(recipe).backbone.blocks[0].layer
        assert layer.ssm.A_imag.shape == (recipe.model["d_model"], 32)


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"^there is no recipe 'smnist-s4dd'; did you mean smnist-s4d\?$"):
        recipes.read("smnist-s4dd")
    for name in ("../train/config", "", "\n" * 1000):
        with pytest.raises(ConfigError, match="there is no recipe"):
            recipes.text(name)
    with pytest.raises(ConfigError, match=r"train\.lrr is not a key"):
        recipes.read("smnist-s4d", ["train.lrr=1"])
