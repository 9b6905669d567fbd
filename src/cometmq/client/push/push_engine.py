"""The push consumer: it brings together rebalance, pulls, listeners, retry and offsets of one group on one loop.

Both surfaces, :class:`cometmq.client.push_consumer.PushConsumer` and :class:`cometmq.aio.push.PushConsumer`, are thin
layers over it. The client instance sees it as a :class:`~cometmq.client.instance.registrants.ConsumerPart`, the
rebalance as its owner.

Threads: the loop on which it is started; listeners run in their workers. Source: consumption specification 1.1 to 1.3,
1.6.4 to 1.6.6, 1.15, 1.16.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.client.group.allocation import AllocateStrategy, as_strategy
from cometmq.client.group.consumer_facts import ConsumerFacts
from cometmq.client.group.offset_stores import (
    OffsetStore,
    OwnOffsetStore,
    ReadOffset,
    usual_store,
)
from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.group.rebalance import Rebalance
from cometmq.client.group.start_offsets import start_offset
from cometmq.client.group.subscriptions import TAG, make_subscription, next_version
from cometmq.client.instance.closing import Closing, to_the_end
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.instance import ClientInstance, NetworkFactory, own_instance_name
from cometmq.client.instance.namespaces import with_namespace
from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.client.pull.pull_policy import FlowCounters, share_of_topic
from cometmq.client.push.concurrent_service import ConcurrentService
from cometmq.client.push.listener_workers import ListenerSpec, direct_result
from cometmq.client.push.orderly_service import OrderlyService
from cometmq.client.push.push_pipeline import PushPipeline
from cometmq.client.push.push_tasks import PushTasks
from cometmq.client.push.queue_resets import QueueResets
from cometmq.client.settings import PushSettings
from cometmq.client.trace.trace import consume_tracer
from cometmq.client.trace.tracing import Tracing
from cometmq.errors import Error, GroupTaken
from cometmq.remoting.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from cometmq.remoting.channel import checked
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request
from cometmq.store_config.names import retry_topic, validate_topic

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = ["PushEngine", "QueueListener"]

_LOCK_FIRST_S: Final = 1.0
_FINISH_MS: Final = 10_000

_log = logging.getLogger(__name__)

QueueListener = Callable[[str, Collection[MessageQueue], Collection[MessageQueue]], object]
"""Called when the queues change: with the topic, all of its queues, and this member's."""


