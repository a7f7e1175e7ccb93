"""The stacks of threads are taken without a garbage collection meanwhile, which could stop the process for ever."""

import gc
import sys
import threading

import pytest

from penstock.observe.stacks import current_frames, stack_of_thread


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_frames_are_taken(monkeypatch, enabled):
    real, during = sys._current_frames, []

    def look():
        during.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", look)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert threading.get_ident() in current_frames()
        assert during == [False]
        assert gc.isenabled() is enabled, "the collector is as it was"
    finally:
        (gc.enable if before else gc.disable)()


def test_the_collector_is_as_it_was_when_looking_fails(monkeypatch):
    def fail():
        raise MemoryError

    monkeypatch.setattr(sys, "_current_frames", fail)
    with pytest.raises(MemoryError):
        current_frames()
    assert gc.isenabled()


def test_a_thread_is_found_by_its_number():
    told = stack_of_thread(threading.get_ident())
    assert any("test_a_thread_is_found_by_its_number" in line for line in told)
    assert stack_of_thread(None) == ()
