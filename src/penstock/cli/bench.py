"""``penstock bench``: how fast is it here, on this URL. A quick look; `make bench` measures with care."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import Form, Output, Url
from penstock.cli.places import Place, place_of, run

if TYPE_CHECKING:
    from penstock.cli.progress import Advance
    from penstock.transports import Transport

WAIT_SECONDS = 30.0


def bench(
    context: typer.Context,
    url: Url = None,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, max=100_000_000, help="How many records.")
    ] = 100_000,
    size: Annotated[
        int, typer.Option("--size", "-s", min=0, max=1024 * 1024, help="Bytes of a value.")
    ] = 256,
    batch: Annotated[
        int,
        typer.Option("--batch", "-b", min=1, max=100_000, help="Records that are sent together."),
    ] = 1_000,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, max=1_024, help="Of that topic.")
    ] = 1,
    output: Output = Form.TEXT,
) -> None:
    """Produce records to a topic of its own, consume them, tell how fast that was, and delete the topic."""
    from penstock.cli.output import show

    found = run(_bench(place_of(context, url), number, size, min(batch, number), partitions))
    rows = [
        (
            name,
            one["records"],
            one["records_per_second"],
            one["megabytes_per_second"],
            one["p50_ms"],
            one["p99_ms"],
        )
        for name, one in found.items()
    ]
    titles = ("", "records", "records/s", "MB/s", "batch p50 ms", "batch p99 ms")
    show(output, found, titles, rows, "")


async def _bench(
    place: Place, number: int, size: int, batch: int, partitions: int
) -> dict[str, dict[str, Any]]:
    from penstock import System
    from penstock.cli.output import tell
    from penstock.cli.progress import progress

    topic = f"penstock-bench-{System().random.getrandbits(40):010x}"
    async with place.writing(make=True) as transport:
        await transport.create_topic(topic, partitions=partitions)
        try:
            with progress("produce", number) as advance:
                produced = await _produce(transport, topic, number, size, batch, advance)
            with progress("consume", number) as advance:
                consumed = await _consume(transport, topic, number, size, advance)
        finally:
            can_delete = transport.capabilities.delete_topics
            await transport.forget(topic, "bench")
    if can_delete:
        async with place.writing() as transport:
            await transport.delete_topic(topic)
    else:
        tell(f"{place.scheme}: cannot delete topics: remove {topic} with the tools of the broker")
    return {"produce": produced, "consume": consumed}


async def _produce(
    transport: Transport, topic: str, number: int, size: int, batch: int, advance: Advance
) -> dict[str, Any]:
    from penstock import System

    clock = System().clock
    value = b"x" * size
    took: list[float] = []
    start = before = clock.monotonic()
    for first in range(0, number, batch):
        count = min(batch, number - first)
        keys = [b"%d" % one for one in range(first, first + count)]
        await transport.produce(topic, [value] * count, keys=keys)
        now = clock.monotonic()
        took.append(now - before)
        before = now
        advance(count)
    return _figures(number, size, clock.monotonic() - start, took)


async def _consume(
    transport: Transport, topic: str, number: int, size: int, advance: Advance
) -> dict[str, Any]:
    from penstock import System

    clock = System().clock
    took: list[float] = []
    async with transport.subscribe(topic, "bench") as consumer:
        seen = 0
        start = before = clock.monotonic()
        while seen < number:
            found = await consumer.next_batch(WAIT_SECONDS)
            await consumer.commit(found)
            seen += len(found)
            now = clock.monotonic()
            took.append(now - before)
            before = now
            advance(len(found))
    return _figures(seen, size, clock.monotonic() - start, took)


def _figures(records: int, size: int, seconds: float, took: list[float]) -> dict[str, Any]:
    took.sort()
    seconds = max(seconds, 1e-9)
    return {
        "records": records,
        "seconds": round(seconds, 6),
        "records_per_second": round(records / seconds),
        "megabytes_per_second": round(records * size / seconds / 1e6, 3),
        "p50_ms": round(took[len(took) // 2] * 1_000, 3),
        "p99_ms": round(took[min(len(took) - 1, len(took) * 99 // 100)] * 1_000, 3),
    }
