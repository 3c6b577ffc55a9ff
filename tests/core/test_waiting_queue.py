"""WaitingQueue: order, removal, and an end to being passed over."""

from __future__ import annotations

from octavo.core.entry import Entry, Standing
from octavo.core.waiting_queue import MAX_OVERTAKEN, MAX_OVERTAKEN_SECONDS, WaitingQueue
from tests.core.fake_runner import make_sequence


def make_entry(priority: int = 0, arrival: float = 0.0, serial: int = 0) -> Entry:
    return Entry(make_sequence(), Standing(priority, arrival, serial, 0), {}, 0, None)


def test_lowest_priority_value_first_then_arrival_then_serial() -> None:
    queue = WaitingQueue()
    late, early, urgent, twin = (
        make_entry(arrival=2.0, serial=1),
        make_entry(arrival=1.0, serial=2),
        make_entry(priority=-1, arrival=3.0, serial=3),
        make_entry(arrival=1.0, serial=4),
    )
    for entry in (late, early, urgent, twin):
        queue.add(entry)
    assert queue.first(9) == [urgent, early, twin, late]
    queue.remove(early)
    assert (queue.first(2), len(queue)) == ([urgent, twin], 3)


def test_passed_too_often() -> None:
    queue, entry = WaitingQueue(), make_entry()
    for _ in range(MAX_OVERTAKEN):
        assert queue.may_be_passed(entry, now=1.0)
        queue.overtake([entry], now=1.0)
    assert not queue.may_be_passed(entry, now=1.0)


def test_passed_too_long() -> None:
    queue, entry = WaitingQueue(), make_entry()
    assert queue.may_be_passed(entry, now=1000.0), "waiting alone is no reason to hold others up"
    queue.overtake([entry], now=1000.0)
    assert queue.may_be_passed(entry, now=1000.0 + 0.9 * MAX_OVERTAKEN_SECONDS)
    assert not queue.may_be_passed(entry, now=1000.0 + MAX_OVERTAKEN_SECONDS)


def test_a_new_wait_starts_from_nothing() -> None:
    queue, entry = WaitingQueue(), make_entry()
    queue.overtake([entry] * MAX_OVERTAKEN, now=0.0)
    queue.add(entry)
    assert queue.may_be_passed(entry, now=0.0)
