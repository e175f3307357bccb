"""Lightning modules: the losses, metrics, groups and rates of our own loop, with ordinary loaders."""

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from statespan import models
from statespan.data.base import Batch
from statespan.train import Train, as_lightning
from statespan.train.lightning import as_batch
from statespan.train.optim import build_optimizer, rate
from statespan.train.tasks import TASKS
from tests.models.make import SMALL

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),  # Lightning's own call of torch
]
KINDS = {
    "classification": ("classifier", {"d_input": 2, "d_output": 3}),
    "regression": ("regressor", {"d_input": 2, "d_output": 1}),
    "language": ("language", {"vocabulary": 9}),
    "masked": ("masked", {"vocabulary": 9}),
    "forecast": ("forecaster", {"d_input": 2, "d_output": 2, "horizon": 2}),
}


def make(kind, **options):
    torch.manual_seed(0)
    name, own = KINDS[kind]
    return models.build(name, options={**SMALL, **own, **options})


def data(kind, n=11, length=6):
    torch.manual_seed(1)
    lengths = torch.randint(2, length + 1, (n,))
    if kind in ("language", "masked"):
        x = torch.randint(9, (n, length))
        y = x.roll(-1, 1)
        y[::3, 1] = -1
    else:
        x = torch.randn(n, length, 2)
        y = {"classification": torch.randint(3, (n,)), "regression": torch.randn(n, 1)}.get(kind, torch.randn(n, 2, 2))
    return TensorDataset(x, y, lengths)


def trainer(folder, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    quiet |= {"enable_checkpointing": False, "num_sanity_val_steps": 0}
    return lightning.Trainer(default_root_dir=folder, **{**quiet, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_a_loop_of_our_own(kind, tmp_path):
    """Three epochs with lengths: the same weights, to the last bit, as the loop written out here."""
    samples, options = data(kind), {"lr": 0.02, "warmup": 2, "weight_decay": 0.1, "min_lr": 0.1}
    module = as_lightning(make(kind), kind, **options)
    runner = trainer(tmp_path, max_epochs=3)
    runner.fit(module, DataLoader(samples, 4))
    model, train = make(kind).train(), Train(**options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = build_optimizer(model, train)
    for step, parts in enumerate([samples[i : i + 4] for _ in range(3) for i in range(0, 11, 4)]):
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * rate(train, step, 9, 3)
        optimizer.zero_grad()
        loss = TASKS[kind].loss(model, Batch(*parts))
        loss.backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert (module.model.state_dict()[name] == value).all(), name
    assert all((before[name] != value).any() for name, value in model.named_parameters())
    assert runner.callback_metrics["train_loss"] == loss


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_those_of_all_samples_whatever_the_batches(kind, tmp_path):
    samples, model = data(kind), make(kind).eval()
    task = TASKS[kind]
    sums = task.add(model, Batch(*samples[:]), 1.0)
    expected = task.metrics(dict(zip(task.sums, sums.tolist())))
    assert task.metric in expected
    for size in (4, 11):
        for split in ("valid", "test"):
            runner, module = trainer(tmp_path), as_lightning(model, kind)
            check = runner.validate if split == "valid" else runner.test
            (found,) = check(module, DataLoader(samples, size), verbose=False)
            assert found == pytest.approx({f"{split}_{name}": value for name, value in expected.items()}, rel=1e-5)


def test_a_model_learns_with_validation_and_checkpoints(tmp_path):
    torch.manual_seed(2)
    x = torch.randn(60, 8, 2)
    y = (x[:, :, 0].mean(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), 20)
    module = as_lightning(make("classification", d_output=2), lr=0.02)
    runner = trainer(tmp_path, max_epochs=40, enable_checkpointing=True)
    runner.fit(module, loader, loader)
    assert runner.callback_metrics["valid_accuracy"] > 0.9
    saved = torch.load(runner.checkpoint_callback.best_model_path, weights_only=True)["state_dict"]
    again = as_lightning(make("classification", d_output=2))
    again.load_state_dict(saved)
    predicted = torch.cat(runner.predict(again, DataLoader(x, 20)))
    assert (predicted == module.model.eval()(x)).all()
    assert (torch.cat(runner.predict(again, loader)) == predicted).all()


def test_the_groups_of_parameters():
    module = as_lightning(make("classification"), lr=0.01, weight_decay=0.3, ssm_lr=0.002, schedule="constant")
    optimizer = module.configure_optimizers()
    groups = {group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert groups == {"ssm": (0.002, 0.0), "no_decay": (0.01, 0.0), "decay": (0.01, 0.3)}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(module.parameters()))


def test_two_loaders_and_a_split_without_anything_that_counts(tmp_path):
    model, samples = make("language").eval(), data("language")
    x, y, lengths = samples[:]
    nothing = TensorDataset(x, torch.full_like(y, -1), lengths)
    loaders = [DataLoader(part, 4) for part in (samples, nothing, samples)]
    found = trainer(tmp_path).validate(as_lightning(model), loaders, verbose=False)
    names = {name for part in found for name in part}
    assert names == {"valid_loss", "valid_perplexity", "valid_loss_2", "valid_perplexity_2"}
    values = {name: value for part in found for name, value in part.items()}
    assert values["valid_loss"] == values["valid_loss_2"]


def test_the_schedule_of_a_trainer_without_an_end(tmp_path):
    samples = data("regression")
    endless = trainer(tmp_path, max_epochs=-1, max_time="00:00:00:00")
    with pytest.raises(ValueError, match="decay_steps must be given with a Trainer that has no end"):
        endless.fit(as_lightning(make("regression")), DataLoader(samples, 4))


def test_batches():
    x, y, lengths = torch.zeros(2, 3), torch.ones(2), torch.tensor([3, 1])
    assert as_batch([x, y]) == Batch(x, y)
    assert as_batch((x, y, lengths)) == Batch(x, y, lengths)
    assert as_batch({"x": x, "y": y, "gaps": x}) == Batch(x, y, gaps=x)
    given = Batch(x, y, marks=x)
    assert as_batch(given) is given
    for wrong, error, message in (
        (x, TypeError, "got Tensor"),
        ((x,), TypeError, "got 1 parts"),
        ((x, y, lengths, x), TypeError, "got 4 parts"),
        ({"x": x}, ValueError, r"got \('x',\)"),
        ({"x": x, "y": y, "z": x}, ValueError, r"got \('x', 'y', 'z'\)"),
    ):
        with pytest.raises(error, match=f"a batch must .*{message}"):
            as_batch(wrong)


def test_mistakes():
    model = make("classification")
    assert as_lightning(model).task is TASKS["classification"]
    assert as_lightning(torch.nn.Linear(2, 2), TASKS["regression"]).task is TASKS["regression"]
    with pytest.raises(ValueError, match=r"task must be one of \('classification',\), got 'regression'"):
        as_lightning(model, "regression")
    with pytest.raises(ValueError, match=r"task must be one of .*'forecast'.* for a Linear, got None"):
        as_lightning(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"options has no 'learning_rate'"):
        as_lightning(model, learning_rate=0.1)
    with pytest.raises(ValueError, match=r"options has no 'epochs'"):
        as_lightning(model, epochs=3)
    with pytest.raises(ValueError, match=r"schedule must be one of .* got 'plateau'"):
        as_lightning(model, schedule="plateau")
    with pytest.raises(ValueError, match=r"train\.lr is -1"):
        as_lightning(model, lr=-1.0)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn.Module, got str"):
        as_lightning("classifier")
