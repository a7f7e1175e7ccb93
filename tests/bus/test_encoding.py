from __future__ import annotations

import dataclasses
import datetime as dt
import math
import subprocess
import sys
import uuid
from typing import Any, Generic, TypeVar

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.encoding import ENVELOPE_BYTES_MAX, EncodedEnvelope, MessageCodec
from penstock.bus.formats import Format
from penstock.errors import InvalidMessage, InvalidOption, UsageError
from penstock.messages import Command, Envelope, Event, Priority, topic

FORMATS = list(Format)
Item = TypeVar("Item")


class Line(msgspec.Struct, frozen=True):
    name: str
    count: int


@topic("orders", key="order_id")
class Placed(Event):
    order_id: str
    total: float
    lines: tuple[Line, ...] = ()
    note: str | None = None
    at: dt.datetime | None = None
    blob: bytes = b""


class Book(Command[int]):
    seats: dict[str, int]
    token: uuid.UUID


@dataclasses.dataclass
class Moved:
    to: str
    path: list[tuple[float, float]]

    def __post_init__(self) -> None:
        if self.to == "nowhere":
            raise KeyError("no such place")


class Priced(pydantic.BaseModel):
    amount: float = pydantic.Field(alias="Amount")
    when: dt.datetime
    tags: set[str] = set()

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> float:
        return self.amount * 2

    model_config = pydantic.ConfigDict(extra="forbid")


@pydantic.dataclasses.dataclass
class Shipped:
    boxes: int = pydantic.Field(gt=0)


class Node(Event):
    inner: Node | None = None


class Anything(Event):
    value: Any = None


class Wrapped(Event, Generic[Item]):
    item: Item


names = st.text(max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
moments = st.datetimes(timezones=st.just(dt.UTC))
messages = st.one_of(
    st.builds(
        Placed,
        order_id=names,
        total=floats,
        lines=st.lists(st.builds(Line, name=names, count=st.integers(-(2**63), 2**63))).map(tuple),
        note=st.none() | names,
        at=st.none() | moments,
        blob=st.binary(max_size=100),
    ),
    st.builds(Book, seats=st.dictionaries(names, st.integers(0, 2**62)), token=st.uuids(version=4)),
    st.builds(
        Moved,
        to=names.filter(lambda name: name != "nowhere"),
        path=st.lists(st.tuples(floats, floats)),
    ),
    st.builds(Priced, Amount=floats, when=moments, tags=st.sets(names)),
    st.builds(Shipped, boxes=st.integers(1, 2**62)),
    st.builds(Node, inner=st.none() | st.builds(Node)),
)
KINDS = [Placed, Book, Moved, Priced, Shipped, Node, Anything]


def codec(form: Format | str = Format.JSON, **options: Any) -> MessageCodec:
    made = MessageCodec(form, **options)
    for kind in KINDS:
        made.register(kind)
    return made


def envelope(message: Any, **fields: Any) -> Envelope:
    return Envelope(message, 7, 1_767_225_600_000, "00ff", **fields)


# ------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("form", FORMATS)
@given(message=messages)
def test_a_message_comes_back_as_it_was(form, message):
    one = codec(form)
    again = one.decode(one.name_of(message), one.encode(message))
    assert again == message
    assert type(again) is type(message)


@pytest.mark.parametrize("form", FORMATS)
@given(
    message=messages,
    sequence=st.integers(0, 2**62),
    time_ms=st.integers(0, 2**50),
    origin=names,
    session=names,
    priority=st.sampled_from(Priority),
    headers=st.dictionaries(names, names, max_size=5),
    correlation=st.none() | names,
    causation=st.none() | names,
)
def test_an_envelope_comes_back_as_it_was(
    form, message, sequence, time_ms, origin, session, priority, headers, correlation, causation
):
    sent = Envelope(
        message, sequence, time_ms, origin, session, priority, headers, correlation, causation
    )
    data = codec(form).encode_envelope(sent)
    for reader in map(codec, FORMATS):  # a log may be written in one format and read by another
        assert reader.decode_envelope(data) == sent


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [lambda x: Anything([{"a": x}]), lambda x: Anything((x, None))])
def test_json_refuses_numbers_that_it_would_turn_into_null(number, make):
    with pytest.raises(InvalidMessage, match="messagepack"):
        codec().encode(make(number))
    packed = codec("messagepack")
    again = packed.decode("tests.bus.test_encoding.Anything", packed.encode(make(number)))
    assert str(number) in str(again)


