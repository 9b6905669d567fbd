"""The engine of producers: its life, and the ways in, which choose how a message goes out.

A plain message takes the fast path of its topic; one that may wait for others goes into a batch; any other becomes a
request of its own. The rest is :mod:`cometmq.client.send.send_attempts`'s.

Invariant: after :meth:`SendEngine.close` began, and in a fork, no message is taken any more; each taken before ends,
sent or failed.

Threads: sends come from any thread; all else is the loop's. Source: consumption specification 2.2, 2.3.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cometmq._engine import FastPath
from cometmq._plural import counted
from cometmq.client.instance.awaited_replies import ReplyFuture
from cometmq.client.instance.closing import CloseSteps, Closing, to_the_end
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.instance import ClientInstance, NetworkFactory, own_instance_name, wall_clock_ms
from cometmq.client.instance.namespaces import with_namespace
from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.client.send.accumulating import Accumulation
from cometmq.client.send.fault_detector import FaultDetector
from cometmq.client.send.outgoing import SPECIAL_PROPERTIES, OutgoingMessage, is_plain, message_of
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.queue_selection import QueueSelector, queue_by_hash
from cometmq.client.send.request_making import RequestMaker
from cometmq.client.send.requesting import Requests, reply_message
from cometmq.client.send.send_attempts import SendAttempts
from cometmq.client.send.sending import arrival
from cometmq.client.send.transactions import Transactions
from cometmq.client.trace.trace import send_tracer
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from cometmq._engine import BatchFastPath, ReceivedMessage, SendFuture
    from cometmq.client.instance.routes import PublishInfo
    from cometmq.client.send.sending import SendResult
    from cometmq.client.send.transactions import Checker, Decision
    from cometmq.client.trace.tracing import Tracing
    from cometmq.remoting.command import Command

__all__ = ["SendEngine"]

_engines: weakref.WeakSet[SendEngine] = weakref.WeakSet()


def _in_forked_child() -> None:
    for engine in _engines:
        engine.disown()


os.register_at_fork(after_in_child=_in_forked_child)


class SendEngine:
    """The sender of one producer group.

    Attributes:
        instance: the client instance.
        settings: the producer's.
        group: its group, as brokers know it.
        attempts: the sends that are under way.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        *,
        interceptors: Iterable[Interceptor] = (),
        checker: Checker | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Nothing is sent yet; :meth:`start` registers the group. On the loop.

        Args:
            instance: the client instance, of which this has a :meth:`ClientInstance.shared`.
            settings: the producer's, checked.
            interceptors: see every message before and after.
            checker, executor: of a producer of transactions (:class:`Transactions`); None for any other.
        """
        self.instance = instance
        self.settings = settings
        self.group = with_namespace(settings.namespace, settings.group)
        self._maker = RequestMaker(settings, group=self.group, now_ms=instance.now_ms)
        self.attempts = SendAttempts(
            instance, settings, self._maker, group=self.group, interceptors=tuple(interceptors)
        )
        self._routes = self.attempts.routes
        self._detector = FaultDetector(instance, settings, self.attempts.faults)
        self._tracing: Tracing | None = None
        self._state = ServiceState.CREATE_JUST
        # None is the machine's clock, which the compiled half reads without a call.
        self._wall_clock = None if instance.now_ms is wall_clock_ms else instance.now_ms
        self._accumulation = (
            Accumulation(
                self.attempts,
                settings,
                self._maker,
                loop=instance.loop,
                now_ms=self._wall_clock,
                keeps_messages=self.attempts.is_observed or settings.enable_trace,
            )
            if settings.accumulate
            else None
        )
        self._lanes: dict[str, FastPath | BatchFastPath] = {}
        self._requests = Requests(instance, self.attempts, self._maker)
        self._transactions = (
            None
            if checker is None
            else Transactions(
                instance,
                group=self.group,
                checker=checker,
                require_own_process=self.attempts.require_own_process,
                executor=executor,
            )
        )
        self._closing = Closing()
        _engines.add(self)

    def __repr__(self) -> str:
        """Return group and state."""
        return f"<SendEngine {self.group} {self._state.value} {self.attempts!r}>"

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
        checker: Checker | None = None,
        executor: Executor | None = None,
        network_factory: NetworkFactory | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> SendEngine:
        """Return a running engine on the running loop, with a client instance that :meth:`close` gives back.

        Args:
            settings: the producer's; they are checked here.
            interceptors, checker, executor: as for the class.
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
            engine = cls(instance, settings, interceptors=interceptors, checker=checker, executor=executor)
        except BaseException:
            await to_the_end(instance.release())
            raise
        try:
            await engine.start()
        except BaseException:
            await engine.close()
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
        """Record sends in upstream's message trace, with a producer of its own that is not traced."""
        from cometmq.client.trace.tracing import Tracing  # which needs this module

        self._tracing = await Tracing.open(
            settings, group=settings.group, role="PRODUCE", network_factory=network_factory, now_ms=now_ms
        )
        self.attempts.add_interceptor(send_tracer(self._tracing.dispatcher))
        if self._transactions is not None:
            self._transactions.dispatcher = self._tracing.dispatcher

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
            await to_the_end(self._leave())
            raise
        for topic in self.settings.topics:
            name = with_namespace(self.settings.namespace, topic)
            self._routes.topics.add(name)
            await self.instance.update_route(name)
        self._state = ServiceState.RUNNING
        if self.settings.start_detector_enable:
            self._detector.start()
        await self.instance.heartbeat()

    def serve(self) -> None:
        """Run as the inner producer of a running instance, which registers its group itself."""
        self._state = ServiceState.RUNNING

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Refuse new sends, wait for those in flight, unregister the group at the brokers, free the instance.

        It is done to its end, also where the caller is cancelled; later calls wait for that.

        Args:
            timeout_ms: for the whole close; then a warning lists the abandoned work. None waits for every send.
        """
        if self._closing.has_begun or self._state is not ServiceState.SHUTDOWN_ALREADY:
            await self._closing.run(lambda: self._close(timeout_ms), wait_ms=timeout_ms)

    async def _close(self, timeout_ms: int | None) -> None:
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._lanes.clear()
        self._detector.stop()
        steps = CloseSteps(f"producer group {self.group}", timeout_ms)
        try:
            if not await steps.run(self.drain(), self._in_flight):
                reason = f"producer group {self.settings.group} was closed after {timeout_ms} ms"
                self.attempts.give_up(reason)
                self._requests.give_up(reason)
            if self._transactions is not None:
                self._transactions.close()
            if self._tracing is not None:
                await self._tracing.close(timeout_ms=steps.left_ms)
        finally:
            try:
                await steps.run(self._leave(), lambda: "unregistering at its brokers")
            finally:
                await steps.run(self.instance.release(), lambda: "unregistering its client at brokers")

    def _in_flight(self) -> str:
        numbers = {"send": len(self.attempts.under_way), "request": len(self._requests.waiting)}
        named = " and ".join(counted(number, noun) for noun, number in numbers.items() if number)
        return f"{named} in flight, whose outcome is unknown"

    async def _leave(self) -> None:
        if self.instance.producers.get(self.group) is self:
            await self.instance.unregister_producer(self.group)

    def _ship_accumulated(self) -> None:
        for pending in self._accumulation.take_all() if self._accumulation is not None else ():
            self.attempts.ship(pending)

    async def drain(self) -> None:
        """Wait until all that is under way now has ended, well or not: sends, and requests without a reply."""
        self._ship_accumulated()
        for send in list(self.attempts.under_way):
            await asyncio.shield(arrival(send, self.instance.loop))
        await asyncio.gather(*map(asyncio.shield, list(self._requests.waiting)), return_exceptions=True)

    @property
    def may_have_sends(self) -> bool:
        """Whether something may be under way. Any thread."""
        return bool(self.attempts.under_way) or self._accumulation is not None

    async def finish(self, limit_s: float) -> int:
        """Wait for all that is under way now, ``limit_s`` at most; return how many sends did not succeed."""
        self._ship_accumulated()
        sends = list(self.attempts.under_way)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.drain(), limit_s)
        return sum(not send.done() or send.exception() is not None for send in sends)

    def disown(self) -> None:
        """Refuse everything: this process is a fork of the one that the engine belongs to."""
        self.attempts.is_forked = True
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._lanes.clear()

    def require_running(self) -> None:
        """Return where messages can be sent.

        Raises:
            ForkedClient, ClientStateError: they cannot.
        """
        self.attempts.require_own_process()
        require_running(f"producer group {self.settings.group}", self._state)

    # --- For the instance ---------------------------------------------------------------------------------------------

    def publish_topics(self) -> Collection[str]:
        """Return the topics that were sent to."""
        return self._routes.topics

    def routes_changed(self, topic: str, info: PublishInfo) -> None:
        """Take the queues of a topic that is sent to; of one that has none any more the next send asks again."""
        if topic in self._routes.topics:
            self._lanes.clear()
            self._routes.changed(topic, info)

    async def check_transaction(self, address: str, request: Command, message: ReceivedMessage) -> None:
        """Answer a broker's question; a producer without transactions has no answer."""
        if self._transactions is not None:
            await self._transactions.check(address, request, message)

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
        """Send what the arguments of a producer's ``send`` are, the fast path where that will do; as :meth:`send`."""
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

    def _lane(self, topic: object) -> FastPath | BatchFastPath | None:
        """Return the fast path of plain messages to a topic; None where somebody is to see them, or it is not known."""
        if type(topic) is not str:
            return None
        return self._lanes.get(topic) or self._open_lane(topic)

    def _open_lane(self, topic: str) -> FastPath | BatchFastPath | None:
        attempts = self.attempts
        if self._state is not ServiceState.RUNNING or not attempts.is_unwatched:
            return None
        name = with_namespace(self.settings.namespace, topic)
        ring = self._routes.rings.get(name)
        lane: FastPath | BatchFastPath | None = None
        if self._accumulation is not None:
            lane = self._accumulation.lane(name)
        elif ring is not None and not self.settings.vip_channel_enabled:
            lane = FastPath(
                attempts,
                self._maker.template(name),
                self._maker.ids,
                next_queue=ring.next,
                queue_of=partial(queue_by_hash, ring.queues),
                masters=self.instance.routes.masters,
                under_way=attempts.under_way,
                transmit=self.instance.network.send,
                links=self.instance.network.links,
                clock=self.instance.loop.time,
                now_ms=self._wall_clock,
                blocking=attempts.policies.blocking,
                asynchronous=attempts.policies.asynchronous,
                once=attempts.policies.once,
                special=SPECIAL_PROPERTIES,
                body_bytes_max=self._maker.plain_body_bytes_max(),
                timeout_ms=self.settings.send_msg_timeout_ms,
            )
        if lane is not None:
            self._lanes[topic] = lane
            # The loop may have closed all lanes since the state and the ring were looked at.
            if self._state is not ServiceState.RUNNING or self._routes.rings.get(name) is not ring:
                self._lanes.pop(topic, None)
        return lane

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
            selector, arg: choose it. Without either its sharding key chooses, or the queues take turns.
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
            self.attempts.check_topic_of(queue, name)
        if self._accumulation is not None and selector is None and timeout_ms is None:
            gathered = self._accumulation.add(message, name, queue, is_awaited=is_awaited)
            if gathered is not None:
                return gathered
        attempts = self.attempts
        request, unique_id = self._maker.single(message, name)
        send = attempts.new(request, unique_id, is_awaited=is_awaited, timeout_ms=timeout_ms)
        attempts.place(send, message, queue, selector, arg)
        if attempts.is_observed:
            attempts.observe(send, (message,), (unique_id,))
        return attempts.begin(send, is_awaited=is_awaited)

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
        attempts = self.attempts
        request, ids = self._maker.batch(messages, self._maker.topic_of(messages, topic))
        send = attempts.new(request, ",".join(ids), is_awaited=is_awaited, timeout_ms=timeout_ms)
        attempts.place(send, None, queue)
        if attempts.is_observed:
            attempts.observe(send, messages, ids)
        return attempts.begin(send, is_awaited=is_awaited)

    def send_oneway(
        self,
        message: OutgoingMessage,
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message one-way: there is no confirmation that it arrives. Any thread.

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
        attempts = self.attempts
        request, unique_id = self._maker.single(message, self._maker.topic_of((message,), topic))
        send = attempts.new(request, unique_id, is_awaited=False)
        send.policy = attempts.policies.forgotten
        attempts.place(send, message, queue, selector, arg)
        if attempts.is_observed:
            attempts.observe(send, (message,), (unique_id,))
        attempts.begin(send, is_awaited=True)

    # --- Requests and replies, any thread -----------------------------------------------------------------------------

    def request(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> ReplyFuture:
        """Send a message that waits for a reply; the future brings it. Any thread.

        Args:
            message, queue, selector, arg: as :meth:`send`.
            timeout_ms: longest wait for the reply, sending included; None for the setting.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`.
        """
        self.require_running()
        topic = self._maker.topic_of((message,), None)
        wait_ms = self.settings.send_msg_timeout_ms if timeout_ms is None else timeout_ms
        return self._requests.begin(message, topic, queue=queue, selector=selector, arg=arg, timeout_ms=wait_ms)

    def forget(self, request: ReplyFuture) -> None:
        """Wait no longer for the reply to a request, also in :meth:`close`; on the loop."""
        self._requests.forget(request)

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None,
        keys: str | None,
        properties: Mapping[str, str] | None,
        timeout_ms: int | None,
    ) -> SendFuture:
        """Send the reply to a request that a consumer received. Any thread.

        Raises:
            InvalidArgument: the message is no request.
            MessageTooLarge, ClientStateError: as :meth:`send`.
        """
        self.require_running()
        message = reply_message(request, body, tags=tags, keys=keys, properties=properties)
        return self._requests.reply(message, request, timeout_ms=timeout_ms)

    # --- Transactions, any thread -------------------------------------------------------------------------------------

    def begin_transaction(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendFuture:
        """Send a half message; :meth:`deciding` sends its outcome. Any thread.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`, or it is to be held back.
        """
        assert self._transactions is not None
        half = self._transactions.prepare(message)
        return self.send(half, queue=queue, selector=selector, arg=arg, is_awaited=True, timeout_ms=timeout_ms)

    def deciding(self, message: OutgoingMessage, sent: SendResult) -> AbstractContextManager[Decision]:
        """Return the block around the local transaction of a half message (:meth:`Transactions.deciding`)."""
        assert self._transactions is not None
        return self._transactions.deciding(message, self._maker.topic_of((message,), None), sent)
