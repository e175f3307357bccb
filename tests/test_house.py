"""The rules of CONTRIBUTING.md that a machine can check: sizes, signatures, names, and references in docstrings."""

import ast
import importlib
import re
from collections import Counter

import pytest

from tests.tree import PACKAGE

FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
KERNELS = "_triton"  # their arguments are those of the device, in its order
FUNCTIONS = [
    (name, node)
    for name, tree in TREES.items()
    if KERNELS not in name
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]


def test_files_have_at_most_400_lines():
    assert [path.name for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


def test_functions_have_at_most_60_lines():
    assert [(name, node.name) for name, node in FUNCTIONS if node.end_lineno - node.lineno >= 60] == []


def test_signatures_have_at_most_four_positional_parameters():
    def positional(node):
        names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        return [name for name in names if name not in ("self", "cls")]

    # torch calls backward with one argument for each output
    long = [
        (name, node.name) for name, node in FUNCTIONS if len(positional(node)) > 4 and "ctx" not in positional(node)
    ]
    assert long == []


def test_a_class_name_means_one_thing():
    names = Counter(node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("name", TREES)
def test_references_in_docstrings_resolve(name):
    for target in re.findall(r":\w+:`~?(statespan[\w.]*)`", (PACKAGE / name).read_text(encoding="utf-8")):
        parts = target.split(".")
        for count in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:count]))
                break
            except ModuleNotFoundError:
                continue
        for attribute in parts[count:]:
            assert hasattr(found, attribute) or attribute in getattr(found, "__annotations__", {}), target
            found = getattr(found, attribute, None)


def test_public_classes_show_an_example():
    """``help`` of every public class shows how to make one and what to do with it.

    A class is public if its name and its module have no leading underscore, or if an ``__all__`` has its name. So the
    classes of kernels (``_triton``) and of private modules need no example. There are no other exceptions: an example
    of a record shows who makes it, or what its fields are for.
    """
    exported = {
        name
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }

    def is_public(path, name):
        return name in exported or not re.search(r"(^|/)_(?!_init__)", f"{path}/{name}")

    public = [
        (path, node)
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and is_public(path, node.name)
    ]
    assert {"S4", "Structure", "CheckpointError", "Stream"} <= {node.name for _, node in public}
    assert [f"{path}: {node.name}" for path, node in public if ">>> " not in (ast.get_docstring(node) or "")] == []
