"""What the tests of repair ask of a log of twelve records."""

import pytest

from penstock.log.names import offset_key
from penstock.log.repair import repair
from penstock.log.verify import verify
from tests.log.small_log import TOPIC

OFFSETS = offset_key("billing", TOPIC, 0)
ROWS = 12
STEPS = [pytest.param(11, id="some"), pytest.param(1, marks=pytest.mark.torture, id="every")]
"""How far the flipped bytes are from each other."""


def contents(store):
    """Every file but locks."""
    return {
        key: store.read(key) for key in store.list() if not key.endswith(("lock", "maintenance"))
    }


def mend(log, **options):
    return repair(log.store, TOPIC, tier=log.tier, system=log.system, **options)


def check_mended(log, expected, next_offset=ROWS):
    """Everything that repair promises."""
    log.open()
    assert log.stored() == expected
    report = verify(log.store, tier=log.tier)
    assert report.clean, report.problems
    before = contents(log.store)
    assert mend(log).actions == [], "a second run has nothing to do"
    assert contents(log.store) == before
    assert log.append((None, b"next")) == next_offset
    log.append_segments(1)
    assert log.stored() == [*expected, (next_offset, None, b"next"), (next_offset + 1, None, b"v")]
    assert verify(log.store, tier=log.tier).clean


def without(rows, first, following):
    return [row for row in rows if not first <= row[0] < following]
