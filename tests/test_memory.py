"""How much memory is left: what the kernel says, and what the container's limit leaves."""

import pytest

from penstock.system import System, os_memory_bytes

MEMORY_INFO = "MemTotal:       8000 kB\nMemFree:        1000 kB\nMemAvailable:   5000 kB\n"


@pytest.fixture
def machine(tmp_path):
    """Makes the files of a kernel; returns what is left according to them."""

    def left(info: str | None, most: str | None = None, used: str | None = None) -> int:
        for name, text in (("meminfo", info), ("memory.max", most), ("memory.current", used)):
            if text is not None:
                (tmp_path / name).write_text(text)
        return os_memory_bytes(str(tmp_path / "meminfo"), str(tmp_path))

    return left


def test_without_a_container_it_is_what_the_kernel_has_available(machine):
    assert machine(MEMORY_INFO) == 5_000 * 1_024


def test_a_container_without_a_limit_changes_nothing(machine):
    assert machine(MEMORY_INFO, "max\n", "77\n") == 5_000 * 1_024


def test_the_limit_of_a_container_counts_when_it_is_less(machine):
    assert machine(MEMORY_INFO, "3000000\n", "1000000\n") == 2_000_000
    assert machine(MEMORY_INFO, "3000000000\n", "1000000\n") == 5_000 * 1_024


def test_a_container_above_its_limit_has_nothing_left(machine):
    assert machine(MEMORY_INFO, "1000\n", "2000\n") == 0


def test_a_kernel_that_says_nothing_is_asked_for_its_free_pages(machine):
    assert machine(None) > 0
    assert machine("Nothing: here\n") > 0


def test_this_machine_has_some():
    assert System().memory_bytes() > 1_000_000
