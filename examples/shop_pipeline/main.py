"""Producers, a log, a Spark pipeline, tables and alerts: run it, and count whether all of it agrees.

    python examples/shop_pipeline/main.py

`shop.py` declares the pipeline, `traffic.py` makes the traffic. The README explains it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock import Event, topic
from penstock.spark import (
    RunningPipeline,
    WarehouseTable,
    load_pipeline,
    report_of,
    spark_session,
)
from penstock.streaming import StreamingScalingManager
from penstock.transports import open_transport

HERE = Path(__file__).parent
FAST = os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1"
VISITS = 100 if FAST else 20_000
SETTLE_SECONDS = 300.0
ALERT_SECONDS = 60.0
# Compiled less, Java starts in half the time; for a short run that is what counts.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

console = Console(highlight=False)
began = time.monotonic()


@topic("fraud", key="card")
class FraudSuspected(Event):
    """What the pipeline publishes, as the program that blocks cards sees it."""

    payment_id: str
    card: str
    payments: int
    cents: int
    score: float


def say(text: str) -> None:
    console.print(f"{time.monotonic() - began:6.1f} s  {text}", soft_wrap=True, markup=False)


# ---------------------------------------------------------------------- producers and consumers


async def publish(url: str, slices: Iterable[Mapping[str, list[Any]]]) -> int:
    """Publish slice after slice; every record is safe when it returns."""
    count = 0
    async with open_transport(url) as transport:
        for part in slices:
            for name, records in part.items():
                keys, values = zip(*records, strict=True)
                await transport.produce(name, values, keys=keys)
                count += len(records)
    return count


async def make_topics(url: str, names: Iterable[str]) -> None:
    async with open_transport(url) as transport:
        for name in names:
            await transport.create_topic(name, partitions=2)


async def block_cards(url: str, expected: int) -> dict[str, int]:
    """The handler of alerts: it counts them by card."""
    blocked: dict[str, int] = {}
    async with (
        StreamingScalingManager(url) as streams,
        streams.subscribe(FraudSuspected, "card-blocker") as alerts,
        asyncio.timeout(ALERT_SECONDS),
    ):
        while sum(blocked.values()) < expected:
            alert: FraudSuspected = (await anext(alerts)).message
            blocked[alert.card] = blocked.get(alert.card, 0) + 1
    return blocked


async def records_of(url: str, names: Iterable[str]) -> dict[str, int]:
    """How many records each topic has: all that a group which never read has before it."""
    async with open_transport(url) as transport:
        return {
            name: sum(part.records for part in await transport.lag(name, "nobody"))
            for name in names
        }


def settle(running: RunningPipeline, what: str, waiting: list[int]) -> None:
    """Wait until all that was published is in the tables and topics; show and note how it goes."""
    end = time.monotonic() + SETTLE_SECONDS
    shown = 0.0
    while True:
        for one in running.status():
            if one.error is not None:
                raise RuntimeError(f"{one.name} failed: {one.error}")
        behind = sum(lag.records for lag in running.lags())
        waiting.append(behind)
        if not behind:
            break
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: {behind:,} records are still waiting")
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            say(f"  Spark: {behind:,} records to go, over all outputs")
        time.sleep(0.2)
    for query in running.queries.values():
        query.processAllAvailable()
    say(f"  {what}: done by all {len(running.queries)} outputs")


# ------------------------------------------------------------------------------------ the result


def rows(warehouse: str, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WarehouseTable(f"{warehouse}/{table}").arrow().to_pylist()
    return found


@dataclass(frozen=True)
class Sums:
    """Of one topic: what was published, and what became of it. The mark that closes the hour is left out."""

    published: int
    in_the_tables: int
    dead_letters: int
    duplicates: int
    too_late: int
    records: int
    """In the topic itself, with the mark."""
    rows: int
    """In the bronze table, with the mark."""

    @property
    def add_up(self) -> bool:
        became = self.in_the_tables + self.dead_letters + self.duplicates + self.too_late
        return self.published == became and self.rows == self.records == self.published + 1


def sums_of(
    traffic: Any, warehouse: str, letters: Mapping[str, int], records: Mapping[str, int]
) -> dict[str, Sums]:
    """Read the tables and count."""
    bronze = Counter(row["topic"] for row in rows(warehouse, "bronze/records"))
    tables = {
        "orders": sum(row["order_id"] != "closing" for row in rows(warehouse, "silver/orders")),
        "payments": sum(row["order_id"] != "closing" for row in rows(warehouse, "silver/sales")),
        "clicks": sum(row["clicks"] for row in rows(warehouse, "gold/funnel")),
    }
    return {
        name: Sums(
            published=counts.published,
            in_the_tables=tables[name],
            dead_letters=letters[name],
            duplicates=counts.duplicates,
            too_late=counts.too_late,
            records=records[name],
            rows=bronze[name],
        )
        for name, counts in traffic.counts.items()
    }


def accounts(sums: Mapping[str, Sums]) -> tuple[Table, bool]:
    """For each topic: published = in the tables + dead letters + duplicates + too late."""
    grid = Table(title="Every record is accounted for", title_justify="left")
    for title in ("topic", "published", "in the tables", "dead letters", "duplicates", "too late"):
        grid.add_column(title, justify="left" if title == "topic" else "right")
    for name, one in sums.items():
        cells = [one.published, one.in_the_tables, one.dead_letters, one.duplicates, one.too_late]
        grid.add_row(name, *[f"{cell:,}" for cell in cells])
    return grid, all(one.add_up for one in sums.values())


def revenue(traffic: Any, warehouse: str) -> tuple[Table, bool]:
    """Revenue of the hour by country, beside what it has to be."""
    found: dict[str, list[int]] = {}
    for row in rows(warehouse, "gold/revenue"):
        entry = found.setdefault(row["country"], [0, 0, 0])
        for place, value in enumerate((1, row["orders"], row["cents"])):
            entry[place] += value
    grid = Table(title="Revenue by country", title_justify="left")
    for title in ("country", "minutes", "orders", "revenue"):
        grid.add_column(title, justify="left" if title == "country" else "right")
    for country, (minutes, orders, cents) in sorted(found.items()):
        grid.add_row(country, f"{minutes:,}", f"{orders:,}", f"{cents / 100:,.2f}")
    return grid, {name: entry[2] for name, entry in found.items()} == dict(traffic.revenue)


def funnel(warehouse: str) -> Table:
    """How many visits came how far."""
    visits = rows(warehouse, "gold/funnel")
    grid = Table(title="Visits", title_justify="left")
    for title in ("all", "product", "cart", "checkout"):
        grid.add_column(title, justify="right")
    reached = [sum(row[page] for row in visits) for page in ("product", "cart", "checkout")]
    grid.add_row(*[f"{cell:,}" for cell in (len(visits), *reached)])
    return grid


# --------------------------------------------------------------------------------------- the run


def run(home: str, url: str | None, visits: int, seed: int, facts: str | None) -> bool:
    """All of it, its numbers into the file ``facts``; whether everything agreed."""
    os.environ |= {"SHOP_HOME": home, "SHOP_URL": url or ""}
    shop = load_pipeline(str(HERE / "shop.py"))
    sys.path.insert(0, str(HERE))
    from traffic import ALERTS, STOLEN_CARD, Traffic

    traffic = Traffic(seed, visits)
    asyncio.run(make_topics(shop.url, traffic.counts))
    say(f"The topics are in {shop.url}, the warehouse in {shop.folder}.")
    say("Spark starts ...")
    spark = spark_session("shop", master="local[2]", config=QUICK, tell=say)
    say(f"{len(shop.all_outputs())} streaming queries start ...")
    running = shop.start(spark, tell=lambda text: say(f"  {text}"))
    waiting: list[int] = []
    try:
        for what, slices in {
            "half an hour of traffic": traffic.first_half(),
            "what is late": traffic.late(),
            "half an hour more": traffic.second_half(),
            "the end of the hour": traffic.closing(),
        }.items():
            count = asyncio.run(publish(shop.url, slices))
            say(f"Producers: {what}, {count:,} records")
            settle(running, what, waiting)
    finally:
        running.stop()
    blocked = asyncio.run(block_cards(shop.url, ALERTS))
    say(f"The handler of alerts got {sum(blocked.values())}, for {', '.join(blocked)}.")
    letters = {
        one.topic.removesuffix(".dead-letters"): one.records for one in report_of(shop).dead_letters
    }
    spark.stop()
    records = asyncio.run(records_of(shop.url, [*traffic.counts, "fraud"]))
    sums = sums_of(traffic, shop.folder, letters, records)
    if facts:
        numbers = {name: asdict(one) for name, one in sums.items()}
        alerts = {"published": records["fraud"], "handled": sum(blocked.values())}
        everything = {"topics": numbers, "alerts": alerts, "waiting": waiting}
        Path(facts).write_text(json.dumps(everything), encoding="utf-8")
    return show(traffic, shop.folder, sums, alerts=blocked == {STOLEN_CARD: ALERTS})


def show(traffic: Any, warehouse: str, sums: Mapping[str, Sums], *, alerts: bool) -> bool:
    """The tables, and one line that says whether they are right."""
    counted, agree = accounts(sums)
    money, paid = revenue(traffic, warehouse)
    for grid in (counted, money, funnel(warehouse)):
        console.print(grid)
    checks = {"the counts": agree, "the revenue": paid, "the alerts": alerts}
    wrong = [name for name, right in checks.items() if not right]
    published = sum(one.published for one in sums.values())
    console.print(
        f"{'FAIL' if wrong else 'PASS'}: {published:,} records published; "
        f"{', '.join(wrong or checks)} {'do not agree' if wrong else 'agree'}",
        style="bold red" if wrong else "bold green",
        soft_wrap=True,
    )
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="shop_pipeline")
    parser.add_argument("--visits", type=int, default=VISITS, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic (%(default)s)")
    parser.add_argument("--url", help="of the topics: kafka://host:port; a log if nothing is said")
    parser.add_argument("--keep", help="keep everything in this folder")
    parser.add_argument("--facts", help="write the numbers into this file, as JSON")
    options = parser.parse_args()
    rest = (options.url, options.visits, options.seed, options.facts)
    if options.keep:
        if Path(options.keep, "warehouse").exists():
            parser.error(f"{options.keep} has a shop in it already: name another folder")
        Path(options.keep).mkdir(parents=True, exist_ok=True)
        return 0 if run(options.keep, *rest) else 1
    with tempfile.TemporaryDirectory(prefix="penstock-shop-") as home:
        return 0 if run(home, *rest) else 1


if __name__ == "__main__":
    sys.exit(main())
