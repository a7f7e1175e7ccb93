"""TLS to a PostgreSQL server: checked, unless the server is on this machine or the user said otherwise.

The client of its own accord would take TLS if the server offers it, from anybody, and go on without if not.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.system import System

ROOT_CERTIFICATE = "~/.postgresql/root.crt"
HINT = (
    "a server on another machine must show a certificate for its name. Name who signed it, "
    "sslrootcert=<file> in the URL, or say sslmode=disable there for a network that you trust"
)


def tls_of(dsn: str) -> dict[str, Any]:
    """What asyncpg gets beside the DSN: nothing, or that the certificate and its name are checked.

    The authorities are those of ``sslrootcert``, ``PGSSLROOTCERT`` or ``~/.postgresql/root.crt``, else those of
    the system.
    """
    given = parse_qs(urlsplit(dsn).query)
    if "sslmode" in given or os.environ.get("PGSSLMODE"):
        return {}
    if all(map(_is_here, _hosts(dsn, given))):
        return {}
    named = "sslrootcert" in given or os.environ.get("PGSSLROOTCERT")
    kept = System().files.exists(os.path.expanduser(ROOT_CERTIFICATE))
    return {"ssl": "verify-full" if named or kept else True}


def _hosts(dsn: str, given: dict[str, list[str]]) -> list[str]:
    """Where the client will look; "service" when a file of its own says that."""
    place = urlsplit(dsn).netloc.rpartition("@")[2]
    hosts = [_without_port(one) for one in place.split(",") if one]
    hosts += [one for text in given.get("host", []) for one in text.split(",")]
    if hosts:
        return hosts
    if "service" in given or os.environ.get("PGSERVICE"):
        return ["service"]
    return [_without_port(one) for one in os.environ.get("PGHOST", "").split(",") if one]


def _without_port(place: str) -> str:
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return unquote(place.partition(":")[0] if place.count(":") < 2 else place)


def _is_here(host: str) -> bool:
    """A socket, or an address of this machine alone."""
    if host.startswith(("/", "@")) or host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
