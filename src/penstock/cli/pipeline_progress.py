"""How a pipeline that runs is doing: a bar for each output on a terminal, else a line for each micro-batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.spark import OutputStatus, RunningPipeline


class Shown(Protocol):
    """Shows what is new."""

    def show(self) -> None:
        """What is new since the last call."""
        ...


@contextmanager
def shown(running: RunningPipeline) -> Iterator[Shown]:
    """Bars where somebody looks at them; they stay when the pipeline has ended."""
    if not sys.stdout.isatty():
        yield Lines(running)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns) as progress:
        yield Bars(running, progress)


class Lines:
    """A line for each micro-batch that is done, and for each output that fails."""

    def __init__(self, running: RunningPipeline) -> None:
        self._running = running
        self._shown: dict[str, tuple[int, str | None]] = {}

    def show(self) -> None:
        """What is new since the last call."""
        for one in self._running.status():
            state = (one.micro_batch, one.error)
            if self._shown.setdefault(one.name, (-1, None)) != state:
                self._shown[one.name] = state
                sys.stdout.write(f"{_line(one)}\n")
        sys.stdout.flush()


class Bars:
    """For each output the rows it has read, of those and the ones it is behind."""

    def __init__(self, running: RunningPipeline, progress: Any) -> None:
        self._running = running
        self._progress = progress
        self._tasks: dict[str, Any] = {}

    def show(self) -> None:
        """Move the bars."""
        behind = {one.group: one.records for one in self._running.lags()}
        for one in self._running.status():
            self._move(one, one.rows_in_all + behind.get(one.group, 0))

    def _move(self, one: OutputStatus, total: int) -> None:
        task = self._tasks.get(one.name)
        if task is None:
            task = self._tasks[one.name] = self._progress.add_task(one.name, rate="")
        rate = f"failed: {one.error}" if one.error else f"{one.processed_rows_per_second:,.0f}/s"
        self._progress.update(task, completed=one.rows_in_all, total=max(1, total), rate=rate)


def _line(one: OutputStatus) -> str:
    if one.error:
        return f"{one.name}: failed: {one.error}"
    return (
        f"{one.name}: micro-batch {one.micro_batch}, {one.rows:,} rows in "
        f"{one.seconds:.1f} s ({one.processed_rows_per_second:,.0f}/s)"
    )
