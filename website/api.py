"""The pages of the API reference: one for each group of the public interface, made from the docstrings."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from website.paths import ROOT

PACKAGE = ROOT / "src" / "statespan"


@dataclass(frozen=True)
class Group:
    """A page of the reference.

    Args:
        title: Its title and, in lower case, its file.
        module: The module below statespan whose ``__all__`` it shows; "" for statespan itself.
        guide: The page of the documentation that explains these names.
        modules: Modules whose public functions and classes it shows as well.
        elsewhere: Names of ``__all__`` that other pages show.
    """

    title: str
    module: str
    guide: str
    modules: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The page's path on the site."""
        return f"api/{self.title.lower().replace(' ', '-')}.md"

    @property
    def path(self) -> str:
        """The full name of the module."""
        return f"statespan.{self.module}".rstrip(".")


GROUPS = (
    Group("Package", "", "layers.md"),
    Group("Layers", "nn", "layers.md", ("nn.irregular",)),
    Group("Operations", "ops", "engine.md"),
    Group("State spaces", "ssm", "mathematics.md", ("ssm.hippo", "ssm.inits", "ssm.irregular"), ("hippo", "inits")),
    Group("Models", "models", "training.md", ("models.irregular", "models.hub")),
    Group("Data", "data", "data.md"),
    Group("Training", "train", "training.md"),
    Group("Estimators", "estimators", "timeseries.md", elsewhere=("LoadError",)),
    Group("Generation", "generation", "generation.md"),
    Group("Export", "export", "generation.md"),
    Group("Plots", "plot", "gallery.md"),
    Group("View", "view", "view.md"),
)


def constant(module: str, name: str) -> Any:
    """The value of a name that a package below statespan defines as a literal."""
    source = PACKAGE.joinpath(*module.split("."), "__init__.py") if module else PACKAGE / "__init__.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
            return ast.literal_eval(node.value)
    raise ValueError(f"{source} has no {name}")


def names(group: Group) -> list[str]:
    """The names that a group's page shows, in full."""
    own = [name for name in constant(group.module, "__all__") if name not in group.elsewhere]
    if not group.module:
        homes = constant("", "_HOMES")
        modules = {group.module for group in GROUPS}
        own = [name for home in sorted(homes.keys() - modules) for name in homes[home]]
    return [f"{group.path}.{name}" for name in own]


def page(group: Group) -> str:
    """The Markdown of a group's page."""
    heading = (ROOT / "docs" / group.guide).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    guide = f"Explained in [{heading}](../{group.guide})."
    shown = [f"::: {name}\n" for name in names(group)]
    shown += [f"::: statespan.{module}\n    options:\n      members: true\n" for module in group.modules]
    return "\n".join([f"# {group.title}\n", f"`{group.path}`: {summary(group.module)} {guide}\n", *shown])


def summary(module: str) -> str:
    """The first paragraph of a package's docstring, in one line."""
    folder = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join(text.partition("\n\n")[0].split()))


def workshop() -> str:
    """The page of statespan.papers, which is private: what is there, and where it is explained."""
    rows = [
        f"| `statespan.papers.{folder.parent.name}` | {summary(f'papers.{folder.parent.name}')} |"
        for folder in sorted((PACKAGE / "papers").glob("*/__init__.py"))
    ]
    return "\n".join(
        [
            "# Papers' workshop\n",
            f"`statespan.papers`: {summary('papers')} It is private: its names may change in any release. Its commands "
            "are public: see [Ablations and the papers' tables](../reproduce.md) and [Data](../data.md).\n",
            "| package | what it holds |",
            "|---|---|",
            *rows,
            "",
        ]
    )
