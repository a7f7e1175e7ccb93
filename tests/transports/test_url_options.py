"""What a URL says in its query means the same for every broker, and what it cannot say is refused."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidOption, MissingExtra
from penstock.transports import Transport, open_transport
from penstock.transports.registry import BROKERS

SCHEMES = sorted({extra for _, extra in BROKERS.values()})


def made(scheme: str, query: str) -> Transport:
    """Made, and not opened: nobody is asked."""
    try:
        return open_transport(f"{scheme}://127.0.0.1:1?{query}")
    except MissingExtra as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("text", ["true", "TRUE", "yes", "1", "false", "no", "0"])
async def test_yes_and_no_have_the_same_words_everywhere(scheme: str, text: str) -> None:
    made(scheme, f"auto_create={text}")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("query", "option"),
    [
        ("system=x", "system"),
        ("options=x", "options"),
        ("auto_create=perhaps", "auto_create"),
        ("connect_seconds=soon", "connect_seconds"),
        ("connect_seconds=nan", "connect_seconds"),
        ("connect_seconds=-1", "connect_seconds"),
    ],
)
async def test_what_is_no_value_of_an_option_is_refused_by_its_name(
    scheme: str, query: str, option: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        made(scheme, query)
    assert refused.value.option == option
