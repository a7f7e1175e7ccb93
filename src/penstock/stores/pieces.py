"""Values in pieces: how the database stores lay out one value in rows of (position, data).

The pieces of a value lie side by side, start at 0, overlap nowhere and are never empty, so an
append is an insert and a ranged read touches only the pieces it needs. The functions here do the
arithmetic; each store does the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.system import Buffer

PIECE_BYTES_MAX = 64 * 1024

Piece = tuple[int, Buffer]


def split(data: Buffer, position: int = 0) -> list[Piece]:
    """Cut the data into pieces, the first of them at ``position``."""
    if 0 < len(data) <= PIECE_BYTES_MAX:
        return [(position, data)]
    view = memoryview(data)
    return [
        (position + start, view[start : start + PIECE_BYTES_MAX])
        for start in range(0, len(view), PIECE_BYTES_MAX)
    ]


def assemble(pieces: Sequence[tuple[int, bytes]], start: int, end: int | None) -> bytes:
    """The bytes ``start..end`` of a value, from the pieces that cover them."""
    if not pieces:
        return b""
    first = pieces[0][0]
    data = pieces[0][1] if len(pieces) == 1 else b"".join([piece for _, piece in pieces])
    return data[max(0, start - first) : None if end is None else max(0, end - first)]


def splice(old: Sequence[tuple[int, bytes]], data: bytes, position: int) -> list[Piece]:
    """The pieces that take the place of ``old``, the pieces that ``data`` overwrites a part of."""
    if not old:
        return split(data, position)
    first = old[0][0]
    last_position, last = old[-1]
    left = assemble(old[:1], first, position)
    right = last[max(0, position + len(data) - last_position) :]
    return split(b"".join([left, data, right]), first)
