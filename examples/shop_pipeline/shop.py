"""A shop's data, from three topics to tables and alerts. This file is the whole pipeline.

    penstock pipeline run examples/shop_pipeline/shop.py

`main.py` beside it makes traffic, runs the pipeline and checks the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock import Event, topic
from penstock.spark import Pipeline, deduplicate, join, sessions, stateful, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

HOME = os.path.abspath(os.environ.get("SHOP_HOME", "./shop-data"))
URL = os.environ.get("SHOP_URL") or f"log:{HOME}/log"
"""Where the topics are: a log in a directory, or kafka://host:port. Nothing else changes with it."""
LATE = "15 minutes"
"""What is later than this is not waited for."""


# What is in the topics


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    country: str
    cents: int
    placed_at: datetime


@topic("payments", key="order_id")
class PaymentTaken(Event):
    payment_id: str
    order_id: str
    card: str
    cents: int
    paid_at: datetime


@topic("clicks", key="session_id")
class PageSeen(Event):
    click_id: str
    session_id: str
    page: Literal["home", "product", "cart", "checkout"]
    seen_at: datetime


shop = Pipeline("shop", log=URL, folder=f"{HOME}/warehouse")
orders = shop.source(OrderPlaced, rules={"the amount is negative": "cents >= 0"})
payments = shop.source(PaymentTaken, rules={"the amount is negative": "cents >= 0"})
clicks = shop.source(PageSeen)


# Bronze: every record as it came, good or bad


@shop.table("bronze/records", partition_by=["topic"])
def bronze_records() -> DataFrame:
    everything = shop.records("orders", "payments", "clicks")
    return everything.select("topic", "partition", "offset", "timestamp", "key", "value")


# Silver: typed, valid, each once; sales are orders with their payment


def unique_orders() -> DataFrame:
    return deduplicate(orders.frame().drop("_record"), "order_id", time="placed_at", within=LATE)


def unique_payments() -> DataFrame:
    frame = payments.frame().drop("_record").withColumnRenamed("cents", "paid_cents")
    return deduplicate(frame, "payment_id", time="paid_at", within=LATE)


@shop.table("silver/orders", partition_by=["country"])
def silver_orders() -> DataFrame:
    return unique_orders()


@shop.table("silver/sales")
def silver_sales() -> DataFrame:
    times = ("placed_at", "paid_at")
    return join(unique_orders(), unique_payments(), "order_id", times=times, within=LATE)


# Gold: what people look at


@shop.table("gold/revenue")
def gold_revenue() -> DataFrame:
    """Revenue per minute and country; a minute is written when nothing more is waited for."""
    minutes = window(unique_orders(), "country", time="placed_at", size="1 minute", late=LATE)
    return minutes.agg(F.sum("cents").alias("cents"), F.count("*").alias("orders")).select(
        "window.start", "country", "cents", "orders"
    )


@shop.table("gold/funnel")
def gold_funnel() -> DataFrame:
    """How far each visit came; a visit ends when nothing happens for ten minutes."""
    unique = deduplicate(clicks.frame().drop("_record"), "click_id", time="seen_at", within=LATE)
    visits = sessions(unique, "session_id", time="seen_at", gap="10 minutes", late=LATE)
    steps = [F.max(F.col("page") == page).alias(page) for page in ("product", "cart", "checkout")]
    return visits.agg(F.count("*").alias("clicks"), *steps).select("session_id", "clicks", *(
        F.col(page) for page in ("product", "cart", "checkout")
    ))  # fmt: skip


class Fraud(StatefulProcessor):
    """Scores each payment by how many the card has made before it, and how large they were."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "count LONG, cents LONG")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        from pyspark.sql import Row

        count, cents = self._seen.get() or (0, 0)
        for payment in sorted(rows, key=lambda one: one.paid_at):
            count, cents = count + 1, cents + payment.paid_cents
            yield Row(
                payment_id=payment.payment_id, card=key[0], payments=count, cents=cents,
                score=min(1.0, count / 20) * min(1.0, cents / 200_000),
            )  # fmt: skip
        self._seen.update((count, cents))

    def close(self) -> None:
        """Nothing to let go of."""


@shop.topic("fraud", key="card")
def fraud_alerts() -> DataFrame:
    """Payments that look like fraud, for whoever blocks cards."""
    columns = "payment_id STRING, card STRING, payments LONG, cents LONG, score DOUBLE"
    scored = stateful(unique_payments(), "card", processor=Fraud(), columns=columns)
    return scored.where("score >= 0.9")
