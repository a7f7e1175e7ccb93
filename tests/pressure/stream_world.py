"""Strategies by short names, and ways to use a stream under pressure."""

from __future__ import annotations

import asyncio

from penstock.pressure import BackpressureState, BackpressureStrategy

NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState
DROP_OLDEST = BackpressureStrategy.DROP_OLDEST
BLOCK = BackpressureStrategy.BLOCK_PRODUCER
SHED = BackpressureStrategy.SHED_LOAD
DEGRADE = BackpressureStrategy.DEGRADE_QUALITY
ADAPTIVE = BackpressureStrategy.ADAPTIVE


async def publish(stream, *items):
    return [await stream.publish(item) for item in items]


def producers(stream, *items, **options):
    return [asyncio.ensure_future(stream.publish(item, **options)) for item in items]


def everything(stream):
    return stream.take_nowait(len(stream))


def balanced(stream):
    """Every item that was published is somewhere."""
    figures = stream.statistics()
    return figures.published == figures.taken + figures.dropped + figures.depth
