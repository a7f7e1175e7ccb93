"""Looking at everything without touching anything: is each byte what was written?

:func:`verify` reads all files of a log and tells every problem in a plain sentence with the way
out. It takes no lock and writes nothing, so it can run beside live writers and on a copy.
:func:`scrub` does the same for the sealed segments of one partition at a gentle pace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from penstock.errors import DamageError, KeyNotFound, UnknownPartition, UnknownTopic
from penstock.log.group_check import group_problems
from penstock.log.head import HeadFile
from penstock.log.inspection import Problem, VerifyReport
from penstock.log.names import PartitionKeys, is_name
from penstock.log.partition_check import PartitionCheck
from penstock.log.producer_check import producer_problems
from penstock.log.topic import TopicFile, TopicState, list_topics
from penstock.stores import open_store
from penstock.stores.base import PersistentBackingStore
from penstock.system import Clock, System

Where = PersistentBackingStore | str | os.PathLike[str]
"""A path, a URL or a store, as the queue takes them."""
PAUSE_SECONDS_MIN = 0.02
TRIES_MAX = 5
_PARTITION = re.compile(r"[0-9]{1,4}")


class Places(NamedTuple):
    """The stores of a log."""

    store: PersistentBackingStore
    tier: PersistentBackingStore | None = None
    offsets: PersistentBackingStore | None = None
    """Where the subscribers' offsets are, if not in the store itself."""


def verify(
    where: Where,
    topic: str | None = None,
    *,
    tier: Where | None = None,
    offsets: Where | None = None,
    system: System | None = None,
) -> VerifyReport:
    """Check every file of a log, or of one topic of it. Reads everything, changes nothing.

    Name the tier and the offsets store that the queue has.
    """
    with opened_all(where, tier, offsets, system) as places:
        report = VerifyReport()
        for name in topics_of(places.store) if topic is None else [_known(places.store, topic)]:
            _verify_topic(places, name, report)
        if topic is None:
            report.problems += producer_problems(places.store)
        return report


