"""The blocking half of a subscription: the name, the registration, the offsets on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack

from msgspec.structs import replace

from penstock.errors import DamagedFile, DeadlineExceeded, SubscriberBusy
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.epoch import first_offset
from penstock.log.group_file import GroupFile
from penstock.log.group_state import swept
from penstock.log.offsets import OffsetFile
from penstock.log.open_topic import OpenTopic
from penstock.log.places import Place, Position, has_records, resolve_start
from penstock.log.sealed import maintenance
from penstock.log.topic import TopicState


class Membership:
    """A subscriber's name in a topic, and where it stands in each partition."""

    def __init__(self, topic: OpenTopic, name: str, start: Position) -> None:
        self.topic = topic
        self._name = name
        self._start = start
        self._store = topic.around.store
        self._offsets = topic.around.offsets
        self._file = topic.file
        self._claim: AbstractContextManager[None] | None = None
        self.places: list[Place] = []
        self.damaged_offsets: list[str] = []

    @property
    def held(self) -> bool:
        """Whether the name is claimed here."""
        return self._claim is not None

    def open(self) -> None:
        """Claim the name, register it when it is new, and find where to go on."""
        claim = self._claim_name()
        try:
            self._check_members()
            # Others may have appended between the opening of the topic and the watch on it.
            self.topic.refresh()
            if self.topic.behind:
                self.topic.catch_up()
            numbers = range(self.topic.state.partitions_all)
            self.places = [self._place(number) for number in numbers]
            # What a transaction decided before counts as committed, also if its process died.
            care = self.topic.around.care
            care.settle_group(self._name)
            care.settle_entries(self._name, [(self.topic.name, number) for number in numbers])
            self._find_places()
        except BaseException:
            claim.__exit__(None, None, None)
            raise
        self._claim = claim

    def close(self) -> None:
        """Give the name back."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.__exit__(None, None, None)

    def forget(self) -> None:
        """Remove the registration and the offsets; nobody else may use the name meanwhile."""
        with ExitStack() as stack:
            if not self.held:
                stack.push(self._claim_name())
                self._check_members()
            known = self._file.read().subscribers.get(self._name)
            if known is not None:
                self._file.remove_subscriber(self._name)
            for number in {*range(len(self.topic.logs)), *(known or ())}:
                self._file_of(number).delete()

    def seek(self, places: list[Place], to: Position) -> list[int]:
        """Set the offsets, durably; the places themselves move on the event loop."""
        # A reader of its own: the place's may be in use by an iteration.
        offsets = [resolve_start(self.topic.reader(place.number), to) for place in places]
        self._reset(places, offsets)
        return offsets

    def committed(self, places: list[Place]) -> list[int]:
        """Where the offset files say to go on; DamagedFile when one cannot be read."""
        return [self._resume(place) for place in places]

    def commit(self, wanted: dict[int, int]) -> None:
        """Move the offsets of these partitions forward, durably."""
        now = self.topic.around.system.clock.time_ms()
        for number, offset in wanted.items():
            self.places[number].offsets.commit(offset, now)

    def _claim_name(self) -> AbstractContextManager[None]:
        claim = self._store.lock(f"groups/{self._name}/{self.topic.name}.lock", 0)
        try:
            claim.__enter__()
        except DeadlineExceeded:
            raise self._busy("is in use, here or in another process") from None
        return claim

    def _check_members(self) -> None:
        """SubscriberBusy when the name is a group's that has live members.

        Who joins a group looks, under the same lock, whether the name is claimed.
        """
        group = self._group()
        if not group.exists():
            return
        state = group.change(swept)
        if members := state.readers(self.topic.name):
            raise self._busy(f"is a consumer group with {len(members)} members")

    def _group(self) -> GroupFile:
        clock = self.topic.around.system.clock
        return GroupFile(self._store, self._name, clock, LOCK_TIMEOUT_SECONDS)

    def _busy(self, why: str) -> SubscriberBusy:
        return SubscriberBusy(
            f"subscriber {self._name!r} of {self.topic.name!r} {why}: use another name, or close "
            "that one",
            subscriber=self._name,
            topic=self.topic.name,
        )

    def _place(self, number: int) -> Place:
        return Place(self.topic, number, self._file_of(number))

    def _file_of(self, number: int) -> OffsetFile:
        return OffsetFile(self._store, self._name, self.topic.name, number, self._offsets)

    def _find_places(self) -> None:
        self._enlist()
        self._go_on(self.places)

    def _go_on(self, places: list[Place]) -> None:
        for place in places:
            try:
                place.move(self._resume(place))
            except DamagedFile as damage:
                place.damage = damage

    def new_places(self) -> list[Place]:
        """Places in the partitions that the topic has got since; each at its first record."""
        numbers = range(len(self.places), self.topic.state.partitions_all)
        self._meet(numbers)
        places = [self._place(number) for number in numbers]
        self._go_on(places)
        return places

    def consumed(self, ends: Mapping[int, int]) -> dict[int, int]:
        """How far the members of a group have consumed partitions, up to these ends at most.

        What is committed counts, and whatever is not there any more.
        """
        return {number: self._consumed(number, end) for number, end in ends.items()}

    def _consumed(self, number: int, end: int) -> int:
        try:
            found = self._file_of(number).read()
        except DamagedFile:
            # Whoever reads the partition tells.
            return 0
        offset = first_offset(self.topic.state.epochs, number) if found is None else found.offset
        if offset < end and not has_records(self.topic.reader(number), offset, end):
            return end
        return offset

    def _enlist(self) -> None:
        """Register the name when it is new, and let it meet partitions that are new to it."""
        if self._name not in self._file.read().subscribers:
            self._register()
        else:
            self._meet(range(len(self.places)))

    def _meet(self, numbers: Iterable[int]) -> None:
        """Start in partitions that came after the registration: at the first record of each."""
        now = self.topic.around.system.clock.time_ms()

        def meet(state: TopicState) -> TopicState:
            known = state.subscribers.get(self._name)
            if known is None:
                return state
            new = {
                number: first_offset(state.epochs, number)
                for number in numbers
                if number not in known
            }
            for number, offset in new.items():
                # Forward only: another member may have been quicker.
                self._file_of(number).commit(offset, now)
            return replace(state, subscribers={**state.subscribers, self._name: known | new})

        if not self._file.read().subscribers.get(self._name, {}).keys() >= set(numbers):
            self._file.update(meet)

    def _register(self) -> None:
        """Choose where to start, and let retention wait for this subscriber from now on."""
        with ExitStack() as stack:
            for place in self.places:
                # Retention holds the same lock: what is chosen here is not about to go.
                lock = maintenance(self._store, place.reader.keys, LOCK_TIMEOUT_SECONDS)
                if not stack.enter_context(lock):
                    raise self._too_late(place)
            offsets = [resolve_start(place.reader, self._start) for place in self.places]
            # The offsets first: a registered subscriber without them is damage.
            self._reset(self.places, offsets)
            self._file.add_subscriber(self._name, dict(enumerate(offsets)))

    def _too_late(self, place: Place) -> DeadlineExceeded:
        keys = place.reader.keys
        return DeadlineExceeded(
            f"subscriber {self._name!r} is not registered: a process was at work on the sealed "
            f"segments of {keys.topic}/{keys.partition} for {LOCK_TIMEOUT_SECONDS:g} s. Try again "
            "later; if it stays so, look for a process that is stopped or waits for its tier or "
            "its offsets store",
            topic=keys.topic,
            partition=keys.partition,
            seconds=LOCK_TIMEOUT_SECONDS,
        )

    def _resume(self, place: Place) -> int:
        committed = place.offsets.read()
        if committed is None:
            raise DamagedFile(
                f"{place.offsets.key} is missing, though {self._name!r} had committed offsets. "
                "Name the store that has it (offsets=...), restore it, or unsubscribe and "
                "subscribe again to choose where to start",
                file=place.offsets.key,
                reason="missing",
            )
        if committed.damaged_slots:
            self.damaged_offsets.append(place.offsets.key)
        return committed.offset

    def _reset(self, places: list[Place], offsets: list[int]) -> None:
        now = self.topic.around.system.clock.time_ms()
        for place, offset in zip(places, offsets, strict=True):
            place.offsets.reset(offset, now)
