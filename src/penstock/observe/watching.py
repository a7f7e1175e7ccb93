"""Who looks at what."""

from __future__ import annotations

from typing import Any

from penstock.bus.bus import MessageBus
from penstock.errors import InvalidOption
from penstock.log.queue import WalMessageQueue
from penstock.observe.watched import Watched
from penstock.observe.watched_bus import WatchedBus
from penstock.observe.watched_log import WatchedLog
from penstock.observe.watched_pipeline import WatchedPipeline
from penstock.observe.watched_streams import WatchedStreams
from penstock.observe.watched_transport import WatchedTransport
from penstock.scaling.bus import ScalableMessageBus
from penstock.streaming.manager import StreamingScalingManager
from penstock.system import System
from penstock.transports.base import Transport

PIPELINE_CALLS = ("status", "lags", "queries")


def watched(
    part: Any, name: str | None, *, asked: bool, durations: bool, system: System
) -> Watched:
    """What looks at a part; InvalidOption when nobody does.

    ``asked`` says whether somebody wants to see this very part, or another one stands on it.
    """
    if isinstance(part, MessageBus | ScalableMessageBus):
        return WatchedBus(part, name or part.name, durations=durations, system=system)
    if isinstance(part, WalMessageQueue):
        return WatchedLog(part, name or "log", system=system)
    if isinstance(part, StreamingScalingManager):
        return WatchedStreams(part, name or "streams", system=system)
    if isinstance(part, Transport):
        return WatchedTransport(part, name or part.name, groups=asked, system=system)
    if all(hasattr(part, call) for call in PIPELINE_CALLS):
        return WatchedPipeline(part, name or "pipeline", system=system)
    raise InvalidOption(
        f"nobody knows how to look at a {type(part).__name__}: watch a bus, a WalMessageQueue, a "
        "StreamingScalingManager, a transport or a running pipeline",
        option="part",
    )
