"""A store in object storage (the S3 API and its cousins), through obstore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from penstock.errors import InvalidOption, MissingExtra, StoreFailed
from penstock.stores.base import (
    PersistentBackingStore,
    StoreCapabilities,
    StoreStatistics,
    check_key,
)
from penstock.stores.gate import Gate, check_prefix, check_range, no_such_key
from penstock.system import Buffer, System

OBJECT_SCHEMES = frozenset({"s3", "gs", "az"})
# obstore would try ten times for three minutes.
_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}


class ObjectStore(PersistentBackingStore):
    """Each key is an object below the URL and ``prefix``; for sealed segments and offsets.

    ``target`` is a URL (``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``file:///directory``,
    ``memory:///``) or a store made by obstore. Options go to obstore, for S3 for example
    ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``; they may also stand in
    the URL's query, but secrets do not belong there. An ``http://`` endpoint is used as it is given.

    What survives: an object appears as a whole or not at all, and on S3, GCS and Azure it is
    durable when ``write`` returns. In a local directory obstore syncs neither file nor directory
    (seen with strace, obstore 0.12), and lets everybody read them: for a ``file:///`` URL this store
    writes them itself, durable and for the user alone. It cannot for a ``LocalStore`` that you made,
    whose ``capabilities.durable`` is False. A failing service is
    tried again for up to 30 s, then ``StoreFailed`` is raised and the object may or may not be
    there. Credentials are never shown.
    """

    def __init__(self, target: Any, prefix: str = "", **options: Any) -> None:
        obstore = _obstore()
        self._obstore = obstore
        self._client = _open(obstore, target, options) if isinstance(target, str) else target
        self._base = f"{check_key(prefix.strip('/'))}/" if prefix.strip("/") else ""
        local = isinstance(self._client, obstore.store.LocalStore)
        memory = isinstance(self._client, obstore.store.MemoryStore)
        self._root = urlsplit(target).path.rstrip("/") if local and isinstance(target, str) else ""
        self.capabilities = StoreCapabilities(
            log=False, shared=not memory, durable=bool(self._root) or not (local or memory)
        )
        self._place = _place(target)
        self._gate = Gate(repr(self))

    def __repr__(self) -> str:
        prefix = f", prefix={self._base!r}" if self._base else ""
        return f"ObjectStore({self._place}{prefix})"

    def write(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        with self._translated("write", key):
            if self._root:
                self._write_file(f"{self._root}/{path}", data)
            else:
                # A copy of what may still change: obstore's memory store keeps the buffer itself.
                self._client.put(path, data if isinstance(data, bytes) else bytes(data))
        self._gate.count_write(len(data))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._path(key)
        check_range(start, length)
        with self._translated("read", key):
            data = self._read(path, start, length)
        self._gate.count_read(len(data))
        return data

    def _read(self, path: str, start: int, length: int | None) -> bytes:
        if start == 0 and length is None:
            return bytes(self._client.get(path).bytes())
        try:
            if length is None:
                options = {"range": {"offset": start}}
                return bytes(self._client.get(path, options=options).bytes())
            if length > 0:
                return bytes(self._client.get_range(path, start=start, length=length))
        except self._obstore.exceptions.BaseError:
            # An empty range is an error to the service, not to the store.
            if start < self._size(path):
                raise
        self._size(path)
        return b""

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._translated("delete", key):
            if not self._exists(path):
                return
            try:
                self._client.delete(path)
            except FileNotFoundError:
                return
            if self._root:
                System().files.sync_directory(f"{self._root}/{path}".rpartition("/")[0])
        self._gate.count_delete()

    def list(self, prefix: str = "") -> list[str]:
        possible = check_prefix(prefix)
        self._gate.check()
        if not possible:
            return []
        # The service lists whole folders; the rest of the prefix is compared here.
        folder = self._base + prefix.rpartition("/")[0]
        with self._translated("list", prefix):
            pages = self._client.list(folder.rstrip("/") or None)
            paths = [meta["path"] for page in pages for meta in page]
        wanted = self._base + prefix
        return sorted(path[len(self._base) :] for path in paths if path.startswith(wanted))

    def exists(self, key: str) -> bool:
        path = self._path(key)
        with self._translated("look at", key):
            return self._exists(path)

    def size(self, key: str) -> int:
        path = self._path(key)
        with self._translated("look at", key):
            return self._size(path)

    def statistics(self) -> StoreStatistics:
        return self._gate.statistics()

    def close(self) -> None:
        self._gate.close()

    def abandon_after_fork(self) -> None:
        self._gate.abandon()

    def _write_file(self, target: str, data: Buffer) -> None:
        """A local file as obstore would write it, but durable, and for this user alone."""
        files = System().files
        folders = self._folders(target)
        for folder in reversed(folders):
            with suppress(FileExistsError):
                files.make_directory(folder)
        # obstore does not list what ends so.
        partial = f"{target}#{System().random.getrandbits(32)}"
        try:
            _write_whole(partial, data)
            files.rename(partial, target)
        except BaseException:
            with suppress(OSError):
                files.unlink(partial)
            raise
        for folder in folders:
            files.sync_directory(folder)

    def _folders(self, target: str) -> Sequence[str]:
        """From the folder of a file up to the root."""
        found = [target.rpartition("/")[0]]
        while len(found[-1]) > len(self._root):
            found.append(found[-1].rpartition("/")[0])
        return found

    def _path(self, key: str) -> str:
        self._gate.check()
        return self._base + check_key(key)

    def _size(self, path: str) -> int:
        return int(self._client.head(path)["size"])

    def _exists(self, path: str) -> bool:
        try:
            self._client.head(path)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        """Turn what obstore raises into the store's errors."""
        try:
            yield
        except FileNotFoundError as cause:
            raise no_such_key(key) from cause
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as cause:
            # Only the first line: the rest is a dump of the request.
            reason = str(cause).partition("\n")[0][:300]
            raise StoreFailed(
                f"cannot {verb} {key} in {self._place}: {reason}", key=key, operation=verb
            ) from cause


def _open(obstore: Any, url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    options = {**dict(parse_qsl(parts.query)), **options}
    bare = parts._replace(query="").geturl()
    if parts.scheme == "file":
        return _open_directory(obstore, parts.path, options)
    if parts.scheme == "memory":
        return obstore.store.MemoryStore()
    if parts.scheme not in OBJECT_SCHEMES:
        raise InvalidOption("object storage is s3://, gs://, az://, file:/// or memory:///")
    _check_safe(options)
    options.setdefault("retry_config", _RETRIES)
    if str(options.get("endpoint", "")).startswith("http://"):
        client = dict(options.get("client_options") or {})
        options["client_options"] = {"allow_http": True, **client}
    try:
        return obstore.store.from_url(bare, **options)
    except (obstore.exceptions.BaseError, ValueError, TypeError) as cause:
        # The options may hold secrets and obstore repeats them: say only which were given.
        reason = type(cause).__name__
    raise InvalidOption(f"obstore refuses {bare} with the options {sorted(options)}: {reason}")


def _check_safe(options: Mapping[str, Any]) -> None:
    """InvalidOption for what would leave the server's certificate unchecked."""
    for name in [*options, *(options.get("client_options") or {})]:
        if "allow_invalid_certificates" in name.lower():
            raise InvalidOption(
                f"{name} cannot be set: the server's certificate is always checked. Let the system "
                "trust who signed it",
                option=name,
            )


def _open_directory(obstore: Any, path: str, options: dict[str, Any]) -> Any:
    files = System().files
    try:
        if not files.exists(path):
            files.make_directory(path)
    except OSError as cause:
        raise StoreFailed(f"cannot make {path}: {cause.strerror}", errno=cause.errno) from cause
    return obstore.store.LocalStore(path, **options)


def _write_whole(path: str, data: Buffer) -> None:
    """A new file, on the disk when this returns."""
    files = System().files
    descriptor = files.open(path, create=True)
    try:
        files.write(descriptor, [data], 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)


def _place(target: Any) -> str:
    if not isinstance(target, str):
        return type(target).__name__
    parts = urlsplit(target)
    return parts._replace(query="", netloc=parts.netloc.rpartition("@")[2]).geturl()


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as cause:
        raise MissingExtra(
            "object storage needs obstore: pip install penstock[objects]", extra="objects"
        ) from cause
    return obstore
