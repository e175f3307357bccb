"""Names that users and packages add: who may take which, what is imported when, and what goes wrong in one line."""

import re
import subprocess
import sys

import pytest
import torch

from statespan import _plugins, data, models
from statespan._plugins import PluginError
from statespan._registry import Registry, keywords
from statespan.models import build, register_layer, register_model
from statespan.models.config import ADDED_LAYERS, LAYERS, layer_class
from statespan.nn import S4D, SequenceLayer
from statespan.ssm.inits import register_init
from statespan.train import ConfigError, Metric, read_recipe, register_metric, register_optimizer, register_schedule
from tests.papers.bench.run import invoke
from tests.plugins.install import install

OWN = _plugins.names("statespan.layers")  # the workshop's
SMALL = {"d_input": 1, "d_output": 2, "d_model": 4, "n_layers": 1}
LAYER = """
from statespan.nn import SequenceLayer

class Layer(SequenceLayer):
    def __init__(self, d_model):
        super().__init__()
        self.d_model = self.d_output = d_model
    def forward(self, x, *, lengths=None, dt_scale=1.0):
        return x
"""


class Plain(SequenceLayer):
    def __init__(self, d_model):
        super().__init__()
        self.d_model = self.d_output = d_model

    def forward(self, x, *, lengths=None, dt_scale=1.0):
        return x


class Other(Plain):
    pass


class Half(Metric):
    tasks = ("classification",)

    def add(self, answer, y):
        return torch.tensor([1.0, 2.0])

    def value(self, sums):
        return sums[0] / sums[1]


def names_of(group):
    return [offer.name for offer in _plugins.offers(group)]


