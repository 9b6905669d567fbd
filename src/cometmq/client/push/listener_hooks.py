"""Interceptors around a push consumer's listener: they see each call's messages before it, and how it ended after it.

Invariant: without an interceptor for listeners a call is the listener's own, with nothing around it.

Threads: the listener's worker. Source: consumption specification 1.17, 2.6 (upstream's ConsumeMessageHook).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.client.instance.hooks import ConsumeContext, Interceptor, ReturnType, run_hooks
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.push.listeners import AsyncCall, Call, Handled

__all__ = ["ListenerHooks"]


class ListenerHooks:
    """The interceptors of one consumer's listener."""

    def __init__(
        self, interceptors: Sequence[Interceptor], *, group: str, timeout_s: float, now_ms: Callable[[], int]
    ) -> None:
        """Take those that want to see what is consumed.

        Args:
            interceptors: the consumer's.
            group: its group.
            timeout_s: a call that takes longer is over its time.
            now_ms: the wall clock.
        """
        self._before = [one.before_consume for one in interceptors if one.before_consume is not None]
        self._after = [one.after_consume for one in interceptors if one.after_consume is not None]
        self._group = group
        self._timeout_s = timeout_s
        self._now_ms = now_ms

    def around(self, call: Call) -> Call:
        """Return the call with the interceptors around it."""
        if not self._before and not self._after:
            return call

        def call_between(messages: list[ReceivedMessage]) -> Handled:
            context, began_s = self._begin(messages)
            handled = call(messages)
            self._end(context, handled, time.perf_counter() - began_s)
            return handled

        return call_between

    def around_async(self, call: AsyncCall) -> AsyncCall:
        """Return the call of an ``async def`` listener with the interceptors around it."""
        if not self._before and not self._after:
            return call

        async def call_between(messages: list[ReceivedMessage]) -> Handled:
            context, began_s = self._begin(messages)
            handled = await call(messages)
            self._end(context, handled, time.perf_counter() - began_s)
            return handled

        return call_between

    def _begin(self, messages: list[ReceivedMessage]) -> tuple[ConsumeContext, float]:
        first = messages[0]
        queue = MessageQueue(topic=first.stored_topic, broker_name=first.broker_name, queue_id=first.queue_id)
        context = ConsumeContext(group=self._group, queue=queue, messages=messages.copy(), began_ms=self._now_ms())
        run_hooks(self._before, context)
        return context, time.perf_counter()

    def _end(self, context: ConsumeContext, handled: Handled, elapsed_s: float) -> None:
        context.elapsed_ms = elapsed_s * 1000
        context.is_success = handled.is_success
        if isinstance(handled.problem, BaseException):
            context.return_type = ReturnType.EXCEPTION
        elif handled.problem is not None:
            context.return_type = ReturnType.RETURN_NULL
        elif elapsed_s >= self._timeout_s:
            context.return_type = ReturnType.TIME_OUT
        else:
            context.return_type = ReturnType.SUCCESS if context.is_success else ReturnType.FAILED
        run_hooks(self._after, context)
