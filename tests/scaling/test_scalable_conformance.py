"""The suite of buses on the scalable bus, around the plain and around the resilient one."""

import pytest

from penstock.bus.bus import MessageBus
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus
from penstock.testing import BusConformance


@pytest.mark.acceptance(15, 18, 40)
class TestScalableMessageBus(BusConformance):
    @pytest.fixture
    def make_bus(self):
        return lambda **options: ScalableMessageBus(MessageBus(**options), backpressure=False)


@pytest.mark.acceptance(15, 18, 40)
class TestScalableResilientMessageBus(BusConformance):
    @pytest.fixture
    def make_bus(self):
        return lambda **options: ScalableMessageBus(
            ResilientMessageBus(**options), backpressure=False
        )