def test_a_name_is_registered_once(site):
    register_layer("plain", Plain)
    assert build("classifier", options={**SMALL, "layer": "plain"}).backbone.blocks[0].layer.__class__ is Plain
    message = (
        "the layer 'plain' is registered already, by tests.plugins.test_registry.Plain; "
        "tests.plugins.test_registry.Other must choose another name"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        register_layer("plain", Other)
    with pytest.raises(ValueError, match="registered already"):
        register_layer("plain", Plain)


BUILT_IN = {
    "layer": (lambda: register_layer("s4d", Plain), "the layer 's4d'"),
    "initialization": (lambda: register_init("legt", lambda n: None), "the initialization 'legt'"),
    "saved": (lambda: register_init("saved", lambda n: None), "the initialization 'saved'"),
    "optimizer": (lambda: register_optimizer("adamw", torch.optim.SGD), "the optimizer 'adamw'"),
    "schedule": (lambda: register_schedule("plateau", lambda *a: 1.0), "the schedule 'plateau'"),
    "metric": (lambda: register_metric("accuracy", Half()), "the metric 'accuracy'"),
    "model": (lambda: register_model("classifier", models.Classifier), "the model 'classifier'"),
    "dataset": (lambda: data.register_dataset("own", "mine")(lambda folder: None), "the dataset 'own'"),
    "workshop": (lambda: data.register_dataset("digits", "mine")(lambda folder: None), "by statespan 0.1.0 ("),
}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_built_in_name_cannot_be_taken(site, kind):
    register, said = BUILT_IN[kind]
    with pytest.raises(ValueError, match="is registered already, by statespan") as error:
        register()
    assert said in str(error.value)
    assert "must choose another name" in str(error.value)


WRONG = {
    "no name": (lambda: register_layer(3, Plain), TypeError, "the name of a layer must be text, got int 3"),
    "a path": (lambda: register_layer("os:system", Plain), ValueError, "letters, digits, _ and -"),
    "long": (lambda: register_layer("a" * 65, Plain), ValueError, "at most 64 letters"),
    "line break": (lambda: register_layer("a\n", Plain), ValueError, "letters, digits"),
    "no layer": (lambda: register_layer("a", torch.nn.Linear), TypeError, "a subclass of statespan.nn.SequenceLayer"),
    "an instance": (lambda: register_layer("a", Plain(3)), TypeError, "a subclass of statespan.nn.SequenceLayer"),
    "no width": (lambda: register_layer("a", SequenceLayer), TypeError, "first argument must be d_model"),
    "no function": (lambda: register_init("a", 3), TypeError, "an? initialization must be a function, got int 3"),
    "no optimizer": (lambda: register_optimizer("a", "sgd"), TypeError, "optimizer must be a function, got str"),
    "no schedule": (lambda: register_schedule("a", None), TypeError, "schedule must be a function"),
    "a metric's class": (
        lambda: register_metric("a", Half),
        TypeError,
        "an instance of statespan.train.Metric",
    ),
    "no model": (lambda: register_model("a", Plain), TypeError, "a subclass of statespan.models.Model"),
    "another name": (lambda: register_model("a", models.Classifier), ValueError, "Classifier.name must be 'a'"),
    "no loader": (lambda: data.register_dataset("a", "b")(3), TypeError, "a loader must be a function"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_cannot_be_registered(site, mistake):
    register, error, said = WRONG[mistake]
    with pytest.raises(error, match=said):
        register()


def test_a_metric_must_be_for_tasks_with_one_answer(site):
    class Strange(Half):
        tasks = ("language",)

    with pytest.raises(ValueError, match=r"tasks of Strange must be among .*, got \('language',\)"):
        register_metric("strange", Strange())


def test_a_package_is_imported_when_its_name_is_asked_for(site):
    install(site, "mine", {"layers": {"mine": "mine_layer:Layer"}}, mine_layer=LAYER)
    install(site, "bad", {"layers": {"bad": "bad_layer:Layer"}}, bad_layer="import nothing_of_this_name")
    build("classifier", options={**SMALL, "layer": "s4d"})
    assert ADDED_LAYERS.names() == (*LAYERS, *sorted([*OWN, "bad", "mine"]))
    assert not {"mine_layer", "bad_layer"} & set(sys.modules)
    assert layer_class("mine").__module__ == "mine_layer"
    assert ADDED_LAYERS.owners()["mine"] == "mine 0.1 (mine_layer.Layer)"
    with pytest.raises(PluginError) as error:
        layer_class("bad")
    assert str(error.value) == (
        "the package bad 0.1 cannot be imported (bad_layer:Layer): ModuleNotFoundError: No module named "
        "'nothing_of_this_name'"
    )
    with pytest.raises(PluginError, match="the package bad"):  # also the second time
        layer_class("bad")
    with pytest.raises(ValueError, match=r"layer must be one of .*, got 'mnie'; did you mean mine\?"):
        layer_class("mnie")


def test_a_built_in_name_is_never_looked_for(site):
    install(site, "thief", {"layers": {"s4d": "thief_layer:Layer"}}, thief_layer="raise SystemExit(7)")
    assert layer_class("s4d") is S4D
    assert ADDED_LAYERS.names().count("s4d") == 1
    assert "thief_layer" not in sys.modules


def test_two_owners_of_a_name_are_both_named(site):
    for package in ("one", "two"):
        install(site, package, {"layers": {"same": f"{package}_layer:Layer"}}, **{f"{package}_layer": LAYER})
    both = r"registered by one 0.1 \(one_layer.Layer\) and by two 0.1 \(two_layer.Layer\); uninstall one"
    with pytest.raises(PluginError, match=both):
        layer_class("same")
    with pytest.raises(ValueError, match=r"already, by one 0.1 \(one_layer.Layer\); .*Plain must choose another name"):
        register_layer("same", Plain)
    assert "one_layer" not in sys.modules


def test_a_package_may_also_register_its_own_name(site):
    text = LAYER + "\nfrom statespan.models import register_layer\nregister_layer('mine', Layer)\n"
    install(site, "mine", {"layers": {"mine": "mine_layer:Layer"}}, mine_layer=text)
    import mine_layer  # before its entry point was asked for

    assert layer_class("mine") is mine_layer.Layer
    assert ADDED_LAYERS.owners()["mine"] == "mine 0.1 (mine_layer.Layer)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Layer = 3", "registers the layer 'odd' wrongly: a layer must be a subclass"),
        ("", "AttributeError: module 'odd_layer' has no attribute 'Layer'"),
        ("import sys; sys.exit('stop')", "SystemExit: stop"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def", "SyntaxError"),
    ],
)
def test_whatever_is_wrong_gets_one_line(site, text, said):
    install(site, "odd", {"layers": {"odd": "odd_layer:Layer"}}, odd_layer=text)
    with pytest.raises(PluginError, match="the package odd") as error:
        layer_class("odd")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert layer_class("s4d") is S4D


def test_datasets_come_from_modules_and_a_broken_one_is_left_out(site, capsys):
    text = """
import numpy as np
from statespan.data import Arrays, Batch, Dataset, Info, register_dataset

def prepare(rows):
    return Batch(rows["x"].float(), rows["y"].long())

@register_dataset("zeros", "Zeros")
def zeros(folder, *, length: int = 4) -> Dataset:
    rows = Arrays({"x": np.zeros((6, length, 1)), "y": np.zeros(6)}, prepare)
    return Dataset("zeros", Info("classification", length, 1, None, 2), rows, rows, rows)
"""
    install(site, "zeros", {"datasets": {"papers": "zeros_data"}}, zeros_data=text)
    install(site, "bad", {"datasets": {"bad": "bad_data"}}, bad_data="1 / 0")
    assert data.load("zeros", length=7).train.batch([0]).x.shape == (1, 7, 1)
    line = "statespan: the package bad 0.1 cannot be imported (bad_data): ZeroDivisionError: division by zero; "
    assert capsys.readouterr().err == line + "the rest of statespan works without it\n"
    assert {"zeros", "digits"} <= set(data.names())
    assert capsys.readouterr().err == ""  # once
    with pytest.raises(ValueError, match=r"got 'zeroes'; did you mean zeros\?"):
        data.load("zeroes")
    with pytest.raises(ValueError, match=r"'zeros' is registered already, by zeros 0.1 \(zeros_data.zeros\)"):
        data.register_dataset("zeros", "again")(lambda folder: None)


COMMAND = """
HELP = "Say hello."
def hello() -> None:
    print("hello")
"""


def test_commands_of_a_package(site):
    install(site, "hello", {"commands": {"hello": "hello_command"}}, hello_command=COMMAND)
    install(site, "bad", {"commands": {"bad": "bad_command"}}, bad_command="import nothing_of_this_name")
    install(site, "thief", {"commands": {"train": "hello_command", "other": "hello_command"}})
    done = invoke("hello")
    assert (done.exit_code, done.stdout) == (0, "hello\n")
    assert done.stderr == ""  # the lines below are printed before the command runs
    assert invoke("train", "--help").stdout.startswith("Usage: root train [OPTIONS] [RECIPE]")


def test_commands_that_are_left_out(site, capsys):
    test_commands_of_a_package(site)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "bad 0.1 cannot be imported (bad_command)" in line]
    assert "statespan: the command train of an installed package is left out: its name is built in" in lines
    other = "statespan: the command other of an installed package is left out: hello_command has no other or no HELP"
    assert other in lines


