"""Text of others: control characters on terminals and in logs, labels of Prometheus."""

import asyncio
import io
import json
import logging
from contextlib import redirect_stderr, redirect_stdout

import pytest

import penstock
from penstock import Event, WalMessageQueue, topic
from penstock.cli import main
from penstock.errors import PenstockError
from penstock.observe import JsonFormatter, Observer
from penstock.transports import shared_registry
from tests.security.corpus import CONTROLS, LABEL, MARKUP
from tests.security.hostile_broker import SCHEME, HostileTransport

COMMANDS = [
    ("topic", "list"),
    ("topic", "describe", "orders"),
    ("group", "list"),
    ("group", "describe", "billing"),
    ("consume", "orders"),
    ("consume", "orders", "--format", r"%k %v %h\n"),
    ("consume", "orders", "--format", "json"),
    ("dlq", "list"),
    ("dlq", "list", "-o", "json"),
    ("log", "stats"),
    ("log", "verify"),
    ("topic", "describe", CONTROLS),
    ("group", "describe", CONTROLS),
    ("dlq", "show", CONTROLS),
    ("topic", "create", CONTROLS),
    ("consume", CONTROLS),
    ("consume", "orders", "--format", f"%{CONTROLS}"),
    ("group", "seek", "billing", "--to", CONTROLS),
    (CONTROLS,),
]


@topic("orders", key="name")
class Order(Event):
    name: str
    text: str


class Terminal(io.TextIOWrapper):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def run(*words: str) -> str:
    """What a command writes to a terminal."""
    told = [io.BytesIO(), io.BytesIO()]
    output, errors = (
        Terminal(one, encoding="utf-8", errors="replace", write_through=True) for one in told
    )
    with redirect_stdout(output), redirect_stderr(errors):
        main(words)
    return b"".join(one.getvalue() for one in told).decode("utf-8", "replace")


def controls_in(text: str) -> list[str]:
    """Characters that are not for seeing, but for the ends of lines."""
    return sorted({one for one in text if not one.isprintable() and one != "\n"})


async def fill(folder) -> None:
    """Records, dead letters and errors that are full of control characters."""

    def fail(order: Order) -> None:
        raise ValueError(CONTROLS + order.text)

    async with penstock.open(f"log:{folder}", name="shop") as bus:
        bus.subscribe(Order, fail, group="billing", retries=0)
        await bus.publish(Order(name=CONTROLS, text=CONTROLS + MARKUP))
        await bus.settle()
    async with WalMessageQueue(folder) as queue:
        await queue.publish(
            "orders", CONTROLS.encode(), key=CONTROLS.encode(), headers={"x": CONTROLS.encode()}
        )


def test_no_command_makes_the_terminal_do_things(findings, tmp_path, monkeypatch):
    """Records, keys, headers, errors, dead letters, and what the user typed, which may be pasted."""
    asyncio.run(fill(tmp_path))
    monkeypatch.setenv("PENSTOCK_URL", f"log:{tmp_path}")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    letters = json.loads(run("dlq", "list", "-o", "json"))
    identifiers = [str(one["id"]) for one in letters]
    findings.check(identifiers, "there is no dead letter to show")
    shown: list[tuple[str, ...]] = [("dlq", "show", one) for one in identifiers]
    shown += [("dlq", "show", one, "-o", "json") for one in identifiers]
    for words in [*COMMANDS, *shown]:
        told = run(*words)
        odd = controls_in(told)
        findings.check(not odd, f"{words[:3]!r} writes {odd}: {told[:80]!r}")


OF_A_BROKER = [
    ("topic", "list"),
    ("topic", "list", "--all", "-o", "json"),
    ("topic", "describe", "orders"),
    ("topic", "describe", CONTROLS),
    ("group", "list"),
    ("group", "list", "-o", "json"),
    ("group", "describe", "billing"),
    ("group", "describe", CONTROLS),
    ("dlq", "list"),
    ("consume", "orders"),
    ("produce", "orders", "--value", "x"),
    ("doctor",),
]


