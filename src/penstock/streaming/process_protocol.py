"""What a program and the processes that work for it say to each other: JSON, a line each.

To the process: one ``WorkerSpec``, then ``stop`` when it is to end; the end of its input means the
same. From the process: a ``Beat`` every second.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import InvalidOption
from penstock.streaming.run_values import HEARTBEAT_SECONDS, MemberFigures, RunOptions

STOP = b"stop\n"
LINE_BYTES_MAX = 16 * 1024 * 1024


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do."""

    url: str
    transport_options: dict[str, Any]
    topic: str
    group: str
    handler: str
    """``package.module:function``."""
    run: RunOptions
    path: list[str]
    """Where the program looks for modules."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life."""

    figures: MemberFigures
    restarts: int = 0


def handler_name(handler: str | Callable[..., Any]) -> str:
    """The name by which another process finds a handler; InvalidOption when it cannot."""
    if isinstance(handler, str):
        name = handler if ":" in handler else ":".join(handler.rsplit(".", 1))
    else:
        name = f"{handler.__module__}:{handler.__qualname__}"
    if name.startswith("__main__:") or "<" in name:
        raise InvalidOption(
            f"a process cannot import the handler {name!r}: define it at the top of a module that "
            "can be imported, and pass it or 'package.module:function'",
            option="handler",
        )
    if find_handler(name) is not handler and not isinstance(handler, str):
        raise InvalidOption(f"{name!r} is another object than the handler", option="handler")
    return name


def find_handler(name: str) -> Callable[..., Any]:
    """Import a handler by its name."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOption(f"there is no handler {name!r}: {error}", option="handler") from error
    if not callable(found):
        raise InvalidOption(f"{name!r} is not a function", option="handler")
    return found  # type: ignore[no-any-return]  # what is called is checked by who calls it


def check_plain(options: dict[str, Any]) -> dict[str, Any]:
    """Refuse options that another process would not get as they are."""
    try:
        same = msgspec.json.decode(msgspec.json.encode(options)) == options
    except (TypeError, msgspec.MsgspecError):
        same = False
    if not same:
        raise InvalidOption(
            f"the options {', '.join(options)} of the transport are not plain data, as a run or "
            "another process needs them",
            option="options",
        )
    return options
