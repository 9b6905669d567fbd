"""Checks: numbers and times that callers give are taken within their range, and all else is refused by name."""

from __future__ import annotations

import math

import pytest

from cometmq.client.arguments import milliseconds, several, whole_number
from cometmq.errors import InvalidArgument


def test_whole_numbers() -> None:
    assert whole_number("n", 0) == 0
    assert whole_number("n", -5, minimum=None) == -5
    assert whole_number("n", 1_024, minimum=1, maximum=1_024) == 1_024
    for wrong in (1.5, True, "3", None, math.nan):
        with pytest.raises(InvalidArgument, match=r"n is .*whole number"):
            whole_number("n", wrong)
    with pytest.raises(InvalidArgument, match="n is -1: it must not be below 0"):
        whole_number("n", -1)
    with pytest.raises(InvalidArgument, match="n is 2000: it must be from 1 to 1,024"):
        whole_number("n", 2000, minimum=1, maximum=1_024)


def test_times() -> None:
    assert milliseconds("t", 1.2345, maximum_ms=5_000) == 1_234
    assert milliseconds("t", 0, maximum_ms=5_000) == 0
    assert milliseconds("t", 5, maximum_ms=5_000) == 5_000
    assert milliseconds("t", 0.001, minimum_ms=1, maximum_ms=5_000) == 1
    for wrong in ("3", None, True, [1]):
        with pytest.raises(InvalidArgument, match=r"t is .*a number of seconds"):
            milliseconds("t", wrong, maximum_ms=5_000)
    for outside in (math.nan, math.inf, -math.inf, -1, -0.0001, 5.1, 10**400):
        with pytest.raises(InvalidArgument, match="it must be from 0 to 5 seconds"):
            milliseconds("t", outside, maximum_ms=5_000)
    with pytest.raises(InvalidArgument, match=r"from 0.001 to 5 seconds \(as the proxy\)"):
        milliseconds("t", 0.0005, minimum_ms=1, maximum_ms=5_000, of_limit=" (as the proxy)")


def test_several_of_a_kind() -> None:
    assert several("call", iter([1, 2]), int, "numbers") == [1, 2]
    assert several("call", (), int, "numbers") == []
    wrong: list[object] = [None, 5, "text", ["text"], [1, None]]
    for value in wrong:
        with pytest.raises(InvalidArgument, match=r"call\(\) was given .*: it takes numbers"):
            several("call", value, int, "numbers")
