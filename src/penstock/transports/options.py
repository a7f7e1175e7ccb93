"""Native options: passed through as they are, refused when the transport does not know them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sized
from typing import Any

from penstock.errors import InvalidOption

_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_USE = {int: "a whole number", float: "a number", bool: "true or false"}


def check_options(what: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise InvalidOption for an option that is not known; it names the right ones."""
    names = sorted(known)
    for option in given:
        if option not in names:
            raise InvalidOption(
                f"{what} has no option {option!r}{_hint(option, names)}; it takes "
                f"{', '.join(names) or 'none'}",
                option=option,
                known=tuple(names),
            )


def check_value(value: object, option: str, good: bool, use: str) -> None:
    """Raise InvalidOption unless it is good; it says what to use."""
    if not good:
        raise InvalidOption(f"{option} is {value!r}: use {use}", option=option)


def from_text(option: str, text: str, kind: type) -> Any:
    """What a URL says, as the option has it; InvalidOption for what it is not, or cannot be said in text."""
    if kind not in (str, int, float, bool):
        raise InvalidOption(f"{option} cannot stand in a URL: give it as an option", option=option)
    try:
        return _WORDS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise InvalidOption(f"{option} is {text!r}: use {_USE[kind]}", option=option) from None


def check_columns(values: Sized, **columns: Sized | None) -> None:
    """Raise InvalidOption unless the columns of what is produced have one row for each value."""
    for name, column in columns.items():
        if column is not None and len(column) != len(values):
            raise InvalidOption(
                f"{len(column)} {name} for {len(values)} values: give one for each", option=name
            )


def _hint(option: str, names: list[str]) -> str:
    close = difflib.get_close_matches(option, names, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
