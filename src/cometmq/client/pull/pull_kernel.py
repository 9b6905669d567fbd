"""The way of one pull: the broker that is best asked, the request, and what its answer means.

A broker says with each answer which of a broker name's servers to ask next, a slave where the master is behind with
its memory; that is remembered for each queue. Pull consumers have a request of their own since 5.0; a broker that
refuses it is asked by the other from then on. Messages are decoded in C, and those whose tag only has the hash of a
wanted one are left out.

Threads: the client's loop. Source: consumption specification 1.8.3, 1.8.4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from cometmq._engine import PullRequest, decode_pulled
from cometmq.client.group.subscriptions import TAG
from cometmq.client.instance.hooks import MessageFilter
from cometmq.client.instance.namespaces import without_namespace
from cometmq.client.pop.pop_handles import TopicKind, pop_retry_topic
from cometmq.client.pull.pull_policy import PullFlag, PullStatus, pull_status
from cometmq.errors import BrokerError, BrokerNotFound, Error, InvalidArgument
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq._engine import PullAnswer, PulledMessages, ReceivedMessage
    from cometmq.client.instance.instance import ClientInstance

    Answer: TypeAlias = PullAnswer | Error

__all__ = ["PullKernel", "PullResult", "log_unreadable"]

_log = logging.getLogger(__name__)

_MASTER_ID = 0
# Plain numbers: operations on an IntFlag are slow, and every pull has them.
_COMMIT, _SUBSCRIPTION, _LITE = int(PullFlag.COMMIT_OFFSET), int(PullFlag.SUBSCRIPTION), int(PullFlag.LITE)
_FILTERS_SINCE = 232
"""Version 4.1.0-SNAPSHOT, the first whose brokers filter by other expressions than tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """The result of a pull.

    Attributes:
        status: the broker's result.
        next_begin_offset: where the next pull begins.
        min_offset: the queue's first offset.
        max_offset: the offset behind its last message.
        messages: the wanted messages; none unless the status is ``FOUND``.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: Sequence[ReceivedMessage] = ()


_NAMED_MAX = 16
"""Records that one line names."""


def log_unreadable(queue: MessageQueue, pulled: PulledMessages) -> None:
    """Say which messages of an answer were passed over because nobody can read them."""
    if not pulled.unreadable:
        return
    count = len(pulled.unreadable) + pulled.unnamed
    named = [f"offset {offset} ({why})" for offset, why in pulled.unreadable[:_NAMED_MAX]]
    if count > len(named):
        named.append(f"and {count - len(named)} more")
    place = f"queue {queue.queue_id} of {queue.topic}" if queue.queue_id >= 0 else queue.topic
    _log.error("passed over %d unreadable record(s) of %s at %s: %s", count, place, queue.broker_name, ", ".join(named))


class PullKernel:
    """Pulls of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        *,
        namespace: str | None = None,
        group: str = "",
        message_filter: MessageFilter | None = None,
    ) -> None:
        """Ask nobody yet.

        Args:
            instance: reaches the brokers.
            namespace: is taken from topics before users see them.
            group: messages that this group has popped and not finished have the topic to which they were sent.
            message_filter: leaves messages out.
        """
        self._instance = instance
        self._filter = message_filter or MessageFilter()
        self._popped_head = pop_retry_topic(group, "", TopicKind.RETRY_V1)
        self._namespace = namespace
        self._suggested: dict[MessageQueue, int] = {}
        self._without_lite: set[str] = set()
        """Brokers older than 5.0: they do not know the request of pull consumers, and serve them by the usual one."""

    def is_popped_before(self, topic: str) -> bool:
        """Return whether a topic has messages that this group popped and did not finish."""
        return topic.startswith(self._popped_head)

    def forget(self, queue: MessageQueue) -> None:
        """Forget whom to ask for a queue that was given up."""
        self._suggested.pop(queue, None)

    def target(self, queue: MessageQueue) -> tuple[str, bool] | None:
        """Return the address to ask and whether it is a slave's; None where no address is known."""
        return self._instance.broker_address(queue.broker_name, self._suggested.get(queue, _MASTER_ID))

    async def find_target(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the same, after asking a name server where no address is known.

        Raises:
            BrokerNotFound: it knows none.
            ConnectionLost, RequestTimeout and others: no name server answered.
        """
        found = self.target(queue)
        if found is None:
            await self._instance.update_route(queue.topic, must_answer=True)
            found = self.target(queue)
        if found is None:
            raise BrokerNotFound(
                f"no name server knows an address of broker {queue.broker_name}: check that it runs and is registered "
                "(cometmq cluster show)",
                broker_name=queue.broker_name,
            )
        return found

    def check_filter(self, address: str, subscription: SubscriptionData) -> None:
        """Refuse an expression that the broker is too old for.

        Raises:
            InvalidArgument: it is.
        """
        if subscription.expression_type in (None, TAG):
            return
        version = self._instance.broker_versions.get(address)
        if version is not None and version < _FILTERS_SINCE:
            raise InvalidArgument(
                f"the broker at {address} is older than 4.1.0 and knows no {subscription.expression_type}: "
                f"subscribe to {subscription.topic} by tags"
            )

    async def pull(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        group: str,
        offset: int,
        max_messages: int,
        max_bytes: int,
        sys_flag: int,
        suspend_timeout_ms: int,
        timeout_ms: int,
        commit_offset: int = 0,
        sub_version: int = 0,
    ) -> PullResult:
        """Pull once.

        Args:
            queue: the queue.
            subscription: selects its messages.
            group: the group.
            offset: where to begin.
            max_messages: most messages.
            max_bytes: most bytes, for brokers that know it.
            sys_flag: :func:`~cometmq.client.pull.pull_policy.pull_flags`; a request to a slave carries no commit
                offset, and its bit is cleared.
            suspend_timeout_ms: how long the broker may hold the request.
            timeout_ms: longest wait.
            commit_offset: progress that is committed with it.
            sub_version: the subscription's version, 0 for none.

        Raises:
            BrokerError: the broker refused.
            BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: no answer came.
            InvalidArgument: the broker cannot filter by the expression.
            CorruptRecord, MalformedCommand: the answer makes no sense.
        """
        address, is_slave = await self.find_target(queue)
        self.check_filter(address, subscription)
        has_request = bool(sys_flag & _LITE) and address not in self._without_lite
        request = partial(
            PullRequest,
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_messages=max_messages,
            sys_flag=sys_flag & ~_COMMIT if is_slave else sys_flag,
            commit_offset=commit_offset,
            suspend_timeout_ms=suspend_timeout_ms,
            subscription=subscription.sub_string if sys_flag & _SUBSCRIPTION else None,
            sub_version=sub_version,
            expression_type=subscription.expression_type,
            max_bytes=max_bytes,
            broker_name=queue.broker_name,
        )
        answer = await self._ask(address, request(lite=has_request), timeout_ms)
        if has_request and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._without_lite.add(address)
            answer = await self._ask(address, request(lite=False), timeout_ms)
        return self.result(queue, subscription, answer, address=address)

    async def _ask(self, address: str, request: PullRequest, timeout_ms: int) -> PullAnswer:
        came: asyncio.Future[Answer] = self._instance.loop.create_future()

        def on_answer(answer: Answer) -> None:
            if not came.done():  # the one who asked may have gone
                came.set_result(answer)

        self._instance.network.pull(address, request, on_answer, timeout_ms=timeout_ms)
        answer = await came
        if isinstance(answer, Error):
            raise answer
        return answer

    def result(
        self, queue: MessageQueue, subscription: SubscriptionData, answer: PullAnswer, *, address: str
    ) -> PullResult:
        """Return what an answer means, and remember whom to ask next.

        Raises:
            BrokerError: the broker refused.
            CorruptRecord: the messages cannot be read.
        """
        status = self.status(queue, answer, address=address)
        return PullResult(
            status=status,
            next_begin_offset=answer.next_begin_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            messages=self.messages(queue, subscription, answer) if status is PullStatus.FOUND else (),
        )

    def status(self, queue: MessageQueue, answer: PullAnswer, *, address: str) -> PullStatus:
        """Return what the broker found, and remember whom to ask next.

        Raises:
            BrokerError: the broker refused.
        """
        status = pull_status(answer.code)
        if status is None:
            raise BrokerError(answer.remark, code=answer.code, address=address)
        if self._suggested.get(queue, _MASTER_ID) != answer.suggested_broker_id:
            self._suggested[queue] = answer.suggested_broker_id
        return status

    def messages(
        self, queue: MessageQueue, subscription: SubscriptionData, answer: PullAnswer
    ) -> list[ReceivedMessage]:
        """Return the wanted messages of an answer.

        Raises:
            CorruptRecord: they cannot be read.
        """
        is_filtered_here = subscription.tags and not subscription.class_filter_mode
        pulled = decode_pulled(
            answer.body,
            broker_name=queue.broker_name,
            topic=without_namespace(self._namespace, queue.topic.removeprefix(self._popped_head)),
            queue_id=queue.queue_id,
            namespace=self._namespace,
            tags=frozenset(subscription.tags) if is_filtered_here else None,
            offset_delta=answer.offset_delta or 0,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
        )
        log_unreadable(queue, pulled)
        return [*filter(self._filter.keeps, pulled.messages)] if self._filter else pulled.messages
