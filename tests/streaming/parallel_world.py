"""Records with durations and failures, and a handler that does what they say on virtual time."""

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import strategies as st

from penstock.bus.timers import Timers
from penstock.resilience import Retry
from penstock.streaming import ParallelConsumer
from penstock.system import System
from penstock.testing import VirtualClock

ATTEMPTS = 3
POISON = 99
RETRY = Retry(attempts=ATTEMPTS, delay=0.5, jitter=False)


@dataclass(frozen=True)
class Job:
    """A record: how long its handler takes, and how often it fails before it does not."""

    partition: int
    offset: int
    key: str | None = None
    seconds: float = 0.0
    failures: int = 0

    @property
    def value(self):
        return None

    @property
    def place(self):
        return (self.partition, self.offset)


@st.composite
def jobs_lists(draw, max_size=30, failures=(0, 0, 0, 1, 2, POISON)):
    """Records of up to three partitions, in order, some offsets missing."""
    next_offsets: dict[int, int] = defaultdict(int)
    jobs = []
    for _ in range(draw(st.integers(1, max_size))):
        partition = draw(st.integers(0, 2))
        next_offsets[partition] += draw(st.sampled_from([1, 1, 1, 2, 4]))
        jobs.append(
            Job(
                partition,
                next_offsets[partition] - 1,
                draw(st.sampled_from([None, "a", "b", "c"])),
                draw(st.sampled_from([0.0, 0.0, 0.1, 0.4, 1.0, 7.0])),
                draw(st.sampled_from(failures)),
            )
        )
    return jobs


class Run:
    """One life of a consumer, and everything that happened in it."""

    def __init__(self, jobs, *, positions=None, buries=False, **options):
        self.clock = VirtualClock()
        self.timers = Timers(self.clock)
        self.jobs = jobs
        self.tried = defaultdict(int)
        self.begun: list[Job] = []
        self.done: list[Job] = []
        self.dead: list[Job] = []
        self.running: list[Job] = []
        self.running_most = 0
        options.setdefault("retry", RETRY)
        if buries:
            options["on_poison"] = self.bury
        self.consumer = ParallelConsumer(self.handle, system=System(clock=self.clock), **options)
        for partition in {job.partition for job in jobs}:
            self.consumer.assign(partition, (positions or {}).get(partition, 0))

    async def handle(self, job):
        self.begun.append(job)
        self.running.append(job)
        self.running_most = max(self.running_most, len(self.running))
        same = [one for one in self.running if (one.partition, one.key) == (job.partition, job.key)]
        assert job.key is None or same == [job]
        try:
            if job.seconds:
                await self.timers.sleep(job.seconds)
        finally:
            self.running.remove(job)
        self.tried[job] += 1
        if self.tried[job] <= job.failures:
            raise ValueError(job)
        self.done.append(job)

    async def bury(self, job, error):
        assert isinstance(error, ValueError)
        self.dead.append(job)

    async def all(self):
        """Submit everything and wait until nothing moves any more."""
        await self.consumer.submit(self.jobs, timeout=1e6)
        await self.consumer.drain(timeout=1e6)

    def check_positions(self):
        """No position may have a record that is not handled."""
        finished = {job.place for job in (*self.done, *self.dead)}
        for partition, position in self.consumer.positions().items():
            for job in self.jobs:
                if job.partition == partition and position.has_handled(job.offset):
                    assert job.place in finished
