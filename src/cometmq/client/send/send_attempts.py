"""From a request to what becomes of it: the queue of each attempt, the attempts, their answers, and the end.

The first attempt is made by the thread that sends, so that a blocking send costs one wake-up: its own. Everything after
it happens on the loop: answers, later attempts, queues that are not known yet.

Invariants: a message keeps its unique id over all attempts; a future is completed exactly once; a message for an
explicit queue never goes to another one; after :meth:`SendAttempts.give_up` no attempt begins.

Threads: sends begin in any thread and touch what is only ever replaced whole: the rings of queues, the fault table.
All else is the loop's.

Source: consumption specification 2.5 to 2.8.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cometmq._engine import PendingSend, SendAnswer
from cometmq.client.arguments import plain_hook, whole_number
from cometmq.client.instance.hooks import Interceptor, SendContext, run_hooks
from cometmq.client.instance.namespaces import with_namespace
from cometmq.client.send.faults import FaultTable
from cometmq.client.send.outgoing import STATUS_OF
from cometmq.client.send.pressure import BackPressure, no_room
from cometmq.client.send.queue_selection import QueueRing, QueueSelector, check_choice, queue_by_hash
from cometmq.client.send.send_routes import SendRoutes
from cometmq.client.send.sending import Next, SendResult, judge, policies_of, send_failed
from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ClientStateError,
    Error,
    ForkedClient,
    InvalidArgument,
    LimitReached,
    RequestTimeout,
)
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from cometmq._engine import PendingBatch, SendFuture, SendRequest
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.send.outgoing import OutgoingMessage
    from cometmq.client.send.producer_settings import ProducerSettings
    from cometmq.client.send.request_making import RequestMaker

__all__ = ["SendAttempts"]


class SendAttempts:
    """The sends of one producer that are under way.

    Attributes:
        faults: the brokers that failed or were slow lately.
        is_forked: True in a fork of the process that they belong to.
        is_observed: whether somebody sees the messages.
        is_unwatched: whether nothing but its future is to know of a send that was stored.
        policies: how often a send is tried, and after what.
        routes: where messages may go.
        under_way: sends in flight.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        maker: RequestMaker,
        *,
        group: str,
        interceptors: Sequence[Interceptor],
    ) -> None:
        """Nothing is under way; on the loop.

        Args:
            instance: knows and reaches the brokers.
            settings: the producer's.
            maker: makes the requests of batches.
            group: the producer's group as it stands on the wire.
            interceptors: see every message before and after.
        """
        self.faults = FaultTable()
        self.is_forked = False
        self.policies = policies_of(settings)
        self.routes = SendRoutes(instance, settings, attempt=self.first_attempt, fail=self._fail)
        self.under_way: set[PendingSend] = set()
        self._instance = instance
        self._settings = settings
        self._maker = maker
        self._group = group
        self._before = tuple(one.before_send for one in interceptors if one.before_send is not None)
        self._after = tuple(one.after_send for one in interceptors if one.after_send is not None)
        self._network = instance.network
        self._clock = instance.loop.time
        self._loop_thread = threading.get_ident()
        self._given_up: str | None = None
        self._pressure = (
            BackPressure(settings.back_pressure_for_async_send_num, settings.back_pressure_for_async_send_size_bytes)
            if settings.enable_backpressure_for_async_mode
            else None
        )
        self._see_who_looks()

    def __repr__(self) -> str:
        """Return how many there are, and the room left."""
        room = "" if self._pressure is None else f", {self._pressure!r}"
        return f"SendAttempts({len(self.under_way)} under way{room})"

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Let one more see what becomes of the messages that are sent from now on."""
        if interceptor.before_send is not None:
            self._before = (*self._before, interceptor.before_send)
        if interceptor.after_send is not None:
            self._after = (*self._after, interceptor.after_send)
        self._see_who_looks()

    def _see_who_looks(self) -> None:
        self.is_observed = bool(self._before or self._after)
        self.is_unwatched = not (self.is_observed or self._pressure is not None or self._settings.send_latency_enable)

    def require_own_process(self) -> None:
        """Return where this process made the producer.

        Raises:
            ForkedClient: its parent did.
        """
        if self.is_forked:
            raise ForkedClient(
                f"producer group {self._settings.group} belongs to the process of which this one is a fork: "
                "make and start producers after the fork"
            )

    def require_other_thread(self) -> None:
        """Return where the caller is not the loop, and so may wait for a send.

        Raises:
            ClientStateError: it would wait for itself.
            ForkedClient: it would wait for ever; the answer comes to the process of which this one is a fork.
        """
        self.require_own_process()
        if threading.get_ident() == self._loop_thread:
            raise ClientStateError(
                "a blocking call was made on the producer's own event loop, as in a callback, and would wait for "
                "itself: make it in a thread, or await the future"
            )

    # --- A send begins, any thread ------------------------------------------------------------------------------------

    def new(
        self, request: SendRequest, unique_id: str, *, is_awaited: bool, timeout_ms: int | None = None
    ) -> PendingSend:
        """Return a send that may go to any queue; :meth:`begin` sends it.

        Args:
            request: the message.
            unique_id: its id; of a batch all of them, with commas.
            is_awaited: somebody waits: it is tried again after refusals too.
            timeout_ms: for all attempts; None for the setting.

        Raises:
            InvalidArgument: the time cannot be waited for.
        """
        if timeout_ms is None:
            timeout_ms = self._settings.send_msg_timeout_ms
        else:
            whole_number("timeout_ms", timeout_ms, minimum=1)
        policy = self.policies.blocking if is_awaited else self.policies.asynchronous
        return PendingSend(self, request, unique_id, policy, began_s=self._clock(), timeout_ms=timeout_ms)

    def place(
        self,
        send: PendingSend,
        message: OutgoingMessage | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """Keep what chooses the queue where the message may not go to any.

        Raises:
            InvalidArgument: the queue is of another topic.
        """
        if queue is not None:
            self.check_topic_of(queue, send.topic)
            send.queue = queue
        elif selector is not None:
            plain_hook("selector", selector)
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
        if send.policy is self.policies.blocking:
            send.policy = self.policies.once

    def check_topic_of(self, queue: object, topic: str) -> None:
        """Return where a queue is of this topic, a name on the wire.

        Raises:
            InvalidArgument: it is of another one, or no queue.
        """
        if not isinstance(queue, MessageQueue):
            raise InvalidArgument(f"queue is {queue!r}; give a MessageQueue")
        if with_namespace(self._settings.namespace, queue.topic) != topic:
            raise InvalidArgument(f"the queue is of topic {queue.topic}, and the message goes to {topic}")

    def observe(self, send: PendingSend, messages: Sequence[OutgoingMessage], unique_ids: Sequence[str]) -> None:
        """Let the interceptors see a send that has not begun yet."""
        send.context = SendContext(
            group=self._group,
            topic=send.topic,
            messages=messages,
            unique_ids=unique_ids,
            queue=None,
            address=None,
            began_ms=self._instance.now_ms(),
        )

    def begin(self, send: PendingSend, *, is_awaited: bool) -> SendFuture:
        """Send it; the future brings what becomes of it. Waits for room where back-pressure is on.

        Args:
            send: from :meth:`new`.
            is_awaited: back-pressure is not for it.
        """
        if self._pressure is not None and not is_awaited:
            assert send.request is not None
            # The loop must not wait: without room a send made there fails at once, and its sender may slow down.
            timeout_s = 0.0 if threading.get_ident() == self._loop_thread else send.deadline_s - send.began_s
            try:
                send.pressure_bytes = self._pressure.enter(len(send.request.body), timeout_s=timeout_s)
            except LimitReached as error:
                send.set_error(error)
                return send
        elif self.is_unwatched:
            send.take_fast_path(self.under_way)
        try:
            self.under_way.add(send)
            self.first_attempt(send)
        except BaseException:
            self._leave(send)  # Ctrl-C, in a selector perhaps: nobody gets the future, so nobody is to wait for its end
            raise
        return send

    def ship(self, pending: PendingBatch) -> None:
        """Send a batch that is closed for additions. A failure to send it is its messages' error."""
        try:
            self._ship(pending)
        except Exception as error:  # noqa: BLE001 - others wait for its messages than who made it go
            self._fail(pending.future, error)

    def _ship(self, pending: PendingBatch) -> None:
        request = self._maker.of_records(pending.topic, pending.take_records(), wait_stored=pending.wait_stored)
        send = pending.future
        ids = None if pending.messages is None else pending.unique_ids
        send.begin(
            request,
            None if ids is None else ",".join(ids),
            self.policies.blocking if pending.is_awaited else self.policies.asynchronous,
            began_s=self._clock(),
            timeout_ms=self._settings.send_msg_timeout_ms,
        )
        self.place(send, None, pending.queue)
        if ids is not None and pending.messages is not None:
            self.observe(send, pending.messages, ids)
        if self._pressure is not None and not pending.is_awaited and threading.get_ident() == self._loop_thread:
            self._begin_when_there_is_room(send, self._pressure)
        else:
            self.begin(send, is_awaited=pending.is_awaited)

    def _begin_when_there_is_room(self, send: PendingSend, pressure: BackPressure) -> None:
        """Begin without holding up the loop: the messages of a batch were taken, and wait as long as they may."""
        loop = self._instance.loop
        waits_s = send.deadline_s - send.began_s

        def give_up() -> None:
            if pressure.step_out(place):
                self._fail(send, no_room(waits_s))

        def enter() -> None:
            timer.cancel()
            send.pressure_bytes = place.needed
            self.first_attempt(send)

        self.under_way.add(send)
        assert send.request is not None
        timer = loop.call_at(send.deadline_s, give_up)
        place = pressure.stand_in_line(len(send.request.body), lambda: loop.call_soon_threadsafe(enter))

    def was_interrupted(self, pending: PendingBatch) -> None:
        """Have a batch sent, or failed, where Ctrl-C came while it was shipped. Any thread."""
        self._instance.loop.call_soon_threadsafe(self._see_to, pending)

    def _see_to(self, pending: PendingBatch) -> None:
        send = pending.future
        if pending.size_bytes:
            self.ship(pending)
        elif not send.done():
            # Nobody knows how far it came. When its time is over nothing more can come to it.
            self.under_way.add(send)
            self._instance.loop.call_at(send.deadline_s, self._interrupted, send)

    def _interrupted(self, send: PendingSend) -> None:
        if not send.done():
            send.is_uncertain = send.attempts > 0
            self._fail(send, RequestTimeout("sending was interrupted, and no answer came"))

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def first_attempt(self, send: PendingSend, ring: QueueRing | None = None) -> None:
        """Make the first attempt, now or when the topic's queues are known; ``ring`` has them. Any thread."""
        if self._gives_up(send):
            return
        try:
            if send.queue is None:
                ring = ring or self.routes.rings.get(send.topic) or self.routes.stand_in_line(send)
                if ring is None:
                    return
                send.queue = self._select(ring, None) if send.chooser is None else send.chooser(ring.queues)
        except Exception as error:  # noqa: BLE001 - a selector is the user's: its error is the send's result
            self._fail(send, error)
            return
        if send.context is not None:
            send.context.queue = send.queue
            send.context.address = self._address(send.queue)
            run_hooks(self._before, send.context)
        self._attempt(send)

    def _select(self, ring: QueueRing, not_broker: str | None) -> MessageQueue:
        if self._settings.send_latency_enable:
            return ring.select_healthy(self.faults, now_ms=int(self._clock() * 1000), not_broker=not_broker)
        return ring.select(not_broker=not_broker)

    def _address(self, queue: MessageQueue) -> str | None:
        address = self._instance.master_address(queue.broker_name)
        return None if address is None else self._instance.api_address(address)

    def _attempt(self, send: PendingSend) -> None:
        """Send it to its queue; the answer comes to :meth:`answered`, or the message is one that gets none."""
        if self._gives_up(send):
            return
        queue, message = send.queue, send.request
        if message is None:
            return  # it was given up meanwhile
        assert queue is not None
        address = self._address(queue)
        if address is None:
            self._instance.loop.call_soon_threadsafe(self._no_broker, send)
            return
        left_ms = round((send.deadline_s - self._clock()) * 1000)
        if left_ms < 1:
            late = RequestTimeout("no time was left for an attempt: allow more (send_msg_timeout_ms)")
            self._instance.loop.call_soon_threadsafe(self._fail_late, send, late)
            return
        timeout_ms = send.policy.timeout_ms(left_ms, attempts=send.attempts)
        send.attempts += 1
        # Behind the count: if the loop gives up in between, it takes the send for one that may be stored.
        if self._gives_up(send):
            send.attempts -= 1
            return
        send.brokers.append(queue.broker_name)
        request = message.to_queue(queue.broker_name, queue.queue_id)
        if send.policy is self.policies.forgotten:
            self._network.send(address, request, None, timeout_ms=timeout_ms)
            self._end(send)
        else:
            self._network.send(address, request, send, timeout_ms=timeout_ms)

    # --- Answers and further attempts, on the loop --------------------------------------------------------------------

    def answered(self, send: PendingSend, answer: SendAnswer | Error) -> None:
        """Take what came to an attempt."""
        queue = send.queue
        assert queue is not None
        now_s = self._clock()
        outcome = judge(
            send.policy,
            answer,
            attempts=send.attempts,
            left_ms=(send.deadline_s - now_s) * 1000,
            probes=self._settings.start_detector_enable,
        )
        if self._settings.send_latency_enable:
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

    def _error_of(self, send: PendingSend, answer: SendAnswer | Error) -> Error:
        if not isinstance(answer, SendAnswer):
            return answer
        assert send.queue is not None
        return BrokerError(answer.remark, code=answer.code, address=self._address(send.queue))

    def _again(self, send: PendingSend) -> None:
        if not send.is_fixed and (ring := self.routes.rings.get(send.topic)) is not None:
            send.queue = self._select(ring, send.brokers[-1] if send.brokers else None)
        self._attempt(send)

    def _no_broker(self, send: PendingSend) -> None:
        """Ask the name servers again, once; then it is an attempt that failed."""
        if send.done():
            return  # it was given up
        assert send.queue is not None
        if not send.asked_route:
            send.asked_route = True
            self._instance.spawn(self._refresh_and_attempt(send, send.topic))
            return
        send.attempts += 1
        send.brokers.append(send.queue.broker_name)
        name = send.queue.broker_name
        self.answered(send, BrokerNotFound(f"no name server knows a master of broker {name}", broker_name=name))

    async def _refresh_and_attempt(self, send: PendingSend, topic: str) -> None:
        try:
            await self._instance.update_route(topic)
        except BaseException as error:
            self._fail(send, error)
            raise
        self._attempt(send)

    # --- Ends ---------------------------------------------------------------------------------------------------------

    def give_up(self, reason: str) -> None:
        """End all sends under way, and begin no attempt from now on; on the loop.

        A request that is written may still be stored. One that waits for its connection is dropped there, since its
        future is done.

        Args:
            reason: why, as in "producer group g was closed".
        """
        self._given_up = reason
        for send in list(self.under_way):
            self._give_up_one(send)

    def _gives_up(self, send: PendingSend) -> bool:
        """Return whether sends were given up, and have the loop end this one then. Any thread."""
        if self._given_up is None:
            return False
        self._instance.loop.call_soon_threadsafe(self._give_up_one, send)
        return True

    def _give_up_one(self, send: PendingSend) -> None:
        if send.attempts and not send.brokers:  # the fast path keeps none
            assert send.queue is not None
            send.brokers = [send.queue.broker_name]
        send.is_uncertain |= send.attempts > 0
        before = "the broker answered" if send.attempts else "the message was sent"
        self._fail_late(send, ClientStateError(f"{self._given_up}, before {before}"))

    def _fail_late(self, send: PendingSend, error: Error) -> None:
        if send.stored is not None:
            self._end(send, result=send.stored)
        else:
            self._fail(send, error)

    def _fail(self, send: PendingSend, error: BaseException) -> None:
        if isinstance(error, Error) and send.attempts and not send.done():
            elapsed_ms = (self._clock() - send.began_s) * 1000
            error = send_failed(
                send.topic,
                error,
                brokers=send.brokers,
                attempts=send.attempts,
                elapsed_ms=elapsed_ms,
                is_uncertain=send.is_uncertain,
            )
        self._end(send, error=error)

    def _end(self, send: PendingSend, *, result: SendResult | None = None, error: BaseException | None = None) -> None:
        self._leave(send)
        if send.done():
            return  # it was given up
        send.request = None
        context = send.context
        if context is not None:
            context.result, context.error = result, error
            context.elapsed_ms = (self._clock() - send.began_s) * 1000
            run_hooks(self._after, context)
        if error is not None:
            send.set_error(error)
        else:
            send.set_result(result)

    def _leave(self, send: PendingSend) -> None:
        self.under_way.discard(send)
        if send.pressure_bytes and self._pressure is not None:
            self._pressure.leave(send.pressure_bytes)
            send.pressure_bytes = 0  # an abandoned send may be left twice


def _queue_of_id(queues: Sequence[MessageQueue], queue_id: int) -> MessageQueue:
    found = [queue for queue in queues if queue.queue_id == queue_id]
    if len(found) != 1:
        why = (
            "is at several brokers: give queue=MessageQueue(…)" if found else "does not take messages, or is not there"
        )
        raise InvalidArgument(f"queue {queue_id} of topic {queues[0].topic} {why}")
    return found[0]
