"""Checks: any listener, result or exception has a meaning for the caller, which goes on."""

from __future__ import annotations

import asyncio
import functools
import pickle
from typing import Any

import pytest

from cometmq.client.push.listeners import (
    SUCCEEDED,
    Action,
    Outcome,
    async_caller,
    call_elsewhere,
    caller,
    is_async,
    judge,
)
from cometmq.errors import InvalidArgument

# A listener's messages are passed on as they are, so anything can stand for one here.
MESSAGES: Any = ["m1", "m2"]


class NotForPickle(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("answer", [None, Outcome.SUCCESS, [None, None], (Outcome.SUCCESS, None), Outcome.COMMIT])
def test_success(answer: object) -> None:
    """Promise 70: the answer is a status."""
    handled = judge(answer, 2)
    assert handled.is_success
    assert handled.problem is None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("done", "returned a str"),
        (True, "returned a bool"),
        ([None], "returned 1 outcome for 2 messages: return one"),
        ([None, "x"], "returned a list"),
        (0, "returned a int"),
    ],
)
def test_nonsense_is_a_retry_that_says_why(answer: object, says: str) -> None:
    handled = judge(answer, 2)
    assert handled.outcome is Outcome.RETRY
    assert says in str(handled.problem)


def test_a_coroutine_of_a_plain_function_is_closed_and_reported() -> None:
    async def late() -> None:
        raise AssertionError

    handled = caller(lambda _: late(), batch=False)(MESSAGES[:1])
    assert "async def" in str(handled.problem)


def test_outcomes_of_each_message() -> None:
    handled = judge([None, Outcome.retry(delay_level=4)], 2)
    assert not handled.is_success
    assert handled.each == (Outcome.SUCCESS, Outcome(Action.RETRY, delay_level=4))


def test_outcomes_are_checked_when_they_are_made() -> None:
    with pytest.raises(InvalidArgument, match="delay_level is 0"):
        Outcome.retry(delay_level=0)
    with pytest.raises(InvalidArgument, match="suspend_ms is -1"):
        Outcome.suspend(suspend_ms=-1)
    assert Outcome.DEAD_LETTER.delay_level == -1


def test_one_message_or_all() -> None:
    """Promise 13: the listener is called back with what was pulled."""
    seen: list[object] = []
    assert caller(seen.append, batch=False)(MESSAGES[:1]) is SUCCEEDED
    assert caller(seen.append, batch=True)(MESSAGES) is SUCCEEDED
    assert seen == ["m1", ["m1", "m2"]]


def test_a_listener_cannot_spoil_the_list_that_is_counted() -> None:
    """Promise 70: upstream gives a read-only list; here it is a copy."""
    messages: Any = ["m1", "m2"]
    caller(lambda batch: batch.clear(), batch=True)(messages)
    assert messages == ["m1", "m2"]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
@pytest.mark.parametrize("batch", [False, True])
def test_any_exception_is_a_retry(error: BaseException, batch: bool) -> None:
    def listener(_: object) -> None:
        raise error

    handled = caller(listener, batch=batch)(MESSAGES[:1])
    assert (handled.outcome, handled.problem) == (Outcome.RETRY, error)


def test_async_listeners() -> None:
    async def one(message: object) -> Outcome:
        await asyncio.sleep(0)
        assert message == "m1"
        return Outcome.RETRY

    async def fails(messages: list[object]) -> None:
        assert messages == ["m1", "m2"]
        raise ValueError("no")

    assert asyncio.run(_await(async_caller(one, batch=False), MESSAGES[:1])).outcome is Outcome.RETRY
    handled = asyncio.run(_await(async_caller(fails, batch=True), MESSAGES))
    assert (handled.outcome, str(handled.problem)) == (Outcome.RETRY, "no")


async def _await(call: Any, messages: Any) -> Any:
    return await call(messages)


def test_which_listeners_are_async() -> None:
    async def listener(_: object) -> None: ...

    class Callable:
        async def __call__(self, _: object) -> None: ...

    assert is_async(listener)
    assert is_async(functools.partial(listener))
    assert is_async(Callable())
    assert not is_async(print)
    assert not is_async(lambda _: None)


def test_elsewhere_each_part_is_called_for() -> None:
    def listener(message: object) -> Outcome | None:
        return Outcome.RETRY if message == "bad" else None

    parts: Any = [["a"], ["bad"], ["b"]]
    assert [one.is_success for one in call_elsewhere(listener, False, parts)] == [True, False, True]


def test_answers_of_executors_can_be_pickled() -> None:
    def listener(message: object) -> None:
        raise NotForPickle(1, 2) if message == "odd" else ValueError("plain")

    odd, plain = pickle.loads(pickle.dumps(call_elsewhere(listener, False, [["odd"], ["plain"]])))  # type: ignore[list-item]
    assert "NotForPickle: 1 and 2" in odd.problem
    assert isinstance(plain.problem, ValueError)
    assert odd.outcome == Outcome.RETRY
