"""The Pulsar transport on a real broker: the suite, and what only it has."""

from functools import partial

import pytest

from penstock.testing import TransportConformance
from penstock.transports.pulsar import PulsarTransport
from tests.transports.servers.pulsar import pulsar_server


@pytest.fixture(scope="module")
def server():
    with pulsar_server() as running:
        yield running


@pytest.fixture
def topic(request):
    return f"t{abs(hash(request.node.nodeid)):x}"


class TestPulsar(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(PulsarTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}
