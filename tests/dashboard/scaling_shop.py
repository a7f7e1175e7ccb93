"""A program that scales, and a pipeline as Spark reports of it, with a dashboard. Writes its address."""

import asyncio
import logging
import sys
from typing import Any

from penstock import ScalabilityConfig, StreamingScalingManager
from penstock.dashboard import Dashboard
from penstock.observe import Observer
from penstock.spark import OutputStatus
from penstock.streaming import GroupLag
from penstock.transports import EmbeddedTransport

CONFIG = ScalabilityConfig(target_throughput_per_partition=5, cooldown_seconds=1, max_partitions=4)


class Pipeline:
    """What a running pipeline tells, with one query that runs and one that failed."""

    def status(self):
        common: dict[str, Any] = {
            "rows_in_all": 120_000, "rows": 4_000, "micro_batch": 41, "input_rows_per_second": 2_000.0,
            "processed_rows_per_second": 2_500.0, "seconds": 1.6, "write_seconds": 0.4,
            "state_rows": 310, "state_bytes": 2_048_000, "rows_too_late": 7,
            "watermark": "2026-03-01T12:00:00.000Z", "watermark_lag_seconds": 12.0,
        }  # fmt: skip
        good = OutputStatus(name="totals", group="shop.totals", running=True, error=None, **common)
        bad = OutputStatus(
            name="lost", group="shop.lost", running=False, error="the table is gone", **common
        )
        return [good, bad]

    def queries(self):
        return {}

    def lags(self):
        return [GroupLag(group="shop.totals", records=900, milliseconds=450)]


async def trade(manager: StreamingScalingManager) -> None:
    while True:
        for _ in range(20):
            await manager.publish("orders", b"x")
        await asyncio.sleep(0.2)


async def main(directory: str) -> None:
    transport = EmbeddedTransport.from_url(f"log:{directory}")
    async with StreamingScalingManager(transport, config=CONFIG, look_seconds=0.5) as manager:
        await manager.create_topic("orders", partitions=1)

        async def handle(_: object) -> None:
            return None

        async with manager.run("orders", "billing", handle):
            async with Observer(look_seconds=0.5) as observer:
                observer.watch(manager)
                observer.watch(Pipeline(), name="shop")
                trading = asyncio.ensure_future(trade(manager))
                async with Dashboard(observer, port=0) as dashboard:
                    print(dashboard.url, flush=True)
                    await asyncio.to_thread(sys.stdin.read)
                trading.cancel()


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(main(sys.argv[1]))
