"""From a URL to a running bus."""

import asyncio
import threading

import pytest

import penstock
from penstock import Event, errors, topic
from penstock.transports.embedded import EmbeddedTransport
from penstock.transports.registry import TransportRegistry


@topic("opened.orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float


@pytest.mark.parametrize("url", ["memory:", "memory://", "log:{}", "log://{}"])
async def test_the_same_code_runs_on_each(url, tmp_path):
    billed: list[str] = []
    done = asyncio.Event()
    async with penstock.open(url.format(tmp_path / "data")) as bus:

        @bus.on(OrderPlaced, group="billing", retries=5)
        async def bill(order: OrderPlaced) -> None:
            billed.append(order.order_id)
            done.set()

        await bus.publish(OrderPlaced(order_id="o-1", total=9.5))
        await done.wait()
    assert billed == ["o-1"]


async def test_a_log_goes_on_where_it_was(tmp_path):
    async with penstock.open(f"log:{tmp_path}") as bus:
        await bus.publish(OrderPlaced(order_id="o-1", total=9.5))
    seen: list[str] = []
    done = asyncio.Event()
    async with penstock.open(f"log:{tmp_path}") as bus:

        @bus.on(OrderPlaced, group="billing")
        async def bill(order: OrderPlaced) -> None:
            seen.append(order.order_id)
            done.set()

        await done.wait()
    assert seen == ["o-1"]


class Carrier(EmbeddedTransport):
    """Stands for the transport of a broker."""


@pytest.fixture
def registry(monkeypatch):
    registry = TransportRegistry()
    monkeypatch.setattr("penstock.opening.shared_registry", lambda: registry)
    return registry


async def opening(url):
    async with penstock.open(url):
        pass


@pytest.mark.parametrize("url", ["nowhere:x", "orders", "parrot"])
async def test_an_unknown_scheme_is_told_which_there_are(registry, url):
    registry.register("parrot", Carrier)
    registry.register("pigeon", "nowhere:Transport", extra="birds")
    with pytest.raises(
        errors.InvalidOption, match=r"use log:.*memory:.*parrot:, pigeon:"
    ) as caught:
        await opening(url)
    known = caught.value.fields["known"]
    assert isinstance(known, list)
    assert {"log", "memory", "parrot", "pigeon"} <= set(known)


async def test_a_transport_whose_package_is_missing_names_the_extra(registry):
    registry.register("pigeon", "nowhere:Transport", extra="birds")
    with pytest.raises(errors.MissingExtra, match=r"penstock\[birds\]"):
        await opening("pigeon://localhost")


@pytest.mark.parametrize("scheme", ["parrot", "nowhere"])
async def test_the_error_does_not_tell_the_password(registry, scheme):
    registry.register("parrot", "nowhere:Transport", extra="birds")
    with pytest.raises(errors.PenstockError) as caught:
        await opening(f"{scheme}://ada:secret@localhost")
    assert "secret" not in str(caught.value)


async def test_a_log_needs_a_directory():
    with pytest.raises(errors.InvalidOption, match=r"log:\./data"):
        await opening("log:")


async def test_a_log_has_no_options_in_its_url(tmp_path):
    """A directory of that name would be made, and the option be without effect."""
    url = f"log:{tmp_path}/data?fsync=timed"
    with pytest.raises(errors.InvalidOption, match="log: takes none"):
        await opening(url)
    with pytest.raises(errors.InvalidOption, match="log: takes none"):
        EmbeddedTransport.from_url(url)
    assert list(tmp_path.iterdir()) == []


async def test_options_of_the_log_go_to_its_queue(tmp_path):
    url = f"log:{tmp_path}/data"
    before = set(threading.enumerate())  # other tests may have left some
    async with penstock.open(url, transport_options={"commit_on": "loop"}) as bus:
        await bus.publish(OrderPlaced("o-1", 9.5))
        begun = set(threading.enumerate()) - before
        assert not [one for one in begun if one.name.startswith("penstock-commit")]
    with pytest.raises(errors.InvalidOption, match="commit_on"):
        async with penstock.open(url, transport_options={"commit_on": "fork"}):
            pass


@pytest.mark.parametrize(
    ("url", "name", "said"),
    [
        ("log:{}", "comit_on", "it has auto_create, commit_on"),
        ("memory:", "commit_on", "it has none"),
    ],
)
async def test_an_option_that_there_is_not_is_told(tmp_path, url, name, said):
    with pytest.raises(errors.InvalidOption, match=said):
        async with penstock.open(url.format(tmp_path), transport_options={name: "loop"}):
            pass
