"""The pulls of a push consumer: one for each of its queues, from the rebalance that brought the queue to the one that
takes it away.

Invariant: each queue has one pull that waits for a timer, is at a broker, or is being decided; every event puts it back
exactly once, or ends it with its queue.

A pull that waits because too much is held goes on as soon as there is room, at the latest after 50 ms. One that would
be held by the broker, because the last has brought all that there is, is sent when a listener has taken something of
that, at the latest after 1 ms: received messages are on their way to the listener first.

Threads: the client's loop. Source: consumption specification 1.8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq._engine import PullRequest
from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.instance.outages import OutageLog
from cometmq.client.pull.pull_kernel import PullKernel
from cometmq.client.pull.pull_policy import (
    FlowCounters,
    Gate,
    PullFlag,
    PullLimits,
    PullStatus,
    commit_to_send,
    delay_after_error_ms,
    delay_at_gate_ms,
    next_gate,
    pull_flags,
)
from cometmq.errors import BrokerError, Error
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.codes import ResponseCode
from cometmq.store_config.names import RETRY_PREFIX

if TYPE_CHECKING:
    import asyncio

    from cometmq._engine import PullAnswer, ReceivedMessage
    from cometmq.client.group.offset_stores import OffsetStore
    from cometmq.client.instance.hooks import MessageFilter
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.push.consume_counts import ConsumeCounts
    from cometmq.client.settings import PushSettings
    from cometmq.remoting.bodies.heartbeat import SubscriptionData
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["PullHost", "PushPulls"]

_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_FIRST_PULL_MS: Final = 500
_LISTENER_FIRST_MS: Final = 1
_REFUSED_OFTEN: Final = 3
"""A pull of a retry topic that is refused so many times in a row for its subscription is warned of."""
_NOT_SUBSCRIBED: Final = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)
_GROUP_UNKNOWN: Final = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
_GREETED_MS: Final = 50
_FLOW_GATES: Final = (Gate.TOO_MANY, Gate.TOO_LARGE, Gate.TOO_WIDE)

_log = logging.getLogger(__name__)


class PullHost(Protocol):
    """The consumer whose pulls these are."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not closed."""
        ...

    @property
    def is_suspended(self) -> bool:
        """Whether its user has suspended it."""
        ...

    @property
    def is_orderly(self) -> bool:
        """Whether its listener is orderly."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """Topic to subscription, as it is now."""
        ...

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return where a queue begins; below 0, or an Error, where it is not known now."""
        ...

    def consume(self, held: ProcessQueue, messages: list[ReceivedMessage], *, dispatch: bool) -> None:
        """Take messages that were pulled; ``dispatch`` says that an orderly chain has to begin."""
        ...

    def offset_is_illegal(self, held: ProcessQueue, offset: int) -> None:
        """Begin a queue again at an offset that exists; it is dropped already."""
        ...


class _Pull:
    """One queue's pull.

    ``waits_for_listener``: its timer may be cut short when messages are done. ``like`` is a request that differs from
    the next only in its offsets, made for ``subscription``; ``on_answer`` takes what ``address`` answers to it.
    ``refusals`` counts those in a row that say that the broker knows of no such subscription.
    """

    __slots__ = (
        "address",
        "asked_s",
        "held",
        "like",
        "next_offset",
        "on_answer",
        "previously_locked",
        "refusals",
        "subscription",
        "timer",
        "waits_for_listener",
    )

    def __init__(self, held: ProcessQueue, next_offset: int) -> None:
        self.held = held
        self.next_offset = next_offset
        self.previously_locked = False
        self.timer: asyncio.TimerHandle | None = None
        self.waits_for_listener = False
        self.refusals = 0
        self.asked_s = 0.0
        self.address: str | None = None
        self.subscription: SubscriptionData | None = None
        self.like: PullRequest
        self.on_answer: Callable[[PullAnswer | Error], object]


