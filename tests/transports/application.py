"""The same application, unchanged, on any URL: the tests of each broker run it on theirs."""

from collections.abc import Mapping
from pathlib import Path

from penstock.transports import open_transport
from tests.running import run_python
from tests.snippets import run_examples

ROOT = Path(__file__).parent.parent.parent
APPLICATION = ROOT / "examples" / "move_to_a_broker" / "main.py"
DEADLINE_SECONDS = 200


def check_application(url: str, folder: Path) -> None:
    """Run it in a process of its own; its numbers agree, or it fails."""
    finished = run_python("-W", "error", APPLICATION, url, folder=folder, seconds=DEADLINE_SECONDS)
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert "billed 39, shipped 39, dead letters 1: PASS" in finished.stdout


def check_page(test: str, instead: Mapping[str, str]) -> None:
    """Run what docs/transports.md shows for a broker, on this one."""
    test_file = str(Path(test).relative_to(ROOT))
    run_examples("docs/transports.md", test_file, instead, {"open_transport": open_transport})
