"""Batches, splits and datasets; the registry; splits by seed."""

import numpy as np
import pytest
import torch

from statespan import data
from statespan._registry import Registry
from statespan.data import registry
from statespan.data.base import Arrays, Batch, Dataset, Info, Windows, trim
from statespan.data.source import Source
from statespan.data.split import shuffled, split, stratified


def plain(rows):
    return Batch(rows["x"].float(), rows["y"].long())


def test_rows_are_gathered_in_the_order_asked_for():
    arrays = {"x": np.arange(12, dtype=np.int16).reshape(4, 3), "y": np.arange(4, dtype=np.uint8)}
    split_ = Arrays(arrays, plain)
    batch = split_.take(split_.tensors(), torch.tensor([3, 0, 3]))
    assert len(split_) == 4
    assert batch.x.tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]
    assert batch.y.tolist() == [3, 0, 3]


def test_windows_gather_pairs_and_stop_at_the_end():
    def prepare(rows):
        return Batch(rows["t"], rows["y"])

    starts = np.array([[0, 5], [8, 2]])
    split_ = Windows({"t": np.arange(10)}, starts=starts, length=4, prepare=prepare, each={"y": np.array([7, 8])})
    batch = split_.batch([1, 0])
    assert batch.x.tolist() == [[[8, 9, 9, 9], [2, 3, 4, 5]], [[0, 1, 2, 3], [5, 6, 7, 8]]]
    assert batch.y.tolist() == [8, 7]


def test_read_only_arrays_make_tensors_without_a_warning_and_maps_share_memory():
    x = np.frombuffer(bytes(range(6)), np.uint8).reshape(3, 2)
    split_ = Arrays({"x": x, "y": np.zeros(3, np.uint8)}, plain)
    assert split_.batch([2]).x.tolist() == [[4.0, 5.0]]
    owned = np.zeros((2, 2), np.uint8)
    split_ = Arrays({"x": owned, "y": owned[:, 0]}, plain)
    split_.tensors()["x"][0, 0] = 9
    assert owned[0, 0] == 9


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Arrays({}, plain), "at least one"),
        (lambda: Arrays({"x": np.zeros(3), "y": np.zeros(2)}, plain), "'x': 3, 'y': 2"),
        (lambda: Arrays({"x": np.array(["a"])}, plain), "dtype"),
        (lambda: Windows({"t": np.zeros(5)}, starts=np.array([5]), length=1, prepare=plain), "inside"),
        (lambda: Windows({"t": np.zeros(5)}, starts=np.array([-1]), length=1, prepare=plain), "inside"),
        (lambda: Windows({"t": np.zeros(5)}, starts=np.array([0]), length=0, prepare=plain), "length"),
        (lambda: Windows({"t": np.zeros(5)}, starts=np.array([0]), length=1, prepare=plain, each={"t": [0]}), "twice"),
        (lambda: Info("classification", 5, None, None, 2), "d_input"),
        (lambda: Info("classify", 5, 1, None, 2), "classify"),
        (lambda: Info("classification", 5, 1, None, 2, ("a",)), "2 names"),
    ],
)
def test_mistakes_are_named(make, word):
    with pytest.raises((ValueError, TypeError), match=word):
        make()


def test_trim_cuts_what_all_rows_have_as_padding():
    batch = trim(Batch(torch.ones(2, 5, 1), torch.zeros(2), torch.tensor([2, 3]), torch.ones(2, 5, 4)), 3)
    assert batch.x.shape == (2, 3, 1)
    assert batch.marks.shape == (2, 3, 4)


def test_splits_are_pure_disjoint_and_complete():
    parts = split(1003, (0.1, 0.25), seed=42)
    assert [len(part) for part in parts] == [653, 100, 250]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1003))
    assert all((a == b).all() for a, b in zip(parts, split(1003, (0.1, 0.25), seed=42)))
    assert (split(1003, (0.1,), seed=1)[1] != split(1003, (0.1,), seed=2)[1]).any()
    # the reference's: torch.utils.data.random_split with seed 42
    wanted = torch.utils.data.random_split(range(60), (54, 6), generator=torch.Generator().manual_seed(42))
    assert split(60, (0.1,), seed=42)[1].tolist() == list(wanted[1])


