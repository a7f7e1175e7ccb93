"""Queries of Spark as an observer sees them. Spark itself is not started: its values are."""

from dataclasses import replace

import pytest

from penstock import System
from penstock.observe import Cause, GroupActivity, GroupKind, Observer, prometheus_text
from penstock.streaming.lag_pressure import GroupLag
from penstock.testing import VirtualClock

running = pytest.importorskip("penstock.spark.running", reason="needs pyspark")

STATUS = running.OutputStatus(
    name="paid",
    group="shop.paid",
    running=True,
    micro_batch=4,
    rows=100,
    input_rows_per_second=50.0,
    processed_rows_per_second=200.0,
    seconds=0.5,
    state_rows=7,
    state_bytes=1_000,
    rows_too_late=0,
    watermark=None,
    error=None,
    rows_in_all=500,
    write_seconds=0.2,
    watermark_lag_seconds=0.0,
)


class Queries:
    """What a running pipeline tells, as a test wants it."""

    def __init__(self):
        self.queries = {}
        self.told = STATUS
        self.records = 10

    def status(self):
        return [self.told]

    def lags(self):
        return [GroupLag("shop.paid", self.records, 3_000)]


async def test_a_query_is_a_group_that_may_stall():
    clock = VirtualClock()
    observer = Observer(system=System(clock=clock))
    queries = Queries()
    observer.watch(queries, name="shop")
    snapshot = await observer.look()
    [query] = snapshot.queries
    assert (query.group, query.micro_batch, query.lag_records) == ("shop.paid", 4, 10)
    [group] = snapshot.groups
    assert (group.kind, group.state) == (GroupKind.SPARK, GroupActivity.RUNNING)
    assert b'penstock_query_state_rows{group="shop.paid",pipeline="shop"} 7.0' in prometheus_text(
        observer
    )
    clock.advance(29)
    queries.told = replace(STATUS, micro_batch=5)
    assert not (await observer.look()).stalls
    clock.advance(30)
    [stall] = (await observer.look()).stalls
    assert (stall.group, stall.cause) == ("shop.paid", Cause.NO_PROGRESS)
    queries.told = replace(STATUS, micro_batch=5, running=False, error="the disk is full")
    [stall] = (await observer.look()).stalls
    assert stall.cause is Cause.QUERY_FAILED
    assert "the disk is full" in stall.detail
    assert not observer.health().alive
    queries.records = 0
    [group] = (await observer.look()).groups
    assert group.state is GroupActivity.IDLE
    assert not observer.health().ready, "a query that failed reads nothing more"
