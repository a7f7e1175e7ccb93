"""Native options: passed through as they are, refused when the transport does not know them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sized

from penstock.errors import InvalidOption


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
