"""The conformance suite of queues: what a :class:`WalMessageQueue` must do on every store.

A store of your own carries a queue when a subclass in your tests passes::

    class TestQueueOnMyStore(QueueConformance):
        @pytest.fixture
        def make_queue(self, tmp_path):
            return functools.partial(WalMessageQueue, MyStore(tmp_path / "data"))

``make_queue`` gives a callable that takes the keyword arguments of ``WalMessageQueue``. Every call
makes a new queue on the same place, which is empty when the test starts; what was published before
is still there. Two of them may be open at the same time.

The suite needs pytest, pytest-asyncio, hypothesis and pyarrow. No test waits for time to pass.
"""

from __future__ import annotations

from penstock.testing.queue_life import LifeConformance
from penstock.testing.queue_publishing import PublishingConformance
from penstock.testing.queue_reading import ReadingConformance
from penstock.testing.queue_seeking import SeekingConformance
from penstock.testing.queue_subscribing import SubscribingConformance
from penstock.testing.queue_topics import TopicConformance


class QueueConformance(
    PublishingConformance,
    SubscribingConformance,
    SeekingConformance,
    ReadingConformance,
    TopicConformance,
    LifeConformance,
):
    """All tests of queues. Subclass it and say how to make one: see the module's text."""
