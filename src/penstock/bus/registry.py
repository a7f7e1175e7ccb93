"""Who handles what: handlers by class, by base class and by topic pattern, in two scopes."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.bus.handlers import Handler, Target
from penstock.errors import DuplicateHandler, InvalidName
from penstock.messages import DEFAULT_SESSION, dotted_name, marks_of
from penstock.speedups import compiled


class Plan(NamedTuple):
    """The handlers of one message class in one session, in the order in which they are called."""

    handlers: tuple[Handler, ...]
    filters: bool
    """Whether one of them has a filter."""
    concurrency: int
    """How many events of the class may be in work: as many as all its handlers allow."""
    plain: Handler | None
    """The only handler, if it takes events one by one and as they come."""


class Registry:
    """The handlers of one bus. Used on the loop of the bus."""

    def __init__(self) -> None:
        self._by_class: defaultdict[type, list[Handler]] = defaultdict(list)
        self._by_base: list[Handler] = []
        self._by_pattern: list[tuple[re.Pattern[str], Handler]] = []
        self._commands: dict[tuple[type, str], Handler] = {}
        self._plans: dict[type, Plan] = {}
        self._session_plans: dict[tuple[type, str], Plan] = {}
        self._sessions: defaultdict[str, int] = defaultdict(int)
        self._order = itertools.count()
        self.on_add: Callable[[Handler], None] | None = None
        """Asked before a handler of events is added; it may refuse."""
        self.version = 0
        """Grows with every change of the handlers, and of what stands around them."""
        self.changes = None if compiled is None else compiled.Counter()
        """The same number for the compiled twin, which reads it after each message."""
        self.count = 0
        """Handlers that are registered now, for events and commands."""

    # Events

    def add(self, handler: Handler) -> None:
        """Register a handler of events."""
        if self.on_add is not None:
            self.on_add(handler)
        handler.order = next(self._order)
        handler.remove = self.remove
        if isinstance(handler.target, str):
            self._by_pattern.append((_compile(handler.target), handler))
        elif handler.subclasses:
            self._by_base.append(handler)
        else:
            self._by_class[handler.target].append(handler)
        self._changed(handler, +1)

    def remove(self, handler: Handler) -> None:
        """Forget a handler of events."""
        if isinstance(handler.target, str):
            self._by_pattern = [pair for pair in self._by_pattern if pair[1] is not handler]
        elif handler.subclasses:
            self._by_base.remove(handler)
        else:
            self._by_class[handler.target].remove(handler)
            if not self._by_class[handler.target]:
                del self._by_class[handler.target]
        self._changed(handler, -1)

    def subscribers_of(self, target: Target) -> int:
        """How many handlers listen to exactly this class or pattern."""
        if isinstance(target, str):
            return sum(handler.target == target for _, handler in self._by_pattern)
        based = sum(handler.target is target for handler in self._by_base)
        return len(self._by_class.get(target, ())) + based

    def plan(self, kind: type, session: str) -> Plan:
        """Who is called for an event of this class that was published in this session."""
        if session == DEFAULT_SESSION or session not in self._sessions:
            # Sessions without handlers of their own share a plan: names of sessions are endless.
            plan = self._plans.get(kind)
            if plan is None:
                plan = self._plans[kind] = self._make_plan(kind, DEFAULT_SESSION)
            return plan
        plan = self._session_plans.get((kind, session))
        if plan is None:
            plan = self._session_plans[kind, session] = self._make_plan(kind, session)
        return plan

    def _make_plan(self, kind: type, session: str) -> Plan:
        wanted = (h for h in self.all_of(kind) if h.session in (DEFAULT_SESSION, session))
        handlers = tuple(sorted(wanted, key=lambda h: (h.priority, h.order)))
        return Plan(
            handlers,
            filters=any(h.where is not None for h in handlers),
            concurrency=min((h.concurrency for h in handlers), default=1),
            plain=handlers[0] if len(handlers) == 1 and handlers[0].plain else None,
        )

    def all_of(self, kind: type) -> list[Handler]:
        """All who listen to the events of a class, in whatever session."""
        topic = marks_of(kind).topic
        return [
            *self._by_class.get(kind, ()),
            *(h for h in self._by_base if issubclass(kind, h.target)),  # type: ignore[arg-type]
            *(h for pattern, h in self._by_pattern if pattern.fullmatch(topic)),
        ]

    # Commands

    def add_command(self, handler: Handler) -> None:
        """Register the handler of a command; DuplicateHandler when its scope has one."""
        assert isinstance(handler.target, type)
        place = (handler.target, handler.session)
        if place in self._commands:
            raise DuplicateHandler(
                f"{dotted_name(handler.target)} is handled by {self._commands[place].name} already: "
                "a command has exactly one handler; close that one first",
                command=dotted_name(handler.target),
            )
        self._commands[place] = handler
        handler.remove = self.remove_command
        self._changed(handler, +1)

    def remove_command(self, handler: Handler) -> None:
        """Forget the handler of a command."""
        assert isinstance(handler.target, type)
        del self._commands[handler.target, handler.session]
        self._changed(handler, -1)

    def command(self, kind: type, session: str) -> Handler | None:
        """The handler of a command: the session's own, else that of the bus."""
        return self._commands.get((kind, session)) or self._commands.get((kind, DEFAULT_SESSION))

    # Everything

    def close_session(self, session: str) -> None:
        """Forget all handlers of a session."""
        for handler in list(self.handlers()):
            if handler.session == session:
                handler.close()

    def handlers(self) -> Iterator[Handler]:
        """All handlers, in no particular order."""
        for handlers in self._by_class.values():
            yield from handlers
        yield from self._by_base
        yield from (handler for _, handler in self._by_pattern)
        yield from self._commands.values()

    def topics(self) -> list[str]:
        """The topics and patterns that somebody listens to."""
        return sorted({_topic_of(handler) for handler in self.handlers()})

    def touch(self) -> None:
        """Who is at work in a lane has to look anew at what stands around its handlers."""
        self.version += 1
        if self.changes is not None:
            self.changes.value = self.version

    def _changed(self, handler: Handler, by: int) -> None:
        self.touch()
        self._plans.clear()
        self._session_plans.clear()
        self.count += by
        self._sessions[handler.session] += by
        if not self._sessions[handler.session]:
            del self._sessions[handler.session]


def _topic_of(handler: Handler) -> str:
    return handler.target if isinstance(handler.target, str) else marks_of(handler.target).topic


def _compile(pattern: str) -> re.Pattern[str]:
    if not pattern:
        raise InvalidName("an empty topic pattern matches nothing: use '*' for all topics")
    return re.compile(fnmatch.translate(pattern))
