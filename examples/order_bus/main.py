"""A shop on the resilient bus: commands, events, a failing bank, dead letters, an approval, a reminder.

Run it: `python examples/order_bus/main.py`. Everything that must not be lost is in a log in a temporary directory.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections import Counter

from penstock import (
    BreakerOptions,
    Command,
    Event,
    ResilientMessageBus,
    Retry,
    WalMessageQueue,
    errors,
    topic,
)
from penstock.bus import Approval, PendingApproval
from penstock.resilience import DeadLetterFilter, DeadLetterOptions

ORDERS = 200 if os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1" else 5_000


class PlaceOrder(Command[str]):
    customer: str
    cents: int


class Refund(Command[int]):
    order_id: str
    cents: int


@topic("shop.orders", key="customer")
class OrderPlaced(Event):
    order_id: str
    customer: str
    cents: int


@topic("shop.reminders")
class PaymentDue(Event):
    order_id: str


class Bank:
    """Refuses one call in five, and one customer always."""

    def __init__(self) -> None:
        self.open = False
        self.taken: Counter[str] = Counter()
        self._chance = random.Random(17)

    def charge(self, order: OrderPlaced) -> None:
        if order.customer == "blocked" and not self.open:
            raise errors.NonRetryable("this account is blocked")
        if self._chance.random() < 0.2:
            raise ConnectionError("the bank does not answer")
        self.taken[order.order_id] += order.cents


def build(bus: ResilientMessageBus, bank: Bank) -> None:
    """Register who does what."""

    @bus.handles(PlaceOrder)
    async def place(command: PlaceOrder) -> str:
        order_id = f"o-{bus.statistics().commands_executed}"
        await bus.publish(OrderPlaced(order_id, command.customer, command.cents))
        return order_id

    @bus.on(
        OrderPlaced,
        name="billing",
        retry=Retry(attempts=6, delay=0.01),
        breaker=BreakerOptions(failures=None, failure_rate=0.9),
        ordered=True,  # the orders of a customer are billed in order, also when one is tried again
    )
    async def bill(order: OrderPlaced) -> None:
        bank.charge(order)

    @bus.handles(Refund, approval=Approval(expires=3_600))
    async def refund(command: Refund) -> int:
        bank.taken[command.order_id] -= command.cents
        return command.cents


async def take_orders(bus: ResilientMessageBus) -> None:
    customers = ["ada", "blaise", "carl", "blocked"]
    for number in range(ORDERS):
        await bus.send(PlaceOrder(customers[number % 4], cents=100))
    await bus.settle(timeout=120)


async def mend(bus: ResilientMessageBus, bank: Bank) -> None:
    """The bank has opened the account again: send the dead letters back."""
    blocked = DeadLetterFilter(handler="billing", error_type="NonRetryable")
    plan = await bus.dead_letters.replay(blocked, dry_run=True)
    print(f"  a dry run would replay {plan.replayed}")
    bank.open = True
    await bus.dead_letters.replay(blocked)
    await bus.settle(timeout=120)


async def ask_for_refund(bus: ResilientMessageBus) -> None:
    """A person decides; meanwhile the caller waits, without polling."""
    requested: asyncio.Future[PendingApproval] = asyncio.get_running_loop().create_future()
    bus.approvals.on_requested(requested.set_result)
    asking = asyncio.create_task(bus.execute(Refund("o-1", cents=40)))
    request = await requested
    print(f"  waiting for approval: {request.command}")
    await bus.approvals.approve(request.id, by="the boss")
    print(f"  refunded: {(await asking).unwrap()} cents")


async def remind(bus: ResilientMessageBus) -> None:
    reminded = asyncio.Event()
    bus.subscribe(PaymentDue, lambda _: reminded.set())
    await bus.schedule.after(PaymentDue("o-2"), seconds=0.05)
    await asyncio.wait_for(reminded.wait(), timeout=30)


async def shop(directory: str) -> None:
    bank = Bank()
    async with (
        WalMessageQueue(directory) as queue,
        ResilientMessageBus(
            name="shop", log=queue, dead_letters=DeadLetterOptions(letters_max=10_000)
        ) as bus,
    ):
        bus.on_error(lambda *_: None)  # bus.errors() has them; the log of the program need not
        build(bus, bank)
        await take_orders(bus)
        print(
            f"{ORDERS} orders; {len(bank.taken)} are paid, {len(bus.dead_letters)} are dead letters."
        )
        print(f"  {bus.errors().failures} calls of the bank failed and were dealt with")

        await mend(bus, bank)
        print(f"After the replay {len(bank.taken)} are paid, {len(bus.dead_letters)} are left.")

        await ask_for_refund(bus)
        await remind(bus)
        print("A reminder came when it was due.")

        assert len(bank.taken) + len(bus.dead_letters) == ORDERS
        assert sum(bank.taken.values()) == 100 * len(bank.taken) - 40


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bus-") as directory:
        asyncio.run(shop(directory))


if __name__ == "__main__":
    main()
