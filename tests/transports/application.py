"""The same application, unchanged, on any URL: the tests of each broker run it on theirs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
APPLICATION = ROOT / "examples" / "move_to_a_broker" / "main.py"
DEADLINE_SECONDS = 200


def check_application(url: str, folder: Path) -> None:
    """Run it in a process of its own; its numbers agree, or it fails."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", str(APPLICATION), url],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert "billed 39, shipped 39, dead letters 1: PASS" in finished.stdout
