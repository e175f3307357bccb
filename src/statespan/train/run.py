"""Training and evaluation, one call each."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from statespan import _io as io
from statespan.data import inputs
from statespan.data.base import Dataset, Info
from statespan.data.download import Progress
from statespan.train import checkpoint, state
from statespan.train.config import ConfigError, Recipe, read_recipe, write_recipe
from statespan.train.device import Processes, launched, pick_device, quiet
from statespan.train.extra import with_metrics
from statespan.train.feed import Feed
from statespan.train.log import waiting
from statespan.train.loop import Loop
from statespan.train.metrics import measure
from statespan.train.optim import check_parts
from statespan.train.order import derive
from statespan.train.result import FIRST, Result, write_result
from statespan.train.sinks import RunFolder
from statespan.train.start import begin, find_weights, remember, remembered
from statespan.train.tasks import Objective, Task, task_of

Data = Dataset | Path | str | None
Model = nn.Module | Callable[[Info], nn.Module] | None
SPLITS = ("train", "valid", "test")


def fit(
    recipe: Recipe,
    folder: Path | str,
    *,
    resume: bool = False,
    data: Data = None,
    model: Model = None,
    progress: bool = True,
    device: torch.device | str | None = None,
) -> Result:
    """Train and test, and write everything to a folder.

    The folder gets ``recipe.yaml``, ``log.csv``, ``checkpoints/``, ``result.json``, ``curve.png``, ``tensorboard/`` and
    ``model/`` (the weights that were tested, for ``from_pretrained``). Started by torchrun, all processes train as one.

    Args:
        recipe: The data, the model and how to train.
        folder: The run's folder; created if missing.
        resume: Resume the run in the folder, to the same bits as an uninterrupted one; start it if there is none.
        data: The dataset, or a folder of datasets instead of the default one.
        model: A module (or a function from the dataset's info to one) instead of the recipe's model.
        progress: Show a progress bar.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default CUDA if available.

    Returns:
        The metrics and the folder.

    Raises:
        ConfigError: The recipe does not fit the data, the machine or the run to resume.
        CheckpointError: A file cannot be written or read.
        NonFiniteError: The loss or a gradient is not finite.
        Interrupted: SIGTERM or SIGINT came; the run is saved. Uncaught, the process ends with 143 or 130.
    """
    folder, place = Path(folder), pick_device(device)
    check_train(recipe)  # before the data, which may take long
    if model is None:
        check_model(recipe)
    if recipe.train.start is not None and not resume:
        find_weights(recipe.train.start)
    dataset = load_data(recipe, data)
    with launched(recipe.train, place) as processes:
        network = build_model(recipe, dataset, model)
        started_from = _starting_weights(recipe, folder, network, resume=resume)
        io.make_folder(folder / "checkpoints")  # only now: a run that cannot start leaves nothing behind
        with io.locked(folder, wanted=processes.is_global_zero):
            loop = _prepared(recipe, folder, dataset, network, processes=processes, resume=resume)
            if processes.is_global_zero:
                if started_from is not None:
                    remember(folder, started_from)
                io.replace_file(folder / "recipe.yaml", write_recipe(recipe).encode())
            processes.barrier()
            with loop.few_threads():
                loop.run(progress)
                return _finish(loop, recipe, folder, started_from, progress=progress)


def _starting_weights(recipe: Recipe, folder: Path, network: nn.Module, *, resume: bool) -> dict[str, Any] | None:
    """Load the weights that a recipe starts from into the network; returns their origin."""
    if recipe.train.start is None:
        return None
    if resume and checkpoint.any_in(folder / "checkpoints"):
        return remembered(folder)
    return begin(network, recipe.train.start)


def _prepared(
    recipe: Recipe, folder: Path, dataset: Dataset, network: nn.Module, *, processes: Processes, resume: bool
) -> Loop:
    """Prepare the loop in its folder, after removing leftovers of interrupted writes."""
    if not resume and any((folder / name).exists() for name in ("recipe.yaml", "result.json")):
        raise ConfigError(f"{folder} holds a run already: resume it, or choose another folder")
    processes.barrier()
    if processes.is_global_zero:
        io.sweep(folder)
        io.sweep(folder / "checkpoints")
    sink = RunFolder(folder, recipe, is_lead=processes.is_global_zero)
    with quiet():
        loop = Loop(recipe.train, dataset, network, task=_task(recipe, dataset), processes=processes, sink=sink)
    if resume:
        loop.resume(sink)
    return loop


def _finish(loop: Loop, recipe: Recipe, folder: Path, started_from: dict[str, Any] | None, *, progress: bool) -> Result:
    """Test the best weights and write the result."""
    dataset, network, processes = loop.data, loop.model, loop.processes
    best = loop.load_best()
    with waiting("testing", progress and processes.is_global_zero):
        test, valid = loop.measure("test"), loop.measure("valid")
        first = loop.measure("test", rows=FIRST)
    result = Result(
        folder,
        test=test,
        valid=valid,
        metric=loop.task.metric,
        steps=loop.progress.step,
        epochs=loop.progress.step / loop.plan.steps_per_epoch,
        best_step=best,
        parameters=sum(p.numel() for p in network.parameters() if p.requires_grad),
        seconds=loop.progress.seconds,
        first=first,
        rows={split: len(getattr(dataset, split)) for split in SPLITS},
        start=started_from,
    )
    if processes.is_global_zero:
        write_result(result, recipe, processes.device, processes.world_size)
        _describe(network, dataset)
        save: Any = getattr(network, "save_pretrained", None)
        if save is not None and not loop.is_sharded:
            with loop.averaged():
                save(folder / "model")
    processes.barrier()
    return result


def evaluate(
    run: Path | str | Recipe,
    split: str = "test",
    dt_scale: float = 1.0,
    *,
    overrides: Sequence[str] = (),
    data: Data = None,
    model: Model = None,
    device: torch.device | str | None = None,
    rows: int | None = None,
) -> dict[str, float]:
    """The metrics of a trained model on a split.

    Args:
        run: The folder of a run, whose best weights are used, or of a published model; or a recipe, with the trained
            ``model``.
        split: "train", "valid" or "test".
        dt_scale: Step of the data relative to that of training: 2.0 if it is sampled half as often.
        overrides: Changes of the recipe, such as ``"data.subsample=2"``.
        data: The dataset, or the folder of the datasets.
        model: The ``model`` that was given to :func:`fit`, if any.
        device: As in :func:`fit`.
        rows: Use only this many rows of the split, the first ones.

    Returns:
        The metrics by name.
    """
    if split not in SPLITS:
        raise ConfigError(f"split is {split}; allowed: train, valid and test")
    place = pick_device(device)
    source = run if isinstance(run, Recipe) else Path(run) / "recipe.yaml"
    if not isinstance(data, Dataset):
        overrides = [*overrides, *without_others(read_recipe(source, overrides), split)]
    if isinstance(run, Recipe):
        recipe = read_recipe(run, overrides)
        dataset = load_data(recipe, data)
        network = build_model(recipe, dataset, model)
    else:
        network, recipe, dataset = load_run(run, overrides=overrides, data=data, model=model)
        if recipe.data["name"] == "own":  # scaled by its own statistics, which other data than in training has not
            with _naming("data"):
                dataset = inputs.as_trained(dataset, getattr(network, "inputs", None))
    single = dataclasses.replace(recipe.train, strategy="auto")
    task = _task(recipe, dataset)
    with launched(single, place) as processes, quiet():
        return measure(
            processes,
            processes.setup_module(Objective(network, task)),
            task,
            Feed(getattr(dataset, split), processes.device, single.resident),
            batch=single.valid_batch or single.batch,
            dt_scale=dt_scale,
            rows=rows,
            group_lengths=single.group_lengths,
        )


def load_run(
    folder: Path | str, *, overrides: Sequence[str] = (), data: Data = None, model: Model = None
) -> tuple[nn.Module, Recipe, Dataset]:
    """The trained model of a run or the published model in a folder, in evaluation mode, with its recipe and dataset.

    The other arguments are those of :func:`evaluate`.
    """
    folder = Path(folder)
    recipe = read_recipe(folder / "recipe.yaml", overrides)
    if model is None and (folder / "config.json").is_file():  # published: the weights lie beside the recipe
        from statespan.models import from_pretrained

        network, dataset = from_pretrained(folder), load_data(recipe, data)
        _check_tokens(folder, dataset)
        return network, recipe, dataset
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        raise io.CheckpointError(f"there is no checkpoint in {folder / 'checkpoints'}")
    tensors, facts = newest
    best = facts.progress.get("best_step", -1) if recipe.train.test_weights == "best" else -1
    if best not in (-1, facts.step):
        tensors, _ = checkpoint.at_step(folder / "checkpoints", best)
    dataset = load_data(recipe, data)
    _check_tokens(folder / "model", dataset)
    network = build_model(recipe, dataset, model)
    state.load_weights(network, tensors)
    _describe(network, dataset, folder / "model" / "inputs.json")
    return network.eval(), recipe, dataset


def _check_tokens(model: Path, dataset: Dataset) -> None:
    """Reject a text whose characters are not those of the saved model, which would read them as others."""
    if not dataset.info.tokens or not (model / "config.json").is_file():
        return
    from statespan.models.pretrained import CONFIG, read_config

    tokens = tuple(read_config(model / CONFIG)["config"].get("tokens", ()))
    if tokens and tokens != dataset.info.tokens:
        have = f"{len(dataset.info.tokens)} tokens that differ from the {len(tokens)} of the model"
        raise ConfigError(f"data: the training part of the text must be that of the run, got one with {have}")


def _describe(network: nn.Module, dataset: Any, stored: Path | None = None) -> None:
    """Tell a model what its inputs are, for use without the data: as stored in training, or else by the dataset."""
    from statespan.models.base import Model

    if isinstance(network, Model):
        is_stored = stored is not None and stored.is_file()
        network.inputs = inputs.read(stored) if stored is not None and is_stored else inputs.portable(dataset)


def load_data(recipe: Recipe, data: Data = None, *, progress: Progress | None = None) -> Dataset:
    """The dataset of a recipe, or the given one."""
    if isinstance(data, Dataset):
        return data
    import statespan.data

    options = dict(recipe.data)
    try:
        with _naming("data"):
            return statespan.data.load(options.pop("name"), folder=data, progress=progress, **options)
    except FileNotFoundError as error:
        if "path" not in options or isinstance(error, statespan.data.MissingData):
            raise
        problem = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        raise FileNotFoundError(f"{problem}; if the data has moved, name it with data.path=…") from error


def without_others(recipe: Recipe, split: str) -> list[str]:
    """Overrides that shrink the other splits to one row if rows are generated, which is slow."""
    from statespan.data.registry import entry

    # a number of training rows is how many are made; of what is read, all are used
    is_made = type(entry(recipe.data["name"]).options.get("train")) is int
    return [f"data.{part}=1" for part in SPLITS if is_made and part != split]


def check_model(recipe: Recipe, *, values: bool = False) -> None:
    """Reject an unknown model, options it does not have, or with ``values`` values that are not allowed."""
    import statespan.models

    options = dict(recipe.model)
    with _naming("model"):
        statespan.models.check(options.pop("name"), options, values=values)


def check_train(recipe: Recipe) -> None:
    """Reject registered parts of the training settings that cannot be imported, and options they do not have."""
    with _naming("train"):
        check_parts(recipe.train)


def check_data(recipe: Recipe) -> None:
    """Reject an unknown dataset, options it does not have, or values of another type."""
    from statespan.data.registry import check_options, entry

    options = dict(recipe.data)
    with _naming("data"):
        check_options(entry(options.pop("name")), options)


def build_model(recipe: Recipe, dataset: Dataset, model: Model = None) -> nn.Module:
    """The model of a recipe with initial weights drawn from the seed, or the given model."""
    if isinstance(model, nn.Module):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.train.seed, "weights"))
        if model is not None:
            return model(dataset.info)
        import statespan.models

        options = dict(recipe.model)
        with _naming("model"):
            return statespan.models.build(options.pop("name"), dataset.info, options)


def _task(recipe: Recipe, dataset: Dataset) -> Task:
    """The task of a dataset, with the metrics of a recipe."""
    with _naming("train"):
        return with_metrics(task_of(dataset), recipe.train.metrics, dataset.info.d_output)


@contextlib.contextmanager
def _naming(section: str) -> Iterator[None]:
    """Turn what the library rejects into one line that names the section of the recipe."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {' '.join(str(error).split())}") from error
