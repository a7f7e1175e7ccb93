"""What a ``nats://`` URL and its options say. Secrets come from the environment and stay hidden."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidOption
from penstock.log.deadlines import check_seconds
from penstock.log.names import check_name
from penstock.system import System
from penstock.transports.options import check_options, check_value, from_text

PORT = 4222
PREFIX_LENGTH_MAX = 32
REPLICAS_MAX = 5
SECRETS = {
    "user": "PENSTOCK_NATS_USER",
    "password": "PENSTOCK_NATS_PASSWORD",
    "token": "PENSTOCK_NATS_TOKEN",
    "user_credentials": "PENSTOCK_NATS_CREDENTIALS",
    "nkeys_seed_str": "PENSTOCK_NATS_NKEY_SEED",
}
"""What the client is given, and the variable of the environment that has it."""


@dataclass(frozen=True, kw_only=True)
class NatsSettings:
    """All options of the transport. A secret is never part of its text."""

    servers: tuple[str, ...]
    prefix: str = "penstock"
    """What subjects, streams and the bucket of the groups begin with."""
    connect_seconds: float = 10.0
    """Seconds until a server that does not answer at the start is an error."""
    timeout: float = 30.0
    """Seconds that a call waits for a connection that is lost."""
    ping_interval: float = 5.0
    """Seconds between two pings; a connection that misses two of them is made anew."""
    reconnect_seconds_max: float = 2.0
    """The longest pause between two attempts; they begin at 50 ms and double."""
    client_name: str = "penstock"
    auto_create: bool = True
    """Producing to a topic that is not there makes it."""
    partitions: int = 1
    replicas: int = 1
    storage: str = "file"
    dedupe_seconds: float = 120.0
    """How long the server knows message ids: a batch that is sent again in this time is kept once."""
    synced: bool = False
    """The server syncs every write (``sync_interval: always``): what is acknowledged is durable."""
    partitioner: str = "fnv1a"
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_hostname: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    system: System = field(default_factory=System, repr=False)

    def __post_init__(self) -> None:
        check_name("prefix", self.prefix)
        for name in ("connect_seconds", "timeout", "ping_interval", "reconnect_seconds_max"):
            check_seconds(getattr(self, name), name)
        check_value(
            self.prefix, "prefix", len(self.prefix) <= PREFIX_LENGTH_MAX, "at most 32 characters"
        )
        good = not set(self.prefix) & set("._")
        check_value(self.prefix, "prefix", good, "a name without '.' and '_'")
        check_value(self.replicas, "replicas", 1 <= self.replicas <= REPLICAS_MAX, "1 to 5")
        check_value(self.storage, "storage", self.storage in ("file", "memory"), "file or memory")
        # The server's own mapping, {{partition(n, key)}}, is FNV-1a as well.
        good = self.partitioner in ("fnv1a", "native")
        check_value(
            self.partitioner, "partitioner", good, "fnv1a or native, which is the same here"
        )

    @property
    def address(self) -> str:
        """Where the servers are, for errors."""
        return ", ".join(self.servers)

    @property
    def bucket(self) -> str:
        """The key-value bucket with the groups and their offsets."""
        return f"{self.prefix}-groups"

    def tls_context(self) -> ssl.SSLContext | None:
        """How the server is checked and this client shows who it is; None without TLS."""
        if not (self.tls or self.tls_ca or self.tls_cert):
            return None
        context = ssl.create_default_context(cafile=self.tls_ca or None)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key or None)
        return context


KNOWN = frozenset(one.name for one in fields(NatsSettings)) - {"secrets", "servers"}


def settings_from(url: str, options: Mapping[str, Any]) -> NatsSettings:
    """The settings of ``nats://host:4222,host2/?replicas=3`` with these options over it."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme != "nats" or not hosts:
        raise InvalidOption("the URL names no server: use nats://host:4222", option="url")
    if parts.path.strip("/"):
        raise InvalidOption("the URL has a path: use ?prefix=... instead", option="url")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    check_options("the NATS transport", {**given, **options}, KNOWN)
    values = {name: from_text(name, text, _HINTS[name]) for name, text in given.items()}
    servers = tuple(_server(host) for host in hosts.split(","))
    return NatsSettings(servers=servers, secrets=_secrets(login), **{**values, **options})


def _server(host: str) -> str:
    return f"nats://{host}" if ":" in host.rpartition("]")[2] else f"nats://{host}:{PORT}"


def _secrets(login: str) -> dict[str, str]:
    """From the environment; a login in the URL goes before it."""
    found = {name: os.environ.get(variable, "") for name, variable in SECRETS.items()}
    user, colon, password = login.partition(":")
    if colon:
        found |= {"user": unquote(user), "password": unquote(password)}
    elif user:
        found["user"] = unquote(user)
    return {name: value for name, value in found.items() if value}


_HINTS = get_type_hints(NatsSettings)
