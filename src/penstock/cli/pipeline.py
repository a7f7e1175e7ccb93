"""``penstock pipeline``: run a pipeline, see how it stands, stop it, replay its dead letters."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

from penstock.cli.codes import DONE, NOT_RUNNING
from penstock.cli.table import table

if TYPE_CHECKING:
    from penstock.spark import RunningPipeline

FILE = "the file that declares the pipeline: shop.py, or shop.py:name when there are several"
STOP_SECONDS = 120.0


def add_to(commands: Any) -> None:
    """Add the command and its verbs."""
    about = "run a pipeline on Spark, see how it stands, stop it, replay its dead letters"
    verbs = commands.add_parser("pipeline", help=about, description=about).add_subparsers(
        title="verbs", metavar="VERB", required=True
    )
    _run_options(_verb(verbs, "run", "run it until it is stopped, by SIGTERM or by `stop`", run))
    _verb(verbs, "status", "how far each output is, from the log; Spark is not started", status)
    stop_options = _verb(verbs, "stop", "ask it to end, and wait until it has", stop)
    stop_options.add_argument(
        "--timeout", type=float, default=STOP_SECONDS, metavar="SECONDS",
        help="how long to wait (%(default)s)",
    )  # fmt: skip
    replay_options = _verb(
        verbs, "replay", "publish the bad records of a topic to it again", replay
    )
    replay_options.add_argument("topic", metavar="TOPIC", help="the topic that they come from")
    replay_options.add_argument("--limit", type=int, metavar="N", help="so many at the most")
    reset_options = _verb(verbs, "reset", "let an output start anew", reset)
    reset_options.add_argument("output", metavar="OUTPUT", help="as `status` names it")
    reset_options.add_argument("--yes", action="store_true", help="remove what it wrote and knows")


def _verb(verbs: Any, name: str, about: str, command: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=about)
    parser.add_argument("file", metavar="FILE", help=FILE)
    parser.set_defaults(command=command)
    return parser


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="read what is there now, and end")
    parser.add_argument("--every", metavar="TIME", help="a micro-batch so often: '10 seconds'")
    parser.add_argument(
        "--master", default="local[*]", help="where Spark runs (%(default)s): local[2], spark://…"
    )


def run(options: argparse.Namespace) -> int:
    """Until a signal, `stop`, or the end of all queries; SIGTERM lets micro-batches finish."""
    from penstock.spark import PipelineService, load_pipeline, spark_session

    pipeline = load_pipeline(options.file)
    service = PipelineService(pipeline)
    with service.claim():
        _say(f"pipeline {pipeline.name}: {', '.join(pipeline.outputs)}")
        spark = spark_session(pipeline.name, master=options.master, tell=_say)
        signals = _Signals()
        running = pipeline.start(spark, every=options.every, once=options.once)
        lines = _Lines(running)
        running.serve(lambda: signals.came or service.is_asked_to_stop(), lines.show)
        lines.show()
        _say(f"pipeline {pipeline.name}: stopped")
    return DONE


def status(options: argparse.Namespace) -> int:
    """What the log knows."""
    from penstock.spark import load_pipeline, report_of

    report = report_of(load_pipeline(options.file))
    _say(f"pipeline {report.name}: {'running' if report.running else 'not running'}\n")
    rows = [
        (one.name, one.micro_batch, one.lag_records, one.lag_seconds, one.target)
        for one in report.outputs
    ]
    _say(table(("output", "micro-batch", "records behind", "seconds", "goes to"), rows))
    if report.dead_letters:
        letters = [(one.topic, one.records, one.not_replayed) for one in report.dead_letters]
        _say("\n" + table(("dead letters", "records", "not replayed"), letters))
    return DONE


def stop(options: argparse.Namespace) -> int:
    """Ask, and wait."""
    from penstock.spark import PipelineService, load_pipeline

    pipeline = load_pipeline(options.file)
    if not PipelineService(pipeline).stop(options.timeout):
        _say(f"pipeline {pipeline.name}: not running")
        return NOT_RUNNING
    _say(f"pipeline {pipeline.name}: stopped")
    return DONE


def replay(options: argparse.Namespace) -> int:
    """Into the topic again; the pipeline reads them as it reads all others."""
    from penstock.spark import load_pipeline

    count = load_pipeline(options.file).replay_dead_letters(options.topic, limit=options.limit)
    _say(f"{count:,} records replayed to {options.topic}")
    return DONE


def reset(options: argparse.Namespace) -> int:
    """The next run writes it again from the first record."""
    from penstock.spark import load_pipeline

    removed = load_pipeline(options.file).reset(options.output, yes=options.yes)
    _say(f"{options.output}: removed {', '.join(removed)}")
    return DONE


class _Signals:
    """Whether one came that asks for the end."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True


class _Lines:
    """A line for each micro-batch that is done, and for each output that fails."""

    def __init__(self, running: RunningPipeline) -> None:
        self._running = running
        self._shown: dict[str, tuple[int, str | None]] = {}

    def show(self) -> None:
        """What is new since the last call."""
        for one in self._running.status():
            state = (one.micro_batch, one.error)
            if self._shown.setdefault(one.name, (-1, None)) == state:
                continue
            self._shown[one.name] = state
            _say(
                f"{one.name}: failed: {one.error}"
                if one.error
                else f"{one.name}: micro-batch {one.micro_batch}, {one.rows:,} rows in "
                f"{one.seconds:.1f} s ({one.processed_rows_per_second:,.0f}/s)"
            )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
