"""The open topics of a queue: found or made on first use, opened once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from penstock.errors import PenstockError, UnknownTopic, UsageError
from penstock.log.names import check_name
from penstock.log.open_topic import OpenTopic, Surroundings
from penstock.log.published import PublishedRow
from penstock.log.receipts import Receipt
from penstock.log.topic import TopicConfig, TopicFile, TopicState

OnOpen = Callable[[OpenTopic], None]
OnCommit = Callable[[OpenTopic, Sequence[Receipt], list[PublishedRow]], None]


class Topics:
    """Topics by name. Lives on the queue's event loop; they are opened in threads."""

    def __init__(
        self,
        around: Surroundings,
        defaults: TopicConfig,
        on_commit: OnCommit,
        on_open: OnOpen,
        *,
        auto_create: bool,
    ) -> None:
        self._around = around
        self._defaults = defaults
        self._on_commit = on_commit
        self._on_open = on_open
        self._auto_create = auto_create
        self._opening: dict[str, asyncio.Task[OpenTopic]] = {}
        self._closing: PenstockError | None = None
        self.by_name: dict[str, OpenTopic] = {}

    def __iter__(self) -> Iterator[OpenTopic]:
        return iter(list(self.by_name.values()))

    def opened(self, name: str) -> OpenTopic:
        """The topic; UnknownTopic unless it is open already."""
        topic = self.by_name.get(name)
        if topic is None:
            raise UnknownTopic(
                f"topic {check_name('topic', name)!r} is not open here: call "
                f"`await queue.create_topic({name!r})` first",
                topic=name,
            )
        return topic

    async def open(self, name: str, config: TopicConfig | None = None) -> OpenTopic:
        """The topic; opened in a thread, once, however many ask at the same time."""
        while self._closing is None:
            if name in self.by_name:
                return self.by_name[name]
            task = self._opening.get(name)
            if task is None:
                return await asyncio.shield(self._start(name, config))
            try:
                return await asyncio.shield(task)
            except UnknownTopic:
                if config is None:
                    raise
                # The other one may not make topics; this one may, so it tries itself.
        raise self._closing.again()

    async def open_existing(self, name: str) -> OpenTopic:
        """The topic; UnknownTopic when nobody has made it: reading makes none."""
        if name not in self.by_name and name not in self._opening:
            await asyncio.to_thread(TopicFile(self._around.store, name).read)
        return await self.open(name)

    def raise_trouble(self, *, poison: bool = True) -> None:
        """Raise what went wrong with records that nobody waited for; and what is poisoned."""
        for topic in self:
            trouble = topic.writer.take_trouble()
            if trouble is not None:
                raise trouble
        for log in (log for topic in self for log in topic.logs if poison):
            log.check()

    def _start(self, name: str, config: TopicConfig | None) -> asyncio.Task[OpenTopic]:
        task = asyncio.create_task(self._open(name, config))
        self._opening[name] = task
        task.add_done_callback(lambda task: self._settled(name, task))
        return task

    def _settled(self, name: str, task: asyncio.Task[OpenTopic]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled():
            # Those who asked may all be gone.
            task.exception()

    async def refuse_from_now_on(self, refusal: PenstockError) -> None:
        """Open and publish nothing more; returns when what is being opened is settled."""
        self._closing = refusal
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for topic in self:
            topic.writer.refuse_from_now_on(refusal)

    def commit(self) -> None:
        """On the commit worker: write and sync all that was accepted."""
        for topic in self:
            topic.writer.commit()
            topic.writer.sync()

    def close(self) -> None:
        """Sync and let go of all topics. Blocking."""
        failures: list[PenstockError] = []
        for topic in self:
            topic.writer.stop()
            try:
                topic.close()
            except PenstockError as error:
                failures.append(error)
        for failure in failures:
            raise failure

    async def _open(self, name: str, config: TopicConfig | None) -> OpenTopic:
        state = await asyncio.to_thread(self._find, name, config)
        topic = await asyncio.to_thread(OpenTopic, state, self._around, self._on_commit)
        if self._around.read_only:
            topic.writer.refuse_from_now_on(UsageError("the queue was opened read-only"))
        else:
            await asyncio.to_thread(self._on_open, topic)
        self.by_name[name] = topic
        return topic

    def _find(self, name: str, config: TopicConfig | None) -> TopicState:
        file = TopicFile(self._around.store, name)
        may_create = config is not None or self._auto_create
        if file.exists() or self._around.read_only or not may_create:
            return file.read()
        return file.create((config or self._defaults).check(), self._around.system.clock.time_ms())
