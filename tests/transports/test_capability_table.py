"""The table of capabilities in docs/transports.md is what the code says.

``python -m tests.transports.test_capability_table`` writes it. A transport whose capabilities depend on its
options has one URL for each case in ``URLS``.
"""

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.errors import MissingExtra
from penstock.transports import Capabilities, open_transport
from penstock.transports.registry import BROKERS

PAGE = Path(__file__).parents[2] / "docs" / "transports.md"
BEGIN = "<!-- capabilities: python -m tests.transports.test_capability_table writes them -->"
END = "<!-- end of the capabilities -->"
URLS = {
    "log": ["log:./data"],
    "memory": ["memory:"],
    "nats": ["nats://localhost", "nats://localhost?synced=true"],
    "redis": ["redis://localhost", "redis://localhost?synced=true"],
    "rabbitmq": ["rabbitmq://localhost", "rabbitmq://localhost?mode=quorum"],
}
"""Scheme → URLs that between them show all that it can do; without an entry it is scheme://localhost."""
ASKED = {"pulsar": {"idempotence"}}
"""What a transport learns from the server when it is opened."""
SAME = {"pulsar+ssl", "rabbitmqs", "rediss"}
"""Other names of a transport that is there already."""


def columns() -> dict[str, list[Capabilities]]:
    """For each transport, what it can do in each of its cases."""
    schemes = ["log", "memory", *(one for one in sorted(BROKERS) if one not in SAME)]
    return {
        scheme: [
            open_transport(url).capabilities for url in URLS.get(scheme, [f"{scheme}://localhost"])
        ]
        for scheme in schemes
    }


def meanings() -> dict[str, str]:
    """What each capability means: the text below it in the code."""
    (body,) = ast.parse(inspect.getsource(Capabilities)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(one.target, ast.Name)
            found[one.target.id] = inspect.cleandoc(ast.literal_eval(after.value))
    return found


def cell(scheme: str, name: str, cases: list[Capabilities]) -> str:
    if name in ASKED.get(scheme, ()):
        return "by server"
    has = [getattr(one, name) for one in cases]
    return "yes" if all(has) else "by option" if any(has) else "–"


def table() -> str:
    transports, texts = columns(), meanings()
    lines = [
        f"| capability | {' | '.join(f'`{one}:`' for one in transports)} | meaning |",
        f"|---|{'---|' * len(transports)}---|",
    ]
    for one in fields(Capabilities):
        cells = " | ".join(cell(name, one.name, cases) for name, cases in transports.items())
        text = " ".join(texts[one.name].replace("``", "`").split())
        lines.append(f"| `{one.name}` | {cells} | {text} |")
    return "\n".join(lines)


def test_the_page_says_what_the_code_says():
    try:
        wanted = table()
    except MissingExtra as missing:
        pytest.skip(str(missing))
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert written == wanted, "python -m tests.transports.test_capability_table"


def test_every_capability_says_what_it_means():
    assert meanings().keys() == {one.name for one in fields(Capabilities)}


def main() -> None:
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:start]}\n{table()}\n{text[end:]}")


if __name__ == "__main__":
    main()
