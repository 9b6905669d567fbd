"""The blocking producer: sends messages to brokers, ours or Apache's.

::

    with Producer("orders-api", name_servers="127.0.0.1:9876") as producer:
        producer.send("orders", b"...", tags="paid", keys="o-17")

All producers of a process share one event loop in a background thread; all logic is in
:mod:`cometmq.client.send.send_engine`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cometmq.client.arguments import close_timeout, several
from cometmq.client.instance.awaited_replies import ReplyFuture
from cometmq.client.instance.background import ClientLoop
from cometmq.client.instance.hooks import Interceptor, interceptors_of
from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.client.send.at_exit import flush_at_exit
from cometmq.client.send.outgoing import OutgoingMessage, message_of
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.queue_selection import QueueSelector
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.sending import SendFuture, SendResult
from cometmq.client.send.sending_many import MANY_UNDER_WAY, SendWindow, many
from cometmq.client.settings import settings_of
from cometmq.errors import Error
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cometmq._engine import ReceivedMessage
    from cometmq.client.send.producer_settings import ProducerOptions

__all__ = ["Producer"]


class Producer:
    """Sends messages.

    Threads: any number may send at a time. A fork of the process cannot use it: make producers after the fork.
    Callbacks of futures run on the background loop and must not block.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Iterable[str] | None = None,
        interceptors: Iterable[Interceptor] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Connect to nobody yet.

        Args:
            group: the producer group; brokers ask its members what became of a transaction.
            name_servers: ``host:port``, several with ``;`` or as a list; None for the environment's ``NAMESRV_ADDR``.
            interceptors: see every message before and after.
            options: the settings, :class:`ProducerSettings`.

        Raises:
            InvalidArgument: there is no such option, or a name server is not an address.
        """
        self.settings = settings_of(ProducerSettings, dict(options), name_servers=name_servers, group=group)
        self._interceptors = interceptors_of("Producer", interceptors)
        self._loop = ClientLoop()
        self._engine: SendEngine | None = None

    def __repr__(self) -> str:
        """Return group and state."""
        return f"<Producer {self.settings.group} {self.state.value}>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return ServiceState.CREATE_JUST if self._engine is None else self._engine.state

    def start(self) -> Self:
        """Start it; after an error it may be started again.

        Raises:
            InvalidArgument: a setting cannot be used.
            ClientStateError: it was started before.
            GroupTaken: its client instance has a producer of this group.
            Error: the name servers are not to be found.
        """
        if self._engine is not None:
            raise not_startable(f"producer group {self.settings.group}", self._engine.state)
        self._engine = self._loop.run(self._opened())
        flush_at_exit(self._engine)
        return self

    def _opened(self) -> Coroutine[Any, Any, SendEngine]:
        """Return what opens the engine."""
        return SendEngine.open(self.settings, interceptors=self._interceptors)

    def close(self, *, timeout_ms: int | None = None) -> None:
        """Send what waits, wait until all sends and requests have ended, and leave; nothing where it does not run.

        Args:
            timeout_ms: how long that may take. A warning names the sends that are given up then; None waits for all.
        """
        close_timeout(timeout_ms)
        if self._engine is not None:
            self._loop.run(self._engine.close(timeout_ms=timeout_ms))

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _running(self) -> SendEngine:
        if self._engine is None:
            require_running(f"producer group {self.settings.group}", ServiceState.CREATE_JUST)
        assert self._engine is not None
        return self._engine

    # --- Sending ------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has it.

        Args:
            topic: the topic, or a whole message.
            body: its bytes.
            tags: its tag.
            keys: its keys, several with blanks between.
            properties: further names and values.
            delay_level: 1 for the broker's first delay (1 second by default) and so on; 0 for none.
            delay_ms: hold it back for so long, in milliseconds (a broker of 5.0 or newer), or
            deliver_at_ms: until then, in milliseconds since 1970.
            sharding_key: messages with the same one go to the same queue, in order where one thread sends them.
            queue: the queue it must go to; or
            selector: a function that chooses it, called with the queues and
            arg: this.
            timeout_ms: longest wait with all attempts; None for the setting ``send_msg_timeout_ms``.

        Returns:
            Where it is stored. Its ``status`` says whether also as safely as the broker was asked to.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge: it cannot be sent.
            SendFailed: it was not acknowledged; the error says what was tried and whether it may be stored.
            RouteNotFound: no name server knows the topic, and brokers do not make topics on their own.
            ConnectionLost, RequestTimeout: no name server could be asked for the topic; nothing was sent.
            ClientStateError: the producer does not run.
        """
        if delay_ms is not None or deliver_at_ms is not None:
            topic = message_of(topic, body, tags, keys, properties, delay_level, sharding_key, delay_ms, deliver_at_ms)
            body = tags = keys = properties = sharding_key = None
            delay_level = 0
        return (
            (self._engine or self._running())
            .send_given(
                topic, body, tags, keys, properties, delay_level, sharding_key, queue, selector, arg, timeout_ms, True
            )
            .result()
        )

    def send_async(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendFuture:
        """Send a message and return at once; the future brings what :meth:`send` returns or raises.

        A refusal of a broker ends it; only where no answer came it is tried again. Where
        ``enable_backpressure_for_async_mode`` is set, it waits for room as long as the send may take.

        The arguments are those of :meth:`send`.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`; all else is the future's.
        """
        if delay_ms is not None or deliver_at_ms is not None:
            topic = message_of(topic, body, tags, keys, properties, delay_level, sharding_key, delay_ms, deliver_at_ms)
            body = tags = keys = properties = sharding_key = None
            delay_level = 0
        return (self._engine or self._running()).send_given(
            topic, body, tags, keys, properties, delay_level, sharding_key, queue, selector, arg, timeout_ms, False
        )

    def send_oneway(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message one-way: there is no confirmation that it arrives.

        The arguments are those of :meth:`send`.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`.
        """
        message = message_of(topic, body, tags, keys, properties, delay_level, sharding_key, delay_ms, deliver_at_ms)
        self._running().send_oneway(message, queue=queue, selector=selector, arg=arg)

    def send_batch(
        self,
        messages: Iterable[OutgoingMessage],
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request, which is stored whole or not at all, and wait.

        Args:
            messages: at least one, none held back, together no longer than ``max_message_size_bytes``.
            topic: where to, where the messages do not say.
            queue: as :meth:`send`.
            timeout_ms: as :meth:`send`.

        Returns:
            Where the first is stored; the others follow it. ``unique_id`` has all ids.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, SendFailed, RouteNotFound: as :meth:`send`.
            ClientStateError: the producer does not run.
        """
        batch = several("send_batch", messages, OutgoingMessage, "messages: OutgoingMessage(body)")
        return (
            self._running().send_batch(batch, topic=topic, queue=queue, is_awaited=True, timeout_ms=timeout_ms).result()
        )

    def send_many(
        self, messages: Iterable[OutgoingMessage | bytes], *, topic: str | None = None, under_way: int = MANY_UNDER_WAY
    ) -> Sequence[SendResult]:
        """Send messages one by one without waiting for each, and wait for all.

        Args:
            messages: any number, or the bodies of messages that are nothing else; taken as they can be sent.
            topic: where to, where they do not say.
            under_way: most messages that are sent and not acknowledged.

        Returns:
            The result of :meth:`send` for each, in order.

        Raises:
            SendFailed: the first that failed, when all that were begun have ended; those behind it were sent or not.
            InvalidArgument, InvalidTopic, MessageTooLarge, RouteNotFound, ClientStateError: as :meth:`send`.
        """
        window = SendWindow(self._running(), topic=topic, under_way=under_way)
        results: list[SendResult] = []
        try:
            for message in many(messages):
                if due := window.due():
                    due[-1].exception()
                    results += [future.result() for future in due]
                    window.forget(len(due))
                window.send(message)
            results += [future.result() for future in window.begun]
        except Error:
            for future in window.begun:
                future.exception()
            raise
        return results

    # --- Request and reply --------------------------------------------------------------------------------------------

    def request(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> ReceivedMessage:
        """Send a message, and wait for the reply of a consumer (:meth:`reply_to`).

        The request is an ordinary message: each group of the topic gets it, and the first reply is returned.

        Args:
            topic, body, tags, keys, properties, sharding_key, queue, selector, arg: as :meth:`send`.
            timeout_ms: longest wait for the reply, sending included; None for the setting ``send_msg_timeout_ms``.

        Returns:
            The reply.

        Raises:
            ReplyTimeout: no reply came in time; ``is_stored`` says whether the request is stored.
            SendFailed, RouteNotFound: the request could not be sent.
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`.
        """
        message = message_of(topic, body, tags, keys, properties, 0, sharding_key)
        engine = self._running()
        engine.attempts.require_other_thread()
        return engine.request(message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms).result()

    def request_async(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> ReplyFuture:
        """Send a message and return at once; the future brings what :meth:`request` returns or raises.

        The arguments are those of :meth:`request`.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`; all else is the future's.
        """
        message = message_of(topic, body, tags, keys, properties, 0, sharding_key)
        return self._running().request(message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms)

    def reply_to(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send the reply to a request, as a listener that got it does, and wait until the requester has it.

        Args:
            request: a message that a producer sent with :meth:`request`, or Java's ``request``.
            body, tags, keys, properties: the reply's.
            timeout_ms: as :meth:`send`.

        Raises:
            InvalidArgument: the message is no request.
            SendFailed: no broker could push the reply: the requester is gone, or does not acknowledge it.
            MessageTooLarge, RouteNotFound, ClientStateError: as :meth:`send`.
        """
        engine = self._running()
        engine.attempts.require_other_thread()
        return engine.reply(request, body, tags=tags, keys=keys, properties=properties, timeout_ms=timeout_ms).result()

    def flush(self) -> None:
        """Wait until everything that was sent before has ended, well or not; of a request, until its reply came."""
        self._loop.run(self._running().drain())
