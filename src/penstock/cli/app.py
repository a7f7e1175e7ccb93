"""The command line as a whole: what is before the verbs, and which verbs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import (
    bench,
    config,
    consume,
    dashboard,
    dlq,
    doctor,
    export,
    group,
    log,
    pipeline,
    produce,
    topic,
)
from penstock.cli.options import Url

app = typer.Typer(
    name="penstock",
    help="An event bus and a crash-safe durable log: topics, groups, dead letters, pipelines.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from penstock.cli.main import tell_version

        tell_version()
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Url = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="A file in place of ./penstock.toml."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options that stand before the verb."""
    # The verbs look them up: those that stand behind the verb count first.
    del context, url, config, version


app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(log.app, name="log")
app.command("export")(export.export)
app.command("bench")(bench.bench)
app.add_typer(pipeline.app, name="pipeline")
app.command("dashboard")(dashboard.dashboard)
app.command("doctor")(doctor.doctor)
app.add_typer(config.app, name="config")
