"""The handlers' link to the server that holds the connections: requests to clients."""

from __future__ import annotations

from typing import Protocol

from cometmq.remoting.command import Command

__all__ = ["ClientLink"]


class ClientLink(Protocol):
    """The way to clients that are connected. Threads: the event loop's."""

    def send_oneway(self, conn: int, request: Command) -> None:
        """Send a request that gets no answer. One to a connection that is gone is lost silently, as in a network."""

    def offer(self, conn: int, request: Command) -> None:
        """Send it, or drop it if the client has not read earlier requests."""

    @property
    def offers_dropped(self) -> int:
        """Number of offers dropped since the start. A drop counts a moment later."""

    async def invoke(self, conn: int, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and wait for its answer.

        Raises:
            RequestTimeout: none came in time.
            ConnectionLost: the connection is gone.
        """

    def close_connection(self, conn: int) -> None:
        """Close a connection once what is in its output was sent."""
