"""Runs the examples of the pages on Spark, one page after the other, in one Spark; run by test_pages.py."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException

from penstock.spark import WarehouseTable, spark_session
from penstock.spark.running import STARTS_MAX, TOO_SLOW
from tests.snippets import ROOT, Block, blocks_of, run_blocks
from tests.spark.spark_world import LogWorld

RUN_HERE = "tests/spark/test_pages.py runs it"
ORDERS = 20
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def order(number: int) -> bytes:
    """As the class on the page has it; every second one was sent twice."""
    return msgspec.json.encode(
        {
            "order_id": f"o-{number // 2}",
            "country": "de" if number % 4 < 2 else "fr",
            "cents": 100,
            "placed_at": NOON + timedelta(minutes=number // 4),
        }
    )


def blocks_to_run(page: str) -> list[Block]:
    blocks = blocks_of((ROOT / "docs" / page).read_text(encoding="utf-8"))
    chosen = [one for one in blocks if RUN_HERE in (one.skipped_because or RUN_HERE)]
    assert any(one.skipped_because for one in chosen), f"{page} has no example for Spark"
    return chosen


def run_page(page: str) -> dict[str, object]:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    run_blocks(blocks_to_run(page), page, main.__dict__)
    return main.__dict__


def run_topics() -> None:
    """The page on topics; again when the machine was too busy for Spark's patience."""
    for _ in range(STARTS_MAX):
        query: Any = run_page("spark.md")["query"]
        try:
            query.processAllAvailable()
            query.stop()
            break
        except StreamingQueryException as failure:
            if TOO_SLOW not in str(failure):
                raise
            spark_session().catalog.dropTempView("orders")


def ask_to_end() -> None:
    """SIGTERM, as soon as the example listens to it."""
    pause = threading.Event()
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        pause.wait(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    warnings.simplefilter("ignore")
    Path("data").mkdir()
    log = LogWorld("data")
    log.create("orders")
    log.publish("orders", [order(number) for number in range(ORDERS)])

    run_topics()
    spark = spark_session()
    assert spark.read.parquet("out").count() == ORDERS
    assert spark.sql("SELECT * FROM orders").count() == ORDERS

    threading.Thread(target=ask_to_end, daemon=True).start()
    run_page("pipelines.md")
    assert WarehouseTable("warehouse/silver/orders").count() == ORDERS // 2
    revenue = [msgspec.json.decode(row["value"]) for row in log.rows(subscribe="revenue")]
    assert sum(one["cents"] for one in revenue) == ORDERS * 100
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
