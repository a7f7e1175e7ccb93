"""Messages: events, commands and their results, the marks on them, and the envelope around them.

A message is a class. Its topic is the class's dotted name, or what ``@topic`` says; ``@critical``
and ``@hot_path`` mark it. Dataclasses and pydantic models serve as events too; ``Event`` and
``Command`` are the quick way.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from gc import is_tracked
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, dataclass_transform

import msgspec

from penstock.errors import InvalidOption, UsageError
from penstock.names import check_name

Result = TypeVar("Result")
AnyType = TypeVar("AnyType", bound=type)

DEFAULT_SESSION = "BUS"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
TYPES_CACHED = 16_384
PLAIN_TYPES = (type, str, bytes, bytearray, int, float, list, dict, tuple, set)


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class MessageType(msgspec.StructMeta):
    """Tells type checkers that classes of messages are frozen without saying so."""


class Event(msgspec.Struct, frozen=True, metaclass=MessageType):
    """Something that happened. Any number of handlers may want to know."""


class Command(msgspec.Struct, Generic[Result], frozen=True, metaclass=MessageType):
    """Something to be done, by exactly one handler, which returns a ``Result``."""


class Priority(enum.IntEnum):
    """Lowest first: of handlers, who is called first; of events, who leaves the queue first."""

    FIRST = 0
    HIGH = 10
    NORMAL = 50
    LOW = 90
    LAST = 100


NORMAL = Priority.NORMAL
"""The usual priority; looking up a member of an enum costs more than this name."""


class Code(enum.StrEnum):
    """How a command ended."""

    OK = "OK"
    NO_HANDLER = "NO_HANDLER"
    TIMEOUT = "TIMEOUT"
    HANDLER_ERROR = "HANDLER_ERROR"
    RATE_LIMITED = "RATE_LIMITED"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    DENIED = "DENIED"
    EXPIRED = "EXPIRED"


class CommandResult(msgspec.Struct, Generic[Result], frozen=True, kw_only=True):
    """How a command ended: its result, or what went wrong."""

    code: Code
    result: Result | None = None
    error: BaseException | None = None
    metadata: Mapping[str, Any] = {}
    """What handlers and middleware had to add, such as the handler's name and the attempts."""

    @property
    def success(self) -> bool:
        """Whether the handler returned."""
        return self.code is Code.OK

    def unwrap(self) -> Result:
        """The result; raises the error when there is none."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # success: the handler's own value


# ---------------------------------------------------------------------------------- the marks


class Marks(NamedTuple):
    """What decorators said about a class, and what follows from its name."""

    topic: str
    key: str | None = None
    critical: bool = False
    hot_path: bool = False


def topic(name: str, *, key: str | None = None) -> Callable[[AnyType], AnyType]:
    """Give messages of this class a topic, and name the field that keeps them in order."""
    check_name("topic", name)

    def mark(kind: AnyType) -> AnyType:
        if key is not None and not _has_field(kind, key):
            raise InvalidOption(
                f"{kind.__qualname__} has no field {key!r} to be its key", option="key"
            )
        _set_mark(kind, topic=name, key=key)
        return kind

    return mark


def critical(kind: AnyType) -> AnyType:
    """Mark a class whose messages are never shed under pressure."""
    _set_mark(kind, critical=True)
    return kind


def hot_path(kind: AnyType) -> AnyType:
    """Mark a class whose messages go through the ring."""
    _set_mark(kind, hot_path=True)
    return kind


@lru_cache(TYPES_CACHED)
def marks_of(kind: type) -> Marks:
    """The marks of a class. Topic and key are its own; the others are inherited."""
    inherited: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        inherited |= base.__dict__.get("__penstock_marks__", {})
    own = kind.__dict__.get("__penstock_marks__", {})
    return Marks(
        topic=own.get("topic") or dotted_name(kind),
        key=inherited.get("key"),
        critical=inherited.get("critical", False),
        hot_path=inherited.get("hot_path", False),
    )


@lru_cache(TYPES_CACHED)
def key_reader(kind: type) -> Callable[[Any], object] | None:
    """What reads the key of a message of this class; None when it has no key."""
    key = marks_of(kind).key
    return None if key is None else operator.attrgetter(key)


def dotted_name(kind: type) -> str:
    """Module and name of a class, as a topic may be called."""
    return f"{kind.__module__}.{kind.__qualname__}".replace("<locals>.", "")


def _set_mark(kind: type, **marks: object) -> None:
    own = kind.__dict__.get("__penstock_marks__", {})
    type.__setattr__(kind, "__penstock_marks__", own | marks)
    marks_of.cache_clear()
    key_reader.cache_clear()


def _has_field(kind: type, name: str) -> bool:
    known = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())}
    return name in known or hasattr(kind, name)


# -------------------------------------------------------------------------------- the envelope


# Tracked by the garbage collector, unlike records: the error of a handler refers to the frames that it went
# through, they to the envelope, and the envelope to the error by its notes.
class Envelope(msgspec.Struct):
    """A message on its way: what is known about it beside what it says.

    Identifiers are made when somebody looks at them.
    """

    message: Any
    sequence: int
    """Counts the messages of a bus."""
    time_ms: int
    """When it was published, in milliseconds since 1970, UTC."""
    origin: str
    """The bus, unique for each start of it."""
    session: str = DEFAULT_SESSION
    priority: int = Priority.NORMAL
    headers: Mapping[str, str] = NO_HEADERS
    correlation_id: str | None = None
    """Shared by all messages that follow from one; None when it is the first."""
    causation_id: str | None = None
    """The id of the message whose handler published this one."""
    delivery: Any = None
    """The bus's own notes: who waits, what failed, what is still to be done."""
    partition: int | None = None
    """The partition of the topic that it is in, where the topic has partitions."""
    offset: int | None = None
    """Its place in the log, when it comes from there."""
    log_partition: int | None = None
    """The partition of the log that this is a place in."""
    group: str | None = None
    """The group that it is for, when it comes from the log; None: for everybody."""
    lane: Any = None
    """The bus's own note: the lane that it waits in, when its class has several."""
    settled: bool = False
    """Whether all handlers are done with it."""
    given_id: str | None = None
    """The id of a message that had one before, as a scheduled event after a restart."""

    @property
    def id(self) -> str:
        """Unique among all messages of all buses."""
        return self.given_id or f"{self.origin}-{self.sequence}"

    @property
    def correlation(self) -> str:
        """The correlation id; its own id for the first message of a chain."""
        return self.correlation_id or self.id

    @property
    def topic(self) -> str:
        """The topic of the message's class."""
        return marks_of(self.message.__class__).topic

    @property
    def key(self) -> object | None:
        """The value of the key field, None when the class has no key."""
        read = key_reader(self.message.__class__)
        return None if read is None else read(self.message)

    def with_message(self, message: Any) -> Envelope:
        """The same envelope around another message, as middleware may pass it on."""
        return Envelope(**{**msgspec.structs.asdict(self), "message": message})


class UntrackedEnvelope(Envelope, gc=False):
    """Of a message that the garbage collector does not look at, as all of it is text and numbers.

    The collector does not look at it either: where thousands are queued, it would do so again and again. So
    nothing that an envelope refers to may refer back to it for longer than the message is on its way, and
    the bus drops the notes on it when it is settled.
    """


def kind_for(message: Any) -> type[Envelope]:
    """The kind of envelope for an event that nobody waits for."""
    plain = not is_tracked(message) and stays(type(message))
    return UntrackedEnvelope if plain else Envelope


def stays(kind: type) -> bool:
    """Whether the objects of a class that hold text and numbers alone can hold nothing else later."""
    config = getattr(kind, "__struct_config__", None)
    return config is None or bool(config.frozen)


def check_type(kind: type) -> None:
    """Refuse what cannot be a message: None, plain data, and classes instead of objects."""
    if kind is type(None) or issubclass(kind, PLAIN_TYPES):
        name = "class" if issubclass(kind, type) else kind.__name__
        raise UsageError(
            f"a {name} is not a message: publish an object of an Event class, a dataclass "
            "or a pydantic model",
            message_type=kind.__name__,
        )
