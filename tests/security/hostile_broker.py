"""A broker whose topics and groups have names that were made to do harm. It has no records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from penstock.errors import NotSupported
from penstock.log.lag import PartitionLag
from penstock.transports import Transport
from penstock.transports.capabilities import Capabilities
from penstock.transports.statistics import ConnectionStatistics
from tests.security.corpus import CONTROLS, LABEL, MARKUP, TEMPLATE

NAMES = (MARKUP, TEMPLATE, CONTROLS, LABEL, MARKUP + TEMPLATE, "'\"><b>", "../../etc/passwd", "javascript:alert(1)", "a b")  # fmt: skip
SCHEME = "hostile"


class HostileTransport(Transport):
    """As one would be that does not look at what a broker tells."""

    name = "hostile"
    capabilities = Capabilities(lag=True, list_groups=True, shared=True, replay=True, seek=True)
    said: ClassVar[str] = MARKUP

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        return cls()

    async def open(self) -> None:
        return None

    async def close(self, timeout: float = 0.0) -> None:
        return None

    async def produce(self, *args: Any, **options: Any) -> Any:
        raise NotSupported(self.said)

    def subscribe(self, *args: Any, **options: Any) -> Any:
        raise NotSupported(f"{self.said}{args[0]}")

    async def create_topic(self, *args: Any, **options: Any) -> None:
        raise NotSupported(self.said)

    async def topics(self) -> Sequence[str]:
        return [*NAMES, "orders"]

    async def groups(self, topic: str) -> Sequence[str]:
        return NAMES

    async def partitions(self, topic: str) -> int:
        return 1

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        return [PartitionLag(partition=0, committed=5, end=9, milliseconds=60_000)]

    async def forget(self, topic: str, group: str) -> None:
        return None

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            transport=self.name, connected=True, reconnects=1, errors=1, last_error=self.said
        )
