"""The client's end for threads: connections to one server (:class:`Channel`), blocking.

Connections end, and errors mean, the same as in :mod:`cometmq.remoting.channel`.

Source: remoting specification 1.9, 1.10.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from types import TracebackType
from typing import TypeAlias

from cometmq.errors import ConnectionLost, MalformedCommand, NotConnected, RequestTimeout
from cometmq.remoting.addresses import parse_address
from cometmq.remoting.channel import (
    CONNECT_TIMEOUT_MS,
    IDLE_TIMEOUT_MS,
    failed_answer,
    no_protocol_text,
    timed_out,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.exchange import Answered, Exchange
from cometmq.remoting.not_supported import not_supported_answer

__all__ = ["Channel", "RequestHandler"]

_READ_BYTES = 256 * 1024

RequestHandler: TypeAlias = Callable[[Command], "Command | None"]
"""Answers what the server asks of us; None answers nothing. Called on the channel's reading thread."""


class _Link:
    """One connection of a Channel, with the thread that reads it."""

    def __init__(self, channel: Channel, opened: socket.socket) -> None:
        self._channel = channel
        self._socket = opened
        self._lock = threading.Lock()  # the exchange
        self._sending = threading.Lock()  # the socket's output; taken before _lock where both are
        self._exchange: Exchange[Future[Command]] = Exchange()
        self._active_at = time.monotonic()
        self.is_open = True
        self.is_retired = False
        self._thread = threading.Thread(target=self._read, name=f"cometmq-channel-{channel.address}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def invoke(self, request: Command, *, end: float, timeout_ms: int) -> Command:
        future: Future[Command] = Future()
        with self._lock:
            if not self.is_open:
                raise ConnectionLost(f"the connection to {self._channel.address} is closed")
            opaque, frame = self._exchange.begin(request, future)
            received_before = self._exchange.received_bytes
        try:
            self._send(frame, end=end)
            return future.result(max(end - time.monotonic(), 0))
        except FutureTimeout:
            with self._lock:
                is_dead = self._exchange.is_dead(received_before)
            if is_dead:
                self.close()
            raise timed_out(self._channel.address, request.code, timeout_ms) from None
        finally:
            with self._lock:
                self._exchange.cancel(opaque)
                is_done = self.is_retired and self._exchange.waiting_count == 0
            if is_done:
                self.close()

    def send_oneway(self, request: Command, *, end: float) -> None:
        with self._lock:
            frame = self._exchange.oneway(request)
        self._send(frame, end=end)

    def _send(self, frame: bytes, *, end: float) -> None:
        if not self._sending.acquire(timeout=max(end - time.monotonic(), 0)):
            raise RequestTimeout(f"others have been sending to {self._channel.address} for too long")
        try:
            self._limit_sending(end)
            self._socket.sendall(frame)
            self._active_at = time.monotonic()
        except OSError as error:
            # A part of the frame may be sent: nothing can follow it.
            self.close()
            if isinstance(error, BlockingIOError):
                raise RequestTimeout(f"{self._channel.address} takes no more bytes") from None
            raise ConnectionLost(
                f"the connection to {self._channel.address} was lost: {error.strerror or error}"
            ) from error
        finally:
            self._sending.release()

    def _limit_sending(self, end: float) -> None:
        left_ms = max(int((end - time.monotonic()) * 1000), 1)
        limit = struct.pack("ll", left_ms // 1000, left_ms % 1000 * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _read(self) -> None:
        reason = f"the connection to {self._channel.address} was lost"
        try:
            while True:
                data = self._receive()
                if not data:
                    break
                self._take(data)
        except MalformedCommand as error:
            reason = no_protocol_text(self._channel.address, error.message)
        except OSError as error:
            reason += f": {error.strerror or error}"
        finally:
            self._ended(reason)

    def _receive(self) -> bytes:
        """Return what came; nothing at the end of the connection, or when it was silent for too long."""
        while True:
            silent_s = time.monotonic() - self._active_at
            left_s = self._channel.idle_timeout_ms / 1000 - silent_s
            if left_s <= 0:
                return b""
            limit = struct.pack("ll", int(left_s), int(left_s % 1 * 1_000_000) or 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            self._active_at = time.monotonic()
            return data

    def _take(self, data: bytes) -> None:
        with self._lock:
            events = self._exchange.receive(data)
        for event in events:
            if isinstance(event, Answered):
                if event.waiting.set_running_or_notify_cancel():
                    event.waiting.set_result(event.answer)
                continue
            answer = self._channel.answer(event.request)
            if answer is not None and not event.request.is_oneway:
                self._send(answer.encode(), end=time.monotonic() + self._channel.idle_timeout_ms / 1000)

    def _ended(self, reason: str) -> None:
        with self._lock:
            self.is_open = False
            waiting = self._exchange.end()
        self._channel.lost(self)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(ConnectionLost(reason))
        self._socket.close()

    def retire(self) -> None:
        with self._lock:
            self.is_retired = True
            is_done = self._exchange.waiting_count == 0
        if is_done:
            self.close()

    def close(self) -> None:
        # The reading thread sees the end and does the rest; nothing is to be sent here until then.
        self._channel.leave(self)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Channel:
    """A way to one server, for threads. Any thread may call; each connection has one thread that reads it."""

    def __init__(
        self,
        address: str,
        *,
        on_request: RequestHandler | None = None,
        on_lost: Callable[[], None] | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    ) -> None:
        """Nothing is connected yet. Arguments and errors as of :class:`cometmq.remoting.channel.AsyncChannel`."""
        self._host, self._port = parse_address(address)
        self.address = address
        self.idle_timeout_ms = idle_timeout_ms
        self._on_request = on_request
        self._on_lost = on_lost
        self._connect_timeout_ms = connect_timeout_ms
        self._lock = threading.Lock()
        self._connecting = threading.Lock()  # taken before _lock where both are
        self._link: _Link | None = None
        self._links: set[_Link] = set()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        with self._lock:
            return self._link is not None

    def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and return its answer, whatever its code.

        Arguments and errors as of :meth:`cometmq.remoting.channel.AsyncChannel.invoke`.
        """
        end = time.monotonic() + timeout_ms / 1000
        answer = self._invoke_once(request, end=end, timeout_ms=timeout_ms)
        if answer.code == ResponseCode.GO_AWAY:
            answer = self._invoke_once(request, end=end, timeout_ms=timeout_ms)
        return answer

    def _invoke_once(self, request: Command, *, end: float, timeout_ms: int) -> Command:
        link = self._connected(end)
        answer = link.invoke(request, end=end, timeout_ms=timeout_ms)
        if answer.code == ResponseCode.GO_AWAY:
            self.leave(link)
            link.retire()
        return answer

    def send_oneway(self, request: Command, *, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
        """Send a request that gets no answer; returns when the system has it.

        Errors as of :meth:`cometmq.remoting.channel.AsyncChannel.send_oneway`.
        """
        end = time.monotonic() + timeout_ms / 1000
        self._connected(end).send_oneway(request, end=end)

    def connect(self) -> None:
        """Connect now, if there is no connection.

        Raises:
            ConnectionLost: none could be made.
        """
        self._connected(time.monotonic() + self._connect_timeout_ms / 1000)

    def _connected(self, end: float) -> _Link:
        if not self._connecting.acquire(timeout=max(end - time.monotonic(), 0)):
            raise RequestTimeout(f"no connection to {self.address} was made in time")
        try:
            with self._lock:
                if self._closed:
                    raise ConnectionLost(f"the channel to {self.address} was closed")
                if self._link is not None:
                    return self._link
            return self._connect(end)
        finally:
            self._connecting.release()

    def _connect(self, end: float) -> _Link:
        limit_s = max(min(self._connect_timeout_ms / 1000, end - time.monotonic()), 0.001)
        try:
            opened = socket.create_connection((self._host, self._port), timeout=limit_s)
        except TimeoutError:
            raise NotConnected(f"cannot connect to {self.address}: no answer in time") from None
        except OSError as error:
            raise NotConnected(f"cannot connect to {self.address}: {error.strerror or error}") from error
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, opened)
        with self._lock:
            if self._closed:
                opened.close()
                raise ConnectionLost(f"the channel to {self.address} was closed")
            self._link = link
            self._links.add(link)
        link.start()
        return link

    def answer(self, request: Command) -> Command | None:
        """Return what is answered to a request of the server. Called by the connection."""
        if self._on_request is None:
            return not_supported_answer(request)
        try:
            return self._on_request(request)
        except Exception as error:  # noqa: BLE001 - anything a handler raises is answered and logged
            return failed_answer(request, error)

    def leave(self, link: _Link) -> None:
        """Use a connection no more, since it is being closed. Called by the connection."""
        with self._lock:
            if self._link is link:
                self._link = None

    def lost(self, link: _Link) -> None:
        """Forget a connection that has ended. Called by the connection."""
        self.leave(link)
        with self._lock:
            self._links.discard(link)
        if self._on_lost is not None:
            self._on_lost()

    def close(self) -> None:
        """Close the connection; requests that wait for an answer get ConnectionLost. Closing twice is fine."""
        with self._lock:
            self._closed = True
            links = list(self._links)
        for link in links:
            link.close()
        for link in links:
            link.join()

    def __enter__(self) -> Channel:
        """Return the channel itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
