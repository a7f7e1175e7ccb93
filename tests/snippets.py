"""Examples of the documents: where they stand, whether a page's own test runs them, and how.

A Python block that cannot run beside the others of its page says why in a comment above it, and which file of the
tests runs it instead: ``<!-- not executed: needs a Kafka broker; tests/transports/test_kafka.py runs it -->``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
SKIP = re.compile(r"<!--\s*not executed:(?P<reason>(?:(?!-->).)*)-->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One example: its code, the line it starts on, and why it is not run with its page (None: it is)."""

    code: str
    line: int
    skipped_because: str | None


def blocks_of(text: str, language: str = "python") -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        if match["language"] != language:
            continue
        skip = SKIP.search(text[: match.start()])
        line = text.count("\n", 0, match.start("code")) + 1
        code = inspect.cleandoc("\n" + match["code"]) if match["indent"] else match["code"]
        found.append(Block(code, line, skip["reason"].strip() if skip else None))
    return found


def run_blocks(blocks: Sequence[Block], filename: str, namespace: dict[str, object]) -> None:
    """Run the blocks in order; those that await share one event loop."""
    with asyncio.Runner() as runner:
        for block in blocks:
            # Empty lines in front make a traceback show the line of the page.
            source = "\n" * (block.line - 1) + block.code
            code = compile(source, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, namespace)
            if inspect.iscoroutine(result):
                runner.run(result)


def examples_for(page: str, test: str, instead: Mapping[str, str]) -> list[Block]:
    """The blocks of a page that this file of the tests runs, with other addresses and numbers in them."""
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    chosen = [one for one in blocks if f"{test} runs it" in (one.skipped_because or "")]
    assert chosen, f"{page} has nothing for {test}"
    for text, other in instead.items():
        assert any(text in one.code for one in chosen), f"{page} does not say {text!r} any more"
        chosen = [
            Block(one.code.replace(text, other), one.line, one.skipped_because) for one in chosen
        ]
    return chosen


def run_examples(
    page: str, test: str, instead: Mapping[str, str], namespace: dict[str, object]
) -> None:
    """Run them, as the page would."""
    run_blocks(examples_for(page, test, instead), page, namespace)
