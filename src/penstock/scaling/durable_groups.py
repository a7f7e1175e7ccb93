"""Atomic groups with events of durable topics: one transaction of the log."""

from __future__ import annotations

from penstock.bus.groups import AtomicGroup
from penstock.bus.history import EventHistory
from penstock.bus.intake import Intake
from penstock.errors import NotSupported
from penstock.messages import Envelope
from penstock.scaling.durable import DurableTopics


class DurableGroup(AtomicGroup):
    """Collects the events of an ``async with bus.atomic()`` block on a bus with a log."""

    def __init__(self, intake: Intake, topics: DurableTopics) -> None:
        super().__init__(intake)
        self._topics = topics

    async def publish_together(
        self, history: EventHistory, *, durable: bool, timeout: float
    ) -> None:
        """Publish the events, all or none.

        Those of durable topics are one transaction. The others are queued when that is committed;
        after a crash they are gone, as always. Cancelled after the commit has begun, all of it
        happens.
        """
        self._intake.check_open()
        written, others = self._split(self._envelopes)
        if not written:
            await self._publish_in_memory(history, durable=durable, timeout=timeout)
            return
        if others and durable:
            raise NotSupported(
                f"{others[0].topic} is no durable topic, and so cannot be part of a durable group "
                "with events that are in the log: publish it alone. Nothing was published",
                topic=others[0].topic,
            )
        self._envelopes = others
        passed = {one.sequence for one in written if self._intake.passes(one)}
        queued = self._pass()
        for envelope in written:
            if envelope.sequence not in passed:
                self._intake.settle_filtered(envelope)
        kept = [one for one in written if one.sequence in passed]
        await self._topics.publish_together(kept, queued, timeout=timeout)

    async def _publish_in_memory(
        self, history: EventHistory, *, durable: bool, timeout: float
    ) -> None:
        if durable:
            await self.publish_durably(history, timeout)
        else:
            self.publish_all()

    def _split(self, envelopes: list[Envelope]) -> tuple[list[Envelope], list[Envelope]]:
        written: list[Envelope] = []
        others: list[Envelope] = []
        for one in envelopes:
            (written if self._topics.covers(one.message.__class__) else others).append(one)
        return written, others
