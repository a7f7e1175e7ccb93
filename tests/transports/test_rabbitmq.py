"""The RabbitMQ transport on streams of a real server: the suite, and what only it has."""

from functools import partial

import pytest

from penstock.testing import TransportConformance
from penstock.transports.rabbitmq import RabbitTransport
from tests.transports.servers.rabbitmq import rabbit_server


@pytest.fixture(scope="module")
def server():
    with rabbit_server() as running:
        yield running


class TestRabbitStreams(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(RabbitTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}
