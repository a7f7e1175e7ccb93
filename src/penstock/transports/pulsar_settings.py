"""What a ``pulsar:`` URL and its options say. Secrets come from the environment and stay hidden."""

from __future__ import annotations

import inspect
import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pulsar  # type: ignore[import-untyped]

from penstock.errors import InvalidOption
from penstock.log.deadlines import check_seconds
from penstock.log.names import check_name
from penstock.system import System
from penstock.transports.options import check_options, check_value, from_text

NAME = "pulsar"
SCHEMES = ("pulsar", "pulsar+ssl")
PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
ADMIN_PORTS = {"pulsar": ("http", 8080), "pulsar+ssl": ("https", 8443)}
COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "snappy": pulsar.CompressionType.SNAPPY,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
}
SECRETS = {
    "token": "PENSTOCK_PULSAR_TOKEN",
    "user": "PENSTOCK_PULSAR_USER",
    "password": "PENSTOCK_PULSAR_PASSWORD",
}
"""What the client is given, and the variable of the environment that has it."""
NATIVE = frozenset(inspect.signature(pulsar.Client).parameters) - {
    "authentication",
    "log_conf_file_path",
    "logger",
    "listener_name",
    "operation_timeout_seconds",
    "service_url",
    "tls_allow_insecure_connection",
    "tls_certificate_file_path",
    "tls_private_key_file_path",
    "tls_trust_certs_file_path",
    "tls_validate_hostname",
    "use_tls",
}
"""Options of the client itself that may be given as ``options``."""
OPERATION_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class PulsarSettings:
    """All options of the transport. A secret is never part of its text."""

    service_url: str
    tenant: str
    namespace: str
    admin_url: str
    """Where the brokers answer HTTP."""
    connect_seconds: float = 10.0
    """Until a broker that does not answer at the start is an error."""
    timeout: float = 30.0
    """Seconds that a call waits for a broker that is away."""
    auto_create: bool = True
    """Producing to a topic that is not there makes it."""
    partitions: int = 1
    keep: bool = True
    """Topics that are made keep all records, also those that every group has consumed."""
    partitioner: str = "fnv1a"
    compression: str = "none"
    listener_name: str = ""
    """Which of the broker's advertised listeners is used."""
    client_log: str = os.devnull
    """The file that the client writes its errors to."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    system: System = field(default_factory=System, repr=False)

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "timeout"):
            check_seconds(getattr(self, name), name)
        for name in ("tenant", "namespace"):
            check_name(name, getattr(self, name))
        good = self.partitioner in ("fnv1a", "native")
        check_value(self.partitioner, "partitioner", good, "fnv1a or native")
        good = self.compression in COMPRESSIONS
        check_value(self.compression, "compression", good, ", ".join(COMPRESSIONS))
        good = urlsplit(self.admin_url).scheme in ("http", "https")
        check_value(self.admin_url, "admin_url", good, "http://host:8080")
        check_options("Pulsar's client", self.options, NATIVE)

    def __repr__(self) -> str:
        return f"{self.service_url}/{self.tenant}/{self.namespace}"

    # Names

    def full(self, topic: str) -> str:
        """The name of a topic as the client knows it."""
        return f"persistent://{self.tenant}/{self.namespace}/{topic}"

    def path(self, topic: str) -> str:
        """The path of a topic at the brokers' HTTP."""
        return f"/admin/v2/persistent/{self.tenant}/{self.namespace}/{quote(topic, safe='')}"

    # Who this is

    def authentication(self) -> pulsar.Authentication | None:
        """How the client shows who it is; None: not at all."""
        secrets = self.secrets
        if "token" in secrets:
            return pulsar.AuthenticationToken(secrets["token"])
        if "password" in secrets:
            return pulsar.AuthenticationBasic(secrets.get("user", ""), secrets["password"])
        if self.tls_cert:
            return pulsar.AuthenticationTLS(self.tls_cert, self.tls_key)
        return None

    def authorization(self) -> str | None:
        """The same as a header of HTTP."""
        secrets = self.secrets
        if "token" in secrets:
            return f"Bearer {secrets['token']}"
        if "password" in secrets:
            login = f"{secrets.get('user', '')}:{secrets['password']}"
            return f"Basic {b64encode(login.encode()).decode()}"
        return None

    def tls_context(self) -> ssl.SSLContext:
        """How a broker's HTTP is checked."""
        context = ssl.create_default_context(cafile=self.tls_ca or None)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key or None)
        return context

    def client(self) -> pulsar.Client:
        """A client. It connects when something is made with it."""
        native: dict[str, Any] = {**self.options, "tls_validate_hostname": True}
        if self.tls_ca:
            native["tls_trust_certs_file_path"] = self.tls_ca
        if self.listener_name:
            native["listener_name"] = self.listener_name
        try:
            return pulsar.Client(
                self.service_url,
                authentication=self.authentication(),
                operation_timeout_seconds=OPERATION_SECONDS,
                # Not to Python's loggers: the client may call them while it holds a lock of its own.
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, self.client_log),
                **native,
            )
        except (ValueError, TypeError) as error:
            raise InvalidOption(
                f"Pulsar's client: {self.shown(str(error))}", option="options"
            ) from None

    def shown(self, text: str) -> str:
        """A text without the secrets."""
        for name in ("token", "password"):
            if secret := self.secrets.get(name):
                text = text.replace(secret, "***")
        return text


