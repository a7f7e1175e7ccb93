"""The header of a shared ring: who takes part, and how far each has come.

Everything is 8-byte words in native byte order::

    0   magic and version
    1   capacity of the entry area in bytes
    2   number of places for consumers
    3   a random number that tells this ring from others of its name
    8   the creator's place: owner only
    16  the producer's place
    24  the first consumer's place, and so on, 8 words each:

        +0  owner, a process id; 0: free
        +1  when that process started, in ticks since boot: process ids are used again
        +2  sequence: bytes published, or passed
        +3  its check
        +4  producer: when closed, 1 + its last sequence; consumer: a bit for each that must pass first
        +5  records published, or passed
        +6  the group that it is a member of, as 1 + the number of the group's place; 0: none
        +7  group: the end of what was claimed; member: the end of its claim, 0: none

A group is a place like a consumer's, with members that have places of their own. The claim of a
member begins at its sequence word. Claims are read and written under the lock of the ring.
"""

from __future__ import annotations

from penstock.errors import NotSupported
from penstock.scaling.sequence import Signal

PLACE_WORDS = 8
CREATOR = 8
PRODUCER = 16
FIRST_CONSUMER = 24
CONSUMERS_MAX = 56

MIXER = 0x9E37_79B9_7F4A_7C15
WORD = (1 << 64) - 1

OWNER, STARTED, VALUE, CHECK, MARKS, RECORDS, GROUP, CLAIM = range(8)


class SharedSequence:
    """A sequence in shared memory: one writer, any readers, no memory barrier.

    A word and its check are two stores, which another processor may see in either order or, in
    theory, in parts. A reader that finds them apart keeps the value it saw last. A sequence only
    grows, so an old value is merely careful: the producer sees less room, a consumer fewer entries.
    """

    __slots__ = ("_at", "_seen", "_words")

    def __init__(self, words: memoryview, place: int) -> None:
        self._words = words
        self._at = place + VALUE
        self._seen = 0

    @property
    def value(self) -> int:
        """The newest value that can be trusted."""
        value: int = self._words[self._at]
        if value > self._seen and self._words[self._at + 1] == value * MIXER & WORD:
            self._seen = value
        return self._seen

    @value.setter
    def value(self, value: int) -> None:
        self._seen = value
        self._words[self._at] = value
        self._words[self._at + 1] = value * MIXER & WORD

    def park(self, signal: Signal) -> None:
        """Refused: no process can call another one's signal."""
        raise NotSupported("a shared ring cannot park: wait with Sleep, Yield or Spin")

    def unpark(self, signal: Signal) -> None:
        """Nothing is ever parked."""


class Place:
    """Who takes part: an owner, a sequence, marks."""

    __slots__ = ("_words", "at", "sequence")

    def __init__(self, words: memoryview, at: int) -> None:
        self._words = words
        self.at = at
        self.sequence = SharedSequence(words, at)

    @property
    def index(self) -> int:
        """The number of a consumer's place."""
        return (self.at - FIRST_CONSUMER) // PLACE_WORDS

    @property
    def bit(self) -> int:
        """The mark that stands for this consumer."""
        return 1 << self.index

    @property
    def owner(self) -> tuple[int, int]:
        """Process id and start time; (0, 0) when free."""
        return self._words[self.at + OWNER], self._words[self.at + STARTED]

    @property
    def pid(self) -> int:
        """The process id of the owner; 0 when free."""
        pid: int = self._words[self.at + OWNER]
        return pid

    def own(self, owner: tuple[int, int]) -> None:
        """Give the place to a process; the lock of the ring is held."""
        self._words[self.at + STARTED] = owner[1]
        self._words[self.at + OWNER] = owner[0]

    @property
    def marks(self) -> int:
        """Whether and where it was closed (producer), or who comes first (consumer)."""
        marks: int = self._words[self.at + MARKS]
        return marks

    @marks.setter
    def marks(self, marks: int) -> None:
        self._words[self.at + MARKS] = marks

    @property
    def records(self) -> int:
        """Records published or passed."""
        records: int = self._words[self.at + RECORDS]
        return records

    @records.setter
    def records(self, records: int) -> None:
        self._words[self.at + RECORDS] = records

    @property
    def group(self) -> int:
        """1 + the number of the group's place; 0 when it is no member."""
        group: int = self._words[self.at + GROUP]
        return group

    @group.setter
    def group(self, group: int) -> None:
        self._words[self.at + GROUP] = group

    @property
    def claim(self) -> tuple[int, int]:
        """Where the claim of a member begins and ends; (0, 0) when it has none."""
        return self._words[self.at + VALUE], self._words[self.at + CLAIM]

    @claim.setter
    def claim(self, claim: tuple[int, int]) -> None:
        self._words[self.at + VALUE], self._words[self.at + CLAIM] = claim

    @property
    def holds(self) -> bool:
        """Whether a member has claimed an entry that it has not passed."""
        return self.group != 0 and self.claim[1] != 0

    @property
    def claimed(self) -> int:
        """The end of what the members of this group have claimed."""
        claimed: int = self._words[self.at + CLAIM]
        return claimed

    @claimed.setter
    def claimed(self, claimed: int) -> None:
        self._words[self.at + CLAIM] = claimed


class Places:
    """All the places of a ring."""

    __slots__ = ("consumers", "creator", "producer")

    def __init__(self, words: memoryview, consumers_max: int) -> None:
        self.creator = Place(words, CREATOR)
        self.producer = Place(words, PRODUCER)
        self.consumers = [
            Place(words, FIRST_CONSUMER + index * PLACE_WORDS) for index in range(consumers_max)
        ]

    def all_passed(self, position: int) -> bool:
        """Whether the producer has closed the ring, and this position is its end.

        The mark of the end says where it is: no order of two loads is relied on.
        """
        end = self.producer.marks
        return end != 0 and position >= end - 1

    def everyone(self) -> list[Place]:
        """All places, taken or not."""
        return [self.creator, self.producer, *self.consumers]

    def gates(self) -> list[Place]:
        """The consumers that hold the producer back."""
        return [place for place in self.consumers if place.pid and not place.group]

    def members(self, group: Place) -> list[Place]:
        """The members of a group."""
        number = group.index + 1
        return [place for place in self.consumers if place.pid and place.group == number]

    def before(self, place: Place) -> list[Place]:
        """What a consumer waits for: the producer, or the consumers that come first."""
        marks = place.marks
        if not marks:
            return [self.producer]
        return [one for index, one in enumerate(self.consumers) if marks >> index & 1]

    def free(self, place: Place) -> None:
        """Remove a consumer; the lock is held. Those after it depend on what it depended on."""
        bit = place.bit
        for one in self.consumers:
            if one.marks & bit:
                one.marks = one.marks & ~bit | place.marks
        for one in self.members(place):
            one.own((0, 0))
        place.own((0, 0))
