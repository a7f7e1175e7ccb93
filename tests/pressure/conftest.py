"""What the tests of streams under pressure start from."""

from __future__ import annotations

import pytest

from penstock import System
from penstock.pressure import StreamingBackpressureHandler
from penstock.testing import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def make(clock):
    def make(capacity, strategy, **options):
        return StreamingBackpressureHandler(
            capacity, strategy=strategy, system=System(clock=clock), **options
        )

    return make
