"""Checks: the limits on sends in flight."""

from __future__ import annotations

import signal
import threading

import pytest

from cometmq.client.send.pressure import BackPressure
from cometmq.errors import LimitReached


def test_messages_and_bytes_have_limits() -> None:
    pressure = BackPressure(2, 100)
    first = pressure.enter(60, timeout_s=0)
    with pytest.raises(LimitReached, match="back_pressure_for_async_send_size_bytes"):
        pressure.enter(60, timeout_s=0)
    second = pressure.enter(0, timeout_s=0)
    with pytest.raises(LimitReached):
        pressure.enter(0, timeout_s=0)
    assert (first, second) == (60, 1)
    pressure.leave(first)
    pressure.leave(second)
    assert repr(pressure) == "BackPressure(2 messages, 100 bytes left, 0 wait)"


def test_a_message_longer_than_all_room_goes_alone() -> None:
    pressure = BackPressure(2, 100)
    assert pressure.enter(1_000, timeout_s=0) == 100
    with pytest.raises(LimitReached):
        pressure.enter(1, timeout_s=0)


def test_a_leaving_send_lets_a_waiting_one_in() -> None:
    pressure = BackPressure(1, 100)
    needed = pressure.enter(10, timeout_s=0)
    entered: list[int] = []
    threads = [threading.Thread(target=lambda: entered.append(pressure.enter(10, timeout_s=30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for count in range(3):
        while f"{3 - count} wait" not in repr(pressure):
            threading.Event().wait(0.001)
        pressure.leave(needed)
        while len(entered) <= count:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)
    pressure.leave(needed)
    assert entered == [10, 10, 10]
    assert repr(pressure) == "BackPressure(1 messages, 100 bytes left, 0 wait)"


def test_a_short_message_does_not_overtake_a_long_one_that_waits() -> None:
    pressure = BackPressure(10, 100)
    held = pressure.enter(50, timeout_s=0)
    waiter = threading.Thread(target=pressure.enter, args=(80,), kwargs={"timeout_s": 30})
    waiter.start()
    while "1 wait" not in repr(pressure):
        threading.Event().wait(0.001)
    with pytest.raises(LimitReached):
        pressure.enter(1, timeout_s=0)
    pressure.leave(held)
    waiter.join(30)
    assert not waiter.is_alive()


def test_an_interrupted_waiter_leaves_the_line() -> None:
    pressure = BackPressure(1, 100)
    needed = pressure.enter(10, timeout_s=0)
    main = threading.get_ident()

    def interrupt() -> None:
        while "1 wait" not in repr(pressure):
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pressure.enter(10, timeout_s=30)
    thread.join(30)
    pressure.leave(needed)
    assert repr(pressure) == "BackPressure(1 messages, 100 bytes left, 0 wait)"
