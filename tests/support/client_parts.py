"""Consumers and producers that only record the calls of their client instance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.instance.routes import PublishInfo
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumeResult, ConsumerRunningInfo
from cometmq.remoting.command import Command

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = ["FakeConsumer", "FakeProducer"]


class FakeConsumer:
    """A consumer part."""

    consume_type = ConsumeType.CONSUME_PASSIVELY
    message_model = MessageModel.CLUSTERING
    consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    unit_mode = False
    namespace = None

    def __init__(
        self,
        group: str,
        *topics: str,
        rebalance: Callable[[], Awaitable[bool]] | None = None,
        persist: Callable[[], None] | None = None,
    ) -> None:
        self.group = group
        self.subscriptions: dict[str, SubscriptionData] = {
            topic: make_subscription(topic, "*", now_ms=1) for topic in topics
        }
        self._rebalance, self._persist = rebalance, persist
        self.routes: list[tuple[str, list[MessageQueue]]] = []
        self.resets: list[tuple[str, dict[MessageQueue, int]]] = []
        self.consumed: list[ReceivedMessage] = []
        self.progress: dict[MessageQueue, int] = {}

    async def do_rebalance(self) -> bool:
        return True if self._rebalance is None else await self._rebalance()

    async def persist_offsets(self) -> None:
        if self._persist is not None:
            self._persist()

    def routes_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        self.routes.append((topic, list(queues)))

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append((topic, dict(offsets)))

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        return {queue: offset for queue, offset in self.progress.items() if queue.topic == topic}

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(properties={"PROP_CONSUMEORDERLY": "false"})

    async def consume_directly(self, message: ReceivedMessage, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        self.consumed.append(message)
        return ConsumeMessageDirectlyResult(consume_result=ConsumeResult.CR_LATER, remark=broker_name)


class FakeProducer:
    """A producer part."""

    def __init__(self, group: str, *topics: str) -> None:
        self.group = group
        self._topics = topics
        self.routes: list[PublishInfo] = []

    def publish_topics(self) -> tuple[str, ...]:
        return self._topics

    def routes_changed(self, topic: str, info: PublishInfo) -> None:
        assert info.topic == topic
        self.routes.append(info)

    async def check_transaction(self, address: str, request: Command, message: ReceivedMessage) -> None:
        raise AssertionError("nobody asks")
