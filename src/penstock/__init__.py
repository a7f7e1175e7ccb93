"""Penstock: an event bus and a crash-safe durable log for Python."""

__all__: list[str] = []
