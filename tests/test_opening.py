"""From a URL to a running bus."""

import asyncio

import pytest

import penstock
from penstock import Event, errors, topic


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


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("log:", errors.InvalidOption),
        ("nowhere:x", errors.InvalidOption),
        ("orders", errors.InvalidOption),
        ("kafka://localhost", errors.NotSupported),
    ],
)
async def test_a_url_that_cannot_be_says_what_to_use(url, error):
    with pytest.raises(error):
        async with penstock.open(url):
            pass
