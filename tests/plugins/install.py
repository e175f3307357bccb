"""Packages that are installed for the length of a test: modules and a dist-info folder, without pip."""

import shutil
from pathlib import Path

from statespan import _plugins

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


def forget():
    """Forget which packages there are, and what was imported of them."""
    for cached in (_plugins.offers, _plugins._load, _plugins.modules):
        cached.cache_clear()


def install(folder, package, entries, *, modules=(), version="0.1", **sources):
    """Put a package into a folder that is on the path.

    Args:
        folder: The folder.
        package: The name of the package.
        entries: Its entry points, {group without "statespan.": {name: target}}.
        modules: Example modules that it consists of.
        version: Its version.
        **sources: The text of further modules by their names.
    """
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    sections = [
        f"[statespan.{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
        for group, named in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    for module in modules:
        shutil.copy(EXAMPLES / f"{module}.py", folder)
    for module, text in sources.items():
        (folder / f"{module}.py").write_text(text)
    forget()


def install_examples(folder):
    """The packages in examples/plugins, with the entry points that their docstrings show."""
    for module in sorted(path.stem for path in EXAMPLES.glob("*.py")):
        lines = (EXAMPLES / f"{module}.py").read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("    [project.entry-points."))
        group = lines[start].split('"')[1].removeprefix("statespan.")
        name, target = lines[start + 1].strip().replace('"', "").split(" = ")
        install(folder, module.replace("_", "-"), {group: {name: target}}, modules=[module])
