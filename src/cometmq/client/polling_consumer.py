"""The base of blocking consumers that are polled for messages: the loop they work on, their start, and their state.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cometmq.client.instance.background import ClientLoop
from cometmq.client.instance.service_state import ServiceState

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PollingConsumer"]

_T = TypeVar("_T")


class _Engine(Protocol):
    @property
    def state(self) -> ServiceState: ...

    async def start(self) -> None: ...


class PollingConsumer:
    """The blocking surface over an engine; subclasses make the engine."""

    _engine: _Engine

    def __init__(self) -> None:
        """Take no loop yet."""
        self._loop = ClientLoop()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run(work)

    def _on_loop(self, call: Callable[[], _T]) -> _T:
        async def run() -> _T:
            return call()

        return self._run(run())

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return self._engine.state

    def start(self) -> Self:
        """Start; returns itself.

        Raises:
            InvalidArgument: a setting cannot be used.
            ClientStateError: it was started before.
            GroupTaken: another consumer of the group is on the same client instance.
            ForkedClient: its loop belongs to the process of which this one is a fork.
        """
        self._run(self._engine.start())
        return self

    def __enter__(self) -> Self:
        """Start."""
        return self.start()
