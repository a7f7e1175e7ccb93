"""Writes that end short: the rest is written, a disk that takes nothing is an error, a lie is found out."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from penstock.errors import DamageError
from penstock.system import OsFiles
from tests.crash.disks import need
from tests.crash.ledger import Ledger
from tests.crash.rigs import Child, run_under_strace
from tests.crash.said import Kind
from tests.crash.test_failing_disk import CONFIG, check_poisoned, simple_spec
from tests.scoreboard import Scores

BUFFERS = [b"first", b"second", b"third"]


@pytest.fixture
def descriptor(tmp_path):
    opened = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_the_rest_of_a_short_write_is_written(descriptor, monkeypatch, taken, scored):
    """Given a disk that takes a few bytes at a time, then all are written, and nothing twice."""
    plain = os.pwrite

    def short(descriptor, buffers, position):
        return plain(descriptor, b"".join(buffers)[:taken], position)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: plain(file, data[:3], at))
    OsFiles().write(descriptor, BUFFERS, 10)
    assert os.pread(descriptor, 100, 10) == b"".join(BUFFERS)
    scored(10, tried=1, bad=0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("taken", [0, 7])
def test_a_disk_that_takes_no_bytes_is_an_error(descriptor, monkeypatch, taken, scored):
    """It would be asked for ever otherwise."""
    monkeypatch.setattr(os, "pwritev", lambda *_: taken)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="took none") as caught:
        OsFiles().write(descriptor, BUFFERS, 0)
    assert caught.value.errno == errno.EIO
    scored(10, tried=1, bad=0)


# By the kernel: strace answers for it, and nothing is written


def inject(folder: Path, number: int, *answers: str) -> tuple[Ledger, Child, bool]:
    """Let writes be answered so; the ledger, the writer, and whether one was."""
    folder.mkdir()
    ledger = Ledger(folder / "log", "orders", CONFIG)
    faults = [f"inject={answer}:when={number}" for answer in answers[:1]]
    faults += [f"inject={answer}" for answer in answers[1:]]
    options = [word for fault in faults for word in ("-e", fault)]
    trace = folder / "trace"
    child, _ = run_under_strace(
        simple_spec(ledger), ["-e", "trace=pwritev2,pwrite64", *options], trace
    )
    ledger.take(child)
    return ledger, child, "INJECTED" in trace.read_text()


def check_refused(folder: Path, number: int) -> bool:
    """Nothing is taken, again and again: an error of Penstock's, and nothing is lost."""
    ledger, child, met = inject(folder, number, "pwritev2:retval=0", "pwrite64:retval=0")
    # It may be refused before its first record, too.
    assert check_poisoned(child) or child.said(Kind.FAILED) or not met
    ledger.check_now(again=True)
    return met


def check_completed(folder: Path, number: int) -> bool:
    """Nothing was taken: it is written by the next call, and nobody notices."""
    ledger, child, met = inject(folder, number, "pwritev2:retval=0")
    assert not child.said(Kind.FAILED)
    ledger.check_now(again=True)
    return met


def check_found_out(folder: Path, number: int) -> bool:
    """Seven bytes are said to be there and are not: the log is whole, or says what is damaged."""
    ledger, _, met = inject(folder, number, "pwritev2:retval=7")
    if (told := damage_of(ledger)) is not None:
        assert met, "damage without a cause"
        assert told.fields.get("file"), f"names no file: {told}"
    return met


def damage_of(ledger: Ledger) -> DamageError | None:
    """What the log says of damage when it is opened and read."""
    try:
        ledger.check_now(again=True)
    except DamageError as told:
        return told
    return None


CHECKS = (check_refused, check_completed, check_found_out)
SOME = (2, 7)


def short_writes(scored: Scores, folder: Path, check, numbers) -> None:
    need("strace", "strace")
    tried = 0
    for number in numbers:
        if not check(folder / str(number), number):
            break
        tried += 1
    scored(10, tried=tried, bad=0)


@pytest.mark.parametrize("check", CHECKS, ids=["refused", "completed", "found out"])
def test_some_short_writes_of_the_kernel_are_survived(tmp_path, scored, check):
    short_writes(scored, tmp_path, check, SOME)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("check", CHECKS, ids=["refused", "completed", "found out"])
def test_every_short_write_of_the_kernel_is_survived(tmp_path, scored, check):
    short_writes(scored, tmp_path, check, itertools.count(1))
