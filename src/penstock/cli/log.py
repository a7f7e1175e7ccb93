"""``penstock log``: is every byte what was written, and what does the log hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asking import confirm
from penstock.cli.completion import topics
from penstock.cli.options import DryRun, Form, Output, Topic, Url, Yes
from penstock.cli.places import Place, place_of, run
from penstock.cli.table import counted

if TYPE_CHECKING:
    from penstock import RepairReport, VerifyReport

app = typer.Typer(help="Check a log, repair it, see what it holds.", no_args_is_help=True)
MaybeTopic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="This topic alone.", autocompletion=topics)
]


@app.command("verify")
def verify(
    context: typer.Context, topic: MaybeTopic = None, url: Url = None, output: Output = Form.TEXT
) -> None:
    """Read every byte of a log and check it; nothing is changed, and writers may go on."""
    from penstock import verify as verify_log
    from penstock.cli.codes import PROBLEMS
    from penstock.cli.output import show_json
    from penstock.cli.progress import busy

    place = place_of(context, url)
    place.check_there()
    with busy("reading every byte"):
        report = verify_log(place.store(), topic, tier=place.tier, offsets=place.offsets)
    if output is Form.JSON:
        show_json(_plain(report))
    else:
        _show(report)
    if not report.sound:
        raise typer.Exit(PROBLEMS)


def _plain(report: VerifyReport) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "topics": report.topics,
        "partitions": report.partitions,
        "segments": report.segments,
        "records": report.records,
        "bytes": report.bytes,
        "problems": [
            {name: getattr(one, name) for name in one.__slots__} for one in report.problems
        ],
        "lost": [one._asdict() for one in report.lost],
    }


def _show(report: VerifyReport) -> None:
    from penstock.cli.output import say

    for one in report.problems:
        say(f"{'note' if one.harmless else 'damage'}: {one.message}")
    for lost in report.lost:
        say(
            f"known loss: {lost.topic}/{lost.partition}, offsets {lost.first_offset} to before "
            f"{lost.next_offset}"
        )
    verdict = "sound" if report.sound else "damaged: `penstock log repair TOPIC` saves the rest"
    parts = {
        "topic": len(report.topics),
        "partition": report.partitions,
        "segment": report.segments,
        "record": report.records,
        "byte": report.bytes,
    }
    say(f"{', '.join(counted(count, noun) for noun, count in parts.items())}: {verdict}")


@app.command("repair")
def repair(
    context: typer.Context,
    topic: Topic,
    url: Url = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = Form.TEXT,
) -> None:
    """Save everything of a topic that is sound; what is replaced goes to quarantine/."""
    from penstock import repair as repair_topic
    from penstock.cli.codes import PROBLEMS

    place = place_of(context, url)
    place.check_there()
    do: Callable[[bool], RepairReport] = lambda dry: repair_topic(  # noqa: E731 - called twice
        place.store(), topic, tier=place.tier, offsets=place.offsets, dry_run=dry
    )
    report = do(True)
    if not dry_run and report.actions:
        confirm(f"This changes {counted(len(report.actions), 'file')} of {topic}", yes=yes)
        report = do(False)
    _show_repair(report, output)
    if report.remaining:
        raise typer.Exit(PROBLEMS)


def _show_repair(report: RepairReport, output: Form) -> None:
    from penstock.cli.output import say, show_json

    plain = {
        "topic": report.topic,
        "dry_run": report.dry_run,
        "actions": [
            {"file": one.file, "kind": one.kind, "message": one.message} for one in report.actions
        ],
        "lost": [one._asdict() for one in report.lost],
        "remaining": [one.message for one in report.remaining],
    }
    if output is Form.JSON:
        show_json(plain)
        return
    for action in report.actions:
        say(f"{'would do' if report.dry_run else 'done'}: {action.message}")
    for lost in report.lost:
        say(
            f"lost: {lost.topic}/{lost.partition}, offsets {lost.first_offset} to before {lost.next_offset}"
        )
    for problem in report.remaining:
        say(f"left: {problem.message}")
    if not report.actions:
        say(f"{report.topic}: nothing to repair")


@app.command("stats")
def stats(
    context: typer.Context, topic: MaybeTopic = None, url: Url = None, output: Output = Form.TEXT
) -> None:
    """Show what a log holds: records, bytes, segments, and what keeps it from holding less."""
    from penstock.cli.output import show

    found = run(_stats(place_of(context, url), topic))
    titles = ("topic", "partition", "start", "end", "segments", "bytes", "oldest", "kept for")
    rows = [tuple(one[name] for name in _COLUMNS) for one in found]
    show(output, found, titles, rows, "there are no topics: `penstock topic create NAME` makes one")


_COLUMNS = ("topic", "partition", "start", "end", "segments", "bytes", "oldest", "blocked_by")


async def _stats(place: Place, topic: str | None) -> list[dict[str, Any]]:
    from penstock.cli.formats import time_text

    async with place.queue(read_only=True) as queue:
        names = await queue.topics() if topic is None else [topic]
        kept = {name: await queue.retention(name) for name in names}
        figures = queue.statistics().topics
        return [
            {
                "topic": name,
                "partition": one.partition,
                "start": one.earliest_offset,
                "end": figures[name].partitions[one.partition].durable_offset,
                "segments": one.segments,
                "bytes": one.bytes,
                "oldest": None if one.oldest_timestamp is None else time_text(one.oldest_timestamp),
                "blocked_by": one.blocked_by,
                "full": one.full,
            }
            for name in names
            for one in kept[name]
        ]
