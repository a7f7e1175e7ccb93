"""What a URL and the options of the Pulsar transport say; no broker is needed."""

import sys

import pytest

from penstock.errors import InvalidOption, MissingExtra
from penstock.transports import TransportRegistry, open_transport
from penstock.transports.pulsar import PulsarTransport, native_hash


def test_a_password_is_part_of_no_text(monkeypatch):
    secret = "canary-of-the-tests"
    transport = PulsarTransport(f"pulsar://ann:{secret}@localhost")
    assert secret not in f"{transport!r} {transport._settings}"
    monkeypatch.delenv("PENSTOCK_PULSAR_TOKEN", raising=False)
    header = transport._settings.authorization()
    assert header is not None
    assert header.startswith("Basic ")
    monkeypatch.setenv("PENSTOCK_PULSAR_PASSWORD", secret)
    settings = PulsarTransport("pulsar://ann@localhost")._settings
    assert settings.authorization() == header
    assert settings.shown(f"a {secret}") == "a ***"


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("pulsar://", "url"),
        ("pulsar://host/one", "url"),
        ("pulsar://host/one/two/three", "url"),
        ("pulsar://host?wings=2", "wings"),
        ("pulsar://host?auto_create=maybe", "auto_create"),
        ("pulsar://host?timeout=-1", "timeout"),
        ("pulsar://host?connect_seconds=soon", "connect_seconds"),
        ("pulsar://host?partitioner=murmur2", "partitioner"),
        ("pulsar://host?compression=tar", "compression"),
        ("pulsar://host?admin_url=host:8080", "admin_url"),
        ("pulsar://host?options=1", "options"),
    ],
)
def test_options_are_checked(url, option):
    with pytest.raises(InvalidOption) as refused:
        open_transport(url)
    assert refused.value.option == option


def test_native_options_are_checked():
    with pytest.raises(InvalidOption, match="io_threads"):
        PulsarTransport("pulsar://host", options={"io_thread": 2})


def test_a_url_says_where_the_brokers_and_their_http_are():
    settings = PulsarTransport("pulsar://a,b:99/shop/eu?timeout=2.5")._settings
    assert settings.service_url == "pulsar://a:6650,b:99"
    assert settings.admin_url == "http://a:8080"
    assert (settings.tenant, settings.namespace, settings.timeout) == ("shop", "eu", 2.5)
    settings = PulsarTransport("pulsar+ssl://a:99,b")._settings
    assert settings.service_url == "pulsar+ssl://a:99,b:6651"
    assert settings.admin_url == "https://a:8443"
    assert settings.full("orders") == "persistent://public/default/orders"


def test_without_the_client_the_error_names_the_extra(monkeypatch):
    for name in [one for one in sys.modules if one.startswith("penstock.transports.pulsar")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pulsar", None)
    with pytest.raises(MissingExtra, match=r"penstock\[pulsar\]"):
        TransportRegistry().make("pulsar://localhost")


def test_the_native_partitioner_is_that_of_pulsars_client_in_java():
    # String.hashCode, without its sign.
    assert [native_hash(key) for key in (b"", b"a", b"hello", "ü€".encode())] == [
        0,
        97,
        99162322,
        252 * 31 + 8364,
    ]
    assert native_hash(b"polygenelubricants") == 0
