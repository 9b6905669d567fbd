"""Checks: the effects of a listener's result, row by row of upstream's tables."""

from __future__ import annotations

import pytest

from cometmq.client.push.listeners import Handled, Outcome, judge
from cometmq.client.push.outcome_policy import OrderlyStep, OrderlyVerdict, failed_messages, orderly_verdict


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (None, []),
        (Outcome.COMMIT, []),
        (Outcome.RETRY, [("a", 0), ("b", 0), ("c", 0)]),
        (Outcome.retry(delay_level=5), [("a", 5), ("b", 5), ("c", 5)]),
        (Outcome.DEAD_LETTER, [("a", -1), ("b", -1), ("c", -1)]),
        (Outcome.SUSPEND, [("a", 0), ("b", 0), ("c", 0)]),
        (Outcome.ROLLBACK, [("a", 0), ("b", 0), ("c", 0)]),
        ([None, None, Outcome.RETRY], [("c", 0)]),
        ([Outcome.DEAD_LETTER, None, Outcome.retry(delay_level=2)], [("a", -1), ("c", 2)]),
        ("nonsense", [("a", 0), ("b", 0), ("c", 0)]),
    ],
)
def test_messages_to_send_back(answer: object, failed: list[tuple[str, int]]) -> None:
    """Promises 10 and 70."""
    assert failed_messages(["a", "b", "c"], judge(answer, 3)) == failed


COMMIT = OrderlyVerdict(step=OrderlyStep.COMMIT)
GO_ON = OrderlyVerdict(step=OrderlyStep.GO_ON)
AGAIN = OrderlyVerdict(step=OrderlyStep.AGAIN)


@pytest.mark.parametrize(
    ("answer", "automatic", "manual"),
    [
        (None, COMMIT, GO_ON),
        (Outcome.COMMIT, COMMIT, COMMIT),
        (Outcome.ROLLBACK, COMMIT, OrderlyVerdict(step=OrderlyStep.ROLL_BACK)),
        (Outcome.RETRY, AGAIN, AGAIN),
        (Outcome.SUSPEND, AGAIN, AGAIN),
        (Outcome.suspend(suspend_ms=70), *[OrderlyVerdict(step=OrderlyStep.AGAIN, suspend_ms=70)] * 2),
        ([None, None], COMMIT, GO_ON),
        ([None, Outcome.COMMIT], COMMIT, COMMIT),
        ([None, Outcome.RETRY], OrderlyVerdict(step=OrderlyStep.AGAIN, done=1), AGAIN),
        ([Outcome.RETRY, None], AGAIN, AGAIN),
        (17, AGAIN, AGAIN),
    ],
)
def test_how_an_orderly_queue_goes_on(answer: object, automatic: OrderlyVerdict, manual: OrderlyVerdict) -> None:
    handled = judge(answer, 2)
    assert orderly_verdict(handled, auto_commit=True) == automatic
    assert orderly_verdict(handled, auto_commit=False) == manual


def test_an_exception_suspends() -> None:
    handled = Handled(Outcome.RETRY, problem=ValueError())
    assert orderly_verdict(handled, auto_commit=True) == AGAIN
