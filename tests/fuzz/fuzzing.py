"""Runs one target under atheris: ``python -m tests.fuzz.fuzzing <target> <arguments of libFuzzer>``.

It prints the memory that it had at the first input, with all that the fuzzer needs for itself; the figures at
the end are libFuzzer's.
"""

from __future__ import annotations

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
}
"""Whose branches lead the way; all of the package would take longer than a short run."""


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
    """The target, which tells once how much memory there is before it."""
    waiting = iter([True])

    def told(data: bytes) -> None:
        if next(waiting, False):
            with open("/proc/self/status") as status:
                line = next(one for one in status if one.startswith("VmHWM"))
            print(f"started_with_mib={int(line.split()[1]) / 1024:.1f}", flush=True)
        target(data)

    return told


if __name__ == "__main__":
    main()
