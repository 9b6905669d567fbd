"""Administration for plain code: each call blocks until it is done.

A session has one thread of its own, which runs the event loop under its connections; calls may come from any thread.
Ctrl-C in a call gives the call up; the server may have executed it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from cometmq.admin.aio import PUT_MESSAGES, AsyncAdmin, AsyncSender, calls_text, with_result
from cometmq.admin.argument_checks import argument_check
from cometmq.admin.cluster import ClusterOperations
from cometmq.admin.groups import GroupOperations
from cometmq.admin.messages import MessageOperations
from cometmq.admin.offsets import OffsetOperations
from cometmq.admin.operation import Operation
from cometmq.admin.results import SendReport
from cometmq.admin.sending import SendLimits
from cometmq.admin.topics import TopicOperations
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.errors import ClientStateError
from cometmq.remoting.network import RpcHook

__all__ = ["Admin", "Cluster", "Groups", "Messages", "Offsets", "Sender", "Topics", "connect"]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

_CLOSE_LIMIT_S = 10.0


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="cometmq-admin", daemon=True)
        self._lock = threading.Lock()
        self.is_open = True
        self._thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; an interruption of the wait cancels it."""
        with self._lock:
            if not self.is_open:
                coroutine.close()
                raise ClientStateError("the session is closed: make a new one with cometmq.admin.connect()")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        with self._lock:
            if not self.is_open:
                return
            self.is_open = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_LIMIT_S)
        if not self._thread.is_alive():
            self._loop.close()


class _Part(Generic[C]):
    """Calls of one subject."""

    def __init__(self, core: C, admin: Admin) -> None:
        self._core = core
        self._admin = admin

    def __repr__(self) -> str:
        """Return the subject and its calls."""
        return calls_text(self)


