"""A bus that nobody stopped, on a loop that is closed."""

import asyncio
import gc
import logging

from penstock.bus.bus import MessageBus
from penstock.errors import Closed
from penstock.messages import Event


class Lost(Event):
    pass


def test_its_tasks_are_swept_up_quietly(caplog):
    """An unawaited coroutine would be a warning, and so an error here."""
    caplog.set_level(logging.CRITICAL, logger="asyncio")
    loop = asyncio.new_event_loop()

    async def begin():
        bus = MessageBus()
        await bus.start()
        bus.subscribe(Lost, lambda event: asyncio.Event().wait())
        for _ in range(3):
            await bus.publish(Lost())
        await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()
    gc.collect()


def test_publishing_between_runs_of_its_loop():
    """From the thread of the loop, while the loop does not run."""
    loop = asyncio.new_event_loop()
    seen: list[Event] = []

    async def begin():
        bus = MessageBus()
        bus.subscribe(Lost, seen.append)
        await bus.start()
        return bus

    bus = loop.run_until_complete(begin())
    bus.publish_nowait(Lost())
    loop.run_until_complete(bus.settle())
    assert seen == [Lost()]
    assert loop.run_until_complete(bus.stop()).drained
    loop.close()
    try:
        bus.publish_nowait(Lost())
    except Closed:
        return
    raise AssertionError("it is stopped")
