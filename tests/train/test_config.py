"""Recipes: typed, strict, one line for each mistake, and nothing of them is ever run."""

import dataclasses
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statespan.train import ConfigError, Recipe, Train, read_recipe, write_recipe
from statespan.train.strict import dump, parse

GOOD = """
name: smnist-s4d
about: {table: S4D Table 2, number: 99.5, time: 10 min on an H200}
data: {name: smnist}
model: {name: classifier, layer: s4d, ssm: {init: legs, n_ssm: 2}}
train: {epochs: 3, lr: 4e-3, betas: [0.9, 0.95], milestones: [1, 2], clip: null, precision: bf16}
"""


def test_reading():
    recipe = read_recipe(GOOD, ["train.lr=0.001", "model.ssm.init=inv", "train.clip=1", "about.number=null"])
    assert recipe.train == Train(epochs=3, lr=0.001, betas=(0.9, 0.95), milestones=(1, 2), clip=1.0, precision="bf16")
    assert recipe.model == {"name": "classifier", "layer": "s4d", "ssm": {"init": "inv", "n_ssm": 2}}
    assert recipe.about.number is None
    assert recipe.overrides == ("train.lr=0.001", "model.ssm.init=inv", "train.clip=1", "about.number=null")
    assert isinstance(recipe.train.clip, float)


def test_from_data_and_recipes():
    recipe = read_recipe(GOOD, ["train.lr=0.5"])
    assert read_recipe(recipe) == recipe
    assert read_recipe(recipe, ["train.seed=3"]).overrides == ("train.lr=0.5", "train.seed=3")
    data = {"name": "a", "data": {"name": "b", "classes": ("yes", "no")}, "model": {"name": "c"}}
    assert read_recipe(data).data["classes"] == ["yes", "no"]
    with pytest.raises(ConfigError, match=r"the recipe has .*; allowed: plain data only"):
        read_recipe({**data, "model": {"name": object()}})


