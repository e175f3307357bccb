"""The loop: what it learns, counts, writes and refuses."""

import csv
import json
import math
import time

import numpy as np
import pytest
import torch
from torch import nn

from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.train import ConfigError, NonFiniteError, evaluate, fit, load_run
from statespan.train import loop as loops
from statespan.train.checkpoint import latest
from statespan.train.state import part
from tests.train.make import LENGTH, Toy, dataset, prepare, recipe, run


def by_hand(model, split):
    """Loss and accuracy one sample at a time, in float64."""
    model = model.double()
    losses, hits = [], []
    for row in range(len(split)):
        batch = split.batch([row])
        scores = model(batch.x.double())
        losses.append(nn.functional.cross_entropy(scores, batch.y).item())
        hits.append(scores.argmax(-1).item() == batch.y.item())
    return {"loss": np.mean(losses), "accuracy": np.mean(hits)}


@pytest.mark.parametrize("ema", [None, 0.7])
def test_the_metrics_are_those_of_every_sample_once(ema, tmp_path):
    """With last batches of 3 (of 7 and 11 by 4), dropout off, BatchNorm's own statistics, the best weights."""
    data = dataset()
    result = run(tmp_path, {"ema": ema}, data=data, model=lambda info: Toy(info, 0.3, norm=True))
    model, *_ = load_run(tmp_path, data=data, model=lambda info: Toy(info, 0.3, norm=True))
    assert result.test == pytest.approx(by_hand(model, data.test), rel=1e-5)
    assert result.valid == pytest.approx(by_hand(model, data.valid), rel=1e-5)
    text = (tmp_path / "result.json").read_text()
    assert str(tmp_path) not in text
    record = json.loads(text)
    assert record["machine"].keys() == {"device", "processes", "cpu_threads"}  # what it ran on, not where
    assert record["test"] == result.test
    assert record["recipe"]["train"]["ema"] == ema
    assert record["versions"]["torch"] == torch.__version__
    again = evaluate(tmp_path, data=data, model=lambda info: Toy(info, 0.3, norm=True))
    assert again == pytest.approx(result.test, rel=1e-6)


def test_the_time_of_a_run_has_its_set_up_in_it(tmp_path, monkeypatch):
    """What compiling takes counts, each time a run is started."""
    build = loops.build_optimizer

    def slowly(*args, **kwargs):
        time.sleep(0.4)
        return build(*args, **kwargs)

    monkeypatch.setattr(loops, "build_optimizer", slowly)
    began = time.perf_counter()
    first = run(tmp_path, {"epochs": 1}).seconds
    assert 0.4 < first < time.perf_counter() - began
    second = run(tmp_path, {"epochs": 2}, resume=True).seconds
    assert first + 0.4 < second < time.perf_counter() - began


def test_settings_of_torch_last_as_long_as_the_run(tmp_path):
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    run(tmp_path, {"epochs": 1, "threads": 2, "precision": "tf32", "deterministic": True})
    assert json.loads((tmp_path / "result.json").read_text())["machine"]["cpu_threads"] == 2
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_it_trains_as_a_loop_written_by_hand(tmp_path):
    """12 steps against torch's own AdamW, cosine and clipping, with the pieces of a batch put together by hand."""
    settings = {"epochs": 2, "accumulate": 2, "clip": 0.3, "warmup": 4, "weight_decay": 0.1, "keep": 9}
    data = dataset()
    torch.manual_seed(3)
    model, twin = Toy(), Toy()
    twin.load_state_dict(model.state_dict())
    run(tmp_path, settings, data=data, model=model)

    from statespan.train.order import order

    biases = [p for name, p in twin.named_parameters() if "bias" in name]
    weights = [p for name, p in twin.named_parameters() if "bias" not in name]
    optimizer = torch.optim.AdamW([{"params": biases, "weight_decay": 0.0}, {"params": weights}], weight_decay=0.1)
    for step in range(12):
        factor = (step + 1) / 4 if step < 4 else 0.5 * (1 + math.cos(math.pi * (step - 4) / 8))
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * factor
        rows = order(0, step // 6, 26)[4 * (step % 6) : 4 * (step % 6) + 4]
        batch = data.train.batch(rows)
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(batch.x), batch.y).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
        optimizer.step()
    tensors, facts = latest(tmp_path / "checkpoints")
    assert facts.step == 12
    for name, value in twin.state_dict().items():
        assert torch.allclose(part(tensors, "model")[name], value, rtol=1e-5, atol=1e-6), name


