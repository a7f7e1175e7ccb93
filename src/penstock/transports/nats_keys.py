"""The keys of groups in a JetStream key-value bucket; see :class:`penstock.transports.kv_groups.KeyValue`.

A revision is the sequence of the message that holds the key. Reads ask the leader of the bucket's
stream, never a follower, so that they see the last write.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable

from nats.aio.msg import Msg

from penstock.errors import BrokerFailed
from penstock.transports.broker_groups import Listener
from penstock.transports.kv_groups import Entry, Key
from penstock.transports.nats_connection import NatsConnection
from penstock.transports.records import milliseconds

NO_MESSAGE = 10037
OTHER_REVISION = (10071, 10164)
NAME_IN_USE = 10058
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"


def token(name: str) -> str:
    """A name as one token of a subject, a stream or a key: '.' is what separates those."""
    return name.replace(".", "=")


class NatsKeys:
    """Keys in one bucket, which is made by the first :meth:`open`."""

    def __init__(self, connection: NatsConnection) -> None:
        settings = connection.settings
        self._connection = connection
        self._prefix = settings.prefix
        self._bucket = settings.bucket
        self._stream = f"KV_{settings.bucket}"

    async def open(self) -> None:
        """Make the bucket when it is not there, so that the tools of NATS know it as one."""
        settings = self._connection.settings
        config = {
            "name": self._stream,
            "subjects": [f"$KV.{self._bucket}.>"],
            "retention": "limits",
            "storage": settings.storage,
            "num_replicas": settings.replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }
        try:
            await self._connection.api(f"STREAM.CREATE.{self._stream}", config)
        except BrokerFailed as error:
            if error.code != NAME_IN_USE:
                raise

    async def get(self, key: Key) -> Entry | None:
        try:
            found = await self._connection.api(
                f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": self._subject(key)}
            )
        except BrokerFailed as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        message = found["message"]
        if b"KV-Operation" in b64decode(message.get("hdrs", "")):
            # A tool deleted it and left a mark. Without the mark it can be made anew.
            await self.delete(key)
            return None
        return Entry(b64decode(message.get("data", "")), message["seq"])

    async def put(self, key: Key, value: bytes, revision: int) -> int | None:
        message = await self._connection.request(
            self._subject(key), value, {_EXPECTED: str(revision)}
        )
        try:
            return int(self._connection.answer(message)["seq"])
        except BrokerFailed as error:
            if error.code in OTHER_REVISION:
                return None
            raise

    async def delete(self, key: Key) -> None:
        await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": self._subject(key)})

    async def keys(self, under: Key) -> Iterable[Key]:
        prefix = self._subject(under)
        found: dict[str, int] = {}
        while True:
            info = await self._connection.api(
                f"STREAM.INFO.{self._stream}",
                {"subjects_filter": f"{prefix}.>", "offset": len(found)},
            )
            page = info["state"].get("subjects") or {}
            found |= page
            if not page or len(found) >= info.get("total", 0):
                break
        start = len(self._subject(())) + 1
        return [
            tuple(part.replace("=", ".") for part in subject[start:].split("."))
            for subject in found
        ]

    async def time_ms(self) -> int:
        info = await self._connection.api(f"STREAM.INFO.{self._stream}")
        return milliseconds(info["ts"])

    async def ring(self, key: Key) -> None:
        await self._connection.client.publish(self._bell(key))

    async def follow(self, key: Key, listener: Listener) -> Callable[[], Awaitable[None]]:
        async def rang(_: Msg) -> None:
            listener()

        client = self._connection.client
        subscription = await client.subscribe(self._bell(key), cb=rang)

        async def end() -> None:
            if not client.is_closed:
                await subscription.unsubscribe()

        return end

    def _subject(self, key: Key) -> str:
        return ".".join(["$KV", self._bucket, *map(token, key)])

    def _bell(self, key: Key) -> str:
        return ".".join([self._prefix, "$bell", *map(token, key)])
