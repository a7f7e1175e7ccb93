"""Starting an output anew: everything that it remembers goes, and the rows of its table."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from penstock.errors import DeadlineExceeded, SubscriberBusy, UsageError
from penstock.log.transactions import Transactions
from penstock.spark.open_log import OpenLog
from penstock.spark.sink_number import producer_of
from penstock.system import Files, OsFiles

if TYPE_CHECKING:
    from penstock.spark.pipeline import Output, Pipeline

READ_MAX = 64 * 1024


def reset_output(pipeline: Pipeline, output: Output, *, yes: bool) -> list[str]:
    """Forget how far an output is, and what it wrote to its table; what was done, in words.

    The next run begins at the first record that is kept. A topic keeps its records: they come again
    behind the old ones. *A reset that is cut short* is to be done again before the pipeline runs.
    """
    steps = _steps(output)
    if not yes:
        raise UsageError(
            f"this removes {', '.join(steps)} of output {output.name!r}: say so with yes=True"
        )
    log = pipeline.open_state()
    _check_stopped(pipeline, output, log)
    query_id = _query_of(pipeline, output)
    _remove_rows(output)
    remove_folder(pipeline.checkpoint_of(output))
    pipeline.ledger_of(output).forget()
    if query_id is not None and output.format == "penstock":
        _forget_producer(log, producer_of(pipeline, output, query_id))
    return steps


def _steps(output: Output) -> list[str]:
    kept = ["the checkpoint", "the ledger"]
    last = {"penstock": ["the producer"], "kafka": []}
    return [*kept, *last.get(output.format, ["all rows"])]


def _check_stopped(pipeline: Pipeline, output: Output, log: OpenLog) -> None:
    group = pipeline.group_of(output)
    for topic in sorted({source.topic for source in pipeline.sources}):
        try:
            with log.store.lock(f"groups/{group}/{topic}.lock", 0):
                pass
        except DeadlineExceeded:
            raise SubscriberBusy(
                f"output {output.name!r} is running: stop the pipeline first",
                subscriber=group,
                topic=topic,
            ) from None


def _query_of(pipeline: Pipeline, output: Output) -> str | None:
    """The id of its query: from the ledger, or from the checkpoint of one that never came to report."""
    progress = pipeline.ledger_of(output).progress()
    if progress is not None:
        return progress.query_id
    files = OsFiles()
    try:
        descriptor = files.open(f"{pipeline.checkpoint_of(output)}/metadata", write=False)
    except OSError:
        return None
    try:
        return str(json.loads(files.read(descriptor, READ_MAX, 0))["id"])
    except (ValueError, LookupError):
        return None
    finally:
        files.close(descriptor)


def _forget_producer(log: OpenLog, name: str) -> None:
    transactions = Transactions(log.store)
    try:
        transactions.forget(name)
    finally:
        transactions.close()


def _remove_rows(output: Output) -> None:
    path = output.options["path"]
    if output.format == "parquet":
        remove_folder(path)
    elif output.format == "penstock_table":
        from penstock.spark.table_commit import make_log_durable, open_table

        table = open_table(path)
        if table is not None:
            table.delete()
            make_log_durable(path)


def remove_folder(path: str, files: Files | None = None) -> None:
    """Remove a folder with all that is in it, if it is there."""
    files = files or OsFiles()
    if not files.exists(path):
        return
    for name, is_folder in files.list_directory(path):
        place = os.path.join(path, name)
        if is_folder:
            remove_folder(place, files)
        else:
            files.unlink(place)
    files.remove_directory(path)
