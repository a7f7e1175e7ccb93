"""Scale: contracts and limits, partitions and who reads them, the bounded cache.

What a program needs every day is in ``penstock`` itself; the rest of scaling is here.
"""

from penstock.scaling.assignment import (
    Assignment,
    AssignmentStrategy,
    assign,
    assign_in_turn,
    assign_ranges,
    assign_sticky,
    partitions_for,
)
from penstock.scaling.routing import Router, route

__all__ = [
    "Assignment",
    "AssignmentStrategy",
    "Router",
    "assign",
    "assign_in_turn",
    "assign_ranges",
    "assign_sticky",
    "partitions_for",
    "route",
]
