"""``penstock dlq``: dead letters as a workflow: list, show, edit, replay, purge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asking import confirm
from penstock.cli.letter_choice import Choice, choosing
from penstock.cli.options import DryRun, Form, Output, Url, Yes
from penstock.cli.places import place_of, run
from penstock.cli.table import counted

if TYPE_CHECKING:
    from penstock.cli.letters import Letter
    from penstock.upkeep import LetterStep

app = typer.Typer(help="Dead letters: list, show, edit, replay, purge.", no_args_is_help=True)
LIST_MAX = 1_000

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="As `dlq list` shows them.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `dlq list` shows it.")]
Everything = Annotated[bool, typer.Option("--all", "-a", help="All of them.")]
Value = Annotated[
    str | None, typer.Option("--value", "-v", help="The new value.", show_default=False)
]
File = Annotated[Path | None, typer.Option("--file", "-F", help="The new value is in this file.")]


@app.command("list")
@choosing
def list_(
    context: typer.Context,
    *,
    url: Url = None,
    choice: Choice,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="So many at the most, the newest ones.")
    ] = LIST_MAX,
    output: Output = Form.TEXT,
) -> None:
    """List dead letters, the oldest first."""
    from penstock.cli.formats import short_text, time_text
    from penstock.cli.letter_work import chosen_letters
    from penstock.cli.output import show, tell

    found = run(chosen_letters(place_of(context, url), choice.source, choice.filter()))
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
def show(context: typer.Context, id: Id, url: Url = None, output: Output = Form.TEXT) -> None:  # noqa: A002
    """Show one dead letter: the error, where it came from, and its value."""
    from penstock.cli.letter_work import one_letter
    from penstock.cli.output import show_json

    letter = run(one_letter(place_of(context, url), id))
    if output is Form.JSON:
        show_json(letter.plain())
    else:
        _show(letter)


def _show(letter: Letter) -> None:
    from penstock.cli.formats import headers_text, time_text
    from penstock.cli.harmless import harmless
    from penstock.cli.output import say

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
        say(f"\n{letter.traceback.rstrip()}")
    say(f"\n{(letter.value or b'').decode('utf-8', 'replace')}")


@app.command("edit")
def edit(
    context: typer.Context,
    id: Id,  # noqa: A002
    url: Url = None,
    value: Value = None,
    file: File = None,
    force: Annotated[bool, typer.Option("--force", help="Also when it is JSON no more.")] = False,
) -> None:
    """Give a dead letter another value, in $EDITOR or with --value; the one that failed is kept too."""
    from penstock.cli.letter_work import edit_letter, new_value, one_letter
    from penstock.cli.output import say

    place = place_of(context, url)
    letter = run(one_letter(place, id))
    changed = new_value(letter, value, file, ask=True, force=force)
    if changed is None:
        say(f"{id}: nothing was changed")
        return
    run(edit_letter(place, letter, changed))
    say(f"{id}: changed")


@app.command("replay")
@choosing
def replay(
    context: typer.Context,
    *,
    ids: Ids = None,
    url: Url = None,
    choice: Choice,
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
    from penstock.cli.letter_work import (
        chosen_letters,
        planned_step,
        refused_steps,
        replay_letters,
        with_value,
    )

    wanted = choice.some(ids, everything)
    place = place_of(context, url)
    letters = run(chosen_letters(place, choice.source, wanted))
    if value is not None or file is not None or editor:
        letters = [with_value(letters, value, file, editor, force)]
    refused = refused_steps(letters, force=force)
    chosen = [one for one in letters if one.id not in {step.id for step in refused}]
    steps = [planned_step(one) for one in chosen]
    if chosen and not dry_run:
        confirm(f"This publishes {counted(len(chosen), 'dead letter')} again", yes=yes)
        steps = run(replay_letters(place, chosen))
    _show_steps([*steps, *refused], output, dry_run)


@app.command("purge")
@choosing
def purge(
    context: typer.Context,
    *,
    ids: Ids = None,
    url: Url = None,
    choice: Choice,
    everything: Everything = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Throw dead letters away."""
    from penstock.cli.letter_work import chosen_letters, purge_letters
    from penstock.cli.output import say

    wanted = choice.some(ids, everything)
    place = place_of(context, url)
    letters = run(chosen_letters(place, choice.source, wanted))
    if dry_run or not letters:
        say(f"{'would purge' if dry_run else 'purged'} {counted(len(letters), 'dead letter')}")
        return
    confirm(f"This throws {counted(len(letters), 'dead letter')} away", yes=yes)
    say(f"purged {counted(run(purge_letters(place, letters)), 'dead letter')}")


def _show_steps(steps: Sequence[LetterStep], output: Form, dry_run: bool) -> None:
    from penstock.cli.codes import PROBLEMS
    from penstock.cli.output import show

    plain = [
        {
            "id": one.id,
            "topic": one.topic,
            "replayed": one.refused is None,
            "refused": one.refused,
            "note": one.note,
            "dry_run": dry_run,
        }
        for one in steps
    ]
    done = "would go" if dry_run else "replayed"
    rows = [
        (one.id, one.topic, done if one.refused is None else "stays", one.refused or one.note)
        for one in steps
    ]
    show(output, plain, ("id", "to", "", ""), rows, "there are no such dead letters")
    if not dry_run and any(one.refused is not None for one in steps):
        raise typer.Exit(PROBLEMS)
