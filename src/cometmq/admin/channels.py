"""Runs operations on asyncio: a channel to each server that is asked, made when it is first needed.

Threads: the event loop's, which is the one of the first call, until the channels are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from cometmq.admin.operation import Answer, Call, Operation
from cometmq.client.instance.own_loop import OwnLoop
from cometmq.errors import Error
from cometmq.remoting.channel import AsyncChannel
from cometmq.remoting.command import Command
from cometmq.remoting.network import RpcHook, after_answer, before_request, check_hooks

__all__ = ["Channel", "Channels", "ChannelFactory"]

T = TypeVar("T")


class Channel(Protocol):
    """The way to one server."""

    async def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and return its answer, whatever its code."""

    async def close(self) -> None:
        """End it."""


ChannelFactory = Callable[[str], Channel]
"""Makes the channel to an address."""


class Channels:
    """The channels of one administration session."""

    def __init__(self, factory: ChannelFactory = AsyncChannel, *, hooks: Sequence[RpcHook] = ()) -> None:
        """Nothing is connected yet.

        Args:
            factory: makes a channel.
            hooks: see every request and answer.

        Raises:
            InvalidArgument: these are no hooks.
        """
        check_hooks(hooks)
        self._factory = factory
        self._hooks = tuple(hooks)
        self._channels: dict[str, Channel] = {}
        self._own_loop = OwnLoop("session")

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end; return what it returns and raise what it raises."""
        try:
            calls = next(operation)
            while True:
                calls = operation.send(await self._answers(calls))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            operation.close()

    async def _answers(self, calls: tuple[Call, ...]) -> list[Answer]:
        if len(calls) == 1:
            return [await self.answer(calls[0])]
        return list(await asyncio.gather(*(self.answer(call) for call in calls)))

    async def answer(self, call: Call) -> Answer:
        """Make a call; return its answer, or the error that kept it from coming."""
        self._own_loop.require()
        try:
            channel = self._channels.get(call.address)
            if channel is None:
                channel = self._channels[call.address] = self._factory(call.address)
                self._own_loop.bind()
            request = before_request(self._hooks, call.address, call.request)
            answer = await channel.invoke(request, timeout_ms=call.timeout_ms)
            after_answer(self._hooks, call.address, request, answer)
            return answer
        except Error as error:
            return error

    async def close(self) -> None:
        """Close all connections."""
        self._own_loop.require()
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))
        self._own_loop.release()
