"""What the tests of the resilient bus start from."""

import random

import pytest

from penstock.resilience.bus import ResilientMessageBus
from penstock.system import System
from penstock.testing import VirtualClock
from tests.resilience.resilient_world import PLAIN


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def system(clock):
    return System(clock=clock, random=random.Random(7))


@pytest.fixture
async def bus(system):
    async with ResilientMessageBus(system=system, retry=PLAIN) as bus:
        bus.on_error(lambda *_: None)
        yield bus
        await bus.stop(drain=False)  # time stands still: after a failure nobody would end a drain
