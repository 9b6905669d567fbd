"""The interfaces between a client instance and its registered producers and consumers.

The instance calls its parts on the loop and never two rounds of the same kind at a time. A part that raises spoils
nothing but its own round: its exceptions are logged.

Source: consumption specification 1.4, 1.5, 1.15, 1.16.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.instance.routes import PublishInfo
    from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
    from cometmq.remoting.bodies.message_queue import MessageQueue
    from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
    from cometmq.remoting.command import Command

__all__ = ["ConsumerPart", "InnerSender", "ProducerPart"]


class ConsumerPart(Protocol):
    """A consumer group as its client instance sees it; heartbeats send the properties."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    @property
    def namespace(self) -> str | None:
        """The prefix that its user does not see."""
        ...

    @property
    def consume_type(self) -> ConsumeType:
        """How the group gets its messages."""
        ...

    @property
    def message_model(self) -> MessageModel:
        """Whether members share the messages."""
        ...

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """Where a group without progress begins."""
        ...

    @property
    def unit_mode(self) -> bool:
        """Whether its clients are spread over units."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """Topic to subscription, as it is now."""
        ...

    async def do_rebalance(self) -> bool:
        """Share out the queues again; return whether every queue is where it belongs."""
        ...

    async def persist_offsets(self) -> None:
        """Store the progress."""
        ...

    def routes_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Take note of the queues of a topic that is subscribed to; those that can be read, in the route's order."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin these queues again at these offsets, because the broker said so."""
        ...

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the progress in memory of one topic's queues."""
        ...

    def running_info(self) -> ConsumerRunningInfo:
        """Return what an administrator may see. The instance adds what it alone knows."""
        ...

    async def consume_directly(self, message: ReceivedMessage, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        """Give one message to the listener, outside of any queue; no offset moves and nothing is tried again."""
        ...


class ProducerPart(Protocol):
    """A producer group as its client instance sees it."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def publish_topics(self) -> Collection[str]:
        """Return the topics whose routes are to be kept fresh."""
        ...

    def routes_changed(self, topic: str, info: PublishInfo) -> None:
        """Take note of where a topic can be sent to."""
        ...

    async def check_transaction(self, address: str, request: Command, message: ReceivedMessage) -> None:
        """Return a transaction's outcome to a broker.

        Args:
            address: the broker that asks.
            request: its question (code 39).
            message: the half message.
        """
        ...


class InnerSender(Protocol):
    """Sends what consumers put back, under the group ``CLIENT_INNER_PRODUCER``."""

    async def send(self, topic: str, body: bytes, *, properties: Mapping[str, str], flag: int, timeout_ms: int) -> None:
        """Send one message as it is.

        Raises:
            Error: it is not known to be stored.
        """
        ...