def test_json_refuses_nan_in_a_model_too():
    with pytest.raises(InvalidMessage, match="nan"):
        codec().encode(Priced(Amount=math.nan, when=dt.datetime.now(dt.UTC)))


def test_none_is_no_reason_to_refuse():
    one = codec()
    assert one.encode(Anything([None, "null"])) == b'{"value":[null,"null"]}'


# ------------------------------------------------------------------------------------ bytes


def test_golden_bytes_of_a_message():
    placed = Placed("o-1", 9.5, (Line("ink", 2),), at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    assert codec().encode(placed) == (
        b'{"order_id":"o-1","total":9.5,"lines":[{"name":"ink","count":2}],"note":null,'
        b'"at":"2026-01-01T00:00:00Z","blob":""}'
    )
    assert codec("messagepack").encode(Line("ink", 2)) == b"\x82\xa4name\xa3ink\xa5count\x02"


def test_golden_bytes_of_an_envelope():
    plain = envelope(Node())
    full = envelope(
        Node(),
        session="s",
        priority=Priority.HIGH,
        headers={"h": "v"},
        correlation_id="c",
        causation_id="d",
    )
    name = b"tests.bus.test_encoding.Node"
    start = (
        b'{"type":"' + name + b'","topic":"' + name + b'","id":"00ff-7","time_ms":1767225600000,'
        b'"payload":{"inner":null}'
    )
    assert codec().encode_envelope(plain) == start + b"}"
    assert codec().encode_envelope(full) == start + (
        b',"session":"s","priority":10,"headers":{"h":"v"},"correlation_id":"c","causation_id":"d"}'
    )
    assert codec("messagepack").encode_envelope(plain) == (
        b"\x85\xa4type\xbc" + name + b"\xa5topic\xbc" + name + b"\xa2id\xa600ff-7"
        b"\xa7time_ms\xcf\x00\x00\x01\x9bv\xda\xa8\x00\xa7payload\x81\xa5inner\xc0"
    )


# ---------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=200))
def test_random_bytes_decode_or_are_invalid(form, kind, data):
    one = codec(form)
    try:
        message = one.decode(f"{kind.__module__}.{kind.__qualname__}", data)
    except InvalidMessage as error:
        told = (error.reason, error.topic)
        assert all(told)
    else:
        assert type(message) is kind


@pytest.mark.parametrize("form", FORMATS)
@given(message=messages, data=st.data())
def test_a_damaged_envelope_decodes_or_is_invalid(form, message, data):
    one = codec(form)
    good = one.encode_envelope(envelope(message, headers={"a": "b"}))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=8)) + good[at + data.draw(st.integers(0, 8)) :]
    try:
        assert isinstance(one.decode_envelope(bad), Envelope)
    except InvalidMessage as error:
        told = error.reason
        assert told


@given(data=st.binary(max_size=300))
def test_random_bytes_are_no_envelope(data):
    with pytest.raises(InvalidMessage):
        codec().decode_envelope(data)


@pytest.mark.parametrize("kind", ["Anything", "Node", "Priced", "Moved"])
@pytest.mark.parametrize(
    "data",
    [b"[" * 500_000, b'{"inner":' * 500_000, b'{"value":' + b"[" * 500_000 + b"]" * 500_000 + b"}"],
)
def test_deep_nesting_is_invalid(kind, data):
    one = codec()
    with pytest.raises(InvalidMessage):
        one.decode(f"tests.bus.test_encoding.{kind}", data)
    with pytest.raises(InvalidMessage):
        one.decode_envelope(data)


