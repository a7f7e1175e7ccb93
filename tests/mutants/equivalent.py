"""Mutants that change nothing that anybody could see, each with the reason."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.mutating import Mutant


class Equivalent(NamedTuple):
    """A change that makes no difference; the text is that of the line."""

    function: str
    """Module and function, without the package."""
    text: str
    change: str
    why: str


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "transaction_staging.staged_key",
        "number = system.random.getrandbits(64)",
        "64 to 65",
        "a random number with one more bit is as random",
    ),
    Equivalent(
        "routing._fnv1a_all",
        "longest = int(lengths.max(initial=0))",
        "0 to 1",
        "keys that are all empty have no byte to hash, whatever the longest is said to be",
    ),
    Equivalent(
        "subscription.Subscription._next",
        "self._turn += 1",
        "to Sub",
        "the partitions take turns the other way round",
    ),
    Equivalent(
        "offsets.OffsetFile._secure",
        "self._durable_generation = generation",
        "left out",
        "the slot is written and synced once more than it has to be",
    ),
    Equivalent(
        "transactions.Transactions._ends",
        "ends[target] = 0 if head is None else head.durable_offset",
        "left out",
        "entries are looked for from the first one on, which takes longer and finds the same",
    ),
    Equivalent(
        "arrow.to_batch",
        "views = [entry.view(copy=False) for entry in entries]",
        "False to True",
        "a copy has the same bytes",
    ),
    Equivalent(
        "walk._check_columns",
        "offsets = entry.view(copy=False).offsets()",
        "False to True",
        "a copy has the same bytes",
    ),
    Equivalent(
        "lag._first_time",
        "for view in (entry.view(copy=False) for entry in entries):",
        "False to True",
        "a copy has the same bytes",
    ),
    Equivalent(
        "membership.Membership._consumed",
        "if offset < end and not has_records(self.topic.reader(number), offset, end):",
        "Lt to LtE",
        "at the end itself both answers are the end",
    ),
    Equivalent(
        "transaction_reroute._columns",
        "return decode(body, one.flags, one.record_count, 0, 0).columns()",
        "0 to 1",
        "neither the offset nor the time of an entry is among its columns",
    ),
    Equivalent(
        "routing._fnv1a_all",
        "if (lengths == longest).all():",
        "Eq to NotEq",
        "keys of one length are hashed as those of any lengths are, which takes longer",
    ),
    Equivalent(
        "writer.TopicWriter._fail_rest",
        "self._failures[-1] = (self._committing, error)",
        "1 to 2",
        "only the errors are told, and -2 is no partition either",
    ),
    Equivalent(
        "writer.TopicWriter._fail_rest",
        "batch.receipt.errors.setdefault(-1, error)",
        "1 to 2",
        "only the errors are told, and -2 is no partition either",
    ),
    Equivalent(
        "topics.Topics.open",
        "raise",
        "left out",
        "who waited for the other one looks once more by itself, and is told the same",
    ),
    Equivalent(
        "group_member.Member.__init__",
        "self._ends_ms = 0",
        "0 to 1",
        "before it joins, the other clock says that there is no lease",
    ),
    Equivalent(
        "producer_file.ProducerFile.open",
        "producer_id = system.random.getrandbits(63) | 1  # not 0",
        "1 to 2",
        "it is not 0 either way",
    ),
    Equivalent(
        "columns.python_cut",
        "if len(lengths) and lengths[0] and (lengths == lengths[0]).all():",
        "Eq to NotEq",
        "items of one length are cut as those of any lengths are, which takes longer",
    ),
    Equivalent(
        "recovery.TailScanner._torn_bytes",
        "return 0",
        "0 to 1",
        "no sound header stands where a damaged one does, so the search may begin behind it",
    ),
    Equivalent(
        "topic.TopicFile.generations",
        "data = self._store.read(self.key, 0, TOPIC_BYTES_MAX + 1)",
        "1 to 2",
        "a file that long holds no generation that this release has written",
    ),
    Equivalent(
        "changes.Changes._poll",
        "waited_for = [name for name, waiters in self._waiters.items() if waiters]",
        "no filter",
        "topics are asked that nobody waits for, and nobody hears of it",
    ),
    Equivalent(
        "columns.decode",
        "pairs = 0 if header_counts is None else int(header_counts.sum(dtype=np.int64))",
        "0 to 1",
        "without headers their pairs are not taken, however many they are said to be",
    ),
    Equivalent(
        "routing.fnv1a_many",
        "if len(keys) < VECTOR_KEYS_MIN:",
        "Lt to GtE",
        "both ways to hash give the same, in a longer time",
    ),
    Equivalent(
        "reader.Cursor.__init__",
        "self._position = 0",
        "0 to 1",
        "it is set when a segment is chosen, before anything is read",
    ),
    Equivalent(
        "reader.Cursor.__init__",
        "self._expected = 0",
        "0 to 1",
        "it is set when a segment is chosen, before anything is read",
    ),
    Equivalent(
        "reader.PartitionReader._load_index",
        "data = source.store.read(self.keys.index(source.name), 0, size_max + 1)",
        "to Sub",
        "a row that is not read is made again from the segment",
    ),
    Equivalent(
        "subscription.Subscription._next_epoch",
        "if left and self._elsewhere().issuperset(left):",
        "and to or, or to and",
        "it is also asked for what is known here, and what is known here counts",
    ),
    Equivalent(
        "offsets.OffsetFile.reset",
        "generation = 0",
        "0 to 1",
        "the first generation is 2 either way",
    ),
    Equivalent(
        "verify.Pace.__init__",
        "self._bytes = 0",
        "0 to 1",
        "one byte of all that is read takes no time that anybody could measure",
    ),
    Equivalent(
        "open_topic.OpenTopic.__init__",
        "self._generations = [0] * len(self.logs)",
        "0 to 1",
        "every head that was written has a generation of at least 1",
    ),
    Equivalent(
        "repair_partition.PartitionRepair._move_head",
        "timestamp = max([part.timestamp for part in sealed], default=0)",
        "0 to 1",
        "the next record comes later than the first millisecond of 1970",
    ),
    Equivalent(
        "partition.PartitionLog.begin_epoch",
        "self._store.sync(self._segment_key(head))",
        "left out",
        "a segment with nothing but its start was synced by who made it, here as well",
    ),
    Equivalent(
        "codec._inflate",
        "data = stream.decompress(body, size + 1)",
        "1 to 2",
        "what is longer than it should be is seen by one byte, and by two",
    ),
    Equivalent(
        "repair._Repair.mend_topic",
        "self._do([self._topic_step(file, generation + 2, state, message)])",
        "2 to 3",
        "any generation above those that were there will do",
    ),
    Equivalent(
        "topics.Topics.open_existing",
        "if name not in self.by_name and name not in self._opening:",
        "and to or, or to and",
        "a description that is known is read once more",
    ),
)
_KNOWN = {(one.function, one.text, one.change) for one in EQUIVALENT}


def is_equivalent(mutant: Mutant, text: str) -> bool:
    """Whether the mutant is in the list."""
    place = f"{mutant.module.removeprefix('penstock.log.')}.{mutant.function}"
    return (place, text, mutant.change) in _KNOWN
