"""The conformance suite of transports: what every one of them must do, on a real broker.

A transport of your own passes when a subclass in your tests does::

    class TestMyTransport(TransportConformance):
        @pytest.fixture
        def make_transport(self, server):
            return functools.partial(MyTransport, server.address)

``make_transport`` gives a callable that takes the options of the transport. Every call makes a new
one on the same place; what was produced and committed before is still there. Topics and groups have
names of their own in each test, so the place need not be empty.

A test of something that the transport does not declare in its ``capabilities`` is skipped, and the
reason names the capability. Where a group may span processes, two fixtures more are needed for the
tests with members that are killed and stopped: ``transport_url``, by which another process opens the same
place, and ``quick_lease``, options of ``subscribe`` with which a member that does not answer is given up
after a second or so.

The suite needs pytest and pytest-asyncio. Only the tests with processes wait for time to pass.
"""

from __future__ import annotations

from penstock.testing.transport_admin import TransportAdminConformance
from penstock.testing.transport_consuming import ConsumingConformance
from penstock.testing.transport_groups import GroupConformance
from penstock.testing.transport_life import TransportLifeConformance
from penstock.testing.transport_processes import ProcessConformance
from penstock.testing.transport_producing import ProducingConformance


class TransportConformance(
    ProducingConformance,
    ConsumingConformance,
    GroupConformance,
    ProcessConformance,
    TransportAdminConformance,
    TransportLifeConformance,
):
    """All tests of transports. Subclass it and say how to make one: see the module's text."""
