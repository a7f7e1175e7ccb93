"""Starts the service, orders, kills it with SIGKILL in the middle, and adds everything up.

Run it: `python examples/order_processing/main.py`. It needs fastapi and uvicorn.
"""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FAST = bool(os.environ.get("PENSTOCK_EXAMPLE_FAST"))
ORDERS = 40 if FAST else 400
KILLS = 1 if FAST else 5
SAMOVARS = 3
SECONDS_MAX = 180


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """The service in a process of its own, which can be killed."""

    def __init__(self, data: str) -> None:
        self._data = data
        self._port = free_port()
        self.starts = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(self._port)]
        self._process = subprocess.Popen(
            [*command, "--log-level", "critical"],
            cwd=FOLDER,
            env={**os.environ, "DATA": self._data},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the failures are part of the story
        )
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL: no warning, nothing is flushed."""
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, method: str = "GET", body: dict[str, str] | None = None) -> Any:
        """Ask until there is an answer: a service that was killed is started again."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self._port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        request.method = method
        for _ in range(SECONDS_MAX * 10):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read())
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if self._process.poll() is not None:
                    self.start()
                time.sleep(0.1)
        raise SystemExit("the service does not answer")


def order(number: int) -> dict[str, str]:
    """Most are good. Some cards are blocked, some addresses too far, and there are few samovars."""
    return {
        "customer": "blocked" if number % 10 == 3 else f"customer-{number % 7}",
        "article": "samovar" if number % 6 == 0 else ("teapot", "cup")[number % 2],
        "address": "the moon" if number % 10 == 7 else "10 Main Street",
        "cents": str(100 + number),
    }


def ended(data: str) -> int:
    """How many sagas have ended, while nobody runs."""
    with contextlib.closing(sqlite3.connect(str(Path(data, "shop.db")))) as database:
        ends = "SELECT COUNT(*) FROM sagas WHERE state != 'cancelling'"
        count: int = database.execute(ends).fetchone()[0]
        return count


def place_all(server: Server, data: str) -> None:
    for number in range(ORDERS):
        if number and number % (ORDERS // (KILLS + 1)) == 0 and server.starts <= KILLS:
            server.kill()
            print(f"  {number} orders are placed, {number - ended(data)} are on their way: SIGKILL")
        server.ask(f"/orders/o-{number}", "PUT", order(number))


def wait_for_all(server: Server) -> Counter[str]:
    """Until each saga has ended; how often which reason was given."""
    reasons: Counter[str] = Counter()
    for number in range(ORDERS):
        while (told := server.ask(f"/orders/o-{number}"))["state"] not in (
            "confirmed",
            "cancelled",
        ):
            time.sleep(0.05)
        reasons[told["reason"] or "confirmed"] += 1
    return reasons


def add_up(path: str) -> None:
    """What stock, bank and carrier have must be what the sagas have decided, to the cent."""
    with contextlib.closing(sqlite3.connect(path)) as database:

        def all_of(statement: str) -> set[Any]:
            return {row[0] for row in database.execute(statement)}

        confirmed = all_of("SELECT order_id FROM sagas WHERE state = 'confirmed'")
        cancelled = all_of("SELECT order_id FROM sagas WHERE state = 'cancelled'")
        assert confirmed | cancelled == {f"o-{number}" for number in range(ORDERS)}
        assert not confirmed & cancelled
        assert all_of("SELECT order_id FROM reservations WHERE held = 1") == confirmed
        assert all_of("SELECT order_id FROM payments WHERE charged = 1") == confirmed
        assert all_of("SELECT order_id FROM shipments") == confirmed

        [money] = all_of("SELECT SUM(cents) FROM payments WHERE charged = 1")
        assert money == sum(100 + int(one[2:]) for one in confirmed)
        left = dict(database.execute("SELECT article, pieces FROM stock").fetchall())
        held = "SELECT article, COUNT(*) FROM reservations WHERE held = 1 GROUP BY article"
        taken = Counter(dict(database.execute(held).fetchall()))
        for article, pieces in {"teapot": 1_000, "cup": 1_000, "samovar": SAMOVARS}.items():
            assert left[article] + taken[article] == pieces, article
        for one in confirmed:
            wanted = order(int(one[2:]))
            assert wanted["customer"] != "blocked"
            assert wanted["address"] != "the moon"
        assert taken["samovar"] == SAMOVARS
        print(f"  {len(confirmed)} confirmed, {len(cancelled)} cancelled; {money / 100:.2f} taken,")
        print("  stock, payments and shipments are those of the confirmed orders: PASS")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-orders-") as data:
        server = Server(data)
        try:
            print(f"{ORDERS} orders; stock, bank and carrier fail one call in six:")
            place_all(server, data)
            print(
                f"  all are placed, and on the disk; the service was started {server.starts} times"
            )
            reasons = wait_for_all(server)
        finally:
            server.kill()
        for reason, count in sorted(reasons.items()):
            print(f"  {count:4} {reason}")
        add_up(str(Path(data, "shop.db")))


if __name__ == "__main__":
    main()
