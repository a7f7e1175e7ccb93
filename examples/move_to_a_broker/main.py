"""One application on any of six places for its events: only the URL changes.

Run it on the local disk: `python examples/move_to_a_broker/main.py`. Run it on a broker by its URL, as in
`python examples/move_to_a_broker/main.py kafka://localhost:9092`. It takes orders, bills them in one group and ships
them in another, stops in the middle and starts again; in the end each order is billed and shipped, and
the one that cannot be billed is a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import tempfile
from collections import Counter

import penstock
from penstock import (
    BreakerOptions,
    Event,
    Retry,
    ScalableMessageBus,
    TopicConfig,
    errors,
    topic,
)

ORDERS = 40
RUN = secrets.token_hex(4)
"""Topics of this run: a broker may have those of others."""
BROKEN = "o-13"


@topic(f"shop-orders-{RUN}", key="customer")
class OrderPlaced(Event):
    order_id: str
    customer: str
    cents: int


@topic(f"shop-bills-{RUN}", key="customer")
class OrderBilled(Event):
    order_id: str
    customer: str


class Shop:
    """What became of the orders."""

    def __init__(self) -> None:
        self.billed: Counter[str] = Counter()
        self.shipped: dict[str, list[str]] = {}
        self.attempts: Counter[str] = Counter()

    def shipped_orders(self) -> set[str]:
        """Each order once, also one that came again after the stop."""
        return {one for orders in self.shipped.values() for one in orders}

    def register(self, bus: ScalableMessageBus) -> None:
        """Who does what. A bill fails once for every third order, and always for one."""

        @bus.on(
            OrderPlaced,
            group="billing",
            retry=Retry(attempts=3, delay=0.01),
            breaker=BreakerOptions(failures=None, failure_rate=0.9),
        )
        async def bill(order: OrderPlaced) -> None:
            self.attempts[order.order_id] += 1
            if order.order_id == BROKEN:
                raise errors.NonRetryable("this card is closed")
            if self.attempts[order.order_id] == 1 and int(order.order_id[2:]) % 3 == 0:
                raise ConnectionError("the bank does not answer")
            self.billed[order.order_id] += 1
            await bus.publish(OrderBilled(order.order_id, order.customer))

        @bus.on(OrderBilled, group="shipping")
        async def ship(bill: OrderBilled) -> None:
            self.shipped.setdefault(bill.customer, []).append(bill.order_id)


async def take_orders(url: str, state: str, shop: Shop, numbers: range) -> int:
    """Publish some orders and wait until all groups are done; how many dead letters there are."""
    settings = TopicConfig(partitions=2)
    async with penstock.open(url, name="shop", defaults=settings, state=state) as bus:
        shop.register(bus)
        for number in numbers:
            order = OrderPlaced(f"o-{number}", f"customer-{number % 4}", cents=100 + number)
            await bus.publish(order)
        await wait_for(bus, shop, numbers.stop)
        return len(bus.dead_letters.list())


async def wait_for(bus: ScalableMessageBus, shop: Shop, orders: int) -> None:
    """Until what was published is shipped, or a dead letter."""
    async with asyncio.timeout(120):
        while sum(map(len, shop.shipped.values())) + len(bus.dead_letters.list()) < orders:
            await bus.settle(timeout=60)
            await asyncio.sleep(0.05)


async def publish_only(url: str, state: str, numbers: range) -> None:
    """Orders that nobody handles yet: they wait where the URL says."""
    async with penstock.open(
        url, name="shop", defaults=TopicConfig(partitions=2), state=state
    ) as bus:
        for number in numbers:
            await bus.publish(OrderPlaced(f"o-{number}", f"customer-{number % 4}", cents=100))


def check(shop: Shop, letters: int) -> None:
    """The numbers must agree, or the example fails."""
    wanted = {f"o-{number}" for number in range(ORDERS)} - {BROKEN}
    assert set(shop.billed) == wanted, wanted ^ set(shop.billed)
    assert shop.shipped_orders() == wanted
    assert letters == 1, letters


async def main(url: str, folder: str) -> None:
    shop, state = Shop(), f"{folder}/state"
    half = ORDERS // 2
    await take_orders(url, state, shop, range(half))
    print(f"  the first {half} orders are through; the application stops")
    await publish_only(url, state, range(half, ORDERS - 5))
    print("  more orders came while nobody handled any")
    letters = await take_orders(url, state, shop, range(ORDERS - 5, ORDERS))
    check(shop, letters)
    shipped = len(shop.shipped_orders())
    print(f"  billed {len(shop.billed)}, shipped {shipped}, dead letters {letters}: PASS")


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # the failures are part of the story
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"log:{folder}/data"
        print(f"The shop on {url.partition(':')[0]}:")
        asyncio.run(main(url, folder))
