"""The NATS transport on a real server: the suite, and what only it has."""

from functools import partial

import pytest

from penstock.testing import TransportConformance
from tests.transports.servers.nats import nats_server


@pytest.fixture(scope="module")
def server():
    with nats_server() as running:
        yield running


class TestNats(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        from penstock.transports.nats import NatsTransport

        return partial(NatsTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}
