"""Orders for the tests of pipelines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from penstock import Event, topic
from penstock.spark.pipeline import Pipeline

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    country: str
    total: float
    placed_at: datetime


def order(number: int, country: str = "de", total: float = 1.0, minute: int = 0) -> bytes:
    placed = OrderPlaced(f"o-{number}", country, total, NOON + timedelta(minutes=minute))
    return msgspec.json.encode(placed)


def shop_in(log, tmp_path, **options) -> Pipeline:
    """A pipeline over a topic of orders, with nothing declared yet."""
    log.create("orders", partitions=2)
    return Pipeline("shop", log=log.path, folder=str(tmp_path / "warehouse"), **options)
