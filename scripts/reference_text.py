"""Docstrings as Markdown for the reference: mkdocs.yml names this file as an extension of griffe.

Docstrings name other objects as ``:class:`Name```, and begin blocks of code with two colons. Markdown
knows neither: the first becomes a name in code, the second a plain colon. Methods that Python calls by
itself are left out: the text of their class says what they do.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")
ALONE = re.compile(r"^[ \t]*::[ \t]*$", re.MULTILINE)
BEHIND_TEXT = re.compile(r"(?<=\S)::[ \t]*$", re.MULTILINE)


def as_markdown(text: str) -> str:
    """The docstring in Markdown."""
    return BEHIND_TEXT.sub(":", ALONE.sub("", ROLE.sub(r"`\1`", text)))


class ReferenceText(griffe.Extension):
    """Changes every docstring once all of them are read."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        for name in [one for one in cls.members if one.startswith("__") and one != "__init__"]:
            del cls.members[name]

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        if "class-attribute" not in attr.labels and "instance-attribute" in attr.labels:
            attr.value = None  # how the constructor came by it is nobody's business

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
