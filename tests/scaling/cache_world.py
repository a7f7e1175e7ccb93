"""A store of bytes that fails, blocks and counts on demand, and runners for it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.errors import KeyNotFound, StoreFailed

TTL = 60.0
"""How long the entries of a cache with the policy TTL live."""


async def inline(call):
    """Run a blocking call at once, on the loop: for tests without threads."""
    return call()


class FailingStore:
    """A store in a dictionary. It keeps the calls in order."""

    def __init__(self):
        self.values: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self._fails = ""

    @property
    def counts(self):
        return Counter(name for name, _ in self.calls)

    def fail_next(self, *, too_late=False):
        """Let the next call raise: before it did anything, or after it did everything."""
        self._fails = "after" if too_late else "before"

    def write(self, key, data):
        self._begin("write", key)
        self.values[key] = data
        self._end()

    def read(self, key):
        self._begin("read", key)
        self._end()
        if key not in self.values:
            raise KeyNotFound(f"no {key}")
        return self.values[key]

    def delete(self, key):
        self._begin("delete", key)
        self.values.pop(key, None)
        self._end()

    def list(self, prefix):
        self._begin("list", prefix)
        self._end()
        return sorted(key for key in self.values if key.startswith(prefix))

    def _begin(self, name, key):
        self.calls.append((name, key))
        if self._fails == "before":
            self._raise()

    def _end(self):
        if self._fails == "after":
            self._raise()

    def _raise(self):
        self._fails = ""
        raise StoreFailed("the disk is on fire")


class HeldRunner:
    """Runs calls when the test says so, as a slow disk would; the oldest first."""

    def __init__(self):
        self.held: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    async def __call__(self, call):
        done = asyncio.get_running_loop().create_future()
        self.held.append((done, call))
        return await done

    def let_one_through(self):
        done, call = self.held.pop(0)
        try:
            result = call()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(result)
