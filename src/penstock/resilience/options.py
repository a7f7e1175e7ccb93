"""Checks of options that the policies share."""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import InvalidOption

ErrorTypes = tuple[type[BaseException], ...]


def check_range(option: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside its range, and one that is not finite."""
    if not low <= value <= high or math.isinf(value):
        wanted = f"at least {low}" if math.isinf(high) else f"{low}..{high}"
        raise InvalidOption(f"{option} is {value}, and has to be {wanted}", option=option)


def check_error_types(option: str, kinds: Any) -> None:
    """Refuse what is not a tuple of exception classes."""
    if not isinstance(kinds, tuple) or not all(map(_is_error_type, kinds)):
        raise InvalidOption(f"{option} has to be a tuple of exception classes", option=option)


def _is_error_type(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
