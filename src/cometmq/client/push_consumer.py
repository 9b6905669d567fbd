"""The blocking push consumer: a listener is called with messages as they come, from brokers, ours or Apache's.

::

    consumer = PushConsumer("billing", name_servers="127.0.0.1:9876")
    consumer.subscribe("orders", "paid || refunded")

    @consumer.listener
    def handle(message):
        book(message.body_bytes)

    with consumer:
        input("Enter ends\\n")

All consumers of a process share one event loop in a background thread; all logic is in
:mod:`cometmq.client.push.push_engine`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from cometmq._stop_flag import StopFlag
from cometmq.client.arguments import whole_number
from cometmq.client.group.offset_stores import OwnOffsetStore
from cometmq.client.group.subscriptions import TAG
from cometmq.client.instance.background import ClientLoop
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.push.push_engine import QueueListener
from cometmq.client.push.push_surface import PushSurface
from cometmq.store_config.names import validate_topic

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cometmq.client.push.listeners import BatchListener, Listener
    from cometmq.client.settings import PushOptions
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["PushConsumer"]

_LOOK_S = 1.0
_CLOSE_MS = 10_000


class PushConsumer(PushSurface):
    """Consumes topics as a member of a group.

    The listener is called in up to ``consume_thread_max`` threads, with one message (``listener``) or with a list
    (``batch_listener``, up to ``consume_message_batch_max_size``). None or ``Outcome.SUCCESS`` says that they are done,
    an exception that they are not: they are redelivered, after a delay that grows, and after 16 tries go to the dead
    letters. An orderly listener gets each queue's messages in order, and waits where one fails. An ``async def``
    listener runs on the background loop and must not block.

    Messages come at least once: after a crash, or when queues change hands, some come twice.

    Threads: any. A fork of the process cannot use it: make consumers after the fork.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Iterable[str] | None = None,
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
        executor: Executor | None = None,
        offset_store: OwnOffsetStore | None = None,
        interceptors: Iterable[Interceptor] = (),
        queue_listener: QueueListener | None = None,
        **options: Unpack[PushOptions],
    ) -> None:
        """Connect to nobody yet.

        Args:
            group: the consumer group; its members share the messages.
            name_servers: ``host:port``, several with ``;`` or as a list; None for the environment's ``NAMESRV_ADDR``.
            listener: called with each message; or
            batch_listener: called with lists of them. Decorators of the same names do as well.
            orderly: one call at a time for each queue, in its order.
            auto_commit: orderly: success commits; else ``Outcome.COMMIT`` does.
            executor: where the listener runs instead of in threads of the consumer's: a process pool for one that
                computes. It is not shut down here.
            offset_store: where progress is kept instead of at the broker.
            interceptors: filter messages, and see them before and after the listener.
            queue_listener: called with topic, all its queues and this member's when they change; on the client's loop.
            options: the settings, :class:`~cometmq.client.settings.PushSettings`.

        Raises:
            InvalidArgument: there is no such option, a name server is not an address, or there are two listeners.
        """
        super().__init__(
            dict(options),
            group=group,
            name_servers=name_servers,
            listener=listener,
            batch_listener=batch_listener,
            orderly=orderly,
            auto_commit=auto_commit,
            executor=executor,
            offset_store=offset_store,
            interceptors=interceptors,
            queue_listener=queue_listener,
        )
        self._ended = StopFlag()
        self._loop = ClientLoop()

    def __repr__(self) -> str:
        """Return group, state and topics."""
        return f"<PushConsumer {self.settings.group} {self.state.value} topics={sorted(self._expressions)}>"

    def subscribe(self, topic: str, expression: str | None = "*", *, expression_type: str = TAG) -> Self:
        """Subscribe to a topic; before the start or while it runs.

        Args:
            topic: the topic.
            expression: ``*`` for everything, or tags with ``||`` between them, or an expression of another type.
            expression_type: ``TAG`` or ``SQL92``.

        Raises:
            InvalidArgument: the expression names nothing.
        """
        self._note_subscription(topic, expression, expression_type)
        if self.state is ServiceState.RUNNING:
            self._loop.run(self._running().subscribe(topic, expression, expression_type=expression_type))
        return self

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up; messages that are here already are still consumed."""
        validate_topic(topic)
        self._expressions.pop(topic, None)
        if self.state is ServiceState.RUNNING:
            engine = self._running()
            self._loop.call(lambda: engine.unsubscribe(topic))

    def start(self) -> Self:
        """Start to consume.

        Raises:
            InvalidArgument: a setting, the listener or a subscription cannot be used.
            ClientStateError: it was started before.
            GroupTaken: its client instance has a consumer of this group; it may be started when that is closed.
            Error: the failure that kept it from starting.
        """
        engine = self._open()
        self._loop.run(engine.start())
        return self

    def progress(self, topic: str) -> dict[MessageQueue, int]:
        """Return the next offset to consume in each queue of a topic that is this member's, as it will be committed.

        Queues of which it knows nothing yet are left out.

        Raises:
            ClientStateError: it does not run.
        """
        return self._loop.run(self._running().progress(topic))

    def suspend(self) -> None:
        """Stop pulling until :meth:`resume`; messages already received are consumed.

        Raises:
            ClientStateError: it does not run.
        """
        self._loop.call(self._running().suspend)

    def resume(self) -> None:
        """Pull again.

        Raises:
            ClientStateError: it does not run.
        """
        self._loop.run(self._running().resume())

    def run(self) -> None:
        """Start, consume until Ctrl-C, SIGTERM or another thread's :meth:`close`, and close.

        SIGTERM is heard where this runs in the main thread and the program has no handler of its own for it.
        """
        with self, _signals_end(self._ended):
            try:
                # Not for ever: a signal that another thread got is only seen when this one wakes.
                while not self._ended.wait(_LOOK_S):
                    pass
            except KeyboardInterrupt:
                return

    def close(self, *, timeout_ms: int = _CLOSE_MS) -> None:
        """Stop pulling, let listeners finish what they have begun, commit, and leave the group.

        It is done to its end, also where Ctrl-C ends the wait for it; later calls wait for that. A listener that closes
        its own consumer does not wait: the close ends behind that call of it.

        Args:
            timeout_ms: how long listeners may take. Unfinished messages are redelivered to the queue's next owner.
        """
        whole_number("timeout_ms", timeout_ms)
        self._ended.set()
        engine = self._engine
        if engine is None:
            return
        if engine.is_in_listener:
            self._loop.call(lambda: engine.begin_close(timeout_ms=timeout_ms))
        else:
            self._loop.run(engine.close(timeout_ms=timeout_ms))

    def __enter__(self) -> Self:
        """Start it, where that has not been done."""
        return self if self.state is ServiceState.RUNNING else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


@contextmanager
def _signals_end(flag: StopFlag) -> Iterator[None]:
    """Have Ctrl-C, and SIGTERM, by which services are stopped, interrupt the main thread and set a flag.

    The exception alone is not enough: the interpreter drops it where the signal interrupts a ``__del__`` or the
    callback of a weak reference. A signal with a handler of the program keeps that handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        flag.set()
        raise KeyboardInterrupt

    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    free = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    try:
        for number in free:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in free:
            signal.signal(number, usual[number])
