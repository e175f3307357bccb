"""Docstrings as the site shows them: cross-references as links, examples as code, shared arguments filled in."""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from typing import Any

from griffe import Class, Extension, Object

from website import api

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|obj):`(~?)([^`]+)`")
EXAMPLE = re.compile(r"^( *)>>> .*\n(?:\1(?:>>>|\.\.\.|\S).*\n?)*", re.MULTILINE)


@cache
def shown() -> dict[str, str]:
    """Each name that the reference shows, by its last part; names that occur twice are left out."""
    by_name: dict[str, str] = {}
    for group in api.GROUPS:
        for name in api.names(group):
            last = name.rpartition(".")[2]
            by_name[last] = "" if last in by_name else name
    return by_name


def link(match: re.Match[str]) -> str:
    """A reference of Sphinx as one of mkdocstrings, or as code where its target is on no page."""
    name = match[2].rpartition(".")[2] if match[1] else match[2]
    last = match[2].rpartition(".")[2]
    target = shown().get(last, "")
    return f"[`{name}`][{target}]" if target else f"`{name}`"


def fenced(text: str) -> str:
    """Examples outside of a section of their own, as code blocks."""
    sections = re.split(r"(?m)^(?=Examples?:$)", text)
    for index, section in enumerate(sections):
        if not section.startswith("Example"):
            sections[index] = EXAMPLE.sub(
                lambda match: f"{match[1]}```pycon\n{match[0].rstrip()}\n{match[1]}```\n", section
            )
    return "".join(sections)


class Docstrings(Extension):
    """Rewrites every docstring of the package."""

    def on_class_instance(self, *, cls: Class, **_: Any) -> None:
        """Fill in the arguments that layers share, which only the imported class has."""
        if cls.docstring and "{shared}" in cls.docstring.value:
            loaded = getattr(import_module(cls.module.path), cls.name)
            cls.docstring.value = inspect.cleandoc(loaded.__doc__)

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite references and examples."""
        if obj.docstring:
            text = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            obj.docstring.value = fenced(ROLE.sub(link, text))
