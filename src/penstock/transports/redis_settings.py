"""Where a Redis server is, how to be let in, and the options of the transport."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidOption
from penstock.log.deadlines import check_seconds
from penstock.log.names import check_name
from penstock.log.topic import PARTITIONS_MAX
from penstock.system import System
from penstock.transports.options import check_options, from_text

NAME = "redis"
USER_VARIABLE = "PENSTOCK_REDIS_USERNAME"
PASSWORD_VARIABLE = "PENSTOCK_REDIS_PASSWORD"  # noqa: S105 - the name of it, not the password
PARTITIONERS = ("fnv1a", "native")
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where the server is, and how to be let in. Its ``repr`` and ``str`` hold no secret."""

    secure: bool
    host: str
    port: int
    database: int
    username: str | None
    password: str | None

    @classmethod
    def parse(cls, url: str) -> tuple[RedisAddress, dict[str, str]]:
        """The address, and the options in the query; InvalidOption that does not repeat the URL."""
        try:
            parts = urlsplit(url)
            port = parts.port or 6379
            database = int(parts.path.strip("/") or 0)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
                         if parts.query else ())  # fmt: skip
        except ValueError:
            raise _no_url() from None
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or database < 0:
            raise _no_url()
        username = unquote(parts.username) if parts.username else os.environ.get(USER_VARIABLE)
        password = unquote(parts.password) if parts.password else os.environ.get(PASSWORD_VARIABLE)
        secure = parts.scheme == "rediss"
        return cls(
            secure, parts.hostname, port, database, username or None, password or None
        ), query

    def __str__(self) -> str:
        scheme = "rediss" if self.secure else "redis"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.database}"

    def __repr__(self) -> str:
        return f"RedisAddress({self})"


def _no_url() -> InvalidOption:
    return InvalidOption(
        "this is no URL of a Redis server: use redis://host:6379/0 or rediss://host:6379/0",
        option="url",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """Options of the transport, from the URL's query or by name."""

    prefix: str = "penstock"
    """What all keys begin with."""
    auto_create: bool = True
    """Whether ``produce`` makes a topic that is not there."""
    partitions: int = 1
    """How many a topic has when nobody says."""
    partitioner: str = "fnv1a"
    """``fnv1a``, as everywhere in Penstock, or ``native``: the hash of a Redis cluster, CRC-16."""
    connect_seconds: float = CONNECT_SECONDS
    """How long opening waits for the server."""
    synced: bool = False
    """The server syncs before it answers, so what is acknowledged is durable; checked when it is opened."""
    answer_seconds: float = ANSWER_SECONDS
    """After how long without an answer a connection is taken for lost."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> RedisOptions:
        """The options, text turned into what it means; InvalidOption that names the right ones."""
        check_options("the Redis transport", given, _KINDS)
        typed = {
            name: from_text(name, value, _KINDS[name]) if isinstance(value, str) else value
            for name, value in given.items()
        }
        options = cls(**{name: typed[name] for name in typed if name in cls.__dataclass_fields__})
        check_name("prefix", options.prefix)
        check_partitions(options.partitions)
        check_seconds(options.connect_seconds, "connect_seconds")
        check_seconds(options.answer_seconds, "answer_seconds")
        if options.partitioner not in PARTITIONERS:
            raise InvalidOption(
                f"there is no partitioner {options.partitioner!r}: use one of "
                f"{', '.join(PARTITIONERS)}",
                option="partitioner",
            )
        return options


_KINDS = get_type_hints(RedisOptions) | {"options": Mapping, "system": System}


def check_partitions(count: Any) -> None:
    """InvalidOption unless a topic may have so many."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidOption(
            f"partitions is {count!r}; use 1 to {PARTITIONS_MAX}", option="partitions"
        )
