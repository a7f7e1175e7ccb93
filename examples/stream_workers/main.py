"""Worker processes do the jobs of a topic. One is killed and started again; no job is lost.

Run `python examples/stream_workers/main.py`.
"""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import sys
import tempfile

from penstock import StreamingScalingManager

JOBS = 200 if os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1" else 2_000
LIMIT = 2_000
WORKERS = 2


def done() -> dict[str, int]:
    """The jobs that are done, and how often; those of a worker that died may be done twice."""
    counts: dict[str, int] = {}
    for name in glob.glob("primes-*.txt"):
        with open(name, encoding="ascii") as file:
            for line in file:
                place = line.split()[0]
                counts[place] = counts.get(place, 0) + 1
    return counts


def worker_ids() -> list[int]:
    """The processes that have done something."""
    return [int(name[len("primes-") : -len(".txt")]) for name in glob.glob("primes-*.txt")]


async def until(count: int) -> None:
    """Wait until so many jobs are done."""
    while len(done()) < count:  # noqa: ASYNC110 - other processes do them
        await asyncio.sleep(0.05)


async def work(directory: str) -> bool:
    async with StreamingScalingManager(f"log:{directory}") as streams:
        await streams.create_topic("jobs", partitions=4)
        await streams.publish_many("jobs", [b"%d" % LIMIT] * JOBS)
        # A short lease: when a worker dies, the others get its partitions soon.
        lease = {"lease_seconds": 2.0}
        async with streams.run(
            "jobs",
            "primes",
            "work:count_primes",  # work.py, beside this file
            executor="process",
            consumers=WORKERS,
            subscribe_options=lease,
        ) as run:
            await until(JOBS // 10)
            victim = worker_ids()[0]
            os.kill(victim, signal.SIGKILL)
            print(f"{WORKERS} processes work on {JOBS:,} jobs; {victim} was killed.")
            await until(JOBS)
            figures = run.statistics()
        again = sum(count - 1 for count in done().values())
        print(f"All {len(done()):,} jobs are done, {again:,} of them again after the kill.")
        print(f"Workers that were started again: {figures.restarts}.")
        return len(done()) == JOBS and figures.restarts >= 1


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-workers-") as directory:
        os.chdir(directory)  # where the workers write
        return 0 if asyncio.run(asyncio.wait_for(work("data"), timeout=150)) else 1


if __name__ == "__main__":
    sys.exit(main())
