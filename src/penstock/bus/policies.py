"""Approval policies: functions that are asked before a human is."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

from penstock.bus.approval import ApprovalVerdict, Decision, PendingApproval, Policy
from penstock.bus.approval_records import Decided
from penstock.bus.timers import Timers
from penstock.errors import DeadlineExceeded, InvalidDecision


class Policies:
    """Asked in the order of registration; the first one that decides counts."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._policies: list[Policy] = []

    def add(self, policy: Policy) -> None:
        """Ask this one too."""
        self._policies.append(policy)

    async def ask(self, shown: PendingApproval, seconds: float) -> Decided | None:
        """What they decide; None when a human has to. Taking too long is an expiry."""
        if not self._policies:
            return None
        try:
            async with self._timers.deadline(seconds, "ask the approval policies"):
                return await self._first_answer(shown)
        except DeadlineExceeded:
            return Decided(ApprovalVerdict.EXPIRED)

    async def _first_answer(self, shown: PendingApproval) -> Decided | None:
        for policy in self._policies:
            answer: Any = policy(shown)
            if isawaitable(answer):
                answer = await answer
            decided = _decided(policy, answer)
            if decided is not None:
                return decided
        return None


def _decided(policy: Policy, answer: object) -> Decided | None:
    name = getattr(policy, "__qualname__", repr(policy))
    if answer is None:
        return None
    if answer is Decision.APPROVE:
        return Decided(ApprovalVerdict.APPROVED, name)
    if answer is Decision.DENY:
        return Decided(ApprovalVerdict.DENIED, name, "the policy says no")
    raise InvalidDecision(
        f"policy {name} answered {answer!r}: return Decision.APPROVE, Decision.DENY, or None when "
        "a human decides",
        policy=name,
        answer=answer,
    )
