"""Object storage: what each kind promises, options, failures, secrets."""

import stat
import sys
import traceback
from unittest import mock

import obstore.store
import pytest

from penstock.errors import InvalidName, InvalidOption, KeyNotFound, MissingExtra, StoreFailed
from penstock.stores import ObjectStore
from tests.servers import SECRET


def test_capabilities_tell_the_truth(s3_url, tmp_path):
    """obstore syncs nothing in a local directory; the store does, where it knows the path."""
    s3 = ObjectStore(s3_url).capabilities
    local = ObjectStore(f"file://{tmp_path}/store").capabilities
    memory = ObjectStore("memory:///").capabilities
    assert (s3.log, s3.shared, s3.durable) == (False, True, True)
    assert (local.log, local.shared, local.durable) == (False, True, True)
    assert (memory.log, memory.shared, memory.durable) == (False, False, False)


def test_a_store_made_by_obstore_is_taken():
    client = obstore.store.MemoryStore()
    with ObjectStore(client, prefix="mine") as store:
        store.write("a/b", b"value")
        assert bytes(client.get("mine/a/b").bytes()) == b"value"
        assert repr(store) == "ObjectStore(MemoryStore, prefix='mine/')"


def test_prefixes_keep_stores_apart(s3_url, unique):
    with ObjectStore(s3_url, prefix=f"{unique}/one") as one:
        with ObjectStore(s3_url, prefix=f"{unique}/on") as other:
            one.write("a", b"1")
            other.write("a", b"2")
            assert one.list() == other.list() == ["a"]
            assert one.read("a") == b"1"
    with ObjectStore(s3_url, prefix=unique) as above:
        assert above.list() == ["on/a", "one/a"]


def test_the_path_of_the_url_is_a_prefix(s3_url, unique):
    deeper = s3_url.replace("s3://penstock", f"s3://penstock/{unique}")
    with ObjectStore(deeper) as store, ObjectStore(s3_url, prefix=unique) as same:
        store.write("a/b", b"value")
        assert store.list() == same.list() == ["a/b"]
        assert same.read("a/b") == b"value"


@pytest.mark.parametrize("prefix", ["../up", "a//b", ".", "a b"])
def test_a_prefix_is_checked(prefix):
    with pytest.raises(InvalidName):
        ObjectStore("memory:///", prefix=prefix)


def test_many_keys_are_listed():
    """More than one page of obstore's answer."""
    with ObjectStore("memory:///") as store:
        keys = [f"many/{number:04}" for number in range(220)]
        for key in keys:
            store.write(key, b"")
        assert store.list("many/") == keys


def test_a_directory_is_private(tmp_path):
    ObjectStore(f"file://{tmp_path}/store")
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_a_missing_parent_is_named(tmp_path):
    with pytest.raises(StoreFailed, match="absent"):
        ObjectStore(f"file://{tmp_path}/absent/store")


def test_a_service_that_is_not_there(s3_url):
    quick = {"max_retries": 0}
    store = ObjectStore(
        "s3://bucket", endpoint="http://127.0.0.1:1", region="x", retry_config=quick
    )
    with pytest.raises(StoreFailed, match="cannot read a"):
        store.read("a")


def test_a_bucket_that_is_not_there(s3_url):
    with ObjectStore(s3_url.replace("s3://penstock", "s3://absent")) as store:
        with pytest.raises((StoreFailed, KeyNotFound)):
            store.read("a")
        with pytest.raises((StoreFailed, KeyNotFound)):
            store.write("a", b"value")


def test_credentials_are_not_shown(s3_url):
    assert SECRET in s3_url
    store = ObjectStore(s3_url.replace("s3://penstock", "s3://absent"))
    assert SECRET not in repr(store)
    with pytest.raises((StoreFailed, KeyNotFound)) as caught:
        store.write("a", b"value")
    assert SECRET not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize(
    "options", [{"nonsense": SECRET}, {"access_key_id": 3}, {"skip_signature": SECRET}]
)
def test_a_refused_option_is_named_without_its_value(options):
    with pytest.raises(InvalidOption, match=next(iter(options))) as caught:
        ObjectStore("s3://bucket", **options)
    text = "".join(traceback.format_exception(caught.value, chain=True))
    assert SECRET not in text


def test_an_unknown_scheme_is_refused():
    with pytest.raises(InvalidOption, match="s3://"):
        ObjectStore("ftp://host/directory")


def test_without_obstore_the_extra_is_named():
    with mock.patch.dict(sys.modules, {"obstore": None}):
        with pytest.raises(MissingExtra, match=r"pip install penstock\[objects\]"):
            ObjectStore("memory:///")
