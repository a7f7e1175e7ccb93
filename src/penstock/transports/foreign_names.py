"""Names that a broker tells: whoever may write there may have written anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.names import is_name

_log = logging.getLogger("penstock.transports")
_warned: set[tuple[str, str]] = set()


def names_among(found: Iterable[object], *, transport: str, kind: str = "topic") -> list[str]:
    """Those that are names, sorted. The others could not be opened, and are passed over; warned of once."""
    texts = [_text(one) for one in found]
    names = sorted({one for one in texts if is_name(one)})
    odd = [one for one in texts if not is_name(one)]
    if odd and (transport, kind) not in _warned:
        _warned.add((transport, kind))
        _log.warning(
            "%s has %d names of %ss that Penstock does not take, as %.80s: they are passed over",
            transport,
            len(odd),
            kind,
            ascii(odd[0]),
        )
    return names


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
