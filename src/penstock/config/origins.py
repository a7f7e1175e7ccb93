"""Which settings are in use, and where each of them comes from; without secrets."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr

from penstock.config.files import Found, named_file, of_file, of_project, user_file
from penstock.config.masking import MASK, masked_url
from penstock.config.settings import PREFIX, Settings, known_keys, load_settings

URLS = ("url", "tier", "offsets")


class Setting(NamedTuple):
    """A setting, for people to look at."""

    name: str
    value: object
    """What is shown: secrets are masked."""
    origin: str
    """command line, environment, a file, or default."""


def settings_in_use(file: Path | str | None = None, **given: Any) -> list[Setting]:
    """Every setting with its origin. Secrets are masked, also those inside URLs."""
    settings = load_settings(file, **given)
    project = of_project() if file is None else named_file(Path(file))
    files = [one for one in (project, of_file(user_file())) if one.place]
    return [
        Setting(".".join(path), _shown(path, _value(settings, path)), _origin(path, given, files))
        for path in _paths()
    ]


def unknown_variables() -> list[str]:
    """Variables of the environment that look like settings and are none."""
    known = {PREFIX + "_".join(path).upper() for path in _paths()}
    return sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX)
        and name.upper() not in known | OTHERS
        and not _is_of_others(name.upper().removeprefix(PREFIX).lower())
    )


OTHERS = frozenset(PREFIX + name for name in ("CACHE", "DEBUG", "SEED", "SPEEDUPS"))
"""Variables of one word that are no settings; docs/configuration.md says what they do."""
CLOSE = 0.8
"""From which likeness on a word is a setting's, misspelled: "dashbord" is, "redis" is not "disk"."""


def _is_of_others(name: str) -> bool:
    """Transports, also those of other packages, have variables that begin with their own names."""
    first, more, _ = name.partition("_")
    ours = {part.partition("_")[0] for path in _paths() for part in path}
    return bool(more) and not difflib.get_close_matches(first, ours, 1, CLOSE)


def _paths() -> Iterator[tuple[str, ...]]:
    for name, inner in known_keys().items():
        yield from ((name, one) for one in inner) if inner else [(name,)]


def _value(settings: Settings, path: tuple[str, ...]) -> object:
    found: object = settings
    for name in path:
        found = getattr(found, name)
    return found


def _shown(path: tuple[str, ...], value: object) -> object:
    if isinstance(value, SecretStr):
        return MASK
    return masked_url(value) if path[0] in URLS and isinstance(value, str) else value


def _origin(path: tuple[str, ...], given: Mapping[str, Any], files: list[Found]) -> str:
    if given.get(path[0]) is not None:
        return "command line"
    variable = PREFIX + "_".join(path).upper()
    if any(name.upper() == variable for name in os.environ):
        return f"environment, {variable}"
    for found in files:
        if _has(found.values, path):
            return found.place
    return "default"


def _has(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    first, *rest = path
    if first not in values:
        return False
    return not rest or _has(values[first], tuple(rest))
