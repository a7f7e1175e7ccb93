"""Stores: where the log keeps its bytes. :func:`open_store` makes one from a URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidOption
from penstock.stores.base import (
    PersistentBackingStore,
    StoreCapabilities,
    StoreStatistics,
    check_key,
)
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.stores.objects import OBJECT_SCHEMES, ObjectStore
from penstock.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from penstock.stores.sqlite import SqliteStore

__all__ = [
    "DirectoryStore",
    "MemoryStore",
    "ObjectStore",
    "PersistentBackingStore",
    "PostgresStore",
    "SqliteStore",
    "StoreCapabilities",
    "StoreStatistics",
    "check_key",
    "open_store",
]


def open_store(url: str | os.PathLike[str], **options: Any) -> PersistentBackingStore:
    """Open the store that a URL names.

    ::

        memory:                   MemoryStore
        sqlite:/path/to/file      SqliteStore
        postgresql://…            PostgresStore
        s3://bucket/prefix        ObjectStore (also gs: and az:)
        file:/path or a path      DirectoryStore

    Options go to the store's constructor. The caller closes the store.
    """
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or not isinstance(url, str):
        return DirectoryStore(text, **options)
    if scheme == "memory":
        return MemoryStore(**options)
    if scheme in {"postgresql", "postgres"}:
        return PostgresStore(text, **options)
    if scheme in OBJECT_SCHEMES:
        return ObjectStore(text, **options)
    if scheme in {"sqlite", "file"}:
        kind = _sqlite() if scheme == "sqlite" else DirectoryStore
        return kind(_path_of(scheme, rest), **options)
    # The rest of an unknown URL is not repeated: it may hold a password.
    raise InvalidOption(
        f"no store for {scheme[:20]!r} URLs: use memory:, sqlite:/path, postgresql://..., "
        "s3://bucket/prefix, gs://..., az://..., file:/path or a plain path",
        scheme=scheme,
    )


def _sqlite() -> type[SqliteStore]:
    # Loaded when it is used: most programs never need the database library.
    from penstock.stores.sqlite import SqliteStore

    return SqliteStore


def __getattr__(name: str) -> object:
    if name == "SqliteStore":
        return _sqlite()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _path_of(scheme: str, rest: str) -> str:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path or path.startswith("//"):
        raise InvalidOption(
            f"{scheme}: needs a path on this machine, as in {scheme}:/var/lib/penstock"
        )
    return path
