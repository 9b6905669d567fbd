"""A push consumer's listener, and the workers that call it: threads, the user's executor, or the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cometmq.client.push.listeners import Action, Handled, async_caller, caller, is_async
from cometmq.client.push.thread_workers import ThreadWorkers
from cometmq.client.push.workers import ExecutorWorkers, LoopWorkers
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.running_info import ConsumeResult

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.push.listener_hooks import ListenerHooks
    from cometmq.client.push.listeners import AnyListener
    from cometmq.client.push.tasks import TaskResult, Workers

__all__ = ["DirectCall", "ListenerSpec", "direct_result", "make_workers"]

DirectCall = Callable[[list["ReceivedMessage"]], Coroutine[Any, Any, Handled]]
"""Calls the listener outside of any task, and returns its answer."""

_GROUP_CHARS_IN_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """The listener and how it wants to be called.

    Attributes:
        function: plain or ``async def``; None before it is set.
        batch: it takes a list of messages.
        orderly: one call at a time for each queue, in its order.
        auto_commit: orderly: success is a commit.
        executor: where a plain one runs instead of in the consumer's own threads.
    """

    function: AnyListener | None = None
    batch: bool = False
    orderly: bool = False
    auto_commit: bool = True
    executor: Executor | None = None


def make_workers(
    spec: ListenerSpec,
    done: Callable[[list[TaskResult]], None],
    hooks: ListenerHooks,
    *,
    group: str,
    threads_max: int,
    has_interceptors: bool,
) -> tuple[Workers, DirectCall]:
    """Return the workers of a listener, and a call of it outside of them.

    Args:
        spec: the listener.
        done: gets the results of tasks, on the loop.
        hooks: surround each call.
        group: part of the threads' names.
        threads_max: most calls at once.
        has_interceptors: the user gave some, which an executor's calls would not pass.

    Raises:
        InvalidArgument: the listener cannot run in an executor.
    """
    listener = spec.function
    assert listener is not None  # checked with the settings
    if is_async(listener):
        if spec.executor is not None:
            raise InvalidArgument("the listener is async and runs on the loop: give no executor")
        awaited = hooks.around_async(async_caller(listener, batch=spec.batch))

        async def call_now(messages: list[ReceivedMessage]) -> Handled:
            return await awaited(messages)

        return LoopWorkers(awaited, done, at_once_max=threads_max), call_now
    call = hooks.around(caller(listener, batch=spec.batch))

    async def call_in_thread(messages: list[ReceivedMessage]) -> Handled:
        return await asyncio.to_thread(call, messages)

    if spec.executor is not None:
        if has_interceptors:
            raise InvalidArgument("interceptors see no messages in an executor: give one or the other")
        executor = ExecutorWorkers(spec.executor, listener, done, batch=spec.batch, at_once_max=threads_max)
        return executor, call_in_thread
    name = f"cometmq-consume_{group[:_GROUP_CHARS_IN_NAME]}"
    return ThreadWorkers(call, done, threads_max=threads_max, name=name), call_in_thread


def direct_result(handled: Handled) -> ConsumeResult:
    """Return a listener's answer as an administrator's request reports it."""
    if isinstance(handled.problem, BaseException):
        return ConsumeResult.CR_THROW_EXCEPTION
    if handled.problem is not None:
        return ConsumeResult.CR_RETURN_NULL
    if handled.is_success:
        return ConsumeResult.CR_COMMIT if handled.outcome.action is Action.COMMIT else ConsumeResult.CR_SUCCESS
    return ConsumeResult.CR_ROLLBACK if handled.outcome.action is Action.ROLLBACK else ConsumeResult.CR_LATER
