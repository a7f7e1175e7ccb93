"""Penstock inside of a program that something else runs: web frameworks, process managers.

``Service`` is a bus with the life of an application; ``HealthRoutes`` answers ``/healthz``,
``/readyz`` and ``/metrics`` in any ASGI application.
"""

from penstock.integrations.health_routes import HealthRoutes
from penstock.integrations.service import Service

__all__ = ["HealthRoutes", "Service"]
