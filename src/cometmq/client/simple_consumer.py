"""The simple consumer, blocking: messages are received, processed by any member, and acknowledged one by one.

::

    with SimpleConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", "paid || refunded")
        for message in consumer:
            book(message.body_bytes)

Any number of members take messages from any queue (upstream's POP); nobody waits for a member that hangs. A received
message is hidden from the others for its invisible time. If it is not acknowledged by then, any member may get it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from cometmq.client.arguments import close_timeout
from cometmq.client.group.subscriptions import ALL, TAG
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.polling_consumer import PollingConsumer
from cometmq.client.pop.simple_engine import SimpleEngine, popped_messages
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.settings import settings_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cometmq._engine import ReceivedMessage
    from cometmq.client.pop.simple_settings import SimpleOptions

__all__ = ["SETTLE_S", "SimpleConsumer", "make_simple_engine"]

SETTLE_S = 0.5
"""A loop acknowledges what it has handled at the latest so long after, with the next message."""

_T = TypeVar("_T")


def make_simple_engine(
    group: str, *, name_servers: str | Iterable[str] | None, options: Mapping[str, object]
) -> SimpleEngine:
    """Return the machine behind either surface.

    Raises:
        InvalidArgument: there is no such option.
    """
    return SimpleEngine(settings_of(SimpleSettings, options, name_servers=name_servers, group=group))


class SimpleConsumer(PollingConsumer):
    """Receives messages of a group when it is asked. Threads: any, also several at once.

    The broker has to be of RocketMQ 5 or CometMQ's own.
    """

    def __init__(
        self, group: str, *, name_servers: str | Iterable[str] | None = None, **options: Unpack[SimpleOptions]
    ) -> None:
        """Connect to nobody yet.

        Args:
            group: the consumer group.
            name_servers: name servers, ``host:port``, several with ``;`` between them or as a list; None for the
                environment's ``NAMESRV_ADDR``.
            **options: :class:`~cometmq.client.pop.simple_settings.SimpleSettings`.

        Raises:
            InvalidArgument: there is no such option, or a name server is not an address.
        """
        super().__init__()
        self._engine: SimpleEngine = make_simple_engine(group, name_servers=name_servers, options=dict(options))

    def __repr__(self) -> str:
        """Return group, state and topics."""
        engine = self._engine
        return f"<SimpleConsumer {engine.settings.group} {engine.state.value} topics={sorted(engine.subscriptions)}>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> SimpleSettings:
        """Its settings."""
        return self._engine.settings

    def close(self, *, timeout_ms: int | None = None) -> None:
        """Leave the group and close. Unacknowledged messages are redelivered when their invisible time is over.

        Nothing is given back before that: :meth:`extend` with 0 does so. Any thread may close, and a loop ends then.

        A second call does nothing.

        Args:
            timeout_ms: longest time for the brokers; then a warning lists the abandoned work. None waits for each.
        """
        close_timeout(timeout_ms)
        self._run(self._engine.close(timeout_ms=timeout_ms))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def subscribe(self, topic: str, expression: str | None = ALL, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic, before or after the start.

        Args:
            topic: the topic.
            expression: ``*`` or None for everything, or tags: ``"paid || refunded"``.
            expression_type: ``TAG`` or ``SQL92``.

        Raises:
            InvalidTopic, InvalidArgument: topic or expression cannot be used.
        """
        self._run(self._engine.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic; its received messages can still be acknowledged."""
        self._run(self._engine.unsubscribe(topic))

    # --- Messages -----------------------------------------------------------------------------------------------------

    def receive(
        self, max_messages: int | None = None, *, invisible_s: float | None = None, wait_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return messages that nobody else has; an empty list where none came in time.

        Where a topic that it subscribes to does not exist, the messages of the others are returned, and a warning is
        logged once.

        Args:
            max_messages: most messages, 1 to 1,024; None for the setting ``receive_max_messages``. Brokers give 32 for
                a request, so that more may take several.
            invisible_s: how long others do not get them, seconds; None for the setting ``invisible_time_ms``.
            wait_s: longest wait for the first, seconds; None for the setting ``receive_wait_ms``, 0 for what is there.

        Raises:
            ClientStateError: it does not run, or subscribes to nothing.
            InvalidArgument: an argument is outside its range.
            RouteNotFound: nothing came, and no name server knows a topic that it subscribes to.
            BrokerError: the brokers refused; the text has what to do.
            BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached, MalformedCommand: none of them answered well,
                or no name server did, as the text says then.
        """
        work = self._engine.receive(max_messages, invisible_s=invisible_s, wait_s=wait_s)
        handout = self._run(self._engine.hand_out(work, thread=threading.get_ident()))
        messages = list(handout.messages)
        # Last: an exception before this, as by Ctrl-C, gives the messages back.
        handout.is_received = True
        return messages

    def ack(self, message: ReceivedMessage) -> None:
        """Say that a message is done: nobody gets it again. To say it twice does no harm.

        After its invisible time it may be too late: it was redelivered then, and is done when that delivery is.

        Raises:
            ClientStateError: the consumer does not run.
            InvalidArgument: the message was not received by POP.
            StaleHandle: its broker has no such message: it has expired, or its topic was re-created.
            BrokerError, BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: it is not known to be done.
        """
        self._run(self._engine.ack([message]))

    def ack_many(self, messages: Iterable[ReceivedMessage]) -> None:
        """Say that messages are done, with one request for each broker where it knows that.

        Raises as :meth:`ack`, the first failure; the messages of other brokers are done all the same, and the call can
        be repeated.
        """
        chosen = popped_messages(messages)
        if chosen:
            self._run(self._engine.ack(chosen))

    def extend(self, message: ReceivedMessage, *, invisible_s: float) -> str:
        """Hide a message for so long from now on, or with 0 give it back; return its new handle.

        Others get it 2 to 5 s after its time is over, also after 0: brokers wait so long for acknowledgements that are
        on their way. Brokers do not look up the message's state: one that is done comes back by this call, and one that
        was redelivered is delivered once more. So do not extend acknowledged messages.

        The message has the new handle from then on; copies of it, such as pickled ones, have the old one, by which it
        cannot be acknowledged any more.

        Args:
            message: the message.
            invisible_s: how long, seconds.

        Raises:
            InvalidArgument: the time is outside 0 to 12 hours, which is the limit of upstream's proxy; brokers take
                three days.
            ClientStateError, StaleHandle, BrokerError and others: as :meth:`ack`; it has its old time then.
        """
        return self._run(self._engine.extend(message, invisible_s=invisible_s))

    @contextmanager
    def handling(self, message: ReceivedMessage) -> Iterator[ReceivedMessage]:
        """Keep a message hidden for as long as the block works on it, and acknowledge it at the block's end.

        Where the block raises it is not acknowledged, and is redelivered when its invisible time is over. After
        ``extend_for_ms`` it is hidden no longer: the block counts as hanging. The end raises what :meth:`ack` does.
        """
        self._on_loop(lambda: self._engine.keep([message]))
        try:
            yield message
        except BaseException:
            self._run(self._engine.let_go([message]))
            raise
        self.ack(message)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Give messages one by one until the consumer is closed.

        Transient failures are waited out, and logged once as a warning: servers that are gone, silent or busy.

        A message is hidden from others while the loop works on it, and acknowledged when the loop comes back for the
        next one, unless the loop acknowledged or extended it. When the loop is left, its current message is redelivered
        unless it was acknowledged; messages that it has not seen go to the next loop or receive.

        Raises:
            ClientStateError: the consumer was not started, or subscribes to nothing.
            RouteNotFound: no name server knows any of its topics when it begins; later that is waited for, too.
            ConnectionLost, RequestTimeout: no name server answers when it begins: the address may be wrong.
            BrokerError: the brokers refused for good; the text has what to do.
        """
        pace = self._engine.pace()
        while self._engine.state is ServiceState.RUNNING:
            work = self._engine.receive_kept(pace.count)
            handout = self._run(self._engine.hand_out(work, thread=threading.get_ident(), is_loop=True))
            waiting = handout.messages
            taken, begun_s = len(waiting), time.monotonic()
            settled_s = begun_s
            handout.is_received = True
            try:
                while waiting:
                    handout.current = waiting.popleft()
                    yield handout.current
                    if waiting and self._engine.order.is_postponed(handout.current):
                        self._on_loop(partial(self._engine.order.give_back_behind, handout.current, waiting))
                    self._engine.note_handled(handout.current)
                    handout.current = None
                    if not waiting:
                        pace.worked_off(taken, taken_s=time.monotonic() - begun_s)
                    if time.monotonic() - settled_s > SETTLE_S:
                        self._run(self._engine.settle())
                        settled_s = time.monotonic()
            finally:
                handout.is_left = True
                self._run(self._engine.leave(handout))