def test_deep_nesting_in_messagepack_is_invalid():
    with pytest.raises(InvalidMessage):
        codec("messagepack").decode(
            "tests.bus.test_encoding.Anything", b"\x81\xa5value" + b"\x91" * 500_000
        )


def test_a_message_that_is_too_deep_to_write_is_invalid():
    node = Node()
    for _ in range(100_000):
        node = Node(node)
    for form in FORMATS:
        with pytest.raises(InvalidMessage):
            codec(form).encode(node)
    while node.inner is not None:  # taken apart from outside, or its end recurses too
        node = node.inner


@pytest.mark.parametrize("form", FORMATS)
def test_size_is_bounded_both_ways(form):
    small, large = codec(form, message_bytes_max=100), codec(form)
    data = large.encode(Anything("x" * 100))
    with pytest.raises(InvalidMessage, match="limit is 100"):
        small.encode(Anything("x" * 100))
    with pytest.raises(InvalidMessage, match="limit is 100"):
        small.decode("tests.bus.test_encoding.Anything", data)
    with pytest.raises(InvalidMessage, match="limit is 100"):
        small.decode_envelope(large.encode_envelope(envelope(Anything("x" * 100))))
    with pytest.raises(InvalidMessage):
        small.decode_envelope(b"{" + b" " * (ENVELOPE_BYTES_MAX + 200) + b"}")


def test_headers_are_bounded_and_text():
    one = codec()
    with pytest.raises(InvalidMessage, match="limit"):
        one.encode_envelope(envelope(Node(), headers={"h": "x" * ENVELOPE_BYTES_MAX}))
    with pytest.raises(InvalidMessage, match="not text"):
        one.encode_envelope(envelope(Node(), headers={"h": 1}))
    with pytest.raises(InvalidMessage):
        one.encode_envelope(envelope(Node(), session="\ud800"))


@pytest.mark.parametrize("given", ["x", "x-", "x-y", "x-01", "x-" + "9" * 5000, "x-²", "a-b-3"])
def test_an_id_of_any_kind_comes_back(given):
    one = codec()
    sent = envelope(Node(), given_id=given)
    assert one.decode_envelope(one.encode_envelope(sent)).id == given


@pytest.mark.parametrize("wrong", [{"id": ""}, {"priority": 7}])
def test_an_envelope_that_no_bus_makes_is_invalid(wrong):
    one = codec()
    encoded = msgspec.structs.replace(one.seal(envelope(Node())), **wrong)
    with pytest.raises(InvalidMessage, match="no bus gives"):
        one.decode_envelope(one.encode_sealed(encoded))


# --------------------------------------------------------------------------------- checking


def test_what_does_not_fit_its_class_is_invalid_and_says_why():
    with pytest.raises(
        InvalidMessage, match=r"Expected `float`, got `str` - at `\$.total`"
    ) as info:
        codec().decode("orders", b'{"order_id":"o-1","total":"x"}')
    assert info.value.topic == "orders"
    assert "Expected `float`" in str(info.value.reason)
    with pytest.raises(InvalidMessage, match="greater than 0"):
        codec().decode("tests.bus.test_encoding.Shipped", b'{"boxes":0}')
    with pytest.raises(InvalidMessage, match="no such place"):
        codec().decode("tests.bus.test_encoding.Moved", b'{"to":"nowhere","path":[]}')


def test_what_cannot_be_said_is_invalid():
    class Odd(Event):
        value: Any

    class Plain:
        pass

    for message in (Odd(object()), Plain(), Odd({"x": {1, object()}})):
        with pytest.raises(InvalidMessage, match="does not encode"):
            codec().encode(message)


