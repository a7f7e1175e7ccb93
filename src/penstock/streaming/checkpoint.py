"""A checkpoint as a value, and as bytes that tell when they were damaged.

::

    penstock-checkpoint <version> <CRC-32C of "<version> LF <JSON>", 8 hexadecimal digits> LF
    <JSON>

Every byte is checked: those of the first line by comparing, the others by the checksum.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec
from crc32c import crc32c

from penstock.decoding import decoder_of
from penstock.errors import DamagedFile, InvalidOption, UnsupportedFormat
from penstock.log.names import check_name
from penstock.streaming.ranges import Position, Ranges, check_position

VERSION = 1
_FRONT = re.compile(rb"penstock-checkpoint (\d{1,9}) ([0-9a-f]{8})\n")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StreamCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has come in one partition of a topic."""

    group: str
    topic: str
    partition: int
    offset: int
    """The record to go on with: all below it are handled."""
    committed_at: datetime
    """UTC."""
    gaps: Ranges = ()
    """What is handled beyond the offset, in order. Who resumes passes over these."""
    generation: int = 0
    """The generation of the group that committed it; an older one commits no more."""

    def __post_init__(self) -> None:
        check_name("group", self.group)
        check_name("topic", self.topic)
        check_position(self.offset, self.gaps)
        _check_at_least_zero("partition", self.partition)
        _check_at_least_zero("generation", self.generation)
        if self.committed_at.utcoffset() != timedelta(0):
            raise InvalidOption("committed_at has to be in UTC", option="committed_at")

    @property
    def position(self) -> Position:
        """What is handled."""
        return Position(self.offset, self.gaps)

    def has_handled(self, offset: int) -> bool:
        """Whether the record with this offset is handled."""
        return self.position.has_handled(offset)

    def joined(self, other: StreamCheckpoint) -> StreamCheckpoint:
        """What is handled by one or by the other, with the newer time and generation."""
        position = self.position.joined(other.position)
        return msgspec.structs.replace(
            self,
            offset=position.offset,
            gaps=position.gaps,
            committed_at=max(self.committed_at, other.committed_at),
            generation=max(self.generation, other.generation),
        )

    def says_no_more_than(self, other: StreamCheckpoint) -> bool:
        """Whether the other one has all that this one has, whenever it was committed."""
        both = self.joined(other)
        return (both.position, both.generation) == (other.position, other.generation)

    def to_json(self) -> bytes:
        """The checkpoint as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes | str) -> StreamCheckpoint:
        """The checkpoint again; raises ``msgspec.ValidationError`` or ``DecodeError``."""
        return _to_checkpoint(data)


_to_checkpoint = decoder_of(StreamCheckpoint)


def utc_of(time_ms: int) -> datetime:
    """Milliseconds since 1970 as a time in UTC."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def encode_checkpoint(checkpoint: StreamCheckpoint) -> bytes:
    """The bytes of a checkpoint."""
    body = checkpoint.to_json()
    return b"penstock-checkpoint %d %08x\n%b" % (VERSION, _checksum(b"%d" % VERSION, body), body)


def decode_checkpoint(data: bytes, name: str = "checkpoint") -> StreamCheckpoint:
    """The checkpoint of these bytes; DamagedFile when a single one of them has changed."""
    front = _FRONT.match(data)
    if front is None:
        raise damaged(name, "it is empty" if not data else "its first line is not one")
    body = data[front.end() :]
    if int(front[2], 16) != _checksum(front[1], body):
        raise damaged(name, "its checksum is wrong")
    if int(front[1]) != VERSION:
        raise _newer(name, int(front[1]))
    try:
        return StreamCheckpoint.from_json(body)
    except msgspec.DecodeError as error:
        raise damaged(name, str(error)) from error


def damaged(name: str, reason: str) -> DamagedFile:
    """The error of a checkpoint that cannot be used."""
    return DamagedFile(
        f"the checkpoint {name} is damaged: {reason}. Reset it to an offset to go on; nothing is "
        "skipped or read again before you say so",
        file=name,
        reason=reason,
    )


def _newer(name: str, version: int) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"the checkpoint {name} has format version {version}, this release reads {VERSION}: "
        "upgrade it",
        file=name,
        version=version,
    )


def _checksum(version: bytes, body: bytes) -> int:
    return int(crc32c(b"%b\n%b" % (version, body)))


def _check_at_least_zero(option: str, value: int) -> None:
    if value < 0:
        raise InvalidOption(f"{option} is {value}, and has to be at least 0", option=option)
