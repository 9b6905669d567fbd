"""Checks: a signal handler may set a stop flag wherever it interrupts a wait for it."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from cometmq._stop_flag import StopFlag

LIMIT_S = 60


def wait_interrupted_at(line: int) -> tuple[StopFlag, bool]:
    """Wait for a flag that is set as if by a handler, before a line of the wait; return it, and whether it was."""
    flag = StopFlag()
    lines = [0]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            if lines[0] == line:
                flag.set()
            lines[0] += 1
        return trace

    sys.settrace(trace)
    try:
        flag.wait(0.001)
    finally:
        sys.settrace(None)
    return flag, lines[0] > line


def test_wait_may_be_interrupted_by_a_handler_that_sets_the_flag() -> None:
    outcomes: list[bool] = []

    def interrupt_each_line() -> None:
        line = 0
        while True:
            flag, was_interrupted = wait_interrupted_at(line)
            if not was_interrupted:
                return
            outcomes.append(flag.wait(0))
            line += 1

    thread = threading.Thread(target=interrupt_each_line, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"the handler waits for the wait that it interrupted, before line {len(outcomes)}"
    assert len(outcomes) > 2
    assert all(outcomes)


def test_set_flag_ends_the_wait_of_another_thread() -> None:
    flag = StopFlag()
    assert not flag.wait(0)
    assert not flag.is_set()
    threading.Timer(0.01, flag.set).start()
    assert flag.wait(LIMIT_S)
    flag.set()
    assert flag.is_set()
    assert flag.wait(0)
