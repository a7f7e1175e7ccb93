"""What a transport to a broker tells of its connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """The connection of a transport, at a moment. All counts are since it was opened."""

    transport: str
    connected: bool
    """Whether the broker can be reached, as far as this side knows."""
    reconnects: int
    """How often a connection that was lost was made again."""
    errors: int
    """Errors of the connection, and calls that the broker refused."""
    last_error: str | None
    """The last of them; never a secret."""
    records_produced: int = 0
    """Records that were acknowledged."""
    records_consumed: int = 0
    """Records that were read, delivered or not."""
    sent_again: int = 0
    """Batches that were sent more than once, as their outcome was not known."""
