"""Names: none leads out of its folder, none means two things, each bad one is refused at the door."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Event, MessageBus, ScalableMessageBus, WalMessageQueue, topic
from penstock.errors import InvalidName, UsageError
from penstock.log.producer_file import ProducerFile
from penstock.messages import DEFAULT_SESSION
from penstock.names import check_label, check_name
from penstock.stores import DirectoryStore, MemoryStore, SqliteStore
from penstock.streaming import StreamingScalingManager
from penstock.transports import EmbeddedTransport, Transport
from tests.security.corpus import BAD_NAMES


@topic("good")
class Good(Event):
    pass


Door = Callable[[Any], Any]


def doors_of_a_log(queue: WalMessageQueue) -> dict[str, Door]:
    return {
        "create_topic": queue.create_topic,
        "change_topic": queue.change_topic,
        "publish": lambda name: queue.publish(name, b"x"),
        "publish_many": lambda name: queue.publish_many(name, [b"x"]),
        "publish_nowait": lambda name: queue.publish_nowait(name, b"x"),
        "subscribe to": lambda name: queue.subscribe(name, "reader").open(),
        "subscribe as": lambda name: queue.subscribe("good", name).open(),
        "unsubscribe from": lambda name: queue.unsubscribe(name, "reader"),
        "unsubscribe as": lambda name: queue.unsubscribe("good", name),
        "repartition": lambda name: queue.repartition(name, 2),
        "producer": lambda name: queue.producer(name).open(),
        "forget_producer": queue.forget_producer,
        "journal": lambda name: queue.journal(name).open(),
        "event_log": lambda name: queue.event_log(name).open(),
        "durable_offset": queue.durable_offset,
        "retention": queue.retention,
        "recovery": queue.recovery,
        "transaction": lambda name: queue.transaction(name).__aenter__(),
        "read_arrow": queue.read_arrow,
    }


def doors_of_a_transport(name: str, transport: Transport) -> dict[str, Door]:
    return {
        f"{name} create_topic": transport.create_topic,
        f"{name} delete_topic": transport.delete_topic,
        f"{name} partitions": transport.partitions,
        f"{name} subscribe to": lambda name: transport.subscribe(name, "group").open(),
        f"{name} subscribe as": lambda name: transport.subscribe("good", name).open(),
        f"{name} forget": lambda name: transport.forget("good", name),
        f"{name} lag": lambda name: transport.lag("good", name),
    }


def doors_of_a_bus(bus: ScalableMessageBus) -> dict[str, Door]:
    return {
        "bus": lambda name: MessageBus(name=name),
        "bus on a log": lambda name: ScalableMessageBus(penstock.ResilientMessageBus(name=name)),
        "topic of a class": lambda name: topic(name)(type("Made", (Event,), {})),
        "group of a bus": lambda name: bus.subscribe(Good, lambda _: None, group=name),
    }


CALLS: dict[str, tuple[Any, ...]] = {
    "write": (b"x",),
    "write_at": (0, [b"x"]),
    "read": (),
    "delete": (),
    "size": (),
    "truncate": (0,),
}


def doors_of_stores(folder: Path) -> dict[str, Door]:
    stores = [MemoryStore(), DirectoryStore(folder / "files"), SqliteStore(folder / "store.db")]
    doors: dict[str, Door] = {}
    for store in stores:
        for call, arguments in CALLS.items():
            door = functools.partial(call_store, store, call, arguments)
            doors[f"{type(store).__name__}.{call}"] = door
    return doors


def call_store(store: Any, call: str, arguments: tuple[Any, ...], key: object) -> Any:
    return getattr(store, call)(key, *arguments)


async def outcome(door: Door, name: object) -> str:
    """What the door said: the class of the error, or that it let the name in."""
    try:
        answer = door(name)
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:
        return type(error).__name__
    return "accepted"


async def test_no_bad_name_gets_through_any_door(findings, tmp_path):
    """Each bad name at each door: InvalidName, at once, and nothing is made on the disk."""
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(WalMessageQueue(tmp_path / "log"))
        await queue.publish("good", b"x")
        bus = await stack.enter_async_context(penstock.open(f"log:{tmp_path / 'bus'}"))
        transport = EmbeddedTransport.from_url(f"log:{tmp_path / 'transport'}")
        await stack.enter_async_context(transport)
        await transport.create_topic("good")
        manager = await stack.enter_async_context(StreamingScalingManager())
        doors = doors_of_a_log(queue) | doors_of_a_bus(bus) | doors_of_stores(tmp_path)
        doors |= doors_of_a_transport("log:", transport)
        doors["stream of"] = lambda name: manager.subscribe(name, "group")
        doors["stream as"] = lambda name: manager.subscribe("good", name)
        await bus.publish(Good())
        before = files_below(tmp_path)
        for what, door in doors.items():
            for name in BAD_NAMES:
                if what == "group of a bus" and name is None:  # that means no group
                    continue
                told = await outcome(door, name)
                findings.check(is_fine(what, name, told), f"{what}({str(name)[:30]!r}): {told}")
        made = files_below(tmp_path) - before - {"files/a", "files/a/b", f"files/{'x' * 201}"}
        findings.check(not made, f"files were made: {made}")


def is_fine(what: str, name: object, told: str) -> bool:
    if "Store" in what and name in ("a/b", "x" * 201):  # a key has parts, and is longer than a name
        return told in ("accepted", "KeyNotFound")
    return told == "InvalidName" if isinstance(name, str) else told != "accepted"


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_session_may_have_any_name_that_can_be_seen(findings):
    """It is no part of a path; what does harm on a terminal or in a line of a log is refused."""
    async with MessageBus() as bus:
        for name in BAD_NAMES:
            visible = isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()
            told = await outcome(bus.session, name)
            wanted = "accepted" if visible else "InvalidName"
            findings.check(told == wanted, f"session({str(name)[:30]!r}): {told}")
    with pytest.raises(UsageError):
        bus.session(DEFAULT_SESSION)


async def test_names_that_differ_by_case_are_not_two_names(findings, tmp_path):
    """On a file system without case they would be one folder."""
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic("Orders")
        async with queue.subscribe("Orders", "Billing"):
            for name in ("orders", "ORDERS", "oRDERS"):
                told = await outcome(queue.create_topic, name)
                findings.check(told == "InvalidName", f"topic {name}: {told}")
                told = await outcome(lambda name: queue.publish(name, b"x"), name)
                findings.check(told == "InvalidName", f"publish to {name}: {told}")
            for name in ("billing", "BILLING"):
                told = await outcome(lambda name: queue.subscribe("Orders", name).open(), name)
                findings.check(told == "InvalidName", f"subscriber {name}: {told}")


async def test_producers_that_differ_by_case_are_not_two_producers(findings, tmp_path):
    """One that is there may be opened again and again, by its own name, and after it was forgotten by another."""

    async def transact(name: str) -> None:
        async with queue.transaction(name) as transaction:
            await transaction.publish("orders", b"x")

    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic("orders")
        open_one: Door = lambda name: queue.producer(name).open()  # noqa: E731
        for name in ("Maker", "Maker", "other"):
            findings.check(await outcome(open_one, name) == "accepted", f"{name} is refused")
        for name in ("maker", "MAKER", "Other"):
            for door in (open_one, transact):
                told = await outcome(door, name)
                findings.check(told == "InvalidName", f"producer {name}: {told}")
        findings.check(await outcome(transact, "Maker") == "accepted", "the first one is stopped")
        await queue.forget_producer("Maker")
        told = await outcome(open_one, "maker")
        findings.check(told == "accepted", f"the name of one that is forgotten: {told}")


async def test_a_log_with_two_producers_from_before_opens(findings, tmp_path, monkeypatch):
    """Earlier versions let both be made."""
    with monkeypatch.context() as before:
        before.setattr(ProducerFile, "_check_case", lambda _: None)
        async with WalMessageQueue(tmp_path) as queue:
            for name in ("maker", "Maker"):
                await queue.producer(name).open()
    async with WalMessageQueue(tmp_path) as queue:
        for name in ("maker", "Maker"):
            told = await outcome(lambda name: queue.producer(name).open(), name)
            findings.check(told == "accepted", f"{name} from before: {told}")
        told = await outcome(lambda name: queue.producer(name).open(), "MAKER")
        findings.check(told == "InvalidName", f"a third one: {told}")


@given(st.text(max_size=250))
def test_what_is_a_name_is_safe_everywhere(text):
    """In a path, in a shell, in a regular expression but for the dot, in HTML and in Prometheus."""
    try:
        check_name("topic", text)
    except InvalidName:
        return
    assert text.isascii()
    assert not set(text) & set("/\\\0<>&\"'`$;|*?[](){}+^ \t\r\n~#%!=,:@")
    assert not text.startswith((".", "-"))


@given(st.text(max_size=250))
def test_what_is_a_label_can_be_seen(text):
    with contextlib.suppress(InvalidName):
        assert check_label("session", text).isprintable()


def test_the_error_of_a_bad_name_is_short_and_has_no_control_characters():
    for name in BAD_NAMES:
        with pytest.raises(InvalidName) as caught:
            check_name("topic", name)
        assert len(str(caught.value)) < 1_200
        assert str(caught.value).isprintable()
