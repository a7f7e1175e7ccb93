"""What the options of both sinks have in common: names in any case, mistakes that are told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from penstock.errors import InvalidOption
from penstock.transports.registry import BROKERS

_FROM_SPARK = {"checkpointlocation", "queryname"}
"""What Spark passes on of its own."""


def lowered(given: Mapping[str, str], known: Iterable[str], what: str) -> dict[str, str]:
    """The options by their names in small letters; InvalidOption for one that is not known."""
    names = {name.lower(): name for name in known}
    found = {name.lower(): value for name, value in given.items()}
    for name in found.keys() - names.keys() - _FROM_SPARK:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {names[near[0]]}? " if near else ""
        raise InvalidOption(
            f"{what} has no option {name!r}: {hint}There are {', '.join(names.values())}",
            option=name,
        )
    return found


def log_path(path: str, what: str) -> str:
    """The path of a log; InvalidOption for a broker, which a source in Python cannot hand over to Spark."""
    scheme, colon, _ = path.partition(":")
    if not colon or scheme not in BROKERS:
        return path
    use = (
        "penstock.spark.read_topics(spark, url, ...) and write_topics(frame, url, topic) use Spark's own "
        'connector for it, format("kafka")'
        if scheme == "kafka"
        else "records go through a transport, penstock.transports.open_transport(url)"
    )
    raise InvalidOption(
        f'{what} of format("penstock") has a log as its path, not {scheme}: {use}', option="path"
    )


def transaction_in(found: Mapping[str, str]) -> tuple[str, int] | tuple[None, None]:
    """The name and the number under which a write of a frame happens once."""
    name, number = found.get("txnappid"), found.get("txnversion")
    if name is None and number is None:
        return None, None
    if name is None or number is None:
        raise InvalidOption("txnAppId and txnVersion go together: give both", option="txnAppId")
    return name, whole_number("txnVersion", number, 0)


def whole_number(name: str, text: str, at_least: int) -> int:
    """The number in the text; InvalidOption when it is none, or too small."""
    if not text.isascii() or not text.isdigit() or int(text) < at_least:
        raise InvalidOption(
            f"{name} is {text!r}: use a whole number of {at_least} or more", option=name
        )
    return int(text)