def test_recipes_of_a_package_keep_to_their_names(site):
    from statespan.train import recipes

    (site / "more").mkdir()
    (site / "more" / "__init__.py").write_text("")
    for name in ("digits-s4d", "digits-own"):
        text = f"name: {name}\ndata: {{name: digits}}\nmodel: {{name: regressor}}\n"
        (site / "more" / f"{name}.yaml").write_text(text)
    install(site, "more", {"recipes": {"papers": "more"}})
    assert recipes.read("digits-own").model["name"] == "regressor"
    assert recipes.read("digits-s4d").model["name"] == "classifier"
    shown = invoke("train", "--plugins").stdout
    assert "left out: the recipe 'digits-s4d' of more 0.1 has the name of another one" in shown


PARTS = """
import torch
from statespan.train import Metric

class TopTwo(Metric):
    tasks = ("classification",)
    def add(self, answer, y):
        hits = (answer.topk(2).indices == y[:, None]).any(1)
        return torch.stack([hits.sum(), torch.tensor(len(y))])
    def value(self, sums):
        return sums[0] / sums[1]

top2 = TopTwo()
"""


def test_reading_a_recipe_imports_nothing(site):
    groups = {"optimizers": {"sgd": "torch.optim:SGD"}, "metrics": {"top2": "top_two:top2"}}
    install(site, "parts", {**groups, "schedules": {"bad": "bad_schedule:rate"}}, top_two=PARTS, bad_schedule="1 / 0")
    text = "{name: a, data: {name: digits}, model: {name: classifier, layer: os.system},"
    recipe = read_recipe(text + " train: {optimizer: sgd, metrics: [top2], schedule: bad}}")
    assert (recipe.train.optimizer, recipe.train.metrics, recipe.train.schedule) == ("sgd", ("top2",), "bad")
    assert not {"top_two", "bad_schedule"} & set(sys.modules)
    for name in ("torch.optim:SGD", "torch.optim.SGD", "top_two:top2", "../x", "sgd:x"):
        with pytest.raises(ConfigError, match=r"train.optimizer is .*; allowed: one of adamw, lamb, sgd"):
            read_recipe(text + f" train: {{optimizer: '{name}'}}}}")
        with pytest.raises(ConfigError, match=r"train.metrics is .*; allowed: one of top2"):
            read_recipe(text + f" train: {{metrics: ['{name}']}}}}")


