"""``penstock pipeline``: run a pipeline, see how it stands, stop it, replay its dead letters."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.codes import NOT_RUNNING
from penstock.cli.options import Form, Output, Yes
from penstock.cli.pipeline_progress import shown
from penstock.cli.table import counted, table

if TYPE_CHECKING:
    from penstock.spark import PipelineReport

app = typer.Typer(
    help="Run a pipeline on Spark, see how it stands, stop it, replay its dead letters.",
    no_args_is_help=True,
)
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="The file that declares the pipeline: shop.py, or shop.py:name when there are several.",
    ),
]
STOP_SECONDS = 120.0


@app.command("run")
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, and end.")] = False,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="A micro-batch so often: '10 seconds'."),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Where Spark runs: local[2], spark://…")
    ] = "local[*]",
) -> None:
    """Run it until it is stopped, by SIGTERM or by `stop`; SIGTERM lets micro-batches finish."""
    from penstock.spark import PipelineService, load_pipeline, spark_session

    pipeline = load_pipeline(file)
    service = PipelineService(pipeline)
    with service.claim():
        _say(f"pipeline {pipeline.name}: {', '.join(pipeline.outputs)}")
        spark = spark_session(pipeline.name, master=master, tell=_say)
        signals = _Signals()
        running = pipeline.start(spark, every=every, once=once)
        with shown(running) as progress:
            running.serve(lambda: signals.came or service.is_asked_to_stop(), progress.show)
            progress.show()
        _say(f"pipeline {pipeline.name}: stopped")


@app.command("status")
def status(file: File, output: Output = Form.TEXT) -> None:
    """Show how far each output is, from the log; Spark is not started."""
    from penstock.spark import load_pipeline, report_of

    report = report_of(load_pipeline(file))
    if output is Form.JSON:
        from penstock.cli.output import show_json

        show_json(asdict(report))
    else:
        _show(report)


def _show(report: PipelineReport) -> None:
    _say(f"pipeline {report.name}: {'running' if report.running else 'not running'}\n")
    rows = [
        (one.name, one.micro_batch, one.lag_records, one.lag_seconds, one.target)
        for one in report.outputs
    ]
    _say(table(("output", "micro-batch", "records behind", "seconds", "goes to"), rows))
    if report.dead_letters:
        letters = [(one.topic, one.records, one.not_replayed) for one in report.dead_letters]
        _say("\n" + table(("dead letters", "records", "not replayed"), letters))


@app.command("stop")
def stop(
    file: File,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.")
    ] = STOP_SECONDS,
) -> None:
    """Ask it to end, and wait until it has."""
    from penstock.spark import PipelineService, load_pipeline

    pipeline = load_pipeline(file)
    if not PipelineService(pipeline).stop(timeout):
        _say(f"pipeline {pipeline.name}: not running")
        raise typer.Exit(NOT_RUNNING)
    _say(f"pipeline {pipeline.name}: stopped")


@app.command("replay")
def replay(
    file: File,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that they come from.")],
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="So many at the most.")
    ] = None,
) -> None:
    """Publish the bad records of a topic to it again; the pipeline reads them as all others."""
    from penstock.spark import load_pipeline

    count = load_pipeline(file).replay_dead_letters(topic, limit=limit)
    _say(f"{counted(count, 'record')} replayed to {topic}")


@app.command("reset")
def reset(
    file: File,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="As `status` names it.")],
    yes: Yes = False,
) -> None:
    """Remove what an output wrote and knows: the next run writes it again from the first record."""
    from penstock.spark import load_pipeline

    removed = load_pipeline(file).reset(output, yes=yes)
    _say(f"{output}: removed {', '.join(removed)}")


class _Signals:
    """Whether one came that asks for the end."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
