"""A reader ends at the durable end, also when bytes that are not synced stand right behind it."""

from tests.log.strategies import machine, values_draft


def test_records_that_are_not_synced_are_not_read_along():
    one = machine()
    one.append(b"durable")
    one.append(b"not yet", sync=False)
    assert one.values() == [b"durable"]
    one.log.sync()
    assert one.values() == [b"durable", b"not yet"]


def test_the_end_by_time_is_the_durable_one():
    one = machine()
    one.append(b"durable")
    one.system.clock.jump(1_000)
    later = one.log.append([values_draft(b"not yet")], sync=False).timestamp
    assert one.reader.offset_at(later) == 1
    one.log.sync()
    assert one.reader.offset_at(later) == 1
    assert one.reader.offset_at(later + 1) == 2