_OURS = {"namespace", "secrets", "service_url", "tenant"}
KNOWN = frozenset(one.name for one in fields(PulsarSettings)) - _OURS


def settings_from(url: str, options: Mapping[str, Any]) -> PulsarSettings:
    """The settings of ``pulsar://host:6650/tenant/namespace?option=value`` with these options over it."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme not in SCHEMES or not hosts:
        raise InvalidOption("the URL names no broker: use pulsar://host:6650", option="url")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    check_options("the Pulsar transport", {**given, **options}, KNOWN)
    tenant, namespace = _place(parts.path)
    values: dict[str, Any] = {
        name: from_text(name, text, _HINTS[name]) for name, text in given.items()
    }
    values.setdefault("admin_url", _admin_url(parts.scheme, hosts))
    return PulsarSettings(
        service_url=f"{parts.scheme}://{_with_ports(parts.scheme, hosts)}",
        tenant=tenant,
        namespace=namespace,
        secrets=_secrets(login),
        **{**values, **options},
    )


def _place(path: str) -> tuple[str, str]:
    names = [name for name in path.split("/") if name] or ["public", "default"]
    if len(names) != 2:
        raise InvalidOption(
            "the path of the URL is no namespace: use pulsar://host:6650/tenant/namespace",
            option="url",
        )
    return names[0], names[1]


def _with_ports(scheme: str, hosts: str) -> str:
    return ",".join(
        host if ":" in host.rpartition("]")[2] else f"{host}:{PORTS[scheme]}"
        for host in hosts.split(",")
    )


def _admin_url(scheme: str, hosts: str) -> str:
    """The first broker, on the port that HTTP has unless somebody changed it."""
    kind, port = ADMIN_PORTS[scheme]
    first = hosts.split(",", 1)[0]
    host = first if ":" not in first.rpartition("]")[2] else first.rpartition(":")[0]
    return f"{kind}://{host}:{port}"


def _secrets(login: str) -> dict[str, str]:
    """From the environment; a login in the URL goes before it."""
    found = {name: os.environ.get(variable, "") for name, variable in SECRETS.items()}
    user, colon, password = login.partition(":")
    if colon:
        found |= {"user": unquote(user), "password": unquote(password), "token": ""}
    elif user:
        found["user"] = unquote(user)
    return {name: value for name, value in found.items() if value}


_HINTS = get_type_hints(PulsarSettings)
