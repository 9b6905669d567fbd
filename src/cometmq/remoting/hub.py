"""The client's connections to all servers (:class:`Hub`): the real :class:`cometmq.remoting.network.Network`.

There is one connection per server. Its state, its frames and the matching of answers are the engine's
(:class:`cometmq._engine.Link`); here sockets are connected, watched and closed, on the loop. A request is written by
the thread that makes it where nothing waits; frames that wait go out together.

A connection ends as those of :mod:`cometmq.remoting.channel` do: after ``idle_timeout_ms`` without a byte either way;
when a request timed out and nothing at all has come since it was sent, or the incomplete frame at hand began 30 s ago;
when the bytes received are not a frame. An answer 1500 (the server is going down) makes a new connection, on which the
request is sent once more within the time that is left.

Invariant: each ``on_answer`` is called exactly once, on the loop. Requests of one thread to one server are
           written in their order, also those that waited for the connection.
Threads:   send, pull and oneway may be called by any; the rest belongs to the loop. ``_lock`` guards the tables of
           peers and links where they change; a link that is in the table may be used without it.
Source:    remoting specification 1.1, 1.9, 1.10.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeAlias

from cometmq._engine import Link, PendingSend, PullAnswer, PullRequest, SendAnswer, SendRequest, encode_request
from cometmq._engine import read_answer as read_native_answer
from cometmq.errors import (
    ConnectionLost,
    Error,
    ForkedClient,
    HookFailed,
    InvalidArgument,
    LimitReached,
    MalformedCommand,
    NotConnected,
    RequestTimeout,
)
from cometmq.remoting.addresses import parse_address
from cometmq.remoting.channel import (
    CONNECT_TIMEOUT_MS,
    IDLE_TIMEOUT_MS,
    failed_answer,
    no_protocol_text,
    timed_out,
)
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.network import RpcHook, after_answer, before_request
from cometmq.remoting.not_supported import not_supported_answer

if TYPE_CHECKING:
    from cometmq._types import CommandParts

__all__ = ["Hub", "ServerRequestHandler"]

ServerRequestHandler: TypeAlias = Callable[[str, Command], "Command | Awaitable[Command | None] | None"]
"""Answers what the server at an address asks of us; None answers nothing. Called on the event loop."""

_Request: TypeAlias = "SendRequest | PullRequest | Command"
_OnAnswer: TypeAlias = Callable[[Any], object]

_PENDING_MAX = 65_536
_NEVER_MS = 2**62

_log = logging.getLogger(__name__)


def _unexpected(address: str, problem: Exception) -> NotConnected:
    lost = NotConnected(f"cannot connect to {address}: {problem!r}")
    lost.__cause__ = problem
    return lost


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class _Pending:
    """A request that waits for a connection."""

    request: _Request
    on_answer: _OnAnswer | None
    deadline_ms: int
    timeout_ms: int
    is_again: bool = False

    @property
    def is_given_up(self) -> bool:
        """Whether it is a send that ended meanwhile."""
        return isinstance(self.on_answer, (PendingSend, _HookedAnswer)) and self.on_answer.done()


@dataclass(slots=True)
class _HookedAnswer:
    """Lets hooks see the answer to a send or pull before its waiter gets it."""

    hooks: Sequence[RpcHook]
    address: str
    request: SendRequest | PullRequest
    command: Command
    on_answer: _OnAnswer

    def __call__(self, outcome: CommandParts | Error) -> None:
        if isinstance(outcome, Error):
            self.on_answer(outcome)
            return
        answer = Command.of_parts(outcome)
        try:
            after_answer(self.hooks, self.address, self.command, answer)
            native: SendAnswer | PullAnswer | Error = read_native_answer(self.request, answer.encode())
        except Error as error:
            native = error
        self.on_answer(native)

    def done(self) -> bool:
        """Return whether the waiter has ended."""
        return isinstance(self.on_answer, PendingSend) and self.on_answer.done()


@dataclass(slots=True, eq=False)
class _Peer:
    """A server: the requests that wait for a connection to it, and the task that makes one."""

    address: str
    pending: list[_Pending] = field(default_factory=list)
    connecting: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    is_asked: bool = False


class _Wire:
    """One connection on the loop: watches the socket and the clock for its link."""

    def __init__(self, hub: Hub, address: str, opened: socket.socket) -> None:
        self._hub = hub
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._fd = opened.fileno()
        self.link = Link(
            self._fd,
            format=int(hub.header_format),
            wake=self._wake,
            on_request=self._asked,
            on_go_away=self._sent_away,
            on_failure=_log_failure,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = _NEVER_MS
        self._is_writer = False
        self._tasks: set[asyncio.Task[None]] = set()
        # A connection that was replaced is closed as soon as nobody waits for it.
        self.is_retired = False
        self.is_open = True
        self._loop.add_reader(self._fd, self._readable)
        opened.detach()  # from here on it is this wire that closes it
        self._watch_clock()

    def _wake(self) -> None:
        """Have the loop look at the link; called by the thread that sent."""
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._turn)
            return
        try:
            self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:
            _log.info("the loop of a connection is closed", extra={"address": self.address})

    def _turn(self) -> None:
        if not self.is_open:
            return
        self.link.turn()
        self._after_writing()
        if self.is_open and self.link.earliest_ms < self._timer_ms:
            self._watch_clock()

    def _after_writing(self) -> None:
        if self.link.write_errno:
            self.end(f"the connection to {self.address} was lost: {os.strerror(self.link.write_errno)}")
        elif self.link.is_blocked != self._is_writer:
            self._is_writer = self.link.is_blocked
            if self._is_writer:
                self._loop.add_writer(self._fd, self._writable)
            else:
                self._loop.remove_writer(self._fd)

    def _writable(self) -> None:
        self.link.flush()
        self._after_writing()

    def _readable(self) -> None:
        try:
            is_open = self.link.receive()
        except MalformedCommand as error:
            self._hub.close_malformed(self, error.message)
            return
        except OSError as error:
            self.end(f"the connection to {self.address} was lost: {error.strerror}")
            return
        if not is_open:
            self.end(f"the connection to {self.address} was lost")
        elif self.is_open:
            self._after_writing()
            if self.is_retired and self.link.waiting == 0:
                self.end(f"the connection to {self.address} was replaced")

    def _watch_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        idle_end_ms = self.link.active_ms + self._hub.idle_timeout_ms
        self._timer_ms = min(self.link.earliest_ms, idle_end_ms)
        self._timer = self._loop.call_later(max(self._timer_ms - _now_ms(), 0) / 1000, self._clock)

    def _clock(self) -> None:
        now_ms = _now_ms()
        is_dead = False
        for on_answer, code, timeout_ms, seems_dead in self.link.expire(now_ms):
            is_dead = is_dead or seems_dead
            _complete(on_answer, timed_out(self.address, code, timeout_ms))
        if is_dead:
            self.end(f"the connection to {self.address} was closed: nothing came for too long")
        elif now_ms >= self.link.active_ms + self._hub.idle_timeout_ms:
            self.end(f"the connection to {self.address} was closed: it was idle")
        elif self.is_retired and self.link.waiting == 0:
            self.end(f"the connection to {self.address} was replaced")
        if self.is_open:
            self._watch_clock()

    def _asked(self, parts: CommandParts) -> None:
        task = self._loop.create_task(self._answer(Command.of_parts(parts)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Command) -> None:
        answer = await self._hub.answer(self.address, request)
        if answer is None or request.is_oneway or not self.is_open:
            return
        try:
            frame = answer.encode()
        except InvalidArgument as error:
            frame = failed_answer(request, error).encode()
        self.link.reply(frame)
        self._after_writing()

    def _sent_away(self, request: _Request, on_answer: _OnAnswer, deadline_ms: int, timeout_ms: int) -> None:
        self._hub.replace(self, _Pending(request, on_answer, deadline_ms, timeout_ms, is_again=True))

    def end(self, reason: str, *, wants_tasks_ended: bool = False) -> None:
        """Close the connection; waiting requests get the reason. Ending twice is fine."""
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._fd)
        if self._is_writer:
            self._loop.remove_writer(self._fd)
        waiting = self.link.close()
        if wants_tasks_ended:
            for task in self._tasks:
                task.cancel()
        self._hub.forget(self)
        for on_answer in waiting:
            _complete(on_answer, ConnectionLost(reason))
        self._hub.lost(self)


def _log_failure(error: Exception) -> None:
    _log.error("an answer could not be handed out", exc_info=error)


def _complete(on_answer: _OnAnswer | None, outcome: object) -> None:
    """Call the waiter; nothing that it raises gets out."""
    if on_answer is None:
        _log.info("a one-way request was not sent", extra={"reason": str(outcome)})
        return
    try:
        on_answer(outcome)
    except Exception as error:  # noqa: BLE001 - one caller's mistake is not another's
        _log_failure(error)


class Hub:
    """Connections to servers by their addresses. Made on the loop that it belongs to."""

    def __init__(
        self,
        *,
        on_request: ServerRequestHandler | None = None,
        on_connected: Callable[[str], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
        hooks: Sequence[RpcHook] = (),
        header_format: HeaderFormat = HeaderFormat.ROCKETMQ,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    ) -> None:
        """Nothing is connected yet.

        Args:
            on_request: answers what servers ask; without, all of it is answered "not supported".
            on_connected: called with the address when a connection was made, before anything is sent on it.
            on_lost: called with the address when its connection was ended by either side, and there is no other yet.
            hooks: see every request and answer; with one, sends and pulls take a slower way.
            header_format: how headers are written; a code that the binary one has no room for goes out in JSON.
            connect_timeout_ms: longest wait for a connection.
            idle_timeout_ms: silence that ends a connection.
        """
        self._loop = asyncio.get_running_loop()
        self.header_format = header_format
        self.idle_timeout_ms = idle_timeout_ms
        self._on_request = on_request
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._hooks = tuple(hooks)
        self._connect_timeout_ms = connect_timeout_ms
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._peers: dict[str, _Peer] = {}
        self._wires: set[_Wire] = set()
        self._closed = False

    @property
    def links(self) -> dict[str, Link] | None:
        """See :class:`cometmq.remoting.network.Network`; None where hooks are to see every request."""
        return None if self._hooks else self._links

    @property
    def addresses(self) -> tuple[str, ...]:
        """Servers to which there is a connection."""
        return tuple(self._links)

    def __repr__(self) -> str:
        """Return which servers it is connected to."""
        return f"<Hub {'closed' if self._closed else ' '.join(self.addresses) or 'not connected'}>"

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def invoke(self, address: str, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and return its answer, whatever its code. See :class:`cometmq.remoting.network.Network`."""
        future: asyncio.Future[CommandParts] = self._loop.create_future()

        def on_answer(outcome: CommandParts | Error) -> None:
            if future.done():
                return
            if isinstance(outcome, Error):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        if self._hooks:
            request, timeout_ms = self._before(address, request, timeout_ms)
        self._begin(address, request, on_answer, timeout_ms)
        answer = Command.of_parts(await future)
        after_answer(self._hooks, address, request, answer)
        return answer

    def send(
        self,
        address: str,
        request: SendRequest,
        on_answer: Callable[[SendAnswer | Error], object] | None,
        *,
        timeout_ms: int,
    ) -> None:
        """Send a message. Any thread. See :class:`cometmq.remoting.network.Network`."""
        self._begin_native(address, request, on_answer, timeout_ms)

    def pull(
        self,
        address: str,
        request: PullRequest,
        on_answer: Callable[[PullAnswer | Error], object],
        *,
        timeout_ms: int,
    ) -> None:
        """Ask for messages. Any thread. See :class:`cometmq.remoting.network.Network`."""
        self._begin_native(address, request, on_answer, timeout_ms)

    def oneway(self, address: str, request: Command) -> None:
        """Send a request that gets no answer. Any thread; a failure is logged."""
        timeout_ms = self._connect_timeout_ms
        if self._hooks:
            try:
                request, timeout_ms = self._before(address, request, timeout_ms)
            except (HookFailed, RequestTimeout) as error:
                _log.info("a one-way request was not sent", exc_info=error, extra={"address": address})
                return
        self._begin(address, request, None, timeout_ms)

    def _before(self, address: str, request: Command, timeout_ms: int) -> tuple[Command, int]:
        """Return the request as the hooks want it sent, and the time that they left of its time-out."""
        deadline_ms = _now_ms() + timeout_ms
        request = before_request(self._hooks, address, request)
        left_ms = deadline_ms - _now_ms()
        if left_ms <= 0:
            raise RequestTimeout(f"request {request.code} to {address} was not sent: hooks took its {timeout_ms} ms")
        return request, left_ms

    def _begin_native(
        self, address: str, request: SendRequest | PullRequest, on_answer: _OnAnswer | None, timeout_ms: int
    ) -> None:
        if self._hooks:
            self._begin_hooked(address, request, on_answer, timeout_ms)
        else:
            self._begin(address, request, on_answer, timeout_ms)

    def _begin(self, address: str, request: _Request, on_answer: _OnAnswer | None, timeout_ms: int) -> None:
        link = self._links.get(address)
        if link is not None:
            try:
                if link.begin(request, on_answer, timeout_ms):
                    return
            except (LimitReached, InvalidArgument) as error:
                self._complete_soon(on_answer, error)
                return
        self._begin_later(address, _Pending(request, on_answer, _now_ms() + timeout_ms, timeout_ms))

    def _begin_hooked(
        self, address: str, request: SendRequest | PullRequest, on_answer: _OnAnswer | None, timeout_ms: int
    ) -> None:
        try:
            plain = Command.decode(encode_request(request, format=int(self.header_format)))
            command, timeout_ms = self._before(address, plain, timeout_ms)
        except Error as error:
            self._complete_soon(on_answer, error)
            return

        hooked = None if on_answer is None else _HookedAnswer(self._hooks, address, request, command, on_answer)
        self._begin(address, command, hooked, timeout_ms)

    def _complete_soon(self, on_answer: _OnAnswer | None, outcome: Error) -> None:
        self._soon(_complete, on_answer, outcome)

    def _soon(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            raise ConnectionLost("the event loop of this client is closed: close the client before its loop") from None

    # --- Connecting ---------------------------------------------------------------------------------------------------

    def _begin_later(self, address: str, pending: _Pending) -> None:
        """Send as soon as there is a connection."""
        if os.getpid() != self._pid:
            raise ForkedClient("this client was made before the process forked: make a new one in the child")
        with self._lock:
            if self._closed:
                error: Error | None = NotConnected(
                    f"the connections of this client were closed; {address} is not asked"
                )
            else:
                error = self._queue(address, pending)
        if error is not None:
            self._complete_soon(pending.on_answer, error)

    def _queue(self, address: str, pending: _Pending) -> Error | None:
        """Put a request behind those that wait. Called with the lock."""
        link = self._links.get(address)
        if link is not None and not link.is_closed:  # made meanwhile
            return _push(link, pending)
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(address)
        if len(peer.pending) >= _PENDING_MAX:
            return LimitReached(f"{_PENDING_MAX} requests wait for a connection to {address} already")
        peer.pending.append(pending)
        if not peer.is_asked:
            self._soon(self._tend, peer)  # first: Ctrl-C between the two may only have it asked for twice
            peer.is_asked = True
        return None

    def _tend(self, peer: _Peer) -> None:
        """See that a peer with waiting requests gets its connection, and that none waits too long."""
        with self._lock:
            peer.is_asked = False
            if self._closed or not peer.pending:
                return
            if peer.connecting is None:
                peer.connecting = self._loop.create_task(self._connect_peer(peer))
        self._watch_peer(peer)

    def _watch_peer(self, peer: _Peer) -> None:
        if peer.timer is not None:
            peer.timer.cancel()
            peer.timer = None
        with self._lock:
            first_ms = min((pending.deadline_ms for pending in peer.pending), default=None)
        if first_ms is not None:
            peer.timer = self._loop.call_later(max(first_ms - _now_ms(), 0) / 1000, self._expire_peer, peer)

    def _expire_peer(self, peer: _Peer) -> None:
        now_ms = _now_ms()
        with self._lock:
            over = [pending for pending in peer.pending if pending.deadline_ms <= now_ms]
            peer.pending[:] = [pending for pending in peer.pending if pending.deadline_ms > now_ms]
        for pending in over:
            _complete(pending.on_answer, RequestTimeout(f"no connection to {peer.address} was made in time"))
        self._watch_peer(peer)

    async def _connect_peer(self, peer: _Peer) -> None:
        try:
            opened = await self._connect(peer.address)
        except Error as error:
            self._connected(peer, None, error)
        except Exception as error:  # noqa: BLE001 - the waiting requests get any failure
            self._connected(peer, None, _unexpected(peer.address, error))
        except asyncio.CancelledError:
            self._connected(peer, None, NotConnected(f"the connections of this client were closed: {peer.address}"))
            raise
        else:
            self._connected(peer, opened, None)

    async def _connect(self, address: str) -> socket.socket:
        host, port = parse_address(address)
        try:
            return await asyncio.wait_for(_open(self._loop, host, port), self._connect_timeout_ms / 1000)
        except asyncio.TimeoutError:
            raise NotConnected(f"cannot connect to {address}: no answer within {self._connect_timeout_ms} ms") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise NotConnected(f"cannot connect to {address}: {reason}") from error

    def _connected(self, peer: _Peer, opened: socket.socket | None, error: Error | None) -> None:
        """Send the waiting requests, or fail them with the error."""
        peer.connecting = None
        wire: _Wire | None = None
        if opened is not None and self._closed:
            opened.close()
            error = NotConnected(f"the connections of this client were closed: {peer.address}")
        elif opened is not None:
            try:
                wire = _Wire(self, peer.address, opened)
            except Exception as problem:  # noqa: BLE001 - as above; no file descriptor left, for instance
                opened.close()
                error = _unexpected(peer.address, problem)
        if wire is not None:
            self._wires.add(wire)
            if self._on_connected is not None:
                self._guarded(self._on_connected, peer.address)
        refused: list[tuple[_Pending, Error]] = []
        with self._lock:
            waiting, peer.pending = peer.pending, []
            if peer.timer is not None:
                peer.timer.cancel()
                peer.timer = None
            if wire is not None:
                for pending in waiting:
                    failure = _push(wire.link, pending)
                    if failure is not None:
                        refused.append((pending, failure))
                self._links[peer.address] = wire.link
        if error is not None:
            refused = [(pending, error) for pending in waiting]
        for pending, failure in refused:
            _complete(pending.on_answer, failure)

    def _guarded(self, function: Callable[[str], None], address: str) -> None:
        try:
            function(address)
        except Exception as error:  # noqa: BLE001 - a listener's mistake ends no connection
            _log.error("a listener of connections failed", exc_info=error, extra={"address": address})

    # --- Called by wires ----------------------------------------------------------------------------------------------

    async def answer(self, address: str, request: Command) -> Command | None:
        """Return what is answered to a request of a server."""
        if self._on_request is None:
            return not_supported_answer(request)
        try:
            outcome = self._on_request(address, request)
            return await outcome if isinstance(outcome, Awaitable) else outcome
        except Exception as error:  # noqa: BLE001 - anything a handler raises is answered and logged
            return failed_answer(request, error)

    def close_malformed(self, wire: _Wire, reason: str) -> None:
        """End a connection whose bytes are not frames."""
        if wire.link.waiting == 0:  # else the waiting requests get the error
            _log.warning("invalid frame", extra={"address": wire.address, "reason": reason})
        wire.end(no_protocol_text(wire.address, reason))

    def replace(self, wire: _Wire, pending: _Pending) -> None:
        """Make a request again on a new connection, since the server of this one is going away."""
        wire.is_retired = True
        self.forget(wire)
        self._begin_later(wire.address, pending)

    def forget(self, wire: _Wire) -> None:
        """Send no more on a connection."""
        with self._lock:
            if self._links.get(wire.address) is wire.link:
                del self._links[wire.address]

    def lost(self, wire: _Wire) -> None:
        """Take note that a connection has ended."""
        self._wires.discard(wire)
        if self._on_lost is not None and wire.address not in self._links:
            self._guarded(self._on_lost, wire.address)

    # --- The end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all connections; waiting and later calls get ConnectionLost. Closing twice is fine.

        In a forked child nothing is done: the loop's descriptors are the parent's.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            peers = list(self._peers.values())
        connecting = [peer.connecting for peer in peers if peer.connecting is not None]
        for task in connecting:
            task.cancel()
        for wire in list(self._wires):
            wire.end(f"the connection to {wire.address} was closed by this client", wants_tasks_ended=True)
        await asyncio.gather(*connecting, return_exceptions=True)
        for peer in peers:  # a task that was cancelled before it ran has reported nothing
            self._connected(peer, None, NotConnected(f"the connections of this client were closed: {peer.address}"))


def _push(link: Link, pending: _Pending) -> Error | None:
    """Send a request that waited, unless it was given up; why it cannot be sent is returned."""
    if pending.is_given_up:
        return None
    try:
        if link.begin(
            pending.request, pending.on_answer, pending.timeout_ms, pending.deadline_ms, is_again=pending.is_again
        ):
            return None
    except (LimitReached, InvalidArgument) as error:
        return error
    return ConnectionLost("the connection was lost as soon as it was made")


async def _open(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Return a connected socket to the first of the host's addresses that takes one."""
    failure: OSError | None = None
    for family, place in await _places(loop, host, port):
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(opened, place)
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise failure if failure is not None else OSError(f"{host} has no address")


async def _places(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the families and socket addresses of a host; a numeric one asks nobody, and starts no thread for it."""
    try:
        version = ip_address(host).version
    except ValueError:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, place) for family, _, _, _, place in found]
    return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]