def scrub(
    where: Where,
    topic: str,
    partition: int | None = None,
    *,
    tier: Where | None = None,
    system: System | None = None,
    bytes_per_second: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> VerifyReport:
    """Check the sealed segments of a topic, or of one partition of it, at a gentle pace.

    Disks lose bits in silence: what nobody reads is checked by nobody else. It blocks, so run it
    in a thread of its own. It reads at most ``bytes_per_second``, and returns early, between two
    segments, when ``stop`` says so.
    """
    report = VerifyReport(topics=[topic])
    pace = Pace((system or System()).clock, bytes_per_second)
    with opened_all(where, tier, None, system) as (store, beyond, _):
        for number in _chosen(store, _known(store, topic), partition):
            report.partitions += 1
            keys = PartitionKeys(topic, number)
            check = PartitionCheck(store, keys, beyond, report, pace.spend)
            for _ in check.inspect_sealed(HeadFile(store, keys.head).read()):
                if stop is not None and stop():
                    return report
    return report


def _known(store: PersistentBackingStore, topic: str) -> str:
    if topic not in topics_of(store):
        raise UnknownTopic(f"there is no topic {topic!r} to check", topic=topic)
    return topic


def _chosen(store: PersistentBackingStore, topic: str, partition: int | None) -> Sequence[int]:
    numbers = partitions_of(store, topic, None)
    if partition is None:
        return numbers
    if partition not in numbers:
        message = f"topic {topic!r} has no partition {partition}: it has {list(numbers)}"
        raise UnknownPartition(message, topic=topic, partition=partition)
    return [partition]


@contextmanager
def opened(where: Where, system: System | None = None) -> Iterator[PersistentBackingStore]:
    """The store itself, or the one that the path or URL names, for the time being.

    A directory or file must be there: looking for a log never makes one.
    """
    if isinstance(where, PersistentBackingStore):
        yield where
        return
    path = _local_path(where)
    if path is None:
        store = open_store(where)
    else:
        system = system or System()
        if path and not system.files.exists(os.path.abspath(path)):
            raise KeyNotFound(f"there is no log at {os.path.abspath(path)}", key=path)
        store = open_store(where, system=system)
    with store:
        yield store


@contextmanager
def opened_all(
    where: Where, tier: Where | None, offsets: Where | None, system: System | None = None
) -> Iterator[Places]:
    """As :func:`opened`, for all stores of a log."""
    with ExitStack() as stack:
        first, *others = [
            None if one is None else stack.enter_context(opened(one, system))
            for one in (where, tier, offsets)
        ]
        assert first is not None, "a log has a store"
        yield Places(first, *others)


def _local_path(where: str | os.PathLike[str]) -> str | None:
    """The path that is meant, if it is one on this machine; open_store checks the URL."""
    text = os.fspath(where)
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or not isinstance(where, str):
        return text
    if scheme not in {"file", "sqlite"}:
        return None
    return rest.removeprefix("//") if rest.startswith("///") else rest


def topics_of(store: PersistentBackingStore) -> list[str]:
    """All topics, also those whose description is missing."""
    folders = {key.split("/")[1] for key in store.list("topics/") if key.count("/") >= 3}
    return sorted({*filter(is_name, folders), *list_topics(store)})


class Pace:
    """Holds reading to so many bytes a second."""

    def __init__(self, clock: Clock, bytes_per_second: float | None) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._start = clock.monotonic()
        self._bytes = 0

    def spend(self, size: int) -> None:
        """Count bytes that were read; sleeps when that was too fast."""
        self._bytes += size
        if self._rate is not None:
            ahead = self._start + self._bytes / self._rate - self._clock.monotonic()
            if ahead >= PAUSE_SECONDS_MIN:
                self._clock.sleep(ahead)


def _verify_topic(places: Places, name: str, report: VerifyReport) -> None:
    report.topics.append(name)
    state = check_topic(places.store, name, report.problems)
    if state is not None:
        known = {problem.file for problem in report.problems}
        found = group_problems(places.store, state.subscribers)
        report.problems += [problem for problem in found if problem.file not in known]
    for partition in partitions_of(places.store, name, state):
        report.add(_verify_partition(places, PartitionKeys(name, partition), state))


def _verify_partition(
    places: Places, keys: PartitionKeys, state: TopicState | None
) -> VerifyReport:
    """Check one partition; again when it was changed meanwhile, which may look like damage."""
    report = VerifyReport()
    for _ in range(TRIES_MAX):
        report = VerifyReport()
        check = PartitionCheck(places.store, keys, places.tier, report)
        before = check.mark()
        check.run()
        if state is not None:
            check.check_offsets(state, places.offsets)
            check.check_epochs(state)
        if report.sound or check.mark() == before:
            break
    return report


def partitions_of(
    store: PersistentBackingStore, topic: str, state: TopicState | None
) -> Sequence[int]:
    """The partitions that the topic has by its description and by its folders."""
    folders = {key.split("/")[2] for key in store.list(f"topics/{topic}/") if key.count("/") == 3}
    numbers = {int(folder) for folder in folders if _PARTITION.fullmatch(folder)}
    return sorted(numbers | set(range(state.partitions_all if state else 0)))


def check_topic(
    store: PersistentBackingStore, name: str, problems: list[Problem]
) -> TopicState | None:
    """The description of a topic, if it can be read; problems are added to the list."""
    file = TopicFile(store, name)
    way_out = "penstock.repair() goes back to the generation before, or makes it anew."
    try:
        state = file.read()
    except UnknownTopic:
        problems.append(Problem(file.key, "topic", f"{file.key} is missing. {way_out}"))
        return None
    except DamageError as damage:
        problems.append(Problem(file.key, "topic", str(damage)))
        return None
    if state.name != name:
        message = f"{file.key} describes the topic {state.name!r}. Put the right file back."
        problems.append(Problem(file.key, "topic", message))
    elif not file.is_as_written():
        message = f"{file.key}: the generation before, a spare, is damaged. {way_out}"
        problems.append(Problem(file.key, "topic", message, harmless=True))
    return state
