"""What topics, groups, buses and sessions may be called.

A name becomes a part of a path, a key on a broker, a label of a metric and a word on a page. What all
of these can hold without escaping is allowed, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeGuard

from penstock.errors import InvalidName

NAME_LENGTH_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def is_name(name: object) -> TypeGuard[str]:
    """Whether a topic, a group or a bus may be called so."""
    return isinstance(name, str) and len(name) <= NAME_LENGTH_MAX and bool(_NAME.fullmatch(name))


def check_name(kind: str, name: object) -> str:
    """The name itself, or InvalidName with what is allowed."""
    if is_name(name):
        return name
    raise InvalidName(
        f"{str(name)[:80]!r} is not a {kind} name: use 1 to {NAME_LENGTH_MAX} letters, digits, "
        "'.', '_' and '-', starting with a letter, digit or '_'",
        kind=kind,
        name=name,
    )


def check_label(kind: str, name: object) -> str:
    """The same for a name that is never part of a path: any letters, but nothing that cannot be seen."""
    if isinstance(name, str) and 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable():
        return name
    raise InvalidName(
        f"{str(name)[:80]!r} is not a {kind} name: use 1 to {NAME_LENGTH_MAX} characters that can be "
        "printed",
        kind=kind,
        name=name,
    )


def check_case(kind: str, name: str, others: Iterable[str]) -> None:
    """Two names that differ only by case would be one folder on some file systems: InvalidName."""
    folded = name.casefold()
    names = list(others)
    # All at once, as a topic may have a thousand subscribers. No name has a new line in it.
    lines = "\n".join(names)
    if f"\n{folded}\n" not in f"\n{lines}\n".casefold():
        return
    for other in names:
        if other.casefold() == folded and other != name:
            raise InvalidName(
                f"{kind} {name!r} differs from {other!r} only by case: pick another name",
                kind=kind,
                name=name,
            )