@pytest.fixture
def hostile_url():
    registry = shared_registry()
    registry.register(SCHEME, HostileTransport)
    yield f"{SCHEME}:"
    registry._makers.pop(SCHEME, None)


def test_names_that_a_broker_tells_do_nothing_to_the_terminal(findings, monkeypatch, hostile_url):
    """Of topics and groups, and what it says of itself. For programs they are as they are, but escaped."""
    monkeypatch.setattr(HostileTransport, "said", CONTROLS)
    monkeypatch.setenv("PENSTOCK_URL", hostile_url)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    for words in OF_A_BROKER:
        told = run(*words)
        odd = controls_in(told)
        findings.check(not odd, f"{words!r} writes {odd}: {told[:80]!r}")
    told = run("topic", "list")
    findings.check("orders" in told and "[ERROR] forged" in told, f"no names: {told[:300]}")
    rows = json.loads(run("topic", "list", "-o", "json"))
    findings.check(CONTROLS in [one["topic"] for one in rows], "a program reads another name")


def test_what_goes_into_a_file_is_as_it_is(tmp_path, capfdbinary):
    """Pipes get the bytes of the records, each one of them."""
    asyncio.run(fill(tmp_path))
    assert main(["consume", "orders", "--url", f"log:{tmp_path}"]) == 0
    assert CONTROLS.encode() in capfdbinary.readouterr().out


def test_a_line_of_the_log_stays_one_line(findings):
    """With the formatter for JSON: nobody forges lines, and a reader gets what was said."""
    formatter = JsonFormatter()
    for hostile in (CONTROLS, LABEL, MARKUP, "a\nb", "\u2028", "\x85", "\ud800", '","level":"x'):
        record = logging.makeLogRecord(
            {"msg": "said %s", "args": (hostile,), "topic": hostile, "name": hostile}
        )
        try:
            raise PenstockError(hostile, name=hostile)
        except PenstockError as error:
            record.exc_info = (type(error), error, error.__traceback__)
        line = formatter.format(record)
        findings.check(
            not controls_in(line), f"{hostile[:20]!r} is in the line: {controls_in(line)}"
        )
        findings.check(len(line.splitlines()) == 1, f"{hostile[:20]!r} makes two lines")
        read = json.loads(line)
        findings.check(
            read["topic"] == hostile, f"{hostile[:20]!r} reads back as {read['topic']!r}"
        )
        findings.check(read["message"] == f"said {hostile}", "the message is another one")


async def test_labels_of_prometheus_are_escaped(findings, tmp_path):
    """Names that come from code: handlers, parts, circuits. Topics and groups cannot be odd."""
    client = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client")
    from penstock.observe import prometheus_text

    def handler(_: Order) -> None:
        return None

    for odd in (LABEL, CONTROLS, MARKUP):
        handler.__qualname__ = handler.__name__ = odd
        async with penstock.open(f"log:{tmp_path / str(len(odd))}", name="shop") as bus:
            bus.subscribe(Order, handler, group="billing")
            await bus.publish(Order(name="a", text="b"))
            await bus.settle()
            async with Observer() as observer:
                observer.watch(bus, name=odd)
                await observer.look()
                text = prometheus_text(observer).decode()
        families = list(client.text_string_to_metric_families(text))
        names = {one.name for one in families}
        findings.check(all(one.startswith("penstock_") for one in names), f"forged: {names}")
        labels = {
            text for one in families for sample in one.samples for text in sample.labels.values()
        }
        findings.check(odd in labels, "the odd name is no label, so nothing was tried")
        forged = [one for one in text.split("\n") if one and one[0] != "#"]
        forged = [one for one in forged if not one.startswith("penstock_")]
        findings.check(not forged, f"lines were forged: {forged}")
