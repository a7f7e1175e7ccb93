"""Batches of what a subscription has at hand, for several who ask at the same time."""

import asyncio

from penstock.testing.worker import simulated_system
from tests.log.test_small_promises import make


async def test_who_waited_for_another_s_read_takes_the_rest_of_it():
    async with make(simulated_system()) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            waiting = [asyncio.create_task(subscription.next_batch(30, 1)) for _ in range(2)]
            while not subscription._filling._waiters:
                await asyncio.sleep(0)
            await queue.publish_many("orders", [b"0", b"1", b"2", b"3"])
            batches = [*await asyncio.gather(*waiting), await subscription.next_batch(30)]
    assert [[one.value for one in batch] for batch in batches] == [[b"0"], [b"1"], [b"2", b"3"]]


async def test_all_that_was_read_is_given_out_as_it_is_and_once():
    async with make(simulated_system()) as queue:
        await queue.publish_many("orders", [b"0", b"1", b"2"])
        async with queue.subscribe("orders", "billing") as subscription:
            whole = await subscription.next_batch(30, 3)
            assert [one.value for one in whole] == [b"0", b"1", b"2"]
            whole.records.clear()
            await subscription.seek("earliest")
            assert (await anext(subscription)).value == b"0"
            assert [one.value for one in await subscription.next_batch(30)] == [b"1", b"2"]
            await subscription.seek("earliest")
            assert [one.value for one in await subscription.next_batch(30, 2)] == [b"0", b"1"]
            assert [one.value for one in await subscription.next_batch(30, 2)] == [b"2"]
