"""A process whose machine gives out: it publishes until it cannot, then goes on when it can again.

Run as ``python limited.py <what> <path>``; prints what happened as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import PenstockError

CONFIG = TopicConfig(segment_bytes_max=20_000)
VALUE = bytes(1_000)


@contextmanager
def limit(what: int, value: int) -> Iterator[None]:
    """The soft limit of this process, for the time being."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


@contextmanager
def few_files() -> Iterator[None]:
    """As many descriptors as are open already, and two more."""
    with limit(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + 2):
        yield


@contextmanager
def short_files() -> Iterator[None]:
    """No file may have more than so many bytes: a write is cut short, then refused."""
    with limit(resource.RLIMIT_FSIZE, 12_345):
        yield


@contextmanager
def read_only() -> Iterator[None]:
    """The file system takes no more writes."""
    mount = os.environ["PENSTOCK_MOUNT"]
    subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", mount], check=True)


LIMITS = {"files": few_files, "size": short_files, "read-only": read_only}


async def publish(queue: WalMessageQueue, told: list[int], count: int) -> str:
    """Publish until it fails; the name of the error, or nothing."""
    for _ in range(count):
        try:
            done = await queue.publish("orders", VALUE)
        except PenstockError as error:
            return type(error).__name__
        told.append(done.offset)
    return ""


async def run(path: str, limited: Callable[[], object]) -> dict[str, object]:
    told: list[int] = []
    async with WalMessageQueue(path, maintenance_interval=None) as queue:
        await queue.create_topic("orders", CONFIG)
        await publish(queue, told, 5)
    before = len(os.listdir("/proc/self/fd"))
    errors = []
    with limited():  # type: ignore[attr-defined]
        try:
            async with WalMessageQueue(path, maintenance_interval=None) as queue:
                errors.append(await publish(queue, told, 60))
                errors.append(await publish(queue, told, 5))
        except PenstockError as error:
            errors.append(type(error).__name__)
    left = len(os.listdir("/proc/self/fd")) - before
    async with WalMessageQueue(path, maintenance_interval=None) as queue:
        last = await queue.publish("orders", b"last")
        found = [record.offset async for record in queue.replay("orders")]
    return {
        "errors": errors,
        "acknowledged": len(told),
        "lost": len(set(told) - set(found)),
        "dense": found == list(range(last.offset + 1)),
        "descriptors_left": left,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[2], LIMITS[sys.argv[1]]))))
