"""A consumer whose group lives in the keys of a broker; see :mod:`penstock.transports.kv_groups`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from penstock.errors import Fenced
from penstock.log.group_ports import OwnWrite
from penstock.transports.assignment import OnRevoke
from penstock.transports.base import check_opened
from penstock.transports.embedded_consumer import NOTHING_HELD, EmbeddedConsumer, session_maker
from penstock.transports.kv_groups import KvCoordinator
from penstock.transports.reading import BufferedReading
from penstock.transports.records import StreamBatch

KV_GROUP_OPTIONS = frozenset({"assignor", "lease_seconds", "member", "release_seconds"})


class KvConsumer(EmbeddedConsumer):
    """A member of a group on a broker. Hand-over, leases and fencing are those of the embedded one.

    A commit is as durable as the broker's keys. One of several partitions writes each alone: when
    one is refused, others may be committed.
    """

    def __init__(
        self,
        reading: BufferedReading,
        coordinator: KvCoordinator,
        on_revoke: OnRevoke | None,
        among: set[EmbeddedConsumer],
        **options: Any,
    ) -> None:
        self._coordinator = coordinator
        self._source = reading
        reading.claim = self._claim
        make = session_maker(coordinator, coordinator, **options)
        super().__init__(reading, make, on_revoke, among)

    async def _open(self) -> None:
        self._among.add(self)
        await self._source.open()
        await self._coordinator.open()
        await self._session.start({self.topic: self._source.partitions})
        self._is_open = True

    async def close(self) -> None:
        """Leave the group. Commits nothing; who waits for a batch gets Closed. Idempotent."""
        try:
            await super().close()
        finally:
            await self._coordinator.close()

    async def commit_with(
        self,
        done: StreamBatch | Mapping[int, int] | None = None,
        write: OwnWrite | None = None,
        held: Mapping[int, object] = NOTHING_HELD,
    ) -> None:
        """Commit; ``write`` is not supported on a broker."""
        check_opened(self._is_open)
        if isinstance(done, StreamBatch):
            await self._source.see_ends({done.partition: done.next_offset})
        elif done is not None:
            await self._source.see_ends(done)
        await super().commit_with(done, write, held)

    async def take(self) -> None:
        """Read what the member has now."""
        try:
            await super().take()
        except Fenced:
            # A later generation gave it to somebody else: look what it says.
            self._session.renew()

    async def _claim(self, partition: int, start: Callable[[], Awaitable[int]]) -> int:
        return await self._coordinator.claim(partition, self._session.member, start)
