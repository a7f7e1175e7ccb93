"""`open_store`: one function from a URL to a store."""

from pathlib import Path

import pytest

from penstock.errors import InvalidOption
from penstock.stores import (
    DirectoryStore,
    MemoryStore,
    ObjectStore,
    PostgresStore,
    SqliteStore,
    open_store,
)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryStore),
        ("sqlite:{tmp}/store.db", SqliteStore),
        ("sqlite://{tmp}/store.db", SqliteStore),
        ("file:{tmp}/store", DirectoryStore),
        ("file://{tmp}/store", DirectoryStore),
        ("{tmp}/store", DirectoryStore),
        ("{tmp}/with:colon", DirectoryStore),
    ],
)
def test_a_url_names_a_store(url, kind, tmp_path):
    with open_store(url.format(tmp=tmp_path)) as store:
        assert type(store) is kind
        store.write("a", b"value")
        assert store.read("a") == b"value"


def test_a_relative_path_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:store.db") as store:
        store.write("a", b"value")
    with open_store("data") as store:
        store.write("a", b"value")
    assert (tmp_path / "store.db").exists()
    assert (tmp_path / "data" / "a").exists()


def test_a_path_object_is_a_path(tmp_path):
    with open_store(Path(tmp_path / "odd:name")) as store:
        assert isinstance(store, DirectoryStore)


def test_a_server_is_named_by_its_url(postgres_dsn, s3_url, unique):
    with open_store(postgres_dsn, schema=unique) as store:
        assert isinstance(store, PostgresStore)
    with open_store(s3_url, prefix=unique) as store:
        assert isinstance(store, ObjectStore)


def test_an_unknown_scheme_names_the_right_ones():
    with pytest.raises(InvalidOption, match=r"sqlite:/path.*postgresql://.*s3://") as caught:
        open_store("mysql://user:secret@host/db")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:", "file:", "sqlite://host/path", "file://host/path"])
def test_a_url_without_a_path_on_this_machine_is_refused(url):
    with pytest.raises(InvalidOption, match="path on this machine"):
        open_store(url)
