"""Tools for tests of Penstock and of what others build on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.queues import QueueConformance
    from penstock.testing.stores import StoreConformance

__all__ = ["QueueConformance", "StoreConformance"]


def __getattr__(name: str) -> object:
    # The suites need pytest and hypothesis; the other tools do not.
    if name == "StoreConformance":
        from penstock.testing import stores

        return stores.StoreConformance
    if name == "QueueConformance":
        from penstock.testing import queues

        return queues.QueueConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
