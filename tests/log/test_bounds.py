"""Bounds: what the log writes, and how large things may get."""

from pathlib import Path

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import InvalidOption
from penstock.system import OsFiles, System
from penstock.testing.queue_fixtures import everything


class CountingFiles(OsFiles):
    """Notes every write to a segment: its file, where it starts and how long it is."""

    def __init__(self):
        super().__init__()
        self.paths = {}
        self.writes = []
        self.total = 0
        self.cut = []

    def open(self, path, *, create=False, write=True):
        descriptor = super().open(path, create=create, write=write)
        self.paths[descriptor] = path
        return descriptor

    def write(self, descriptor, buffers, position):
        size = sum(map(len, buffers))
        path = self.paths[descriptor]
        self.total += size
        if path.endswith(".log"):
            self.writes.append((path, self.status(descriptor).size, position, size))
        super().write(descriptor, buffers, position)

    def truncate(self, descriptor, size):
        self.cut.append(self.paths[descriptor])
        super().truncate(descriptor, size)


@pytest.mark.acceptance(43)
async def test_a_segment_is_only_appended_to(tmp_path):
    files = CountingFiles()
    config = TopicConfig(segment_bytes_max=500_000)
    async with WalMessageQueue(
        tmp_path / "data", defaults=config, maintenance_interval=None, system=System(files=files)
    ) as queue:
        await queue.create_topic("orders")
        inodes: dict[Path, int] = {}
        for _ in range(40):
            await queue.publish_many("orders", [bytes(1000)] * 50)
            for path in (tmp_path / "data").rglob("*.log"):
                assert inodes.setdefault(path, path.stat().st_ino) == path.stat().st_ino
        assert len(inodes) > 3
        assert len(await everything(queue, "orders")) == 2000
    assert not [path for path in files.cut if path.endswith(".log")]
    # Each write starts exactly where the file ends: no byte is ever written twice.
    assert all(position == size for _, size, position, _ in files.writes)
    written = sum(size for *_, size in files.writes)
    assert written == sum(path.stat().st_size for path in inodes)


@pytest.mark.acceptance(43)
async def test_little_more_is_written_than_the_records(tmp_path):
    """Over all files: segments, head, index, offsets and the description of the topic."""
    files = CountingFiles()
    async with WalMessageQueue(
        tmp_path / "data", maintenance_interval=None, system=System(files=files)
    ) as queue:
        await queue.create_topic("orders")
        for _ in range(20):
            await queue.publish_many("orders", [bytes(1000)] * 100)
    assert 2_000_000 < files.total <= 1.1 * 2_000_000


def test_a_segment_fits_in_memory():
    """Compaction, repair and the move to a tier hold one at a time."""
    TopicConfig(segment_bytes_max=4 << 30).check()
    with pytest.raises(InvalidOption, match="segment_bytes_max"):
        TopicConfig(segment_bytes_max=(4 << 30) + 1).check()
