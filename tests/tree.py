"""The map of the package in CONTRIBUTING.md, generated from the tree: ``python -m tests.tree`` writes it.

Each folder shows the first sentence of its ``__init__.py``, and below it its modules.
"""

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "statespan"
PAGE = ROOT / "CONTRIBUTING.md"
PLACE = re.compile(r"(<!-- map: python -m tests\.tree -->\n\n).*?(\n<!-- end -->)", re.S)
WIDTH = 119


def summary(module):
    """The first paragraph of a module's docstring as plain text."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    plain = re.sub(r":\w+:`([^`]*)`", r"\1", text.partition("\n\n")[0]).replace("``", "")
    return " ".join(plain.split())


def lines(folder=PACKAGE, name="src/statespan", depth=0):
    """The map of a package and its subpackages."""
    indent = "    " + "  " * depth
    inner = indent + "      "
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    rows = textwrap.wrap(f"{indent}{name}/  {summary(folder / '__init__.py')}", WIDTH, subsequent_indent=inner)
    rows += textwrap.wrap(", ".join(modules), WIDTH, initial_indent=inner, subsequent_indent=inner)
    for child in sorted(path.parent for path in folder.glob("*/__init__.py")):
        rows += lines(child, child.name, depth + 1)
    return rows


def filled(text):
    """The page with an updated map."""
    return PLACE.sub(lambda match: match[1] + "\n".join(lines()) + "\n" + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
