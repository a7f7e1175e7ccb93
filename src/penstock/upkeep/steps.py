"""What becomes of a dead letter that is replayed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LetterStep:
    """What became, or would become, of a letter."""

    id: str
    topic: str
    refused: str | None = None
    """Why it stays, or None."""
    note: str = ""
