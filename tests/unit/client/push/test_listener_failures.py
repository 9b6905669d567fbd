"""Checks: of listeners that fail the log has each way of failing in full once, and how often it came again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.client.push.listener_failures import TOLD_AGAIN_S, ListenerFailures
from cometmq.client.push.listeners import SUCCEEDED, Handled, Outcome, caller
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.virtual_loop import VirtualLoop, run_virtual

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=0)


class _Message:
    queue_offset = 7


PART: Any = [_Message()]


def failed(error: type[Exception], text: str) -> Handled:
    def listener(message: object) -> None:
        raise error(text)

    call: Any = caller(listener, batch=False)
    handled: Handled = call(PART)
    return handled


def played(use: Callable[[ListenerFailures, VirtualLoop], Awaitable[None]], **given: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        await use(ListenerFailures("g", **given), loop)

    run_virtual(main)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, bool]]]:
    """Return the warnings since the last call: text, and whether there is a traceback."""
    caplog.set_level(logging.DEBUG, logger="cometmq.client.push.listener_failures")

    def take() -> list[tuple[str, bool]]:
        found = [
            (one.getMessage(), one.exc_info is not None) for one in caplog.records if one.levelno >= logging.WARNING
        ]
        caplog.clear()
        return found

    return take


def test_the_first_is_logged_in_full_and_the_others_are_counted(told: Callable[[], list[tuple[str, bool]]]) -> None:
    async def use(failures: ListenerFailures, loop: VirtualLoop) -> None:
        for number in range(1_000):
            failures.note(QUEUE, PART, failed(ValueError, f"number {number}"))
        ((text, has_traceback),) = told()
        assert text.startswith("group g: the listener failed with 1 message from offset 7 of ")
        assert text.endswith("; the queue waits: ValueError('number 0')")
        assert has_traceback
        await asyncio.sleep(TOLD_AGAIN_S)
        ((text, has_traceback),) = told()
        assert "in the same way with 999 messages more; the queue waits: ValueError('number 999')" in text
        assert "test_listener_failures.py:" in text
        assert not has_traceback
        # Nothing for as long again: it is news when it comes back.
        await asyncio.sleep(TOLD_AGAIN_S)
        failures.note(QUEUE, PART, failed(ValueError, "again"))
        assert [has_traceback for _, has_traceback in told()] == [True]
        failures.close()
        assert told() == []

    played(use, consequence="the queue waits")


def test_each_kind_of_failure_is_logged(told: Callable[[], list[tuple[str, bool]]]) -> None:
    async def use(failures: ListenerFailures, loop: VirtualLoop) -> None:
        for _ in range(3):
            failures.note(QUEUE, PART, failed(ValueError, "x"))
            failures.note(QUEUE, PART, failed(KeyError, "x"))
            failures.note(QUEUE, PART, Handled(Outcome.RETRY, problem="the listener returned an int"))
            failures.note(QUEUE, PART, Handled(Outcome.RETRY))
            failures.note(QUEUE, PART, SUCCEEDED)
        assert [has_traceback for _, has_traceback in told()] == [True, True, False]
        failures.close()
        assert ["with 2 messages more" in text for text, _ in told()] == [True] * 3

    played(use)


def test_ways_of_failing_that_never_end_take_no_more_room(told: Callable[[], list[tuple[str, bool]]]) -> None:
    async def use(failures: ListenerFailures, loop: VirtualLoop) -> None:
        for number in range(1_000):
            failures.note(QUEUE, PART, Handled(Outcome.RETRY, problem=f"problem {number}"))
            assert len(failures._kinds) <= 64
        assert len(told()) == 1_000
        failures.close()

    played(use)
