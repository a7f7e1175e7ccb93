"""From the words of a command line to what they ask for, and to an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock import errors
from penstock.cli import pipeline
from penstock.cli.codes import FAILED, WRONG_USE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. What the user got wrong is a line, and no traceback."""
    options = parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except errors.UsageError as wrong:
        return _fail(wrong, WRONG_USE)
    except errors.PenstockError as failed:
        return _fail(failed, FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", FAILED)


def parser() -> argparse.ArgumentParser:
    """What the command understands."""
    whole = argparse.ArgumentParser(
        prog="penstock", description="An event bus and a crash-safe durable log."
    )
    topics = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    pipeline.add_to(topics)
    return whole


def _fail(what: object, code: int) -> int:
    sys.stderr.write(f"penstock: {what}\n")
    return code
