"""topic.json: created once, changed as a whole, damage is said."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from unittest.mock import Mock

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    DamagedFile,
    DamageError,
    InvalidName,
    InvalidOption,
    UnknownTopic,
    UnsupportedFormat,
)
from penstock.log.codec import Codec
from penstock.log.topic import (
    PARTITIONS_MAX,
    TOPIC_BYTES_MAX,
    FsyncPolicy,
    Retention,
    TopicConfig,
    TopicFile,
    WhenFull,
    list_topics,
)
from penstock.stores.memory import MemoryStore
from penstock.system import Buffer
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import machine

KEY = "topics/orders/topic.json"


def document(topic: bytes, generation: int = 1, version: int = 1) -> bytes:
    """A file with a checksum that fits."""
    checksum = crc32c(b"%d %d %s" % (version, generation, topic))
    return b'{"format":%d,"generation":%d,"checksum":%d,"topic":%s,"previous":null}\n' % (
        version, generation, checksum, topic,
    )  # fmt: skip


def read(content: bytes):
    store = MemoryStore()
    store.write(KEY, content)
    return TopicFile(store, "orders").read()


CONFIGS = st.builds(
    TopicConfig,
    partitions=st.integers(1, PARTITIONS_MAX),
    fsync=st.sampled_from(FsyncPolicy),
    linger_ms=st.integers(0, 60_000),
    codec=st.sampled_from(Codec),
    compact_keys=st.booleans(),
    retention=st.builds(
        Retention,
        age_ms_max=st.none() | st.integers(1, 10**12),
        when_full=st.sampled_from(WhenFull),
        acknowledged=st.booleans(),
    ),
)


@given(CONFIGS, st.integers(0, 1 << 50))
@settings(max_examples=40)
def test_any_config_reads_back(config, now_ms):
    store = MemoryStore()
    made = TopicFile(store, "orders").create(config, now_ms)
    again = TopicFile(store, "orders").read()
    assert again == made
    assert again.config == config.check()
    assert (again.name, again.created_ms, again.partitions) == ("orders", now_ms, config.partitions)


def test_creating_twice_gives_what_is_there():
    store = MemoryStore()
    first = TopicFile(store, "orders").create(TopicConfig(partitions=3), 1)
    assert TopicFile(store, "orders").create(TopicConfig(partitions=5), 2) == first


def test_changes_are_seen_by_everybody():
    store = MemoryStore()
    file = TopicFile(store, "orders")
    with pytest.raises(UnknownTopic, match="create_topic"):
        file.read()
    file.create(TopicConfig(), 1)
    file.add_subscriber("billing", {0: 5})
    file.add_subscriber("billing", {0: 9})
    file.change_config(linger_ms=7)
    state = TopicFile(store, "orders").read()
    assert state.subscribers == {"billing": {0: 5}}
    assert state.config.linger_ms == 7
    file.remove_subscriber("billing")
    file.remove_subscriber("nobody")
    assert file.read().subscribers == {}


def test_wrong_settings_are_named():
    file = TopicFile(MemoryStore(), "orders")
    file.create(TopicConfig(), 1)
    for changes, name in (
        ({"partitions": 2}, "partitions"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"no_such": 1}, "no_such"),
    ):
        with pytest.raises(InvalidOption, match=name):
            file.change_config(**changes)
    with pytest.raises(InvalidOption, match="partitions"):
        TopicConfig(partitions=PARTITIONS_MAX + 1).check()


def test_names_that_differ_only_by_case_are_refused():
    store = MemoryStore()
    TopicFile(store, "orders").create(TopicConfig(), 1)
    with pytest.raises(InvalidName, match="only by case"):
        TopicFile(store, "Orders").create(TopicConfig(), 1)
    assert list_topics(store) == ["orders"]


class Meeting(MemoryStore):
    """Calls somebody else right before the first topic.json is written, when all is looked at."""

    def __init__(self, other: Callable[[], object]) -> None:
        super().__init__()
        self._other = other
        self._pool = ThreadPoolExecutor(1)
        self._met = False
        self._waits = threading.Event()
        self.meeting: Future[object] = Future()

    def write(self, key: str, data: Buffer) -> None:
        if not self._met:
            self._met = True
            self.meeting = self._pool.submit(self._other)
            self.meeting.add_done_callback(lambda _: self._waits.set())
            assert self._waits.wait(60)
        super().write(key, data)

    def lock(self, key: str, timeout: float) -> AbstractContextManager[None]:
        if self._met and key == "topics/Orders/lock":
            self._waits.set()
        return super().lock(key, timeout)

    def close(self) -> None:
        self._pool.shutdown()
        super().close()


def test_of_two_that_make_such_names_at_the_same_time_one_is_refused():
    with Meeting(lambda: TopicFile(store, "orders").create(TopicConfig(), 1)) as store:
        TopicFile(store, "Orders").create(TopicConfig(), 1)
        with pytest.raises(InvalidName, match="only by case"):
            store.meeting.result(60)
        assert list_topics(store) == ["Orders"]


def test_a_folder_without_a_topic_keeps_no_name_from_being_used():
    store = MemoryStore()
    with store.lock("topics/Orders/lock", 1):
        pass
    TopicFile(store, "orders").create(TopicConfig(), 1)
    assert list_topics(store) == ["orders"]


def test_what_did_not_change_is_not_decoded_again():
    store = MemoryStore()
    file, other = TopicFile(store, "orders"), TopicFile(store, "orders")
    made = file.create(TopicConfig(), 1)
    assert file.read() is made
    assert other.read() is other.read() == made
    changed = other.add_subscriber("billing", {0: 7})
    assert file.read() == changed == other.read() != made


def test_every_change_is_there_as_a_whole_after_a_power_cut():
    one = machine()
    file = TopicFile(one.store, "orders")
    file.create(TopicConfig(), 1)
    states: list[SimulatedDisk] = []
    one.disk.on_sync(lambda point: states.extend(one.disk.crash_states(30)))
    file.change_config(linger_ms=9)
    found = {TopicFile(machine(state).store, "orders").read().config.linger_ms for state in states}
    assert found == {0, 9}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b"[" * 200_000,
        b'{"format":1,"generation":1,"checksum":0,"topic":' + b"[" * 200_000,
        b'{"format":1,"generation":1,"checksum":1,"topic":{},"previous":null}',
        b'{"format":1,"generation":1,"checksum":1,"topic":"\xff","previous":null}',
        b"\xff\xfe\x00",
        document(b"{}"),
        document(b'"text"'),
        document(b'{"name":"\xff"}'),
        b" " * (TOPIC_BYTES_MAX + 1),
    ],
    ids=lambda content: ascii(content[:30]),
)
def test_what_is_no_topic_is_damage_and_never_a_crash(content):
    with pytest.raises(DamagedFile) as caught:
        read(content)
    assert caught.value.file == KEY


@given(st.binary(max_size=200))
def test_random_bytes_are_damage(content):
    with pytest.raises(DamageError):
        read(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "config", "epochs", "x"]), inner)
        ),
    )
)
def test_any_json_with_a_checksum_that_fits_is_damage(value):  # fmt: skip
    with pytest.raises(DamageError):
        read(document(msgspec.json.encode(value)))


def test_a_newer_format_is_refused_with_its_number():
    with pytest.raises(UnsupportedFormat, match="format 2"):
        read(document(b"{}", version=2))


@pytest.mark.parametrize("epochs", ["[]", "[[0,0,1]]", "[[0,5000000,1]]", "[[0,-1,1]]"])
def test_partitions_out_of_range_are_damage(epochs):
    store = MemoryStore()
    TopicFile(store, "orders").create(TopicConfig(), 1)
    raw = bytes(msgspec.json.decode(store.read(KEY), type=dict[str, msgspec.Raw])["topic"])
    fields = msgspec.json.decode(raw)
    shape = fields["epochs"][0]
    rows = msgspec.json.decode(epochs.encode())
    fields["epochs"] = [dict(zip(shape, row, strict=True)) for row in rows]
    with pytest.raises(DamagedFile, match="partitions"):
        read(document(msgspec.json.encode(fields)))


def test_the_same_bytes_are_checked_once_and_other_bytes_anew(monkeypatch):
    """With a thousand subscribers that takes longer than to read them."""
    store = MemoryStore()
    file, other = TopicFile(store, "orders"), TopicFile(store, "orders")
    file.create(TopicConfig(), 0)
    decoding = Mock(wraps=file._decode_document)
    monkeypatch.setattr(file, "_decode_document", decoding)
    file.add_subscriber("billing", {0: 0})
    assert file.read() == file.read()
    assert decoding.call_count == 0
    other.add_subscriber("shipping", {0: 0})
    assert file.read().subscribers == {"billing": {0: 0}, "shipping": {0: 0}}
    assert decoding.call_count == 1
    data = store.read(KEY)
    store.write(KEY, data.replace(b"billing", b"billinG"))
    with pytest.raises(DamagedFile, match="checksum"):
        file.read()
    store.write(KEY, data)
    assert file.update(lambda state: state) == file.read()
