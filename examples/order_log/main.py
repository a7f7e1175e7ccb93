"""A small shop on the log: orders come in, billing turns each into a payment, reports look back.

Run it with a directory to keep the data: `python examples/order_log/main.py ./shop`. Run it again and
billing goes on where it had committed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime

import msgspec

from penstock import FsyncPolicy, Record, TopicConfig, WalMessageQueue

ORDERS = 20 if os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1" else 2_000
CUSTOMERS = ["ada", "blaise", "carl", "dorothy"]


class Order(msgspec.Struct):
    """What a customer wants."""

    order_id: str
    customer: str
    cents: int


class Payment(msgspec.Struct):
    """What billing asks for."""

    order_id: str
    cents: int


async def open_topics(queue: WalMessageQueue) -> None:
    """Orders of a customer share a partition, by their key, so they stay in order."""
    await queue.create_topic("orders", TopicConfig(partitions=4))
    # Payments can be made again from the orders, so they need no fsync each.
    timed = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=100)
    await queue.create_topic("payments", timed)


async def take_orders(queue: WalMessageQueue, run: str, count: int) -> None:
    """The web side: many requests at once; each returns when its order is safe on the disk."""

    async def request(number: int) -> None:
        customer = CUSTOMERS[number % len(CUSTOMERS)]
        order = Order(f"{run}-{number}", customer, cents=100 + number)
        await queue.publish("orders", msgspec.json.encode(order), key=customer.encode())

    async with asyncio.TaskGroup() as requests:
        for number in range(count):
            requests.create_task(request(number))


async def bill(queue: WalMessageQueue, stop_after: int | None = None) -> int:
    """Consume orders up to the end, or die early: then the last batch is not committed."""
    billed = 0
    async with queue.subscribe("orders", "billing") as orders:
        if orders.lag() == 0:
            return 0
        async for batch in orders.batches(records_max=50):
            payments = [payment_of(record) for record in batch]
            await queue.publish_many(
                "payments",
                [msgspec.json.encode(payment) for payment in payments],
                keys=[payment.order_id.encode() for payment in payments],
                durable=True,  # the payment must be safe before the order is ticked off
            )
            billed += len(batch)
            if stop_after is not None and billed >= stop_after:
                return billed  # as a crash would: paid, but not committed
            await orders.commit(batch)
            if orders.lag() == 0:
                return billed
    return billed


def payment_of(record: Record) -> Payment:
    order = msgspec.json.decode(record.value or b"", type=Order)
    return Payment(order.order_id, order.cents)


async def report(queue: WalMessageQueue, since: datetime) -> Counter[str]:
    """Turnover of each customer since a time, read back from the log; commits nothing."""
    turnover: Counter[str] = Counter()
    async for record in queue.replay("orders", start=since):
        order = msgspec.json.decode(record.value or b"", type=Order)
        turnover[order.customer] += order.cents
    return turnover


async def payments(queue: WalMessageQueue) -> list[str]:
    """The order of every payment in the log, those that were written twice twice."""
    return [(record.key or b"").decode() async for record in queue.replay("payments")]


async def shop(directory: str) -> None:
    run = f"{datetime.now(UTC):%H%M%S}"
    async with WalMessageQueue(directory) as queue:
        await open_topics(queue)
        await take_orders(queue, f"{run}-a", ORDERS)
        counts = queue.statistics().topics["orders"]
        print(f"{ORDERS} orders are on the disk; they shared {counts.commits} commits.")
        print(f"Billing handles {await bill(queue, stop_after=ORDERS // 2)} and stops uncommitted.")

    # The service starts again.
    async with WalMessageQueue(directory) as queue:
        await open_topics(queue)
        await asyncio.sleep(0.005)  # the clock of the log counts milliseconds
        restarted = datetime.now(UTC)
        await take_orders(queue, f"{run}-b", ORDERS // 2)
        print(f"After a restart billing handles {await bill(queue)}, from where it had committed.")

        written = await payments(queue)
        again = len(written) - len(set(written))
        print(f"{len(set(written))} orders are paid; {again} payments came twice.")
        print("  At least once: the reader of payments leaves out an order that it has seen.")

        turnover = await report(queue, since=restarted)
        print(f"Orders since the restart, by customer: {dict(sorted(turnover.items()))} cents.")
        assert sum(turnover.values()) == sum(100 + number for number in range(ORDERS // 2))


def main() -> None:
    if sys.argv[1:]:
        asyncio.run(shop(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-orders-") as directory:
        asyncio.run(shop(directory))


if __name__ == "__main__":
    main()
