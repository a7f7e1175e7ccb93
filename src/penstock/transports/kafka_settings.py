"""What a Kafka client is made with: the URL, native options, secrets from the environment.

``kafka://user@host:9092,other:9092?compression.type=zstd`` names brokers and native options. Secrets are
never in a URL; they come from the environment (see ``SECRETS``) and are taken out of every text.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.errors import (
    BrokerFailed,
    DeadlineExceeded,
    InvalidOption,
    PenstockError,
    RecordTooLarge,
    UnknownTopic,
    Unreachable,
)

PORT = 9092
Role = Literal["admin", "consumer", "producer"]

SECRETS = {
    "PENSTOCK_KAFKA_PASSWORD": "sasl.password",
    "PENSTOCK_KAFKA_KEY_PASSWORD": "ssl.key.password",
    "PENSTOCK_KAFKA_KEY": "ssl.key.pem",
    "PENSTOCK_KAFKA_CLIENT_SECRET": "sasl.oauthbearer.client.secret",
}
"""Environment variable → native option."""
USERNAME = "PENSTOCK_KAFKA_USERNAME"

_CHECKED = (
    "the certificate and the name of a broker are always checked; ssl.ca.location says who signs"
)
_RUNS_CODE = "it would load or run a program, and a URL must not"
OURS = {
    "bootstrap.servers": "it is in the URL",
    "enable.auto.commit": "commit() commits",
    "enable.auto.offset.store": "commit() commits",
    "auto.offset.reset": "use start=",
    "enable.idempotence": "it is always on",
    "enable.partition.eof": "an end of a partition is no record",
    "enable.ssl.certificate.verification": _CHECKED,
    "group.id": "it is the group of subscribe()",
    "group.instance.id": "use subscribe(instance=...)",
    "group.protocol": "use subscribe(protocol=...)",
    "partitioner": "use partitioner=",
    "partition.assignment.strategy": "use subscribe(assignor=...)",
    "plugin.library.paths": _RUNS_CODE,
    "sasl.kerberos.kinit.cmd": _RUNS_CODE,
    "session.timeout.ms": "use subscribe(lease_seconds=...)",
    "ssl.endpoint.identification.algorithm": _CHECKED,
    "ssl.engine.location": _RUNS_CODE,
    "ssl.providers": _RUNS_CODE,
    "transactional.id": "use transport.producer(name)",
}
"""Native options that would break what the transport promises, or have a name of their own."""

PRODUCER_ONLY = (
    "acks", "batch.", "compression.", "delivery.", "enable.gapless", "enable.idempotence", "linger.ms",
    "max.in.flight", "message.send", "message.timeout", "queue.buffering", "queuing.", "request.required", "request.timeout", "retries", "retry.backoff", "sticky.", "transaction",
)  # fmt: skip
CONSUMER_ONLY = (
    "allow.auto", "auto.", "check.crcs", "consume.", "coordinator.", "enable.auto", "enable.partition",
    "fetch.", "group.", "heartbeat.", "isolation.", "max.partition.fetch", "max.poll", "offset.",
    "partition.assignment", "queued.", "session.",
)  # fmt: skip

FORGOTTEN = "penstock: forgotten"
"""Stands beside a committed offset that counts as none."""
LOGGER = logging.getLogger("penstock.transports.kafka")

_CALLS = {"error_cb", "stats_cb", "throttle_cb", "on_delivery", "on_commit", "oauth_cb", "logger"}
_TIMED_OUT = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError.REQUEST_TIMED_OUT,
}
_NOT_THERE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
_UNREACHABLE = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}


class KafkaSettings:
    """The brokers and how to talk to them. Its text holds no secret."""

    def __init__(
        self, address: str, native: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        self.address = address
        for name in native:
            _check_native(name)
        secrets = {
            option: environment[name] for name, option in SECRETS.items() if environment.get(name)
        }
        self._native = {"sasl.username": environment.get(USERNAME), **native, **secrets}
        self._hidden = [str(one) for one in secrets.values()]

    @classmethod
    def of(cls, url: str, options: Mapping[str, object]) -> tuple[KafkaSettings, dict[str, str]]:
        """The settings of a URL, and what its query names that has no dot: options of Penstock."""
        parts = urlsplit(url)
        user, _, brokers = parts.netloc.rpartition("@")
        if not brokers or parts.path.strip("/") or parts.fragment:
            raise InvalidOption(
                "a Kafka URL is kafka://host:port,host:port?option=value", option="url"
            )
        if ":" in user:
            raise InvalidOption(
                "a password does not belong into a URL: set PENSTOCK_KAFKA_PASSWORD", option="url"
            )
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        native: dict[str, object] = {name: query[name] for name in query if _is_native(name)}
        if user:
            native["sasl.username"] = unquote(user)
        own = {name: value for name, value in query.items() if name not in native}
        address = ",".join(one if ":" in one else f"{one}:{PORT}" for one in brokers.split(","))
        return cls(address, {**native, **options}, os.environ), own

    def client(self, role: Role, **calls: Any) -> dict[str, Any]:
        """The configuration of a client: what is native and meant for it, and where it logs."""
        chosen = {
            name: value
            for name, value in self._native.items()
            if value is not None and _is_for(role, name)
        }
        return {
            "bootstrap.servers": self.address,
            "client.id": "penstock",
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 2_000,
            "socket.keepalive.enable": True,
            "logger": LOGGER,
            **chosen,
            **calls,
        }

    def given(self) -> dict[str, object]:
        """The native options as they were given."""
        return {name: value for name, value in self._native.items() if value is not None}

    def make(self, kind: Any, configuration: dict[str, Any]) -> Any:
        """A client; InvalidOption when it refuses its configuration."""
        try:
            return kind(configuration)
        except KafkaException as error:
            reason = self.shown(error.args[0].str())
            raise InvalidOption(f"Kafka's client: {reason}", option="options") from None
        except (TypeError, ValueError) as error:
            raise InvalidOption(
                f"Kafka's client: {self.shown(str(error))}", option="options"
            ) from None

    def shown(self, text: str) -> str:
        """A text without the secrets."""
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return text

    def __repr__(self) -> str:
        return f"kafka://{self.address}"

    def error(
        self, error: KafkaError | KafkaException, what: str, seconds: float = 0.0, **fields: object
    ) -> PenstockError:
        """What Penstock raises for an error of the client."""
        if isinstance(error, KafkaException):
            return self.error(error.args[0], what, seconds, **fields)
        code = error.code()
        text = f"could not {what}: {self.shown(error.str())}"
        if code in _NOT_THERE and "topic" in fields:
            return UnknownTopic(f"there is no topic {fields['topic']!r}: {text}", **fields)
        if code in _TOO_LARGE:
            return RecordTooLarge(text, **fields)
        if code in _UNREACHABLE:
            return self.unreachable(what, seconds)
        if code in _TIMED_OUT:
            return DeadlineExceeded(
                f"{text}; the outcome is not known", seconds=seconds, transport="kafka", **fields
            )
        return BrokerFailed(text, transport="kafka", code=error.name(), **fields)

    def unreachable(self, what: str, seconds: float, told: str | None = None) -> Unreachable:
        """No broker answered; ``told`` is what the client said about it."""
        because = f" ({self.shown(told)})" if told else ""
        return Unreachable(
            f"could not {what}: no Kafka broker answers at {self.address} within {seconds:g} s{because}: "
            "start it, or correct the URL",
            transport="kafka",
            address=self.address,
            seconds=seconds,
        )


def is_committed(place: TopicPartition) -> bool:
    """Whether a group has an offset there."""
    return place.offset >= 0 and place.metadata != FORGOTTEN


def _is_native(name: str) -> bool:
    return "." in name or name in {"acks", "debug", "retries"}


def _is_for(role: Role, name: str) -> bool:
    if name.startswith(PRODUCER_ONLY):
        return role == "producer"
    return role == "consumer" if name.startswith(CONSUMER_ONLY) else True


def _check_native(name: str) -> None:
    if name in _CALLS or name in OURS:
        reason = OURS.get(name, "it takes a function, which is the transport's own")
        raise InvalidOption(f"{name!r} cannot be set: {reason}", option=name)
    if name in SECRETS.values():
        variable = next(one for one, option in SECRETS.items() if option == name)
        raise InvalidOption(f"{name!r} is a secret: set {variable}", option=name)
