"""The options that choose dead letters, the same for every verb that takes some of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from penstock.cli.completion import groups, topics

if TYPE_CHECKING:
    from penstock.cli.letters import Filter

Bus = Annotated[
    str | None,
    typer.Option("--source", "-s", metavar="NAME", help="Of this bus, or in this topic, alone."),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="GLOB", help="From this topic.", autocompletion=topics),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the options chose. A verb that is :func:`choosing` takes it as one parameter."""

    source: Bus = None
    topic: Topic = None
    reason: Reason = None
    error: Error = None
    handler: Handler = None
    group: InGroup = None
    key: Key = None
    contains: Contains = None
    since: Since = None
    until: Until = None

    def filter(self, ids: list[str] | None = None) -> Filter:
        """The letters that fit, of these ids alone if there are some; the source is no part of it."""
        from penstock.cli.letter_work import make_filter

        given = {name: getattr(self, name) for name in _NAMES if name != "source"}
        return make_filter(ids=ids, **given)

    def some(self, ids: list[str] | None, everything: bool) -> Filter:
        """The same; InvalidOption when nothing is chosen, and ``everything`` was not said."""
        from penstock.cli.letter_work import check_choice

        wanted = self.filter(ids)
        check_choice(wanted, self.source, everything)
        return wanted


_NAMES = tuple(one.name for one in fields(Choice))


def choosing(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb with an option for each field of Choice, where it has its parameter ``choice``."""

    @wraps(verb)
    def chosen(**given: Any) -> None:
        choice = Choice(**{name: given.pop(name) for name in _NAMES})
        verb(choice=choice, **given)

    parameters = list(_parameters(verb))
    chosen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    chosen.__annotations__ = {one.name: one.annotation for one in parameters}
    return chosen


def _parameters(of: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """In their order, those of the choice in its place."""
    hints = get_type_hints(of, include_extras=True)
    for name, one in inspect.signature(of).parameters.items():
        if hints[name] is Choice:
            yield from _parameters(Choice)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            yield one.replace(kind=kind, annotation=hints[name])
