"""Programs that tests run in processes of their own, to be limited, forked or killed."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable

from penstock.errors import Forked, PenstockError, StoreFailed, SubscriberBusy
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig


def say(text: object) -> None:
    os.write(1, f"{text}\n".encode())


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def wait_for_the_test() -> None:
    """Until the test closes its end."""
    sys.stdin.read()


async def exhaust_descriptors(path: str) -> None:
    """Work while there are fewer and fewer descriptors left, then with enough of them again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_descriptors()
    acknowledged = refused = 0
    for spare in range(2, 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
        try:
            async with WalMessageQueue(path) as queue:
                await queue.create_topic("orders", TopicConfig(partitions=4))
                for number in range(8):
                    await queue.publish("orders", b"%d" % number)
                    acknowledged += 1
        except (PenstockError, OSError) as error:
            refused += 1
            code = getattr(error, "errno", None)
            say(f"error {type(error).__name__} {code}")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with WalMessageQueue(path) as queue:
        found = [record async for record in queue.replay("orders")]
        await queue.publish("orders", b"more")
    say(f"refused {refused}")
    say(f"acknowledged {acknowledged}")
    say(f"found {len(found)}")


async def leak(path: str) -> None:
    """Open, use and close many times; the descriptors after each."""
    for _ in range(30):
        async with WalMessageQueue(path) as queue:
            await queue.create_topic("orders", TopicConfig(partitions=3))
            await queue.publish_many("orders", [b"a", b"b", b"c"])
            async with queue.subscribe("orders", "billing") as subscription:
                async for record in subscription:
                    await subscription.commit(record)
                    break
            [record async for record in queue.replay("orders")]
        say(open_descriptors())


async def subscribe(path: str) -> None:
    """Hold a subscriber name until killed, or say that it is taken."""
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        subscription = queue.subscribe("orders", "billing")
        try:
            await subscription.open()
        except SubscriberBusy as error:
            say(type(error).__name__)
            return
        say("subscribed")
        wait_for_the_test()


async def fork_after_open(path: str) -> None:
    """Fork with an open queue: the child is refused, the parent goes on."""
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", b"before")
        async with queue.subscribe("orders", "billing") as subscription:
            child = os.fork()
            if child == 0:
                # The parent's loop is the parent's; a child starts its own, and never returns.
                try:
                    asyncio.run(in_the_child(queue))
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            acknowledged = await queue.publish("orders", b"after")
            say(f"parent {acknowledged.offset}")
            record = await anext(aiter(subscription))
            await subscription.commit(record)
            say(f"parent read {record.offset}")


async def in_the_child(queue: WalMessageQueue) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "publish": lambda: queue.publish("orders", b"child"),
        "publish_many": lambda: queue.publish_many("orders", [b"child"]),
        "create_topic": lambda: queue.create_topic("other"),
        "flush": queue.flush,
        "topics": queue.topics,
        "replay": lambda: anext(queue.replay("orders")),
    }
    for name, call in calls.items():
        try:
            await call()
            say(f"child {name} worked")
        except Forked:
            say(f"child {name} Forked")
    try:
        queue.publish_nowait("orders", b"child")
        say("child publish_nowait worked")
    except Forked:
        say("child publish_nowait Forked")


async def die_with_a_child(path: str) -> None:
    """Hold a subscriber name, fork a child that lives on, die."""
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing"):
            if os.fork() == 0:
                wait_for_the_test()
                os._exit(0)
            say("forked")
            os.kill(os.getpid(), signal.SIGKILL)


async def publish_now(path: str) -> None:
    """One record; its timestamp, and those of all before it."""
    async with WalMessageQueue(path) as queue:
        await queue.publish("orders", b"one")
        say(" ".join([str(record.timestamp) async for record in queue.replay("orders")]))


async def read_only(path: str) -> None:
    """Try to write, then read."""
    try:
        async with WalMessageQueue(path) as queue:
            await queue.publish("orders", b"more")
            say("published")
    except StoreFailed as error:
        say(f"{type(error).__name__}: {error}")
    async with WalMessageQueue(path, read_only=True) as queue:
        values = [record.value async for record in queue.replay("orders")]
        say(f"read {len(values)}")
        try:
            await queue.publish("orders", b"more")
            say("published")
        except PenstockError as error:
            say(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    asyncio.run(globals()[program](*arguments))
