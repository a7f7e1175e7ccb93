"""The ledger of a query: what each micro-batch reads, synced in the log before the batch runs.

Spark's own checkpoint on a local disk is not synced: after a power cut its files may be empty. The
ledger is what a checkpoint can be rebuilt from, so that the micro-batch that was at work is done again
with the very same records, and sinks recognise it.

::

    ledgers/<group>/progress            the last micro-batch that Spark reported as done
    ledgers/<group>/plan-<digest>       the last ranges of one source, the newest at the end
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec

from penstock.decoding import decoder_of
from penstock.errors import DamagedFile, KeyNotFound
from penstock.log.names import check_name
from penstock.spark.offsets import Offsets, as_json
from penstock.stores.base import PersistentBackingStore

_T = TypeVar("_T")
PLANS_MAX = 256
"""Reports of Spark come late when the machine is busy; what was not reported is kept so long."""
BYTES_MAX = 16 * 1024 * 1024


class Range(msgspec.Struct, frozen=True):
    """What one source reads in one micro-batch, as Spark writes offsets down."""

    start: str
    end: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch that is done."""

    query_id: str
    batch_id: int
    ends: tuple[str, ...]
    """Where each source of the query stands after it, in the query's order."""
    watermark_ms: int = 0
    stateful: bool = False
    """The query keeps state, which the ledger does not have."""


class _Checked(msgspec.Struct, frozen=True):
    """What stands in a file, and its checksum."""

    checksum: int
    body: msgspec.Raw


_to_checked = decoder_of(_Checked)
_to_ranges = decoder_of(list[Range])
_to_progress = decoder_of(Progress)


class Ledger:
    """The ledger of one group. Blocking; each file has one writer."""

    def __init__(self, store: PersistentBackingStore, group: str) -> None:
        self._store = store
        self._folder = f"ledgers/{check_name('group', group)}"

    def plan(self, start: Offsets, end: Offsets, use: int = 1) -> None:
        """A micro-batch is about to read this; durable when it returns.

        It takes the place of one with the same start, of which nothing came out, and of those after it.
        """
        new = Range(_text(start, use), _text(end, use))
        key = self._plan_key(list(as_json(end, use)))
        before = self._read(key, _to_ranges) or []
        if new.start != new.end and new not in before:
            kept = takewhile(lambda one: one.start != new.start, self._not_reported(before))
            self._write(key, [*kept, new][-PLANS_MAX:])

    def _not_reported(self, plans: list[Range]) -> list[Range]:
        """Those after the last micro-batch that was reported; all when it is not among them."""
        progress = self.progress()
        ends = {plain(end) for end in progress.ends} if progress else set()
        reported = [number for number, one in enumerate(plans) if plain(one.end) in ends]
        return plans[reported[-1] :] if reported else plans

    def note(self, progress: Progress) -> None:
        """A micro-batch is done."""
        self._write(f"{self._folder}/progress", progress)

    def progress(self) -> Progress | None:
        """The last micro-batch that is known to be done; None before the first."""
        return self._read(f"{self._folder}/progress", _to_progress)

    def plans(self) -> list[list[Range]]:
        """The last ranges of each source."""
        keys = [key for key in self._store.list(f"{self._folder}/") if "/plan-" in key]
        return [self._read(key, _to_ranges) or [] for key in sorted(keys)]

    def forget(self) -> None:
        """Remove the ledger: the query starts anew."""
        for key in list(self._store.list(f"{self._folder}/")):
            self._store.delete(key)

    def _plan_key(self, topics: Sequence[str]) -> str:
        return f"{self._folder}/plan-{zlib.crc32(','.join(topics).encode()):08x}"

    def _write(self, key: str, value: object) -> None:
        body = msgspec.json.encode(value)
        checked = _Checked(_checksum(key, body), msgspec.Raw(body))
        self._store.write(key, msgspec.json.encode(checked))

    def _read(self, key: str, decode: Callable[[bytes], _T]) -> _T | None:
        try:
            found = _to_checked(self._store.read(key, 0, BYTES_MAX))
            body = bytes(found.body)
            if _checksum(key, body) != found.checksum:
                raise DamagedFile(f"{key} fails its checksum", file=key)
            return decode(body)
        except KeyNotFound:
            return None
        except msgspec.MsgspecError as cause:
            raise DamagedFile(f"{key} is no part of a ledger: {cause}", file=key) from cause


def _checksum(key: str, body: bytes) -> int:
    """Over the key too: the file of another group is damage here."""
    return zlib.crc32(body, zlib.crc32(key.encode()))


def _text(offsets: Offsets, use: int) -> str:
    return msgspec.json.encode(as_json(offsets, use)).decode()


def plain(offsets: str) -> str:
    """The same text for the same offsets: Spark puts spaces into its JSON, the ledger does not."""
    try:
        return json.dumps(json.loads(offsets), sort_keys=True)
    except ValueError:
        return offsets
