"""Callbacks that harm nobody when they fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

logger = logging.getLogger("penstock.resilience")

Arguments = ParamSpec("Arguments")


class Callbacks(Generic[Arguments]):
    """Who wants to be told. What one of them raises is logged, and the others are told."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._callbacks: list[Callable[Arguments, None]] = []

    def add(self, callback: Callable[Arguments, None]) -> Callable[[], None]:
        """Tell this one too; returns what takes it back."""
        self._callbacks.append(callback)
        return lambda: self._remove(callback)

    def _remove(self, callback: Callable[Arguments, None]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def tell(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Call all of them, in the order in which they came."""
        for callback in tuple(self._callbacks):
            try:
                callback(*args, **kwargs)
            except Exception:
                logger.exception("a callback for %s failed", self._what)
