"""The pull consumer, blocking: messages come when they are asked for.

::

    with PullConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", "paid || refunded")
        for message in consumer:
            handle(message)

Queues are shared out among the members of the group (``subscribe``) or assigned by hand (``assign``). Messages are
fetched ahead; ``poll`` hands them out. Progress is committed every ``auto_commit_interval_ms`` for messages handed out
before the latest poll, or by ``commit``. ``pull`` reads one queue once and leaves its offset to the caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from cometmq.client.arguments import close_timeout, several
from cometmq.client.group.offset_stores import OwnOffsetStore
from cometmq.client.group.subscriptions import ALL, TAG
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.polling_consumer import PollingConsumer
from cometmq.client.pull.pull_ahead import Reader
from cometmq.client.pull.pull_engine import QUEUES, PullEngine
from cometmq.client.pull.pull_kernel import PullResult
from cometmq.client.settings import PullSettings, settings_of
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store.options import a_flag

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cometmq._engine import ReceivedMessage
    from cometmq.client.settings import PullOptions

__all__ = ["PullConsumer", "make_pull_engine"]

_T = TypeVar("_T")


def make_pull_engine(
    group: str,
    *,
    name_servers: str | Iterable[str] | None,
    offset_store: OwnOffsetStore | None,
    interceptors: Iterable[Interceptor],
    options: Mapping[str, object],
) -> PullEngine:
    """Return the machine behind either surface.

    Raises:
        InvalidArgument: there is no such option.
    """
    settings = settings_of(PullSettings, options, name_servers=name_servers, group=group)
    return PullEngine(
        settings, now_ms=lambda: time.time_ns() // 1_000_000, offset_store=offset_store, interceptors=interceptors
    )


class PullConsumer(PollingConsumer):
    """Reads messages of a group when it is asked.

    Threads: any, also several at once. Several threads that take messages each have a loop of their own, whose messages
    count as consumed one by one; :meth:`poll` is for one thread, for it says that all that was polled before is done.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Iterable[str] | None = None,
        offset_store: OwnOffsetStore | None = None,
        interceptors: Iterable[Interceptor] = (),
        **options: Unpack[PullOptions],
    ) -> None:
        """Connect to nobody yet.

        Args:
            group: the consumer group.
            name_servers: name servers, ``host:port``, several with ``;`` between them or as a list; None for the
                environment's ``NAMESRV_ADDR``.
            offset_store: your own store for the progress
                (:class:`~cometmq.client.group.offset_stores.OwnOffsetStore`).
            interceptors: filter messages, and see what is handed out.
            **options: :class:`~cometmq.client.settings.PullSettings`.

        Raises:
            InvalidArgument: there is no such option, or a name server is not an address.
        """
        super().__init__()
        self._engine: PullEngine = make_pull_engine(
            group,
            name_servers=name_servers,
            offset_store=offset_store,
            interceptors=interceptors,
            options=dict(options),
        )

    def __repr__(self) -> str:
        """Return group, state and how many queues it has."""
        engine = self._engine
        return f"<PullConsumer {engine.settings.group} {engine.state.value} queues={len(engine.assignment())}>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> PullSettings:
        """Its settings."""
        return self._engine.settings

    def close(self, *, commit: bool = True, timeout_ms: int | None = None) -> None:
        """Store the progress, leave the group and close. A second call does nothing.

        Args:
            commit: with ``auto_commit``, count all that was handed out as consumed, but for what loops of other threads
                are at.
            timeout_ms: longest time for the brokers; then a warning lists the abandoned work. None waits for each.
        """
        a_flag(commit, "commit")
        close_timeout(timeout_ms)
        self._give_back()
        self._run(self._engine.close(commit=commit, timeout_ms=timeout_ms))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception the messages handed out last are not committed and are redelivered."""
        self.close(commit=kind is None)

    # --- Which queues -------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str | None = ALL, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic, before or after the start; the group's members share its queues.

        Args:
            topic: the topic.
            expression: ``*`` or None for everything, or tags: ``"paid || refunded"``.
            expression_type: ``TAG`` or ``SQL92``.

        Raises:
            InvalidTopic, InvalidArgument: topic or expression cannot be used.
            ClientStateError: queues were assigned by hand.
        """
        self._run(self._engine.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        self._run(self._engine.unsubscribe(topic))

    def assign(
        self, queues: Iterable[MessageQueue], expression: str | None = ALL, *, expression_type: str = TAG
    ) -> None:
        """Read exactly these queues instead of those before; nobody else is asked.

        Args:
            queues: the queues; :meth:`queues` has those of a topic.
            expression: filter of their messages, as in :meth:`subscribe`.
            expression_type: ``TAG`` or ``SQL92``.

        Raises:
            InvalidArgument: an item is not a queue, or the expression cannot be used.
            ClientStateError: topics were subscribed to.
        """
        self._run(self._engine.assign(queues, expression, expression_type=expression_type))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer reads now."""
        return self._on_loop(self._engine.assignment)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionLost, RequestTimeout and others: no name server answered.
        """
        return self._run(self._engine.queues(topic))

    def watch_queues(self, topic: str, callback: Callable[[str, Collection[MessageQueue]], object]) -> None:
        """Have ``callback(topic, queues)`` called, on the client's loop, where the topic's queues become others.

        They are looked at each ``topic_metadata_check_interval_ms``.
        """
        self._on_loop(lambda: self._engine.watch_queues(topic, callback))

    # --- Messages -----------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """Return the messages of one pull, at most ``pull_batch_size``; an empty list where none came in time.

        Args:
            timeout_ms: longest wait; None for ``poll_timeout_ms``.

        Raises:
            ClientStateError: it does not run.
            InvalidArgument: a negative time.
        """
        batch = self._run(self._engine.take(timeout_ms, thread=threading.get_ident()))
        if batch is None:
            return []
        messages = batch.messages
        # Last: an exception before this, as by Ctrl-C, gives the messages back.
        batch.is_received = True
        return messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Give messages one by one until the consumer is closed. Brokers that are gone are waited for.

        A message counts as consumed when the loop comes back for the next one, or at a :meth:`commit` of the loop's
        thread. When the loop is left, the next loop or poll returns the messages that it has not seen.
        """
        reader = Reader()
        try:
            while self._engine.state is ServiceState.RUNNING:
                batch = self._run(self._engine.take(None, reader=reader, thread=threading.get_ident()))
                if batch is None:
                    continue
                batch.is_received = True
                index = 0
                while (message := batch.message(index)) is not None:
                    reader.note_caller()
                    index += 1
                    batch.seen = index
                    yield message
                batch.is_done = True
        finally:
            reader.is_left = True

    def _give_back(self) -> None:
        """Give back what this thread will not look at any more."""
        if self._engine.has_handed_out:
            thread = threading.get_ident()
            self._on_loop(lambda: self._engine.settle(thread=thread))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | None = ALL,
        expression_type: str = TAG,
        max_messages: int = 32,
        block: bool = False,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Pull one queue once, from an offset on; the offset of the next pull is in the result.

        Args:
            queue: any queue; it need not be assigned.
            offset: where to begin.
            expression: filter of the messages, as in :meth:`subscribe`.
            expression_type: ``TAG`` or ``SQL92``.
            max_messages: most messages; brokers have a limit of their own.
            block: wait at the broker for a message, up to ``broker_suspend_max_time_ms``.
            timeout_ms: longest wait for the answer; None for the settings'.

        Raises:
            InvalidArgument: an argument is outside its range.
            BrokerError: the broker refused.
            BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: no answer came.
        """
        return self._run(
            self._engine.pull(
                queue,
                offset,
                expression=expression,
                expression_type=expression_type,
                max_messages=max_messages,
                block=block,
                timeout_ms=timeout_ms,
            )
        )

    # --- Progress -----------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit and wait until the brokers have it.

        Args:
            offsets: next offset to consume by queue; None for all that was handed out, but for what loops of other
                threads are at.

        Raises:
            NotFound: a queue is not assigned.
            OffsetOutOfRange: an offset is negative.
            BrokerError, BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached: it is not known to be stored.
        """
        self._give_back()
        self._run(self._engine.commit(offsets, wait=True))

    def commit_async(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit without waiting for the brokers; as :meth:`commit`."""
        self._give_back()
        self._run(self._engine.commit(offsets, wait=False))

    def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Give a message back to its broker, which puts it on ``%RETRY%group`` after a delay, and on ``%DLQ%group``
        when it was given back ``max_reconsume_times`` times. Subscribe to ``%RETRY%group`` to get it again.

        Args:
            message: the message that could not be handled.
            delay_level: the delay's level; 0 for one that grows with each try, -1 for a dead letter now.

        Raises:
            InvalidArgument: the group's members each get every message.
            Error: neither its broker nor another took it.
        """
        self._run(self._engine.send_back(message, delay_level=delay_level))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's progress in a queue, None where it has none.

        Raises:
            Error: its broker did not return it.
        """
        return self._run(self._engine.committed(queue))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset behind what was handed out of an assigned queue, None where nothing was yet."""
        self._give_back()
        return self._on_loop(lambda: self._engine.position(queue))

    # --- Where to go on -----------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of an assigned queue; messages fetched ahead are dropped, also by a loop that runs.

        Raises:
            NotFound: the queue is not assigned.
            OffsetOutOfRange: the offset lies outside the queue.
            InvalidArgument: it is not a whole number.
        """
        self._give_back()
        self._run(self._engine.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the queue's first message."""
        self._give_back()
        self._run(self._engine.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the queue's last message."""
        self._give_back()
        self._run(self._engine.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the first message that was stored at a time, milliseconds since 1970, or later."""
        self._give_back()
        self._run(self._engine.seek_to_time(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues; messages already received are still handed out."""
        chosen = several("pause", queues, MessageQueue, QUEUES)
        self._on_loop(lambda: self._engine.pause(chosen))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues again."""
        chosen = several("resume", queues, MessageQueue, QUEUES)
        self._on_loop(lambda: self._engine.resume(chosen))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message."""
        return self._run(self._engine.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset behind the queue's last message."""
        return self._run(self._engine.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at a time, milliseconds since 1970, or later."""
        return self._run(self._engine.search_offset(queue, timestamp_ms))