class PushEngine(ConsumerFacts):
    """One push consumer on one loop.

    Attributes:
        settings: the consumer's.
        group: its group, as brokers know it.
        subscriptions: topic to subscription, as brokers know them.
        state: where it is in its life.
    """

    settings: PushSettings
    is_push = True
    consume_type = ConsumeType.CONSUME_PASSIVELY

    def __init__(
        self,
        settings: PushSettings,
        listener: ListenerSpec,
        *,
        expressions: Mapping[str, tuple[str | None, str]],
        offset_store: OwnOffsetStore | None = None,
        interceptors: Sequence[Interceptor] = (),
        queue_listener: QueueListener | None = None,
        network_factory: NetworkFactory | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Do nothing yet. Any thread.

        Args:
            settings: the consumer's.
            listener: its listener.
            expressions: topic to what is wanted of it, and the type of that expression.
            offset_store: a store of the user's own, or None for the usual one.
            interceptors: filter messages, and see them before and after the listener.
            queue_listener: called when the consumer's queues change.
            network_factory: makes the network of a new instance; None for the real one.
            now_ms: the wall clock; None for the machine's.
        """
        self.settings = settings
        self.state = ServiceState.CREATE_JUST
        self.group = with_namespace(settings.namespace, settings.group)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self._listener = listener
        self._expressions = dict(expressions)
        self._own_store = offset_store
        self._interceptors = tuple(interceptors)
        self._tracing: Tracing | None = None
        self._queue_listener = queue_listener
        self._network_factory = network_factory
        self._clock = now_ms
        self._made_ms = self._now_ms()
        self._suspended = False
        self._started_ms = 0
        self._start_over = asyncio.Event()  # a close waits for the start
        self._closing = Closing()
        self._instance: ClientInstance
        self._store: OffsetStore
        self._rebalance: Rebalance
        self._resets: QueueResets
        self._tasks: PushTasks
        self._pipeline: PushPipeline

    def __repr__(self) -> str:
        """Return the group, its state and its queues."""
        queues = len(self._rebalance.queues) if self.state is ServiceState.RUNNING else 0
        return f"<PushEngine {self.group} {self.state.value} queues={queues}>"

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 if self._clock is None else self._clock()

    # --- For the instance and the rebalance ---------------------------------------------------------------------------

    @property
    def is_orderly(self) -> bool:
        """Whether the listener is orderly."""
        return self._listener.orderly

    @property
    def strategy(self) -> AllocateStrategy:
        """The allocation strategy."""
        return as_strategy(self.settings.allocate_strategy)

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not closed."""
        return self.state is ServiceState.RUNNING

    @property
    def is_suspended(self) -> bool:
        """Whether its user has suspended it, or a reset has."""
        return self._suspended or (hasattr(self, "_resets") and self._resets.is_resting)

    @property
    def flow_counters(self) -> FlowCounters:
        """How often pulls waited because too much was held."""
        require_running(self._name, self.state)
        return self._pipeline.pulls.counters

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now; one with id -1 stands for all of its broker, which it pops."""
        if self.state is not ServiceState.RUNNING:
            return []
        pulled = [queue for queue, held in self._rebalance.queues.items() if not held.dropped]
        popping = self._pipeline.popping
        return pulled if popping is None else pulled + popping.queues

    @property
    def _name(self) -> str:
        return f"consumer group {self.settings.group}"

    # --- Life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to consume, in upstream's order of steps.

        Raises:
            ClientStateError: it was started before.
            InvalidArgument: a setting, the listener or a subscription cannot be used.
            GroupTaken: the group runs on the same instance; this consumer can be started again.
            Error: it could not start; it is closed then.
        """
        if self.state is not ServiceState.CREATE_JUST:
            raise not_startable(self._name, self.state)
        try:
            await self._start()
        finally:
            self._start_over.set()

    async def _start(self) -> None:
        self.state = ServiceState.START_FAILED
        self.settings.check(made_ms=self._made_ms, listeners=[self._listener.function])
        self._copy_subscriptions()
        if not self._expressions:
            _log.warning("%s subscribes to no topic yet: it consumes nothing until subscribe() is called", self._name)
        if self.settings.message_model is MessageModel.CLUSTERING:
            own_name = own_instance_name(self.settings.instance_name)
            self.settings = replace(self.settings, instance_name=own_name)
        self._instance = ClientInstance.shared(self.settings, network_factory=self._network_factory, now_ms=self._clock)
        self._tasks = PushTasks(self._instance, group=self.group)
        try:
            await self._start_parts()
        except GroupTaken:
            self.state = ServiceState.CREATE_JUST
            await to_the_end(self._stop_parts())
            raise
        except BaseException:
            await to_the_end(self._stop_parts())
            raise
        self.state = ServiceState.RUNNING
        self._started_ms = self._now_ms()
        try:
            await self._greet()
        except BaseException:
            self._start_over.set()
            await self._closing.run(lambda: self._close(_FINISH_MS))
            raise

    async def _start_parts(self) -> None:
        settings, instance = self.settings, self._instance
        if settings.enable_trace:
            self._tracing = await Tracing.open(
                settings,
                group=settings.group,
                role="CONSUME",
                network_factory=self._network_factory,
                now_ms=self._clock,
            )
            tracer = consume_tracer(self._tracing.dispatcher, now_ms=self._now_ms)
            self._interceptors = (*self._interceptors, tracer)
        self._rebalance = Rebalance(instance, self, now_ms=instance.steady_ms)
        self._store = usual_store(self._own_store, instance, settings, group=self.group)
        self._resets = QueueResets(self._rebalance, self._store, persist=self._persist, release=self.release)
        await self._store.load()
        self._pipeline = PushPipeline(
            instance,
            self,
            settings,
            self._listener,
            self._store,
            self._rebalance,
            self._tasks,
            interceptors=self._interceptors,
            on_subscriptions=self._beat,
            now_ms=self._now_ms,
        )
        instance.register_consumer(self)
        await instance.start()
        if self.is_orderly and self.model is MessageModel.CLUSTERING:
            self._tasks.repeat(_LOCK_FIRST_S, settings.lock_interval_ms / 1000, self._rebalance.lock_all)
        if not self.is_orderly:
            timeout_s = settings.consume_timeout_minutes * 60.0
            self._tasks.repeat(timeout_s, timeout_s, self.give_back_hanging)

    async def _greet(self) -> None:
        """Look up the topics' routes, have expressions compiled, and send the brokers a heartbeat."""
        for topic in list(self.subscriptions):
            await self._instance.update_route(topic)
        for subscription in list(self.subscriptions.values()):
            if subscription.expression_type not in (None, TAG):
                await self._check_expression(subscription)
        if await self._instance.heartbeat():
            self._instance.wake_rebalance()

    async def _check_expression(self, subscription: SubscriptionData) -> None:
        address = self._instance.routes.broker_of_topic(subscription.topic)
        if address is None:
            return  # nobody knows the topic yet; the broker refuses the pulls where it does not take the expression
        body = CheckClientRequestBody(
            client_id=self._instance.client_id,
            group=self.group,
            namespace=self.settings.namespace,
            subscription=subscription,
        )
        answer = await self._instance.network.invoke(
            address,
            request(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json()),
            timeout_ms=self.settings.mq_client_api_timeout_ms,
        )
        checked(answer, address=address)

    def _copy_subscriptions(self) -> None:
        for topic, (expression, expression_type) in self._expressions.items():
            self._put_subscription(topic, expression, expression_type)
        if self.settings.message_model is MessageModel.CLUSTERING:
            self._put_subscription(retry_topic(self.group), None, TAG)

    def _put_subscription(self, topic: str, expression: str | None, expression_type: str) -> None:
        name = with_namespace(self.settings.namespace, topic)
        version = next_version(self.subscriptions.get(name), self._now_ms())
        self.subscriptions[name] = make_subscription(name, expression, expression_type=expression_type, now_ms=version)

    @property
    def is_in_listener(self) -> bool:
        """Whether the caller is a call of this consumer's listener. Any thread."""
        return hasattr(self, "_pipeline") and self._pipeline.is_in_listener

    def begin_close(self, *, timeout_ms: int = _FINISH_MS) -> None:
        """Begin to close, as :meth:`close` does, and do not wait for the end."""
        if self.state is ServiceState.RUNNING:
            self._closing.begin(lambda: self._close(timeout_ms))
            if self._start_over.is_set():
                self.state = ServiceState.SHUTDOWN_ALREADY

    async def close(self, *, timeout_ms: int = _FINISH_MS) -> None:
        """Stop pulling, let listeners finish what they have begun, commit, give locks back, and leave the group.

        It is done to its end, also where the caller is cancelled; later calls wait for that. Without a start it does
        nothing. A listener that closes its own consumer does not wait: the close ends behind that call of it.

        Args:
            timeout_ms: how long listeners may take to finish. Other messages are not begun any more, except for as long
                as the setting ``await_termination_when_shutdown_ms`` says.
        """
        self.begin_close(timeout_ms=timeout_ms)
        if self._closing.has_begun and not self.is_in_listener:
            await self._closing.run(lambda: self._close(timeout_ms))

    async def _close(self, timeout_ms: int) -> None:
        try:
            await self._start_over.wait()
            self.state = ServiceState.SHUTDOWN_ALREADY
            await self._pipeline.drain(timeout_ms=timeout_ms)
            await self._tasks.finish(timeout_ms=timeout_ms)  # failed messages are being sent back to the brokers
            for queue in list(self._rebalance.queues):
                await self._persist(queue)
            if self.is_orderly and self.model is MessageModel.CLUSTERING:
                await self._rebalance.unlock_all()
        finally:
            self.state = ServiceState.SHUTDOWN_ALREADY
            await self._stop_parts()

    async def _stop_parts(self) -> None:
        """Undo what a start has done, as far as it came."""
        try:
            await self._stop_work()
        finally:
            try:
                if self._instance.consumers.get(self.group) is self:
                    await self._instance.unregister_consumer(self.group)
            finally:
                await self._let_go()

    async def _stop_work(self) -> None:
        self._tasks.cancel()
        if hasattr(self, "_rebalance"):
            self._rebalance.drop_all()
        if hasattr(self, "_pipeline"):
            await self._pipeline.stop(drained=self.state is ServiceState.SHUTDOWN_ALREADY)

    async def _let_go(self) -> None:
        try:
            if self._tracing is not None:
                tracing, self._tracing, self._interceptors = self._tracing, None, self._interceptors[:-1]
                await tracing.close()
        finally:
            await self._instance.release()

    # --- Changes while it runs ----------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str | None, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic, or to other tags of it; brokers hear of it at once where it runs."""
        self._put_subscription(topic, expression, expression_type)
        if self.is_running:
            await self._instance.update_route(with_namespace(self.settings.namespace, topic))
            await self._instance.heartbeat(queues_changed=True)
            self._instance.wake_rebalance()

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up; its queues go with the next rebalance."""
        self.subscriptions.pop(with_namespace(self.settings.namespace, topic), None)
        if self.is_running:
            self._instance.wake_rebalance()

    def suspend(self) -> None:
        """Stop pulling until :meth:`resume`; messages already received are consumed."""
        self._suspended = True

    async def resume(self) -> None:
        """Pull again."""
        self._suspended = False
        if self.is_running:
            await self.do_rebalance()

    # --- Queues that come and go --------------------------------------------------------------------------------------

    async def do_rebalance(self) -> bool:
        """Share out the queues again; a suspended consumer keeps what it has, and is not content."""
        if self.is_suspended or not self.is_running:
            return False
        is_balanced = await self._rebalance.run()
        if self._pipeline.popping is not None:
            self._pipeline.popping.keep_topics()
        return is_balanced

    def take_pops(self, topic: str, queues: Sequence[MessageQueue], *, is_pulled: bool) -> bool:
        """Pop the queues that a broker assigns for pops; return whether they changed."""
        assert self._pipeline.popping is not None  # brokers are asked by those alone that may pop
        return self._pipeline.popping.assign(topic, queues, is_pulled=is_pulled)

    def routes_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Nothing is kept here: the rebalance reads the routes when it runs."""

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return where a queue begins: where the group was or was reset to, or where a new group begins."""
        reset = self._resets.offset_of(queue)
        if reset is not None:
            # The last owner of the queue may have stored its progress behind the reset.
            self._store.update(queue, reset, increase_only=False)
            await self._store.persist(queue, wait=True)
            return reset
        return await start_offset(
            queue,
            store=self._store,
            read=ReadOffset.FROM_STORE,
            instance=self._instance,
            settings=self.settings,
            made_ms=self._made_ms,
        )

    def dispatch(self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int) -> None:
        """Begin to pull a queue that came."""
        self._pipeline.pulls.begin(process_queue, next_offset)

    async def release(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        """Store a queue's progress and give it up; an orderly one when its listener has ended, or counts as hung."""
        await self._persist(queue)
        service = self._pipeline.service
        if isinstance(service, OrderlyService):
            if self.model is MessageModel.CLUSTERING:
                hangs_ms = process_queue.last_consume_ms + self.settings.consume_timeout_minutes * 60_000
                may_wait = self._instance.steady_ms() <= hangs_ms
                if may_wait and not await service.quiet(process_queue):
                    process_queue.try_unlock_times += 1
                    return False
                await self._persist(queue)
                process_queue.locked = False
                await self._rebalance.unlock(queue, oneway=False)
            service.forget(process_queue)
        self._store.remove(queue)
        return True

    def forget_offset(self, queue: MessageQueue) -> None:
        """Forget what memory knows of a queue's progress."""
        self._store.remove(queue)

    def queues_changed(self, topic: str, all_queues: Collection[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """Send the brokers a new version of the subscription, divide a topic's limits again, notify the user."""
        subscription = self.subscriptions.get(topic)
        if all_queues and subscription is not None:
            self.subscriptions[topic] = replace(subscription, sub_version=next_version(subscription, self._now_ms()))
            self._share_limits()
            self._tasks.spawn(self._beat())
        if self._queue_listener is not None:
            try:
                self._queue_listener(topic, all_queues, mine)
            except Exception:  # noqa: BLE001 - the user's: it must not stop the rebalance
                _log.exception("group %s: the queue listener raised", self.group)

    async def _beat(self) -> None:
        await self._instance.heartbeat(queues_changed=True)

    def _share_limits(self) -> None:
        settings, limits, queues = self.settings, self._pipeline.pulls.limits, len(self._rebalance.queues)
        if not queues:
            return
        if settings.pull_threshold_for_topic != -1:
            limits.messages = share_of_topic(settings.pull_threshold_for_topic, queues)
        if settings.pull_threshold_size_for_topic_mib != -1:
            limits.size_mib = share_of_topic(settings.pull_threshold_size_for_topic_mib, queues)

    # --- Messages -----------------------------------------------------------------------------------------------------

    def consume(self, held: ProcessQueue, messages: list[ReceivedMessage], *, dispatch: bool) -> None:
        """Have messages of a pull consumed."""
        service = self._pipeline.service
        if isinstance(service, OrderlyService):
            service.submit(held, dispatch=dispatch)
        else:
            service.submit(held, messages)

    def offset_is_illegal(self, held: ProcessQueue, offset: int) -> None:
        """Begin a queue again at an offset that exists.

        The offset is frozen, so that what listeners still report cannot move it, and stored; then the queue is dropped,
        and the next rebalance adds it as new.
        """
        self._tasks.spawn(self._begin_again(held, offset))

    async def _begin_again(self, held: ProcessQueue, offset: int) -> None:
        if await self._resets.stop_at(held, offset):
            # A close does not wait for the rest: the stored offset is all that the next owner needs.
            self._tasks.spawn_timer(self._rest(held))

    async def _rest(self, held: ProcessQueue) -> None:
        await self._resets.give_up_after(held, self.settings.offset_illegal_delay_ms / 1000)
        self._instance.wake_rebalance()

    async def give_back_hanging(self) -> int:
        """Send back what listeners have had for longer than the consume time-out; return how many messages."""
        service = self._pipeline.service
        if not isinstance(service, ConcurrentService) or self.model is MessageModel.BROADCASTING:
            return 0
        return await service.give_back_hanging(
            list(self._rebalance.queues.values()), longer_than_s=self.settings.consume_timeout_minutes * 60.0
        )

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def persist_offsets(self) -> None:
        """Store the progress of every queue."""
        await self._store.persist_all(list(self._rebalance.queues))

    async def _persist(self, queue: MessageQueue) -> None:
        try:
            await self._store.persist(queue)
        except Error as error:
            _log.warning("group %s: the progress of %s could not be stored: %s", self.group, queue, error)

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the progress in memory of one topic's queues."""
        return self._store.snapshot(topic)

    async def progress(self, topic: str) -> dict[MessageQueue, int]:
        """Return the same for users; see :meth:`PushConsumer.progress`. A coroutine, to be run on the loop."""
        validate_topic(topic)
        known = self.offsets(with_namespace(self.settings.namespace, topic))
        return {replace(queue, topic=topic): offset for queue, offset in known.items()}

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin these queues again at these offsets, because the broker said so: stop, store, rest 10 s, begin."""
        await self._resets.reset(topic, offsets)
        if self.is_running and not self.is_suspended:
            await self.do_rebalance()

    # --- For administrators -------------------------------------------------------------------------------------------

    def running_info(self) -> ConsumerRunningInfo:
        """Return what an administrator may see of this consumer."""
        settings = self.settings
        properties = {
            "consumerGroup": self.group,
            "messageModel": settings.message_model.value,
            "consumeFromWhere": settings.consume_from_where.name,
            "consumeThreadMin": str(settings.consume_thread_min),
            "consumeThreadMax": str(settings.consume_thread_max),
            "consumeConcurrentlyMaxSpan": str(settings.consume_concurrently_max_span),
            "pullThresholdForQueue": str(self._pipeline.pulls.limits.messages),
            "pullThresholdSizeForQueue": str(self._pipeline.pulls.limits.size_mib),
            "pullThresholdForTopic": str(settings.pull_threshold_for_topic),
            "pullThresholdSizeForTopic": str(settings.pull_threshold_size_for_topic_mib),
            "pullInterval": str(settings.pull_interval_ms),
            "consumeMessageBatchMaxSize": str(settings.consume_message_batch_max_size),
            "pullBatchSize": str(settings.pull_batch_size),
            "maxReconsumeTimes": str(settings.max_reconsume_times),
            "suspendCurrentQueueTimeMillis": str(settings.suspend_current_queue_time_ms),
            "consumeTimeout": str(settings.consume_timeout_minutes),
            "PROP_CONSUMEORDERLY": "true" if self.is_orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(settings.consume_thread_max),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
        }
        wall_ahead_ms = self._now_ms() - self._instance.steady_ms()
        popping = self._pipeline.popping
        return ConsumerRunningInfo(
            properties=properties,
            subscriptions=tuple(self.subscriptions.values()),
            queues={
                queue: held.info(commit_offset=self._store.memory(queue), wall_ahead_ms=wall_ahead_ms)
                for queue, held in self._rebalance.queues.items()
            },
            pop_queues={} if popping is None else popping.infos(wall_ahead_ms=wall_ahead_ms),
            statuses=self._pipeline.counts.statuses(
                self.subscriptions, elapsed_s=max(0.001, (self._now_ms() - self._started_ms) / 1000)
            ),
        )

    async def consume_directly(self, message: ReceivedMessage, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        """Give one message to the listener, outside of any queue."""
        began = time.perf_counter()
        handled = await self._pipeline.call_now([message])
        return ConsumeMessageDirectlyResult(
            order=self.is_orderly,
            auto_commit=self._listener.auto_commit,
            consume_result=direct_result(handled),
            remark=None if handled.problem is None else str(handled.problem) or repr(handled.problem),
            spent_time_ms=int((time.perf_counter() - began) * 1000),
        )
