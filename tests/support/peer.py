"""A server for tests of clients: one thread, one listening socket, and what the test says to each request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from cometmq.remoting.command import Command

_PREFIX_BYTES = 4

__all__ = ["Peer"]


class Peer:
    """Takes connections and gives each request to ``script(connection, request)``, and sends its result."""

    def __init__(self, script: Callable[[Peer, socket.socket, Command], bytes | None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self.requests: list[Command] = []
        self.responses: list[Command] = []
        self.arrived = threading.Condition()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self.arrived:
                self.connections.append(connection)
                self.arrived.notify_all()
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("rb") as stream:
            while prefix := stream.read(_PREFIX_BYTES):
                self._take(connection, Command.decode(prefix + stream.read(int.from_bytes(prefix, "big"))))

    def _take(self, connection: socket.socket, command: Command) -> None:
        answer = None if command.is_response else self._script(self, connection, command)
        with self.arrived:
            (self.responses if command.is_response else self.requests).append(command)
            self.arrived.notify_all()
        if answer is not None:
            connection.sendall(answer)

    def wait_for_responses(self, count: int) -> list[Command]:
        """Wait until the client has answered so many requests; return the answers."""
        self.wait_for(lambda: len(self.responses) == count)
        return list(self.responses)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true of what has arrived."""
        with self.arrived:
            assert self.arrived.wait_for(condition, timeout=10)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            with suppress(OSError):  # the client may have closed it
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for connection in self.connections:
            connection.close()
