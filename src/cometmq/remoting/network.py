"""How the client's engines reach servers: a protocol of five calls.

:class:`cometmq.remoting.hub.Hub` is the real one; a simulator is another. Addresses are ``host:port``. Failures on the
way are :class:`ConnectionLost`, :class:`RequestTimeout` and :class:`LimitReached`; an answer that makes no sense is
:class:`MalformedCommand`, a request that no frame can hold :class:`InvalidArgument`. After ConnectionLost,
RequestTimeout and MalformedCommand nothing is known about the request.

Source: remoting specification 1.9, 1.10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cometmq.errors import HookFailed, InvalidArgument, WrongType
from cometmq.remoting.command import Command

if TYPE_CHECKING:
    from cometmq._engine import Link, PullAnswer, PullRequest, SendAnswer, SendRequest
    from cometmq.errors import Error

    OnSendAnswer: TypeAlias = Callable[[SendAnswer | Error], object]
    OnPullAnswer: TypeAlias = Callable[[PullAnswer | Error], object]

__all__ = ["Network", "RpcHook", "after_answer", "before_request", "check_hooks"]


class Network(Protocol):
    """Requests to servers by their addresses. Connections are made when they are first needed, and again when lost."""

    @property
    def links(self) -> dict[str, Link] | None:
        """Connections by address that :meth:`send` would use as they are; None where it has more to do."""
        ...

    async def invoke(self, address: str, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and return its answer, whatever its code. On the loop only.

        Args:
            address: the server, ``host:port``.
            request: the request; its number and its header's format are given here.
            timeout_ms: longest wait, connecting included.

        Raises:
            ConnectionLost: no connection could be made, or it ended before the answer came.
            RequestTimeout: no answer came in time.
            LimitReached: too many requests wait, or too many bytes are unsent.
            InvalidArgument: the address is not one, or no frame can hold the request.
        """
        ...

    def send(self, address: str, request: SendRequest, on_answer: OnSendAnswer | None, *, timeout_ms: int) -> None:
        """Send a message. Any thread; never blocks, and raises nothing for what the network does.

        Args:
            address: the broker, ``host:port``.
            request: the message, which must not be changed until the answer has come.
            on_answer: called exactly once, on the loop, with the answer or with the error. None sends one-way.
            timeout_ms: longest wait, connecting included.
        """
        ...

    def pull(self, address: str, request: PullRequest, on_answer: OnPullAnswer, *, timeout_ms: int) -> None:
        """Ask for messages. As :meth:`send`; the broker may hold the request as long as that one says."""
        ...

    def oneway(self, address: str, request: Command) -> None:
        """Send a request that gets no answer. Any thread; a failure is logged at level INFO."""
        ...

    async def close(self) -> None:
        """Close all connections; waiting and later calls get ConnectionLost. On the loop only."""
        ...


class RpcHook(Protocol):
    """Sees every request before it is numbered and every answer, for example to sign requests. Called on any thread.

    An exception of a hook fails its request with :class:`cometmq.errors.HookFailed`. The time that ``before_request``
    takes counts against the request's time-out.
    """

    def before_request(self, address: str, request: Command) -> Command:
        """Return the request as it shall be sent."""
        ...

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        """Take note of an answer."""
        ...


def before_request(hooks: Iterable[RpcHook], address: str, request: Command) -> Command:
    """Return the request as the hooks want it sent.

    Raises:
        HookFailed: one raised, or returned something else than a request.
    """
    hook = None
    try:
        for hook in hooks:
            request = _a_request(hook.before_request(address, request))
    except Exception as error:
        raise HookFailed(f"{hook!r} failed before request {request.code} to {address}: {error}") from error
    return request


def _a_request(returned: object) -> Command:
    if not isinstance(returned, Command):
        raise WrongType(f"before_request returned {returned!r:.60}: return the request")
    return returned


def after_answer(hooks: Iterable[RpcHook], address: str, request: Command, answer: Command) -> None:
    """Let the hooks see an answer.

    Raises:
        HookFailed: one raised.
    """
    hook = None
    try:
        for hook in hooks:
            hook.after_answer(address, request, answer)
    except Exception as error:
        raise HookFailed(f"{hook!r} failed after {address} answered request {request.code}: {error}") from error


def check_hooks(hooks: object) -> None:
    """Return where these are hooks.

    Raises:
        InvalidArgument: they are not a list of them, or one is a class.
    """
    for hook in hooks if isinstance(hooks, Sequence) else ():
        if isinstance(hook, type):
            made = hook.__name__
            raise InvalidArgument(f"rpc_hooks has the class {made}: give an instance of it, {made}(...)")
    if not isinstance(hooks, Sequence) or not all(_is_hook(hook) for hook in hooks):
        raise InvalidArgument(
            f"rpc_hooks is {hooks!r}: give a list of hooks, each with the methods before_request and after_answer"
        )


def _is_hook(hook: object) -> bool:
    return all(callable(getattr(hook, name, None)) for name in ("before_request", "after_answer"))