def test_hooks_carry_types_of_your_own():
    class Odd(Event):
        value: complex

    def write(value: Any) -> Any:
        return [value.real, value.imag]

    def read(kind: type, value: Any) -> Any:
        return kind(*value)

    one = codec(encode_hook=write, decode_hook=read)
    # Its annotation is a name of this module, as msgspec resolves it.
    assert one.decode(one.name_of(Odd(1j)), one.encode(Odd(1j))) == Odd(1j)


def test_a_payload_that_does_not_decode_leaves_the_envelope_readable():
    one = codec()
    data = one.encode_envelope(envelope(Placed("o", 1.0))).replace(b'"total":1.0', b'"total":"?"')
    encoded = one.read_envelope(data)
    assert (encoded.id, encoded.topic) == ("00ff-7", "orders")
    with pytest.raises(InvalidMessage, match="total"):
        one.open_envelope(encoded)
    mended = msgspec.structs.replace(encoded, payload=msgspec.Raw(one.encode(Placed("o", 2.0))))
    assert one.decode_envelope(one.encode_sealed(mended)).message == Placed("o", 2.0)


# ---------------------------------------------------------------------------------- classes


def test_an_unknown_class_says_to_register_it():
    with pytest.raises(InvalidMessage, match="register") as info:
        MessageCodec().decode("shop.Order", b"{}")
    assert info.value.type == "shop.Order"


def test_encoding_a_message_makes_its_class_known():
    one = MessageCodec()
    assert one.decode("orders", one.encode(Placed("o", 1.0))) == Placed("o", 1.0)


def test_a_class_is_known_when_its_base_is():
    one = MessageCodec()
    one.register(Event)

    @topic("known.by.its.base")
    class Child(Event):
        pass

    assert one.type_of("known.by.its.base") is Child
    assert one.type_of("tests.bus.test_encoding.Node") is Node


def test_classes_that_share_a_topic_are_told_apart_by_name():
    @topic("shared")
    class First(Event):
        pass

    @topic("shared")
    class Second(Event):
        pass

    one = MessageCodec()
    for message in (First(), Second()):
        assert one.decode_envelope(one.encode_envelope(envelope(message))).message == message
    with pytest.raises(InvalidMessage, match="register"):
        one.decode("shared", b"{}")


def test_a_class_that_moved_is_found_by_its_topic_or_by_its_former_name():
    one = codec()
    stored = EncodedEnvelope(
        "old.place.Placed", "orders", "a-1", 0, msgspec.Raw(one.encode(Placed("o", 1.0)))
    )
    assert one.decode_envelope(one.encode_sealed(stored)).message == Placed("o", 1.0)
    one.register(Node, "old.Node")
    assert one.decode("old.Node", b"{}") == Node()


def test_the_newest_class_of_a_name_counts():
    def make() -> type:
        class Again(Event):
            pass

        return Again

    one = MessageCodec()
    for kind in (make(), make()):
        assert type(one.decode(one.name_of(kind()), one.encode(kind()))) is kind


def test_plain_data_is_no_message():
    plain: list[Any] = [{}, "x", None, 3]
    for message in plain:
        with pytest.raises(UsageError):
            MessageCodec().encode(message)
    with pytest.raises(UsageError):
        MessageCodec().register(dict)
    for form in FORMATS:
        with pytest.raises(InvalidMessage):
            MessageCodec(form).decode_envelope(codec(form).encode(Line("x", 1)))


def test_a_generic_event_keeps_its_item():
    one = MessageCodec()
    assert one.decode(one.name_of(Wrapped(3)), one.encode(Wrapped(3))) == Wrapped(3)


def test_a_wrong_format_is_refused():
    with pytest.raises(InvalidOption, match="'json', 'messagepack'"):
        MessageCodec("xml")
    with pytest.raises(InvalidOption):
        MessageCodec(message_bytes_max=0)


def test_pydantic_costs_nothing_for_who_does_not_use_it():
    script = (
        "import sys; from penstock.bus.encoding import MessageCodec; from penstock.messages import Event\n"
        "class E(Event): pass\n"
        "codec = MessageCodec(); codec.decode('__main__.E', codec.encode(E()))\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
