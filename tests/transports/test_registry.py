"""From a URL to a transport: the registry, its errors, third parties."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from penstock import transports
from penstock.errors import InvalidOption, MissingExtra, UnknownTopic, UsageError
from penstock.transports import (
    EmbeddedTransport,
    TransportRegistry,
    open_transport,
    shared_registry,
)
from penstock.transports import registry as registry_module

pytestmark = pytest.mark.acceptance(69)


class Pigeons(EmbeddedTransport):
    """A transport of somebody else."""

    name = "pigeons"

    @classmethod
    def from_url(cls, url, **options):
        assert url.startswith("pigeon:")
        return cls("memory:", **options)


class NoTransport:
    """Something else."""


HERE = f"{__name__}:Pigeons"


@pytest.fixture
def installed(monkeypatch):
    """Stand for packages with entry points."""

    def install(**values):
        points = [EntryPoint(name, value, "penstock.transports") for name, value in values.items()]
        monkeypatch.setattr(
            "importlib.metadata.entry_points",
            lambda group: points if group == "penstock.transports" else [],
        )

    return install


def test_a_registry_knows_the_embedded_transport():
    registry = TransportRegistry()
    assert {"log", "memory"} <= set(registry.schemes())
    assert registry.find("memory:") is registry.find("log:./data") is EmbeddedTransport


def test_transports_are_registered_and_listed():
    registry = TransportRegistry()
    registry.register("pigeon", Pigeons)
    assert "pigeon" in registry.schemes()
    assert registry.find("pigeon://loft") is Pigeons
    assert list(registry.schemes()) == sorted(registry.schemes())
    assert "pigeon" not in TransportRegistry().schemes()


def test_a_scheme_that_is_taken_is_kept_unless_told():
    registry = TransportRegistry()
    with pytest.raises(InvalidOption, match="taken"):
        registry.register("log", Pigeons)
    assert registry.find("log:./data") is EmbeddedTransport
    registry.register("log", Pigeons, replace=True)
    assert registry.find("log:./data") is Pigeons


@pytest.mark.parametrize("scheme", ["", "Log", "a b", "log:", "1x"])
def test_a_scheme_has_the_form_of_one(scheme):
    with pytest.raises(InvalidOption, match="scheme"):
        TransportRegistry().register(scheme, Pigeons)


def test_what_is_no_transport_is_refused():
    registry = TransportRegistry()
    with pytest.raises(InvalidOption, match="no Transport"):
        registry.register("pigeon", NoTransport)  # type: ignore[arg-type]
    registry.register("late", f"{__name__}:NoTransport")
    registry.register("absent", f"{__name__}:Nothing")
    for url in ("late:", "absent:"):
        with pytest.raises(InvalidOption, match="no Transport"):
            registry.find(url)


@pytest.mark.parametrize("url", ["kafak://user:secret@host", "", "./data", "Memory:"])
def test_an_unknown_scheme_names_the_known_ones_and_no_password(url):
    registry = TransportRegistry()
    registry.register("pigeon", Pigeons)
    with pytest.raises(InvalidOption, match=r"log:, memory:, (.*, )?pigeon:") as refused:
        registry.make(url)
    assert "secret" not in str(refused.value)
    assert refused.value.known == registry.schemes()


def test_a_missing_package_names_the_extra():
    registry = TransportRegistry()
    registry.register("parrot", "penstock_no_such_package.birds:Parrots", extra="birds")
    assert "parrot" in registry.schemes()  # which imports nothing
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[birds\]'") as refused:
        registry.make("parrot://localhost")
    assert refused.value.extra == "birds"


def test_third_parties_come_by_entry_point(installed):
    installed(pigeon=HERE, log=HERE, broken="penstock_no_such_package:X")
    registry = TransportRegistry()
    assert {"broken", "log", "memory", "pigeon"} <= set(registry.schemes())
    assert registry.find("pigeon:").__name__ == "Pigeons"
    assert registry.find("log:./data") is EmbeddedTransport
    with pytest.raises(MissingExtra, match="penstock_no_such_package"):
        registry.find("broken:")


async def test_the_active_transport_is_the_one_that_was_chosen_last():
    registry = TransportRegistry()
    registry.register("pigeon", Pigeons)
    with pytest.raises(UsageError, match="activate"):
        _ = registry.active
    first = registry.activate("memory:")
    assert registry.active is first
    second = registry.activate("pigeon:", auto_create=False)
    assert registry.active is second
    with pytest.raises(InvalidOption):
        registry.activate("carrier:")
    assert registry.active is second
    assert registry.activate(first) is registry.active is first
    async with first, second:
        await first.produce("orders", [b"x"])
        with pytest.raises(UnknownTopic):
            await second.produce("orders", [b"x"])


@pytest.mark.acceptance(68)
@pytest.mark.parametrize("url", ["memory:", "log:{tmp}/data", "log://{tmp}/data"])
async def test_a_url_opens_a_transport(url, tmp_path):
    async with open_transport(url.format(tmp=tmp_path)) as transport:
        assert transport.capabilities.durable == url.startswith("log")
        await transport.produce("orders", [b"x"])
        async with transport.subscribe("orders", "billing") as consumer:
            assert [one.value for one in await consumer.next_batch()] == [b"x"]
    assert (tmp_path / "data").exists() == url.startswith("log")


def test_a_url_without_a_directory_is_refused():
    with pytest.raises(InvalidOption, match=r"log:\./data"):
        open_transport("log:")


def test_an_option_that_is_not_known_has_a_suggestion():
    with pytest.raises(InvalidOption, match="did you mean 'tail_cache_bytes'"):
        open_transport("memory:", tail_cache_byte=1)


def test_listing_imports_no_transport():
    program = (
        "import sys; from penstock.transports.registry import TransportRegistry as R;"
        "R().schemes(); sys.exit('penstock.transports.embedded' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_process_has_a_registry(monkeypatch):
    registry = TransportRegistry()
    monkeypatch.setattr(registry_module, "_shared", registry)
    shared_registry().register("pigeon", Pigeons)
    assert type(open_transport("pigeon:")) is Pigeons


@pytest.mark.parametrize(
    "name", [one for one in transports.__all__ if one.endswith("Transport") and one != "Transport"]
)
def test_the_class_of_a_transport_is_found_by_its_name(name):
    try:
        assert getattr(transports, name).__name__ == name
    except MissingExtra as missing:
        pytest.skip(str(missing))


def test_of_several_schemes_the_plain_one_stands_for_a_class():
    assert transports._SCHEMES["RedisTransport"] == "redis"
