"""``penstock dlq``: dead letters as a workflow: list, show, edit, replay, purge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asking import confirm
from penstock.cli.completion import groups, topics
from penstock.cli.options import DryRun, Form, Output, Url, Yes
from penstock.cli.places import Place, place_of, run
from penstock.cli.table import counted

if TYPE_CHECKING:
    from penstock.cli.letters import Filter, Letter, Shelf, Step

app = typer.Typer(help="Dead letters: list, show, edit, replay, purge.", no_args_is_help=True)
LIST_MAX = 1_000

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="As `dlq list` shows them.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `dlq list` shows it.")]
Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="GLOB", help="From this topic.", autocompletion=topics),
]
Bus = Annotated[
    str | None,
    typer.Option("--source", "-s", metavar="NAME", help="Of this bus, or in this topic, alone."),
]
Reason = Annotated[str | None, typer.Option("--reason", "-r", help="The reason, or a part of it.")]
Error = Annotated[
    str | None, typer.Option("--error", "-e", help="The kind of the error, or a part of its text.")
]
Handler = Annotated[str | None, typer.Option("--handler", metavar="GLOB", help="Of this handler.")]
InGroup = Annotated[
    str | None,
    typer.Option("--group", "-g", metavar="GLOB", help="Of this group.", autocompletion=groups),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="With this key.")]
Contains = Annotated[str | None, typer.Option("--contains", help="With this text in the value.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Failed at this time or later: 1h, 2026-03-01."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Failed before this time.")
]
Everything = Annotated[bool, typer.Option("--all", "-a", help="All of them.")]
Value = Annotated[
    str | None, typer.Option("--value", "-v", help="The new value.", show_default=False)
]
File = Annotated[Path | None, typer.Option("--file", "-F", help="The new value is in this file.")]


@app.command("list")
def list_(
    ctx: typer.Context,
    url: Url = None,
    source: Bus = None,
    topic: Topic = None,
    reason: Reason = None,
    error: Error = None,
    handler: Handler = None,
    group: InGroup = None,
    key: Key = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="So many at the most, the newest ones.")
    ] = LIST_MAX,
    output: Output = Form.TEXT,
) -> None:
    """List dead letters, the oldest first."""
    from penstock.cli.formats import short_text, time_text
    from penstock.cli.output import show, tell

    wanted = _filter(
        topic=topic,
        reason=reason,
        error=error,
        handler=handler,
        group=group,
        key=key,
        contains=contains,
        since=since,
        until=until,
    )
    found = run(_chosen(place_of(ctx, url), source, wanted))
    shown = found[-number:]
    rows = [
        (
            one.id,
            one.topic,
            one.reason,
            one.error_type.rpartition(".")[2] or one.error[:40],
            one.attempts,
            time_text(one.time_ms),
            short_text(one.value, 40),
        )
        for one in shown
    ]
    titles = ("id", "topic", "reason", "error", "attempts", "failed", "value")
    show(output, [one.plain() for one in shown], titles, rows, "there are no such dead letters")
    if len(shown) < len(found):
        tell(f"the newest {len(shown):,} of {len(found):,}: -n shows more")


@app.command("show")
def show(ctx: typer.Context, id: Id, url: Url = None, output: Output = Form.TEXT) -> None:  # noqa: A002
    """Show one dead letter: the error, where it came from, and its value."""
    from penstock.cli.output import show_json

    letter = run(_one(place_of(ctx, url), id))
    if output is Form.JSON:
        show_json(letter.plain())
    else:
        _show(letter)


def _show(letter: Letter) -> None:
    from penstock.cli.formats import headers_text, time_text
    from penstock.cli.output import harmless, harmless_lines, say

    where = (
        ""
        if letter.partition is None
        else f", partition {letter.partition}, offset {letter.offset}"
    )
    lines = {
        "id": letter.id,
        "from": f"{letter.topic}{where}",
        "kept in": letter.source,
        "reason": letter.reason,
        "error": f"{letter.error_type} {letter.error}".strip(),
        "handler": letter.handler,
        "group": letter.group or "",
        "failed": f"{time_text(letter.time_ms)}, {letter.attempts} attempts, {letter.replays} replays",
        "key": (letter.key or b"").decode("utf-8", "replace"),
        "headers": headers_text(letter.headers).decode("utf-8", "replace"),
        "edits": "; ".join(letter.edits),
        "replay": letter.refused or "",
    }
    for name, text in lines.items():
        if text:
            say(f"{name + ':':<9} {harmless(text)}")
    if letter.traceback:
        say(f"\n{harmless_lines(letter.traceback.rstrip())}")
    say(f"\n{harmless_lines((letter.value or b'').decode('utf-8', 'replace'))}")


@app.command("edit")
def edit(
    ctx: typer.Context,
    id: Id,  # noqa: A002
    url: Url = None,
    value: Value = None,
    file: File = None,
    force: Annotated[bool, typer.Option("--force", help="Also when it is JSON no more.")] = False,
) -> None:
    """Give a dead letter another value, in $EDITOR or with --value; the one that failed is kept too."""
    from penstock.cli.output import say

    place = place_of(ctx, url)
    letter = run(_one(place, id))
    changed = _new_value(letter, value, file, ask=True, force=force)
    if changed is None:
        say(f"{id}: nothing was changed")
        return
    run(_with_shelves(place, letter.source, lambda shelf: shelf.edit(letter, changed)))
    say(f"{id}: changed")


@app.command("replay")
def replay(
    ctx: typer.Context,
    ids: Ids = None,
    url: Url = None,
    source: Bus = None,
    topic: Topic = None,
    reason: Reason = None,
    error: Error = None,
    handler: Handler = None,
    group: InGroup = None,
    key: Key = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    value: Value = None,
    file: File = None,
    editor: Annotated[
        bool, typer.Option("--edit", help="Edit the value first, in $EDITOR.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also those that came back too often.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = Form.TEXT,
) -> None:
    """Publish dead letters to where they came from."""
    wanted = _filter(
        ids=ids,
        topic=topic,
        reason=reason,
        error=error,
        handler=handler,
        group=group,
        key=key,
        contains=contains,
        since=since,
        until=until,
    )
    _check_choice(wanted, source, everything)
    place = place_of(ctx, url)
    letters = run(_chosen(place, source, wanted))
    if value is not None or file is not None or editor:
        letters = [_changed(letters, value, file, editor, force)]
    refused = _refused(letters, force=force)
    chosen = [one for one in letters if one.id not in {step.id for step in refused}]
    steps = [_would(one) for one in chosen]
    if chosen and not dry_run:
        confirm(f"This publishes {counted(len(chosen), 'dead letter')} again", yes=yes)
        steps = run(_replay(place, chosen))
    _show_steps([*steps, *refused], output, dry_run)


@app.command("purge")
def purge(
    ctx: typer.Context,
    ids: Ids = None,
    url: Url = None,
    source: Bus = None,
    topic: Topic = None,
    reason: Reason = None,
    error: Error = None,
    handler: Handler = None,
    group: InGroup = None,
    key: Key = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Throw dead letters away."""
    from penstock.cli.output import say

    wanted = _filter(
        ids=ids,
        topic=topic,
        reason=reason,
        error=error,
        handler=handler,
        group=group,
        key=key,
        contains=contains,
        since=since,
        until=until,
    )
    _check_choice(wanted, source, everything)
    place = place_of(ctx, url)
    letters = run(_chosen(place, source, wanted))
    if dry_run or not letters:
        say(f"{'would purge' if dry_run else 'purged'} {counted(len(letters), 'dead letter')}")
        return
    confirm(f"This throws {counted(len(letters), 'dead letter')} away", yes=yes)
    say(f"purged {counted(run(_purge(place, letters)), 'dead letter')}")