def test_stratified_splits_have_the_classes_in_proportion():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    parts = stratified(labels, (0.1, 0.2), seed=0)
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[70, 35, 7], [10, 5, 1], [20, 10, 2]]
    assert sorted(np.concatenate(parts).tolist()) == list(range(160))
    with pytest.raises(ValueError, match="shares"):
        split(10, (0.5, 0.5), seed=0)
    with pytest.raises(ValueError, match="seed"):
        shuffled(10, -1)


@pytest.fixture
def toy(monkeypatch):
    own = Registry("dataset", "statespan.tests", check=lambda name, item: None, by_module=True)
    monkeypatch.setattr(registry, "REGISTRY", own)

    @registry.register_dataset(
        "toy", "A toy", files=[Source("a.txt", origin="nowhere"), Source("b.txt", optional=True)]
    )
    def load(folder, *, width: int = 3, share: float = 0.5, kind: str | None = None) -> Dataset:
        rows = Arrays({"x": np.zeros((4, width)), "y": np.zeros(4)}, plain)
        return Dataset(str(folder), Info("classification", width, 1, None, 2), rows, rows, rows)

    return load


def test_registry_loads_from_the_datasets_folder_or_from_its_own(toy, tmp_path, monkeypatch):
    with pytest.raises(data.MissingData, match=r"(?s)toy.*toy:\n  a\.txt, from nowhere"):
        data.load("toy", tmp_path)
    (tmp_path / "a.txt").touch()
    assert data.load("toy", tmp_path, width=5).name == str(tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.txt").touch()
    monkeypatch.setenv("STATESPAN_DATA", str(tmp_path))
    assert data.load("toy").name == str(tmp_path / "toy")
    assert data.names() == ["toy"]


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"widht": 3}, ValueError, "did you mean width"),
        ({"width": "3"}, TypeError, "width .* must be int, got str '3'"),
        ({"width": True}, TypeError, "width"),
        ({"share": "x"}, TypeError, "share"),
        ({"kind": 3}, TypeError, "kind"),
        ({"folder": "x", "other": 1}, ValueError, "other"),
    ],
)
def test_registry_refuses_unknown_and_mistyped_options(toy, tmp_path, options, error, word):
    with pytest.raises(error, match=word):
        data.load("toy", **{"folder": tmp_path, **options})


def test_registry_suggests_a_name_and_never_registers_twice(toy):
    with pytest.raises(ValueError, match="did you mean toy"):
        data.load("toi")
    with pytest.raises(TypeError, match="name"):
        data.load(3)
    with pytest.raises(ValueError, match=r"the dataset 'toy' is registered already, by tests.data.test_base.toy"):
        registry.register_dataset("toy", "again")(toy)


def test_status_says_what_is_here_and_what_is_missing(toy, tmp_path):
    (status,) = data.status(tmp_path)
    assert (status.name, status.ready, [s.path for s in status.missing]) == ("toy", False, ["a.txt"])
    assert [s.path for s in status.optional] == ["b.txt"]
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.txt").touch()
    (status,) = data.status(tmp_path)
    assert status.ready
    assert status.found == (tmp_path / "toy" / "a.txt",)


def test_all_registered_datasets_have_typed_options_and_a_summary(tmp_path):
    for name in data.names():
        chosen = registry.entry(name)
        assert chosen.summary
        empty = registry.inspect.Parameter.empty
        needed = {option: "x" for option, default in chosen.options.items() if default is empty}
        for option, default in chosen.options.items():
            if default is not empty:
                registry.check_options(chosen, needed | {option: default})
    assert {s.name for s in data.status(tmp_path)} == set(data.names())
