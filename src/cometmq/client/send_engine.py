"""The engine of producers: takes messages on any thread, sends them, and sees them through their attempts.

The first attempt is made by the thread that sends, so that a blocking send costs one wake-up: its own. Everything after
it happens on the loop: answers, later attempts, routes that are not known yet.

What stays true: a message keeps its unique id over all attempts; a future is completed exactly once; what was sent to
an explicit queue never goes to another one.

Threads: sends come from any thread and touch what is only ever replaced whole: the rings of queues, the fault table.
All else is the loop's.

Source: consumption specification 2.2 to 2.8.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cometmq._engine import PlainLane, SendAnswer, Sending
from cometmq.client.accumulating import Accumulation
from cometmq.client.faults import FaultTable
from cometmq.client.hooks import Interceptor, SendContext, run_hooks
from cometmq.client.instance import ClientInstance, NetworkFactory, own_instance_name, wall_clock_ms
from cometmq.client.namespaces import with_namespace
from cometmq.client.outgoing import SPECIAL_PROPERTIES, STATUS_OF, OutgoingMessage, is_plain, message_of
from cometmq.client.pressure import BackPressure
from cometmq.client.producer_settings import ProducerSettings
from cometmq.client.queue_selection import QueueRing, QueueSelector, check_choice, queue_by_hash
from cometmq.client.request_making import RequestMaker
from cometmq.client.sending import Next, SendPolicy, SendResult, judge, send_failed
from cometmq.client.service_state import ServiceState, not_startable, require_running
from cometmq.client.trace import send_tracer
from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ClientStateError,
    Error,
    ForkedClient,
    InvalidArgument,
    LimitReached,
    RequestTimeout,
    RouteNotFound,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request

if TYPE_CHECKING:
    from cometmq._engine import Bunch, BunchLane, ReceivedMessage, SendFuture, SendRequest
    from cometmq.client.routes import PublishInfo
    from cometmq.client.tracing import Tracing
    from cometmq.remoting.command import Command

__all__ = ["SendEngine"]

_DETECTOR_PERIOD_S = 3.0
_PROBE_TOPIC = "SELF_TEST_TOPIC"  # whether there is such a queue does not matter

_LOG = logging.getLogger(__name__)

_engines: weakref.WeakSet[SendEngine] = weakref.WeakSet()


def _in_forked_child() -> None:
    for engine in _engines:
        engine.disown()


os.register_at_fork(after_in_child=_in_forked_child)


def _no_queue(topic: str) -> RouteNotFound:
    return RouteNotFound(
        f"topic {topic} has no queue that takes messages: it has no write permission, or no broker of it has a master",
        topic=topic,
    )


class SendEngine:
    """What sends for one producer group."""

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        *,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        """Nothing is sent yet; :meth:`start` registers the group. On the loop.

        Args:
            instance: the client instance, of which this has a :meth:`ClientInstance.shared`.
            settings: the producer's, checked.
            interceptors: see every message before and after.
        """
        self.instance = instance
        self.settings = settings
        self.group = with_namespace(settings.namespace, settings.group)
        self.faults = FaultTable()
        self._before = tuple(one.before_send for one in interceptors if one.before_send is not None)
        self._after = tuple(one.after_send for one in interceptors if one.after_send is not None)
        self._maker = RequestMaker(settings, group=self.group, now_ms=instance.now_ms)
        self._rings: dict[str, QueueRing] = {}
        # Sends that wait for the route of their topic. While there are some, its ring is kept back in _found: nobody
        # overtakes them, so that what one thread sends stays in order.
        self._lines: dict[str, deque[Sending]] = {}
        self._found: dict[str, QueueRing] = {}
        self._line_lock = threading.Lock()
        self._topics: set[str] = set()
        self._under_way: set[Sending] = set()
        self._tracing: Tracing | None = None
        self._state = ServiceState.CREATE_JUST
        self._is_forked = False
        self._detector: asyncio.TimerHandle | None = None
        self.clock = instance.loop.time
        self.loop_thread = threading.get_ident()
        self._now_ms = instance.now_ms
        self._network = instance.network
        self._pressure = (
            BackPressure(settings.back_pressure_for_async_send_num, settings.back_pressure_for_async_send_size_bytes)
            if settings.enable_backpressure_for_async_mode
            else None
        )
        # None is the machine's clock, which the compiled half reads without a call.
        self._wall_clock = None if instance.now_ms is wall_clock_ms else instance.now_ms
        self._accumulation = (
            Accumulation(
                self,
                settings,
                self._maker,
                loop=instance.loop,
                now_ms=self._wall_clock,
                keeps_messages=bool(self._before or self._after or settings.enable_trace),
            )
            if settings.accumulate
            else None
        )
        self._lanes: dict[str, PlainLane | BunchLane] = {}
        self._blocking = SendPolicy(
            attempts=1 + settings.retry_times_when_send_failed,
            retry_codes=frozenset(settings.retry_response_codes),
            retries_not_stored_ok=settings.retry_another_broker_when_not_store_ok,
            retries_limits=True,
            attempt_timeout_ms=settings.send_msg_max_timeout_per_request_ms,
        )
        self._asynchronous = SendPolicy(attempts=1 + settings.retry_times_when_send_async_failed)
        self._once = SendPolicy(attempts=1)
        self._forgotten = SendPolicy(attempts=1)
        _engines.add(self)

    def __repr__(self) -> str:
        """Tell group and state."""
        return f"<SendEngine {self.group} {self._state.value} under_way={len(self._under_way)}>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return self._state

    @classmethod
    async def open(
        cls,
        settings: ProducerSettings,
        *,
        interceptors: Iterable[Interceptor] = (),
        network_factory: NetworkFactory | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> SendEngine:
        """Return a running engine on the running loop, with a client instance that :meth:`close` gives back.

        Args:
            settings: the producer's; they are checked here.
            interceptors: see every message before and after.
            network_factory, now_ms: as :meth:`ClientInstance.shared`.

        Raises:
            InvalidArgument: a setting cannot be used.
            GroupTaken: the instance has a producer of this group.
            Error: the instance could not start.
        """
        settings.check()
        given = settings
        settings = replace(settings, instance_name=own_instance_name(settings.instance_name))
        instance = ClientInstance.shared(settings, network_factory=network_factory, now_ms=now_ms)
        try:
            engine = cls(instance, settings, interceptors=interceptors)
            await engine.start()
        except BaseException:
            await instance.release()
            raise
        if settings.enable_trace:
            try:
                await engine._trace(given, network_factory, now_ms)
            except BaseException:
                await engine.close()
                raise
        return engine

    async def _trace(
        self, settings: ProducerSettings, network_factory: NetworkFactory | None, now_ms: Callable[[], int] | None
    ) -> None:
        """Tell upstream's message trace what is sent, with a producer of its own that is not traced."""
        from cometmq.client.tracing import Tracing  # which needs this module

        self._tracing = await Tracing.open(
            settings, group=settings.group, role="PRODUCE", network_factory=network_factory, now_ms=now_ms
        )
        after = send_tracer(self._tracing.dispatcher).after_send
        assert after is not None
        self._after = (*self._after, after)

    async def start(self) -> None:
        """Register the group, start the instance and fetch the routes of the topics named in the settings.

        Raises:
            ClientStateError: it was started before.
            GroupTaken: the instance has a producer of this group; this one may be started again after that one's end.
            Error: the instance could not start.
        """
        if self._state is not ServiceState.CREATE_JUST:
            raise not_startable(f"producer group {self.settings.group}", self._state)
        self.instance.register_producer(self)
        self._state = ServiceState.START_FAILED
        try:
            await self.instance.start()
        except BaseException:
            await self.instance.unregister_producer(self.group)
            raise
        for topic in self.settings.topics:
            name = with_namespace(self.settings.namespace, topic)
            self._topics.add(name)
            await self.instance.update_route(name)
        self._state = ServiceState.RUNNING
        if self.settings.start_detector_enable:
            self._detector = self.instance.loop.call_later(_DETECTOR_PERIOD_S, self._detect)
        await self.instance.heartbeat()

    def serve(self) -> None:
        """Run as the inner producer of a running instance, which registers its group itself."""
        self._state = ServiceState.RUNNING

    async def close(self) -> None:
        """Refuse what comes, wait for what is under way, tell the brokers that the group leaves, free the instance."""
        if self._state is ServiceState.SHUTDOWN_ALREADY:
            return
        was_running = self._state is ServiceState.RUNNING
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._lanes.clear()
        if self._detector is not None:
            self._detector.cancel()
        try:
            await self.drain()
            if self._tracing is not None:
                await self._tracing.close()
        finally:
            if was_running:
                await self.instance.unregister_producer(self.group)
            await self.instance.release()

    async def drain(self) -> None:
        """Wait until all that is under way now has ended, well or not."""
        for bunch in self._accumulation.take_all() if self._accumulation is not None else ():
            self.ship(bunch)
        for send in list(self._under_way):
            await asyncio.shield(_arrival(send, self.instance.loop))

    def disown(self) -> None:
        """Refuse everything: this process is a fork of the one that the engine belongs to."""
        self._is_forked = True
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._lanes.clear()

    def require_running(self) -> None:
        """Return where messages can be sent.

        Raises:
            ForkedClient, ClientStateError: they cannot.
        """
        if self._is_forked:
            raise ForkedClient(
                f"producer group {self.settings.group} belongs to the process of which this one is a fork: "
                "make and start producers after the fork"
            )
        require_running(f"producer group {self.settings.group}", self._state)

    def require_other_thread(self) -> None:
        """Return where the caller is not the loop, and so may wait for it.

        Raises:
            ClientStateError: it would wait for itself.
            ForkedClient: it would wait for ever; the answer comes to the process of which this one is a fork.
        """
        if self._is_forked:
            self.require_running()
        if threading.get_ident() == self.loop_thread:
            raise ClientStateError(
                "a blocking call was made on the producer's own event loop, as in a callback, and would wait for "
                "itself: make it in a thread, or await the future"
            )

    # --- What the instance asks ---------------------------------------------------------------------------------------

    def publish_topics(self) -> Collection[str]:
        """Return the topics that were sent to."""
        return self._topics

    def routes_changed(self, topic: str, info: PublishInfo) -> None:
        """Take the queues of a topic that is sent to; of one that has none any more the next send asks again."""
        if topic not in self._topics:
            return
        self._lanes.clear()
        with self._line_lock:
            rings = self._found if topic in self._lines else self._rings
            if info.queues:
                rings[topic] = QueueRing(info.queues)
            else:
                rings.pop(topic, None)

    async def check_transaction(self, address: str, request: Command, message: ReceivedMessage) -> None:
        """Pass a broker's question over: a producer without transactions has nothing to say to it."""

    # --- Sending, any thread ------------------------------------------------------------------------------------------

    def send_given(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None,
        tags: str | None,
        keys: str | None,
        properties: Mapping[str, str] | None,
        delay_level: int,
        sharding_key: str | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
        timeout_ms: int | None,
        is_awaited: bool,
    ) -> SendFuture:
        """Send what the arguments of a producer's ``send`` are, the short way where that will do; as :meth:`send`."""
        if queue is None and selector is None and timeout_ms is None and not delay_level:
            lane = self._lanes.get(topic) if type(topic) is str else None
            if lane is None:
                lane = self._lane(topic)
            if lane is not None:
                future = lane.send(body, tags, keys, sharding_key, properties, is_awaited)
                if future is not None:
                    return future
        message = message_of(topic, body, tags, keys, properties, delay_level, sharding_key)
        return self.send(message, queue=queue, selector=selector, arg=arg, is_awaited=is_awaited, timeout_ms=timeout_ms)

    def send_item(self, item: OutgoingMessage | bytes, topic: str | None) -> SendFuture:
        """Send one of many, a message or a body alone; as :meth:`send`."""
        if type(item) is OutgoingMessage:
            return self.send(item, topic=topic)
        given: Any = item
        if isinstance(given, OutgoingMessage) or topic is None:
            raise InvalidArgument("many messages are OutgoingMessage, or bodies of a topic that is given")
        return self.send_given(topic, given, None, None, None, 0, None, None, None, None, None, False)

    def _lane(self, topic: object) -> PlainLane | BunchLane | None:
        """Return the short way of plain messages to a topic; None where somebody is to see them, or it is not known."""
        if type(topic) is not str:
            return None
        return self._lanes.get(topic) or self._open_lane(topic)

    def _open_lane(self, topic: str) -> PlainLane | BunchLane | None:
        if self._state is not ServiceState.RUNNING or not self._is_unwatched():
            return None
        name = with_namespace(self.settings.namespace, topic)
        ring = self._rings.get(name)
        lane: PlainLane | BunchLane | None = None
        if self._accumulation is not None:
            lane = self._accumulation.lane(name)
        elif ring is not None and not self.settings.vip_channel_enabled:
            lane = PlainLane(
                self,
                self._maker.template(name),
                self._maker.ids,
                next_queue=ring.next,
                queue_of=partial(queue_by_hash, ring.queues),
                masters=self.instance.routes.masters,
                under_way=self._under_way,
                transmit=self._network.send,
                links=self._network.links,
                clock=self.clock,
                now_ms=self._wall_clock,
                blocking=self._blocking,
                asynchronous=self._asynchronous,
                once=self._once,
                special=SPECIAL_PROPERTIES,
                body_bytes_max=self._maker.plain_body_bytes_max(),
                timeout_ms=self.settings.send_msg_timeout_ms,
            )
        if lane is not None:
            self._lanes[topic] = lane
            # The loop may have closed all lanes since the state and the ring were looked at.
            if self._state is not ServiceState.RUNNING or self._rings.get(name) is not ring:
                self._lanes.pop(topic, None)
        return lane

    def _is_unwatched(self) -> bool:
        """Tell whether nothing but its future is to know of a send that was stored."""
        return not (self._before or self._after or self._pressure is not None or self.settings.send_latency_enable)

    def send(
        self,
        message: OutgoingMessage,
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        is_awaited: bool = False,
        timeout_ms: int | None = None,
    ) -> SendFuture:
        """Send a message; the future brings what becomes of it. Any thread; waits only where back-pressure is on.

        Args:
            message: the message.
            topic: where to, where it does not say.
            queue: the queue that it must go to; or
            selector, arg: what chooses it. Without either its sharding key chooses, or the queues take turns.
            is_awaited: somebody waits: it is tried again after refusals too, and back-pressure is not for it.
            timeout_ms: for all attempts; None for the setting.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge: it cannot be sent.
            ClientStateError: the producer does not run.
        """
        if queue is None and selector is None and timeout_ms is None and is_plain(message):
            wanted = message.topic if topic is None else topic
            lane = self._lane(wanted) if message.topic is None or message.topic == wanted else None
            if lane is not None:
                future = lane.send(
                    message.body, message.tags, message.keys, message.sharding_key, message.properties, is_awaited
                )
                if future is not None:
                    return future
        if self._state is not ServiceState.RUNNING:
            self.require_running()
        name = self._maker.topic_of((message,), topic)
        if queue is not None:
            self._check_topic_of(queue, name)
        if self._accumulation is not None and selector is None and timeout_ms is None:
            gathered = self._accumulation.add(message, name, queue, is_awaited=is_awaited)
            if gathered is not None:
                return gathered
        request_, unique_id = self._maker.single(message, name)
        send = self._new(request_, unique_id, is_awaited, timeout_ms)
        self._place(send, message, queue, selector, arg)
        if self._before or self._after:
            self._observe(send, (message,), (unique_id,))
        return self._begin(send, is_awaited)

    def ship(self, bunch: Bunch) -> None:
        """Send a bunch, which nobody adds to any more, as a batch. What keeps it from going is its messages' error."""
        try:
            self._ship(bunch)
        except Exception as error:  # noqa: BLE001 - others wait for its messages than who made it go
            self._fail(bunch.future, error)

    def _ship(self, bunch: Bunch) -> None:
        request_ = self._maker.of_records(bunch.topic, bunch.take_records(), wait_stored=bunch.wait_stored)
        send = bunch.future
        ids = None if bunch.messages is None else bunch.unique_ids
        send.begin(
            request_,
            None if ids is None else ",".join(ids),
            self._blocking if bunch.is_awaited else self._asynchronous,
            began_s=self.clock(),
            timeout_ms=self.settings.send_msg_timeout_ms,
        )
        self._place(send, None, bunch.queue, None, None)
        if ids is not None and bunch.messages is not None:
            self._observe(send, bunch.messages, ids)
        self._begin(send, bunch.is_awaited)

    def was_interrupted(self, bunch: Bunch) -> None:
        """See that a bunch goes, or is told of, where Ctrl-C came while it was shipped. Any thread."""
        self.instance.loop.call_soon_threadsafe(self._see_to, bunch)

    def _see_to(self, bunch: Bunch) -> None:
        send = bunch.future
        if bunch.size_bytes:
            self.ship(bunch)
        elif not send.done():
            # Nobody knows how far it came. When its time is over nothing more can come to it.
            self._under_way.add(send)
            self.instance.loop.call_at(send.deadline_s, self._interrupted, send)

    def _interrupted(self, send: Sending) -> None:
        if not send.done():
            send.is_uncertain = send.attempts > 0
            self._fail(send, RequestTimeout("sending was interrupted, and no answer came"))

    def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        is_awaited: bool = False,
        timeout_ms: int | None = None,
    ) -> SendFuture:
        """Send messages as one batch, which is stored whole or not at all. Any thread.

        Args:
            messages: of one topic, none of them held back, all with the same ``wait_stored``.
            topic, queue, is_awaited, timeout_ms: as :meth:`send`.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge: they cannot be a batch.
            ClientStateError: the producer does not run.
        """
        self.require_running()
        request_, ids = self._maker.batch(messages, self._maker.topic_of(messages, topic))
        send = self._new(request_, ",".join(ids), is_awaited, timeout_ms)
        self._place(send, None, queue, None, None)
        if self._before or self._after:
            self._observe(send, messages, ids)
        return self._begin(send, is_awaited)

    def send_oneway(
        self,
        message: OutgoingMessage,
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message once and forget it; nobody is told whether it arrives. Any thread.

        Args:
            message, topic, queue, selector, arg: as :meth:`send`.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`.
        """
        if queue is None and selector is None and topic is None and is_plain(message):
            lane = self._lane(message.topic)
            if lane is not None and lane.send_oneway(
                message.body, message.tags, message.keys, message.sharding_key, message.properties
            ):
                return
        self.require_running()
        request_, unique_id = self._maker.single(message, self._maker.topic_of((message,), topic))
        send = self._new(request_, unique_id, False, None)
        send.policy = self._forgotten
        self._place(send, message, queue, selector, arg)
        if self._before or self._after:
            self._observe(send, (message,), (unique_id,))
        self._begin(send, True)

    def _new(self, request_: SendRequest, unique_id: str, is_awaited: bool, timeout_ms: int | None) -> Sending:
        if timeout_ms is None:
            timeout_ms = self.settings.send_msg_timeout_ms
        elif timeout_ms < 1:
            raise InvalidArgument(f"timeout_ms is {timeout_ms}; give 1 or more")
        policy = self._blocking if is_awaited else self._asynchronous
        return Sending(self, request_, unique_id, policy, began_s=self.clock(), timeout_ms=timeout_ms)

    def _place(
        self,
        send: Sending,
        message: OutgoingMessage | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> None:
        """Keep what chooses the queue where the message may not go to any."""
        if queue is not None:
            self._check_topic_of(queue, send.topic)
            send.queue = queue
        elif selector is not None:
            topic, chosen = send.topic, selector
            send.chooser = lambda queues: check_choice(chosen(queues, arg), queues=queues, topic=topic)
        elif message is not None and message.queue_id is not None:
            wanted = message.queue_id
            send.chooser = lambda queues: _queue_of_id(queues, wanted)
        elif message is not None and message.sharding_key is not None:
            key = message.sharding_key
            send.chooser = lambda queues: queue_by_hash(queues, key)
        else:
            return
        send.is_fixed = True
        if send.policy is self._blocking:
            send.policy = self._once

    def _check_topic_of(self, queue: MessageQueue, topic: str) -> None:
        if with_namespace(self.settings.namespace, queue.topic) != topic:
            raise InvalidArgument(f"the queue is of topic {queue.topic}, and the message goes to {topic}")

    def _observe(self, send: Sending, messages: Sequence[OutgoingMessage], unique_ids: Sequence[str]) -> None:
        send.context = SendContext(
            group=self.group,
            topic=send.topic,
            messages=messages,
            unique_ids=unique_ids,
            queue=None,
            address=None,
            began_ms=self._now_ms(),
        )

    def _begin(self, send: Sending, is_awaited: bool) -> SendFuture:
        if self._pressure is not None and not is_awaited:
            assert send.request is not None
            on_loop = threading.get_ident() == self.loop_thread
            timeout_s = 0.0 if on_loop else send.deadline_s - send.began_s
            try:
                send.pressure_bytes = self._pressure.enter(len(send.request.body), timeout_s=timeout_s)
            except LimitReached as error:
                send.set_error(error)
                return send
        elif self._is_unwatched():
            send.take_short_way(self._under_way)
        try:
            self._under_way.add(send)
            self._first_attempt(send)
        except BaseException:
            self._leave(send)  # Ctrl-C, in a selector perhaps: nobody gets the future, so nobody is to wait for its end
            raise
        return send

    def _first_attempt(self, send: Sending, ring: QueueRing | None = None) -> None:
        try:
            if send.queue is None:
                ring = ring or self._rings.get(send.topic) or self._stand_in_line(send)
                if ring is None:
                    return
                send.queue = self._select(ring, None) if send.chooser is None else send.chooser(ring.queues)
        except Exception as error:  # noqa: BLE001 - a selector is the user's: what it raises is the send's result
            self._fail(send, error)
            return
        if send.context is not None:
            send.context.queue = send.queue
            send.context.address = self._address(send.queue)
            run_hooks(self._before, send.context)
        self._attempt(send)

    def _select(self, ring: QueueRing, not_broker: str | None) -> MessageQueue:
        if self.settings.send_latency_enable:
            return ring.select_healthy(self.faults, now_ms=int(self.clock() * 1000), not_broker=not_broker)
        return ring.select(not_broker=not_broker)

    def _address(self, queue: MessageQueue) -> str | None:
        address = self.instance.master_address(queue.broker_name)
        return None if address is None else self.instance.api_address(address)

    def _attempt(self, send: Sending) -> None:
        """Send it to its queue; the answer comes to :meth:`answered`, or the message is one that gets none."""
        queue = send.queue
        assert queue is not None
        assert send.request is not None
        address = self._address(queue)
        if address is None:
            self.instance.loop.call_soon_threadsafe(self._no_broker, send)
            return
        left_ms = round((send.deadline_s - self.clock()) * 1000)
        if left_ms < 1:
            late = RequestTimeout("no time was left for an attempt: allow more (send_msg_timeout_ms)")
            self.instance.loop.call_soon_threadsafe(self._fail_late, send, late)
            return
        timeout_ms = send.policy.timeout_ms(left_ms, attempts=send.attempts)
        send.attempts += 1
        send.brokers.append(queue.broker_name)
        request_ = send.request.to_queue(queue.broker_name, queue.queue_id)
        if send.policy is self._forgotten:
            self._network.send(address, request_, None, timeout_ms=timeout_ms)
            self._end(send)
        else:
            self._network.send(address, request_, send, timeout_ms=timeout_ms)

    # --- Answers and further attempts, on the loop --------------------------------------------------------------------

    def answered(self, send: Sending, answer: SendAnswer | Error) -> None:
        """Take what came to an attempt."""
        queue = send.queue
        assert queue is not None
        now_s = self.clock()
        outcome = judge(
            send.policy,
            answer,
            attempts=send.attempts,
            left_ms=(send.deadline_s - now_s) * 1000,
            probes=self.settings.start_detector_enable,
        )
        if self.settings.send_latency_enable:
            self.faults.note(
                queue.broker_name,
                (now_s - send.began_s) * 1000,
                now_ms=int(now_s * 1000),
                is_isolated=outcome.failure.is_isolated,
                is_reachable=outcome.failure.is_reachable,
            )
        send.is_uncertain |= outcome.is_uncertain
        if isinstance(answer, SendAnswer) and answer.code in STATUS_OF:
            send.stored = SendResult(answer, queue, send.unique_id, send.attempts)
        if outcome.next is Next.AGAIN:
            self._again(send)
        elif send.stored is not None:
            self._end(send, result=send.stored)
        else:
            self._fail(send, self._error_of(send, answer))

    def _error_of(self, send: Sending, answer: SendAnswer | Error) -> Error:
        if not isinstance(answer, SendAnswer):
            return answer
        assert send.queue is not None
        return BrokerError(answer.remark, code=answer.code, address=self._address(send.queue))

    def _again(self, send: Sending) -> None:
        if not send.is_fixed and (ring := self._rings.get(send.topic)) is not None:
            send.queue = self._select(ring, send.brokers[-1] if send.brokers else None)
        self._attempt(send)

    def _no_broker(self, send: Sending) -> None:
        """Ask the name servers again, once; then it is an attempt that failed."""
        assert send.queue is not None
        if not send.asked_route:
            send.asked_route = True
            self.instance.spawn(self._refresh_and_attempt(send))
            return
        send.attempts += 1
        send.brokers.append(send.queue.broker_name)
        name = send.queue.broker_name
        self.answered(send, BrokerNotFound(f"no name server knows a master of broker {name}", broker_name=name))

    async def _refresh_and_attempt(self, send: Sending) -> None:
        try:
            await self.instance.update_route(send.topic)
        except BaseException as error:
            self._fail(send, error)
            raise
        self._attempt(send)

    def _stand_in_line(self, send: Sending) -> QueueRing | None:
        """Let a send wait for the route of its topic, behind those that do; return the route where it has just come."""
        topic = send.topic
        with self._line_lock:
            ring = self._rings.get(topic)
            if ring is not None:
                return ring
            line = self._lines.get(topic)
            if line is not None:
                line.append(send)
                return None
            # First: where Ctrl-C comes between the two there is no line that nobody serves.
            self.instance.loop.call_soon_threadsafe(self._spawn_line, topic)
            self._lines[topic] = deque([send])
        return None

    def _spawn_line(self, topic: str) -> None:
        self.instance.spawn(self._serve_line(topic))

    async def _serve_line(self, topic: str) -> None:
        """Find a topic's route, then make the first attempts of all that wait for it, in order."""
        error: BaseException | None = None
        stopped: BaseException | None = None
        try:
            await self.find_route(topic)
        except BaseException as caught:  # noqa: BLE001 - raised below: nobody shall wait for a send that nobody makes
            error = caught
        while (following := self._next_in_line(topic)) is not None:
            send, ring = following
            if error is not None or ring is None:
                self._fail(send, error or _no_queue(topic))
            else:
                try:
                    self._first_attempt(send, ring)
                except BaseException as caught:  # noqa: BLE001 - raised below: sys.exit() in a selector, and others wait
                    stopped = caught
                    self._fail(send, caught)
        if stopped is not None:
            raise stopped
        if error is not None and not isinstance(error, Error):
            raise error

    def _next_in_line(self, topic: str) -> tuple[Sending, QueueRing | None] | None:
        """Return who is next, and the route; where there is nobody, others may send without a line."""
        with self._line_lock:
            line = self._lines.get(topic)
            if line:
                return line.popleft(), self._found.get(topic)
            self._lines.pop(topic, None)
            ring = self._found.pop(topic, None)
            if ring is not None:
                self._rings[topic] = ring
            return None

    async def find_route(self, topic: str) -> QueueRing:
        """Return the queues of a topic: as the name servers say, or as a broker will make them after the template.

        Raises:
            RouteNotFound: it has none.
            Error: no name server could be asked.
        """
        self._topics.add(topic)
        settings, instance = self.settings, self.instance
        known = instance.routes.publish_info(topic)
        if self._ring(topic) is None and known is not None:
            self.routes_changed(topic, known)
        ring = self._ring(topic)
        if ring is not None:
            return ring
        try:
            await instance.update_route(topic, must_exist=True)
        except RouteNotFound:
            await instance.update_route(
                topic,
                default_topic=settings.create_topic_key,
                default_queues=settings.default_topic_queue_nums,
                must_exist=True,
            )
        info = instance.routes.publish_info(topic)
        if self._ring(topic) is None and info is not None:
            self.routes_changed(topic, info)
        ring = self._ring(topic)
        if ring is None:
            raise _no_queue(topic)
        return ring

    def _ring(self, topic: str) -> QueueRing | None:
        """Return the queues of a topic, also while others wait for them."""
        return self._rings.get(topic) or self._found.get(topic)

    # --- Ends ---------------------------------------------------------------------------------------------------------

    def _fail_late(self, send: Sending, error: Error) -> None:
        if send.stored is not None:
            self._end(send, result=send.stored)
        else:
            self._fail(send, error)

    def _fail(self, send: Sending, error: BaseException) -> None:
        if isinstance(error, Error) and send.attempts:
            elapsed_ms = (self.clock() - send.began_s) * 1000
            error = send_failed(
                send.topic,
                error,
                brokers=send.brokers,
                attempts=send.attempts,
                elapsed_ms=elapsed_ms,
                is_uncertain=send.is_uncertain,
            )
        self._end(send, error=error)

    def _end(self, send: Sending, *, result: SendResult | None = None, error: BaseException | None = None) -> None:
        self._leave(send)
        send.request = None
        context = send.context
        if context is not None:
            context.result, context.error = result, error
            context.elapsed_ms = (self.clock() - send.began_s) * 1000
            run_hooks(self._after, context)
        if error is not None:
            send.set_error(error)
        else:
            send.set_result(result)

    def _leave(self, send: Sending) -> None:
        self._under_way.discard(send)
        if send.pressure_bytes and self._pressure is not None:
            self._pressure.leave(send.pressure_bytes)
            send.pressure_bytes = 0

    # --- The detector -------------------------------------------------------------------------------------------------

    def _detect(self) -> None:
        """Ask the brokers that are noted as faulty whether they answer; from then on they are tried again."""
        for name in self.faults.take_probes(
            now_ms=int(self.clock() * 1000), period_ms=self.settings.detect_interval_ms
        ):
            self.instance.spawn(self._probe(name))
        self._detector = self.instance.loop.call_later(_DETECTOR_PERIOD_S, self._detect)

    async def _probe(self, broker_name: str) -> None:
        address = self.instance.master_address(broker_name)
        if address is None:
            self.faults.forget(broker_name)
            return
        question = request(RequestCode.GET_MAX_OFFSET, topic=_PROBE_TOPIC, queueId=0)
        try:
            await self._network.invoke(address, question, timeout_ms=self.settings.detect_timeout_ms)
        except Error as error:
            _LOG.debug("broker %s does not answer yet: %s", broker_name, error)
        else:
            self.faults.answered(broker_name)


def _arrival(send: SendFuture, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future of the loop that is done when the send is, well or not."""
    arrived = loop.create_future()

    def tell(_: SendFuture) -> None:
        if not arrived.done():
            arrived.set_result(None)

    send.add_done_callback(lambda _: loop.call_soon_threadsafe(tell, send))
    return arrived


def _queue_of_id(queues: Sequence[MessageQueue], queue_id: int) -> MessageQueue:
    found = [queue for queue in queues if queue.queue_id == queue_id]
    if len(found) != 1:
        why = (
            "is at several brokers: give queue=MessageQueue(…)" if found else "does not take messages, or is not there"
        )
        raise InvalidArgument(f"queue {queue_id} of topic {queues[0].topic} {why}")
    return found[0]
