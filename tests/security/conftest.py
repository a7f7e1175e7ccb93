"""Each test of this folder that takes ``findings`` runs twice: each day, and in the torture run."""

from collections.abc import Iterator

import pytest

from tests.scoreboard import Scores
from tests.security.checks import Findings


@pytest.fixture(params=["short", pytest.param("full", marks=pytest.mark.torture)])
def findings(scored: Scores) -> Iterator[Findings]:
    """Where checks tell what they found; at the end the scoreboard hears of it."""
    told = Findings()
    yield told
    told.tell(scored)