def _blocking(operation: Callable[Concatenate[C, P], Operation[T]]) -> Callable[Concatenate[_Part[C], P], T]:
    """Return the method that runs an operation, with its signature and its text."""

    check_arguments = argument_check(operation)

    @functools.wraps(operation)
    def method(self: _Part[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(self._core, *args, **kwargs)
        return self._admin.run(operation(self._core, *args, **kwargs))

    return with_result(method)


class Topics(_Part[TopicOperations]):
    """Topics."""

    list = _blocking(TopicOperations.list)
    configs = _blocking(TopicOperations.configs)
    describe = _blocking(TopicOperations.describe)
    queues = _blocking(TopicOperations.queues)
    groups = _blocking(TopicOperations.groups)
    create = _blocking(TopicOperations.create)
    update = _blocking(TopicOperations.update)
    delete = _blocking(TopicOperations.delete)
    order = _blocking(TopicOperations.order)
    set_order = _blocking(TopicOperations.set_order)


class Groups(_Part[GroupOperations]):
    """Consumer groups, and who is connected."""

    list = _blocking(GroupOperations.list)
    configs = _blocking(GroupOperations.configs)
    lags = _blocking(GroupOperations.lags)
    dead_letters = _blocking(GroupOperations.dead_letters)
    describe = _blocking(GroupOperations.describe)
    members = _blocking(GroupOperations.members)
    running_info = _blocking(GroupOperations.running_info)
    producers = _blocking(GroupOperations.producers)
    consume_modes = _blocking(GroupOperations.consume_modes)
    in_flight = _blocking(GroupOperations.in_flight)
    set_consume_mode = _blocking(GroupOperations.set_consume_mode)
    create = _blocking(GroupOperations.create)
    update = _blocking(GroupOperations.update)
    delete = _blocking(GroupOperations.delete)


class Offsets(_Part[OffsetOperations]):
    """Where groups are, and moving them."""

    progress = _blocking(OffsetOperations.progress)
    at_time = _blocking(OffsetOperations.at_time)
    reset = _blocking(OffsetOperations.reset)
    commit = _blocking(OffsetOperations.commit)
    skip = _blocking(OffsetOperations.skip)
    clone = _blocking(OffsetOperations.clone)


class Cluster(_Part[ClusterOperations]):
    """Brokers, name servers, their settings, the key-value store."""

    brokers = _blocking(ClusterOperations.brokers)
    status = _blocking(ClusterOperations.status)
    lost = _blocking(ClusterOperations.lost)
    forget = _blocking(ClusterOperations.forget)
    read_only = _blocking(ClusterOperations.read_only)
    statistic = _blocking(ClusterOperations.statistic)
    broker_config = _blocking(ClusterOperations.broker_config)
    set_broker_config = _blocking(ClusterOperations.set_broker_config)
    namesrv_config = _blocking(ClusterOperations.namesrv_config)
    set_namesrv_config = _blocking(ClusterOperations.set_namesrv_config)
    wipe_write_perm = _blocking(ClusterOperations.wipe_write_perm)
    add_write_perm = _blocking(ClusterOperations.add_write_perm)
    kv_get = _blocking(ClusterOperations.kv_get)
    kv_put = _blocking(ClusterOperations.kv_put)
    kv_delete = _blocking(ClusterOperations.kv_delete)
    kv_list = _blocking(ClusterOperations.kv_list)
    clean = _blocking(ClusterOperations.clean)


class Messages(_Part[MessageOperations]):
    """Messages."""

    by_id = _blocking(MessageOperations.by_id)
    by_unique_id = _blocking(MessageOperations.by_unique_id)
    by_key = _blocking(MessageOperations.by_key)
    by_tag = _blocking(MessageOperations.by_tag)
    trace = _blocking(MessageOperations.trace)
    at = _blocking(MessageOperations.at)
    peek = _blocking(MessageOperations.peek)
    consume_directly = _blocking(MessageOperations.consume_directly)
    send = _blocking(MessageOperations.send)

    def sender(self, topic: str, *, broker_name: str | None = None, limits: SendLimits | None = None) -> Sender:
        """Return a sender of many messages, for ``with``.

        Args:
            topic: the topic; created if the broker allows it.
            broker_name: only to this broker.
            limits: sizes of requests, how many at a time, how often again.
        """
        return self._admin.sender(topic, broker_name=broker_name, limits=limits)


class Sender:
    """Sends many messages to one topic, in large requests and several at a time. One thread uses it.

    Messages with the same sharding key, or for the same queue, are stored in the order in which they were put.
    """

    def __init__(self, sender: AsyncSender, loop: _Loop) -> None:
        """Made by :meth:`Messages.sender`."""
        self._sender = sender
        self._loop = loop

    def __repr__(self) -> str:
        """Return its topic, and how many messages were acknowledged."""
        return repr(self._sender).replace("AsyncSender", "Sender", 1)

    def __enter__(self) -> Sender:
        """Look the topic's queues up. Errors as of :meth:`AsyncSender.__aenter__`."""
        self._loop.run(self._sender.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until everything that was put is acknowledged. Raises as :meth:`AsyncSender.__aexit__`."""
        self._loop.run(self._sender.__aexit__(kind, error, trace))

    @property
    def messages(self) -> int:
        """Messages that were acknowledged."""
        return self._sender.messages

    def report(self) -> SendReport:
        """Return what was acknowledged so far."""
        return self._loop.run(self._report())

    async def _report(self) -> SendReport:
        return self._sender.report()

    def put(self, messages: Iterable[OutgoingMessage]) -> None:
        """Take messages, from an iterator in this thread. Waits, and raises, as :meth:`AsyncSender.put`."""
        iterator = iter(messages)
        while some := list(itertools.islice(iterator, PUT_MESSAGES)):
            self._loop.run(self._sender.put(some))

    def flush(self) -> None:
        """Wait until everything that was put is acknowledged. Raises as :meth:`AsyncSender.flush`."""
        self._loop.run(self._sender.flush())


class Admin:
    """A session with a cluster. Any thread may call.

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
        # Made first: an invalid address leaves no thread behind.
        self._async = AsyncAdmin(namesrv=namesrv, broker=broker, timeout_ms=timeout_ms, rpc_hooks=rpc_hooks)
        self._loop = _Loop()
        self.topics = Topics(self._async.topics.core, self)
        self.groups = Groups(self._async.groups.core, self)
        self.offsets = Offsets(self._async.offsets.core, self)
        self.messages = Messages(self._async.messages.core, self)
        self.cluster = Cluster(self._async.cluster.core, self)

    def __repr__(self) -> str:
        """Return the servers' addresses, and whether the session is closed."""
        return f"<Admin {self._async._servers.place}{'' if self._loop.is_open else ' closed'}>"

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of this session to its end."""
        return self._loop.run(self._async.channels.run(operation))

    def sender(self, topic: str, *, broker_name: str | None = None, limits: SendLimits | None = None) -> Sender:
        """As :meth:`Messages.sender`."""
        return Sender(self._async.messages.sender(topic, broker_name=broker_name, limits=limits), self._loop)

    def close(self) -> None:
        """Close all connections and end the thread. Closing twice is fine."""
        if self._loop.is_open:
            self._loop.run(self._async.close())
            self._loop.stop()

    def __enter__(self) -> Admin:
        """Return the session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def connect(
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    timeout_ms: int = 5_000,
    rpc_hooks: Sequence[RpcHook] = (),
) -> Admin:
    """Return a session with a cluster, for ``with``; nothing is connected before the first call.

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
    return Admin(namesrv=namesrv, broker=broker, timeout_ms=timeout_ms, rpc_hooks=rpc_hooks)
