"""A reader that knows the frame of an entry and nothing else, as a tool of somebody else would."""

import struct
from collections.abc import Iterator


def plain_entries(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Payloads and timestamps of a plain file of *4-byte length, payload, 8-byte timestamp*.

    A last entry that is cut off is left out.
    """
    position = 0
    while len(data) - position >= 4:
        (length,) = struct.unpack_from("<I", data, position)
        end = position + 4 + length + 8
        if end > len(data):
            return
        (timestamp,) = struct.unpack_from("<q", data, end - 8)
        yield data[position + 4 : end - 8], timestamp
        position = end
