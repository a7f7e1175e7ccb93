"""What a producer of Kafka is told of its records, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

pytest.importorskip("confluent_kafka")
from penstock.transports.kafka_producer import Batch


class Told(NamedTuple):
    """A record as the client tells of it."""

    number: int | None
    where: int | None

    def partition(self) -> int | None:
        return self.number

    def offset(self) -> int | None:
        return self.where


async def ranges(*told: Told) -> dict[int, tuple[int, int]]:
    batch = Batch()
    batch.handed_over(len(told), None)
    for one in told:
        message: Any = one
        batch.placed(None, message)
    async with asyncio.timeout(60):
        return await batch.wait()


async def test_first_and_last_of_a_partition_are_its_range() -> None:
    assert await ranges(Told(1, 7), Told(0, 3), Told(1, 9)) == {0: (3, 4), 1: (7, 10)}


@pytest.mark.parametrize(
    "told", [(Told(1, None), Told(1, 9)), (Told(1, 7), Told(1, None)), (Told(None, None),)]
)
async def test_what_the_broker_had_before_is_acknowledged_without_its_place(
    told: tuple[Told, ...],
) -> None:
    """After a lost answer the client sends again, and the broker says: I have it."""
    assert await ranges(Told(0, 3), *told) == {0: (3, 4)}
