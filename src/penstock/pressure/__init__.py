"""Pressure: how full things are, and what producers and consumers feel of it."""

from penstock.pressure.channel import Channel, ChannelStatistics, OverflowMode, Throttle
from penstock.pressure.contracts import (
    BackpressureAware,
    BackpressureContext,
    OnBackpressureChanged,
)
from penstock.pressure.decisions import PublishDecision, PublishRules, PublishVerdict
from penstock.pressure.drops import Dropped
from penstock.pressure.ledger import TopicPressure
from penstock.pressure.message_bus import BackpressureStatistics, MessageBusBackpressure
from penstock.pressure.monitor import PressureMonitor
from penstock.pressure.readings import Bottleneck, PressureStatistics, Reading, StageStatistics
from penstock.pressure.states import (
    BackpressureState,
    BackpressureStateChanged,
    BackpressureThresholds,
)
from penstock.pressure.strategies import BackpressureStrategy, DegradationDirective
from penstock.pressure.streaming import StreamingBackpressureHandler
from penstock.pressure.streaming_statistics import StreamingStatistics

__all__ = [
    "BackpressureAware",
    "BackpressureContext",
    "BackpressureState",
    "BackpressureStateChanged",
    "BackpressureStatistics",
    "BackpressureStrategy",
    "BackpressureThresholds",
    "Bottleneck",
    "Channel",
    "ChannelStatistics",
    "DegradationDirective",
    "Dropped",
    "MessageBusBackpressure",
    "OnBackpressureChanged",
    "OverflowMode",
    "PressureMonitor",
    "PressureStatistics",
    "PublishDecision",
    "PublishRules",
    "PublishVerdict",
    "Reading",
    "StageStatistics",
    "StreamingBackpressureHandler",
    "StreamingStatistics",
    "Throttle",
    "TopicPressure",
]
