"""The same kills without the compiled twin: its loops and those of Python stand the same tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock import speedups
from tests.crash.rigs import Nursery, environment
from tests.crash.test_kill import KillingCrowd, kill
from tests.crash.test_kill_at_every_call import CHANGING, kill_at_every_point


@pytest.fixture
def plain_nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    """Its processes run Python alone, whatever was built here."""
    monkeypatch.setenv(speedups.SWITCH, "0")
    question = "from penstock import speedups; assert speedups.compiled is None"
    subprocess.run([sys.executable, "-c", question], env=environment(), check=True)
    with Nursery() as opened:
        yield opened


def test_killed_writers_without_the_compiled_twin_lose_nothing(
    plain_nursery, request, scored, folder
):
    kill(plain_nursery, request, scored, folder, "every_message", 4, 20, KillingCrowd)


def test_a_kill_at_every_change_without_the_compiled_twin_loses_nothing(
    plain_nursery, folder, request, scored
):
    kill_at_every_point(plain_nursery, folder, request, scored, "append", CHANGING)
