"""The suite of buses on every bus there is."""

from functools import partial

import pytest

from penstock.bus.bus import MessageBus
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.retry import NO_RETRY
from penstock.testing import BusConformance


class TestMessageBus(BusConformance):
    @pytest.fixture
    def make_bus(self):
        return MessageBus


@pytest.mark.acceptance(138)
class TestResilientMessageBus(BusConformance):
    @pytest.fixture
    def make_bus(self):
        return ResilientMessageBus


@pytest.mark.acceptance(138)
class TestResilientMessageBusWithoutRetries(BusConformance):
    @pytest.fixture
    def make_bus(self):
        return partial(ResilientMessageBus, retry=NO_RETRY, breaker=None)
