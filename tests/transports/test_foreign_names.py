"""Names of topics and groups that somebody else wrote into a broker. No server is needed."""

import msgspec
import pytest

from penstock.errors import BrokerFailed
from penstock.transports import foreign_names
from penstock.transports.foreign_names import names_among
from tests.security.corpus import CONTROLS, MARKUP

ODD = [MARKUP, CONTROLS, "", "../x", "é", "a b", "x" * 300]


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(foreign_names, "_warned", set())


def test_only_names_are_told_and_the_others_are_warned_of_once(caplog):
    for _ in range(3):
        assert names_among(["b", *ODD, b"a", b"\xff\xfe", 5, None], transport="x") == [
            "5",
            "None",
            "a",
            "b",
        ]
    assert len(caplog.records) == 1
    assert caplog.text.strip().isprintable()
    assert len(caplog.text) < 300


async def test_redis_tells_only_names(monkeypatch):
    pytest.importorskip("redis", reason="needs the client of Redis")
    from penstock.transports.redis import RedisTransport

    transport = RedisTransport.from_url("redis://127.0.0.1:1")
    told = [b"orders", b"\xff\xfe", *(one.encode() for one in ODD)]

    async def command(*_: object, **__: object) -> list[bytes]:
        return told

    async def partitions(_: str) -> int:
        return 1

    monkeypatch.setattr(transport, "check_open", lambda: None)
    monkeypatch.setattr(transport.client, "command", command)
    monkeypatch.setattr(transport, "partitions", partitions)
    assert await transport.topics() == ["orders"]
    assert await transport.groups("orders") == ["orders"]
    await transport.close()


@pytest.mark.parametrize("broken", [b"", b"{}", b"null", b"[", b"5", b'"x"', b'["\xff"]'])
async def test_pulsar_tells_only_names(monkeypatch, broken):
    pytest.importorskip("pulsar", reason="needs the client of Pulsar")
    from penstock.transports.pulsar import PulsarTransport
    from penstock.transports.pulsar_http import Answer

    transport = PulsarTransport.from_url("pulsar://127.0.0.1:1")
    names = ["persistent://public/default/orders", *(f"persistent://a/b/{one}" for one in ODD), 5]
    body = msgspec.json.encode(names)

    async def call(*_: object, **__: object) -> Answer:
        return Answer(200, {}, body)

    monkeypatch.setattr(transport, "_check_open", lambda: None)
    monkeypatch.setattr(transport._connection.http, "call", call)
    assert await transport.topics() == ["5", "orders", "x"]
    body = broken
    with pytest.raises(BrokerFailed, match="something else"):
        await transport.topics()
    await transport.close()
