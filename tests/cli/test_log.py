"""``penstock log``: verify, repair, stats."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.codes import PROBLEMS


@pytest.fixture
def filled(penstock):
    penstock("topic", "create", "orders", "-s", "segment_bytes_max=2000")
    for number in range(6):
        penstock("produce", "orders", "-q", *[f"{number} {one} " + "x" * 50 for one in range(20)])
    return penstock


def segments(terminal) -> list[Path]:
    return sorted((terminal.folder / "data/topics/orders/0").glob("*.log"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_a_sound_log_is_sound(filled):
    found = filled("log", "verify", "-o", "json").json
    assert (found["sound"], found["records"], found["problems"]) == (True, 120, [])
    assert filled("log", "verify", "orders").text.endswith("bytes: sound\n")


def test_damage_is_found_shown_and_repaired(filled):
    damage(segments(filled)[1])
    done = filled("log", "verify", code=PROBLEMS)
    assert "damage: topics/orders/0/" in done.text
    assert "damaged: `penstock log repair TOPIC` saves the rest" in done.text
    found = filled("log", "verify", "-o", "json", code=PROBLEMS).json
    assert found["sound"] is False
    assert found["problems"][0]["kind"] == "entry"

    planned = filled("log", "repair", "orders", "--dry-run").text
    assert "would do: " in planned
    filled("log", "verify", code=PROBLEMS)
    assert "Say --yes" in filled("log", "repair", "orders", code=2).errors
    repaired = filled("log", "repair", "orders", "--yes", "-o", "json").json
    assert repaired["actions"]
    assert repaired["lost"][0]["first_offset"] > 0
    filled("log", "verify")
    left = filled("consume", "orders").lines
    assert 0 < len(left) < 120
    assert "nothing to repair" in filled("log", "repair", "orders", "--yes").text


def test_what_a_log_holds(filled):
    (found,) = filled("log", "stats", "-o", "json").json
    assert (found["topic"], found["start"], found["end"]) == ("orders", 0, 120)
    assert found["segments"] > 1
    assert found["bytes"] == sum(path.stat().st_size for path in segments(filled))
    assert filled("log", "stats", "orders").lines[1].split()[:4] == ["orders", "0", "0", "120"]


@pytest.mark.parametrize("verb", ["verify", "stats", "repair"])
def test_it_is_for_logs_alone(penstock, verb):
    words = ["log", verb, "orders"] if verb == "repair" else ["log", verb]
    told = penstock("--url", "memory:", *words, code=2).errors
    assert "memory: is no log: this works on URLs such as log:./data alone" in told
