"""Options and arguments that many verbs share."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from penstock.cli.completion import groups, topics


class Form(enum.StrEnum):
    """How something is shown."""

    TEXT = "text"
    JSON = "json"


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        help="Where the topics are: log:./data, nats://localhost, … Also PENSTOCK_URL.",
        show_default=False,
    ),
]
Output = Annotated[
    Form, typer.Option("--output", "-o", metavar="text|json", help="For people or for programs.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topics)]
OptionalTopic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="This topic alone.", autocompletion=topics),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups)]
