"""The ways of popped messages between a consumer and its brokers: pops, acknowledgements, other invisible times.

Brokers get these requests at their master. Messages whose tag only has the hash of a wanted one, and those that were
tried too often, are acknowledged here and not handed out, as upstream's client does.

Threads: the client's loop. Source: consumption specification 1.18, 4.4 to 4.11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from cometmq._engine import decode_pulled, set_popped
from cometmq.client.group.retry_policy import GIVE_UP
from cometmq.client.instance.hooks import MessageFilter
from cometmq.client.instance.namespaces import with_namespace, without_namespace
from cometmq.client.pop.pop_handles import PopHandle, set_handles, set_order_counts
from cometmq.client.pop.pop_policy import (
    PopStatus,
    ack_request,
    batch_ack_requests,
    fits_batch,
    invisible_request,
    notification_request,
    pop_request,
    pop_status,
    popped_times,
)
from cometmq.client.pull.pull_kernel import log_unreadable
from cometmq.errors import BrokerError, BrokerNotFound, Error, InvalidArgument, StaleHandle
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.group.send_backs import SendBacks
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.remoting.bodies.heartbeat import SubscriptionData

__all__ = ["PopKernel", "PopResult"]

_ACK_TIMEOUT_MS: Final = 3_000
_BEHIND_POLL_MS: Final = 10_000
"""How long an answer may take beyond the time for which a broker may hold the request."""
_STALE: Final = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE)
_ADVICE: Final = {
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "brokers before 5.0 know no POP: use a PullConsumer or a PushConsumer",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic: cometmq topic create",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group: cometmq group create",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopResult:
    """The result of a pop.

    Attributes:
        status: the broker's result.
        messages: the wanted messages.
        pop_ms: when the broker gave them out by its clock, milliseconds since 1970; 0 where it found none.
        rest: how many more the broker has.
    """

    status: PopStatus
    messages: Sequence[ReceivedMessage] = ()
    pop_ms: int = 0
    rest: int = 0


class PopKernel:
    """Pops of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        *,
        group: str,
        namespace: str | None = None,
        tries_max: int | None = None,
        dead_letters: SendBacks | None = None,
        message_filter: MessageFilter | None = None,
        orderly: bool = False,
    ) -> None:
        """Ask nobody yet.

        Args:
            instance: reaches the brokers.
            group: the group, as brokers know it.
            namespace: is taken from topics before users see them.
            tries_max: messages that came back more often are given up here; None for no limit.
            dead_letters: takes what is given up; None drops it.
            message_filter: leaves messages out, which are acknowledged.
            orderly: pop each queue's messages in order.
        """
        self._instance = instance
        self._group = group
        self._namespace = namespace
        self._tries_max = tries_max
        self._dead_letters = dead_letters
        self._filter = message_filter or MessageFilter()
        self._orderly = orderly
        self._unanswered: dict[MessageQueue, list[str]] = {}
        """Attempt ids of ordered pops without an answer; the broker may have given their messages out."""
        self._without_batches: set[str] = set()
        """Brokers that know no batches of acknowledgements: they are older than 5.1."""

    async def _ask(self, broker_name: str, topic: str, command: Command, *, timeout_ms: int) -> tuple[Command, str]:
        """Ask a broker's master; return its answer with any code, and its address."""
        instance = self._instance
        address = instance.master_address(broker_name)
        if address is None:
            await instance.update_route(topic, must_answer=True)
            address = instance.master_address(broker_name)
        if address is None:
            raise BrokerNotFound(
                f"no name server knows a master of broker {broker_name}: check that it runs and is registered "
                "(cometmq cluster show)",
                broker_name=broker_name,
            )
        return await instance.network.invoke(address, command, timeout_ms=timeout_ms), address

    # --- Messages in --------------------------------------------------------------------------------------------------

    async def pop(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        max_messages: int,
        invisible_ms: int,
        poll_ms: int,
        from_first: bool,
    ) -> PopResult:
        """Take messages once; the arguments are those of :func:`~cometmq.client.pop.pop_policy.pop_request`.

        Raises:
            BrokerError: the broker refused.
            BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: no answer came.
            CorruptRecord, MalformedCommand: the answer makes no sense; its messages are redelivered.
        """
        attempt_id = self._next_attempt(queue) if self._orderly else None
        command = pop_request(
            queue,
            subscription,
            group=self._group,
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            from_first=from_first,
            attempt_id=attempt_id,
        )
        try:
            answer, address = await self._ask(
                queue.broker_name, queue.topic, command, timeout_ms=poll_ms + _BEHIND_POLL_MS
            )
        except Error:
            if attempt_id is not None:
                self._unanswered.setdefault(queue, []).append(attempt_id)
            raise
        status = pop_status(answer.code)
        if status is None:
            raise _refused(answer, address)
        if status is not PopStatus.FOUND:
            return PopResult(status=status)
        times = popped_times(answer)
        members = Members(answer.fields)
        pulled = decode_pulled(
            answer.body,
            broker_name=queue.broker_name,
            topic=without_namespace(self._namespace, queue.topic),
            queue_id=queue.queue_id,
            namespace=self._namespace,
        )
        log_unreadable(queue, pulled)
        messages = set_handles(
            pulled.messages,
            times,
            broker_name=queue.broker_name,
            starts=members.text("startOffsetInfo"),
            message_offsets=members.text("msgOffsetInfo"),
        )
        if self._orderly:
            set_order_counts(messages, members.text("orderCountInfo"))
        return PopResult(
            status=status,
            messages=self._wanted(messages, subscription),
            pop_ms=times.pop_ms,
            rest=members.int64("restNum", 0),
        )

    def _next_attempt(self, queue: MessageQueue) -> str:
        """Return the id of a pop without an answer, to get its messages, or a new one. Each is in flight once."""
        lost = self._unanswered.get(queue)
        return lost.pop() if lost else str(uuid4())

    def _wanted(self, messages: list[ReceivedMessage], subscription: SubscriptionData) -> list[ReceivedMessage]:
        tags = frozenset(subscription.tags) if subscription.tags and not subscription.class_filter_mode else None
        most = self._tries_max
        if tags is None and most is None and not self._filter:
            return messages
        wanted: list[ReceivedMessage] = []
        unwanted: list[ReceivedMessage] = []
        for message in messages:
            if (tags is not None and message.tags not in tags) or not self._filter.keeps(message):
                unwanted.append(message)
            elif most is not None and message.reconsume_times > most:
                _log.warning("group %s: %s was tried more than %s times and is given up", self._group, message, most)
                self._instance.spawn(self.give_up(message))
            else:
                wanted.append(message)
        if unwanted:
            # Nobody waits for it: a message whose ack fails is redelivered, and dropped here again.
            self._instance.spawn(self.ack_quietly(unwanted))
        return wanted

    async def has_messages(self, queue: MessageQueue, *, poll_ms: int) -> bool:
        """Ask whether there is something to pop; the broker may hold the question until there is. Takes nothing.

        Raises:
            BrokerError, BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: it is not known.
        """
        command = notification_request(queue, group=self._group, poll_ms=poll_ms, orderly=self._orderly)
        answer, address = await self._ask(queue.broker_name, queue.topic, command, timeout_ms=poll_ms + _BEHIND_POLL_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(answer, address)
        return Members(answer.fields).boolean("hasMsg")

    # --- Messages that are done ---------------------------------------------------------------------------------------

    def _place(self, message: ReceivedMessage) -> tuple[PopHandle, str]:
        """Return a message's handle and the topic that was popped, as brokers know it."""
        text = message.pop_handle
        if text is None:
            raise InvalidArgument(f"{message!r} was not popped: it has no handle")
        return PopHandle.parse(text), with_namespace(self._namespace, message.topic)

    async def ack(self, message: ReceivedMessage) -> None:
        """Finish a message.

        Raises:
            InvalidArgument: it was not popped.
            StaleHandle: its broker does not know it any more.
            BrokerError, BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: it is not known to be finished.
        """
        handle, topic = self._place(message)
        command = ack_request(handle, group=self._group, topic=topic)
        answer, address = await self._ask(handle.broker_name, topic, command, timeout_ms=_ACK_TIMEOUT_MS)
        _require_known(answer, address, handle)

    async def ack_many(self, messages: Iterable[ReceivedMessage]) -> None:
        """Finish messages, those of one broker with one request where it knows that.

        All brokers are asked, also where one of them fails. Raises as :meth:`ack`, the first failure.
        """
        by_broker: dict[str, list[tuple[ReceivedMessage, PopHandle, str]]] = {}
        for message in messages:
            handle, topic = self._place(message)
            by_broker.setdefault(handle.broker_name, []).append((message, handle, topic))
        outcomes = await asyncio.gather(
            *(self._ack_at(broker_name, some) for broker_name, some in by_broker.items()), return_exceptions=True
        )
        _raise_first(outcomes)

    async def _ack_at(self, broker_name: str, some: Sequence[tuple[ReceivedMessage, PopHandle, str]]) -> None:
        together = [] if len(some) == 1 or broker_name in self._without_batches else [
            (handle, topic) for _, handle, topic in some if fits_batch(handle)
        ]  # fmt: skip
        singles = [message for message, handle, _ in some if not together or not fits_batch(handle)]
        commands = list(batch_ack_requests(together, group=self._group, broker_name=broker_name))
        answers = await asyncio.gather(
            *(self._ask(broker_name, some[0][2], one, timeout_ms=_ACK_TIMEOUT_MS) for one in commands),
            *(self.ack(message) for message in singles),
            return_exceptions=True,
        )
        _raise_first(answers)
        for pair in answers[: len(commands)]:
            assert isinstance(pair, tuple)
            answer, address = pair
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._without_batches.add(broker_name)
                await self._ack_at(broker_name, [one for one in some if fits_batch(one[1])])
                return
            if answer.code != ResponseCode.SUCCESS:
                raise _refused(answer, address)

    async def ack_quietly(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages; failures are logged, and the messages redelivered."""
        try:
            await self.ack_many(messages)
        except Error as error:
            _log.warning(
                "group %s: cannot acknowledge %d messages; they may be redelivered: %s",
                self._group,
                len(messages),
                error,
            )

    async def give_up(self, message: ReceivedMessage) -> None:
        """Make a message a dead letter, and acknowledge it. One that no broker takes is redelivered."""
        if self._dead_letters is None or await self._dead_letters.give_back(message, GIVE_UP):
            await self.ack_quietly([message])

    async def set_invisible(self, message: ReceivedMessage, invisible_ms: int) -> str:
        """Hide a message for so long from now on; it gets another handle, which is returned. Raises as :meth:`ack`."""
        handle, topic = self._place(message)
        command = invisible_request(handle, group=self._group, topic=topic, invisible_ms=invisible_ms)
        answer, address = await self._ask(handle.broker_name, topic, command, timeout_ms=_ACK_TIMEOUT_MS)
        _require_known(answer, address, handle)
        renewed = handle.renewed(popped_times(answer))
        set_popped([message], renewed.head, renewed.queue_id, [renewed.queue_offset])
        return str(renewed)


def _raise_first(outcomes: Iterable[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _refused(answer: Command, address: str) -> BrokerError:
    advice = next((text for code, text in _ADVICE.items() if code == answer.code), None)
    return BrokerError(answer.remark, code=answer.code, address=address, advice=advice)


def _require_known(answer: Command, address: str, handle: PopHandle) -> None:
    if answer.code in _STALE:
        raise StaleHandle(
            f"the broker at {address} has no message {handle.queue_offset} in queue {handle.queue_id} that this handle "
            f"could stand for: {answer.remark or 'no remark'}",
            handle=str(handle),
            code=answer.code,
        )
    if answer.code != ResponseCode.SUCCESS:
        raise _refused(answer, address)
