"""Nothing in the library can turn data into code."""

import ast
from pathlib import Path

import statespan

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "torch.load", "torch.save", "__import__"}
CALLS |= {
    f"yaml.{name}" for name in ("load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all")
}


def unsafe(node):
    """Names of what a node of a syntax tree uses that it must not."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name.partition(".")[0] in MODULES]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        whole = [module] if module.partition(".")[0] in MODULES else []
        return whole + [a.name for a in node.names if f"{module}.{a.name}" in CALLS]
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in CALLS or called.endswith(".read_pickle"):
            return [called]
        allowing = [k for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"]
        return [f"{called}(allow_pickle)" for _ in allowing]
    return []


def test_the_search_finds_what_it_looks_for():
    text = """
import pickle
from marshal import loads
from torch import load
eval("1"); exec("1"); torch.load(f); yaml.load(f, Loader=x); np.load(f, allow_pickle=True); __import__("os")
np.load(f, allow_pickle=False); model.eval(); json.load(f); yaml.safe_load(f)
"""
    assert sum(len(unsafe(node)) for node in ast.walk(ast.parse(text))) == 9


def test_no_pickle_and_no_evaluation_of_text():
    files = sorted(Path(statespan.__file__).parent.glob("**/*.py"))
    assert len(files) > 50
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not unsafe(node), f"{path.name}:{node.lineno} {unsafe(node)}"
