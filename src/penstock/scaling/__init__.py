"""Scale: contracts and limits, partitions and who reads them, the bounded cache.

What a program needs every day is in ``penstock`` itself; the rest of scaling is here.
"""

from penstock.scaling.assignment import Assignment, AssignmentStrategy, assign
from penstock.scaling.bus import ScalableMessageBus
from penstock.scaling.cache import BoundedCache
from penstock.scaling.cache_backing import ByteStore, CacheBacking
from penstock.scaling.cache_memory import EvictionPolicy
from penstock.scaling.cache_statistics import CacheStatistics
from penstock.scaling.competing import CompetingConsumer, CompetingGroup
from penstock.scaling.consumers import Reader, RingConsumer
from penstock.scaling.contracts import ScalableSubsystem
from penstock.scaling.limits import BusLimits, Limits, ScalingLimits
from penstock.scaling.ring import Ring, SharedProducerRing
from penstock.scaling.routing import Router, route
from penstock.scaling.sequence import Sequence
from penstock.scaling.shared_consumer import SharedRingConsumer
from penstock.scaling.shared_group import SharedGroupMember, SharedRingGroup
from penstock.scaling.shared_ring import SharedConsumerPosition, SharedRing, SharedRingStatistics
from penstock.scaling.stages import ConsumerPosition, RingStatistics
from penstock.scaling.waiting import Park, Sleep, Spin, WaitStrategy, Yield

__all__ = [
    "Assignment",
    "AssignmentStrategy",
    "BoundedCache",
    "BusLimits",
    "ByteStore",
    "CacheBacking",
    "CacheStatistics",
    "CompetingConsumer",
    "CompetingGroup",
    "ConsumerPosition",
    "EvictionPolicy",
    "Limits",
    "Park",
    "Reader",
    "Ring",
    "RingConsumer",
    "RingStatistics",
    "Router",
    "ScalableMessageBus",
    "ScalableSubsystem",
    "ScalingLimits",
    "Sequence",
    "SharedConsumerPosition",
    "SharedGroupMember",
    "SharedProducerRing",
    "SharedRing",
    "SharedRingConsumer",
    "SharedRingGroup",
    "SharedRingStatistics",
    "Sleep",
    "Spin",
    "WaitStrategy",
    "Yield",
    "assign",
    "route",
]
