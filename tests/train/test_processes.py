"""One process does without Lightning Fabric, and a run in memory without a folder: to the same bits."""

import contextlib
import subprocess
import sys

import pytest
import torch

from statespan.train import run as runs
from statespan.train.checkpoint import latest
from statespan.train.device import one_process, quiet
from statespan.train.loop import Loop, Splits
from statespan.train.sinks import Memory
from statespan.train.state import part
from statespan.train.tasks import TASKS
from tests.train.make import Toy, assert_same, dataset, flip, recipe, run


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_process_trains_as_fabric_does(precision, tmp_path, monkeypatch):
    arguments = {
        "settings": {"precision": precision, "accumulate": 2, "ema": 0.8, "clip": 0.5},
        "data": dataset(augment=flip),
        "model": lambda info: Toy(info, 0.3, norm=True),
    }
    run(tmp_path / "one", **arguments)
    used = []

    @contextlib.contextmanager
    def by_fabric(train, device):
        with quiet():
            from lightning.fabric import Fabric

            with one_process(train, device):
                fabric = Fabric(accelerator="cpu", precision="bf16-mixed" if precision == "bf16" else "32-true")
                used.append(fabric)
                yield fabric

    monkeypatch.setattr(runs, "launched", by_fabric)
    run(tmp_path / "fabric", **arguments)
    assert len(used) == 1
    assert_same(tmp_path / "one", tmp_path / "fabric")


def test_a_run_in_memory_ends_with_the_weights_of_one_in_a_folder(tmp_path):
    settings = {"epochs": 4, "lr": 0.1, "keep": 1, "log_every": 6}
    result = run(tmp_path, settings, model=lambda info: Toy(info, norm=True))
    assert result.best_step < result.steps  # so that the best weights are others than the last ones
    data, train, memory = dataset(), recipe(**settings).train, Memory()
    model = runs.build_model(recipe(**settings), data, lambda info: Toy(info, norm=True))
    with one_process(train, torch.device("cpu")) as process:
        splits = Splits(data.train, data.valid)
        loop = Loop(train, splits, model, task=TASKS["classification"], processes=process, sink=memory)
        loop.run(progress=False)
        assert loop.load_best() == result.best_step == memory.history.best_step
    assert memory.history.steps == result.steps
    assert [step for step, _ in memory.history.valid] == [6, 12, 18, 24]
    assert memory.history.best == result.valid["accuracy"]
    tensors = latest(tmp_path / "checkpoints")[0]
    kept = [path for path in (tmp_path / "checkpoints").iterdir() if int(path.name[:12]) == result.best_step]
    assert len(kept) == 1
    from statespan.train.checkpoint import load

    for name, value in part(load(kept[0])[0], "model").items():
        assert torch.equal(model.state_dict()[name], value), name
    assert any(not torch.equal(model.state_dict()[name], value) for name, value in part(tensors, "model").items())


def test_what_the_caller_has_set_is_left_alone():
    train = recipe(threads=1, precision="tf32", deterministic=True).train
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.get_num_threads()
        with one_process(train, torch.device("cpu")):
            torch.rand(3)
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before[1:]
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_training_in_one_process_imports_no_lightning(tmp_path):
    program = (
        "import sys; from pathlib import Path; from tests.train.make import run;"
        f"run(Path({str(tmp_path / 'run')!r}), {{'epochs': 1}});"
        "print('lightning' in {m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
