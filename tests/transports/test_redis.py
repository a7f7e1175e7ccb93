"""The suite of transports on Redis, and what is particular to it."""

from functools import partial

import pytest

from penstock.testing import TransportConformance
from tests.transports.servers.redis import BINARY, MISSING, RedisServer

pytest.importorskip("redis")
from penstock.transports.redis import RedisTransport

pytestmark = pytest.mark.skipif(BINARY is None, reason=MISSING)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


class TestRedis(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(RedisTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}
