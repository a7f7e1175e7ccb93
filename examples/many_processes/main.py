"""Two processes publish into one directory while a third consumes it. There is no server.

Run `python examples/many_processes/main.py`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
from collections import Counter

from penstock import TopicConfig, WalMessageQueue

RECORDS = 200 if os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1" else 20_000
WORKERS = ["left", "right"]
TOPIC = "jobs"
CONFIG = TopicConfig(partitions=2)


def worker(directory: str, name: str) -> None:
    """A process that publishes; it opens a queue of its own on the directory."""
    asyncio.run(publish(directory, name))


async def publish(directory: str, name: str) -> None:
    async with WalMessageQueue(directory) as queue:
        await queue.create_topic(TOPIC, CONFIG)
        for start in range(0, RECORDS, 50):
            # A key keeps the records of one worker in one partition, and so in order.
            values = [b"%d" % number for number in range(start, start + 50)]
            await queue.publish_many(TOPIC, values, keys=[name.encode()] * len(values))


async def consume(directory: str) -> bool:
    """Read what the others publish, while they do; whether all came, in order, once."""
    async with WalMessageQueue(directory) as queue:
        await queue.create_topic(TOPIC, CONFIG)
        seen: Counter[str] = Counter()
        in_order = True
        wake_ups = 0
        async with queue.subscribe(TOPIC, "counter") as subscription:
            async for batch in subscription.batches():
                wake_ups += 1
                for record in batch:
                    name = (record.key or b"").decode()
                    in_order &= record.value == b"%d" % seen[name]
                    seen[name] += 1
                await subscription.commit(batch)
                if seen.total() == RECORDS * len(WORKERS):
                    break
        for name, count in sorted(seen.items()):
            print(f"  {name}: {count:,} records")
        print(f"In {wake_ups:,} batches, {'in order' if in_order else 'NOT in order'}.")
        return in_order and seen == dict.fromkeys(WORKERS, RECORDS)


def main() -> int:
    # A queue does not survive fork(), so new processes are spawned, or open their own.
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="penstock-processes-") as directory:
        processes = [spawn.Process(target=worker, args=(directory, name)) for name in WORKERS]
        for process in processes:
            process.start()
        print(f"Two processes publish {RECORDS:,} records each; this one, {os.getpid()}, consumes.")
        well = asyncio.run(asyncio.wait_for(consume(directory), timeout=120))
        for process in processes:
            process.join()
        return 0 if well and all(process.exitcode == 0 for process in processes) else 1


if __name__ == "__main__":
    sys.exit(main())
