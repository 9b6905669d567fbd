"""The machine of a simple consumer: it pops messages when it is asked, and finishes or hides them by their handles.

Nobody shares out queues: each receive asks the topic's brokers in turn, another first each time, and each gives from
all of its queues. Where there is one broker, it holds the request until there is something. Where there are several,
they are asked to notify when there is something, which takes nothing; so no messages are sent to a caller that has gone
on meanwhile.

Invariants: a message that came is handed out, or waits here for the next caller, or is redelivered by its broker when
its invisible time is over. Each broker and topic has at most one request in flight. Transient failures end no loop.
:class:`~cometmq.client.pop.pop_targets.PopTargets` knows the brokers, and
:class:`~cometmq.client.pop.queue_order.QueueOrder` keeps each queue's messages in order with ``orderly``.

Threads: the client's loop. Source: consumption specification 4.4, 4.10, 4.11.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq._engine import ReceivedMessage
from cometmq.client.arguments import milliseconds, one, several, whole_number
from cometmq.client.group.consumer_facts import GroupFacts
from cometmq.client.group.subscriptions import TAG, make_subscription, next_version
from cometmq.client.instance.closing import CloseSteps, Closing, to_the_end
from cometmq.client.instance.instance import ClientInstance, NetworkFactory, own_instance_name, wall_clock_ms
from cometmq.client.instance.namespaces import with_namespace
from cometmq.client.instance.outages import OutageLog, may_pass, pause_s
from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.client.pop.held_messages import HeldMessages
from cometmq.client.pop.loop_pace import LoopPace
from cometmq.client.pop.pop_extending import Extender
from cometmq.client.pop.pop_handles import PopHandle
from cometmq.client.pop.pop_kernel import PopKernel, PopResult
from cometmq.client.pop.pop_policy import MESSAGES_PER_POP_MAX, PopStatus
from cometmq.client.pop.pop_targets import BROKER_FAILED_S, HOLD_MAX_MS, PopTargets
from cometmq.client.pop.queue_order import QueueOrder
from cometmq.client.pop.simple_settings import INVISIBLE_MS_MAX, RECEIVE_MAX, SimpleSettings
from cometmq.errors import ClientStateError, Error, GroupTaken, InvalidArgument
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumeResult, ConsumerRunningInfo
from cometmq.store_config.fields import INT32_MAX
from cometmq.store_config.names import validate_topic

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Handout", "SimpleEngine", "popped_messages"]

_WAIT_MAX_MS: Final = INT32_MAX
_NOTHING_AFTER_ALL_S: Final = (0.02, 0.1, 0.5, 1.0)
"""How long to wait before brokers are asked again that said there was something, when there was nothing."""

_log = logging.getLogger(__name__)


class Handout:
    """Messages on their way to a thread that waits for them, and with a loop until it is through with them.

    Its holder sets the flags, in any thread; the rest happens on the loop. An exception of a signal handler may come
    before any of them: messages left here go to the next call of the same thread.

    Attributes:
        messages: those that nobody has seen yet.
        thread: where they were asked for.
        is_loop: a loop takes them one by one.
        is_received: the caller has them.
        is_left: the loop has ended.
        current: the message that the loop is at.
    """

    __slots__ = ("current", "is_left", "is_loop", "is_received", "messages", "thread")

    def __init__(self, messages: Iterable[ReceivedMessage], *, thread: int, is_loop: bool) -> None:
        """Nobody has it yet."""
        self.messages = deque(messages)
        self.thread = thread
        self.is_loop = is_loop
        self.is_received = False
        self.is_left = False
        self.current: ReceivedMessage | None = None


class SimpleEngine(GroupFacts):
    """One simple consumer.

    Attributes:
        order: from the start on, the order of its messages.
    """

    consume_type = ConsumeType.CONSUME_ACTIVELY
    settings: SimpleSettings
    message_model = MessageModel.CLUSTERING

    def __init__(
        self,
        settings: SimpleSettings,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        network_factory: NetworkFactory | None = None,
    ) -> None:
        """Connect to nobody yet; any thread.

        Args:
            settings: the user's; checked by :meth:`start`.
            now_ms: wall clock, milliseconds since 1970.
            network_factory: makes the network.
        """
        self.settings = settings
        self._now_ms = now_ms
        self._network_factory = network_factory
        self._state = ServiceState.CREATE_JUST
        self._group = with_namespace(settings.namespace, settings.group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._instance: ClientInstance | None = None
        self._kernel: PopKernel
        self._extender: Extender
        self._targets: PopTargets
        self.order: QueueOrder
        self._ready: deque[ReceivedMessage] = deque()
        """Messages that came for a caller that did not wait for them, or that left them."""
        self._handled: deque[ReceivedMessage] = deque()
        self._out: list[Handout] = []
        self._held = HeldMessages()
        self._skews_ms: dict[str, int] = {}
        """Broker name to how far its clock is ahead of our steady one."""
        self._pops: set[asyncio.Task[PopResult]] = set()
        self._troubles = OutageLog(_log, group=self._group)
        self._has_closed = asyncio.Event()
        self._closing = Closing()
        self._started_ms = 0

    # --- For the client instance --------------------------------------------------------------------------------------

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

    async def do_rebalance(self) -> bool:
        """Nothing is shared out: brokers give each member what nobody has."""
        return True

    async def persist_offsets(self) -> None:
        """Nothing: brokers keep the progress."""

    def routes_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Let receives that wait read the routes again."""
        self._targets.routes_changed()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Nothing: the broker, which keeps the progress, resets it."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return no progress: brokers keep it."""
        return {}

    def running_info(self) -> ConsumerRunningInfo:
        """Return what an administrator may see."""
        return ConsumerRunningInfo(
            properties={
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "invisibleTime": str(self.settings.invisible_time_ms),
                "receiveMaxMessages": str(self.settings.receive_max_messages),
            },
            subscriptions=tuple(self._subscriptions.values()),
            pop_queues=self._held.infos(now_ms=_steady_ms(), wall_ahead_ms=self._now_ms() - _steady_ms()),
        )

    async def consume_directly(self, message: ReceivedMessage, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        """Refuse: a simple consumer has no listener for the message."""
        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.CR_THROW_EXCEPTION,
            remark=f"group {self._group} is a simple consumer, which has no listener",
        )

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"the simple consumer of group {self._group}"

    def _running(self) -> ClientInstance:
        require_running(self._name, self._state)
        assert self._instance is not None
        return self._instance

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
        settings.check()
        settings = replace(settings, instance_name=own_instance_name(settings.instance_name))
        instance = ClientInstance.shared(settings, network_factory=self._network_factory, now_ms=self._now_ms)
        self._kernel = PopKernel(instance, group=self._group, namespace=settings.namespace, orderly=settings.orderly)
        self._targets = PopTargets(instance, self._kernel, self._subscriptions, group=self._group)
        self._extender = Extender(self._set_invisible, longest_s=settings.extend_for_ms / 1000)
        self.order = QueueOrder(self._extender, self._set_invisible, group=self._group, orderly=settings.orderly)
        try:
            instance.register_consumer(self)
        except GroupTaken:
            self._state = ServiceState.CREATE_JUST
            await to_the_end(instance.release())
            raise
        self._instance = instance
        try:
            await instance.start()
            self._state = ServiceState.RUNNING
            self._started_ms = self._now_ms()
            for topic in list(self._subscriptions):
                await instance.update_route(topic)
            await instance.heartbeat()
        except BaseException:
            await self._closing.run(lambda: self._leave(instance))
            raise

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Leave the group; unacknowledged messages are redelivered.

        It is done to its end, also where the caller is cancelled; later calls wait for that.

        Args:
            timeout_ms: for the whole close; then a warning lists the abandoned work. None waits for every broker.
        """
        instance = self._instance
        if instance is not None and (self._closing.has_begun or self._state is ServiceState.RUNNING):
            await self._closing.run(lambda: self._leave(instance, timeout_ms), wait_ms=timeout_ms)

    async def _leave(self, instance: ClientInstance, timeout_ms: int | None = None) -> None:
        steps = CloseSteps(f"simple consumer group {self._group}", timeout_ms)
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._has_closed.set()
        try:
            pops = list(self._pops)
            for task in pops:
                task.cancel()
            await asyncio.gather(*pops, self._targets.close(), return_exceptions=True)
            self._ready.clear()
            await steps.run(self.order.close(), lambda: "giving back messages, which are redelivered later")
            await steps.run(self._settle(), lambda: "acknowledging messages of a loop, which are redelivered")
        finally:
            try:
                await steps.run(self._extender.close(), lambda: "requests that extend invisible times")
            finally:
                try:
                    await steps.run(instance.unregister_consumer(self._group), lambda: "unregistering at its brokers")
                finally:
                    await steps.run(instance.release(), lambda: "unregistering its client at brokers")

    async def subscribe(self, topic: str, expression: str | None, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic; see :meth:`SimpleConsumer.subscribe`."""
        validate_topic(topic)
        wire = with_namespace(self.settings.namespace, topic)
        version = next_version(self._subscriptions.get(wire), self._now_ms())
        self._subscriptions[wire] = make_subscription(wire, expression, expression_type=expression_type, now_ms=version)
        if self._state is ServiceState.RUNNING:
            instance = self._running()
            await instance.update_route(wire)
            await instance.heartbeat(queues_changed=True)

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        validate_topic(topic)
        gone = self._subscriptions.pop(with_namespace(self.settings.namespace, topic), None)
        if gone is not None and self._state is ServiceState.RUNNING:
            await self._running().heartbeat(queues_changed=True)

    # --- Messages -----------------------------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int | None, *, invisible_s: float | None, wait_s: float | None
    ) -> list[ReceivedMessage]:
        """Return messages; see :meth:`SimpleConsumer.receive`."""
        instance = self._running()
        settings = self.settings
        most = settings.receive_max_messages
        if max_messages is not None:
            most = whole_number("max_messages", max_messages, minimum=1, maximum=RECEIVE_MAX)
        invisible_ms = settings.invisible_time_ms if invisible_s is None else invisible_ms_of(invisible_s, minimum_ms=1)
        wait_ms = settings.receive_wait_ms
        if wait_s is not None:
            wait_ms = milliseconds("wait_s", wait_s, maximum_ms=_WAIT_MAX_MS)
        messages = await self._receive(instance, most, invisible_ms=invisible_ms, wait_ms=wait_ms)
        if not messages and self._targets.missing and self._state is ServiceState.RUNNING:
            await self._targets.require_missing()
        return messages

    async def _receive(
        self, instance: ClientInstance, most: int, *, invisible_ms: int, wait_ms: int
    ) -> list[ReceivedMessage]:
        self._require_subscription()
        end_s = instance.loop.time() + wait_ms / 1000
        disappointments = 0
        while not (messages := self._left(most)):
            routes_changed = self._targets.until_routes_change
            if not (queues := await self._targets.find()):  # the last subscription has ended meanwhile
                self._require_subscription()
                continue
            left_ms = int((end_s - instance.loop.time()) * 1000)
            if len(queues) == 1 and not self._targets.missing:
                poll_ms = max(0, min(left_ms, HOLD_MAX_MS))
                result = await self._pop(queues[0], most=most, invisible_ms=invisible_ms, poll_ms=poll_ms)
                if result.status is PopStatus.POLLING_FULL and left_ms > 0:
                    await asyncio.sleep(min(left_ms / 1000, BROKER_FAILED_S))
                messages = list(result.messages)
                if result.rest and len(messages) < most:
                    messages = await self._round(queues, most, invisible_ms, found=messages)
            else:
                messages = await self._round(queues, most, invisible_ms)
                if not messages and (left_s := end_s - instance.loop.time()) > 0:
                    if disappointments:
                        pause_s = _NOTHING_AFTER_ALL_S[min(disappointments, len(_NOTHING_AFTER_ALL_S)) - 1]
                        await asyncio.sleep(min(left_s, pause_s))
                    left_s = end_s - instance.loop.time()
                    disappointments += await self._targets.notified_of_any(queues, left_s, routes_changed)
            if messages or instance.loop.time() >= end_s or self._state is not ServiceState.RUNNING:
                break
        return messages

    def _require_subscription(self) -> None:
        if not self._subscriptions:
            raise ClientStateError(f"{self._name} subscribes to nothing: call subscribe() first")

    def _left(self, most: int) -> list[ReceivedMessage]:
        """Return what waits here and is still hidden from others."""
        found: list[ReceivedMessage] = []
        while self._ready and len(found) < most:
            message = self._ready.popleft()
            if self._hidden_ms(message) <= 0:
                self.order.give_back_behind(message, self._ready)
            elif self.settings.orderly and self._held.has_earlier(message, now_ms=_steady_ms(), but=found):
                self.order.give_back([message])
            else:
                found.append(message)
        return found

    def _hidden_ms(self, message: ReceivedMessage) -> float:
        """Return for how long a message is still hidden from others, as far as it is known here."""
        handle = PopHandle.parse(message.pop_handle or "")
        steady_ms = _steady_ms()
        skew_ms = self._skews_ms.get(handle.broker_name, self._now_ms() - steady_ms)
        return handle.times.pop_ms + handle.times.invisible_ms - skew_ms - steady_ms

    async def _pop(self, queue: MessageQueue, *, most: int, invisible_ms: int, poll_ms: int) -> PopResult:
        """Pop once. If the caller stops waiting, the messages go to the next caller."""
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            return PopResult(status=PopStatus.NO_NEW_MESSAGE)
        task = asyncio.ensure_future(
            self._kernel.pop(
                queue,
                subscription,
                max_messages=min(most, MESSAGES_PER_POP_MAX),
                invisible_ms=invisible_ms,
                poll_ms=poll_ms,
                from_first=self.settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )
        )
        self._pops.add(task)
        task.add_done_callback(self._pops.discard)
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # the consumer was closed
                return PopResult(status=PopStatus.NO_NEW_MESSAGE)
            task.add_done_callback(self._keep_result)
            raise
        if self._troubles:
            self._troubles.works(queue)
        if result.messages:
            self._skews_ms[queue.broker_name] = result.pop_ms - _steady_ms()
            self._held.came(result.messages, now_ms=_steady_ms())
        return result

    def _keep_result(self, task: asyncio.Task[PopResult]) -> None:
        if not task.cancelled() and task.exception() is None and self._state is ServiceState.RUNNING:
            self._ready.extend(task.result().messages)
            self._held.came(task.result().messages, now_ms=_steady_ms())

    async def _round(
        self,
        queues: Sequence[MessageQueue],
        most: int,
        invisible_ms: int,
        *,
        found: list[ReceivedMessage] | None = None,
    ) -> list[ReceivedMessage]:
        """Pop what is there from one broker after the other, until there is enough.

        Args:
            queues: where.
            most: how much is enough.
            invisible_ms: for how long.
            found: messages popped already; if there are any, nothing is raised.
        """
        found = [] if found is None else found
        errors: list[tuple[MessageQueue, Error]] = []
        for queue in queues:
            try:
                while len(found) < most:
                    result = await self._pop(queue, most=most - len(found), invisible_ms=invisible_ms, poll_ms=0)
                    found += result.messages
                    if result.status is not PopStatus.FOUND or not result.rest:
                        break
            except Error as error:
                errors.append((queue, error))
            except asyncio.CancelledError:
                self._ready.extend(found)
                raise
        if errors and len(errors) == len(queues) and not found:
            raise errors[0][1]
        for queue, trouble in errors:
            self._troubles.fails(queue, trouble)
        return found

    # --- Messages that are done, or worked on -------------------------------------------------------------------------

    async def ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Finish messages; see :meth:`SimpleConsumer.ack` and :meth:`SimpleConsumer.ack_many`."""
        self._running()
        for message in messages:
            _require_popped("ack", message)
        await self._extender.let_go(messages)
        if len(messages) == 1:
            await self._kernel.ack(messages[0])
        else:
            await self._kernel.ack_many(messages)
        self._held.done(messages)
        self.order.forget(messages)

    async def extend(self, message: ReceivedMessage, *, invisible_s: float) -> str:
        """Hide a message for another time; see :meth:`SimpleConsumer.extend`."""
        self._running()
        _require_popped("extend", message)
        invisible_ms = invisible_ms_of(invisible_s, minimum_ms=0)
        await self._extender.let_go([message])
        handle = await self._set_invisible(message, invisible_ms)
        self.order.give_back_behind(message, self._ready)
        return handle

    async def _set_invisible(self, message: ReceivedMessage, invisible_ms: int) -> str:
        handle = await self._kernel.set_invisible(message, invisible_ms)
        self._held.hidden(message, now_ms=_steady_ms(), invisible_ms=invisible_ms)
        return handle

    def keep(self, messages: Iterable[ReceivedMessage]) -> None:
        """Keep messages hidden while they are worked on.

        Raises:
            InvalidArgument: one was not popped.
        """
        self._running()
        for message in messages:
            handle = _require_popped("handling", message)
            invisible_ms = max(PopHandle.parse(handle).times.invisible_ms, 1)
            self._extender.keep(message, invisible_ms=invisible_ms, left_ms=self._hidden_ms(message))

    async def let_go(self, messages: Iterable[ReceivedMessage]) -> None:
        """Keep messages hidden no longer than their time is."""
        await self._extender.let_go(messages)

    async def hand_out(
        self, work: Awaitable[Sequence[ReceivedMessage]], *, thread: int, is_loop: bool = False
    ) -> Handout:
        """Return what a call brings to a thread that may be interrupted while it waits.

        Args:
            work: the call.
            thread: the thread. Unseen messages of its earlier calls come first.
            is_loop: a loop takes the messages one by one.
        """
        await self._take_back(thread)
        handout = Handout(await work, thread=thread, is_loop=is_loop)
        self._out.append(handout)
        return handout

    async def _take_back(self, thread: int) -> None:
        out, self._out = self._out, []
        for handout in out:
            if handout.is_received and not handout.is_loop:
                continue
            if handout.thread != thread and not handout.is_left:
                self._out.append(handout)
                continue
            unseen = [handout.messages.popleft() for _ in range(len(handout.messages))]
            if handout.is_loop:
                unseen = await self._unseen(unseen, handout.current, is_left=handout.is_left)
            if self._state is ServiceState.RUNNING:
                self._ready.extendleft(reversed(unseen))

    async def _unseen(
        self, messages: Iterable[ReceivedMessage], current: ReceivedMessage | None, *, is_left: bool
    ) -> list[ReceivedMessage]:
        """Keep a loop's messages no longer, and return those that the next caller may get.

        Args:
            messages: those that the loop has not seen. It may have finished, or given back, some of them.
            current: the message that it is at.
            is_left: the loop has ended, and its current message is redelivered unless it was acknowledged.
        """
        left = [current] if is_left and current is not None else []
        kept = await self._extender.let_go([*messages, *left])
        unseen = self.order.unseen((one for one in kept if one is not current), current)
        self.order.forget(left)
        return unseen

    async def leave(self, handout: Handout) -> None:
        """Acknowledge the messages that an ending loop has handled; those it has not seen go to the next caller."""
        await self._take_back(handout.thread)
        if self._state is ServiceState.RUNNING:
            await self._settle()

    def note_handled(self, message: ReceivedMessage) -> None:
        """Take note that a loop has handled a message; :meth:`settle` acknowledges it. Any thread."""
        self._handled.append(message)

    async def settle(self, *, rest: Iterable[ReceivedMessage] = (), current: ReceivedMessage | None = None) -> None:
        """Acknowledge messages that loops handled and nobody finished or extended.

        Args:
            rest: the messages that a loop has not seen when it ends, for the next caller.
            current: the message that it was at, which is redelivered unless it was acknowledged.
        """
        unseen = await self._unseen(rest, current, is_left=True)
        if self._state is ServiceState.RUNNING:
            self._ready.extendleft(reversed(unseen))
            await self._settle()

    async def _settle(self) -> None:
        handled = [self._handled.popleft() for _ in range(len(self._handled))]
        if kept := await self._extender.let_go(handled):
            await self._kernel.ack_quietly(kept)
            self._held.done(kept)
        self.order.forget(handled)

    def pace(self) -> LoopPace:
        """Return the pace of a loop that begins.

        Raises:
            ClientStateError: the consumer was not started.
        """
        if self._state is ServiceState.CREATE_JUST:
            self._running()
        return LoopPace(self.settings.receive_max_messages)

    async def receive_kept(self, most: int) -> list[ReceivedMessage]:
        """Return messages for a loop, which are kept hidden; none where the consumer is closed meanwhile.

        Transient failures are waited out, and logged once. Where no broker is known yet, the topic may be misspelt, or
        the name servers' address, and that is raised; but where servers are just coming back it is waited for, too.

        Raises:
            RouteNotFound: no name server knows any of the topics.
            Error: no name server answered, the brokers refused, or the consumer cannot be used.
        """
        instance, settings = self._running(), self.settings
        tries, logged = 0, set[type[Error]]()
        while self._state is ServiceState.RUNNING:
            try:
                messages = await self._receive(
                    instance, most, invisible_ms=settings.invisible_time_ms, wait_ms=settings.receive_wait_ms
                )
                break
            except Error as error:
                if self._has_closed.is_set():
                    return []
                if not may_pass(error) or not (tries or self._targets.known()):
                    raise
                tries += 1
                if type(error) not in logged:
                    logged.add(type(error))
                    _log.warning("group %s receives nothing until this is over: %s", self._group, error)
                await self._pause(pause_s(tries))
        else:
            return []
        if tries:
            _log.info("group %s receives again", self._group)
        if self._state is ServiceState.RUNNING:
            self.keep(messages)
            self.order.began(messages)
        return messages

    async def _pause(self, longest_s: float) -> None:
        """Wait, or until the consumer is closed."""
        try:
            await asyncio.wait_for(self._has_closed.wait(), longest_s)
        except asyncio.TimeoutError:
            return


def _steady_ms() -> int:
    """Return milliseconds by the loop's clock, which is never set."""
    return round(asyncio.get_running_loop().time() * 1000)


def invisible_ms_of(invisible_s: object, *, minimum_ms: int) -> int:
    """Return an invisible time in milliseconds.

    Raises:
        InvalidArgument: it is not a number, or outside its range.
    """
    return milliseconds(
        "invisible_s", invisible_s, minimum_ms=minimum_ms, maximum_ms=INVISIBLE_MS_MAX, of_limit=" (12 hours)"
    )


def _require_popped(call: str, message: object) -> str:
    """Return the handle of a message that was popped.

    Raises:
        InvalidArgument: it is not a message, or was not popped.
    """
    takes = "a message that receive() returned" + ("; ack_many() takes several" if call == "ack" else "")
    handle = one(call, message, ReceivedMessage, takes).pop_handle
    if handle is None:
        raise InvalidArgument(f"{message!r} was not popped: it has no handle")
    return handle


def popped_messages(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    """Return what was given to :meth:`SimpleConsumer.ack_many`.

    Raises:
        InvalidArgument: it is not several messages.
    """
    return several("ack_many", messages, ReceivedMessage, "messages that receive() returned; ack() takes one")
