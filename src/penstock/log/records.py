"""What a reader gets: records."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a topic. Immutable; it stays valid when the log moves on."""

    topic: str
    partition: int
    offset: int
    """Dense per partition and never changed, also by compaction."""
    timestamp: int
    """Milliseconds since 1970, UTC: what the publisher gave, else when it was appended."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone: key compaction removes the key."""
    headers: Mapping[str, bytes] = NO_HEADERS
