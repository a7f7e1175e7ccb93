"""``serve``: a log of another process, from its files."""

import signal
import subprocess
import sys

import httpx
import pytest

from penstock import WalMessageQueue
from penstock.dashboard import serve
from penstock.errors import InvalidOption

PROGRAM = "import sys; from penstock.dashboard import serve; serve(sys.argv[1], port=0)"


async def test_a_live_log_is_served_until_it_is_told_to_stop(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.publish("orders", b"one")
        async with queue.subscribe("orders", "billing") as records:
            await anext(records)
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"log:{tmp_path}"], stdout=subprocess.PIPE, text=True
        ) as program:
            try:
                assert program.stdout is not None
                told = program.stdout.readline().split()
                url = next(word for word in told if word.startswith("http://"))
                async with httpx.AsyncClient(base_url=url, timeout=120) as client:
                    assert (await client.get("/readyz")).status_code == 200
                    metrics = (await client.get("/metrics")).text
                    assert 'group="billing"' in metrics
                    page = await client.get("/topic?source=log&topic=orders")
                    assert page.status_code == 200
                program.send_signal(signal.SIGTERM)
                assert program.wait(120) == 0
            finally:
                program.kill()


def test_a_log_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(InvalidOption, match="there is no log"):
        serve(f"log:{tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()
    with pytest.raises(InvalidOption, match="names no directory"):
        serve("log:")


def test_another_address_needs_a_token(tmp_path):
    with pytest.raises(InvalidOption, match="PENSTOCK_DASHBOARD_TOKEN"):
        serve(f"log:{tmp_path}", host="0.0.0.0", port=0)
