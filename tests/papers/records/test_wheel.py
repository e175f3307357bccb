"""A wheel carries the models and our numbers."""

import json
import runpy
from pathlib import Path

import pytest

import statespan
from statespan.models import find
from statespan.papers import recipes as paper_recipes
from statespan.papers.records import ours
from tests.cli.make import invoke

ROOT = Path(__file__).parents[3]


def test_models_are_found_in_an_installed_package(tmp_path, monkeypatch):
    setuptools = pytest.importorskip("setuptools")
    from setuptools.command.build_py import build_py

    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.setattr(build_py, "run", lambda self: None)  # the package itself, which is not looked at here
    command = given["cmdclass"]["build_py"](setuptools.Distribution({"name": "statespan"}))
    command.build_lib, command.editable_mode = str(tmp_path), False
    command.run()
    built = {path.relative_to(tmp_path / "statespan/_models") for path in tmp_path.rglob("*") if path.is_file()}
    assert built == {path.relative_to(ROOT / "models") for path in ROOT.glob("models/*/*")}
    known = find.names()
    assert known
    monkeypatch.setattr(find, "_PACKAGE", tmp_path / "statespan")
    assert find.names() == known
    assert find.find("digits-s4d") == tmp_path / "statespan/_models/digits-s4d"
    assert statespan.load("digits-s4d").config.d_output == 10


def test_our_numbers_are_in_the_package_and_up_to_date():
    """``python -m statespan.papers.records.ours`` writes them; ``statespan publish`` does too."""
    setuptools = pytest.importorskip("setuptools")
    from setuptools.config.pyprojecttoml import apply_configuration

    package = apply_configuration(setuptools.Distribution(), ROOT / "pyproject.toml")
    assert "papers/recipes/ours.json" in package.package_data["statespan"]
    assert paper_recipes.OURS.read_text(encoding="utf-8") == ours.content(ROOT)
    assert paper_recipes.ours()["ablation-scifar-s4-legs"] == "77.14 ± 0.25 (2) *"


def test_publish_writes_our_numbers_anew(tmp_path):
    (tmp_path / "src/statespan/papers/recipes").mkdir(parents=True)
    for name in ("results/tasks", "docs"):
        (tmp_path / name).mkdir(parents=True)
    record = "results/tasks/digits-s4d-seed0.json"
    (tmp_path / record).write_bytes((ROOT / record).read_bytes())
    (tmp_path / "docs/reproduce.md").write_text("<!-- recipes: coverage -->\nold\n<!-- end -->\n")
    done = invoke("publish", "--results", tmp_path / "results", "--models", tmp_path / "models")
    assert done.exit_code == 0, done.stderr
    assert json.loads((tmp_path / "src/statespan/papers/recipes/ours.json").read_text()) == {"digits-s4d": "98.61 §"}
    assert "| S4D Table 3b | 42 | 28 |" in (tmp_path / "docs/reproduce.md").read_text()
    assert f"tables   {tmp_path / 'docs/reproduce.md'}" in done.stdout.splitlines()
