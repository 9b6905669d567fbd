"""Attacks by SQL92: expressions and properties that cost the most."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cometmq._engine import Selector

LONG = 32_000
EXPRESSION_BYTES = 65_536


def repeated(condition: str) -> str:
    """Return the longest expression of one condition."""
    return " OR ".join([condition] * (EXPRESSION_BYTES // (len(condition) + 4)))


def cpu(action: Callable[[], object]) -> int:
    """Return the least nanoseconds of CPU of an action."""
    costs = []
    for _ in range(5):
        began = time.thread_time_ns()
        action()
        costs.append(time.thread_time_ns() - began)
    return min(costs)


WORST = {
    "a long double": ("a<1.5", f"a\x01{'0' * LONG}9\x02"),
    "a long integer": ("a<1", f"a\x01{'0' * LONG}9\x02"),
    "two long doubles": ("a<b", f"a\x01{'0' * (LONG // 2)}9\x02b\x01{'0' * (LONG // 2)}8\x02"),
    "two long texts": ("a=b", f"a\x01{'x' * (LONG // 2)}\x02b\x01{'x' * (LONG // 2 - 1)}y\x02"),
    "searches": ("a CONTAINS 'y'", f"a\x01{'x' * LONG}\x02"),
    "searches for 20 bytes": (f"a CONTAINS '{'x' * 10}y{'x' * 9}'", f"a\x01{'x' * LONG}\x02"),
    "searches for 60 bytes": (f"a CONTAINS '{'x' * 30}y{'x' * 29}'", f"a\x01{'x' * LONG}\x02"),
    "searches for a long text": (f"a CONTAINS '{'x' * 100}y{'x' * 100}'", f"a\x01{'x' * LONG}\x02"),
}


@pytest.mark.parametrize("attack", WORST)
def test_long_expression_over_long_properties_costs_as_much_as_many_short_ones(attack: str) -> None:
    """Thousands of steps over 32 KB cost less than 200 looks at them."""
    condition, text = WORST[attack]
    properties = text.encode()
    one, worst = Selector(condition), Selector(repeated(condition))
    assert cpu(lambda: worst.answer(properties)) < 200 * cpu(lambda: one.answer(properties))
