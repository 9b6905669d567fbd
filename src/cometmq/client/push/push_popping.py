"""The additional part of a push consumer whose queues brokers share out: the queues that it is to pop.

A broker says for each topic whether its queues are pulled or popped, and may say otherwise while the consumer runs.
Messages that were popped before and failed lie in a retry topic of group and topic; where the topic is pulled, that is
pulled as well, so that they are consumed after all. A member that was given no queue subscribes to it like the others:
a broker takes each heartbeat for what the whole group subscribes to.

Threads: the client's loop. Source: consumption specification 1.18, 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import TYPE_CHECKING

from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.pop.pop_handles import TopicKind, pop_retry_topic
from cometmq.client.push.pop_service import PopBatch, PopService
from cometmq.client.push.push_pops import PushPops
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.store_config.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.client.push.tasks import TaskResult
    from cometmq.client.settings import PushSettings
    from cometmq.remoting.bodies.heartbeat import SubscriptionData
    from cometmq.remoting.bodies.message_queue import MessageQueue
    from cometmq.remoting.bodies.running_info import PopProcessQueueInfo

__all__ = ["PushPopping", "may_pop"]


def may_pop(settings: PushSettings, *, is_orderly: bool) -> bool:
    """Whether brokers share out the queues of such a consumer; orderly ones do it themselves, as upstream's."""
    return not settings.client_rebalance and not is_orderly and settings.message_model is MessageModel.CLUSTERING


class PushPopping:
    """The popped half of one push consumer.

    Attributes:
        service: gives popped messages to the workers.
    """

    def __init__(
        self,
        pops: PushPops,
        service: PopService,
        subscriptions: MutableMapping[str, SubscriptionData],
        *,
        group: str,
        on_change: Callable[[], object],
        now_ms: Callable[[], int],
    ) -> None:
        """Pop nothing yet.

        Args:
            pops: brings messages.
            service: has them consumed.
            subscriptions: the consumer's, as brokers know them; retry topics come and go here.
            group: the group, as brokers know it.
            on_change: sends the brokers changed subscriptions, in a task.
            now_ms: the wall clock.
        """
        self.service = service
        self._pops = pops
        self._subscriptions = subscriptions
        self._group = group
        self._on_change = on_change
        self._now_ms = now_ms

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues popped now."""
        return list(self._pops.queues)

    def infos(self, *, wall_ahead_ms: int) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Return what an administrator may see of it; the wall clock is so much ahead of the steady one."""
        return {queue: held.info(wall_ahead_ms=wall_ahead_ms) for queue, held in self._pops.queues.items()}

    def assign(self, topic: str, popped: Collection[MessageQueue], *, is_pulled: bool) -> bool:
        """Take a broker's assignment of a topic; return whether it changed.

        Args:
            topic: the topic.
            popped: the queues that are to be popped.
            is_pulled: whether there are others, which are to be pulled.
        """
        if not topic.startswith(RETRY_PREFIX):
            retry = pop_retry_topic(self._group, topic, TopicKind.RETRY_V1)
            if not popped and retry not in self._subscriptions:
                self._subscriptions[retry] = make_subscription(retry, None, now_ms=self._now_ms())
                self._on_change()
            elif popped and not is_pulled and self._subscriptions.pop(retry, None) is not None:
                self._on_change()
        return self._pops.assign(topic, popped)

    def keep_topics(self) -> None:
        """Give up what is not subscribed to any more, and the retry topics with it."""
        for topic in [topic for topic in self._subscriptions if topic.startswith(RETRY_PREFIX)]:
            head = pop_retry_topic(self._group, "", TopicKind.RETRY_V1)
            if topic.startswith(head) and topic.removeprefix(head) not in self._subscriptions:
                del self._subscriptions[topic]
        self._pops.keep_topics(self._subscriptions)

    def sorted(self, on_pulled: Callable[[list[TaskResult]], None]) -> Callable[[list[TaskResult]], None]:
        """Return what takes the work of both kinds, and hands that on which was pulled."""

        def done(task_results: Sequence[TaskResult]) -> None:
            pulled = []
            for task_result in task_results:
                held: object = task_result.task.held
                if isinstance(held, PopBatch):
                    self.service.done(held, task_result)
                else:
                    pulled.append(task_result)
            if pulled:
                on_pulled(pulled)

        return done

    def close(self) -> None:
        """Pop no more."""
        self._pops.close()
        self.service.close()

    async def end(self) -> None:
        """Leave to others what listeners still have."""
        await self.service.end()
