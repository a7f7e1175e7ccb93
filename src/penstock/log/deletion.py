"""Removing a topic: its records, its description, and what its groups have committed.

The description goes first. After a crash in between, the topic is not there any more, and removing it
again removes the rest. A process that still has the topic open is told at its next write: Poisoned.
Nothing that it is told was written is lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from penstock.errors import DeadlineExceeded, SubscriberBusy, UnknownTopic
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.group_file import GroupFile
from penstock.log.group_state import swept
from penstock.log.names import PartitionKeys, check_name
from penstock.log.offsets import OffsetFile
from penstock.log.topic import TopicFile, TopicState
from penstock.stores.base import PersistentBackingStore
from penstock.system import System


def delete_topic(
    store: PersistentBackingStore,
    topic: str,
    *,
    tier: PersistentBackingStore | None = None,
    offsets: PersistentBackingStore | None = None,
    system: System | None = None,
) -> None:
    """Remove a topic and all that is in it. Blocking.

    SubscriberBusy, and nothing is removed, when a subscriber or a member of a group reads it.
    UnknownTopic when there is none. Stop the producers first: one that goes on gets an error.
    """
    file = TopicFile(store, check_name("topic", topic))
    try:
        state = file.read()
    except UnknownTopic:
        if not _leftovers(store, topic):
            raise
        state = None
    with _nobody_reads(store, state, system or System()):
        store.delete(file.key)
        for one in (store, tier):
            if one is not None:
                _remove_all(one, topic)
        if state is not None:
            _remove_offsets(store, state, offsets)


def _leftovers(store: PersistentBackingStore, topic: str) -> bool:
    return any(True for _ in store.list(f"topics/{topic}/"))


@contextmanager
def _nobody_reads(
    store: PersistentBackingStore, state: TopicState | None, system: System
) -> Iterator[None]:
    """Hold the names of all subscribers, so that none comes back meanwhile."""
    with ExitStack() as stack:
        for name in () if state is None else state.subscribers:
            assert state is not None, "there are no names without it"
            _check_members(store, name, state.name, system)
            claim = store.lock(f"groups/{name}/{state.name}.lock", 0)
            try:
                stack.enter_context(claim)
            except DeadlineExceeded:
                raise _busy(name, state.name) from None
        yield


def _check_members(store: PersistentBackingStore, name: str, topic: str, system: System) -> None:
    file = GroupFile(store, name, system.clock, LOCK_TIMEOUT_SECONDS)
    if file.exists() and file.change(swept).readers(topic):
        raise _busy(name, topic)


def _busy(name: str, topic: str) -> SubscriberBusy:
    return SubscriberBusy(
        f"topic {topic!r} is not deleted: group {name!r} reads it. Stop it first",
        subscriber=name,
        topic=topic,
    )


def _remove_all(store: PersistentBackingStore, topic: str) -> None:
    """The files of each partition while nobody can append, the head last; then the others."""
    keys = store.list(f"topics/{topic}/")
    numbers = {key.split("/")[2] for key in keys if key.count("/") == 3}
    for number in sorted(int(one) for one in numbers if one.isdecimal()):
        of_partition = PartitionKeys(topic, number)
        if not store.capabilities.log:
            _remove(store, f"{of_partition.folder}/")
            continue
        with store.lock(of_partition.head, LOCK_TIMEOUT_SECONDS):
            _remove(store, f"{of_partition.folder}/", but=of_partition.head)
            store.delete(of_partition.head)
    _remove(store, f"topics/{topic}/")


def _remove(store: PersistentBackingStore, prefix: str, but: str = "") -> None:
    for key in store.list(prefix):
        if key != but:
            store.delete(key)


def _remove_offsets(
    store: PersistentBackingStore, state: TopicState, offsets: PersistentBackingStore | None
) -> None:
    for name in state.subscribers:
        for number in range(state.partitions_all):
            OffsetFile(store, name, state.name, number, offsets).delete()
