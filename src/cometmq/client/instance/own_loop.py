"""The event loop that an asyncio client was started on; calls on any other loop are refused.

A client's connections and tasks belong to that loop. A call on another one would wait for them for ever.
"""

from __future__ import annotations

import asyncio

from cometmq.errors import ClientStateError

__all__ = ["OwnLoop"]


class OwnLoop:
    """The loop of one client, from the end of its start to the end of its close.

    Threads: any.
    """

    def __init__(self, client: str) -> None:
        """It has none yet; ``client`` names the kind of client in errors."""
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Take the running loop."""
        self._loop = asyncio.get_running_loop()

    def release(self) -> None:
        """Take none any more: the client is closed and needs no loop."""
        self._loop = None

    def require(self) -> None:
        """Return where the running loop is the client's, or the client has none.

        A thread without a loop may call what needs none, for as long as the client's loop is open.

        Raises:
            ClientStateError: it is another one.
        """
        if self._loop is None:
            return
        running = asyncio._get_running_loop()  # get_running_loop raises without one
        if running is not self._loop and (running is not None or self._loop.is_closed()):
            raise ClientStateError(f"this {self._client} was started on another event loop: make one per event loop")
