"""The suite of transports on the embedded one, in a directory and in memory."""

from functools import partial

import pytest

from penstock.stores import MemoryStore
from penstock.testing import TransportConformance
from penstock.transports import EmbeddedTransport


class TestDirectory(TransportConformance):
    @pytest.fixture
    def make_transport(self, tmp_path):
        return partial(EmbeddedTransport, tmp_path / "data")

    @pytest.fixture
    def transport_url(self, tmp_path):
        return f"log:{tmp_path / 'data'}"

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}


class TestMemory(TransportConformance):
    @pytest.fixture
    def make_transport(self):
        with MemoryStore() as store:
            yield partial(EmbeddedTransport, store)
