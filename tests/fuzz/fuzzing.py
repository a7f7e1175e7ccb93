"""Runs one target under atheris: ``python -m tests.fuzz.fuzzing <target> <arguments of libFuzzer>``.

It prints how much memory an input took at most; the figures at the end are libFuzzer's.
"""

from __future__ import annotations

import resource
import sys

import atheris  # type: ignore[import-untyped]

from tests.fuzz.seeds import corpus_of
from tests.fuzz.targets import TARGETS, Target

INSTRUMENTED = {
    "recovery": ["penstock.log"],
    "codecs": ["penstock.log"],
    "positions": ["penstock.cli"],
    "command": ["penstock.cli"],
    "http": ["penstock.dashboard"],
    "keys": ["penstock.transports"],
}
"""Whose branches lead the way; all of the package would take longer than a short run."""


BASE_EVERY = 1_000
"""After how many inputs the memory that there is without them is looked at again."""


def main() -> None:
    name, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED[name], enable_loader_override=False):
        target = TARGETS[name]()
        # Commands import what they need when they are called: that is none of an input's memory.
        for data in (b"", b"\0" * 100, *(corpus_of(name) if name == "command" else ())):
            target(data)
    atheris.Setup([sys.argv[0], *arguments], telling_memory(target))
    atheris.Fuzz()


def telling_memory(target: Target) -> Target:
    """The target, which tells how much the memory grew within one input, whenever that is the most so far.

    The fuzzer itself needs more and more, some 60 bytes for each input: that is nobody's leak.
    """
    before = highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    number = most = 0

    def told(data: bytes) -> None:
        nonlocal before, highest, number, most
        if number % BASE_EVERY == 0:
            before = _resident_kib()
        number += 1
        target(data)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if now > highest and now - before > most:
            most = now - before
            print(f"grown_mib={most / 1024:.1f}", flush=True)
        highest = max(highest, now)

    return told


def _resident_kib() -> int:
    with open("/proc/self/status") as status:
        line = next(one for one in status if one.startswith("VmRSS"))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