# Choosing


def _filter(
    *, ids: list[str] | None = None, since: str | None, until: str | None, **given: Any
) -> Filter:
    from penstock import System
    from penstock.cli.letters import Filter
    from penstock.cli.positions import parse_time

    now = System().clock.time_ms()
    return Filter(
        ids=tuple(ids or ()),
        since_ms=None if since is None else parse_time(since, now),
        until_ms=None if until is None else parse_time(until, now),
        **given,
    )


def _check_choice(wanted: Filter, source: str | None, everything: bool) -> None:
    from penstock import errors

    if wanted.chooses_all and source is None and not everything:
        raise errors.InvalidOption("which ones? Name ids, or filters, or --all", option="ids")


async def _chosen(place: Place, source: str | None, wanted: Filter) -> list[Letter]:
    from penstock import errors

    found: list[Letter] = []
    async with _shelves(place, read_only=True) as shelves:
        if source is not None and source not in {one.name for one in shelves}:
            raise errors.InvalidOption(
                f"no dead letters are kept by or in {source!r}: there are "
                f"{', '.join(one.name for one in shelves) or 'none at all'}",
                option="source",
            )
        for shelf in shelves:
            if source is None or shelf.name == source:
                found += [one for one in await shelf.letters() if wanted.matches(one)]
    for one in wanted.ids:
        if one not in {letter.id for letter in found}:
            raise _unknown(one)
    return sorted(found, key=lambda one: one.time_ms)


