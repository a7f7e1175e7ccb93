"""For errors that say why: a busy machine may need longer to come to them than a test would like to wait."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import Unreachable
from penstock.transports import Transport

PATIENCE_SECONDS = (0.5, 2.0, 10.0, 50.0)


async def cannot_open(make: Callable[[float], Transport], why: str) -> Unreachable:
    """Open what cannot be opened, with more and more time, until the error says why."""
    told: list[str] = []
    for seconds in PATIENCE_SECONDS:
        transport = make(seconds)
        with pytest.raises(Unreachable) as refused:
            await transport.open()
        told.append(f"{refused.value} {_last_error(transport)}")
        await transport.close()
        if re.search(why, told[-1]):
            return refused.value
    raise AssertionError(told)


def _last_error(transport: Any) -> str | None:
    # All transports to brokers have figures.
    return transport.statistics().last_error  # type: ignore[no-any-return]
