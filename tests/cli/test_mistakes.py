"""Mistakes: one line on stderr, exit code 2, nothing written."""

import os
import sys

import pytest
import torch

from statespan import load
from statespan.models import find
from statespan.train.device import pick_device
from tests.cli.make import invoke, one_line

DIGITS = ["train", "digits-s4d", "--folder", "{folder}/runs"]
MISTAKES = {
    "no recipe": (["train"], "name a recipe first"),
    "only a change": (["train", "train.lr=1"], "name a recipe first"),
    "unknown recipe": (["train", "digits-s4e"], "did you mean digits-s4d? Otherwise see statespan recipes"),
    "a path for a recipe": (["train", "../digits-s4d"], "but ../digits-s4d does not exist"),
    "change without =": ([*DIGITS, "epochs"], "must be key=value, such as train.lr=0.001, got 'epochs'"),
    "unknown key": (
        [*DIGITS, "train.epoch=3"],
        "train.epoch is not a key of train (value 3); did you mean train.epochs?",
    ),
    "unknown section": ([*DIGITS, "trian.lr=3"], "did you mean train?"),
    "bad value": ([*DIGITS, "train.lr=-1"], "train.lr is -1; allowed: a number > 0"),
    "bad choice": ([*DIGITS, "train.schedule=cosin"], "did you mean cosine?"),
    "bad YAML in a change": ([*DIGITS, "train.betas=[0.9"], "not readable YAML"),
    "unknown dataset": ([*DIGITS, "data.name=digts"], "did you mean digits?"),
    "unknown option of data": ([*DIGITS, "data.subsampel=2"], "did you mean subsample?"),
    "bad option of data": ([*DIGITS, "data.subsample=0"], "subsample must be an integer >= 1, got 0"),
    "type of an option": ([*DIGITS, "data.subsample=two"], "must be int, got str 'two'"),
    "unknown model": ([*DIGITS, "model.name=clasifier"], "did you mean classifier?"),
    "model for other data": ([*DIGITS, "model.name=regressor"], "model 'regressor' is for regression"),
    "unknown layer": ([*DIGITS, "model.layer=s6"], "layer must be one of"),
    "unknown option of the SSM": ([*DIGITS, "model.ssm.dtmin=1"], "did you mean dt_min?"),
    "model before data": (
        ["train", "smnist-s4d", "--data", "{folder}", "model.d_modle=8"],
        "model: options has no 'd_modle'; did you mean d_model?",
    ),
    "file not there": (["train", "{folder}/no.yaml"], "No such file"),
    "file that is no YAML": (["train", "{folder}/bad.yaml"], "not readable YAML"),
    "file with another ending": (["train", "{folder}/file"], "a file that ends in .yaml"),
    "folder without a run": (["train", "{folder}"], "is a folder without a run"),
    "nothing to resume": ([*DIGITS, "--resume"], "there is no run of digits-s4d in"),
    "folder is a file": (["train", "digits-s4d", "--folder", "{folder}/file"], "--folder must be a folder"),
    "bad device": ([*DIGITS, "--device", "tpu"], "device is tpu; allowed here: cpu"),
    "missing data": (["train", "smnist-s4d", "--data", "{folder}"], "what to put there: statespan data smnist"),
    "own data not there": (
        [*DIGITS, "data={{name: own, path: {folder}/none}}"],
        "path must be an existing folder, .csv",
    ),
    "option that is none": ([*DIGITS, "--resum"], "--resume"),
    "eval: no run": (["eval"], "RUN"),
    "eval: not there": (["eval", "{folder}/runs/x"], "is not there; make one with: statespan train"),
    "eval: no run in it": (["eval", "{folder}"], "a folder without a run"),
    "eval: split": (["eval", "{folder}", "--split", "tset"], "did you mean test?"),
    "eval: dt_scale 0": (["eval", "{folder}", "--dt-scale", "0"], "--dt-scale must be a number > 0"),
    "eval: dt_scale nan": (["eval", "{folder}", "--dt-scale", "nan"], "--dt-scale must be a number > 0"),
    "eval: dt_scale no number": (["eval", "{folder}", "--dt-scale", "half"], "'half'"),
    "eval: a misspelt model": (["eval", "digits-s4"], "is not there; did you mean digits-s4d"),
    "generate: a recipe": (
        ["generate", "wikitext2-s4"],
        "but wikitext2-s4 is not there; train this recipe first: statespan train wikitext2-s4\n",
    ),
    "generate: neither text nor images": (["generate", "digits-s4d"], "but digits-s4d holds a classifier; "),
    "stream: not there": (
        ["stream", "runs/own"],
        "but runs/own is not there; make one with: statespan train digits-s4d, or name one of the "
        f"{len(find.names())} published models, which statespan models lists\n",
    ),
    "ablate: seeds no number": (["ablate", "digits-s4d", "--seeds", "x"], "'x'"),
    "predict: no files": (["predict", "{folder}"], "FILES"),
    "predict: no run": (["predict", "{folder}", "{folder}/file"], "RUN must be the folder of a run"),
    "forecast: a folder without a forecaster": (
        ["forecast", "data.csv", "--model", "{folder}"],
        "--model must be the folder of a forecaster that --save wrote, got ",
    ),
    "stream: state in no folder": (["stream", "digits-s4d", "--state", "no/state"], "--state must be a file in an"),
    "train: a mistyped run": (["train", "runs/x", "--resume"], "but runs/x does not exist"),
    "recipes: none": (["recipes", "smnits"], "did you mean"),
    "recipes: a misspelt task": (["recipes", "lsitops"], "did you mean listops?"),
    "recipes: no name": (["recipes", "--yaml"], "--yaml needs the name of a recipe"),
    "recipes: part of a name": (["recipes", "digits", "--yaml"], "did you mean digits-s4d?"),
    "data: none": (["data", "smnits"], "did you mean smnist?"),
    "data: get what": (["data", "--get"], "--get needs the name of a dataset"),
    "data: check what": (["data", "--check"], "--check needs the name of a dataset"),
    "data: offline": (["data", "smnist", "--get", "--data", "{folder}"], "STATESPAN_OFFLINE"),
    "unknown command": (["trian"], "'train'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.yaml").write_text("name: [x")
    arguments, said = MISTAKES[name]
    done = invoke(*(word.format(folder=tmp_path) for word in arguments))
    assert said in one_line(done)
    assert done.stdout == ""
    assert not list(tmp_path.glob("runs/**/*"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_device_that_is_not_there(tmp_path):
    done = invoke("train", "digits-s4d", "--folder", tmp_path, "--device", "cuda")
    assert "; allowed here: cpu" in one_line(done)


@pytest.mark.parametrize(
    ("built", "reason"), [(None, "torch was built without CUDA"), ("12.9", "there is no CUDA device here")]
)
def test_the_reason_why_there_is_no_gpu(built, reason, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for call in (pick_device, lambda device: load("digits-s4d", device=device)):
        with pytest.raises(ValueError, match=f"^device is cuda:1, but {reason}; allowed here: cpu$"):
            call("cuda:1")
    with pytest.raises(ValueError, match=r"^device is mps, but torch was built without MPS; allowed here: cpu$"):
        pick_device("mps")


def test_a_gpu_too_many(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(
        ValueError, match=r"^device is cuda:1, but there are 1 CUDA devices here; allowed here: cpu, cuda"
    ):
        pick_device("cuda:1")


@pytest.mark.parametrize(("module", "package"), [("lightning", "lightning"), ("yaml", "pyyaml")])
def test_missing_packages_are_named(module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    done = invoke("train", "digits-s4d")
    assert one_line(done) == f'statespan: this command needs {package}: pip install "statespan[train,data]"\n'


def test_a_package_that_a_dataset_needs_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    done = invoke("train", "digits-s4d", "--folder", tmp_path)
    assert one_line(done) == 'statespan: the dataset digits needs scikit-learn: pip install "statespan[data]"\n'


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    assert "--folder must be a folder that can be written to" in one_line(
        invoke("train", "digits-s4d", "--folder", tmp_path)
    )
