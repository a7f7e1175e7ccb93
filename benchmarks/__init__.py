"""Measures the log and the bus beside others: ``python -m benchmarks --help``."""

import sys
from pathlib import Path

PEERS = Path(__file__).parents[1] / "build" / "peers"
"""What `scripts/peers` fetches. What the environment has itself comes first."""
if str(PEERS) not in sys.path:
    sys.path.append(str(PEERS))
