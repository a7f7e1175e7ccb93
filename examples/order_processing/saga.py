"""The saga of an order: reserve, charge, ship. What was done is undone when a later step is refused.

There is no transaction over stock, bank and carrier. Instead each step has a step that undoes it, and the
saga is run again after a crash. Three rules make that safe:

- a step may be repeated: the order id says what was done before;
- the decision to cancel is written down before anything is undone, so that a saga that is run again
  does not start to do things anew;
- only a refusal cancels. A failure is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from participants import Participants

from penstock import BreakerOptions, Code, Command, Event, Retry, errors, topic
from penstock.integrations import Service

PATIENT = Retry(attempts=8, delay=0.01)
"""For services that fail one call in six: all eight attempts fail once in more than a million calls."""
LENIENT = BreakerOptions(failures=None, failure_rate=0.9)


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    customer: str
    article: str
    address: str
    cents: int


@topic("orders.ended", key="order_id")
class OrderEnded(Event):
    order_id: str
    confirmed: bool
    reason: str


class PlaceOrder(Command[None]):
    order: OrderPlaced


class ReserveStock(Command[None]):
    order: OrderPlaced


class ReleaseStock(Command[None]):
    order: OrderPlaced


class ChargeCard(Command[None]):
    order: OrderPlaced


class RefundCard(Command[None]):
    order: OrderPlaced


class BookShipment(Command[None]):
    order: OrderPlaced


class Step(NamedTuple):
    """What to do, and what undoes it. The last step needs nothing: when it is refused, nothing was done."""

    do: Callable[[OrderPlaced], Command[None]]
    undo: Callable[[OrderPlaced], Command[None]] | None


STEPS = [Step(ReserveStock, ReleaseStock), Step(ChargeCard, RefundCard), Step(BookShipment, None)]


class Saga:
    """Takes an order through its steps, or back."""

    def __init__(self, service: Service, participants: Participants) -> None:
        self._service = service
        self._participants = participants

    async def run(self, order: OrderPlaced) -> None:
        state, reason = self._participants.decided(order.order_id)
        if state == "open":
            reason = await self._forwards(order)
            state = "cancelling" if reason else "confirmed"
            self._participants.decide(order.order_id, state, reason)
        if state == "cancelling":
            await self._backwards(order)
            self._participants.decide(order.order_id, "cancelled", reason)
        confirmed = state == "confirmed"
        await self._service.bus.publish(OrderEnded(order.order_id, confirmed, reason))

    async def _forwards(self, order: OrderPlaced) -> str:
        """Do the steps; why one was refused, or nothing."""
        for step in STEPS:
            refusal = await self._execute(step.do(order))
            if refusal:
                return refusal
        return ""

    async def _backwards(self, order: OrderPlaced) -> None:
        """Undo all steps, the last one first. What was not done is undone without effect."""
        for step in reversed(STEPS):
            if step.undo is not None:
                await self._execute(step.undo(order))

    async def _execute(self, command: Command[None]) -> str:
        """Why the command was refused, or nothing. A failure is raised: the event comes again."""
        result = await self._service.bus.execute(command, timeout=10)
        if isinstance(result.error, errors.NonRetryable):
            return str(result.error)
        if result.code is not Code.OK:
            raise ConnectionError(f"{type(command).__name__}: {result.code}") from result.error
        return ""


def register(service: Service, participants: Participants) -> None:
    """Who does what."""

    def steady(kind: type, work: Callable[[Any], None]) -> None:
        service.handles(kind, retry=PATIENT, breaker=LENIENT)(work)

    steady(ReserveStock, lambda c: participants.reserve(c.order.order_id, c.order.article))
    steady(ReleaseStock, lambda c: participants.release(c.order.order_id))
    steady(
        ChargeCard, lambda c: participants.charge(c.order.order_id, c.order.customer, c.order.cents)
    )
    steady(RefundCard, lambda c: participants.refund(c.order.order_id))
    steady(BookShipment, lambda c: participants.ship(c.order.order_id, c.order.address))

    @service.handles(PlaceOrder)
    async def place(command: PlaceOrder) -> None:
        await service.bus.publish(command.order)  # on the disk when this returns

    service.on(OrderPlaced, group="saga", retry=PATIENT, breaker=LENIENT)(
        Saga(service, participants).run
    )
