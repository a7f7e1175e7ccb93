"""``penstock consume``: records to standard output, from a place on, in a format."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.completion import groups
from penstock.cli.options import Topic, Url
from penstock.cli.places import Place, place_of, run

if TYPE_CHECKING:
    from penstock import Record
    from penstock.cli.formats import Render
    from penstock.cli.positions import Range
    from penstock.transports import Consumer, Transport

WAIT_SECONDS = 5.0
"""How long a member of a group waits for records that others may have."""
FORMAT_MEANINGS = {
    "%k": "key",
    "%v": "value (also %s)",
    "%t": "topic",
    "%p": "partition",
    "%o": "offset",
    "%d": "time, as 2026-03-01T12:00:00.000Z",
    "%T": "time, in milliseconds since 1970",
    "%h": "headers, as name=value,name=value",
    "%K": "length of the key, -1 without one",
    "%V": "length of the value (also %S), -1 without one",
    "%%": "a percent sign",
    r"\n \t \r \0 \e \\ \xNN": "characters",
}
"""What a format may have in it; :mod:`penstock.cli.formats` fills it in."""


def consume(
    context: typer.Context,
    topic: Topic,
    url: Url = None,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            "-o",
            metavar="PLACE",
            help="start, end, 47, -3 (the last ones), +2, 40:50, @1h:, @2026-03-01:2026-04-01.",
        ),
    ] = "start",
    number: Annotated[
        int | None,
        typer.Option("--number", "-n", min=0, metavar="N", help="So many records at the most."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=groups,
            help="As a member of this group: goes on where it was, and commits what is written.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="json, or text with "
            + "; ".join(f"{one} {meaning}" for one, meaning in FORMAT_MEANINGS.items())
            + ".",
        ),
    ] = r"%v\n",
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="This partition alone; may come again."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
) -> None:
    """Write records to standard output."""
    from penstock import System
    from penstock.cli.formats import renderer
    from penstock.cli.positions import parse_range

    place = place_of(context, url)
    render = renderer(format, to_terminal=sys.stdout.isatty())
    wanted = parse_range(offset, System().clock.time_ms())
    work = _Reading(topic, wanted, number, tuple(partition or ()), follow, render)
    if number == 0:
        return
    run(work.of_all(place) if group is None else work.of_group(place, group))


class _Reading:
    """What is to be read, and how it is written."""

    def __init__(
        self,
        topic: str,
        wanted: Range,
        number: int | None,
        partitions: tuple[int, ...],
        follow: bool,
        render: Render,
    ) -> None:
        self._topic = topic
        self._wanted = wanted
        self._left = number
        self._partitions = partitions
        self._follow = follow
        self._render = render
        self._output = sys.stdout.buffer

    async def of_all(self, place: Place) -> None:
        """Without a group: nothing is committed, and nobody notices."""
        from penstock.cli.reading import parts_of, records

        self._check_follow()
        async with place.reading() if place.is_log else place.writing() as transport:
            parts = await parts_of(transport, self._topic, self._wanted, self._partitions)
            found = records(transport, self._topic, parts, follow=self._follow)
            async with aclosing(found):
                await self._write_all(found)

    def _check_follow(self) -> None:
        from penstock import errors

        if self._follow and self._wanted.last is not None:
            raise errors.InvalidOption(
                "a range has an end: leave out --follow, or the end", option="follow"
            )

    async def _write_all(self, found: AsyncIterator[Record]) -> None:
        pending = 0
        async for record in found:
            self._output.write(self._render(record))
            pending += 1
            if self._follow or pending >= 1_000:
                self._output.flush()
                pending = 0
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    break
        self._output.flush()

    async def of_group(self, place: Place, group: str) -> None:
        """As a member: what was written is committed."""
        from penstock import errors

        if self._partitions or self._wanted.last is not None:
            raise errors.InvalidOption(
                "with a group, its members share the partitions and read to the end: leave out "
                "--partition and the end of the range",
                option="group",
            )
        async with place.writing() as transport:
            start = self._wanted.first.for_new_group()
            async with transport.subscribe(self._topic, group, start=start) as consumer:
                await self._consume(transport, consumer)

    async def _consume(self, transport: Transport, consumer: Consumer) -> None:
        from penstock import errors

        ends = {one.partition: one.end for one in await transport.lag(self._topic, consumer.group)}
        while self._left != 0 and (self._follow or _is_behind(consumer, ends)):
            try:
                batch = await consumer.next_batch(
                    None if self._follow else WAIT_SECONDS,
                    records_max=min(self._left or 1_000, 1_000),
                )
            except errors.DeadlineExceeded:
                return  # others have the partitions that are left
            for record in batch.records:
                self._output.write(self._render(record))
            # First out, then committed: a crash shows some twice, and none never.
            self._output.flush()
            await consumer.commit(batch)
            self._left = None if self._left is None else self._left - len(batch.records)


def _is_behind(consumer: Consumer, ends: dict[int, int]) -> bool:
    """Whether there is something to read that was there at the start."""
    reached = consumer.positions()
    if not consumer.assignment().partitions:
        return True  # not yet
    return any(at < ends.get(number, 0) for number, at in reached.items())
