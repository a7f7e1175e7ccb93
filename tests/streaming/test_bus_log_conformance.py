"""Parts of the suite of buses on a bus whose topics are on a transport, in real time.

What does not hold for a log does not hold here either; ``NOT_ON_A_TRANSPORT`` names what is more.
"""

from typing import Any, Self

import pytest

from penstock.bus.bus import MessageBus
from penstock.messages import marks_of
from penstock.streaming.bus_log import TransportLog
from penstock.testing.bus_events import EventConformance
from penstock.testing.bus_fixtures import Keyed, Ping, Pong
from penstock.testing.bus_handlers import HandlerConformance
from penstock.testing.bus_nesting import NestingConformance
from penstock.testing.bus_sessions import SessionConformance
from penstock.testing.bus_threads import ThreadConformance
from penstock.transports.embedded import EmbeddedTransport
from tests.scaling.durable_world import BUSES_MAX, DurableBus, PatientTable
from tests.scaling.test_durable_conformance import NOT_DURABLE

NOT_ON_A_TRANSPORT = {
    "test_publishing_into_a_full_queue_of_its_own_does_not_wait[atomic]": "there are no atomic groups",
}
"""Test → why it says nothing about topics of a transport."""


class TransportBuses:
    """Makes buses, each on a transport of its own."""

    def __init__(self) -> None:
        self._logs = [TransportLog(EmbeddedTransport("memory:")) for _ in range(BUSES_MAX)]
        self._unused = list(self._logs)

    async def __aenter__(self) -> Self:
        for log in self._logs:
            await log.__aenter__()
        for kind in (Ping, Pong, Keyed):
            await self._logs[-1].create_topic(marks_of(kind).topic)
        return self

    def __call__(self, **options: Any) -> DurableBus:
        return DurableBus(MessageBus(**options), log=self._unused.pop(), backpressure=False)

    async def __aexit__(self, *exc_info: object) -> None:
        for log in self._logs:
            await log.close()


class TransportTable(PatientTable):
    """The threads of the transport have half a second before virtual time passes."""

    async def until(self, awaitable):
        return await self.clock.run_until(awaitable, patience=0.5)


class TestOnATransport(
    EventConformance, HandlerConformance, NestingConformance, SessionConformance, ThreadConformance
):
    @pytest.fixture(autouse=True)
    def _only_what_holds(self, request):
        node = request.node
        left_out = {**NOT_DURABLE, **NOT_ON_A_TRANSPORT}
        names = (node.originalname, node.name, node.name.split("-")[0])
        reason = next((left_out[name] for name in names if name in left_out), None)
        if reason is not None:
            pytest.skip(reason)

    @pytest.fixture
    async def make_bus(self, _only_what_holds):
        async with TransportBuses() as buses:
            yield buses

    @pytest.fixture
    def table(self, make_bus):
        return TransportTable(make_bus)
