"""From the words of a command line to an exit code. What the user got wrong is a line, and no traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from penstock import errors
from penstock.cli import codes
from penstock.cli.harmless import harmless_lines

DEBUG = "PENSTOCK_DEBUG"
COMPLETE = "_PENSTOCK_COMPLETE"
"""What the shell sets when it asks for completions."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. ``PENSTOCK_DEBUG=1`` shows tracebacks."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if words == ["--version"]:
            # Without any extra.
            tell_version()
            return codes.DONE
        return _run(words)
    except BrokenPipeError:
        return _let_go()
    except KeyboardInterrupt:
        return _fail("interrupted", codes.INTERRUPTED)
    except errors.PenstockError as failed:
        _trace()
        return _fail(failed, codes.code_of(failed))
    except OSError as failed:
        _trace()
        return _fail(_told(failed), codes.FAILED)


def _run(words: list[str]) -> int:
    app, command = _app()
    if os.environ.get(COMPLETE):
        app(prog_name="penstock")
        return codes.DONE
    try:
        with command.make_context("penstock", words) as context:
            command.invoke(context)
        sys.stdout.flush()
    except (errors.PenstockError, OSError):
        raise
    except Exception as ended:
        return _code_of_ending(ended)
    return codes.DONE


def _app() -> tuple[Any, Any]:
    try:
        import typer

        from penstock.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        raise errors.MissingExtra(
            "the command line needs packages that are not installed: pip install 'penstock[cli]'",
            extra="cli",
        ) from None
    return app, typer.main.get_command(app)


def _code_of_ending(ended: Exception) -> int:
    """The parser says how it ended with exceptions of its own."""
    code = getattr(ended, "exit_code", None)
    message = getattr(ended, "format_message", None)
    if type(ended).__name__ == "NoArgsIsHelpError" and callable(message):
        sys.stderr.write(f"{message()}\n")
        return codes.WRONG_USE
    if callable(message):
        return _fail(f"{message()}{_help_of(ended)}", codes.WRONG_USE)
    if isinstance(code, int):
        sys.stdout.flush()
        return code
    if type(ended).__name__ == "Abort":
        return _fail("nothing was done", codes.FAILED)
    _trace()
    return _fail(
        f"this should not happen: {type(ended).__name__}: {ended}. {DEBUG}=1 shows where",
        codes.FAILED,
    )


def _help_of(wrong: Exception) -> str:
    context = getattr(wrong, "ctx", None)
    return "" if context is None else f"\nTry: {context.command_path} --help"


def _told(failed: OSError) -> str:
    what = failed.strerror or str(failed)
    return what if failed.filename is None else f"{failed.filename}: {what}"


def _fail(what: object, code: int) -> int:
    sys.stderr.write(f"penstock: {harmless_lines(str(what))}\n")
    return code


def _trace() -> None:
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exc()


def tell_version() -> None:
    """Write the version."""
    from importlib.metadata import version

    sys.stdout.write(f"penstock {version('penstock')}\n")


def _let_go() -> int:
    """Whoever read is gone: nothing may be written any more, not even at the end of the process."""
    sys.stdout = io.StringIO()
    return codes.BROKEN_PIPE
