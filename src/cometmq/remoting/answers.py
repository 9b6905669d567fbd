"""How handlers refuse: an exception that is a code and a remark, and the frame around a handler that answers it.

A handler returns its answer and raises everything that stops it. A peer's mistake becomes an answer without a line in
the log; an unexpected exception propagates to the server, which answers code 1 and logs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Final, Protocol, TypeAlias, TypeVar, cast

from cometmq.errors import Error, InvalidArgument, InvalidTopic, MalformedBody, MalformedCommand
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.errors import ConfigError

__all__ = [
    "INLINE_BODY_BYTES",
    "Caller",
    "Handler",
    "Outcome",
    "Refusal",
    "Table",
    "answering",
    "ok",
    "read_apart",
    "table_of",
    "with_body",
]

T = TypeVar("T")

INLINE_BODY_BYTES: Final = 2_048
"""Longest body that is read on the event loop: its worst content takes 5 ms."""


class Caller(Protocol):
    """The sender of a request: one connection."""

    @property
    def conn(self) -> int:
        """The connection's id, never used again."""

    @property
    def peer(self) -> str:
        """The other end, ``ip:port``."""

    @property
    def is_busy(self) -> bool:
        """True while work of the connection is apart, and its handlers have not gone on."""

    def apart(self, work: Callable[[], T]) -> Awaitable[T]:
        """Call a function outside the event loop, behind other such work of the connection; return what it returns.

        Raises:
            Refusal: too much work of the connection waits.
            Exception: from the function.
        """

    def store_apart(self, work: Callable[[], T]) -> Awaitable[T]:
        """Do the same with a function that waits for the disk: a connection has a few at a time, in no order."""


Outcome: TypeAlias = object
"""A :class:`Command` (the answer), None (no answer), or a verdict of the server."""

Handler: TypeAlias = Callable[[Command, Caller], "Outcome | Awaitable[Outcome]"]
Table: TypeAlias = dict[int, Handler]
"""Request code to its handler."""


class Refusal(Error):
    """The answer to a request is a code other than success.

    Attributes:
        code: the response code.
        remark: upstream's text, or ours.
    """

    def __init__(self, code: int, remark: str) -> None:
        """Keep both."""
        super().__init__(remark)
        self.code = code
        self.remark = remark


def ok(request: Command, *, body: bytes = b"", fields: dict[str, str] | None = None) -> Command:
    """Return the answer that says success and no more than that."""
    return request.response(ResponseCode.SUCCESS, body=body, fields=fields)


def _refused(request: Command, error: Error) -> Command:
    if isinstance(error, Refusal):
        return request.response(error.code, remark=error.remark)
    code = ResponseCode.INVALID_PARAMETER if isinstance(error, InvalidTopic) else ResponseCode.SYSTEM_ERROR
    return request.response(code, remark=error.message)


async def read_apart(request: Command, caller: Caller, read: Callable[[bytes], T]) -> T:
    """Read a request's body: a short one at once, a long one outside the event loop.

    A short one that comes behind a long one of its connection waits for it, so that requests stay in order.
    """
    if len(request.body) <= INLINE_BODY_BYTES and not caller.is_busy:
        return read(request.body)
    return await caller.apart(lambda: read(request.body))


def with_body(
    read: Callable[[bytes], T], serve: Callable[[Command, Caller, T], Outcome | Awaitable[Outcome]]
) -> Handler:
    """Return a handler of requests whose body is read as :func:`read_apart` does."""

    async def later(request: Command, caller: Caller, body: Awaitable[T]) -> Outcome:
        outcome = serve(request, caller, await body)
        return await cast("Awaitable[Outcome]", outcome) if isawaitable(outcome) else outcome

    def handle(request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        if len(request.body) <= INLINE_BODY_BYTES and not caller.is_busy:
            return serve(request, caller, read(request.body))
        return later(request, caller, caller.apart(lambda: read(request.body)))

    return handle


_PEERS_FAULTS = (Refusal, MalformedCommand, MalformedBody, ConfigError, InvalidArgument)


def answering(handler: Handler) -> Handler:
    """Return the handler with its refusals, and errors in a request, turned into answers."""

    async def later(request: Command, outcome: Awaitable[Outcome]) -> Outcome:
        try:
            return await outcome
        except _PEERS_FAULTS as error:
            return _refused(request, error)

    def handle(request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        try:
            outcome = handler(request, caller)
        except _PEERS_FAULTS as error:
            return _refused(request, error)
        return later(request, cast("Awaitable[Outcome]", outcome)) if isawaitable(outcome) else outcome

    return handle


def table_of(parts: Iterable[Table]) -> Table:
    """Lay the tables of several parts over each other, each handler within :func:`answering`.

    Raises:
        InvalidArgument: two parts want the same code.
    """
    whole: Table = {}
    for part in parts:
        for code, handler in part.items():
            if code in whole:
                raise InvalidArgument(f"request code {code} has two handlers")
            whole[int(code)] = answering(handler)
    return whole
