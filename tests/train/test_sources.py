"""Nothing in the library can turn data into code."""

import ast
from pathlib import Path

import pytest

import statespan

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "torch.load", "torch.save", "__import__"}
CALLS |= {
    f"yaml.{name}" for name in ("load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all")
}

READER = "models/reference/_files.py"
"""The only module that may read a pickled file, as SECURITY.md says."""


def loads_weights_only(node):
    """Whether a call is one of torch.load that cannot run code."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"):
        return False
    options = {k.arg: ast.unparse(k.value) for k in node.keywords}
    return len(node.args) == 1 and options == {"map_location": "'cpu'", "weights_only": "True"}


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


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        ('torch.load(file, map_location="cpu", weights_only=True)', True),
        ("torch.load(file, weights_only=True)", False),
        ('torch.load(file, map_location="cpu", weights_only=False)', False),
        ('torch.load(file, map_location="cpu", weights_only=flag)', False),
        ('torch.load(file, map_location="cpu", weights_only=True, pickle_module=p)', False),
        ('torch.load(file, map_location="cpu", weights_only=True, **more)', False),
        ("torch.load(file, pickle)", False),
    ],
)
def test_the_one_exception_is_narrow(call, allowed):
    assert loads_weights_only(ast.parse(call, mode="eval").body) is allowed


def test_no_pickle_and_no_evaluation_of_text():
    root = Path(statespan.__file__).parent
    files = sorted(root.glob("**/*.py"))
    assert len(files) > 50
    exceptions = 0
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if path == root / READER and loads_weights_only(node):
                exceptions += 1
            else:
                assert not unsafe(node), f"{path.name}:{node.lineno} {unsafe(node)}"
    assert exceptions == 1
