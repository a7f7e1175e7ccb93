"""Settings of topics as words: ``fsync=timed``, ``retention.age_ms_max=3600000``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock import errors

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}


def topic_options(words: Sequence[str], *, nested: bool) -> dict[str, Any]:
    """The options that the words mean; those of a log may be inside ``retention``."""
    found: dict[str, Any] = {}
    for word in words:
        name, equal, text = word.partition("=")
        if not equal or not name:
            raise errors.InvalidOption(f"{word!r} is no setting: write NAME=VALUE", option="set")
        found[name] = _value(text)
    return _nested(found) if nested else found


def _nested(found: dict[str, Any]) -> dict[str, Any]:
    from penstock import Codec, Retention

    inner = {
        name.removeprefix("retention."): found.pop(name)
        for name in list(found)
        if name.startswith("retention.")
    }
    known = Retention.__struct_fields__
    for name in inner:
        if name not in known:
            raise errors.InvalidOption(
                f"there is no retention.{name}; there are "
                f"{', '.join(f'retention.{one}' for one in known)}",
                option="set",
            )
    if inner:
        found["retention"] = Retention(**inner)
    if isinstance(found.get("codec"), str):
        found["codec"] = _codec(found["codec"], Codec)
    return found


def _codec(text: str, kind: Any) -> Any:
    for one in kind:
        if text.upper() == one.name:
            return one
    known = ", ".join(one.name.lower() for one in kind)
    raise errors.InvalidOption(f"there is no codec {text!r}: use {known}", option="codec")


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text
