"""Waits until a server that a page starts has answered, and stops it.

``python shell_serving.py PID < what it says``: run by the shell that started the server, see tests/shell_runner.py.
All that the server says is passed on. Whether it ended well is for that shell to see.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from urllib.request import urlopen

ADDRESS = re.compile(r"http://(?P<host>[\w.]+):(?P<port>\d+)")
PATH = "/readyz"
SECONDS_MAX = 60


def main(pid: int) -> int:
    for line in sys.stdin:
        print(line, end="", flush=True)
        if found := ADDRESS.search(line):
            return answer(pid, int(found["port"]))
    print("It ended, and had named no address.")
    return 1


def answer(pid: int, port: int) -> int:
    """Ask once: whoever names an address listens there."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{PATH}", timeout=SECONDS_MAX) as got:
            print(f"GET {PATH}: {got.status}")
    except OSError as failed:
        print(f"GET {PATH}: {failed}")
        return 1
    finally:
        os.kill(pid, signal.SIGTERM)
        print(sys.stdin.read(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