def test_from_files(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(GOOD)
    assert read_recipe(path) == read_recipe(str(path)) == read_recipe(GOOD)
    path.write_bytes(b"\xff\xfe\x00")
    for wrong in (path, tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the recipe"):
            read_recipe(wrong)


def test_what_is_written_reads_back_as_the_same():
    recipe = read_recipe(GOOD, ["train.seed=9223372036854775807", "data.note=1e5x", "data.text='1e5'"])
    again = read_recipe(write_recipe(recipe))
    assert again == dataclasses.replace(recipe, overrides=())
    assert again.data["text"] == "1e5"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab1e.-_: #~'\n"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(plain)
def test_plain_data_survives(data):
    assert repr(parse(dump(data))) == repr(data)


EXACT = [
    ("train: {lrr: 1}", "train.lrr is not a key of train (value 1); did you mean train.lr?"),
    ("train: {lr: fast}", "train.lr is fast; allowed: a number > 0"),
    ("train: {lr: 0}", "train.lr is 0; allowed: a number > 0"),
    ("train: {batch: 2.5}", "train.batch is 2.5; allowed: a whole number >= 1 and < 1e+07"),
    ("train: {optimizer: adam}", "train.optimizer is adam; allowed: one of adamw, lamb; did you mean adamw?"),
    (
        "train: {schedule: cosin}",
        "train.schedule is cosin; allowed: one of cosine, multistep, plateau, constant; did you mean cosine?",
    ),
    ("train: {metrics: [f1]}", "train.metrics is f1; allowed: a name that a package registers; none does"),
    ("train: {optimizer_options: 3}", "train.optimizer_options is 3; allowed: a section of keys and values"),
    ("train: {optimizer_options: {a: 1}}", "train.optimizer_options is {'a': 1}; allowed: {} for the built-in adamw"),
    ("train: {slow_C: yes}", "train.slow_C is yes; allowed: true or false"),
    ("train: {betas: [0.9]}", "train.betas is (0.9,); allowed: a list of 2, each a number >= 0 and < 1"),
    ("train: {ema: 1.0}", "train.ema is 1.0; allowed: a number > 0 and < 1 or null"),
    ("trian: {}", "trian is not a key of a recipe (value {}); did you mean train?"),
    ("train: 3", "train is 3; allowed: a section of keys and values"),
    ("train: {lr: 1, lr: 2}", "the recipe has the key lr twice, again in line 2"),
]


@pytest.mark.parametrize(("text", "message"), EXACT)
def test_messages(text, message):
    with pytest.raises(ConfigError) as error:
        read_recipe(f"{{name: a, data: {{name: a}}, model: {{name: a}},\n {text}}}")
    assert str(error.value) == message


def hostile():
    """200 documents that are wrong in some way."""
    base = "name: a\ndata: {name: a}\nmodel: {name: a}\n"
    yield from ("", "[]", "3", "null", "name: a", "- name", "name: [a]", "name: 'a/b'", "name: ../../etc/passwd")
    yield from ("name: a\ndata: smnist\nmodel: {name: a}", "name: a\ndata: {}\nmodel: {name: a}", base + "name: b")
    yield from (base + text for text in ("{", "}", "a: b: c", "\t", "%YAML 9\n---", "'", "--- \n---\n", "? [a]\n: b"))
    yield from (base + text for text in ("? {a: 1}\n: 1", "1: 2", "null: 2", "_target_: os.system", "a.b: 1", "<<: {}"))
    for tag in (
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!x 1",
        "!!binary aGk=",
        "!!set {a}",
        "!!timestamp 2020-01-01",
        "!!int '3'",
        "!!python/tuple [1]",
    ):
        yield base + f"train: {{lr: {tag}}}"
        yield base + f"train: {tag}"
    yield base + "train: &a {lr: 1}\nabout: *a"
    yield base + "train: {lr: *b}"
    yield "a: &a [x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(9))  # what grows when it is read
    yield base + "train: " + "[" * 500 + "]" * 500
    yield base + "train: " + "{a: " * 20 + "1" + "}" * 20
    yield base + "x" * 70_000
    yield base + "train: {seed: " + "9" * 5000 + "}"
    yield base + "train: {lr: 1e999}"
    yield base + "train: {lr: .inf}"
    yield base + "train: {lr: .nan}"
    yield base + "\x00"
    yield base + "train: {a\u2028b: 1}"
    yield base + 'train: {optimizer: "adamw\\nlamb"}'
    wrong = ["-1", "x", "[]", "{}", "''", "true", "[1]", "1e400", "{a: 1}", "2020-01-01", "1:30", "0x10", "-0.5"]
    rng = random.Random(0)
    fields = [f.name for f in dataclasses.fields(Train)]
    free = {
        ("slow_C", "true"),
        ("fast_dt", "true"),
        ("group_lengths", "true"),
        ("tensorboard", "true"),
        ("deterministic", "true"),
        ("milestones", "[]"),
        ("milestones", "[1]"),
        ("metrics", "[]"),
        ("optimizer_options", "{}"),
        ("schedule_options", "{}"),
    }
    pairs = [(field, value) for field in fields for value in wrong if (field, value) not in free]
    for field, value in rng.sample(pairs, 120):
        yield base + f"train: {{{field}: {value}}}"
    for field in rng.sample(fields, 25):
        letters = list(field)
        letters[rng.randrange(len(letters))] = rng.choice("qxz")
        yield base + f"train: {{{''.join(letters)}: 1}}"
    for section in ("about", "train"):
        yield from (base + f"{section}: {value}" for value in ("[]", "3", "x", "null", "'{}'"))
    yield base + "about: {table: 3}"
    yield base + "about: {number: [1]}"


def test_hostile_recipes_get_one_line_and_run_nothing():
    documents = list(hostile())
    assert len(documents) >= 200
    read_recipe(GOOD)  # what is made once is made
    for key in ("optimizer: a", "schedule: a", "metrics: [a]"):  # and entry points are read once
        with pytest.raises(ConfigError):
            read_recipe(f"name: a\ndata: {{name: a}}\nmodel: {{name: a}}\ntrain: {{{key}}}")
    events = []
    watching = [True]

    def watch(event, arguments):
        if watching[0] and event in ("exec", "import", "open", "os.system", "subprocess.Popen", "socket.connect"):
            events.append((event, arguments))

    sys.addaudithook(watch)
    try:
        for text in documents:
            with pytest.raises(ConfigError) as error:
                read_recipe(text)
            message = str(error.value)
            assert message.isprintable(), message
            assert 10 < len(message) < 700, message
    finally:
        watching[0] = False
    assert events == []


OVERRIDES = [
    "lr",
    "=",
    "train.lr",
    "train..lr=1",
    ".lr=1",
    "train.lr=[",
    "train.lr=&a 1",
    "train.lr=!!int 3",
    "name.x=1",
    "model.name.x=1",
    "train.lr=",
    "train.lr=fast",
    "tarin.lr=1",
    "train._x=1",
    "train.lr=1\ntrain: 3",
    "x y=1",
]


@pytest.mark.parametrize("override", OVERRIDES)
def test_wrong_overrides(override):
    with pytest.raises(ConfigError) as error:
        read_recipe(GOOD, [override])
    assert "\n" not in str(error.value)


def test_train_documents_every_field():
    words = Train.__doc__.split()
    assert [f.name for f in dataclasses.fields(Train) if f"{f.name}:" not in words] == []
    assert Recipe(name="a", data={}, model={}).train.epochs == 10
