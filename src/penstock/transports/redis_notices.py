"""Notices over a connection of their own: records were produced, partitions have moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from redis import exceptions as failures

from penstock.transports.redis_client import AWAY, BACKOFF_SECONDS, RedisClient, end_tasks

PING_SECONDS = 5.0
SILENCE_SECONDS = 15.0
"""A connection that says nothing, not even to a ping, is taken for lost."""

Listener = Callable[[], None]


class RedisNotices:
    """Hears what the scripts publish, over one connection; listeners are called on the loop.

    A notice may be lost with the connection. When there is a new one all listeners are called, so
    that they look for themselves.
    """

    def __init__(self, to: RedisClient) -> None:
        self._client = to
        self._listeners: dict[bytes, set[Listener]] = {}
        self._heard: dict[bytes, asyncio.Event] = {}
        """Set while the server is known to send the channel."""
        self._pubsub: Any = None
        self._task: asyncio.Task[None] | None = None

    async def follow(self, channel: str, listener: Listener, seconds: float) -> None:
        """Call the listener from now on; returns when the server sends what happens."""
        name = channel.encode()
        self._listeners.setdefault(name, set()).add(listener)
        heard = self._heard.setdefault(name, asyncio.Event())
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        elif not heard.is_set() and self._pubsub is not None:
            with suppress(*AWAY):
                await self._pubsub.subscribe(name)
        try:
            async with asyncio.timeout(seconds):
                await heard.wait()
        except TimeoutError:
            await self.forget(channel, listener)
            raise self._client.unreachable("listen to notices", seconds) from None

    async def forget(self, channel: str, listener: Listener) -> None:
        """Call it no longer."""
        name = channel.encode()
        listeners = self._listeners.get(name, set())
        listeners.discard(listener)
        if listeners or name not in self._listeners:
            return
        del self._listeners[name], self._heard[name]
        if self._pubsub is not None and self._listeners:
            with suppress(*AWAY, failures.RedisError):
                await self._pubsub.unsubscribe(name)

    async def close(self) -> None:
        """Hear no more."""
        self._listeners.clear()
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        pause, longest = BACKOFF_SECONDS
        while self._listeners:
            pubsub = self._client.pubsub()
            try:
                await self._subscribe(pubsub)
                pause = BACKOFF_SECONDS[0]
                await self._hear(pubsub)
            except (*AWAY, TimeoutError) as error:
                self._client.lose(error)
            except Exception as error:
                # A notice that is lost is found by looking; nobody has to hear of this.
                self._client.note(error)
            finally:
                self._pubsub = None
                for heard in self._heard.values():
                    heard.clear()
                with suppress(*AWAY, failures.RedisError):
                    await pubsub.aclose()
            await asyncio.sleep(pause)
            pause = min(longest, pause * 2)
        self._task = None

    async def _subscribe(self, pubsub: Any) -> None:
        asked = list(self._listeners)
        await pubsub.subscribe(*asked)
        self._pubsub = pubsub
        # Who came while it was connecting could not ask for itself.
        if late := self._listeners.keys() - set(asked):
            await pubsub.subscribe(*late)

    async def _hear(self, pubsub: Any) -> None:
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        while True:
            message = await pubsub.get_message(timeout=PING_SECONDS)
            if message is not None:
                spoke = loop.time()
                self._take(message)
            elif loop.time() - spoke > SILENCE_SECONDS:
                raise TimeoutError
            else:
                await pubsub.ping()

    def _take(self, message: Mapping[str, Any]) -> None:
        channel = cast("bytes", message["channel"])
        if message["type"] == "subscribe" and channel in self._heard:
            self._heard[channel].set()
        if message["type"] in ("subscribe", "message"):
            for listener in list(self._listeners.get(channel, ())):
                listener()
