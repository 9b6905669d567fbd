"""Consequences of a listener's answer: which messages go back, the commit, when an orderly queue goes on.

Plain functions over what the listener said; the engine acts. Source: consumption specification 1.10.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from cometmq.client.push.listeners import Action, Handled

__all__ = ["CHAIN_MAX_MS", "OrderlyStep", "OrderlyVerdict", "failed_messages", "orderly_verdict"]

CHAIN_MAX_MS: Final = 60_000
"""An orderly queue gives its worker to others after so long."""

M = TypeVar("M")

_DONE = (Action.SUCCESS, Action.COMMIT)


def failed_messages(messages: Sequence[M], handled: Handled) -> list[tuple[M, int]]:
    """Return what a concurrent listener did not take, each with the delay level of its next try.

    Answers of orderly listeners count here as their nearest: COMMIT as success, SUSPEND and ROLLBACK as retry.
    """
    if handled.each is None:
        outcome = handled.outcome
        return [] if outcome.action in _DONE else [(message, outcome.delay_level) for message in messages]
    return [
        (message, outcome.delay_level)
        for message, outcome in zip(messages, handled.each, strict=True)
        if outcome.action not in _DONE
    ]


class OrderlyStep(enum.Enum):
    """How an orderly queue goes on after one call of its listener."""

    COMMIT = "the listener's messages are done"
    GO_ON = "it is done when a commit follows"
    ROLL_BACK = "all since the last commit are delivered again"
    AGAIN = "failed ones are delivered again, unless they were tried often enough"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderlyVerdict:
    """The decision on one chunk of an orderly queue.

    Attributes:
        step: the next step.
        done: ``AGAIN``: how many of the first messages are done all the same.
        suspend_ms: ``ROLL_BACK`` and ``AGAIN``: the listener's pause of the queue, -1 if it chose none.
    """

    step: OrderlyStep
    done: int = 0
    suspend_ms: int = -1


_COMMIT = OrderlyVerdict(step=OrderlyStep.COMMIT)
_GO_ON = OrderlyVerdict(step=OrderlyStep.GO_ON)


def orderly_verdict(handled: Handled, *, auto_commit: bool) -> OrderlyVerdict:
    """Return what follows from an orderly listener's answer.

    Args:
        handled: the answer. Of outcomes for each message the first failure counts; messages before it are done.
        auto_commit: success is a commit; then a ROLLBACK is taken for one too, as upstream does with a warning.
    """
    outcome, done = handled.outcome, 0
    if handled.each is not None:
        for one in handled.each:
            outcome = one
            if one.action not in _DONE:
                break
            done += 1
    if outcome.action in (Action.RETRY, Action.SUSPEND):
        return OrderlyVerdict(step=OrderlyStep.AGAIN, done=done if auto_commit else 0, suspend_ms=outcome.suspend_ms)
    if auto_commit or outcome.action is Action.COMMIT:
        return _COMMIT
    if outcome.action is Action.ROLLBACK:
        return OrderlyVerdict(step=OrderlyStep.ROLL_BACK, suspend_ms=outcome.suspend_ms)
    return _GO_ON
