"""Where the logs of a schedule are: in memory, or, in one schedule of eight, on a simulated disk."""

from collections.abc import Sequence
from typing import Any

from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from penstock.stores.base import StoreCapabilities
from penstock.stores.gate import no_such_key
from penstock.stores.memory import MemoryStore
from penstock.system import Buffer, System, Watch
from penstock.testing import SeededSchedule, SimulatedDisk
from penstock.testing.loop import ScheduledLoop
from penstock.transports.embedded import EmbeddedTransport

PATH = "/data"
DISK_EVERY = 16
"""Of so many seeds, the first two are on a disk: one that cancels, and one that does not."""


class SharedMemory(MemoryStore):
    """As several processes see a directory, with a watch.

    Jobs of threads are whole steps of a schedule, so a file shows no more than a value does. Notices of
    changes come a while later, as those of a kernel do.
    """

    capabilities = StoreCapabilities(log=True, shared=True, durable=True)

    def __init__(self, loop: ScheduledLoop) -> None:
        super().__init__()
        self._loop = loop
        self.watches: list[MemoryWatch] = []

    def write_at(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        super().write_at(key, position, buffers)
        for watch in self.watches:
            watch.tell(key)

    def watch(self) -> Watch:
        return MemoryWatch(self, self._loop)

    def watch_key(self, watch: Watch, key: str) -> None:
        if not self.exists(key):
            raise no_such_key(key)
        watch.add(key, key)


class MemoryWatch:
    """Implements :class:`penstock.system.Watch` for a store of a schedule."""

    def __init__(self, store: SharedMemory, loop: ScheduledLoop) -> None:
        self._store = store
        self._loop = loop
        self._names: dict[str, str] = {}
        self._changed: set[str] = set()
        store.watches.append(self)

    def fileno(self) -> int:
        return id(self)

    def add(self, path: str, name: str) -> None:
        self._names[path] = name

    def tell(self, path: str) -> None:
        """A file was written."""
        if path in self._names:
            if not self._changed:
                self._loop.turn_readable(self.fileno())
            self._changed.add(self._names[path])

    def drain(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed

    def close(self) -> None:
        self._store.watches.remove(self)


class Place:
    """A directory that all processes of a schedule share."""

    def __init__(self, schedule: SeededSchedule) -> None:
        self._schedule = schedule
        self.disk = SimulatedDisk()
        self.on_disk = schedule.seed % DISK_EVERY < 2
        self._store = PATH if self.on_disk else SharedMemory(schedule.loop)

    def process(self) -> System:
        """A machine for one more process."""
        return self._schedule.machine(self.disk)

    def queue(self, system: System | None = None, **options: Any) -> WalMessageQueue:
        """A queue with one or two partitions, in a process of its own unless it is given."""
        defaults = TopicConfig(partitions=self._schedule.random.choice([1, 2]), **options)
        return WalMessageQueue(
            self._store,
            defaults=defaults,
            maintenance_interval=None,
            system=system or self.process(),
        )

    def transport(self, system: System | None = None) -> EmbeddedTransport:
        """A transport with two partitions, in a process of its own unless it is given."""
        return EmbeddedTransport(
            self._store,
            defaults=TopicConfig(partitions=2),
            maintenance_interval=None,
            system=system or self.process(),
        )
