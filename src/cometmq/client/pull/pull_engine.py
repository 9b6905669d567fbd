"""The machine of a pull consumer: pulls ahead of its user, hands out what came, and keeps the offsets.

Queues are assigned by hand, or shared out among the members of the group for the topics subscribed to.
:mod:`cometmq.client.pull.pull_ahead` pulls them, and keeps the messages until :meth:`PullEngine.poll` hands them out. A
seek makes messages pulled before it void.

Messages handed out count as consumed; they are committed by the user, or, with ``auto_commit``, by the first poll after
``auto_commit_interval_ms``, so never before the user came back for more. After a crash the rest is redelivered.

Threads: the client's loop. Source: consumption specification 1.13, 1.14.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cometmq._engine import ReceivedMessage
from cometmq.client.arguments import one, several, whole_number
from cometmq.client.group.allocation import AllocateStrategy, as_strategy
from cometmq.client.group.consumer_facts import ConsumerFacts
from cometmq.client.group.offset_stores import (
    NEVER_CONSUMED,
    OffsetStore,
    OwnOffsetStore,
    ReadOffset,
    check_own_store,
    usual_store,
)
from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.group.rebalance import Rebalance
from cometmq.client.group.retry_policy import most_tries
from cometmq.client.group.send_backs import SendBacks
from cometmq.client.group.start_offsets import start_offset
from cometmq.client.group.subscriptions import ALL, TAG, make_subscription, next_version
from cometmq.client.instance.closing import CloseSteps, Closing, to_the_end
from cometmq.client.instance.hooks import ConsumeContext, Interceptor, MessageFilter, interceptors_of, run_hooks
from cometmq.client.instance.instance import ClientInstance, NetworkFactory, own_instance_name
from cometmq.client.instance.namespaces import with_namespace, without_namespace
from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.client.pull.pull_ahead import NONE, Assigned, Batch, PullAhead, Reader
from cometmq.client.pull.pull_kernel import PullKernel, PullResult
from cometmq.client.pull.pull_policy import (
    pull_flags,
)
from cometmq.client.pull.queue_watches import QueuesChanged, QueueWatches
from cometmq.client.settings import PullSettings
from cometmq.client.trace.trace import consume_tracer
from cometmq.client.trace.tracing import Tracing
from cometmq.errors import (
    ClientStateError,
    Error,
    GroupTaken,
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
)
from cometmq.remoting.bodies.heartbeat import ConsumeType, MessageModel, SubscriptionData
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumeResult, ConsumerRunningInfo
from cometmq.store_config.fields import INT32_MAX
from cometmq.store_config.names import validate_topic

__all__ = ["QUEUES", "PullEngine"]

QUEUES: Final = "queues, as queues() returns them"
"""The argument of methods that take several queues."""

_log = logging.getLogger(__name__)


class PullEngine(ConsumerFacts):
    """One pull consumer."""

    settings: PullSettings
    consume_type = ConsumeType.CONSUME_ACTIVELY
    is_orderly = False
    is_push = False

    def __init__(
        self,
        settings: PullSettings,
        *,
        now_ms: Callable[[], int],
        offset_store: OwnOffsetStore | None = None,
        interceptors: Iterable[Interceptor] = (),
        network_factory: NetworkFactory | None = None,
    ) -> None:
        """Connect to nobody yet; any thread.

        Args:
            settings: the user's; checked by :meth:`start`.
            now_ms: wall clock, milliseconds since 1970.
            offset_store: a store of the user's own for the progress.
            interceptors: filter messages, and see what is handed out.
            network_factory: makes the network.
        """
        self.settings = settings
        self._now_ms = now_ms
        self._made_ms = now_ms()
        check_own_store(offset_store)
        self._own_store = offset_store
        self._interceptors = interceptors_of("PullConsumer", interceptors)
        self._network_factory = network_factory
        self._state = ServiceState.CREATE_JUST
        self._group = with_namespace(settings.namespace, settings.group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._is_assigned_by_hand: bool | None = None
        self._strategy: AllocateStrategy | None = None
        self._instance: ClientInstance | None = None
        self._rebalance: Rebalance | None = None
        self._store: OffsetStore | None = None
        self._kernel: PullKernel | None = None
        self._ahead = PullAhead(
            settings,
            group=self._group,
            subscriptions=lambda: self._subscriptions,
            start_offset=self.start_offset,
            forget_offset=self.forget_offset,
            now_ms=now_ms,
        )
        self._commit_due_ms = 0
        self._going: set[MessageQueue] = set()
        """Queues that are not assigned any more and whose last commit is not sent yet."""
        self._watches = QueueWatches(self.queues, group=self._group)
        self._tracing: Tracing | None = None
        self._closing = Closing()

    # --- For the client instance and the rebalance --------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The group as servers know it."""
        return self._group

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return self._state

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """The subscriptions for heartbeats; topics as servers know them."""
        return self._subscriptions

    @property
    def strategy(self) -> AllocateStrategy:
        """The allocation strategy."""
        if self._strategy is None:
            self._strategy = as_strategy(self.settings.allocate_strategy)
        return self._strategy

    async def do_rebalance(self) -> bool:
        """Share out the queues, unless they are assigned by hand."""
        return True if self._rebalance is None or self._is_assigned_by_hand else await self._rebalance.run()

    async def persist_offsets(self) -> None:
        """Store the progress of the queues that are ours."""
        await self._offsets.persist_all([*self._ahead.assigned, *self._going])

    def routes_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Nothing: the next rebalance reads the routes."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Leave the offsets alone: only push consumers are reset by brokers; a pull consumer seeks."""
        _log.warning("group %s: a broker wants to reset %s; pull consumers keep their offsets", self._group, topic)

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the progress in memory of one topic's queues."""
        return self._offsets.snapshot(topic)

    def running_info(self) -> ConsumerRunningInfo:
        """Return what an administrator may see."""
        return ConsumerRunningInfo(
            subscriptions=tuple(self._subscriptions.values()),
            queues={
                queue: assigned.held.info(commit_offset=self._offsets.memory(queue))
                for queue, assigned in self._ahead.assigned.items()
            },
        )

    async def consume_directly(self, message: ReceivedMessage, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        """Refuse: a pull consumer has no listener for the message."""
        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.CR_THROW_EXCEPTION,
            remark=f"group {self._group} is a pull consumer, which has no listener",
        )

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return where a new queue begins, by its progress or by ``consume_from_where``; below 0: not known."""
        return await start_offset(
            queue,
            store=self._offsets,
            read=ReadOffset.MEMORY_FIRST_THEN_STORE,
            instance=self._client,
            settings=self.settings,
            made_ms=self._made_ms,
        )

    def dispatch(self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int) -> None:
        """Begin to pull a queue that the rebalance took."""
        self._ahead.begin(Assigned(queue, process_queue, pull_offset=next_offset))

    async def release(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        """Store the progress of a queue that is dropped, and let it go."""
        assigned = self._ahead.assigned.get(queue)
        if assigned is not None and assigned.held is process_queue:
            self._count_finished(assigned)
        self._ahead.end(queue, process_queue)
        await self._offsets.persist(queue)
        self._offsets.remove(queue)
        return True

    def queues_changed(self, topic: str, all_queues: Collection[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """Nothing: queues come by :meth:`dispatch` and go by :meth:`release`."""

    def take_pops(self, topic: str, queues: Sequence[MessageQueue], *, is_pulled: bool) -> bool:
        """Refuse to pop: a pull consumer chooses its offsets.

        Raises:
            ClientStateError: there is something to pop.
        """
        if queues:
            raise ClientStateError(
                f"the brokers have group {self._group} pop {topic}, which a pull consumer does not: set the group's "
                "message request mode to PULL, use client_rebalance=True, or a SimpleConsumer"
            )
        return False

    def forget_offset(self, queue: MessageQueue) -> None:
        """Forget what memory knows of a queue's progress."""
        self._offsets.remove(queue)

    # --- Life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start.

        Raises:
            InvalidArgument: a setting cannot be used.
            ClientStateError: it was started before.
            GroupTaken: the client instance has a consumer of the group; this one may be started once that is closed.
        """
        if self._state is not ServiceState.CREATE_JUST:
            raise not_startable(self._name, self._state)
        self._state = ServiceState.START_FAILED
        settings = replace(self.settings, group=self._group)
        settings.check(made_ms=self._made_ms)
        if settings.message_model is MessageModel.CLUSTERING:
            settings = replace(settings, instance_name=own_instance_name(settings.instance_name))
        instance = ClientInstance.shared(settings, network_factory=self._network_factory, now_ms=self._now_ms)
        try:
            self._store = usual_store(self._own_store, instance, self.settings, group=self._group)
            await self._store.load()
            self._instance = instance
            self._kernel = PullKernel(
                instance, namespace=settings.namespace, message_filter=MessageFilter(self._interceptors)
            )
            self._rebalance = Rebalance(instance, self, now_ms=self._now_ms)
            instance.register_consumer(self)
        except BaseException as error:
            if isinstance(error, GroupTaken):
                self._state = ServiceState.CREATE_JUST
            self._instance = self._rebalance = self._kernel = self._store = None
            await to_the_end(instance.release())
            raise
        try:
            if settings.enable_trace:
                await self._trace(settings)
            await instance.start()
            self._state = ServiceState.RUNNING
            for topic in {*self._subscriptions, *(queue.topic for queue in self._ahead.assigned)}:
                await instance.update_route(topic)
            self._ahead.start(instance, self._kernel)
            instance.spawn(self._watches.run(lambda: self.settings.topic_metadata_check_interval_ms))
            if await instance.heartbeat():
                instance.wake_rebalance()
        except BaseException:
            await self.close(commit=False)
            raise

    async def _trace(self, settings: PullSettings) -> None:
        self._tracing = await Tracing.open(
            settings, group=self._group, role="CONSUME", network_factory=self._network_factory, now_ms=self._now_ms
        )
        tracer = consume_tracer(self._tracing.dispatcher, now_ms=self._now_ms)
        self._interceptors = (*self._interceptors, tracer)

    async def close(self, *, commit: bool = True, timeout_ms: int | None = None) -> None:
        """Store the progress, leave the group and let the client instance go.

        It is done to its end, also where the caller is cancelled; later calls wait for that.

        Args:
            commit: with ``auto_commit``: messages handed out count as consumed. False where it may not have been.
            timeout_ms: for the whole close; then a warning lists the abandoned work. None waits for every broker.
        """
        if self._instance is not None:
            instance = self._instance
            await self._closing.run(
                lambda: self._close(instance, commit=commit, timeout_ms=timeout_ms), wait_ms=timeout_ms
            )

    async def _close(self, instance: ClientInstance, *, commit: bool, timeout_ms: int | None) -> None:
        steps = CloseSteps(f"pull consumer group {self._group}", timeout_ms)
        try:
            if commit and self.settings.auto_commit:
                self._commit_in_memory(self._ahead.consumed())
            self._state = ServiceState.SHUTDOWN_ALREADY
            await self._ahead.end_pulls()
            await steps.run(self.persist_offsets(), lambda: "storing offsets at brokers that do not answer")
        except Error as error:
            _log.warning("group %s could not store its progress: %s", self._group, error)
        finally:
            self._state = ServiceState.SHUTDOWN_ALREADY
            if self._rebalance is not None:
                self._rebalance.drop_all()
            self._ahead.drop_all()
            await self._leave(instance, steps)

    async def _leave(self, instance: ClientInstance, steps: CloseSteps) -> None:
        try:
            await steps.run(instance.unregister_consumer(self._group), lambda: "unregistering at its brokers")
        finally:
            try:
                if self._tracing is not None:
                    await self._tracing.close(timeout_ms=steps.left_ms)
            finally:
                await steps.run(instance.release(), lambda: "unregistering its client at brokers")

    @property
    def _name(self) -> str:
        return f"the pull consumer of group {self._group}"

    @property
    def _client(self) -> ClientInstance:
        if self._instance is None:
            require_running(self._name, self._state)
            raise ClientStateError(f"{self._name} is not started")
        return self._instance

    @property
    def _offsets(self) -> OffsetStore:
        if self._store is None:
            raise ClientStateError(f"{self._name} is not started: call start() first")
        return self._store

    def _running(self) -> ClientInstance:
        require_running(self._name, self._state)
        return self._client

    # --- Which queues -------------------------------------------------------------------------------------------------

    def _set_mode(self, *, by_hand: bool) -> None:
        if self._is_assigned_by_hand not in (None, by_hand):
            raise ClientStateError(f"{self._name} either subscribes or is assigned queues: make another for the other")
        self._is_assigned_by_hand = by_hand

    async def subscribe(self, topic: str, expression: str | None = ALL, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic; see :meth:`PullConsumer.subscribe`."""
        validate_topic(topic)
        wire = with_namespace(self.settings.namespace, topic)
        version = next_version(self._subscriptions.get(wire), self._now_ms())
        subscription = make_subscription(wire, expression, expression_type=expression_type, now_ms=version)
        self._set_mode(by_hand=False)
        self._subscriptions[wire] = subscription
        if self._state is ServiceState.RUNNING:
            instance = self._client
            await instance.update_route(wire)
            await instance.heartbeat(queues_changed=True)
            instance.wake_rebalance()

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic and let its queues go."""
        validate_topic(topic)
        if self._subscriptions.pop(with_namespace(self.settings.namespace, topic), None) is None:
            return
        await self._let_go(
            [each for each in self._ahead.assigned.values() if each.queue.topic not in self._subscriptions]
        )

    async def assign(self, queues: Iterable[MessageQueue], expression: str | None, *, expression_type: str) -> None:
        """Replace the assigned queues; see :meth:`PullConsumer.assign`."""
        wanted = {self._wire(queue) for queue in several("assign", queues, MessageQueue, QUEUES)}
        made = {
            topic: make_subscription(
                topic,
                expression,
                expression_type=expression_type,
                now_ms=next_version(self._subscriptions.get(topic), self._now_ms()),
            )
            for topic in {queue.topic for queue in wanted}
        }
        self._set_mode(by_hand=True)
        gone = [assigned for queue, assigned in self._ahead.assigned.items() if queue not in wanted]
        self._subscriptions = made
        for queue in wanted:
            if queue not in self._ahead.assigned:
                self._ahead.begin(Assigned(queue, ProcessQueue(queue)))
        await self._let_go(gone)
        if self._state is ServiceState.RUNNING:
            for topic in made:
                await self._client.update_route(topic)
            await self._client.heartbeat(queues_changed=True)

    async def _let_go(self, gone: Sequence[Assigned]) -> None:
        for assigned in gone:
            assigned.held.dropped = True
            self._count_finished(assigned)
            self._ahead.end(assigned.queue, assigned.held)
            if self._rebalance is not None:
                self._rebalance.queues.pop(assigned.queue, None)
        if self._store is not None:
            self._going.update(assigned.queue for assigned in gone)
            await asyncio.gather(*(self._persist_last(self._store, assigned.queue) for assigned in gone))

    async def _persist_last(self, store: OffsetStore, queue: MessageQueue) -> None:
        """Commit a queue that goes; a failure concerns this queue alone: the brokers of others may be there."""
        try:
            await store.persist(queue)
        except Error as error:
            _log.warning("cannot commit the offset of %s: %s", queue, error)
        finally:
            self._going.discard(queue)
            if queue not in self._ahead.assigned:  # else it came back meanwhile
                store.remove(queue)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer has now."""
        return [self._plain(queue) for queue in self._ahead.assigned]

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        instance = self._running()
        validate_topic(topic)
        wire = with_namespace(self.settings.namespace, topic)
        try:
            await instance.update_route(wire, must_exist=True)
        except Error as error:
            found = instance.routes.subscribe_queues(wire)
            if found is None:
                raise
            _log.info("group %s: using the last known queues of %s: %s", self._group, topic, error)
        else:
            found = instance.routes.subscribe_queues(wire)
        return [self._plain(queue) for queue in found or ()]

    def watch_queues(self, topic: str, callback: QueuesChanged) -> None:
        """Call ``callback`` where the queues of a topic become others, from the second time that they are looked at."""
        self._watches.add(topic, callback)

    def _wire(self, queue: MessageQueue) -> MessageQueue:
        if not isinstance(queue, MessageQueue):
            raise InvalidArgument(f"{queue!r} is not a MessageQueue")
        return replace(queue, topic=with_namespace(self.settings.namespace, queue.topic))

    def _plain(self, queue: MessageQueue) -> MessageQueue:
        return replace(queue, topic=without_namespace(self.settings.namespace, queue.topic))

    def _of(self, queue: MessageQueue) -> Assigned:
        assigned = self._ahead.assigned.get(self._wire(queue))
        if assigned is None:
            raise NotFound(
                f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name} is not assigned to {self._name}"
            )
        return assigned

    # --- Pulls --------------------------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | None,
        expression_type: str,
        max_messages: int,
        block: bool,
        timeout_ms: int | None,
    ) -> PullResult:
        """Pull one queue once; see :meth:`PullConsumer.pull`."""
        self._running()
        whole_number("offset", offset)
        whole_number("max_messages", max_messages, minimum=1, maximum=INT32_MAX)
        if timeout_ms is None:
            settings = self.settings
            timeout_ms = settings.consumer_timeout_when_suspend_ms if block else settings.consumer_pull_timeout_ms
        else:
            whole_number("timeout_ms", timeout_ms, minimum=1, maximum=INT32_MAX)
        if self._kernel is None:
            raise ClientStateError(f"{self._name} is not started: call start() first")
        wire = self._wire(queue)
        return await self._ahead.ask(
            self._kernel,
            wire,
            make_subscription(wire.topic, expression, expression_type=expression_type, now_ms=self._now_ms()),
            offset=offset,
            max_messages=max_messages,
            flags=pull_flags(suspend=block, subscription=True),
            timeout_ms=timeout_ms,
        )

    # --- Handing out --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None) -> list[ReceivedMessage]:
        """Hand out the messages of one pull; see :meth:`PullConsumer.poll`."""
        batch = await self.take(timeout_ms)
        if batch is None:
            return []
        batch.is_received = True
        return batch.messages

    async def take(
        self, timeout_ms: int | None, *, reader: Reader | None = None, thread: int | None = None
    ) -> Batch | None:
        """Hand out the messages of one pull, or None; their receiver marks the batch.

        Args:
            timeout_ms: longest wait; None for the settings'.
            reader: the loop that asks; None for a poll, by which all that polls returned before is done with.
            thread: where the caller waits, where it may be interrupted there.
        """
        instance = self._running()
        wait_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        whole_number("timeout_ms", wait_ms)
        self._ahead.settle(thread=thread)
        if reader is None:
            self._ahead.finish_polled()
        if self.settings.auto_commit and instance.steady_ms() >= self._commit_due_ms:
            self._commit_in_memory(self._ahead.consumed(of_polls=reader is None))
            self._commit_due_ms = instance.steady_ms() + self.settings.auto_commit_interval_ms
        end_s = instance.loop.time() + wait_ms / 1000
        while (taken := self._ahead.take(reader=reader, thread=thread)) is None:
            left_s = end_s - instance.loop.time()
            if left_s < 0.001 or self._state is not ServiceState.RUNNING:
                return None
            await self._ahead.arrival(left_s)
        self._run_hooks(taken.assigned.queue, taken.messages)
        return taken

    def _run_hooks(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        if not self._interceptors:
            return
        context = ConsumeContext(
            group=self._group, queue=queue, messages=messages, began_ms=self._now_ms(), is_success=True
        )
        run_hooks((each.before_consume for each in self._interceptors if each.before_consume is not None), context)
        run_hooks((each.after_consume for each in self._interceptors if each.after_consume is not None), context)

    @property
    def has_handed_out(self) -> bool:
        """Whether anything was handed out that is not known to be done with. Any thread."""
        return self._ahead.has_handed_out

    def settle(self, *, thread: int | None = None) -> None:
        """Take back what was handed out and nobody looks at any more; see :meth:`PullAhead.settle`."""
        self._ahead.settle(thread=thread)

    # --- Progress -----------------------------------------------------------------------------------------------------

    def _commit_in_memory(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            self._offsets.update(queue, offset, increase_only=False)

    def _count_finished(self, assigned: Assigned) -> None:
        """Take note of what is finished of a queue that goes, with ``auto_commit``: the next owner begins behind it."""
        if self.settings.auto_commit and self._store is not None:
            offset = self._ahead.consumed_of(assigned, of_polls=False)
            if offset != NONE:
                self._commit_in_memory({assigned.queue: offset})

    async def commit(self, offsets: Mapping[MessageQueue, int] | None, *, wait: bool) -> None:
        """Commit; see :meth:`PullConsumer.commit`."""
        self._running()
        chosen = self._ahead.consumed()
        if offsets is not None:
            if not isinstance(offsets, Mapping):
                raise InvalidArgument(
                    f"commit() was given {offsets!r:.100}: it takes offsets by queue, {{queue: offset}}"
                )
            for queue, offset in offsets.items():
                self._of(queue)
                whole_number("offset", offset, minimum=None)
                if offset < 0:
                    raise OffsetOutOfRange(f"the offset {offset} of {queue} is negative", offset=offset)
            chosen = {self._wire(queue): offset for queue, offset in offsets.items()}
        self._commit_in_memory(chosen)
        outcomes = await asyncio.gather(
            *(self._offsets.persist(queue, wait=wait) for queue in chosen), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def send_back(self, message: ReceivedMessage, *, delay_level: int) -> None:
        """Give a message back to its broker; see :meth:`PullConsumer.send_back`."""
        if self.settings.message_model is MessageModel.BROADCASTING:
            raise InvalidArgument("broadcast messages are not tried again: each member has its own progress")
        self._running()
        one("send_back", message, ReceivedMessage, "a message that was polled")
        whole_number("delay_level", delay_level, minimum=-1)
        most = most_tries(self.settings.max_reconsume_times)
        backs = SendBacks(self._client, self._group, most=most, unit_mode=self.settings.unit_mode)
        await backs.send_back(message, delay_level)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's progress in a queue, or None where it has none."""
        self._running()
        offset = await self._offsets.read(self._wire(queue), ReadOffset.MEMORY_FIRST_THEN_STORE)
        if offset == NEVER_CONSUMED:
            return None
        if offset < 0:
            raise Error(f"the progress of group {self._group} in {queue} is not known: its broker did not return it")
        return offset

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset behind what was handed out of a queue, or None where nothing was yet."""
        offset = self._of(queue).consume_offset
        return None if offset == NONE else offset

    # --- Where to go on -----------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; see :meth:`PullConsumer.seek`."""
        self._running()
        whole_number("offset", offset, minimum=None)
        self._of(queue)
        first, end = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not first <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} of queue {queue.queue_id} of {queue.topic} at {queue.broker_name} lies outside "
                f"{first} to {end}",
                offset=offset,
            )
        self._running()  # a close may have begun meanwhile
        assigned = self._of(queue)
        self._ahead.stop(assigned)
        assigned.pull_offset = assigned.consume_offset = assigned.handed_end = offset
        self._ahead.go_on(assigned)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the queue's first message."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the queue's last message."""
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the first message that was stored at a time, milliseconds since 1970, or later."""
        await self.seek(queue, await self.search_offset(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues; messages already received are still handed out."""
        for assigned in [self._of(queue) for queue in queues]:
            assigned.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues again."""
        for assigned in [self._of(queue) for queue in queues]:
            assigned.paused = False
            assigned.wake.set()

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message."""
        return await self._running().min_offset(self._wire(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset behind the queue's last message."""
        return await self._running().max_offset(self._wire(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at a time, milliseconds since 1970, or later."""
        whole_number("timestamp_ms", timestamp_ms)
        return await self._running().search_offset(self._wire(queue), timestamp_ms)