async def _one(place: Place, letter_id: str) -> Letter:
    from penstock.cli.letters import Filter

    return (await _chosen(place, None, Filter(ids=(letter_id,))))[0]


def _unknown(letter_id: str) -> Exception:
    from penstock import errors

    return errors.UnknownDeadLetter(
        f"there is no dead letter {letter_id!r} that fits: `penstock dlq list` shows those that are there",
        id=letter_id,
    )


@asynccontextmanager
async def _shelves(place: Place, *, read_only: bool = False) -> AsyncIterator[list[Shelf]]:
    """All places that dead letters are in."""
    from penstock.cli.letters_bus import BusShelf, bus_names
    from penstock.cli.letters_topic import SUFFIX, TopicShelf
    from penstock.transports import EmbeddedTransport

    opened = place.reading() if read_only and place.is_log else place.writing()
    async with opened as transport:
        names = list(await transport.topics())
        shelves: list[Shelf] = []
        if isinstance(transport, EmbeddedTransport):
            shelves += [BusShelf(transport.queue, name) for name in bus_names(names)]
        shelves += [
            TopicShelf(transport, name)
            for name in names
            if name.endswith(SUFFIX) and not name.startswith("journal.")
        ]
        yield shelves


# Doing


def _changed(
    letters: Sequence[Letter], value: str | None, file: Path | None, editor: bool, force: bool
) -> Letter:
    """One letter with another value."""
    from dataclasses import replace

    from penstock import errors

    if len(letters) != 1:
        raise errors.InvalidOption(
            f"another value is for one dead letter, and these are {len(letters)}: name its id",
            option="value",
        )
    changed = _new_value(letters[0], value, file, ask=editor, force=force)
    return letters[0] if changed is None else replace(letters[0], value=changed)


def _new_value(
    letter: Letter, value: str | None, file: Path | None, *, ask: bool, force: bool
) -> bytes | None:
    from penstock.cli.editor import edited

    before = letter.value or b""
    if value is not None:
        changed: bytes | None = value.encode("utf-8", "surrogateescape")
    elif file is not None:
        changed = file.read_bytes()
    else:
        changed = edited(before) if ask else None
    if changed is not None and not force:
        _check_json(before, changed)
    return changed


def _check_json(before: bytes, changed: bytes) -> None:
    """What was JSON stays JSON, unless that is forced: a slip in an editor is no new format."""
    import msgspec

    from penstock import errors

    try:
        msgspec.json.decode(before)
    except (msgspec.MsgspecError, UnicodeError):
        return
    try:
        msgspec.json.decode(changed)
    except (msgspec.MsgspecError, UnicodeError) as wrong:
        raise errors.InvalidMessage(
            f"the value was JSON, and the new one is none ({wrong}): mend it, or use --force",
            reason=str(wrong),
        ) from None


def _refused(letters: Sequence[Letter], *, force: bool) -> list[Step]:
    from penstock.cli.letters import Step, refusal

    found = [(one, refusal(one, force=force)) for one in letters]
    return [Step(one.id, one.topic, why) for one, why in found if why is not None]


def _would(letter: Letter) -> Step:
    from penstock.cli.letters import Step

    return Step(letter.id, letter.topic)


async def _replay(place: Place, letters: Sequence[Letter]) -> list[Step]:
    steps: list[Step] = []
    async with _shelves(place) as shelves:
        for shelf in shelves:
            mine = [one for one in letters if one.source == shelf.name]
            if mine:
                steps += await shelf.replay(mine)
    return steps


async def _purge(place: Place, letters: Sequence[Letter]) -> int:
    count = 0
    async with _shelves(place) as shelves:
        for shelf in shelves:
            mine = [one for one in letters if one.source == shelf.name]
            if mine:
                count += await shelf.purge(mine)
    return count


async def _with_shelves(place: Place, name: str, do: Callable[[Shelf], Any]) -> None:
    async with _shelves(place) as shelves:
        for shelf in shelves:
            if shelf.name == name:
                await do(shelf)


def _show_steps(steps: Sequence[Step], output: Form, dry_run: bool) -> None:
    from penstock.cli.codes import PROBLEMS
    from penstock.cli.output import show

    plain = [one.plain() | {"dry_run": dry_run} for one in steps]
    done = "would go" if dry_run else "replayed"
    rows = [
        (one.id, one.topic, done if one.refused is None else "stays", one.refused or one.note)
        for one in steps
    ]
    show(output, plain, ("id", "to", "", ""), rows, "there are no such dead letters")
    if not dry_run and any(one.refused is not None for one in steps):
        raise typer.Exit(PROBLEMS)
