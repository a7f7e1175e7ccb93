"""``penstock topic``: make topics, list them, look at them, delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asking import confirm
from penstock.cli.options import DryRun, Form, Output, Topic, Url, Yes
from penstock.cli.places import Place, place_of, run
from penstock.cli.table import counted

if TYPE_CHECKING:
    from penstock.transports import Transport

app = typer.Typer(help="Make topics, list them, look at them, delete them.", no_args_is_help=True)
JOURNALS = "journal."
"""Topics that a bus keeps for itself."""


@app.command("create")
def create(
    context: typer.Context,
    topic: Topic,
    url: Url = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many; the default is the transport's."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="NAME=VALUE", help="A setting of the topic; may come again."
        ),
    ] = None,
) -> None:
    """Make a topic; one that is there stays as it is."""
    from penstock.cli.output import say
    from penstock.cli.topic_options import topic_options

    place = place_of(context, url)
    options = topic_options(setting or [], nested=place.is_log)
    before, after = run(_create(place, topic, partitions, options))
    say(f"{topic}: {'made' if before is None else 'was there'}, {counted(after, 'partition')}")


async def _create(
    place: Place, topic: str, partitions: int | None, options: dict[str, Any]
) -> tuple[int | None, int]:
    from penstock import errors

    async with place.writing(make=True) as transport:
        transport.capabilities.require(transport.name, ["create_topics"])
        try:
            before = await transport.partitions(topic)
        except errors.UnknownTopic:
            before = None
        await transport.create_topic(topic, partitions=partitions, **options)
        return before, await transport.partitions(topic)


@app.command("list")
def list_(
    context: typer.Context,
    url: Url = None,
    output: Output = Form.TEXT,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also what buses keep for themselves.")
    ] = False,
) -> None:
    """List the topics."""
    from penstock.cli.output import show

    found = run(_list(place_of(context, url), everything))
    rows = [(one["topic"], one["partitions"], one["records"]) for one in found]
    nothing = "there are no topics: `penstock topic create NAME` makes one"
    show(output, found, ("topic", "partitions", "records"), rows, nothing)


async def _list(place: Place, everything: bool) -> list[dict[str, Any]]:
    from penstock.cli.reading import bounds

    async with place.reading() as transport:
        names = [
            name for name in await transport.topics() if everything or not name.startswith(JOURNALS)
        ]
        found = []
        for name in names:
            parts = await bounds(transport, name)
            records = sum(one.records for one in parts)
            found.append(
                {"topic": name, "partitions": await transport.partitions(name), "records": records}
            )
        return found


@app.command("describe")
def describe(
    context: typer.Context, topic: Topic, url: Url = None, output: Output = Form.TEXT
) -> None:
    """Show the partitions of a topic, its settings and its groups."""
    from penstock.cli.output import show_json

    found = run(_describe(place_of(context, url), topic))
    if output is Form.JSON:
        show_json(found)
    else:
        _show(found)


async def _describe(place: Place, topic: str) -> dict[str, Any]:
    from penstock.cli.reading import bounds

    async with place.reading() as transport:
        parts = await bounds(transport, topic)
        found: dict[str, Any] = {
            "topic": topic,
            "partitions": [
                {
                    "partition": one.partition,
                    "start": one.committed,
                    "end": one.end,
                    "records": one.records,
                }
                for one in parts
            ],
            "groups": await _groups(transport, topic),
        }
        return found | await _of_log(transport, topic)


async def _groups(transport: Transport, topic: str) -> list[str] | None:
    return list(await transport.groups(topic)) if transport.capabilities.list_groups else None


async def _of_log(transport: Transport, topic: str) -> dict[str, Any]:
    """What only a log knows."""
    import msgspec

    from penstock.transports import EmbeddedTransport

    if not isinstance(transport, EmbeddedTransport):
        return {}
    state = await transport.queue.create_topic(topic)  # which is there
    kept = await transport.queue.retention(topic)
    return {
        "created_ms": state.created_ms,
        "epochs": len(state.epochs),
        "bytes": sum(one.bytes for one in kept),
        "segments": sum(one.segments for one in kept),
        "settings": {
            **msgspec.to_builtins(state.config, str_keys=True),
            "codec": state.config.codec.name.lower(),
        },
    }


def _show(found: dict[str, Any]) -> None:
    from penstock.cli.output import say, show_table

    rows = [tuple(one.values()) for one in found["partitions"]]
    show_table(("partition", "start", "end", "records"), rows)
    if "bytes" in found:
        say(f"\n{found['bytes']:,} bytes in {counted(found['segments'], 'segment')}")
        changed = ", ".join(f"{name}={value}" for name, value in _flat(found["settings"]))
        say(f"settings: {changed}")
    groups = found["groups"]
    if groups is None:
        say("\ngroups: this transport cannot list them")
    else:
        say(f"\ngroups: {', '.join(groups) or 'none yet'}")


def _flat(settings: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += _flat(value, f"{name}.") if isinstance(value, dict) else [(before + name, value)]
    return found


@app.command("delete")
def delete(
    context: typer.Context, topic: Topic, url: Url = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a topic, all its records, and what its groups have committed."""
    from penstock.cli.output import say

    place = place_of(context, url)
    records, groups = run(_what_goes(place, topic))
    what = (
        f"{counted(records, 'record')} of {topic} and the offsets of "
        f"{counted(len(groups), 'group')}"
    )
    if dry_run:
        say(f"would delete {what}")
        return
    confirm(f"This deletes {what}; there is no way back", yes=yes)
    run(_delete(place, topic))
    say(f"deleted {what}")


async def _what_goes(place: Place, topic: str) -> tuple[int, list[str]]:
    from penstock.cli.reading import bounds

    async with place.reading() as transport:
        transport.capabilities.require(transport.name, ["delete_topics"])
        parts = await bounds(transport, topic)
        return sum(one.records for one in parts), await _groups(transport, topic) or []


async def _delete(place: Place, topic: str) -> None:
    async with place.writing() as transport:
        await transport.delete_topic(topic)
