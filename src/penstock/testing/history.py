"""Histories: what producers and consumers did, written down by each of them, to be checked later.

Each process has a :class:`HistoryRecorder` and writes lines of JSON. A line is one write, so a process
that is killed leaves at most its last line torn. :func:`read_history` puts the files together, and
:func:`~penstock.testing.check_history` looks for what must not happen.

Every record that is sent has a value of its own: a number that no other record has. A history is of
one topic. A name of a process stands for work in sequence: it waits for one send before it begins the
next. A process that starts again takes another name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="did"):
    """Something that a process did. Times are nanoseconds of the machine's monotonic clock."""

    process: str
    at: int


class Sending(Operation, frozen=True, kw_only=True, gc=False, tag="sending"):
    """A send began: from now on its records may be read."""

    values: list[int]
    keys: list[int] = []


class Sent(Operation, frozen=True, kw_only=True, gc=False, tag="sent"):
    """A send was acknowledged."""

    values: list[int]
    partition: int = -1
    """-1: the acknowledgement did not tell, as that of a transaction over several partitions."""
    offsets: list[int] = []
    """Empty: the acknowledgement did not tell."""


class Deciding(Operation, frozen=True, kw_only=True, gc=False, tag="deciding"):
    """A transaction with these records is about to be committed: before that none may be read."""

    values: list[int]


class Refused(Operation, frozen=True, kw_only=True, gc=False, tag="refused"):
    """A send failed or a transaction was aborted: these must never be read."""

    values: list[int]


class Polled(Operation, frozen=True, kw_only=True, gc=False, tag="polled"):
    """Records of one partition were delivered."""

    group: str
    began: int
    partition: int
    offsets: list[int]
    values: list[int]


class Committing(Operation, frozen=True, kw_only=True, gc=False, tag="committing"):
    """A commit began: from now on it may count."""

    group: str
    offsets: dict[int, int]


class Committed(Operation, frozen=True, kw_only=True, gc=False, tag="committed"):
    """A commit was acknowledged."""

    group: str
    began: int
    offsets: dict[int, int]
    """Partition → the offset of the next record that is not consumed."""


class Assigned(Operation, frozen=True, kw_only=True, gc=False, tag="assigned"):
    """From now on the process has these partitions of its group."""

    group: str
    began: int
    generation: int
    positions: dict[int, int]
    """Partition → the offset that it goes on with."""


class Sought(Operation, frozen=True, kw_only=True, gc=False, tag="sought"):
    """The process went to other places by itself."""

    group: str
    offsets: dict[int, int]


class Drained(Operation, frozen=True, kw_only=True, gc=False, tag="drained"):
    """The group has read to the end, after the last send: it must have seen everything."""

    group: str


AnyOperation = (
    Sending
    | Sent
    | Deciding
    | Refused
    | Polled
    | Committing
    | Committed
    | Assigned
    | Sought
    | Drained
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyOperation)


class HistoryRecorder:
    """Writes down what one process does, at once and in order. Not synced: a kill loses nothing."""

    def __init__(self, path: str | os.PathLike[str], process: str) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def now(self) -> int:
        """The time for ``began``."""
        return time.monotonic_ns()

    def sending(self, values: Sequence[int], keys: Sequence[int] = ()) -> None:
        """Call it before a send."""
        self._write(
            Sending(process=self.process, at=self.now(), values=list(values), keys=list(keys))
        )

    def sent(self, values: Sequence[int], partition: int = -1, offsets: Sequence[int] = ()) -> None:
        """A send of records of one partition, or a transaction, was acknowledged."""
        self._write(
            Sent(
                process=self.process,
                at=self.now(),
                values=list(values),
                partition=partition,
                offsets=list(offsets),
            )
        )

    def deciding(self, values: Sequence[int]) -> None:
        """Call it before the commit of a transaction, with all of its records."""
        self._write(Deciding(process=self.process, at=self.now(), values=list(values)))

    def refused(self, values: Sequence[int]) -> None:
        """It is certain that these were not written, or their transaction was aborted."""
        self._write(Refused(process=self.process, at=self.now(), values=list(values)))

    def polled(self, group: str, began: int, records: Iterable[tuple[int, int, int]]) -> None:
        """Records were delivered: partition, offset and value of each."""
        at = self.now()
        by_partition: dict[int, tuple[list[int], list[int]]] = {}
        for partition, offset, value in records:
            offsets, values = by_partition.setdefault(partition, ([], []))
            offsets.append(offset)
            values.append(value)
        for partition, (offsets, values) in by_partition.items():
            self._write(
                Polled(
                    process=self.process,
                    at=at,
                    group=group,
                    began=began,
                    partition=partition,
                    offsets=offsets,
                    values=values,
                )
            )

    def committing(self, group: str, offsets: Mapping[int, int]) -> int:
        """Call it before a commit; gives the time for ``committed``."""
        at = self.now()
        self._write(Committing(process=self.process, at=at, group=group, offsets=dict(offsets)))
        return at

    def committed(self, group: str, began: int, offsets: Mapping[int, int]) -> None:
        """A commit was acknowledged."""
        self._write(
            Committed(
                process=self.process,
                at=self.now(),
                group=group,
                began=began,
                offsets=dict(offsets),
            )
        )

    def assigned(
        self, group: str, generation: int, positions: Mapping[int, int], began: int | None = None
    ) -> None:
        """The process has other partitions now. ``began``: when it asked for where to go on.

        What it had before and still has goes on where it was, unless generations were left out
        in between. So what was away for a while must be told before it is back.
        """
        at = self.now()
        self._write(
            Assigned(
                process=self.process,
                at=at,
                group=group,
                began=at if began is None else began,
                generation=generation,
                positions=dict(positions),
            )
        )

    def sought(self, group: str, offsets: Mapping[int, int]) -> None:
        """The process goes to other places by itself."""
        self._write(Sought(process=self.process, at=self.now(), group=group, offsets=dict(offsets)))

    def drained(self, group: str) -> None:
        """The group has read to the end, and nobody sends any more."""
        self._write(Drained(process=self.process, at=self.now(), group=group))

    def _write(self, operation: AnyOperation) -> None:
        os.write(self._file, _encoder.encode(operation) + b"\n")


def read_history(files: Iterable[str | os.PathLike[str]]) -> list[AnyOperation]:
    """The operations of several files; those of one file in order. A torn last line is left out."""
    operations: list[AnyOperation] = []
    for file in files:
        lines = Path(file).read_bytes().split(b"\n")
        operations.extend(_decoder.decode(line) for line in lines[:-1])
    return operations
