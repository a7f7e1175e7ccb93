"""Several processes on one directory: routing, names, notices, fork."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import SubscriberBusy
from penstock.hashing import fnv1a
from penstock.testing.queue_fixtures import everything, numbered, settle, values_of

WAIT_SECONDS = 120
KEYS = [b"", b"a", b"foobar", b"order-17", bytes(range(256)), "Grüße".encode()]

HEADER = """
import asyncio, json, os, sys
from penstock import TopicConfig, WalMessageQueue
from penstock.errors import Forked, PenstockError

path = sys.argv[1]

def say(what):
    print(json.dumps(what), flush=True)

async def hear():
    return await asyncio.to_thread(sys.stdin.readline)
"""

PUBLISH_KEYS = """
async def main():
    keys = [bytes.fromhex(one) for one in json.loads(sys.argv[2])]
    async with WalMessageQueue(path) as queue:
        one_by_one = [(await queue.publish("orders", b"x", key=key)).partition for key in keys]
        await queue.publish_many("orders", keys * 3, keys=keys * 3)
        say(one_by_one)
"""

HOLD_A_NAME = """
async def main():
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            async for record in subscription:
                await subscription.commit(record)
                break
            say("holding")
            await hear()
"""

PUBLISH_WHEN_TOLD = """
async def main():
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        say("ready")
        while line := (await hear()).strip():
            done = await queue.publish_many("orders", [line.encode()] * 3)
            say(list(done.ranges[0]))
"""

PUBLISH_MANY = """
async def main():
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        say("ready")
        await hear()
        name = sys.argv[2]
        done = await asyncio.gather(
            *(queue.publish("orders", f"{name}:{number}".encode()) for number in range(200))
        )
        say([one.offset for one in done])
"""

FORK = """
async def main():
    async with WalMessageQueue(path) as queue:
        await queue.publish("orders", b"0")
        subscription = queue.subscribe("orders", "billing")
        await subscription.open()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                queue.publish_nowait("orders", b"never")
                os.write(writer, b"published")
            except Forked:
                os.write(writer, b"refused")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        say(os.read(reader, 20).decode())
        say((await queue.publish("orders", b"1")).offset)
        try:
            await queue.subscribe("orders", "billing").open()
        except PenstockError as error:
            say(type(error).__name__)
"""


class Process:
    """A child that talks in lines of JSON."""

    def __init__(self, process):
        self._process = process

    async def hear(self):
        async with asyncio.timeout(WAIT_SECONDS):
            line = await self._process.stdout.readline()
        return json.loads(line)

    async def tell(self, line):
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def kill(self):
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def started(script, path, *arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        f"{HEADER}\n{script}\nasyncio.run(main())",
        str(path),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.acceptance(22, 23)
async def test_a_key_has_one_partition_in_every_process(tmp_path):
    path = tmp_path / "data"
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders", TopicConfig(partitions=4))
        keys = json.dumps([key.hex() for key in KEYS])
        async with (
            started(PUBLISH_KEYS, path, keys) as first,
            started(PUBLISH_KEYS, path, keys) as second,
        ):
            assert await first.hear() == await second.hear() == [fnv1a(key) % 4 for key in KEYS]
        for key in KEYS:
            await queue.publish("orders", b"x", key=key)
        records = await everything(queue, "orders")
        assert len(records) == 9 * len(KEYS)
        assert all(one.partition == fnv1a(one.key or b"") % 4 for one in records)


async def test_a_name_is_free_when_its_process_is_killed(tmp_path):
    path = tmp_path / "data"
    async with WalMessageQueue(path) as queue:
        await queue.publish_many("orders", numbered(3))
        async with started(HOLD_A_NAME, path) as child:
            assert await child.hear() == "holding"
            with pytest.raises(SubscriberBusy, match="another process"):
                await queue.subscribe("orders", "billing").open()
            with pytest.raises(SubscriberBusy):
                await queue.unsubscribe("orders", "billing")
            await child.kill()
        async with queue.subscribe("orders", "billing") as subscription:
            # It goes on behind what the dead one committed.
            assert await values_of(subscription, 2) == numbered(2, 1)


async def test_records_of_other_processes_are_noticed(tmp_path):
    path = tmp_path / "data"
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        async with (
            started(PUBLISH_WHEN_TOLD, path) as child,
            queue.subscribe("orders", "billing") as subscription,
        ):
            assert await child.hear() == "ready"
            for number in range(5):
                waiting = asyncio.create_task(values_of(subscription, 3))
                durable = asyncio.create_task(queue.wait_durable("orders", 3 * number + 2))
                await settle()
                await child.tell(str(number))
                assert await child.hear() == [3 * number, 3 * number + 3]
                assert await waiting == [b"%d" % number] * 3
                await durable


async def test_processes_append_side_by_side(tmp_path):
    path = tmp_path / "data"
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders", TopicConfig(segment_bytes_max=4_000))
        async with (
            started(PUBLISH_MANY, path, "a") as first,
            started(PUBLISH_MANY, path, "b") as second,
            queue.subscribe("orders", "billing") as subscription,
        ):
            children = (first, second)
            for child in children:
                assert await child.hear() == "ready"
            for child in children:
                await child.tell("go")
            values = await values_of(subscription, 400)
            offsets = {name: await child.hear() for name, child in zip("ab", children, strict=True)}
        for name, places in offsets.items():
            assert [values[place] for place in places] == [
                f"{name}:{number}".encode() for number in range(200)
            ]
        assert sorted(offsets["a"] + offsets["b"]) == list(range(400))


async def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path):
    async with started(FORK, tmp_path / "data") as child:
        assert await child.hear() == "refused"
        assert await child.hear() == 1
        assert await child.hear() == "SubscriberBusy"
    async with WalMessageQueue(tmp_path / "data") as queue:
        assert [one.value for one in await everything(queue, "orders")] == [b"0", b"1"]
