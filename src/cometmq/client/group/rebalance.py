"""Shares the queues of a group's topics out among its members, as far as it concerns this one.

Each member asks for the list of members and computes the same allocation. It gives up queues that are no longer its
own, after storing their progress, and takes new ones, for an orderly group with the broker's lock. The table of queues
belongs to this object; a queue in it that is ``dropped`` is on its way out.

Invariants: rounds never overlap; a queue is in the table once; nothing comes into the table after it was closed. A
failure of one topic or one queue leaves the others alone, and a later round tries again.

Threads: the client's loop. Source: consumption specification 1.6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from cometmq._plural import counted
from cometmq.client.group.allocation import AllocateStrategy
from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.group.queue_diff import (
    additions_of,
    allocation_of,
    is_balanced,
    queues_without_topic,
    removals_of,
    split_by_mode,
)
from cometmq.client.instance.outages import may_pass
from cometmq.client.pop.pop_policy import ALL_QUEUES
from cometmq.errors import BrokerError, BrokerNotFound, Error
from cometmq.remoting.bodies.assignments import QueryAssignmentRequestBody, QueryAssignmentResponseBody
from cometmq.remoting.bodies.heartbeat import MessageModel, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from cometmq.store_config.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.settings import ConsumerSettings

__all__ = ["Rebalance", "RebalanceOwner"]

_log = logging.getLogger(__name__)

_LOCK_TIMEOUT_MS = 1_000
_LOCK_AGAIN_MS = 500
_STARTS_AT_ONCE = 64
"""Start offsets asked for at a time."""


class RebalanceOwner(Protocol):
    """The consumer whose queues these are."""

    @property
    def group(self) -> str:
        """Its group."""
        ...

    @property
    def model(self) -> MessageModel:
        """Whether members share the queues or each has all."""
        ...

    @property
    def is_orderly(self) -> bool:
        """Whether a queue needs the broker's lock."""
        ...

    @property
    def is_push(self) -> bool:
        """Whether queues are pulled without being asked."""
        ...

    @property
    def strategy(self) -> AllocateStrategy:
        """The allocation strategy."""
        ...

    @property
    def settings(self) -> ConsumerSettings:
        """The user's settings; of these ``client_rebalance`` and ``mq_client_api_timeout_ms`` count here."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """Topic to subscription, as it is now."""
        ...

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return where a new queue begins; below 0, or an Error, leaves it for a later round."""
        ...

    def dispatch(self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int) -> None:
        """Begin with a new queue."""
        ...

    async def release(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        """Store the progress of a queue that is dropped and give it up; False leaves it for a later round."""
        ...

    def queues_changed(self, topic: str, all_queues: Collection[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """Take note of other queues; both are empty where nobody knows where the topic is."""
        ...

    def take_pops(self, topic: str, queues: Sequence[MessageQueue], *, is_pulled: bool) -> bool:
        """Pop exactly these queues of a topic, as a broker says; return whether they changed.

        Args:
            topic: the topic.
            queues: the queues to pop; an id of -1 stands for all queues of the broker.
            is_pulled: whether others of the topic are to be pulled.
        """
        ...

    def forget_offset(self, queue: MessageQueue) -> None:
        """Forget what memory knows of a queue's progress."""
        ...


class Rebalance:
    """The queues of one consumer.

    Attributes:
        queues: queue to what is held of it. Others may take entries out, and only this object puts them in.
    """

    def __init__(self, instance: ClientInstance, owner: RebalanceOwner, *, now_ms: Callable[[], int]) -> None:
        """Own no queues yet.

        Args:
            instance: reaches the brokers.
            owner: the consumer.
            now_ms: milliseconds; by a clock that is never set where queues are locked or expire.
        """
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self._instance = instance
        self._owner = owner
        self._now_ms = now_ms
        self._round = asyncio.Lock()
        self._kept: set[MessageQueue] = set()
        # Topics whose failure was logged and is not over.
        self._failing: set[str] = set()
        self._closed = False

    # --- Rounds -------------------------------------------------------------------------------------------------------

    async def run(self) -> bool:
        """Share out the queues of every topic; return whether each is where it belongs."""
        async with self._round:
            balanced = True
            for topic in list(self._owner.subscriptions):
                if self._closed:
                    break
                balanced = await self._try_topic(topic) and balanced
            await self._remove(queues_without_topic(self._owner.subscriptions, self.queues))
            return balanced and not queues_without_topic(self._owner.subscriptions, self.queues)

    async def _try_topic(self, topic: str) -> bool:
        try:
            balanced = await self._topic(topic)
        except Exception as error:  # noqa: BLE001 - a strategy or listener of the user's may raise anything
            if not topic.startswith(RETRY_PREFIX):
                self._log_failure(topic, error)
            return False
        if topic in self._failing:
            self._failing.remove(topic)
            _log.info("group %s: the queues of %s are shared out again", self._owner.group, topic)
        return balanced

    def _log_failure(self, topic: str, error: Exception) -> None:
        """Log a transient failure once until it is over, since rounds come each second; any other one each time."""
        if not (isinstance(error, Error) and may_pass(error)):
            _log.warning("group %s: the queues of %s: %r", self._owner.group, topic, error, exc_info=error)
            return
        if topic not in self._failing:
            self._failing.add(topic)
            _log.warning(
                "group %s: the queues of %s stay as they are until this is over: %s", self._owner.group, topic, error
            )

    async def _topic(self, topic: str) -> bool:
        owner = self._owner
        # Read before the members are asked for: a topic whose route comes with that question waits for the next round.
        queues = self._instance.routes.subscribe_queues(topic)
        is_broadcast = owner.model is MessageModel.BROADCASTING
        if not (owner.settings.client_rebalance or owner.is_orderly or is_broadcast):
            return await self._topic_by_broker(topic)
        client_ids = None if is_broadcast else await self._instance.consumer_ids(topic, owner.group)
        if queues is None:
            if is_broadcast or not topic.startswith(RETRY_PREFIX):
                owner.queues_changed(topic, (), ())
            return self._instance.routes.subscribe_queues(topic) is None
        if is_broadcast:
            wanted: Sequence[MessageQueue] = queues
        elif client_ids is None:
            return True
        else:
            wanted = allocation_of(
                owner.strategy,
                group=owner.group,
                client_id=self._instance.client_id,
                queues=queues,
                client_ids=client_ids,
            )
        if await self._update(topic, wanted, needs_lock=owner.is_orderly and not is_broadcast):
            _log.info("group %s has %d of %d queues of %s", owner.group, len(wanted), len(queues), topic)
            owner.queues_changed(topic, queues, wanted)
        return is_balanced(topic, wanted, self.queues)

    async def _topic_by_broker(self, topic: str) -> bool:
        """Take the queues that a broker of the topic says are ours, as for groups that mix pulling and popping."""
        owner, instance = self._owner, self._instance
        address = instance.routes.broker_of_topic(topic)
        if address is None:
            await instance.update_route(topic)
            address = instance.routes.broker_of_topic(topic)
        if address is None:
            return True
        question = QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=owner.group,
            client_id=instance.client_id,
            strategy_name=owner.strategy.name,
            message_model=owner.model,
        )
        answer = await instance.network.invoke(
            instance.api_address(address),
            request(RequestCode.QUERY_ASSIGNMENT, body=question.to_json()),
            timeout_ms=owner.settings.mq_client_api_timeout_ms,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.remark, code=answer.code, address=address)
        assignments = QueryAssignmentResponseBody.from_json(answer.body).assignments
        if assignments is None:  # the broker does not know, so nothing may change
            await instance.greet_again(address, owner.group)
            return False
        pulled, popped = split_by_mode(assignments)
        is_changed = owner.take_pops(topic, popped, is_pulled=bool(pulled))
        if await self._update(topic, pulled, needs_lock=False) or is_changed:
            wanted = [*pulled, *popped]
            verbs = [verb for verb, queues in (("pulls", pulled), ("pops", popped)) if queues]
            is_all = any(queue.queue_id == ALL_QUEUES for queue in popped)
            _log.info(
                "group %s %s %s of %s, as %s says",
                owner.group,
                " and ".join(verbs) or "has",
                "all queues" if is_all else counted(len(wanted), "queue"),
                topic,
                address,
            )
            owner.queues_changed(topic, instance.routes.subscribe_queues(topic) or wanted, wanted)
        return is_balanced(topic, pulled, self.queues)

    async def _update(self, topic: str, wanted: Sequence[MessageQueue], *, needs_lock: bool) -> bool:
        """Bring the table to the wanted queues, as far as possible; return whether anything changed."""
        changed = await self._remove(
            removals_of(
                topic,
                frozenset(wanted),
                self.queues,
                now_ms=self._now_ms(),
                is_push=self._owner.is_push,
                kept=self._kept,
            )
        )
        return await self._add(additions_of(wanted, self.queues), needs_lock=needs_lock) or changed

    async def _remove(self, removals: Sequence[tuple[MessageQueue, ProcessQueue]]) -> bool:
        for _, held in removals:
            held.dropped = True
        released = await asyncio.gather(*(self._release(queue, held) for queue, held in removals))
        for (queue, held), is_released in zip(removals, released, strict=True):
            if is_released:
                self._take_out(queue, held)
            elif self.queues.get(queue) is held:
                self._kept.add(queue)
        return any(released)

    async def _release(self, queue: MessageQueue, held: ProcessQueue) -> bool:
        try:
            return await self._owner.release(queue, held)
        except Error as error:
            _log.warning("group %s could not give up %s: %s", self._owner.group, queue, error)
            return False

    def _take_out(self, queue: MessageQueue, held: ProcessQueue) -> None:
        if self.queues.get(queue) is held:
            del self.queues[queue]
        self._kept.discard(queue)

    async def _add(self, additions: Sequence[MessageQueue], *, needs_lock: bool) -> bool:
        if needs_lock and additions:
            locked = await self._lock_queues(additions)
            if len(locked) < len(additions):
                self._instance.wake_rebalance(_LOCK_AGAIN_MS)
            additions = [queue for queue in additions if queue in locked]
        locked_ms = self._now_ms()
        changed = False
        for begin in range(0, len(additions), _STARTS_AT_ONCE):
            some = additions[begin : begin + _STARTS_AT_ONCE]
            starts = await asyncio.gather(*map(self._start_offset, some))
            for queue, offset in zip(some, starts, strict=True):
                if offset >= 0 and queue not in self.queues and not self._closed:
                    held = ProcessQueue(queue)
                    held.locked = True
                    held.last_lock_ms = locked_ms
                    self.queues[queue] = held
                    self._owner.dispatch(queue, held, offset)
                    changed = True
        return changed

    async def _start_offset(self, queue: MessageQueue) -> int:
        self._owner.forget_offset(queue)
        try:
            return await self._owner.start_offset(queue)
        except Error as error:
            _log.warning("group %s cannot begin with %s yet: %s", self._owner.group, queue, error)
            return -1

    @asynccontextmanager
    async def between_rounds(self) -> AsyncIterator[None]:
        """Wait for the round that runs, and let none begin meanwhile."""
        async with self._round:
            yield

    def give_up_later(self, queue: MessageQueue) -> None:
        """Let the next rounds give up a queue that is dropped and could not go yet; it is added as new then."""
        if queue in self.queues:
            self._kept.add(queue)
            self._instance.wake_rebalance()

    def drop_all(self) -> None:
        """Let every queue go, without storing anything; no other comes in any more."""
        self._closed = True
        for held in self.queues.values():
            held.dropped = True
        self.queues.clear()
        self._kept.clear()

    # --- Locks of orderly queues --------------------------------------------------------------------------------------

    async def lock(self, queue: MessageQueue) -> bool:
        """Ask the queue's master for its lock; return whether it is ours now."""
        return queue in await self._lock_queues((queue,))

    async def lock_all(self) -> None:
        """Renew the locks of all queues; those that are refused are not locked any more.

        A queue that is on its way out keeps its lock while a listener works on it: the next member would begin beside
        that. Where a broker does not answer, its queues stay as they are: locks that are not renewed run out.
        """
        queues = [queue for queue, held in self.queues.items() if not held.dropped or held.listeners]
        await self._lock_queues(queues, renew=True)

    async def _lock_queues(self, queues: Iterable[MessageQueue], *, renew: bool = False) -> set[MessageQueue]:
        """Ask each master for the locks of its queues; return those that are ours now."""
        answers = await asyncio.gather(
            *(self._lock_at(broker_name, part, renew=renew) for broker_name, part in _by_broker(queues).items())
        )
        return set().union(*answers)

    async def _lock_at(self, broker_name: str, queues: Sequence[MessageQueue], *, renew: bool) -> set[MessageQueue]:
        command = request(
            RequestCode.LOCK_BATCH_MQ,
            body=LockBatchRequestBody(
                consumer_group=self._owner.group, client_id=self._instance.client_id, queues=tuple(queues)
            ).to_json(),
        )
        try:
            answer = await self._ask(broker_name, command)
            ours = set(queues).intersection(LockBatchResponseBody.from_json(answer.body).locked_queues)
        except Error as error:
            _log.warning("group %s: no locks from broker %s: %s", self._owner.group, broker_name, error)
            return set()
        now_ms = self._now_ms()
        for queue in queues:
            held = self.queues.get(queue)
            if held is None:
                continue
            if queue in ours:
                held.locked = True
                held.last_lock_ms = now_ms
            elif renew:
                if held.locked:
                    _log.warning("group %s lost the lock of %s", self._owner.group, queue)
                held.locked = False
        return ours

    async def unlock(self, queue: MessageQueue, *, oneway: bool) -> None:
        """Give a queue's lock back; failures are only logged, since locks expire.

        Args:
            queue: the queue.
            oneway: do not wait for the answer.
        """
        await self._unlock_at(queue.broker_name, (queue,), oneway=oneway)

    async def unlock_all(self, *, oneway: bool = False) -> None:
        """Give back the locks of all queues. Those whose listener still works run out: nobody is to begin beside it."""
        queues = [queue for queue, held in self.queues.items() if not held.listeners]
        await asyncio.gather(
            *(self._unlock_at(broker_name, part, oneway=oneway) for broker_name, part in _by_broker(queues).items())
        )

    async def _unlock_at(self, broker_name: str, queues: Sequence[MessageQueue], *, oneway: bool) -> None:
        command = request(
            RequestCode.UNLOCK_BATCH_MQ,
            body=UnlockBatchRequestBody(
                consumer_group=self._owner.group, client_id=self._instance.client_id, queues=tuple(queues)
            ).to_json(),
        )
        try:
            if oneway:
                self._instance.network.oneway(self._master(broker_name), command)
            else:
                await self._ask(broker_name, command)
        except Error as error:
            _log.warning(
                "group %s: cannot release locks at broker %s; they expire: %s", self._owner.group, broker_name, error
            )
        for queue in queues:
            held = self.queues.get(queue)
            if held is not None:
                held.locked = False

    async def _ask(self, broker_name: str, command: Command) -> Command:
        answer = await self._instance.network.invoke(self._master(broker_name), command, timeout_ms=_LOCK_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.remark, code=answer.code)
        return answer

    def _master(self, broker_name: str) -> str:
        address = self._instance.master_address(broker_name)
        if address is None:
            raise BrokerNotFound(f"the master of broker {broker_name} is not known", broker_name=broker_name)
        return self._instance.api_address(address)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return by_broker
