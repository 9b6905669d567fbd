"""Administration for asyncio: the calls of :mod:`cometmq.admin`, awaited.

::

    async with cometmq.admin.aio.connect(namesrv="127.0.0.1:9876") as admin:
        await admin.topics.create("orders", queues=4)
        async with admin.messages.sender("orders") as sender:
            await sender.put([OutgoingMessage(b"hello", tags="paid")])
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, TypeVar

from cometmq._async_only import AsyncOnly
from cometmq.admin.addresses import servers_of
from cometmq.admin.argument_checks import argument_check
from cometmq.admin.channels import Channels
from cometmq.admin.cluster import ClusterOperations
from cometmq.admin.groups import GroupOperations
from cometmq.admin.messages import MessageOperations
from cometmq.admin.offsets import OffsetOperations
from cometmq.admin.operation import Operation
from cometmq.admin.results import SendReport
from cometmq.admin.sending import OutboundBatch, SendLimits, SendState, targets_of
from cometmq.admin.topics import TopicOperations
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.errors import NotEntered, WrongType
from cometmq.remoting.network import RpcHook
from cometmq.store.options import a_text

__all__ = [
    "AsyncAdmin",
    "AsyncCluster",
    "AsyncGroups",
    "AsyncMessages",
    "AsyncOffsets",
    "AsyncSender",
    "AsyncTopics",
    "connect",
]

PUT_MESSAGES = 4_096
"""How many messages a sender takes before it looks whether there is room for more."""

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


def calls_text(part: object) -> str:
    """Return the text form of the calls of one subject: their names."""
    kind = type(part)
    return f"<{kind.__name__}: {', '.join(name for name in vars(kind) if not name.startswith('_'))}>"


class AsyncPart(Generic[C]):
    """Calls of one subject."""

    def __init__(self, core: C, channels: Channels) -> None:
        """``core`` has the operations, ``channels`` run them."""
        self.core = core
        self._channels = channels

    def __repr__(self) -> str:
        """Return the subject and its calls."""
        return calls_text(self)


def _awaited(
    operation: Callable[Concatenate[C, P], Operation[T]],
) -> Callable[Concatenate[AsyncPart[C], P], Awaitable[T]]:
    """Return the method that runs an operation, with its signature and its text."""

    check_arguments = argument_check(operation)

    @functools.wraps(operation)
    async def method(self: AsyncPart[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(self.core, *args, **kwargs)
        return await self._channels.run(operation(self.core, *args, **kwargs))

    return with_result(method)


def with_result(method: Callable[P, T]) -> Callable[P, T]:
    """Let ``help`` show what a method returns, not that inside it is an operation."""
    signature = inspect.signature(method)
    shown = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    method.__signature__ = signature.replace(return_annotation=shown)  # type: ignore[attr-defined]
    return method


class AsyncTopics(AsyncPart[TopicOperations]):
    """Topics."""

    list = _awaited(TopicOperations.list)
    configs = _awaited(TopicOperations.configs)
    describe = _awaited(TopicOperations.describe)
    queues = _awaited(TopicOperations.queues)
    groups = _awaited(TopicOperations.groups)
    create = _awaited(TopicOperations.create)
    update = _awaited(TopicOperations.update)
    delete = _awaited(TopicOperations.delete)
    order = _awaited(TopicOperations.order)
    set_order = _awaited(TopicOperations.set_order)


class AsyncGroups(AsyncPart[GroupOperations]):
    """Consumer groups, and who is connected."""

    list = _awaited(GroupOperations.list)
    configs = _awaited(GroupOperations.configs)
    lags = _awaited(GroupOperations.lags)
    dead_letters = _awaited(GroupOperations.dead_letters)
    describe = _awaited(GroupOperations.describe)
    members = _awaited(GroupOperations.members)
    running_info = _awaited(GroupOperations.running_info)
    producers = _awaited(GroupOperations.producers)
    consume_modes = _awaited(GroupOperations.consume_modes)
    in_flight = _awaited(GroupOperations.in_flight)
    set_consume_mode = _awaited(GroupOperations.set_consume_mode)
    create = _awaited(GroupOperations.create)
    update = _awaited(GroupOperations.update)
    delete = _awaited(GroupOperations.delete)


class AsyncOffsets(AsyncPart[OffsetOperations]):
    """Where groups are, and moving them."""

    progress = _awaited(OffsetOperations.progress)
    at_time = _awaited(OffsetOperations.at_time)
    reset = _awaited(OffsetOperations.reset)
    commit = _awaited(OffsetOperations.commit)
    skip = _awaited(OffsetOperations.skip)
    clone = _awaited(OffsetOperations.clone)


class AsyncCluster(AsyncPart[ClusterOperations]):
    """Brokers, name servers, their settings, the key-value store."""

    brokers = _awaited(ClusterOperations.brokers)
    status = _awaited(ClusterOperations.status)
    lost = _awaited(ClusterOperations.lost)
    forget = _awaited(ClusterOperations.forget)
    read_only = _awaited(ClusterOperations.read_only)
    statistic = _awaited(ClusterOperations.statistic)
    broker_config = _awaited(ClusterOperations.broker_config)
    set_broker_config = _awaited(ClusterOperations.set_broker_config)
    namesrv_config = _awaited(ClusterOperations.namesrv_config)
    set_namesrv_config = _awaited(ClusterOperations.set_namesrv_config)
    wipe_write_perm = _awaited(ClusterOperations.wipe_write_perm)
    add_write_perm = _awaited(ClusterOperations.add_write_perm)
    kv_get = _awaited(ClusterOperations.kv_get)
    kv_put = _awaited(ClusterOperations.kv_put)
    kv_delete = _awaited(ClusterOperations.kv_delete)
    kv_list = _awaited(ClusterOperations.kv_list)
    clean = _awaited(ClusterOperations.clean)


class AsyncMessages(AsyncPart[MessageOperations]):
    """Messages."""

    by_id = _awaited(MessageOperations.by_id)
    by_unique_id = _awaited(MessageOperations.by_unique_id)
    by_key = _awaited(MessageOperations.by_key)
    by_tag = _awaited(MessageOperations.by_tag)
    trace = _awaited(MessageOperations.trace)
    at = _awaited(MessageOperations.at)
    peek = _awaited(MessageOperations.peek)
    consume_directly = _awaited(MessageOperations.consume_directly)
    send = _awaited(MessageOperations.send)

    def sender(
        self,
        topic: str,
        *,
        broker_name: str | None = None,
        limits: SendLimits | None = None,
        own_ids: bool = False,
    ) -> AsyncSender:
        """Return a sender of many messages, for ``async with``.

        Args:
            topic: the topic; created if the broker allows it.
            broker_name: only to this broker.
            limits: sizes of requests, how many at a time, how often again.
            own_ids: each message brings its unique id, as the property ``UNIQ_KEY``.
        """
        a_text(topic, "topic")
        if limits is not None and not isinstance(limits, SendLimits):
            raise WrongType(f"limits must be SendLimits, not {type(limits).__name__} ({limits!r:.60})")
        if broker_name is not None:
            a_text(broker_name, "broker_name")
        return AsyncSender(self.core, self._channels, topic, broker_name=broker_name, limits=limits, own_ids=own_ids)


class AsyncSender(AsyncOnly):
    """Sends many messages to one topic, in large requests and several at a time. One task uses it.

    Messages with the same sharding key, or for the same queue, are stored in the order in which they were put.
    """

    def __init__(
        self,
        core: MessageOperations,
        channels: Channels,
        topic: str,
        *,
        broker_name: str | None,
        limits: SendLimits | None,
        own_ids: bool,
    ) -> None:
        """Made by :meth:`AsyncMessages.sender`."""
        self._core = core
        self._channels = channels
        self._topic = topic
        self._broker_name = broker_name
        self._limits = limits
        self._own_ids = own_ids
        self._sending: SendState | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()

    def __repr__(self) -> str:
        """Return its topic, and how many messages were acknowledged."""
        state = "not entered" if self._sending is None else f"{self._sending.messages:,} acknowledged"
        return f"<AsyncSender to {self._topic}: {state}>"

    async def __aenter__(self) -> AsyncSender:
        """Look the topic's queues up.

        Raises:
            BrokerError: there is no such topic, and no broker creates topics (code 17).
            InvalidArgument: it has no queue that takes messages.
        """
        route = await self._channels.run(self._core.send_route(self._topic))
        self._sending = SendState(
            self._topic,
            targets_of(route, broker_name=self._broker_name),
            limits=self._limits,
            own_ids=self._own_ids,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until everything that was put is acknowledged, also when something else went wrong.

        Raises:
            Error: the failure that ended the sender, unless another one is being raised.
        """
        try:
            await self._settle()
        finally:
            for task in self._tasks:  # only where waiting for them was cancelled
                task.cancel()
        if error is None:
            self._check()

    def _state(self) -> SendState:
        if self._sending is None:
            raise NotEntered("use the sender with 'async with': async with admin.messages.sender(topic) as sender")
        return self._sending

    @property
    def messages(self) -> int:
        """Messages that were acknowledged."""
        return self._state().messages

    def report(self) -> SendReport:
        """Return what was acknowledged so far."""
        return self._state().report()

    async def put(self, messages: Iterable[OutgoingMessage]) -> None:
        """Take messages; they are sent at once, or as soon as requests under way have been answered.

        Waits while as many bytes wait as the limits say.

        Raises:
            InvalidArgument, MessageTooLarge: one cannot be sent; those before it are.
            Error: the failure that ended the sender; :attr:`Error.appended` is the number of acknowledged messages.
        """
        sending = self._state()
        iterator = iter(messages)
        while some := list(itertools.islice(iterator, PUT_MESSAGES)):
            try:
                sending.add(some)
            finally:
                self._start()
            while not sending.has_room and sending.failure is None:
                await self._something()
            self._check()
            # Answers that have come are taken now, not when the input is over.
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until everything that was put is acknowledged.

        Raises:
            Error: the failure that ended the sender; :attr:`Error.appended` is the number of acknowledged messages.
        """
        await self._settle()
        self._check()

    async def _settle(self) -> None:
        sending = self._state()
        self._start()
        while not sending.is_idle:
            await self._something()

    def _check(self) -> None:
        sending = self._state()
        if sending.failure is not None:
            sending.failure.appended = sending.messages
            raise sending.failure

    async def _something(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _start(self) -> None:
        for batch in self._state().next_batches():
            task = asyncio.get_running_loop().create_task(self._deliver(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, batch: OutboundBatch) -> None:
        sending = self._state()
        again: OutboundBatch | None = batch
        while again is not None:
            if again.pause_ms:
                await asyncio.sleep(again.pause_ms / 1000)
            again = sending.settle(again, await self._channels.answer(again.call))
        self._start()
        self._progress.set()


class AsyncAdmin(AsyncOnly):
    """A session with a cluster. One event loop; any number of tasks.

    Attributes:
        topics, groups, offsets, messages, cluster: the calls, by subject.
    """

    def __init__(
        self,
        *,
        namesrv: str | None = None,
        broker: str | None = None,
        timeout_ms: int = 5_000,
        rpc_hooks: Sequence[RpcHook] = (),
    ) -> None:
        """As :func:`connect`."""
        self._servers = servers = servers_of(namesrv=namesrv, broker=broker, timeout_ms=timeout_ms)
        self.channels = Channels(hooks=rpc_hooks)
        self.topics = AsyncTopics(TopicOperations(servers), self.channels)
        self.groups = AsyncGroups(GroupOperations(servers), self.channels)
        self.offsets = AsyncOffsets(OffsetOperations(servers), self.channels)
        self.messages = AsyncMessages(MessageOperations(servers), self.channels)
        self.cluster = AsyncCluster(ClusterOperations(servers), self.channels)

    def __repr__(self) -> str:
        """Return the servers' addresses."""
        return f"<AsyncAdmin {self._servers.place}>"

    async def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        await self.channels.close()

    async def __aenter__(self) -> AsyncAdmin:
        """Return the session itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()


def connect(
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    timeout_ms: int = 5_000,
    rpc_hooks: Sequence[RpcHook] = (),
) -> AsyncAdmin:
    """Return a session, for ``async with``; nothing is connected before the first call.

    Args:
        namesrv: name servers, ``host:port``, several with ``;`` between.
        broker: or one broker, which is then asked without a name server.
        timeout_ms: longest wait for one answer.
        rpc_hooks: see every request and answer, to sign them (:class:`cometmq.client.RequestSigner`).

    Without either, the name servers are those of the environment: COMETMQ_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.

    Raises:
        InvalidArgument: both were given, an address is invalid, or a hook is none.
    """
    return AsyncAdmin(namesrv=namesrv, broker=broker, timeout_ms=timeout_ms, rpc_hooks=rpc_hooks)
