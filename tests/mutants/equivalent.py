"""Mutants that change nothing that anybody could see, each with the reason."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.mutating import Mutant


class Equivalent(NamedTuple):
    """A change that makes no difference; the text is that of the line."""

    function: str
    """Module and function, without the package."""
    text: str
    change: str
    why: str


EQUIVALENT: tuple[Equivalent, ...] = ()
_KNOWN = {(one.function, one.text, one.change) for one in EQUIVALENT}


def is_equivalent(mutant: Mutant, text: str) -> bool:
    """Whether the mutant is in the list."""
    place = f"{mutant.module.removeprefix('penstock.log.')}.{mutant.function}"
    return (place, text, mutant.change) in _KNOWN
