"""Which partition a record goes to: FNV-1a of its key, or the next one in turn.

The hash is that of :mod:`penstock.hashing`; here a whole column of keys is hashed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.hashing import FNV_BASIS, FNV_PRIME, fnv1a

VECTOR_KEYS_MIN = 16
"""Below this many keys the plain loop is quicker than numpy's calls."""


def fnv1a_many(keys: Sequence[bytes]) -> NDArray[np.uint32]:
    """The hashes of many keys, a byte position at a time over all of them."""
    if len(keys) < VECTOR_KEYS_MIN:
        return np.array([fnv1a(key) for key in keys], np.uint32)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    order = np.argsort(-lengths, kind="stable")
    data = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    starts = (np.cumsum(lengths) - lengths)[order]
    hashes = np.full(len(keys), FNV_BASIS, np.uint32)
    # Longest keys first: at each byte position the keys that still have one are a prefix.
    still = len(keys) - np.searchsorted(np.sort(lengths), np.arange(int(lengths.max())), "right")
    for position, count in enumerate(still.tolist()):
        live = hashes[:count]
        live ^= data[starts[:count] + position]
        live *= np.uint32(FNV_PRIME)
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def partitions_of(
    keys: Sequence[bytes | None], partitions: int, turn: int
) -> tuple[NDArray[np.int64], int]:
    """The partition of each record, and whose turn it is after them."""
    keyed = np.fromiter((key is not None for key in keys), np.bool_, len(keys))
    chosen = np.empty(len(keys), np.int64)
    chosen[keyed] = fnv1a_many([key for key in keys if key is not None]) % partitions
    loose = len(keys) - int(keyed.sum())
    chosen[~keyed] = (np.arange(loose) + turn) % partitions
    return chosen, (turn + loose) % partitions
