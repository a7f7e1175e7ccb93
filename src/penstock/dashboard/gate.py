"""Who may see the dashboard: the token, the session cookie, and where requests may come from."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

from penstock import System, errors

COOKIE = "penstock_session"
SECRET_BITS = 256
FAILURES_MAX = 10
"""So many wrong tokens in FAILURES_SECONDS, and then nobody can log in for a while."""
FAILURES_SECONDS = 60.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(host: str, token: str | None) -> None:
    """InvalidOption for an address that others can reach, unless there is a token."""
    if token is not None and not token.strip():
        raise errors.InvalidOption(
            "the token of the dashboard is empty: use a long one", option="token"
        )
    if token is None and not is_loopback(host):
        raise errors.InvalidOption(
            f"others can reach the dashboard at {host!r}: give it a token "
            "(PENSTOCK_DASHBOARD_TOKEN), or use the host 127.0.0.1",
            option="token",
            host=host,
        )


class Gate:
    """Decides on requests. Without a token everybody on this machine may come in."""

    def __init__(self, host: str, token: str | None, system: System) -> None:
        check_address(host, token)
        self._host = host
        self._token = token
        self._clock = system.clock
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)
        secret = system.random.getrandbits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
        # Whoever sees the cookie does not learn the token, and a new start ends all sessions.
        self.session = hmac.new(secret, (token or "").encode(), hashlib.sha256).hexdigest()

    @property
    def locked(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Whether it is the token; takes as long for every wrong one."""
        token = self._token
        return token is not None and hmac.compare_digest(given.encode(), token.encode())

    def try_token(self, given: str) -> bool:
        """The same for a log-in: wrong ones are counted."""
        right = self.is_token(given)
        if not right:
            self._failures.append(self._clock.monotonic())
        return right

    def seconds_to_wait(self) -> float:
        """How long nobody may try a token, as there were too many wrong ones."""
        if len(self._failures) < FAILURES_MAX:
            return 0.0
        return max(0.0, self._failures[0] + FAILURES_SECONDS - self._clock.monotonic())

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has the session cookie or the token in its headers."""
        if not self.locked:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.seconds_to_wait() == 0.0:
            return self.try_token(given.strip())
        return hmac.compare_digest(
            cookie_of(headers.get("cookie", "")).encode(), self.session.encode()
        )

    def knows_host(self, headers: Mapping[str, str]) -> bool:
        """Whether the browser meant this dashboard: a name that somebody let point here is refused.

        With a token any name will do: the cookie belongs to the name that it was given to.
        """
        if self.locked:
            return True
        name = hostname(f"//{headers.get('host', '')}")
        return is_loopback(name) or name == self._host

    def is_same_site(self, headers: Mapping[str, str]) -> bool:
        """Whether a page of this dashboard sent a request that changes something."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc == headers.get("host", "")


def hostname(url: str) -> str:
    """The host of a URL, empty when there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def cookie_of(header: str) -> str:
    """The session in a Cookie header."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def safe_path(path: str) -> str:
    """A path of this site to go on to; the first page when it is somewhere else."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if plain and "\n" not in path and "\r" not in path else "/"
