"""Decoders of classes: threads may ask for them at the same time."""

import subprocess
import sys

import pytest

THREADS = """
from __future__ import annotations

import sys
import threading

import msgspec

from penstock.decoding import decoder_of, prepare

sys.setswitchinterval(1e-6)
DATA = b'{"b": {"a": {"y": 2}}, "c": {"k": {"a": {"z": 1}}}}'


def fresh():
    global Inner

    class Inner(msgspec.Struct):
        a: dict[str, int] = {}

    class Outer(msgspec.Struct):
        a: list[str] | None = None
        b: Inner | None = None
        c: dict[str, Inner] = {}

    return Outer


def decode(kind, together):
    together.wait()
    WAY


for _ in range(400):
    kind, together = fresh(), threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=(kind, together)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize(
    "way",
    [
        "decoder_of(kind)(DATA)",
        "decoder_of(kind, msgspec.json.Decoder, strict=False)(DATA)",
        "prepare(kind); msgspec.json.decode(DATA, type=kind)",
    ],
)
def test_threads_may_be_the_first_at_the_same_time(way):
    """Without them, msgspec ends the process."""
    program = [sys.executable, "-c", THREADS.replace("WAY", way)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