def test_entry_points_with_impossible_names_are_no_names(site):
    install(site, "odd", {"layers": {"a.b": "odd_layer:Layer", "os:system": "odd_layer:Layer"}}, odd_layer=LAYER)
    assert len(names_of("statespan.layers")) >= 1
    assert ADDED_LAYERS.names() == (*LAYERS, *OWN)
    with pytest.raises(ValueError, match="layer must be one of"):
        layer_class("a.b")
    assert "odd_layer" not in sys.modules


def test_a_registry_of_nothing_says_so():
    empty = Registry("window", "statespan.none", check=lambda name, item: None)
    with pytest.raises(ValueError, match=r"window must be one of \(\), got 'a'"):
        empty.find("a", "window")
    with pytest.raises(TypeError, match=r"window must be one of \(\), got int 3"):
        empty.find(3, "window")


def test_keywords_are_those_that_can_be_given_by_name():
    def function(a, b, *rest, c=1, **others):
        return a, b, rest, c, others

    assert list(keywords(function)) == ["b", "c"]
    assert list(keywords(function, ("c",))) == ["b"]
    assert list(keywords(lambda *, c: c)) == ["c"]
    assert list(keywords(Plain)) == []


def test_nothing_is_looked_for_on_import():
    program = (
        "import sys\n"
        "import torch\n"  # asks for backends of its own
        "import importlib.metadata as m\n"
        "def refuse(**a): raise AssertionError(a)\n"
        "m.entry_points = refuse\n"
        "import statespan\n"
        "statespan.S4D(2, 4, init='lin'), statespan.models, statespan.train.Train(), statespan.nn\n"
        "from statespan.models import build\n"
        "build('classifier', options={'d_input': 1, 'd_output': 2, 'layer': 's4d'})\n"
        "print('fine')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "fine\n"


def test_plugins_are_listed(site):
    shown = invoke("train", "--plugins")
    assert shown.exit_code == 0
    assert 'project.entry-points."statespan.layers"' in shown.stdout
    assert "docs/extending.md" in shown.stdout
    install(site, "mine", {"layers": {"mine": "mine_layer:Layer"}}, mine_layer=LAYER, version="2.5")
    install(site, "parts", {"metrics": {"top2": "top_two:top2"}, "layers": {"s4": "mine_layer:Layer"}}, top_two=PARTS)
    rows = [line.split() for line in invoke("train", "--plugins").stdout.splitlines()]
    assert rows[0] == ["package", "version", "group", "names"]
    assert ["mine", "2.5", "statespan.layers", "mine"] in rows
    assert ["parts", "0.1", "statespan.metrics", "top2"] in rows
    assert ["parts", "0.1", "statespan.layers", "nothing"] in rows
    assert [
        "left",
        "out:",
        "the",
        "layer",
        "'s4'",
        "of",
        "parts",
        "0.1",
        "has",
        "the",
        "name",
        "of",
        "a",
        "built-in",
        "one",
    ] in rows
