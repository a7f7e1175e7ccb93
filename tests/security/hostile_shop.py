"""A program whose records, errors, handlers, parts and names of topics are made to do harm on a page. Writes its address."""

import asyncio
import logging
import sys

import penstock
from penstock import BreakerOptions, Event, topic
from penstock.dashboard import Dashboard
from penstock.observe import Observer
from tests.security.corpus import MARKUP, TEMPLATE
from tests.security.hostile_broker import HostileTransport

HARM = MARKUP + TEMPLATE


@topic("orders", key="name")
class Order(Event):
    name: str
    text: str


@topic("parcels", key="name")
class Parcel(Event):
    name: str
    text: str


class HarmError(Exception):
    """Its name is markup too."""


HarmError.__name__ = HarmError.__qualname__ = HARM


async def fail(order: Order) -> None:
    raise HarmError(HARM, order)


async def wait(parcel: Parcel) -> None:
    await asyncio.Event().wait()


fail.__name__ = fail.__qualname__ = wait.__name__ = wait.__qualname__ = HARM


async def main(directory: str) -> None:
    async with penstock.open(f"log:{directory}", name="shop") as bus:
        bus.subscribe(
            Order,
            fail,
            group="billing",
            retries=0,
            breaker=BreakerOptions(failures=2, recovery=3_600.0),
        )
        bus.subscribe(Parcel, wait, group="shipping")
        for number in range(4):
            await bus.publish(Order(name=f"{HARM}{number}", text=HARM), headers={HARM: HARM})
        await bus.publish(Parcel(name=HARM, text=HARM))
        async with Observer(look_seconds=0.3, stall_seconds=0.5) as observer:
            observer.watch(bus, name=HARM)
            observer.watch(HostileTransport(), name="broker")
            await observer.look()
            parts = observer.parts().values()
            log = next(one for one in parts if isinstance(one, penstock.WalMessageQueue))
            harm = HARM.encode()
            await log.publish("orders", harm, key=harm, headers={"x": harm})
            async with Dashboard(observer, port=0) as dashboard:
                print(dashboard.url, *observer.parts(), sep="\n", end="\n.\n", flush=True)
                await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(main(sys.argv[1]))
