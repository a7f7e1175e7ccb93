"""``penstock group``: who reads what, how far behind, and why one does not go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asking import confirm
from penstock.cli.options import DryRun, Form, Group, OptionalTopic, Output, Url, Yes
from penstock.cli.places import Place, place_of, run
from penstock.cli.table import counted

if TYPE_CHECKING:
    from penstock.cli.positions import Bound

app = typer.Typer(help="Who reads what, and how far behind.", no_args_is_help=True)
TITLES = ("group", "topic", "lag", "seconds", "members", "state", "why")
Watch = Annotated[
    float,
    typer.Option(
        "--watch",
        "-w",
        min=0.0,
        max=3_600.0,
        metavar="SECONDS",
        help="Look twice, so far apart: a group with a lag that does not move is stalled.",
    ),
]


@app.command("list")
def list_(
    context: typer.Context,
    url: Url = None,
    topic: OptionalTopic = None,
    watch: Watch = 0.0,
    output: Output = Form.TEXT,
) -> None:
    """List the groups, with their lag in records and seconds, and their state."""
    from penstock.cli.group_sight import look
    from penstock.cli.output import show

    found = run(look(place_of(context, url), topic=topic, watch=watch))
    rows = [
        (
            one.group,
            one.topic,
            one.lag_records,
            one.lag_seconds,
            one.members_text,
            one.state,
            one.why,
        )
        for one in found
    ]
    plain = [one.plain(partitions=False) for one in found]
    show(output, plain, TITLES, rows, "there are no groups: one is made by its first member")


@app.command("describe")
def describe(
    context: typer.Context,
    group: Group,
    url: Url = None,
    topic: OptionalTopic = None,
    watch: Watch = 0.0,
    output: Output = Form.TEXT,
) -> None:
    """Show a group partition by partition: offsets, lag, members, state and cause."""
    from penstock.cli.group_sight import look
    from penstock.cli.output import say, show_json, show_table

    found = run(look(place_of(context, url), group=group, topic=topic, watch=watch))
    if output is Form.JSON:
        show_json([one.plain(partitions=True) for one in found])
        return
    for place, one in enumerate(found):
        say(("\n" if place else "") + one.headline())
        titles = ("partition", "committed", "end", "lag", "seconds", "state")
        show_table(titles, [part.row() for part in one.partitions])
        for line in one.details:
            say(line)


@app.command("seek")
def seek(
    context: typer.Context,
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE", help="start, end, 47, -3, +2, @1h, @2026-03-01T12:00:00Z."
        ),
    ],
    url: Url = None,
    topic: OptionalTopic = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="This partition alone; may come again."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = Form.TEXT,
) -> None:
    """Let a group go on from another place; its members have to be stopped."""
    from penstock import System
    from penstock.cli.group_moves import move, preview
    from penstock.cli.positions import parse_seek

    place = place_of(context, url)
    bound: Bound = parse_seek(to, System().clock.time_ms())
    moves = run(preview(place, group, topic, bound, partition or []))
    if not dry_run:
        where = f"{counted(len(moves), 'partition')} of {moves[0].topic}"
        confirm(f"This moves {group} in {where}", yes=yes)
        run(move(place, group, moves))
    _show_moves(moves, output, dry_run)


def _show_moves(moves: list[Any], output: Form, dry_run: bool) -> None:
    from penstock.cli.output import show

    plain = [one.plain() | {"dry_run": dry_run} for one in moves]
    rows = [(one.topic, one.partition, one.before, one.after, one.difference) for one in moves]
    titles = ("topic", "partition", "was at", "would go to" if dry_run else "is at", "records")
    show(output, plain, titles, rows, "there is nothing to move")


@app.command("delete")
def delete(
    context: typer.Context,
    group: Group,
    url: Url = None,
    topic: OptionalTopic = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Forget a group: where it was, and that records are kept for it."""
    from penstock.cli.output import say

    place = place_of(context, url)
    topics = run(_topics(place, group, topic))
    what = f"where {group} was in {', '.join(topics)}"
    if dry_run:
        say(f"would forget {what}")
        return
    confirm(f"This forgets {what}", yes=yes)
    run(_forget(place, group, topics))
    say(f"forgot {what}")


async def _topics(place: Place, group: str, topic: str | None) -> list[str]:
    from penstock.cli.group_sight import topics_of

    async with place.reading() as transport:
        return await topics_of(transport, group, topic)


async def _forget(place: Place, group: str, topics: list[str]) -> None:
    async with place.writing() as transport:
        for topic in topics:
            await transport.forget(topic, group)
