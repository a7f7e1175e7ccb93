"""Where code waits, as text: what a handler awaits, from the handler inwards.

Nothing is written down while handlers run. A coroutine that waits knows what it waits for, and that
one what it waits for; walking along that is enough.
"""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

from penstock.bus.drive import Suspended
from penstock.observe.values import Cause

FRAMES_MAX = 50
OWN_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
PRESSING = {"before_publish", "wait_for_room", "apply_backpressure"}
"""Functions of Penstock in which a publisher waits until there is room."""


def await_stack(task: asyncio.Task[Any]) -> tuple[str, ...]:
    """What a task waits for, outermost first, beginning with code that is not Penstock's."""
    frames = [(code, line) for code, line, _ in _walk(task)]
    own = [code.co_filename.startswith(OWN_FOLDER) for code, _ in frames]
    first = own.index(False) if False in own else 0
    return tuple(_text(code.co_filename, line, code.co_name) for code, line in frames[first:])


def cause_in(task: asyncio.Task[Any]) -> Cause:
    """Whether a handler waits for room to publish, or for something else."""
    for code, _, _ in _walk(task):
        if code.co_name in PRESSING and code.co_filename.startswith(OWN_FOLDER):
            return Cause.PRESSURE
    return Cause.HANDLER


def suspended_in(task: asyncio.Task[Any]) -> Suspended | None:
    """The innermost handler that a task carries on, None when there is none."""
    found = None
    for _, _, frame in _walk(task):
        if frame.f_code is Suspended.__await__.__code__:
            found = frame.f_locals["self"]
    return found


def _walk(task: asyncio.Task[Any]) -> Iterator[tuple[Any, int, FrameType]]:
    step: Any = task
    for _ in range(FRAMES_MAX):
        frame, step = _step(step)
        if frame is not None:
            yield frame.f_code, frame.f_lineno, frame
        if step is None:
            return


def _step(step: Any) -> tuple[FrameType | None, Any]:
    """The frame of something that waits, and what it waits for."""
    if isinstance(step, asyncio.Task):
        return None, step.get_coro()
    if isinstance(step, CoroutineType):
        return step.cr_frame, step.cr_await
    if isinstance(step, GeneratorType):
        frame = step.gi_frame
        if frame is not None and step.gi_code is Suspended.__await__.__code__:
            # It drives a coroutine in another context, which is no ``yield from``.
            return frame, frame.f_locals["self"]._coroutine
        return frame, step.gi_yieldfrom
    if isinstance(step, AsyncGeneratorType):
        return step.ag_frame, step.ag_await
    # A coroutine of the compiled twin has no frame to show; what it waits for, and who waits for it, stands
    # behind an object that tells nothing.
    if type(step).__name__ == "coroutine_wrapper":
        return None, next(iter(gc.get_referents(step)), None)
    return None, getattr(step, "cr_await", None)


def current_frames() -> dict[int, FrameType]:
    """The frame of each thread, taken while no garbage is collected.

    Python 3.11 holds the lock of its list of threads meanwhile. A callback of the collector can let
    another thread run; one that starts a thread then waits for that lock, and has the interpreter's
    own: the process stands still for ever (CPython's issue 106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()


def stack_of_thread(thread: int | None) -> tuple[str, ...]:
    """What a thread does at this moment, outermost first; empty when there is no such thread."""
    frame = current_frames().get(thread or 0)
    if frame is None:
        return ()
    summary = traceback.extract_stack(frame)[-FRAMES_MAX:]
    return tuple(_text(one.filename, one.lineno or 0, one.name) for one in summary)


def _text(filename: str, line: int, name: str) -> str:
    source = linecache.getline(filename, line).strip()
    short = os.sep.join(filename.split(os.sep)[-2:])
    return f"{short}:{line} {name}" + (f": {source}" if source else "")
