"""The recipe of the documents for structlog, as it stands there."""

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("structlog", reason="the recipe needs structlog")
import penstock
from penstock import Event, topic
from penstock.observe import MessageFields

PAGE = Path(__file__).parents[2] / "docs" / "observe.md"


@topic("orders", key="number")
class Placed(Event):
    number: int = 0


@pytest.fixture
def lines():
    """What the recipe's handler writes."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (recipe,) = [one for one in blocks if "ProcessorFormatter" in one]
    names: dict[str, Any] = {"logging": logging, "MessageFields": MessageFields}
    exec(compile(recipe, str(PAGE), "exec"), names)
    handler: logging.StreamHandler = names["lines"]
    stream = io.StringIO()
    handler.setStream(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.getLogger("penstock").removeHandler(handler)


async def test_lines_of_penstock_have_their_fields_by_structlog(tmp_path, lines):
    async with penstock.open(f"log:{tmp_path}") as bus:

        @bus.on(Placed, group="billing", retries=0, name="charge")
        async def charge(event):
            logging.getLogger("penstock.of_a_handler").warning("no money for %s", event.number)
            raise ValueError("no money")

        await bus.publish(Placed(7))
        await bus.settle()
    own, failed = (
        next(line for line in lines() if line["event"].startswith(start))
        for start in ("no money for 7", "charge failed")
    )
    assert (own["topic"], own["offset"], own["group"]) == ("orders", 0, "billing")
    assert (failed["topic"], failed["partition"], failed["offset"]) == ("orders", 0, 0)
    assert (failed["group"], failed["handler"], failed["level"]) == ("billing", "charge", "error")
    assert failed["logger"].startswith("penstock.")
    assert "ValueError: no money" in failed["exception"]
    assert failed["timestamp"]
    assert failed["message_id"]
