"""The client's end for asyncio: connections to one server (:class:`AsyncChannel`).

:mod:`cometmq.remoting.sync_channel` is the one for threads; both are made of :class:`Exchange`.

A channel connects when it is first used, and again after its connection was lost. Every call fails or succeeds within
its own time; after :class:`ConnectionLost` and :class:`RequestTimeout` nothing is known about the request. A connection
ends, besides being closed by either side:

* after ``idle_timeout_ms`` without a byte either way (120 s, as upstream);
* when a request timed out and nothing at all has come since it was sent: the other side is taken for dead. Where other
  answers came meanwhile only this one is late, and it is dropped when it comes;
* when a request timed out and the incomplete frame at hand began 30 s ago: the server lost count of its bytes;
* when the bytes received are not a frame.

An answer 1500 (the server is going down) makes a new connection, on which the request is sent once more within the time
that is left; the old connection goes when its other answers have come.

Source: remoting specification 1.9, 1.10.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeAlias

from cometmq.errors import BrokerError, ConnectionLost, LimitReached, MalformedCommand, NotConnected, RequestTimeout
from cometmq.remoting.addresses import parse_address
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.exchange import Asked, Exchange
from cometmq.remoting.not_supported import not_supported_answer

__all__ = [
    "CONNECT_TIMEOUT_MS",
    "IDLE_TIMEOUT_MS",
    "UNSENT_BYTES_MAX",
    "AsyncChannel",
    "AsyncRequestHandler",
    "checked",
    "closed_at_once",
    "failed_answer",
    "no_protocol_text",
    "timed_out",
]

CONNECT_TIMEOUT_MS = 3_000
IDLE_TIMEOUT_MS = 120_000
UNSENT_BYTES_MAX = 64 << 20
"""Bytes that may wait to be sent on one connection; beyond them a call is refused."""

AsyncRequestHandler: TypeAlias = Callable[[Command], "Command | Awaitable[Command | None] | None"]
"""Answers what the server asks of us; None answers nothing. Called on the event loop."""

_log = logging.getLogger(__name__)


def checked(answer: Command, *, address: str | None = None) -> Command:
    """Return an answer that says success.

    Raises:
        BrokerError: it says anything else.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.remark, code=answer.code, address=address)
    return answer


def failed_answer(request: Command, error: Exception) -> Command:
    """Log what a handler raised, and return what is answered."""
    _log.error("a request of the server could not be answered", exc_info=error, extra={"code": request.code})
    return request.response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def no_protocol_text(address: str, reason: str) -> str:
    """Return the error text for a server whose bytes are not a frame."""
    return f"{address} does not speak RocketMQ's protocol: {reason}"


def closed_at_once(address: str) -> str:
    """Return the error text for a server that ends a connection before its first byte."""
    return f"{address} closed the connection before its first answer: it stops, or is at its limit of connections"


def timed_out(address: str, code: int, timeout_ms: int) -> RequestTimeout:
    """Return the error of a request that was not answered in time."""
    known = RequestCode._value2member_map_.get(code)
    name = known.name if isinstance(known, RequestCode) else code
    return RequestTimeout(f"{address} did not answer request {name} within {timeout_ms} ms")


