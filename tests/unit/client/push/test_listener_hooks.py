"""Checks: interceptors around a listener see its messages, and how each call ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.instance.hooks import ConsumeContext, Interceptor, ReturnType
from cometmq.client.push.listener_hooks import ListenerHooks
from cometmq.client.push.listeners import SUCCEEDED, Handled, Outcome
from cometmq.remoting.bodies.message_queue import MessageQueue

ENDS = [
    (SUCCEEDED, 60.0, ReturnType.SUCCESS),
    (SUCCEEDED, 0.0, ReturnType.TIME_OUT),
    (Handled(Outcome.RETRY), 60.0, ReturnType.FAILED),
    (Handled(Outcome.RETRY, problem=ValueError("no")), 0.0, ReturnType.EXCEPTION),
    (Handled(Outcome.RETRY, problem="it answered 7"), 0.0, ReturnType.RETURN_NULL),
]


def hooks_of(seen: list[tuple[str, ConsumeContext]], timeout_s: float) -> ListenerHooks:
    interceptor = Interceptor(
        before_consume=lambda context: seen.append(("before", context)),
        after_consume=lambda context: seen.append(("after", context)),
    )
    return ListenerHooks([Interceptor(), interceptor], group="g", timeout_s=timeout_s, now_ms=lambda: 17)


def await_it(work: Any) -> Handled:
    handled: Handled = asyncio.run(work)
    return handled


@pytest.mark.parametrize(("handled", "timeout_s", "expected"), ENDS)
@pytest.mark.parametrize("is_async", [False, True])
def test_each_end_has_its_type(handled: Handled, timeout_s: float, expected: ReturnType, is_async: bool) -> None:
    seen: list[tuple[str, ConsumeContext]] = []
    messages: list[Any] = [SimpleNamespace(stored_topic="t", broker_name="b", queue_id=3)]

    def call(given: list[Any]) -> Handled:
        assert [when for when, _ in seen] == ["before"]
        assert given is messages
        return handled

    async def call_async(given: list[Any]) -> Handled:
        return call(given)

    hooks = hooks_of(seen, timeout_s)
    answer = await_it(hooks.around_async(call_async)(messages)) if is_async else hooks.around(call)(messages)
    assert answer is handled
    ((_, before), (when, after)) = seen
    assert (before is after, when, after.return_type) == (True, "after", expected)
    queue = MessageQueue(topic="t", broker_name="b", queue_id=3)
    assert (after.group, after.queue, after.began_ms, after.is_success) == ("g", queue, 17, handled.is_success)


def test_nothing_is_around_a_listener_that_nobody_watches() -> None:
    def call(messages: list[Any]) -> Handled:
        return SUCCEEDED

    async def call_async(messages: list[Any]) -> Handled:
        return SUCCEEDED

    hooks = ListenerHooks([Interceptor()], group="g", timeout_s=1.0, now_ms=lambda: 0)
    assert hooks.around(call) is call
    assert hooks.around_async(call_async) is call_async
