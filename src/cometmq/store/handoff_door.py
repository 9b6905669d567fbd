"""The door: messages for the store's writer through a UNIX socket, without the files of the hand-off folder.

Its name is an abstract one, made of the device and inode of the store's ``lock`` file: the writer has that file open,
so no other store has the name, and nothing of it lies in the directory. Both sides check that the other's process is of
the same user or root's. Other users, other network namespaces, large work and stores without a writer go by
:mod:`cometmq.store.handoff_files`.

A request is four bytes of length and a piece of work as :func:`encode_work` makes it; an answer is four bytes of
length, a status byte, and the physical offsets of the messages (int64 each) or a reason. All numbers little-endian. One
request at a time on a connection.

Durability: an answer says that the messages are as durable as the writer's flush mode promises. Where no answer comes,
the caller leaves the same work in the folder, with the place in the log from which to look for it: so it is appended
exactly once, whoever dies.

Bounds: a request's length, the number of connections; a connection that breaks the protocol is closed. A client that
sends slowly holds up nobody.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

__all__ = ["CONNECTIONS_MAX", "REQUEST_BYTES_MAX", "Answer", "DoorBroken", "DoorClient", "DoorServer"]

_log = logging.getLogger("cometmq.handoff")

REQUEST_BYTES_MAX = 1 << 20
"""Largest request; larger work goes by the folder."""
CONNECTIONS_MAX = 256
"""Most connections; the next is closed, and its client goes by the folder."""
_IDLE_MAX = 8
_ANSWER_WAIT_S = 5.0
_LOOK_EVERY_S = 1.0
_ACCEPT_AGAIN_S = 0.1
_READ_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
_PEER = struct.Struct("3i")

STORED, REJECTED, NOT_NOW = range(3)
"""Statuses: payload are the physical offsets; the work can never be applied; it has to be left in the folder."""

Answer = tuple[int, bytes]


class DoorBroken(Exception):
    """No answer came to a request that may have been carried out."""


# A copy of a socket in a forked child would keep the other side from seeing that this process has died.
_open_ends: weakref.WeakSet[DoorServer | DoorClient] = weakref.WeakSet()


def _close_in_child() -> None:
    for end in list(_open_ends):
        end.forget()


os.register_at_fork(after_in_child=_close_in_child)


def _is_trusted(connection: socket.socket) -> bool:
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return _PEER.unpack(peer)[1] in (os.geteuid(), 0)


def door_name(root: Path) -> bytes:
    """Return the door's address. The lock file is not opened: closing it would drop a lock of this process.

    Raises:
        OSError: there is no lock file.
    """
    lock = (root / "lock").stat()
    return b"\0cometmq-door-%x-%x" % (lock.st_dev, lock.st_ino)


class AppendsFromDoor(Protocol):
    """The part of a store that the server needs."""

    def _append_from_door(self, requests: Sequence[bytes]) -> list[Answer]:
        """Carry out requests; one answer each. Raises nothing."""
        ...


class _Connection:
    """One client: the bytes of its request so far, and of its answer."""

    __slots__ = ("arrived", "leaving", "socket")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.arrived = bytearray()
        self.leaving = b""

    def receive(self) -> bytes | None:
        """Return a whole request, or None while it is not whole.

        Raises:
            OSError: the connection is at its end.
        """
        with suppress(BlockingIOError):
            data = self.socket.recv(_READ_BYTES)
            if not data or self.leaving:
                raise ConnectionResetError("closed, or a request before the answer")
            self.arrived += data
        if len(self.arrived) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self.arrived)
        whole = _LENGTH.size + length
        if length > REQUEST_BYTES_MAX or len(self.arrived) > whole:
            raise ConnectionResetError("a request is too long")
        if len(self.arrived) < whole:
            return None
        request = bytes(memoryview(self.arrived)[_LENGTH.size :])
        self.arrived.clear()
        return request

    def send(self) -> None:
        """Send as much of the answer as the socket takes. Raises OSError where the connection is at its end."""
        with suppress(BlockingIOError):
            self.leaving = self.leaving[self.socket.send(self.leaving, socket.MSG_NOSIGNAL) :]


class DoorServer(threading.Thread):
    """Takes requests for a store. Ends with :meth:`stop`, or when the store is gone."""

    def __init__(self, store: AppendsFromDoor, root: Path) -> None:
        """Bind the socket; only while the store's lock is held. Started with ``start()``.

        Raises:
            OSError: the socket cannot be made.
        """
        super().__init__(name="cometmq-door", daemon=True)
        self._store: Callable[[], AppendsFromDoor | None] = weakref.ref(store)
        self._root = root
        self._stopping = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(door_name(root))
            self._listener.listen(CONNECTIONS_MAX)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[socket.socket, _Connection] = {}
        _open_ends.add(self)

    def run(self) -> None:
        """Accept, read, carry out, answer."""
        try:
            while not self._stopping.is_set():
                if not self._turn():
                    return
        except Exception:  # noqa: BLE001 - no mistake may end the process's other work in silence
            _log.exception("the door of %s fails; work goes by the folder", self._root)
        finally:
            self.forget()

    def _turn(self) -> bool:
        """Serve whatever is ready; False when there is no store any more. Requests of one turn share a sync."""
        requests: list[tuple[_Connection, bytes]] = []
        for key, events in self._selector.select(_LOOK_EVERY_S):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Connection):
                request = self._serve(key.data, events)
                if request is not None:
                    requests.append((key.data, request))
        store = self._store()
        if store is None:
            return False
        if requests:
            answers = store._append_from_door([request for _, request in requests])
            for (connection, _), (status, payload) in zip(requests, answers, strict=True):
                connection.leaving = _LENGTH.pack(1 + len(payload)) + bytes([status]) + payload
                self._serve(connection, selectors.EVENT_WRITE)
        return True

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except BlockingIOError:
            return  # the client has gone
        except OSError:
            self._stopping.wait(_ACCEPT_AGAIN_S)  # no descriptors: the listener stays ready meanwhile
            return
        with suppress(OSError):
            if len(self._connections) >= CONNECTIONS_MAX or not _is_trusted(connected):
                connected.close()
                return
            connected.setblocking(False)
            connection = self._connections[connected] = _Connection(connected)
            self._selector.register(connected, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection, events: int) -> bytes | None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.send()
                waits = selectors.EVENT_WRITE if connection.leaving else selectors.EVENT_READ
                self._selector.modify(connection.socket, waits, connection)
                return None
            return connection.receive()
        except OSError:
            self._selector.unregister(connection.socket)
            del self._connections[connection.socket]
            connection.socket.close()
            return None

    def forget(self) -> None:
        """Close the descriptors: at the end, and in a forked child."""
        for connection in self._connections.values():
            connection.socket.close()
        self._connections = {}
        self._listener.close()
        self._selector.close()

    def stop(self) -> None:
        """End the thread and wait for it; the name is free then. Only while the store's lock is held."""
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
        self.forget()