def log(folder):
    return list(csv.DictReader((folder / "log.csv").read_text().splitlines()))


def test_log(tmp_path, capfd):
    run(tmp_path, {"log_every": 4, "validate_every": 5})
    rows = log(tmp_path)
    assert [int(row["step"]) for row in rows if row["train_loss"]] == [4, 8, 12, 16, 18]
    assert [int(row["step"]) for row in rows if row["valid_accuracy"]] == [5, 10, 15, 18]
    assert capfd.readouterr() == ("", "")  # nothing of Lightning's, nothing of torch's


def test_of_two_equal_accuracies_the_surer_one_is_tested(tmp_path, monkeypatch):
    found = iter([(0.5, 0.9), (0.7, 0.8), (0.7, 0.6), (0.7, math.nan), (0.7, 0.65), (0.6, 0.1)] + 3 * [(0.0, 0.0)])
    names = ("accuracy", "loss")
    monkeypatch.setattr(loops.Loop, "measure", lambda self, split, **_: dict(zip(names, next(found))))
    assert run(tmp_path, {"epochs": 1, "validate_every": 1}).best_step == 3


def test_patience_and_plateau(tmp_path, monkeypatch):
    """Validation that never improves after the first: stops, with the rate lowered on the way."""
    values = iter([0.5] + 20 * [0.4])
    monkeypatch.setattr(loops.Loop, "measure", lambda self, split, **_: {"loss": 1.0, "accuracy": next(values)})
    train = {"epochs": 9, "patience": 5, "schedule": "plateau", "plateau_patience": 1, "factor": 0.5, "log_every": 6}
    result = run(tmp_path, {**train, "warmup": 0})
    assert (result.steps, result.best_step) == (36, 6)
    rates = [float(row["lr"]) for row in log(tmp_path) if row["lr"]]
    assert rates == pytest.approx([0.01, 0.01, 0.01, 0.005, 0.005, 0.0025])


class Poison(nn.Module):
    """Gives out NaN forward or backward at one step."""

    def __init__(self, where):
        super().__init__()
        self.where, self.calls = where, 0

    def forward(self, x):
        self.calls += self.training
        if self.calls < 9:
            return x
        if self.where == "forward":
            return x * float("nan")
        if self.where == "backward":
            x = x.clone()
            x.register_hook(lambda gradient: gradient * float("inf"))
            x = x.clone()
        return x


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize(
    ("where", "name"),
    [("forward", r"the output of norm \(Poison\)"), ("backward", r"the gradient that norm \(Poison\) passes back")],
)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("check_every", [1, 4])
def test_a_bad_step_changes_nothing(where, name, optimizer, check_every, ema, tmp_path, monkeypatch):
    """Step 8 is bad (nine calls); seen at once or some steps later, nothing has moved since the step before."""
    seen = {}

    class Watched(loops.Loop):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.check_every = check_every

        def _check(self):
            try:
                super()._check()
            except NonFiniteError:
                seen.update(self.state.collect())
                raise

    monkeypatch.setattr("statespan.train.run.Loop", Watched)
    settings = {"optimizer": optimizer, "ema": ema, "save_every": 4, "validate_every": 100, "clip": 1.0}

    def broken(info):
        model = Toy(info)
        model.norm = Poison(where)
        return model

    with pytest.raises(
        NonFiniteError, match=rf"in step 8 \(epoch 2\); first: .*{name}.*last checkpoint is of step 8"
    ) as error:
        run(tmp_path / "bad", settings, model=broken)
    assert "\n" not in str(error.value)
    run(tmp_path / "good", {**settings, "steps": 8, "decay_steps": 18})
    wanted, _ = latest(tmp_path / "good" / "checkpoints")
    changing = [name for name in wanted if name.partition("/")[0] in ("model", "optimizer", "ema")]
    assert len(changing) >= 16
    assert [name for name in changing if not torch.equal(seen[name], wanted[name])] == []
    assert latest(tmp_path / "bad" / "checkpoints")[1].step == 8


