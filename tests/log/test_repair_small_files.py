"""repair() of heads, descriptions, offsets and indexes: no record is lost with them."""

import pytest

from penstock.errors import DamageError, UnsupportedFormat
from penstock.log import open_index
from penstock.log.frame import VERSION
from penstock.log.head import HeadFile
from penstock.log.index import INDEX_SPACING_BYTES
from penstock.log.inspection import LostRange
from penstock.log.names import SegmentName, topic_key
from penstock.log.offsets import OffsetFile
from penstock.log.topic import TopicConfig, TopicFile
from penstock.log.verify import verify
from tests.log.mending import OFFSETS, STEPS, check_mended, contents, mend, without
from tests.log.small_log import KEYS, TOPIC, SmallLog, filled, flips, log_key

# -------------------------------------------------------------------------------- flipped bits


@pytest.mark.parametrize("key", [KEYS.head, OFFSETS, topic_key(TOPIC)])
@pytest.mark.parametrize("step", STEPS)
def test_a_flipped_byte_of_a_small_file_costs_no_record(key, step):
    origin = filled()
    rows, sound, state = origin.stored(), origin.store.read(key), origin.state
    for position, data in flips(sound, step):
        log = filled()
        log.store.write(key, data)
        report = mend(log)
        assert len(report.actions) == 1, (position, report.actions)
        assert report.lost == []
        assert set(log.state.subscribers) == {"billing"}, position
        assert log.state.config == state.config
        committed = OffsetFile(log.store, "billing", TOPIC, 0).read()
        assert committed
        assert committed.offset in (4, 6), "never forwards, and never far back"
        check_mended(log, rows)


def test_a_flipped_byte_of_an_index_is_mended(monkeypatch):
    monkeypatch.setattr(open_index, "ROWS_TOGETHER", 1)
    log = SmallLog()
    for _ in range(4):
        log.append((None, bytes(INDEX_SPACING_BYTES)))
    log.append_segments(1)
    for _ in range(3):
        log.append((None, bytes(INDEX_SPACING_BYTES)))
    for base in (0, 4):
        key = KEYS.index(SegmentName(base))
        sound = log.store.read(key)
        for _, data in flips(sound, 5):
            log.store.write(key, data)
            assert [action.kind for action in mend(log).actions] == ["index"]
            assert log.store.read(key) == sound
    assert verify(log.store).clean


# ------------------------------------------------------------------------ head, topic, offsets


def test_a_wholly_damaged_head_is_made_anew():
    log = filled()
    rows = log.stored()
    log.store.write(KEYS.head, b"\x11" * 1024)
    assert [action.kind for action in mend(log).actions] == ["head"]
    check_mended(log, rows)


def test_a_damaged_head_and_a_damaged_end_keep_every_sound_record():
    log = filled()
    rows = log.stored()
    log.store.write(KEYS.head, b"\x11" * 1024)
    data = bytearray(log.store.read(log_key(9)))
    data[140] ^= 1
    log.store.write(log_key(9), data)
    assert mend(log).lost == [LostRange(TOPIC, 0, 9, 10)]
    check_mended(log, without(rows, 9, 10))


def test_a_head_that_does_not_fit_is_put_right_without_loss():
    log = filled()
    rows = log.stored()
    file = HeadFile(log.store, KEYS.head)
    head = file.read()
    assert head
    file.write(head._replace(durable_checksum=1, checksum=1))
    assert mend(log).lost == []
    check_mended(log, rows)


def test_offsets_below_the_durable_one_are_never_given_again():
    log = filled()
    file = HeadFile(log.store, KEYS.head)
    head = file.read()
    assert head
    ahead = head._replace(next_offset=50, position=head.position + 99)
    file.write(ahead.synced())
    assert mend(log).lost == [LostRange(TOPIC, 0, 12, 50)]
    assert log.store.exists(f"quarantine/{log_key(9)}")
    log.open()
    assert log.append((None, b"next")) == 50


def test_a_torn_tail_is_cut():
    log = filled()
    rows = log.stored()
    log.store.write(log_key(9), log.store.read(log_key(9)) + b"torn")
    assert [action.kind for action in mend(log).actions] == ["torn tail"]
    check_mended(log, rows)


def test_a_damaged_description_goes_back_a_generation_and_keeps_the_subscribers():
    log = filled()
    log.topic.change_config(linger_ms=7)
    data = log.store.read(topic_key(TOPIC))
    broken = data.replace(b'"linger_ms":7', b'"linger_ms":8')
    log.store.write(topic_key(TOPIC), broken)
    (action,) = mend(log).actions
    assert "generation 2" in action.message
    assert log.state.config.linger_ms == 0
    assert set(log.state.subscribers) == {"billing"}
    assert log.store.read(f"quarantine/{topic_key(TOPIC)}") == broken


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 90, None])
def test_a_lost_description_is_made_anew_and_removes_nothing(data):
    log = filled()
    if data is None:
        log.store.delete(topic_key(TOPIC))
    else:
        log.store.write(topic_key(TOPIC), data)
    report = mend(log)
    assert [action.kind for action in report.actions] == ["topic"]
    state = TopicFile(log.store, TOPIC).read()
    assert (state.config.retention.age_ms_max, state.config.retention.bytes_max) == (None, None)
    assert state.subscribers == {"billing": {0: 6}}
    assert verify(log.store).clean


def test_a_lost_description_takes_the_settings_that_are_given():
    log = filled()
    log.store.delete(topic_key(TOPIC))
    mend(log, config=TopicConfig(linger_ms=9))
    assert log.state.config.linger_ms == 9


def test_an_unreadable_offset_is_left_to_a_person():
    log = filled()
    log.store.write(OFFSETS, b"\x99" * 1024)
    report = mend(log)
    assert report.actions == []
    assert [problem.file for problem in report.remaining] == [OFFSETS]
    assert "Seek" in report.remaining[0].message
    with pytest.raises(DamageError):
        OffsetFile(log.store, "billing", TOPIC, 0).read()
    OffsetFile(log.store, "billing", TOPIC, 0).reset(3, 0)
    assert verify(log.store).clean


def test_a_newer_format_is_refused_and_not_repaired(monkeypatch):
    log = filled()
    before = contents(log.store)
    monkeypatch.setattr("penstock.log.frame.VERSION", VERSION - 1)
    with pytest.raises(UnsupportedFormat):
        mend(log)
    assert contents(log.store) == before
