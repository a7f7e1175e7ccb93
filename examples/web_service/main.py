"""Starts the web service, orders something, stops it with SIGTERM, and looks what became of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parent
FAST = bool(os.environ.get("PENSTOCK_EXAMPLE_FAST"))
ORDERS = 10 if FAST else 50


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """The service in a process of its own."""

    def __init__(self, data: str) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(self._port)]
        self._process = subprocess.Popen(
            [*command, "--log-level", "warning"],
            cwd=FOLDER,
            env={**os.environ, "DATA": data},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait_until_ready()

    def ask(self, path: str, method: str = "GET") -> str:
        url = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method), timeout=10
        ) as answer:
            text: str = answer.read().decode()
            return text

    def _wait_until_ready(self) -> None:
        for _ in range(600):
            try:
                assert json.loads(self.ask("/readyz"))["ready"]
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise SystemExit("the service does not start")

    def stop(self) -> list[str]:
        """Send SIGTERM; what it printed until its end."""
        self._process.send_signal(signal.SIGTERM)
        printed, _ = self._process.communicate(timeout=60)
        return [line for line in printed.splitlines() if line.startswith("billed")]


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        server = Server(data)
        for number in range(ORDERS):
            server.ask(f"/orders/o-{number}?total={number}.50", "POST")
        print(f"{ORDERS} orders are placed, and on the disk")
        time.sleep(1.5)  # the log is looked at once a second
        lag = [
            line
            for line in server.ask("/metrics").splitlines()
            if line.startswith(("penstock_group_lag_records{", "penstock_events_processed_total{"))
        ]
        print("\n".join(lag))
        billed = server.stop()
        print(f"SIGTERM: {len(billed)} were billed before the process ended")
        while len(billed) < ORDERS:
            server = Server(data)
            time.sleep(0.5)
            billed += server.stop()
            print(f"started again: {len(billed)} are billed now")
        assert len(set(billed)) == ORDERS, "each order is billed"
        print("all of them")


if __name__ == "__main__":
    main()
