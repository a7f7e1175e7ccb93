"""A busy program with a dashboard, for the tests in a browser. Writes its address, ends with its input.

It has a topic with traffic and a group that keeps up, a group that stands still in a handler, a group
without members, dead letters, a circuit that is open, and a payload that is markup.
"""

import asyncio
import logging
import sys

import penstock
from penstock import BreakerOptions, Event, topic
from penstock.dashboard import Dashboard
from penstock.observe import Observer

STALL_SECONDS = 2.0
MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float
    note: str = ""


@topic("parcels", key="order_id")
class ParcelSent(Event):
    order_id: str


@topic("refunds", key="order_id")
class RefundAsked(Event):
    order_id: str
    why: str = ""


class Shop:
    """The handlers."""

    def __init__(self):
        self.stuck = asyncio.Event()
        self.mended = False

    async def bill(self, order: OrderPlaced) -> None:
        if order.total < 0 and not self.mended:
            raise ValueError(f"a total of {order.total} cannot be billed")

    async def refund(self, refund: RefundAsked) -> None:
        raise ConnectionError("the bank does not answer")

    async def send(self, parcel: ParcelSent) -> None:
        await self.ask_the_courier()

    async def ask_the_courier(self) -> None:
        await self.stuck.wait()


async def trade(bus) -> None:
    """Publish for ever."""
    number = 0
    while True:
        for _ in range(20):
            number += 1
            await bus.publish(OrderPlaced(order_id=f"o-{number}", total=number / 4))
        await asyncio.sleep(0.05)


async def begin(bus, shop: Shop) -> None:
    patient = BreakerOptions(failures=1_000)
    bus.subscribe(OrderPlaced, shop.bill, group="billing", retries=0, breaker=patient)
    bus.subscribe(ParcelSent, shop.send, group="shipping")
    bus.subscribe(
        RefundAsked,
        shop.refund,
        group="bank",
        retries=0,
        breaker=BreakerOptions(failures=3, recovery=3_600.0),
    )
    for number in range(3):
        await bus.publish(OrderPlaced(order_id=f"bad-{number}", total=-1.0 - number))
    await bus.publish(OrderPlaced(order_id="markup", total=-99.0, note=MARKUP))
    for number in range(5):
        await bus.publish(RefundAsked(order_id=f"r-{number}"))
        await bus.publish(ParcelSent(order_id=f"p-{number}"))


async def main(directory: str, port: int = 0) -> None:
    shop = Shop()
    async with penstock.open(f"log:{directory}", name="shop") as bus:
        await begin(bus, shop)
        async with Observer(look_seconds=0.5, stall_seconds=STALL_SECONDS) as observer:
            observer.watch(bus)
            await observer.look()
            log = observer.parts()["log"]
            async with log.subscribe("orders", "audit") as records:
                await records.commit(await anext(records))
            trading = asyncio.ensure_future(trade(bus))
            async with Dashboard(observer, port=port) as dashboard:
                print(dashboard.url, flush=True)
                await asyncio.to_thread(sys.stdin.read)
            trading.cancel()
            shop.stuck.set()


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
