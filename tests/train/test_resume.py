"""Interrupted anywhere and continued, a run ends with the same bits as one that was not."""

import json
import os
import random
import signal
import time

import pytest

from statespan.train import ConfigError, Interrupted
from statespan.train import loop as loops
from tests.train.make import Toy, assert_same, dataset, flip, run, state

# 3 epochs of 6 steps
CASES = {
    "dropout": ({}, None, 0.3),
    "augmentation": ({}, flip, 0.0),
    "ema": ({"ema": 0.8, "clip": 0.5}, None, 0.2),
    "accumulation": ({"accumulate": 2, "precision": "bf16", "validate_every": 4}, flip, 0.2),
    "lamb": ({"optimizer": "lamb", "schedule": "plateau", "plateau_patience": 0}, None, 0.0),
    "prefetch": ({"resident": "never", "schedule": "multistep", "milestones": [1, 2], "log_every": 5}, flip, 0.2),
}
STEPS = 18


def settings(name):
    train, augment, dropout = CASES[name]
    return {"settings": train, "data": dataset(augment=augment), "model": lambda info: Toy(info, dropout, norm=True)}


@pytest.fixture
def stop_at(monkeypatch):
    """Makes a run receive SIGTERM before a step, or inside of the validation before it."""
    wanted = set()
    poll = loops.Loop._poll

    def patched(self):
        if self.progress.step in wanted:
            wanted.discard(self.progress.step)
            os.kill(os.getpid(), signal.SIGTERM)
        poll(self)

    monkeypatch.setattr(loops.Loop, "_poll", patched)
    return wanted


def interrupted(folder, stop_at, steps, arguments):
    """Run with an interruption at each of these steps."""
    for step in steps:
        stop_at.clear()
        stop_at.add(step)
        with pytest.raises(Interrupted) as stop:
            run(folder, resume=True, **arguments)
        assert stop.value.code == 143
        assert not list(folder.glob("**/.statespan-tmp-*"))
    stop_at.clear()
    return run(folder, resume=True, **arguments)


@pytest.mark.parametrize("name", CASES)
def test_interrupted_runs_end_with_the_same_bits(name, tmp_path, stop_at):
    arguments = settings(name)
    whole = run(tmp_path / "whole", **arguments)
    steps = sorted(random.Random(name).sample(range(STEPS), 3))
    broken = interrupted(tmp_path / "broken", stop_at, steps, arguments)
    assert_same(tmp_path / "broken", tmp_path / "whole")
    assert (broken.test, broken.valid, broken.best_step) == (whole.test, whole.valid, whole.best_step)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_interruptions(name, tmp_path, stop_at):
    arguments = settings(name)
    draw = random.Random(name)
    run(tmp_path / "whole", **arguments)
    for number in range(20):
        interrupted(tmp_path / str(number), stop_at, sorted(draw.sample(range(STEPS), 5)), arguments)
        assert_same(tmp_path / str(number), tmp_path / "whole")


def test_the_comparison_sees_a_difference(tmp_path):
    arguments = settings("dropout")
    run(tmp_path / "one", **arguments)
    run(tmp_path / "two", **(arguments | {"settings": {"seed": 1}}))
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    assert all(one[name] != two[name] for name in ("model/first.weight", "optimizer/last.bias/exp_avg", "log"))


@pytest.mark.parametrize("shorter", [{"epochs": 2}, {"steps": 17}])
def test_a_run_that_trained_further_is_left_as_it_is(shorter, tmp_path):
    """With fewer epochs or steps there is nothing to train, and the result would only say so wrongly."""

    def files():
        return {path: path.read_bytes() for path in sorted(tmp_path.glob("**/*")) if path.is_file()}

    run(tmp_path)
    before = files()
    key, value = next(iter(shorter.items()))
    with pytest.raises(ConfigError, match=rf"train\.{key} is {value}, .* trained 18 steps already") as refused:
        run(tmp_path, shorter, resume=True)
    assert "\n" not in str(refused.value)
    assert files() == before
    assert run(tmp_path, {"epochs": 3}, resume=True).steps == 18
    assert run(tmp_path, {"steps": 20}, resume=True).steps == 20


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_codes_and_handlers(number, code, tmp_path, monkeypatch):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    advance = loops.Loop.advance

    def kill(self, batches):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a second one changes nothing
        advance(self, batches)

    monkeypatch.setattr(loops.Loop, "advance", kill)
    with pytest.raises(Interrupted) as stop:
        run(tmp_path)
    assert stop.value.code == code
    assert str(tmp_path) in str(stop.value)
    assert '"step":1' in state(tmp_path)["progress"].replace(" ", "")  # the next step, not the end of the epoch
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def kill_and_resume(folder, kills, seed):
    """Fork, let the child train with a checkpoint at every step, kill it at a random moment; again and again.

    Moments are drawn within the time that a whole run takes here and now, so that some runs come to their end.
    """
    moments = random.Random(seed)
    arguments = {**settings("ema"), "settings": {"ema": 0.8, "save_every": 1, "keep": 1}}
    run(folder / "first", **arguments)  # which also loads what is loaded once
    start = time.perf_counter()
    run(folder / "whole", **arguments)
    patience = time.perf_counter() - start
    number, reached = 0, -1
    for _ in range(kills):
        killed = folder / str(number)
        child = os.fork()
        if child == 0:
            try:
                run(killed, resume=True, **arguments)
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0.05, 1.0) * patience)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if reached >= 0 or any(killed.glob("checkpoints/0*")):
            step = json.loads(state(killed)["progress"])["step"]
            assert step >= reached, "a checkpoint was lost"
            reached = step
        if reached == STEPS:
            run(killed, resume=True, **arguments)
            assert_same(killed, folder / "whole")
            assert not list(killed.glob("**/.statespan-tmp-*"))
            number, reached = number + 1, -1
    return number


def test_kills_lose_nothing(tmp_path):
    assert kill_and_resume(tmp_path, 20, seed=0) >= 1


@pytest.mark.soak
def test_many_kills_lose_nothing(tmp_path):
    assert kill_and_resume(tmp_path, 300, seed=1) >= 10
