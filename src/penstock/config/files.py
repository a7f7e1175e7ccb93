"""The files that settings come from, read and checked: a wrong key is an error that names the right ones."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import InvalidOption

PROJECT_FILE = "penstock.toml"
PYPROJECT = "pyproject.toml"
FILE_BYTES_MAX = 1024 * 1024


class Found(NamedTuple):
    """What a file says, and where it stands; without a place there is none."""

    place: str
    values: Mapping[str, Any]


NOTHING = Found("", {})


def user_file() -> Path:
    """The file of the user, also when there is none."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "penstock" / "config.toml"


def of_project(folder: Path | None = None) -> Found:
    """``penstock.toml`` of the folder, or the table ``[tool.penstock]`` of its ``pyproject.toml``."""
    folder = Path() if folder is None else folder
    found = of_file(folder / PROJECT_FILE)
    if found.place:
        return found
    pyproject = folder / PYPROJECT
    document = _read(pyproject)
    table = document.get("tool", {}).get("penstock") if document else None
    if table is None:
        return NOTHING
    if not isinstance(table, dict):
        raise InvalidOption(f"{pyproject}: [tool.penstock] is no table", option="tool.penstock")
    return Found(f"{pyproject} [tool.penstock]", table)


def of_file(path: Path) -> Found:
    """What a file says; nothing when it is not there."""
    document = _read(path)
    return NOTHING if document is None else Found(str(path), document)


def named_file(path: Path) -> Found:
    """A file that somebody named has to be there."""
    found = of_file(path)
    if not found.place:
        raise InvalidOption(f"there is no file {path}", option="config")
    return found


def check_keys(found: Found, known: Mapping[str, Iterable[str]]) -> None:
    """InvalidOption for a key that no setting has; ``known`` has the keys of each table."""
    for key, value in found.values.items():
        if key not in known:
            raise _unknown(found.place, "", key, known)
        inner = list(known[key])
        if inner and not isinstance(value, dict):
            raise InvalidOption(
                f"{found.place}: {key} is a table: write [{key}], and below it {', '.join(inner)}",
                option=key,
            )
        if not inner and isinstance(value, dict):
            raise InvalidOption(f"{found.place}: {key} is a value and no table", option=key)
        for one in value if inner else ():
            if one not in inner:
                raise _unknown(found.place, f"{key}.", one, inner)


def _unknown(place: str, table: str, key: str, known: Iterable[str]) -> InvalidOption:
    names = sorted(known)
    close = difflib.get_close_matches(key, names, 1)
    hint = f" (did you mean {table}{close[0]}?)" if close else ""
    return InvalidOption(
        f"{place}: there is no setting {table}{key}{hint}; there are "
        f"{', '.join(table + one for one in names)}",
        option=table + key,
        known=tuple(table + one for one in names),
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as cause:
        raise InvalidOption(
            f"{path} cannot be read: {cause.strerror}", option="config", file=str(path)
        ) from cause
    if len(data) > FILE_BYTES_MAX:
        raise InvalidOption(f"{path} has more than {FILE_BYTES_MAX} bytes", option="config")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeError, RecursionError) as cause:
        raise InvalidOption(
            f"{path} is no TOML: {cause}", option="config", file=str(path)
        ) from cause
