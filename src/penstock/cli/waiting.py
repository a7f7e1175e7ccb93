"""Waiting for what may never come, such as a line of standard input, without holding up the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from penstock import System

_T = TypeVar("_T")


class Aside:
    """A thread that the end of the process does not wait for."""

    def __init__(self) -> None:
        self._worker = System().worker("penstock-cli")

    async def run(self, job: Callable[[], _T]) -> _T:
        """The result of the job. Cancelled, the job goes on, and nobody hears of it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def do() -> None:
            outcome: tuple[Callable[[Any], None], Any]
            try:
                outcome = (future.set_result, job())
            except BaseException as error:
                outcome = (future.set_exception, error)
            # The loop may be closed by now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, *outcome)

        self._worker.submit(do)
        return await future

    def close(self) -> None:
        """After the last job."""
        self._worker.close()


def _settle(future: asyncio.Future[Any], setter: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        setter(value)
