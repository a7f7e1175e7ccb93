"""Choosing dead letters, and doing something with those that were chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from penstock import System, errors
from penstock.cli.editor import edited
from penstock.cli.letters import Filter, Letter, Shelf, refusal
from penstock.cli.letters_bus import BusShelf
from penstock.cli.letters_topic import TopicShelf
from penstock.cli.places import Place
from penstock.cli.positions import parse_time
from penstock.transports import EmbeddedTransport
from penstock.upkeep import LetterStep, bus_names, letter_topics

# Choosing


def make_filter(
    *, ids: list[str] | None = None, since: str | None, until: str | None, **given: Any
) -> Filter:
    """What the options choose; times are as people write them."""
    now = System().clock.time_ms()
    return Filter(
        ids=tuple(ids or ()),
        since_ms=None if since is None else parse_time(since, now),
        until_ms=None if until is None else parse_time(until, now),
        **given,
    )


def check_choice(wanted: Filter, source: str | None, everything: bool) -> None:
    """Refuse to take all of them when nobody said so."""
    if wanted.chooses_all and source is None and not everything:
        raise errors.InvalidOption("which ones? Name ids, or filters, or --all", option="ids")


async def chosen_letters(place: Place, source: str | None, wanted: Filter) -> list[Letter]:
    """Those that fit, the oldest first; UnknownDeadLetter for an id that is not there."""
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


async def one_letter(place: Place, letter_id: str) -> Letter:
    """The letter of an id."""
    return (await chosen_letters(place, None, Filter(ids=(letter_id,))))[0]


def _unknown(letter_id: str) -> Exception:
    return errors.UnknownDeadLetter(
        f"there is no dead letter {letter_id!r} that fits: `penstock dlq list` shows those that are there",
        id=letter_id,
    )


@asynccontextmanager
async def _shelves(place: Place, *, read_only: bool = False) -> AsyncIterator[list[Shelf]]:
    """All places that dead letters are in."""
    opened = place.reading() if read_only and place.is_log else place.writing()
    async with opened as transport:
        names = list(await transport.topics())
        shelves: list[Shelf] = []
        if isinstance(transport, EmbeddedTransport):
            shelves += [BusShelf(transport.queue, name) for name in bus_names(names)]
        shelves += [TopicShelf(transport, name) for name in letter_topics(names)]
        yield shelves


# Doing


def with_value(
    letters: Sequence[Letter], value: str | None, file: Path | None, editor: bool, force: bool
) -> Letter:
    """One letter with another value."""
    if len(letters) != 1:
        raise errors.InvalidOption(
            f"another value is for one dead letter, and these are {len(letters)}: name its id",
            option="value",
        )
    changed = new_value(letters[0], value, file, ask=editor, force=force)
    return letters[0] if changed is None else replace(letters[0], value=changed)


def new_value(
    letter: Letter, value: str | None, file: Path | None, *, ask: bool, force: bool
) -> bytes | None:
    """From the command line, a file or the editor; None: as it was. What was JSON stays JSON."""
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


def refused_steps(letters: Sequence[Letter], *, force: bool) -> list[LetterStep]:
    """Those that are not replayed, each with the reason."""
    found = [(one, refusal(one, force=force)) for one in letters]
    return [LetterStep(one.id, one.topic, why) for one, why in found if why is not None]


def planned_step(letter: Letter) -> LetterStep:
    """What would happen to a letter."""
    return LetterStep(letter.id, letter.topic)


async def replay_letters(place: Place, letters: Sequence[Letter]) -> list[LetterStep]:
    """Send them to where they came from, shelf by shelf."""
    steps: list[LetterStep] = []
    async with _shelves(place) as shelves:
        for shelf in shelves:
            mine = [one for one in letters if one.source == shelf.name]
            if mine:
                steps += await shelf.replay(mine)
    return steps


async def purge_letters(place: Place, letters: Sequence[Letter]) -> int:
    """Throw them away; how many."""
    count = 0
    async with _shelves(place) as shelves:
        for shelf in shelves:
            mine = [one for one in letters if one.source == shelf.name]
            if mine:
                count += await shelf.purge(mine)
    return count


async def edit_letter(place: Place, letter: Letter, value: bytes) -> None:
    """Give a letter another value."""
    async with _shelves(place) as shelves:
        for shelf in shelves:
            if shelf.name == letter.source:
                await shelf.edit(letter, value)