class PushPulls:
    """The pulls of one push consumer.

    Attributes:
        limits: how much of a queue may wait.
        counters: how often pulls waited because too much did.
    """

    def __init__(
        self,
        instance: ClientInstance,
        host: PullHost,
        settings: PushSettings,
        store: OffsetStore,
        *,
        group: str,
        counts: ConsumeCounts,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        message_filter: MessageFilter | None = None,
    ) -> None:
        """Pull nothing yet.

        Args:
            instance: reaches the brokers.
            host: the consumer.
            settings: the consumer's.
            store: its offsets, which pulls carry to the broker.
            group: the group, as brokers know it.
            counts: counts the pulled messages.
            spawn: runs work beside.
            message_filter: leaves messages out.
        """
        self.limits = PullLimits(
            messages=settings.pull_threshold_for_queue,
            size_mib=settings.pull_threshold_size_for_queue_mib,
            span=settings.consume_concurrently_max_span,
        )
        self.counters = FlowCounters()
        self._instance = instance
        self._host = host
        self._settings = settings
        self._store = store
        self._group = group
        self._counts = counts
        self._clock = instance.loop.time
        self._spawn = spawn
        self._kernel = PullKernel(instance, namespace=settings.namespace, group=group, message_filter=message_filter)
        self._pulls: dict[ProcessQueue, _Pull] = {}
        self._closed = False
        self._troubles = OutageLog(_log, group=group)

    def begin(self, held: ProcessQueue, next_offset: int) -> None:
        """Pull a queue that came; the first time in half a second."""
        held.last_pull_ms = self._instance.steady_ms()
        pull = self._pulls[held] = _Pull(held, next_offset)
        self._later(pull, _FIRST_PULL_MS)

    def room(self, held: ProcessQueue) -> None:
        """Let a pull that waits because too much is held look again, now that less is."""
        pull = self._pulls.get(held)
        if pull is not None and pull.waits_for_listener and (gate := self._gate(pull)) not in _FLOW_GATES:
            self._go(pull, gate)

    def close(self) -> None:
        """End every pull. Later answers are not taken: they would begin listeners while the consumer ends."""
        self._closed = True
        for pull in self._pulls.values():
            if pull.timer is not None:
                pull.timer.cancel()
        self._pulls.clear()

    # --- When ---------------------------------------------------------------------------------------------------------

    def _later(self, pull: _Pull, delay_ms: int) -> None:
        if delay_ms <= 0:
            self._now(pull)
        elif pull.held in self._pulls:
            pull.timer = self._instance.loop.call_later(delay_ms / 1000, self._now, pull)

    def _gate(self, pull: _Pull) -> Gate:
        host, held = self._host, pull.held
        return next_gate(
            held,
            self.limits,
            running=host.is_running,
            paused=host.is_suspended,
            orderly=host.is_orderly,
            previously_locked=pull.previously_locked,
            subscribed=held.queue.topic in host.subscriptions,
            now_ms=self._instance.steady_ms(),
        )

    def _now(self, pull: _Pull) -> None:
        self._go(pull, self._gate(pull))

    def _go(self, pull: _Pull, gate: Gate) -> None:
        """Do what the gate says that the pull has come to."""
        if pull.timer is not None:
            pull.timer.cancel()
            pull.timer = None
        pull.waits_for_listener = False
        if gate is Gate.OPEN:
            self._send(pull)
        elif gate is Gate.DROPPED:
            self._end(pull.held)
        elif gate is Gate.FIRST_LOCKED:
            self._spawn(self._first_locked(pull))
        else:
            if gate in _FLOW_GATES:
                pull.waits_for_listener = True
                if self.counters.note(gate):
                    _log.warning("group %s: pulls wait, %s: %r", self._group, gate.value, pull.held)
            self._later(pull, delay_at_gate_ms(gate, exception_delay_ms=self._exception_ms))

    async def _first_locked(self, pull: _Pull) -> None:
        """Ask again where to begin: until the lock came, another member may have gone on."""
        try:
            offset = await self._host.start_offset(pull.held.queue)
        except Error as error:
            _log.warning("group %s cannot begin with %s yet: %s", self._group, pull.held.queue, error)
            offset = -1
        if offset < 0:
            self._later(pull, self._exception_ms)
            return
        if offset < pull.next_offset:
            _log.warning("group %s: %s begins at %d, before %d", self._group, pull.held.queue, offset, pull.next_offset)
        pull.previously_locked = True
        pull.next_offset = offset
        self._now(pull)

    @property
    def _exception_ms(self) -> int:
        return self._settings.pull_time_delay_when_exception_ms

    # --- Requests -----------------------------------------------------------------------------------------------------

    def _send(self, pull: _Pull) -> None:
        queue = pull.held.queue
        target = self._kernel.target(queue)
        if target is None:
            self._spawn(self._find_broker(pull))
            return
        address, is_slave = target
        settings = self._settings
        subscription = self._host.subscriptions[queue.topic]
        try:
            self._kernel.check_filter(address, subscription)
        except Error as error:
            self._failed(pull, error)
            return
        if address != pull.address or subscription is not pull.subscription:
            self._prepare(pull, subscription, address)
        commit_offset, is_commit = commit_to_send(
            settings.message_model, self._store.memory(queue), from_slave=is_slave
        )
        like = pull.like
        request = like.again(pull.next_offset, commit_offset, like.sys_flag | _COMMIT if is_commit else like.sys_flag)
        pull.asked_s = self._clock()
        self._instance.network.pull(
            address, request, pull.on_answer, timeout_ms=settings.consumer_timeout_when_suspend_ms
        )

    def _prepare(self, pull: _Pull, subscription: SubscriptionData, address: str) -> None:
        """Make what all pulls of a queue share, until its subscription or its broker is another."""
        settings, queue = self._settings, pull.held.queue
        # Members of other kinds that have no queue of a topic do not subscribe to what was popped of it: their
        # heartbeats would take that away from the group, and the broker would refuse pulls until the next of ours.
        brings_along = settings.post_subscription_when_pull or self._kernel.is_popped_before(queue.topic)
        with_expression = brings_along and not subscription.class_filter_mode
        pull.like = PullRequest(
            group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_messages=settings.pull_batch_size,
            sys_flag=pull_flags(
                suspend=True, subscription=with_expression, class_filter=subscription.class_filter_mode
            ),
            commit_offset=0,
            suspend_timeout_ms=settings.broker_suspend_max_time_ms,
            sub_version=subscription.sub_version,
            max_bytes=settings.pull_batch_size_bytes,
            subscription=subscription.sub_string if with_expression else None,
            expression_type=subscription.expression_type,
            broker_name=queue.broker_name,
        )
        pull.on_answer = partial(self._answered, pull, subscription, address)
        pull.subscription = subscription
        pull.address = address

    async def _find_broker(self, pull: _Pull) -> None:
        try:
            await self._kernel.find_target(pull.held.queue)
        except Error as error:
            self._failed(pull, error)
        else:
            self._now(pull)

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _answered(self, pull: _Pull, subscription: SubscriptionData, address: str, answer: PullAnswer | Error) -> None:
        held = pull.held
        queue = held.queue
        if self._closed:
            return
        try:
            if isinstance(answer, Error):
                raise answer
            status = self._kernel.status(queue, answer, address=address)
            is_found = status is PullStatus.FOUND
            messages = self._kernel.messages(queue, subscription, answer) if is_found else []
        except Error as error:
            self._failed(pull, error)
            return
        pull.refusals = 0
        if self._troubles:
            self._troubles.works(queue)
        if is_found:
            self._found(pull, answer.next_begin_offset, messages, is_all=answer.next_begin_offset >= answer.max_offset)
            return
        pull.next_offset = answer.next_begin_offset
        if status is PullStatus.OFFSET_ILLEGAL:
            if not held.dropped:
                _log.warning("group %s: %s goes on at %d", self._group, queue, pull.next_offset)
            # Where the queue is on its way out, the group may have been reset: its progress from before is not to be
            # stored any more.
            held.dropped = True
            self._host.offset_is_illegal(held, pull.next_offset)
            self._end(held)
            return
        self._pass(pull)
        self._now(pull)

    def _pass(self, pull: _Pull) -> None:
        """Move the group's progress past messages that it does not want: else one that wants none never comes on."""
        if not pull.held.count and not pull.held.dropped:
            self._store.update(pull.held.queue, pull.next_offset, increase_only=True)

    def _end(self, held: ProcessQueue) -> None:
        if self._pulls.pop(held, None) is not None:
            self._kernel.forget(held.queue)

    def _found(self, pull: _Pull, next_offset: int, messages: list[ReceivedMessage], *, is_all: bool) -> None:
        held = pull.held
        previous, pull.next_offset = pull.next_offset, next_offset
        if held.dropped:
            self._end(held)
            return
        if not messages:
            self._pass(pull)
            self._now(pull)
            return
        self._counts.pulled(held.queue.topic, len(messages), self._clock() - pull.asked_s)
        if next_offset < previous or messages[0].queue_offset < previous:
            _log.warning(
                "group %s: %s was asked from offset %d and answered from %d to %d",
                self._group,
                held.queue,
                previous,
                messages[0].queue_offset,
                next_offset,
            )
        dispatch = held.put(messages)
        self._host.consume(held, messages, dispatch=dispatch)
        delay_ms = self._settings.pull_interval_ms
        if is_all and not delay_ms:
            pull.waits_for_listener = True
            delay_ms = _LISTENER_FIRST_MS
        self._later(pull, delay_ms)

    def _failed(self, pull: _Pull, error: Error) -> None:
        queue = pull.held.queue
        code = error.code if isinstance(error, BrokerError) else None
        pull.refusals = pull.refusals + 1 if code in _NOT_SUBSCRIBED else 0
        is_going = pull.held.dropped or not self._host.is_running
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if is_going or is_retry:
            _log.debug("group %s: a pull of %s failed and is retried: %s", self._group, queue, error)
        else:
            self._troubles.fails(queue, error)
        if is_retry and not is_going and pull.refusals == _REFUSED_OFTEN:
            _log.warning(
                "group %s: the broker has refused %d pulls of %s in a row, so messages that failed wait there: members "
                "of the group subscribe to other topics than this one, or to other tags: %s",
                self._group,
                pull.refusals,
                queue,
                error,
            )
        delay_ms = delay_after_error_ms(code, exception_delay_ms=self._exception_ms)
        if code in _GROUP_UNKNOWN and not is_going and self._settings.message_model is MessageModel.BROADCASTING:
            self._spawn(self._greet(pull, delay_ms))
        else:
            self._later(pull, delay_ms)

    async def _greet(self, pull: _Pull, delay_ms: int) -> None:
        """Send the broker a heartbeat: no rebalance notices for a broadcasting member that its group is unknown."""
        is_sent = pull.address is not None and await self._instance.greet_again(pull.address, self._group)
        self._later(pull, _GREETED_MS if is_sent else delay_ms)
