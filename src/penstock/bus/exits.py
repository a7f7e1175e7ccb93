"""What a handler raises to end the program, as ``sys.exit`` does, reaches the event loop.

The handler has failed, and the bus does about it what it does about other failures. Raised from within, it would end
somebody else's task instead: that of a lane with other events, or of who publishes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.bus.dispatch import Dispatch

EXITS = (SystemExit, KeyboardInterrupt)


def end_loop(dispatch: Dispatch, error: BaseException) -> None:
    """Let the loop raise it, before the lanes begin another event."""
    if dispatch.ending:
        return
    dispatch.ending = True
    for lane in dispatch.intake.all_lanes():
        lane.running = False
    asyncio.get_running_loop().call_soon(_raise, dispatch, error)


def _raise(dispatch: Dispatch, error: BaseException) -> None:
    dispatch.ending = False
    if dispatch.intake.running:  # who runs the loop again goes on with the rest
        for lane in dispatch.intake.all_lanes():
            lane.running = True
            lane.wake()
    raise error
