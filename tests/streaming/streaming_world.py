"""What the tests of streaming share."""

from penstock.streaming import OffsetRange


async def inline(call):
    """Run a blocking call at once, on the loop: for tests without threads."""
    return call()


def ranges(*pairs):
    """Ranges from pairs of (start, end)."""
    return tuple(OffsetRange(start, end) for start, end in pairs)


def handled_below(position, end):
    """The offsets below ``end`` that a position says are handled."""
    return {offset for offset in range(end) if position.has_handled(offset)}
