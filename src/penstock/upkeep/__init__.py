"""What people do to a log or a broker from outside: dead letters, and moving groups.

The command line and the dashboard stand on it.
"""

from penstock.upkeep.bus_letters import (
    BusLetters,
    bus_names,
    is_journal,
    key_bytes,
    not_from_a_log,
    too_often,
)
from penstock.upkeep.groups import assigned, move_group
from penstock.upkeep.steps import LetterStep
from penstock.upkeep.topic_letters import (
    LETTERS_GROUP,
    letter_id,
    letter_of,
    letter_topics,
    oldest,
    replay_records,
    replay_steps,
    take_away,
)

__all__ = [
    "LETTERS_GROUP",
    "BusLetters",
    "LetterStep",
    "assigned",
    "bus_names",
    "is_journal",
    "key_bytes",
    "letter_id",
    "letter_of",
    "letter_topics",
    "move_group",
    "not_from_a_log",
    "oldest",
    "replay_records",
    "replay_steps",
    "take_away",
    "too_often",
]
