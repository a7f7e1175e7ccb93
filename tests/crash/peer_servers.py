"""Peers that are servers: Redis Streams and NATS JetStream, each started for the run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.peer import Peer
from tests.transports.servers.nats import NatsServer

ANSWER_SECONDS = 2
PAGE = 500


class Redis(Peer):
    """A server of its own, with the append-only file as it is when one turns it on."""

    policy = "everysec"

    def __init__(self, folder: Path) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        super().__init__(folder)
        # Elsewhere the name is too long for a socket.
        socket = Path("/tmp") / f"penstock-peer-{os.getpid()}.sock"
        self._server = subprocess.Popen(
            [
                *("redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)),
                *("--appendonly", "yes", "--appendfsync", self.policy, "--save", ""),
            ],
            stdout=subprocess.DEVNULL,
        )
        self._client = redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0))
        while not self._is_up():
            self._pause()

    def _is_up(self) -> bool:
        import redis

        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def _pause(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(0.02)
            raise OSError("the server does not start")

    def keep(self, number: int, value: bytes) -> None:
        self._client.xadd("numbers", {b"v": value}, id=f"{number}-1")

    def kept(self) -> Iterable[tuple[int, bytes]]:
        entries: Any = self._client.xrange("numbers")
        for entry, fields in entries:
            yield int(entry.partition(b"-")[0]), fields[b"v"]

    def close(self) -> None:
        self._client.shutdown(nosave=True)
        self._server.wait(20)


class RedisAlways(Redis):
    """With a sync for each write."""

    policy = "always"


class Nats(Peer):
    """JetStream with one replica and its defaults: files are synced every two minutes."""

    settings = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # What it prints and how it is set is not on the disk that is cut.
        home = Path(tempfile.mkdtemp(prefix="penstock-peer-"))
        store = f'jetstream {{ store_dir: "{folder}"\n{self.settings} }}'
        self._server = NatsServer(home, store)
        self._server.jetstream = False
        self._server.start()
        self._runner = asyncio.Runner()
        self._client, self._stream = self._runner.run(self._connect())

    async def _connect(self) -> tuple[Any, Any]:
        import nats

        client = await nats.connect(self._server.url, allow_reconnect=False)
        stream = client.jetstream(timeout=ANSWER_SECONDS)
        await stream.add_stream(name="numbers", subjects=["numbers.*"])
        return client, stream

    def keep(self, number: int, value: bytes) -> None:
        self._runner.run(self._stream.publish(f"numbers.{number}", value))

    def kept(self) -> Iterable[tuple[int, bytes]]:
        return self._runner.run(self._all())

    async def _all(self) -> list[tuple[int, bytes]]:
        from nats.js.api import AckPolicy, ConsumerConfig

        found: list[tuple[int, bytes]] = []
        unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
        reader = await self._stream.pull_subscribe("numbers.*", config=unacknowledged)
        pending = (await reader.consumer_info()).num_pending
        while pending:
            messages = await reader.fetch(PAGE, timeout=ANSWER_SECONDS)
            found += [(int(one.subject.partition(".")[2]), one.data) for one in messages]
            pending = messages[-1].metadata.num_pending
        return found

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()
        self._server.stop()
        shutil.rmtree(self._server.folder)


class NatsAlways(Nats):
    """With a sync for each write."""

    settings = "sync_interval: always"
