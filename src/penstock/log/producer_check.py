"""The files of producers in ``verify``: are they whole, and is a transaction unfinished?"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import DamagedFile, DamageError, KeyNotFound
from penstock.log.inspection import Problem
from penstock.log.producer_file import ProducerFile, producer_names
from penstock.log.transaction_decision import Decision, DecisionFiles
from penstock.stores.base import PersistentBackingStore


def producer_problems(store: PersistentBackingStore) -> list[Problem]:
    """What is not as it should be with the producers of a log.

    A decision that is torn is no problem: its transaction never happened.
    """
    return [
        problem
        for name in producer_names(store)
        for problem in _check(store, ProducerFile(store, name))
    ]


def _check(store: PersistentBackingStore, file: ProducerFile) -> Iterator[Problem]:
    decisions = DecisionFiles(store, file)
    try:
        damaged = file.damaged_slots()
        pending = decisions.look().pending
    except KeyNotFound:
        # Forgotten between two looks.
        return
    except DamagedFile as damage:
        yield Problem(file.key, "producer", str(damage))
        return
    except DamageError as damage:
        yield Problem(str(damage.fields.get("file", file.key)), "producer", str(damage))
        return
    if damaged:
        message = f"{file.key}: a slot is damaged, the other one is used. Opening it mends it."
        yield Problem(file.key, "producer", message, harmless=True)
    if pending is not None:
        yield _unfinished(store, file, decisions.key(pending.generation), pending)


def _unfinished(
    store: PersistentBackingStore, file: ProducerFile, key: str, pending: Decision
) -> Problem:
    """Decided, and perhaps not wholly in its topics: whoever opens the log finishes it."""
    what = f"transaction {pending.number} of producer {file.name!r}"
    missing = [one for one in pending.files if not store.exists(one)]
    if missing and _generation_now(store, file) == pending.generation:
        message = (
            f"{what} is committed and not wholly in its topics, and {missing[0]} with its records "
            "is missing. Restore it from a backup, then open the log."
        )
        return Problem(missing[0], "transaction", message)
    message = f"{what} is committed and not wholly in its topics yet. Opening the log finishes it."
    return Problem(key, "transaction", message, harmless=True)


def _generation_now(store: PersistentBackingStore, file: ProducerFile) -> int | None:
    """The generation of the unfinished transaction as it is now; it may be finished meanwhile."""
    pending = DecisionFiles(store, file).look().pending
    return None if pending is None else pending.generation
