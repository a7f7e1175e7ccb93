"""The transport suite: members in processes of their own, that are killed and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import transport_member
from penstock.testing.transport_fixtures import (
    WAIT_SECONDS,
    MakeTransport,
    TransportFixtures,
    need,
    numbered,
    take,
    values_of,
)

MEMBER = transport_member.__name__
SAID_SECONDS = 2 * WAIT_SECONDS
"""For a process to start, or to do what it is told, which has a deadline of its own."""


class MemberProcess:
    """A member in another process. It says lines; see ``transport_member``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def hear(self) -> list[Any] | None:
        """The next thing that it says; None when it says no more."""
        assert self._process.stdout is not None
        async with asyncio.timeout(SAID_SECONDS):
            line = await self._process.stdout.readline()
        # The last line of one that was killed may be cut.
        return json.loads(line) if line.endswith(b"\n") else None

    async def tell(self, word: str) -> None:
        """Give an order, and do not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def ask(self, word: str) -> list[Any] | None:
        """Give an order, and hear the answer."""
        await self.tell(word)
        return await self.hear()

    async def take_up_to(self, next_offset: int) -> int:
        """Have it take what is below an offset, in as many batches as it comes; the first offset it got."""
        _, _, first, end = await self._taken()
        while end < next_offset:
            *_, end = await self._taken()
        assert end == next_offset
        return int(first)

    async def finish_up_to(self, next_offset: int) -> int:
        """Have it take and commit what is below an offset; the first offset that it committed.

        On a busy machine it may lose its lease in between. Then it takes the same again.
        """
        while True:
            first = await self.take_up_to(next_offset)
            if await self.ask("commit") == ["done"]:
                return first

    async def _taken(self) -> list[Any]:
        said = await self.ask("take")
        assert said is not None, "it ended"
        assert said[0] == "got", said
        return said

    def send(self, what: signal.Signals) -> None:
        """Kill it, stop it, let it go on."""
        os.kill(self.pid, what)

    async def stop(self) -> None:
        """Stop it between two calls.

        One that is stopped while it holds the lock of a group would hold up the others until it goes on.
        """
        async with asyncio.timeout(SAID_SECONDS):
            while True:
                self.send(signal.SIGSTOP)
                await asyncio.to_thread(os.waitid, os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
                if not holds_a_lock(self.pid):
                    return
                self.send(signal.SIGCONT)
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Kill it, stopped or not, and wait for its end."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


def holds_a_lock(pid: int) -> bool:
    """Whether a process has a file locked. Where there is no ``/proc``, nobody knows, and it says no."""
    for one in Path(f"/proc/{pid}/fdinfo").glob("*"):
        with suppress(OSError):
            if "lock:" in one.read_text(encoding="ascii"):
                return True
    return False


@asynccontextmanager
async def member_process(
    url: str, topic: str, group: str, options: Mapping[str, Any], records_max: int | str = ""
) -> AsyncIterator[MemberProcess]:
    """Start a member and wait until it has joined; it is killed at the end."""
    arguments = [url, topic, group, json.dumps(dict(options)), str(records_max)]
    process = MemberProcess(
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", MEMBER, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    )
    try:
        assert await process.hear() == ["ready"]
        yield process
    finally:
        await process.end()


class ProcessConformance(TransportFixtures):
    """What becomes of the members that die or stop, where a group spans processes."""

    @pytest.fixture
    def transport_url(self) -> str | None:
        """The URL that another process opens for the same place; None: these tests are skipped."""
        return None

    @pytest.fixture
    def quick_lease(self) -> Mapping[str, Any]:
        """Options of ``subscribe`` with which a member that does not answer is soon given up.

        The one that takes over has the usual ones: it is not to be given up while it works.
        """
        return {}

    async def test_what_a_killed_member_had_and_did_not_commit_comes_again(
        self,
        make_transport: MakeTransport,
        topic: str,
        transport_url: str | None,
        quick_lease: Mapping[str, Any],
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups", "rebalance", "shared")
            url = transport_url or pytest.skip("no transport_url was given")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(5))
            async with member_process(url, topic, "billing", quick_lease) as victim:
                assert await victim.finish_up_to(5) == 0
                await transport.produce(topic, numbered(5, 5))
                said = await victim.ask("take")
                assert said is not None
                assert said[:3] == ["got", 0, 5]
                victim.send(signal.SIGKILL)
                async with transport.subscribe(topic, "billing") as other:
                    assert values_of(await take(other, 5)) == numbered(5, 5)
                    await other.commit()
            assert [one.records for one in await transport.lag(topic, "billing")] == [0]

    async def test_a_member_that_was_stopped_is_fenced_when_it_goes_on(
        self,
        make_transport: MakeTransport,
        topic: str,
        transport_url: str | None,
        quick_lease: Mapping[str, Any],
    ) -> None:
        async with make_transport() as transport:
            need(transport, "groups", "rebalance", "shared")
            url = transport_url or pytest.skip("no transport_url was given")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(5))
            async with member_process(url, topic, "billing", quick_lease) as zombie:
                assert await zombie.take_up_to(5) == 0
                await zombie.stop()
                async with transport.subscribe(topic, "billing") as other:
                    assert values_of(await take(other, 5)) == numbered(5)
                    await other.commit()
                    zombie.send(signal.SIGCONT)
                    assert await zombie.ask("commit") == ["fenced"]
                    await transport.produce(topic, numbered(3, 5))
                    assert values_of(await take(other, 3)) == numbered(3, 5)
                    await other.commit()
                # It is a member again, and goes on where the other one was.
                await transport.produce(topic, numbered(1, 8))
                assert await zombie.finish_up_to(9) == 8
            assert [one.records for one in await transport.lag(topic, "billing")] == [0]
