"""What the pages work with: the sampler, the sources, the dead letters, and the program's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock import WalMessageQueue, errors
from penstock.dashboard.broker import BrokerSource
from penstock.dashboard.letters import LiveShelf, Shelf
from penstock.dashboard.letters_log import LogShelf
from penstock.dashboard.letters_topic import TopicShelf
from penstock.dashboard.sampler import SAMPLE_SECONDS, Sampler
from penstock.dashboard.sources import LogSource, Source
from penstock.observe import Observer
from penstock.transports import EmbeddedTransport, Transport
from penstock.upkeep import bus_names, letter_topics

_T = TypeVar("_T")
HOME_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by source. One that does not answer hides no other: the reason stands for its topics."""

    found: Mapping[str, Sequence[str]]
    silent: Mapping[str, str]


class Board:
    """Belongs to the loop of the dashboard; ``home`` is the loop of the program."""

    def __init__(
        self,
        observer: Observer,
        home: asyncio.AbstractEventLoop,
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self.observer = observer
        self.sampler = Sampler(observer, sample_seconds)
        self.locked = False
        """Whether people have to log in."""
        self._home = home
        self._sources: dict[str, Source] = {}

    async def at_home(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the loop of the program; DeadlineExceeded when that does not answer."""
        if asyncio.get_running_loop() is self._home:
            return await work
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._home))
        try:
            async with asyncio.timeout(HOME_SECONDS):
                return await answer
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"the program did not answer within {HOME_SECONDS:g} s: look at its stalls"
            ) from None

    # Records

    def sources(self) -> dict[str, Source]:
        """All logs and brokers that are watched, by name."""
        parts = self.observer.parts()
        for name in self._sources.keys() - parts.keys():
            del self._sources[name]
        for name, part in parts.items():
            if name not in self._sources and (made := self._source(name, part)) is not None:
                self._sources[name] = made
        return self._sources

    def _source(self, name: str, part: Any) -> Source | None:
        if isinstance(part, WalMessageQueue):
            return LogSource(name, part)
        if isinstance(part, Transport) and not isinstance(part, EmbeddedTransport):
            return BrokerSource(name, part, self.at_home)
        return None

    def source(self, name: str) -> Source:
        """One of them; InvalidOption when there is none of that name."""
        found = self.sources().get(name)
        if found is None:
            known = ", ".join(self._sources) or "none"
            raise errors.InvalidOption(
                f"no source is called {name!r}: there are {known}", option="source"
            )
        return found

    def source_of_group(self, name: str) -> Source:
        """The source of a group; a broker's groups are known by the name of its transport."""
        for one, part in self.observer.parts().items():
            if isinstance(part, Transport) and name in (one, part.name):
                return self.source(one)
        return self.source(name)

    async def topics(self, kind: type[Source] = Source) -> Topics:
        """The topics of each source of a kind, whether a group reads them or not."""
        asked = [one for one in self.sources().values() if isinstance(one, kind)]
        told = await asyncio.gather(*map(_topics, asked))
        answers = [(source.name, one) for source, one in zip(asked, told, strict=True)]
        return Topics(
            {name: one for name, one in answers if not isinstance(one, errors.PenstockError)},
            {name: str(one) for name, one in answers if isinstance(one, errors.PenstockError)},
        )

    # Dead letters

    def shelves(self, topics: Mapping[str, Sequence[str]]) -> list[Shelf]:
        """Everywhere dead letters are kept, with the topics of the sources that tell theirs."""
        live = [
            LiveShelf(name, part.dead_letters, self.at_home)
            for name, part in self.observer.parts().items()
            if getattr(part, "dead_letters", None) is not None
        ]
        here = {one.name for one in live}
        found: list[Shelf] = [*live]
        for source in self.sources().values():
            names = topics.get(source.name, ())
            if isinstance(source, LogSource):
                found += [LogShelf(source, name) for name in bus_names(names) if name not in here]
            found += [TopicShelf(source, topic) for topic in letter_topics(names)]
        return found

    async def close(self) -> None:
        """Let go of the files."""
        for source in self._sources.values():
            await source.close()
        self._sources.clear()


async def _topics(source: Source) -> tuple[str, ...] | errors.PenstockError:
    """Its topics, or why it does not tell them."""
    try:
        return tuple(await source.topics())
    except errors.PenstockError as error:
        return error
