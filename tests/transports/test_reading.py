"""Waiting for records that are read ahead."""

import asyncio

import pytest

from penstock.errors import DeadlineExceeded
from penstock.transports.reading import arrival
from penstock.transports.records import StreamBatch

BATCH = StreamBatch("orders", 0, [], 1)


async def test_it_looks_again_when_something_has_arrived():
    arrived = asyncio.Event()
    found = iter([None, None, BATCH])

    def look():
        asyncio.get_running_loop().call_soon(arrived.set)
        return next(found)

    assert await arrival("orders", look, arrived, None) is BATCH


async def test_when_nothing_came_the_error_names_the_topic():
    with pytest.raises(DeadlineExceeded, match="no record of 'orders' came within 0 s"):
        await arrival("orders", lambda: None, asyncio.Event(), 0)


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_broker_that_was_late_is_told_as_it_is(timeout):
    def look():
        raise DeadlineExceeded("the broker did not answer", seconds=1.0)

    with pytest.raises(DeadlineExceeded, match="the broker did not answer"):
        await arrival("orders", look, asyncio.Event(), timeout)
