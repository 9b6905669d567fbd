"""Administration calls without sockets: generators that yield requests and take their answers.

Neither this module nor those that use it have sockets, so that each call is tested against captured answers. One driver
for asyncio runs them (:mod:`cometmq.admin.channels`); the blocking surface runs that driver in a thread.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from cometmq.admin.advice import advice_for
from cometmq.errors import BrokerError, Error
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command

__all__ = ["Answer", "Call", "Operation", "accepted", "ask", "ask_all", "succeeded"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one server.

    Attributes:
        address: the server, ``host:port``.
        request: the request.
        timeout_ms: longest wait for the answer, connecting included.
    """

    address: str
    request: Command
    timeout_ms: int


Answer: TypeAlias = "Command | Error"
"""An answer with any code, or why none came: :class:`ConnectionLost`, :class:`RequestTimeout`."""

Operation: TypeAlias = Generator[tuple[Call, ...], "list[Answer]", T]
"""A call in progress: yields requests that may be made at the same time, is sent their answers in the same order."""


def ask(call: Call) -> Operation[Command]:
    """Ask one server; return its answer with any code.

    Raises:
        ConnectionLost: it could not be reached, or the connection ended.
        RequestTimeout: no answer came in time.
    """
    (answer,) = yield (call,)
    if isinstance(answer, Error):
        raise answer
    return answer


def ask_all(calls: Iterable[Call]) -> Operation[list[tuple[Call, Answer]]]:
    """Ask several servers at the same time; return each call with its answer, or with why none came."""
    asked = tuple(calls)
    if not asked:
        return []
    answers = yield asked
    return list(zip(asked, answers, strict=True))


def accepted(call: Call, answer: Answer, *codes: int) -> Command:
    """Return the answer if it says success or has one of the codes; else raise what it says instead.

    Raises:
        BrokerError: another code; the text says what to do about it.
        ConnectionLost, RequestTimeout: no answer came.
    """
    if isinstance(answer, Error):
        raise answer
    if answer.code != ResponseCode.SUCCESS and answer.code not in codes:
        advice = advice_for(answer.code, request_code=call.request.code)
        raise BrokerError(answer.remark, code=answer.code, address=call.address, advice=advice)
    return answer


def succeeded(call: Call, *codes: int) -> Operation[Command]:
    """Ask one server; return an answer that says success or has one of the codes.

    Raises:
        BrokerError, ConnectionLost, RequestTimeout: as :func:`accepted`.
    """
    return accepted(call, (yield from ask(call)), *codes)
