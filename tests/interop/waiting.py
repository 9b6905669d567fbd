"""Waiting for what is so a moment later: always for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 60.0
_STEP_S = 0.02


def eventually(
    question: Callable[[], T], holds: Callable[[T], object] = bool, *, limit_s: float = LIMIT_S, step_s: float = _STEP_S
) -> T:
    """Asks until the answer is as it should be, and returns it.

    Args:
        question: asked again and again.
        holds: whether an answer will do; by default, whether it is true.
        limit_s: longest wait, seconds.
        step_s: pause between two questions, seconds.

    Raises:
        AssertionError: it never was; the text has the last answer.
    """
    end = time.monotonic() + limit_s
    while True:
        answer = question()
        if holds(answer):
            return answer
        assert time.monotonic() < end, f"not within {limit_s} s; the last answer: {answer!r}"
        time.sleep(step_s)
