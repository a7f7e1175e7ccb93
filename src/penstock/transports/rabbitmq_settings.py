"""What a ``rabbitmq:`` URL and its options say. Secrets come from the environment and stay hidden."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import BrokerFailed, InvalidOption, UnknownTopic, Unreachable
from penstock.log.deadlines import check_seconds
from penstock.log.names import check_name
from penstock.log.topic import PARTITIONS_MAX
from penstock.system import System
from penstock.transports.options import check_options, check_value, from_text

NAME = "rabbitmq"
USER_VARIABLE = "PENSTOCK_RABBITMQ_USERNAME"
PASSWORD_VARIABLE = "PENSTOCK_RABBITMQ_PASSWORD"  # noqa: S105 - the name of it, not the password
PORTS = {
    ("streams", False): 5552,
    ("streams", True): 5551,
    ("quorum", False): 5672,
    ("quorum", True): 5671,
}
"""Mode, and whether TLS is used → the port where RabbitMQ listens unless it is told otherwise."""
PREFIX_LENGTH_MAX = 32
PREFETCH_MAX = 65_535


@dataclass(frozen=True, kw_only=True)
class RabbitSettings:
    """All options of the transport. A secret is never part of its text."""

    hosts: tuple[tuple[str, int], ...]
    secure: bool
    vhost: str = "/"
    username: str = field(default="guest", repr=False)
    password: str = field(default="guest", repr=False)
    mode: str = "streams"
    """``streams``: offsets, replay and groups. ``quorum``: queues, acknowledged one by one."""
    prefix: str = "penstock"
    """What the names of streams, queues and exchanges begin with."""
    connect_seconds: float = 10.0
    """How long opening waits for a server."""
    answer_seconds: float = 5.0
    """After how long without an answer a connection is taken for lost."""
    heartbeat_seconds: float = 10.0
    """How often both sides say that they are there; after two of them without a word it is lost."""
    reconnect_seconds_max: float = 2.0
    """The longest pause between two attempts; they begin at 50 ms and double."""
    auto_create: bool = True
    """Producing to a topic that is not there makes it."""
    partitions: int = 1
    """How many a topic has when nobody says."""
    partitioner: str = "fnv1a"
    amqp_port: int = 0
    """Streams: where the same hosts speak AMQP; then topics are super streams for other clients."""
    groups: str = ""
    """Quorum queues: the groups, with commas, that a new topic has queues for."""
    ordered: bool = True
    """Quorum queues: one member of a group reads, and the records of a key stay in order."""
    prefetch: int = 10_000
    """Quorum queues: records of a partition that a member may have without a commit."""
    client_name: str = "penstock"
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_hostname: str = ""
    system: System = field(default_factory=System, repr=False)

    def __post_init__(self) -> None:
        check_name("prefix", self.prefix)
        for name in ("connect", "answer", "heartbeat"):
            check_seconds(getattr(self, f"{name}_seconds"), f"{name}_seconds")
        check_seconds(self.reconnect_seconds_max, "reconnect_seconds_max")
        check_value(self.mode, "mode", self.mode in ("streams", "quorum"), "streams or quorum")
        good = len(self.prefix) <= PREFIX_LENGTH_MAX
        check_value(self.prefix, "prefix", good, f"at most {PREFIX_LENGTH_MAX} characters")
        check_value(
            self.partitions, "partitions", is_count(self.partitions), f"1 to {PARTITIONS_MAX}"
        )
        known = ("fnv1a", "native") if self.mode == "streams" else ("fnv1a",)
        good = self.partitioner in known
        check_value(self.partitioner, "partitioner", good, f"{' or '.join(known)} in this mode")
        good = 1 <= self.prefetch <= PREFETCH_MAX
        check_value(self.prefetch, "prefetch", good, f"1 to {PREFETCH_MAX}")
        if self.groups and self.mode == "streams":
            raise InvalidOption("groups is an option of mode=quorum", option="groups")
        for group in self.group_names:
            check_name("group", group)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups that every new topic has queues for."""
        return tuple(one.strip() for one in self.groups.split(",") if one.strip())

    @property
    def address(self) -> str:
        """Where the servers are, for errors."""
        scheme = "rabbitmqs" if self.secure else NAME
        return ", ".join(f"{scheme}://{host}:{port}" for host, port in self.hosts)

    def tls_context(self) -> ssl.SSLContext | None:
        """How the server is checked and this client shows who it is; None without TLS."""
        if not self.secure:
            return None
        context = ssl.create_default_context(cafile=self.tls_ca or None)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key or None)
        return context

    def hidden(self, text: str) -> str:
        """A text without the password."""
        return text.replace(self.password, "***") if self.password else text

    def unreachable(self, seconds: float, why: str | None, **more: Any) -> Unreachable:
        """The error of a call that found no server in time."""
        reason = f" ({self.hidden(why)})" if why else ""
        return Unreachable(
            f"RabbitMQ at {self.address} did not answer within {seconds:g} s{reason}: start it, with "
            "the plugin rabbitmq_stream for mode=streams, or correct the URL",
            transport=NAME,
            address=self.address,
            seconds=seconds,
            **more,
        )

    def failed(self, did: str, why: str, code: int = 0) -> BrokerFailed:
        """The error of a call that the server refused."""
        return BrokerFailed(
            f"RabbitMQ at {self.address} {did}: {self.hidden(why)}", transport=NAME, code=code
        )


def unknown_topic(topic: str) -> UnknownTopic:
    """There is no such topic."""
    return UnknownTopic(
        f"there is no topic {topic!r} on this server: create_topic() makes it", topic=topic
    )


def is_count(value: Any) -> bool:
    """Whether a topic may have so many partitions."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= PARTITIONS_MAX


_NO_OPTIONS = {"hosts", "secure", "vhost", "username", "password"}
KNOWN = frozenset(one.name for one in fields(RabbitSettings)) - _NO_OPTIONS
_HINTS = get_type_hints(RabbitSettings)


def settings_from(url: str, options: Mapping[str, Any]) -> RabbitSettings:
    """The settings of ``rabbitmq://host:5552,host2/vhost?mode=streams`` with these options over it."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme not in (NAME, "rabbitmqs") or not hosts:
        raise InvalidOption("the URL names no server: use rabbitmq://host:5552", option="url")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    check_options("the RabbitMQ transport", {**given, **options}, KNOWN)
    values = {name: from_text(name, text, _HINTS[name]) for name, text in given.items()} | dict(
        options
    )
    secure = parts.scheme == "rabbitmqs"
    port = PORTS.get((values.get("mode", "streams"), secure), 0)
    user, _, password = login.partition(":")
    return RabbitSettings(
        hosts=tuple(_host(one, port) for one in hosts.split(",")),
        secure=secure,
        vhost=unquote(parts.path[1:]) or "/",
        username=unquote(user) or os.environ.get(USER_VARIABLE) or "guest",
        password=unquote(password) or os.environ.get(PASSWORD_VARIABLE) or "guest",
        **values,
    )


def _host(text: str, port: int) -> tuple[str, int]:
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, number = text, str(port)
    if not host or not number.isdecimal():
        raise InvalidOption("the URL names no server: use rabbitmq://host:5552", option="url")
    return host.strip("[]"), int(number)
