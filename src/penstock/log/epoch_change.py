"""Changing the partition count of a topic, and mending what a crash in the middle leaves.

The truth is in ``topic.json``; the heads only tell writers to look there. A change holds the
topic's lock. First every head gets the number of the new epoch: from then on the partition refuses
the writers of the old one, who wait for the topic's lock to learn where to send their records. The
offsets at which that happened are the start of the new epoch. Then ``topic.json`` is replaced. A
crash before that leaves heads that are ahead. Whoever finds one waits for the lock, reads
``topic.json`` and puts the heads right: the change has not happened. After a power cut heads may be
behind in the same way. No moment has two truths.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from penstock.errors import InvalidOption, LimitReached
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.epoch import EPOCHS_MAX, Epochs, followed_by, without_forgotten
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.topic import PARTITIONS_MAX, TopicFile, TopicState
from penstock.stores.base import PersistentBackingStore


def check_partitions(partitions: int) -> int:
    """The count, or InvalidOption with its range."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidOption(
            f"partitions is {partitions!r}; it must be 1 to {PARTITIONS_MAX}", option="partitions"
        )
    return partitions


def change_partitions(
    file: TopicFile,
    partitions: int,
    log: Callable[[int], PartitionLog],
    earliest: Callable[[int], int],
    now_ms: int,
) -> TopicState:
    """Give a topic another number of partitions; returns what it is then. Blocking.

    When it raises, and after a crash, the topic has either its old count or the new one.
    """

    def change(state: TopicState) -> TopicState:
        if partitions == state.partitions:
            return state
        kept = without_forgotten(state.epochs, earliest)
        _check_room(state.name, kept)
        numbers = range(max(partitions, state.partitions_all))
        ends = [log(number).begin_epoch(state.epoch + 1) for number in numbers]
        epochs = followed_by(kept, partitions, ends, now_ms)
        return replace(state, epochs=epochs, config=replace(state.config, partitions=partitions))

    return file.update(change)


def _check_room(topic: str, kept: Epochs) -> None:
    if len(kept) >= EPOCHS_MAX:
        raise LimitReached(
            f"topic {topic!r} has records of {EPOCHS_MAX} epochs: its partition count can change "
            "again when retention has removed the oldest",
            limit="epochs",
            value=EPOCHS_MAX,
        )


def settle(store: PersistentBackingStore, topic: str) -> TopicState:
    """What the topic is, once a change in progress is over; heads that differ are put right."""

    def mend(state: TopicState) -> TopicState:
        for number in range(state.partitions_all):
            _mend_head(store, PartitionKeys(topic, number), state.epoch)
        return state

    return TopicFile(store, topic).update(mend)


def _mend_head(store: PersistentBackingStore, keys: PartitionKeys, epoch: int) -> None:
    file = HeadFile(store, keys.head)
    head = file.read()
    if head is None or head.epoch == epoch:
        return
    with store.lock(keys.head, LOCK_TIMEOUT_SECONDS):
        head, damaged = file.look()
        # One that is damaged is made anew by the next writer, who comes here again then.
        if head is not None and not damaged and head.epoch != epoch:
            file.write_durably(head._replace(epoch=epoch))
