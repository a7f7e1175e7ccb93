"""A pipeline as a service: one at a time under a name, to be stopped from elsewhere.

Both stand in the log. The claim is a lock, so it ends with the process, however that ends. The wish
to stop is a marker, which the service looks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import DeadlineExceeded, SubscriberBusy

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline

LOOK_SECONDS = 0.2
STOP_SECONDS = 120.0


class PipelineService:
    """Who runs a pipeline, asked from any process. Blocking."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._name = pipeline.name
        self._log = pipeline.open_state()
        self._lock = f"pipelines/{pipeline.name}/running"
        self._marker = f"pipelines/{pipeline.name}/stop"

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Be the one that runs it; SubscriberBusy when somebody does already."""
        held = self._log.store.lock(self._lock, 0)
        try:
            held.__enter__()
        except DeadlineExceeded:
            raise SubscriberBusy(
                f"pipeline {self._name!r} runs already: stop that one first", subscriber=self._name
            ) from None
        try:
            # A wish that came too late for the last one.
            self._log.store.delete(self._marker)
            yield
        finally:
            self._log.store.delete(self._marker)
            held.__exit__(None, None, None)

    def is_running(self) -> bool:
        """Whether a process runs the pipeline now."""
        if not self._log.store.exists(self._lock):
            return False
        try:
            with self._log.store.lock(self._lock, 0):
                return False
        except DeadlineExceeded:
            return True

    def is_asked_to_stop(self) -> bool:
        """Whether somebody wants it to end."""
        return self._log.store.exists(self._marker)

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Ask it to end, and wait until it has; False when it did not run.

        DeadlineExceeded when it takes longer; the wish stays.
        """
        if not self.is_running():
            return False
        self._log.store.write(self._marker, b"")
        clock = self._log.system.clock
        end = clock.monotonic() + timeout
        while self.is_running():
            if clock.monotonic() > end:
                raise DeadlineExceeded(
                    f"pipeline {self._name!r} still runs after {timeout:g} s", seconds=timeout
                )
            clock.sleep(LOOK_SECONDS)
        return True