class _Connection(asyncio.Protocol):
    """One connection of an AsyncChannel."""

    def __init__(self, channel: AsyncChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self.exchange: Exchange[asyncio.Future[Command]] = Exchange()
        self._transport: asyncio.Transport | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._active_at = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_open = False
        self._malformed = ""
        self._is_ended_here = False
        # A connection that was replaced is closed as soon as nobody waits for it.
        self.is_retired = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True
        self._watch_idle()

    def _watch_idle(self) -> None:
        idle_s = self._channel.idle_timeout_ms / 1000
        left_s = self._active_at + idle_s - self._loop.time()
        if left_s <= 0:
            self.close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._watch_idle)

    def data_received(self, data: bytes) -> None:
        self._active_at = self._loop.time()
        try:
            events = self.exchange.receive(data)
        except MalformedCommand as error:
            self._malformed = error.message
            if self.exchange.waiting_count == 0:  # else the waiting requests get the error
                _log.warning("invalid frame", extra={"address": self._channel.address, "reason": error.message})
            self.close()
            return
        for event in events:
            if isinstance(event, Asked):
                task = self._loop.create_task(self._answer(event.request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif not event.waiting.done():
                event.waiting.set_result(event.answer)
        if self.is_retired and self.exchange.waiting_count == 0:
            self.close()

    async def _answer(self, request: Command) -> None:
        answer = await self._channel.answer(request)
        if answer is not None and not request.is_oneway and self.is_open:
            self.send(answer.encode())

    def send(self, frame: bytes) -> None:
        if self._transport is None or not self.is_open:
            raise ConnectionLost(self._lost_text("is closed"))
        if self._transport.get_write_buffer_size() + len(frame) > UNSENT_BYTES_MAX:
            raise LimitReached(f"{UNSENT_BYTES_MAX} bytes wait to be sent to {self._channel.address} already")
        self._active_at = self._loop.time()
        self._transport.write(frame)

    def _lost_text(self, end: str) -> str:
        address = self._channel.address
        if self._is_ended_here or self.exchange.received_bytes:
            return f"the connection to {address} {end}"
        return closed_at_once(address)

    def close(self) -> None:
        # The loop reports the end in its next turn; nothing may be sent here until then.
        self._channel.leave(self)
        self._is_ended_here = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        text = self._lost_text("was lost" + (f": {error}" if error else ""))
        if self._malformed:
            text = no_protocol_text(self._channel.address, self._malformed)
        for future in self.exchange.end():
            if not future.done():
                future.set_exception(ConnectionLost(text))
        self._channel.lost(self)


class AsyncChannel:
    """A way to one server. All calls on one event loop; any number of them at a time."""

    def __init__(
        self,
        address: str,
        *,
        on_request: AsyncRequestHandler | None = None,
        on_lost: Callable[[], None] | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    ) -> None:
        """Nothing is connected yet.

        Args:
            address: the server, ``host:port``.
            on_request: answers what the server asks; without, all of it is answered "not supported".
            on_lost: called when a connection was ended by either side.
            connect_timeout_ms: longest wait for a connection.
            idle_timeout_ms: silence that ends a connection.

        Raises:
            InvalidArgument: the address is not one.
        """
        self._host, self._port = parse_address(address)
        self.address = address
        self.idle_timeout_ms = idle_timeout_ms
        self._on_request = on_request
        self._on_lost = on_lost
        self._connect_timeout_ms = connect_timeout_ms
        self._connection: _Connection | None = None
        self._open: set[_Connection] = set()
        self._connecting: asyncio.Task[_Connection] | None = None
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        return self._connection is not None

    async def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and return its answer, whatever its code.

        Args:
            request: the request; its number is given here.
            timeout_ms: longest wait, connecting included.

        Raises:
            ConnectionLost: no connection could be made, or it ended before the answer came.
            RequestTimeout: no answer came in time.
            LimitReached: too many requests wait, or too many bytes are unsent.
        """
        end = asyncio.get_running_loop().time() + timeout_ms / 1000
        answer = await self._invoke_once(request, end=end, timeout_ms=timeout_ms)
        if answer.code == ResponseCode.GO_AWAY:
            answer = await self._invoke_once(request, end=end, timeout_ms=timeout_ms)
        return answer

    async def _invoke_once(self, request: Command, *, end: float, timeout_ms: int) -> Command:
        loop = asyncio.get_running_loop()
        connection = await self._connected(end=end)
        future: asyncio.Future[Command] = loop.create_future()
        opaque, frame = connection.exchange.begin(request, future)
        received_before = connection.exchange.received_bytes
        try:
            connection.send(frame)
            answer = await asyncio.wait_for(future, max(end - loop.time(), 0))
        except asyncio.TimeoutError:
            if connection.exchange.is_dead(received_before):
                connection.close()
            raise timed_out(self.address, request.code, timeout_ms) from None
        finally:
            connection.exchange.cancel(opaque)
        if answer.code == ResponseCode.GO_AWAY:
            self._retire(connection)
        return answer

    def _retire(self, connection: _Connection) -> None:
        self.leave(connection)
        connection.is_retired = True
        if connection.exchange.waiting_count == 0:
            connection.close()

    async def send_oneway(self, request: Command, *, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
        """Send a request that gets no answer; returns when it is on its way.

        Raises:
            ConnectionLost: no connection could be made.
            RequestTimeout: none could be made in time.
            LimitReached: too many bytes are unsent.
        """
        connection = await self._connected(end=asyncio.get_running_loop().time() + timeout_ms / 1000)
        connection.send(connection.exchange.oneway(request))

    async def connect(self) -> None:
        """Connect now, if there is no connection.

        Raises:
            ConnectionLost: none could be made.
        """
        await self._connected(end=asyncio.get_running_loop().time() + self._connect_timeout_ms / 1000)

    async def _connected(self, *, end: float) -> _Connection:
        if self._closed:
            raise ConnectionLost(f"the channel to {self.address} was closed")
        if self._connection is not None:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connecting_ended)
        left_s = max(end - asyncio.get_running_loop().time(), 0)
        connecting = self._connecting
        try:
            # Others wait for the same connection: one that gives up must not cancel it.
            return await asyncio.wait_for(asyncio.shield(connecting), left_s)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise ConnectionLost(f"the channel to {self.address} was closed") from None
            raise
        except asyncio.TimeoutError:
            raise RequestTimeout(f"no connection to {self.address} was made in time") from None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        making = loop.create_connection(lambda: _Connection(self), self._host, self._port)
        try:
            transport, connection = await asyncio.wait_for(making, self._connect_timeout_ms / 1000)
        except asyncio.TimeoutError:
            raise NotConnected(
                f"cannot connect to {self.address}: no answer within {self._connect_timeout_ms} ms"
            ) from None
        except ConnectionResetError:
            raise NotConnected(closed_at_once(self.address)) from None
        except OSError as error:
            # asyncio's own text repeats the address.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise NotConnected(f"cannot connect to {self.address}: {reason}") from error
        if self._closed:
            transport.abort()
            raise ConnectionLost(f"the channel to {self.address} was closed")
        if not connection.is_open:  # its socket is closed and takes no option
            raise NotConnected(closed_at_once(self.address))
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._open.add(connection)
        return connection

    def _connecting_ended(self, task: asyncio.Task[_Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # looked at, also where everybody who waited for it has given up

    async def answer(self, request: Command) -> Command | None:
        """Return what is answered to a request of the server. Called by the connection."""
        if self._on_request is None:
            return not_supported_answer(request)
        try:
            outcome = self._on_request(request)
            return await outcome if isinstance(outcome, Awaitable) else outcome
        except Exception as error:  # noqa: BLE001 - anything a handler raises is answered and logged
            return failed_answer(request, error)

    def leave(self, connection: _Connection) -> None:
        """Use a connection no more, since it is being closed. Called by the connection."""
        if self._connection is connection:
            self._connection = None

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that has ended. Called by the connection."""
        self.leave(connection)
        self._open.discard(connection)
        if self._on_lost is not None:
            self._on_lost()

    async def close(self) -> None:
        """Close the connection; requests that wait for an answer get ConnectionLost. Closing twice is fine."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._open):
            connection.close()
        while self._open:
            await asyncio.sleep(0)

    async def __aenter__(self) -> AsyncChannel:
        """Return the channel itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()
