"""An error as text: what is kept of it must not keep frames, and what they hold, alive."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from penstock.messages import dotted_name

TEXT_MAX = 4_096
TRACEBACK_MAX = 16_384
FRAMES_MAX = 50


class ErrorText(NamedTuple):
    """What is known of an error when the error itself is gone."""

    type: str
    """The dotted name of its class; a builtin's has no module."""
    text: str
    traceback: str


def describe(error: BaseException) -> ErrorText:
    """The error as text, cut to a bound. Never raises, whatever the error does when it is printed."""
    return ErrorText(type_name(error), text_of(error), traceback_of(error))


def type_name(error: BaseException) -> str:
    """The dotted name of the error's class."""
    return dotted_name(type(error)).removeprefix("builtins.")


def text_of(error: BaseException) -> str:
    """What the error says."""
    try:
        return cut(str(error), TEXT_MAX)
    except Exception as failure:
        return f"<it cannot be printed: {type(failure).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Its traceback with those of its causes. The end is kept: that is where it happened."""
    try:
        lines = traceback.format_exception(
            type(error), error, error.__traceback__, limit=-FRAMES_MAX
        )
    except Exception:
        lines = [type_name(error)]
    text = "".join(lines)
    return text if len(text) <= TRACEBACK_MAX else "..." + text[3 - TRACEBACK_MAX :]


def cut(text: str, length: int) -> str:
    """The text, or its beginning when it is too long."""
    return text if len(text) <= length else text[: length - 3] + "..."
