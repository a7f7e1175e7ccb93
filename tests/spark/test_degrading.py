"""The lag of a pipeline: what it leaves out by itself, and what producers feel of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.errors import InvalidOption, LoadShed
from penstock.pressure import BackpressureState
from penstock.spark.degrading import SETTLE_SECONDS, LagLevels
from penstock.spark.group import Group
from penstock.spark.open_log import open_log
from penstock.spark.running import RunningPipeline
from penstock.streaming import LagLimit, StreamingScalingManager
from penstock.testing import VirtualClock
from tests.spark.shop_world import OrderPlaced, order, shop_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def flags(levels: LagLevels, records: int) -> tuple[bool, bool]:
    directive = levels.directive(records)
    return directive.batch_more, directive.skip_enrichment


def test_levels_go_up_and_down_at_different_marks() -> None:
    clock = VirtualClock()
    levels = LagLevels(100, clock, settle_seconds=0)
    seen = [flags(levels, lag) for lag in (0, 69, 70, 84, 85, 51, 49, 36, 34)]
    assert seen == [
        (False, False), (False, False), (True, False), (True, False), (True, True),
        (True, True), (True, False), (True, False), (False, False),
    ]  # fmt: skip


def test_a_new_plan_has_time_to_work() -> None:
    clock = VirtualClock()
    levels = LagLevels(100, clock)
    assert flags(levels, 100) == (True, True)
    clock.advance(SETTLE_SECONDS - 1)
    assert flags(levels, 0) == (True, True)
    clock.advance(1)
    assert flags(levels, 0) == (False, False)


def test_a_limit_is_a_number_of_records(log, tmp_path) -> None:
    with pytest.raises(InvalidOption, match="lag_records_max is 0"):
        shop_in(log, tmp_path, lag_records_max=0)


def test_a_pipeline_that_lags_leaves_out_what_it_may_and_takes_it_up_again(
    log, tmp_path, monkeypatch
) -> None:
    """What stopping and starting does is seen with Spark elsewhere; here is what asks for it."""
    shop = shop_in(log, tmp_path, lag_records_max=10)
    shop.source(OrderPlaced)
    log.publish("orders", [order(number) for number in range(20)])
    running = RunningPipeline(shop, None, every=None, once=False)  # type: ignore[arg-type]
    running._levels = LagLevels(10, VirtualClock(), settle_seconds=0)
    starts: list[bool] = []
    monkeypatch.setattr(running, "start", lambda: starts.append(shop.directive.skip_enrichment))
    assert not running.adjust().degraded, "a group that never read has no lag"
    group = Group(open_log(log.path), "shop.orders.dead-letters")
    group.begin({"orders": {0: 0, 1: 0}})
    assert running.adjust().skip_enrichment
    assert running.adjust().utilisation == 2.0
    group.commit({"orders": {0: 10, 1: 10}})
    assert not running.adjust().degraded
    assert starts == [True, False]


async def test_producers_feel_a_query_that_lags_until_it_has_caught_up(
    spark, log, tmp_path
) -> None:
    shop = await asyncio.to_thread(shop_in, log, tmp_path)
    orders = shop.source(OrderPlaced)

    @shop.table("orders")
    def kept() -> DataFrame:
        return orders.frame().drop("_record")

    await asyncio.to_thread(log.publish, "orders", [order(0)])
    await asyncio.to_thread(shop.run, spark)
    limits = {"orders/shop.kept": LagLimit(records_max=10)}
    async with StreamingScalingManager(
        f"log:{log.path}", lag_limits=limits, look_seconds=3600
    ) as streams:
        await streams.publish_many("orders", [order(number) for number in range(1, 21)])
        await streams.look()
        with pytest.raises(LoadShed) as caught:
            await streams.publish("orders", order(21))
        assert caught.value.topic == "orders"
        pressure = streams.lag_pressure.statistics("orders")
        assert pressure is not None
        assert pressure.level is BackpressureState.SHEDDING
        assert "shop.kept" in pressure.explain()
        await asyncio.to_thread(shop.run, spark)
        await streams.look()
        await streams.publish("orders", order(21))
        pressure = streams.lag_pressure.statistics("orders")
        assert pressure is not None
        assert pressure.level is BackpressureState.NORMAL
