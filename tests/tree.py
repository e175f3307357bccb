"""The map of the package in CONTRIBUTING.md, made from the tree: ``python -m tests.tree`` writes it.

A line for each folder says what its ``__init__.py`` says first; below it are its modules.
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
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    plain = re.sub(r":\w+:`([^`]*)`", r"\1", text.partition("\n\n")[0]).replace("``", "")
    return " ".join(plain.split())


def lines(package=PACKAGE, name="src/statespan", depth=0):
    """The map of a package and of what is below it."""
    inner = "    " + "  " * (depth + 1)
    below = inner + "    "
    modules = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")
    head = f"{inner[2:]}{name}/"
    found = textwrap.wrap(f"{head}  {summary(package / '__init__.py')}", WIDTH, subsequent_indent=below)
    if modules:
        found += textwrap.wrap(
            ", ".join(modules), WIDTH, initial_indent=inner + "    ", subsequent_indent=inner + "    "
        )
    for folder in sorted(path for path in package.iterdir() if (path / "__init__.py").is_file()):
        found += lines(folder, folder.name, depth + 1)
    return found


def filled(text):
    """The page with the map made anew."""
    return PLACE.sub(lambda match: match[1] + "\n".join(lines()) + "\n" + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
