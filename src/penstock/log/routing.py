"""Which partition a record goes to: FNV-1a of its key, or the next one in turn.

The hash is that of :mod:`penstock.hashing`; here a whole column of keys is hashed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.hashing import FNV_BASIS, FNV_PRIME, fnv1a
from penstock.log.columns import NULL
from penstock.system import Buffer

VECTOR_KEYS_MIN = 16
"""Below this many keys the plain loop is quicker than numpy's calls."""
SPREAD_MIN = 32
"""Records without a key are spread over so many partitions at once ..."""
RECORDS_EACH_MIN = 128
"""... and over more only when each of them gets so many."""


def turns(partitions: int, count: int, turn: int) -> tuple[int, int]:
    """Among how many partitions so many records without a key take turns, and whose turn it is then.

    An entry costs the same for two records as for thirty, to write, to read and to check. So a few
    thousand records that come together do not go to each of five hundred partitions: they go to the next
    ones in turn, and those that come after them to the ones behind. In the end all have got as many.
    """
    together = min(partitions, max(SPREAD_MIN, count // RECORDS_EACH_MIN))
    taken = count if together == partitions else min(together, count)
    return together, (turn + taken) % partitions


def fnv1a_many(keys: Sequence[bytes]) -> NDArray[np.uint32]:
    """The hashes of many keys."""
    if len(keys) < VECTOR_KEYS_MIN:
        return np.array([fnv1a(key) for key in keys], np.uint32)
    return _fnv1a_all(np.fromiter(map(len, keys), np.int64, len(keys)), b"".join(keys))


def _fnv1a_all(lengths: NDArray[np.int64], joined: Buffer) -> NDArray[np.uint32]:
    """The same of keys that stand one after the other, a byte position at a time over all of them."""
    hashes = np.full(len(lengths), FNV_BASIS, np.uint32)
    data = np.frombuffer(joined, np.uint8)
    longest = int(lengths.max(initial=0))
    if (lengths == longest).all():
        return _fnv1a_square(data[: len(lengths) * longest].reshape(len(lengths), longest), hashes)
    order = np.argsort(-lengths, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[order]
    # Longest keys first: at each byte position the keys that still have one are a prefix.
    still = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(longest), "right")
    for position, count in enumerate(still.tolist()):
        live = hashes[:count]
        live ^= data[starts[:count] + position]
        live *= np.uint32(FNV_PRIME)
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def _fnv1a_square(keys: NDArray[np.uint8], hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The same of keys of one length, a row each: a byte position is a column, no places are made."""
    for column in keys.T:
        hashes ^= column
        hashes *= np.uint32(FNV_PRIME)
    return hashes


def partitions_of(
    keys: Sequence[bytes | None], partitions: int, turn: int
) -> tuple[NDArray[np.int64], int]:
    """The partition of each record, and whose turn it is after them."""
    with_key = [key for key in keys if key is not None]
    hashes = fnv1a_many(with_key)
    if len(with_key) == len(keys):
        return (hashes % partitions).astype(np.int64), turn
    keyed = np.fromiter((key is not None for key in keys), np.bool_, len(keys))
    return _chosen(keyed, hashes, partitions, turn)


def partitions_of_bytes(
    lengths: NDArray[np.uint32], joined: Buffer, partitions: int, turn: int
) -> tuple[NDArray[np.int64], int]:
    """The same of keys that stand one after the other; a record whose length is NULL has none."""
    keyed = lengths != NULL
    hashes = _fnv1a_all(lengths[keyed].astype(np.int64), joined)
    return _chosen(keyed, hashes, partitions, turn)


def _chosen(
    keyed: NDArray[np.bool_], hashes: NDArray[np.uint32], partitions: int, turn: int
) -> tuple[NDArray[np.int64], int]:
    chosen = np.empty(len(keyed), np.int64)
    chosen[keyed] = hashes % partitions
    loose = len(keyed) - int(keyed.sum())
    together, after = turns(partitions, loose, turn)
    chosen[~keyed] = (np.arange(loose) % together + turn) % partitions
    return chosen, after