def test_bad_data_and_bad_parameters_are_named(tmp_path):
    def nan(rows):
        return prepare(rows)._replace(x=rows["x"].float() * float("nan"))

    good = dataset()
    bad = Dataset("bad", good.info, Arrays(good.train.arrays, nan), good.valid, good.test)
    with pytest.raises(NonFiniteError, match=r"step 0 .*first: the input of the batch.*no checkpoint yet"):
        run(tmp_path / "data", data=bad)
    model = Toy()
    model.last.bias.data[0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"first: the parameter last.bias"):
        run(tmp_path / "parameter", model=model)


def test_sizes_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"train.batch is 27; allowed: at most 26, the number of rows"):
        run(tmp_path / "a", {"batch": 27})
    with pytest.raises(ConfigError, match=r"train.batch is 4; allowed: a multiple of 3"):
        run(tmp_path / "b", {"accumulate": 3})
    with pytest.raises(ConfigError, match=r"split is all; allowed: train, valid and test"):
        evaluate(tmp_path, "all")
    with pytest.raises(ConfigError, match="device is tpu"):
        fit(recipe(), tmp_path, data=dataset(), model=Toy, device="tpu")


def values(n, seed, shape):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((n, LENGTH, 2)).astype(np.float32), rng.standard_normal((n, *shape)).astype(np.float32)
    return Arrays({"x": x, "y": y}, lambda rows: Batch(rows["x"], rows["y"]))


@pytest.mark.parametrize(("task", "shape"), [("regression", (1,)), ("forecast", (2, 1))])
def test_errors_of_values(task, shape, tmp_path):
    class Model(nn.Module):
        def __init__(self, info):
            super().__init__()
            self.linear = nn.Linear(2 * LENGTH, math.prod(shape))

        def forward(self, x):
            return self.linear(x.flatten(1)).reshape(-1, *shape)

    info = Info(task, length=LENGTH, d_input=2, vocabulary=None, d_output=1, horizon=2)
    data = Dataset("values", info, *(values(n, n, shape) for n in (9, 5, 7)))
    result = run(tmp_path, data=data, model=Model)
    model, *_ = load_run(tmp_path, data=data, model=Model)
    batch = data.test.batch(list(range(7)))
    error = (model(batch.x) - batch.y).detach().double()
    mse, mae = error.square().mean().item(), error.abs().mean().item()
    wanted = {"rmse": math.sqrt(mse), "mae": mae} if task == "regression" else {"mse": mse, "mae": mae}
    assert result.test == pytest.approx({"loss": mse, **wanted}, rel=1e-5)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("task", ["language", "density"])
def test_tokens(task, adaptive, tmp_path):
    """Every token within its length once; perplexity and bits of the mean, not means of batches."""
    rng = np.random.default_rng(0)

    def tokens(n):
        arrays = {"x": rng.integers(0, 5, (n, 6)), "length": rng.integers(1, 7, n)}
        return Arrays(arrays, lambda rows: Batch(rows["x"], rows["x"].roll(-1, 1), rows["length"]))

    class Model(nn.Module):
        def __init__(self, info):
            super().__init__()
            self.table = nn.Embedding(5, 5)
            if adaptive:
                self.token_losses = self._token_losses

        def forward(self, x, lengths):
            return self.table(x)

        def _token_losses(self, x, y, lengths):
            return nn.functional.cross_entropy(self.table(x).mT, y, reduction="none")

    data = Dataset("tokens", Info(task, 6, None, 5, 5), tokens(9), tokens(5), tokens(7))
    result = run(tmp_path, data=data, model=Model)
    model, *_ = load_run(tmp_path, data=data, model=Model)
    batch = data.test.batch(list(range(7)))
    losses = nn.functional.cross_entropy(model(batch.x, batch.lengths).mT, batch.y, reduction="none")
    nats = losses[torch.arange(6) < batch.lengths[:, None]].double().mean().item()
    metric = {"perplexity": math.exp(nats)} if task == "language" else {"bits_per_dim": nats / math.log(2)}
    assert result.test == pytest.approx({"loss": nats, **metric}, rel=1e-5)


def test_picture_and_tensorboard(tmp_path, picture):
    run(tmp_path, {"epochs": 1, "tensorboard": True})
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert list((tmp_path / "tensorboard").iterdir())