class DoorClient:
    """Asks the writer through its door. Threads: any, each with a connection of its own for the time of a request."""

    def __init__(self, root: Path) -> None:
        """Nothing is connected yet."""
        self._root = root
        self._idle: list[socket.socket] = []
        _open_ends.add(self)

    def ask(self, request: bytes) -> Answer | None:
        """Return the writer's answer, or None where it cannot be asked: nothing was sent then.

        Raises:
            DoorBroken: no answer came.
        """
        if len(request) > REQUEST_BYTES_MAX:
            return None
        connection = self._connected()
        if connection is None:
            return None
        try:
            connection.sendall(_LENGTH.pack(len(request)) + request, socket.MSG_NOSIGNAL)
            (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
            answer = _receive(connection, length)
            if not answer:
                raise ConnectionResetError("an answer without a status")
        except OSError as error:
            connection.close()
            raise DoorBroken(str(error)) from error
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return answer[0], answer[1:]

    def _connected(self) -> socket.socket | None:
        """Return a connection to the writer of now: one whose other end is gone is passed over."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            ended = select.poll()
            ended.register(connection, select.POLLIN)
            if not ended.poll(0):
                return connection
            connection.close()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_WAIT_S)
            connection.connect(door_name(self._root))
            if not _is_trusted(connection):
                raise PermissionError("another user's")
        except OSError:
            connection.close()
            return None
        return connection

    def __del__(self) -> None:
        """Close the idle connections of a store that was not closed."""
        self.forget()

    def forget(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _receive(connection: socket.socket, length: int) -> bytes:
    if length > REQUEST_BYTES_MAX:
        raise ConnectionResetError(f"an answer of {length} bytes")
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionResetError("the writer is gone")
        data += part
    return bytes(data)
