"""Room in a full queue goes to somebody who still wants it."""

import asyncio

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.messages import Event


class Order(Event):
    number: int


async def test_a_turn_that_comes_too_late_for_one_publisher_goes_to_the_next():
    """The first in the row is cancelled after it was given room and before it could use it."""
    going_on = asyncio.Event()
    async with MessageBus(queue=QueueOptions(capacity=1)) as bus:

        @bus.on(Order)
        async def handle(event: Order) -> None:
            if event.number == 1:
                # Room was made for the first who waits when this event was taken.
                waiting[0].cancel()
            await going_on.wait()

        await bus.publish(Order(0))
        await asyncio.sleep(0)
        await bus.publish(Order(1))
        waiting = [asyncio.ensure_future(bus.publish(Order(number))) for number in (2, 3)]
        await asyncio.sleep(0)
        assert bus.statistics().events_published == 2
        going_on.set()
        going_on.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        was_told = waiting[1].done()
        going_on.set()
        await bus.settle()
    assert waiting[0].cancelled()
    assert was_told, "there was room, and the next in the row did not hear of it"
    assert bus.statistics().events_published == 3
