"""Why a record is not taken now: the errors, with what to do about them."""

from __future__ import annotations

import traceback

from penstock.errors import BufferFull, RecordTooLarge, RetentionFull, StoreFailed


def record_too_large(topic: str, size: int, limit: int) -> RecordTooLarge:
    """A record is larger than its topic takes."""
    return RecordTooLarge(
        f"the record has {size} bytes, {topic!r} takes {limit} (record_bytes_max): "
        "store the payload elsewhere and publish a reference to it",
        topic=topic,
        size=size,
        limit=limit,
    )


def buffer_full(topic: str, pending_bytes: int) -> BufferFull:
    """The bytes that wait for the disk are at their bound."""
    return BufferFull(
        f"{pending_bytes} bytes of {topic!r} wait for the disk, which is the "
        "limit (buffer_bytes_max); wait with publish() or try again",
        topic=topic,
        pending_bytes=pending_bytes,
    )


def retention_full(topic: str) -> RetentionFull:
    """The topic is at its size, and its policy is to reject."""
    return RetentionFull(
        f"topic {topic!r} is at its retention size and rejects records until its "
        "subscribers have consumed some, or the limit is raised",
        topic=topic,
    )


def interrupted(topic: str, cause: BaseException) -> StoreFailed:
    """The commit did not come to its end, as the program was told to end."""
    failure = StoreFailed(
        f"a commit of {topic!r} was interrupted by {type(cause).__name__}: its records may or may not "
        "be in the log",
        operation="commit",
        topic=topic,
    )
    failure.__cause__ = cause
    return failure


def let_go(error: BaseException) -> None:
    """Forget the variables of the calls that failed; where they failed is still told.

    Whoever keeps an error would keep their open files, too, after the store is closed.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
