"""The server's end of remoting connections: requests that C's socket loops pass to Python, served on an asyncio loop.

The loops (``csrc/net``) own the sockets and serve the hot requests themselves. Everything else comes here through a
bounded queue, is given to the handler of its code, and the answer leaves through the same connection:

    loops -> control queue -> [RemotingServer] -> handler(request, caller) -> answer -> loops

A handler is a plain function or a coroutine function. It returns the answer (:meth:`Command.response`), None where
there is none, or :data:`AGAIN`: the request goes back to its loop, which can serve it now (a topic was made, say). An
exception of a handler becomes an answer with code 1, and a line in the log. One-way requests never get an answer.

Source: remoting specification 1.2, 1.9, 1.10.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Final, TypeAlias, TypeVar, final

from typing_extensions import Self

from cometmq import _engine
from cometmq._types import Host
from cometmq.errors import ConnectionLost, Error, MalformedCommand, RequestTimeout, StorageError, StoreClosed
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, FRAME_BYTES_MAX, Command
from cometmq.remoting.connection_room import RefusalLog, check_descriptors
from cometmq.remoting.lanes import LANE_THREADS, STORE_AT_ONCE, STORE_THREADS, STORE_WAITING_MAX, Lanes
from cometmq.remoting.not_supported import not_supported_answer
from cometmq.remoting.watchdog import Watchdog

__all__ = ["AGAIN", "Caller", "Handler", "RemotingServer", "ServerLimits", "Verdict"]

_log = logging.getLogger("cometmq.remoting")

_OPAQUE_MASK = 0x7FFFFFFF
_IDLE_POLL_S = 0.002
_REFUSALS_S = 10.0
_REMARK_CHARS_MAX = 4_000
_HEADER_BYTES_MAX = 1 << 16
"""Room for the header beside the largest body of an answer."""

T = TypeVar("T")


class Verdict(enum.Enum):
    """A handler's return value instead of an answer."""

    AGAIN = "again"


AGAIN: Final = Verdict.AGAIN
"""Give the request back to its loop, which can serve it now."""


@final
class Caller:
    """The sender of a request: one connection. On the server's loop.

    Attributes:
        conn: the connection's id, never used again.
        peer: the other end, ``ip:port``, with brackets around an IPv6 address.
        host: the same as a pair.
        local_port: the port that the client connected to.
    """

    __slots__ = ("_answered", "_closes", "_server", "conn", "host", "local_port", "peer")

    def __init__(self, server: RemotingServer, item: _engine.ControlItem) -> None:
        """Take what the item says."""
        self.conn = item.conn
        self.peer = item.peer
        self.host: Host = item.host
        self.local_port = item.local_port
        self._server = server
        self._answered = False
        self._closes = False

    @property
    def is_busy(self) -> bool:
        """True while work of the connection is apart, and its handlers have not gone on."""
        return self._server.lanes.is_busy(self.conn)

    def apart(self, work: Callable[[], T]) -> Awaitable[T]:
        """Call a function outside the event loop, behind other such work of the connection; return what it returns.

        Raises:
            Refusal: too much work of the connection waits.
            Exception: from the function.
        """
        return self._server.lanes.run(self.conn, work)

    def store_apart(self, work: Callable[[], T]) -> Awaitable[T]:
        """Call a function that waits for the disk outside the event loop; a connection has a few at a time.

        Raises:
            Refusal: too much work of the connection waits.
            Exception: from the function.
        """
        return self._server.store_lanes.run(self.conn, work)

    def close(self) -> None:
        """Close the connection, once its request was answered and what is in its output was sent."""
        self._closes = True
        if self._answered:
            self._server.close_connection(self.conn)

    def _request_is_done(self) -> None:
        self._answered = True
        if self._closes:
            self._server.close_connection(self.conn)


Handler: TypeAlias = Callable[[Command, Caller], object]
"""Serves the requests of one code; returns a Command, None, a Verdict, or an awaitable of one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """A server's limits; 0 is the default in brackets. ``csrc/net/cmq_net.h`` says what happens at each.

    Attributes:
        connections_max: open connections [20,000], fewer where descriptors are; a further one is closed at once.
        address_conns_max: those of one address [half of them].
        frame_bytes_max: a request with its length word [16 MiB]; a larger one closes its connection.
        unsent_bytes_max: answers that a connection has not taken [64 MiB]; more disconnect it.
        unsent_bytes_pause: from here on [4 MiB] nothing is read from the connection.
        buffered_bytes_max: partial frames and answers of all connections [1 GiB]; of the address with most of it, the
            connection that was silent for longest with its share is disconnected, or the one with most.
        control_count_max: requests that wait for Python or are being served by it [10,000]; further ones get code 2.
        control_bytes_max: their bytes [256 MiB].
        control_conn_max: those of one connection [1,000, at most 65,535]: so no client alone fills the queue.
        idle_ms: without a byte either way [120,000] a connection is closed.
        frame_ms: within so long [30,000] a request that began must be there, or its connection is closed.
    """

    connections_max: int = 0
    address_conns_max: int = 0
    frame_bytes_max: int = 0
    unsent_bytes_max: int = 0
    unsent_bytes_pause: int = 0
    buffered_bytes_max: int = 0
    control_count_max: int = 0
    control_bytes_max: int = 0
    control_conn_max: int = 0
    idle_ms: int = 0
    frame_ms: int = 0


class RemotingServer:
    """Sockets, their loops, and the handlers behind them.

    Handlers run on one asyncio loop: a given one, or one in a thread of the server's own. :meth:`invoke` is awaited
    there; every other method may be called from any thread.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        loops: int = 1,
        engine_handler: _engine.RequestHandler | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Listen; nothing is accepted before :meth:`start`.

        Args:
            addresses: ``127.0.0.1:10911`` or ``[::1]:10911``, numeric, at most 8; port 0 takes a free one.
            loops: threads that own sockets, 1 to 16.
            engine_handler: serves requests on the loops, in C; None gives every request to Python.
            limits: the server's limits.

        Raises:
            InvalidArgument: an address or a limit cannot be used.
            CannotListen: an address is taken, is not this machine's, or is not allowed.
            LimitReached: the process has no descriptors for a connection.
        """
        check_descriptors(0 if limits is None else limits.connections_max)
        self._net = _engine.NetServer(
            addresses, loops=loops, handler=engine_handler, **asdict(limits if limits is not None else ServerLimits())
        )
        self._handlers: Mapping[int, Handler] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._opaques = itertools.count(1)
        self._answers: dict[int, dict[int, asyncio.Future[Command]]] = {}
        self._on_closed: list[Callable[[int], object]] = []
        self.lanes = Lanes(threads=LANE_THREADS)
        self.store_lanes = Lanes(threads=STORE_THREADS, at_once=STORE_AT_ONCE, waiting_max=STORE_WAITING_MAX)
        self._watchdog = Watchdog()
        self._refusals = RefusalLog()
        self._refusals_timer: asyncio.TimerHandle | None = None  # the loop's
        self._stopped = threading.Lock()

    # --- Life

    def start(self, handlers: Mapping[int, Handler], *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin to accept and to serve.

        Args:
            handlers: request code to handler. Codes that are not in it get code 3.
            loop: where handlers run; it is running, or will be. None: in a thread of the server's own.
        """
        self._handlers = handlers
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(loop,), name="cometmq-control", daemon=True)
            self._thread.start()
        self._loop = loop
        self._watchdog.start()
        loop.call_soon_threadsafe(loop.add_reader, self._net.control_fd, self._readable)
        loop.call_soon_threadsafe(self._look_at_refusals)
        self._net.start()

    def _look_at_refusals(self) -> None:
        if self._net.closed:
            return
        self._refusals.note(self._net.counters())
        self._refusals_timer = self.loop.call_later(_REFUSALS_S, self._look_at_refusals)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that handlers run on. Not before :meth:`start`."""
        if self._loop is None:
            raise RuntimeError("the server was not started")
        return self._loop

    @property
    def ports(self) -> list[int]:
        """The port of each address."""
        return self._net.ports()

    @property
    def waiting(self) -> int:
        """How many requests are being served by coroutines."""
        return len(self._tasks)

    def counters(self) -> dict[str, int]:
        """Return the loops' totals since the start and what is open now, as ``cmq_net_counters`` has them."""
        return self._net.counters()

    def on_closed(self, callback: Callable[[int], object]) -> None:
        """Have ``callback(conn)`` called on the loop when a connection is gone that a handler has seen."""
        self._on_closed.append(callback)

    def drain(self) -> None:
        """Accept no more connections, and turn further requests away: code 1500, or 14 to clients before 5.3.2."""
        self._net.drain()

    async def finish(self, *, grace_ms: int = 3_000) -> None:
        """Drain, wait until everything under way was answered and sent, and close. On the server's loop.

        Args:
            grace_ms: wait no longer than that, then cut off the rest.
        """
        if self._net.closed:
            return
        self._net.drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_ms / 1000
        while (self._tasks or not self._net.is_idle()) and loop.time() < deadline:
            await asyncio.sleep(_IDLE_POLL_S)
        loop.remove_reader(self._net.control_fd)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for conn in list(self._answers):
            self._lose(conn)
        self.lanes.close()
        self.store_lanes.close()
        self._watchdog.stop()
        if self._refusals_timer is not None:
            self._refusals_timer.cancel()
        self._net.close()

    def stop(self, *, grace_ms: int = 3_000) -> None:
        """Do the same from another thread, and end the server's own. A second call waits for the first."""
        with self._stopped:
            loop = self._loop
            if loop is None:
                self._net.close()
                return
            if self._thread is None:
                if not self._net.closed:
                    asyncio.run_coroutine_threadsafe(self.finish(grace_ms=grace_ms), loop).result()
                self._join_lanes()
                return
            if not self._thread.is_alive():
                return
            asyncio.run_coroutine_threadsafe(self.finish(grace_ms=grace_ms), loop).result()
            self._join_lanes()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _join_lanes(self) -> None:
        self.lanes.join()
        self.store_lanes.join()

    def __enter__(self) -> Self:
        """Return the server; the block's end stops it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # --- To clients

    async def invoke(self, conn: int, request: Command, *, timeout_ms: int) -> Command:
        """Send a request to a client and wait for its answer. On the server's loop.

        Args:
            conn: the connection's id.
            request: its opaque is replaced by one of the server's own.
            timeout_ms: how long to wait.

        Raises:
            RequestTimeout: no answer came in time.
            ConnectionLost: the connection is gone.
        """
        opaque = next(self._opaques) & _OPAQUE_MASK
        answer: asyncio.Future[Command] = self.loop.create_future()
        self._answers.setdefault(conn, {})[opaque] = answer
        # Not asyncio.wait_for: it passes the answer on through a future of its own, one more turn of the loop.
        timer = self.loop.call_later(timeout_ms / 1000, _give_up, answer, timeout_ms)
        try:
            if not self._net.send(conn, request.with_opaque(opaque).encode()):
                raise ConnectionLost("the client is gone")
            return await answer
        finally:
            timer.cancel()
            waiting = self._answers.get(conn)
            if waiting is not None:
                waiting.pop(opaque, None)
                if not waiting:
                    del self._answers[conn]

    def send_oneway(self, conn: int, request: Command) -> None:
        """Send a request that gets no answer. One to a connection that is gone is lost silently, as in a network."""
        self._net.send(conn, self._oneway(request))

    def offer(self, conn: int, request: Command) -> None:
        """Send it, or drop it if the client has not read earlier requests."""
        self._net.offer(conn, self._oneway(request))

    @property
    def offers_dropped(self) -> int:
        """Number of offers dropped since the start. A drop counts a moment later."""
        return self._net.counters()["offers_dropped"]

    def _oneway(self, request: Command) -> bytes:
        return request.with_opaque(next(self._opaques) & _OPAQUE_MASK).as_oneway().encode()

    def close_connection(self, conn: int) -> None:
        """Close a connection once what is in its output was sent."""
        self._net.close_conn(conn)

    # --- From the loops

    def _readable(self) -> None:
        for item in self._net.take():
            self._take(item)

    def _take(self, item: _engine.ControlItem) -> None:
        try:
            if item.kind == _engine.NetServer.REQUEST:
                self._serve(item)
            elif item.kind == _engine.NetServer.RESPONSE:
                self._take_answer(item)
            else:
                self._forget(item.conn)
        except Exception:  # noqa: BLE001 - the items behind it are other clients' requests
            _log.exception("a frame could not be served", extra={"peer": item.peer})

    def _take_answer(self, item: _engine.ControlItem) -> None:
        answer = self._decoded(item)
        self._net.answer(item)
        waiting = self._answers.get(item.conn)
        if waiting is None or answer is None:
            return
        future = waiting.get(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)

    def _forget(self, conn: int) -> None:
        self._lose(conn)
        self.lanes.forget(conn)
        self.store_lanes.forget(conn)
        for callback in self._on_closed:
            _call(callback, conn)

    def _lose(self, conn: int) -> None:
        for future in self._answers.pop(conn, {}).values():
            if not future.done():
                future.set_exception(ConnectionLost("the client left before it answered"))

    def _decoded(self, item: _engine.ControlItem) -> Command | None:
        frame = item.frame
        try:
            return Command.decode(frame) if frame is not None else None
        except MalformedCommand as error:
            _log.warning("a frame cannot be read", extra={"peer": item.peer, "error": error.message})
            self._net.close_conn(item.conn)
            return None

    def _serve(self, item: _engine.ControlItem) -> None:
        request = self._decoded(item)
        if request is None:
            self._net.answer(item)
            return
        caller = Caller(self, item)
        handler = self._handlers.get(request.code)
        if handler is None:
            self._finish(item, request, caller, not_supported_answer(request))
            return
        self._watchdog.begin(request.code, caller.peer)
        try:
            outcome = self._outcome(handler, request, caller)
            if not inspect.isawaitable(outcome):
                self._finish(item, request, caller, outcome)
                return
        finally:
            self._watchdog.end()
        steps = self._watchdog.steps(self._serve_later(item, request, caller, outcome), request.code, caller.peer)
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(steps)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _outcome(handler: Handler, request: Command, caller: Caller) -> object:
        try:
            return handler(request, caller)
        except Exception as error:  # noqa: BLE001 - any failure is answered, and the server goes on
            return _failed(request, caller.peer, error)

    async def _serve_later(
        self, item: _engine.ControlItem, request: Command, caller: Caller, outcome: Awaitable[object]
    ) -> None:
        try:
            answer = await outcome
        except asyncio.CancelledError:
            # Its client is gone, or the server ends: nobody waits for an answer.
            self._net.answer(item)
            raise
        except Exception as error:  # noqa: BLE001 - as in _outcome
            answer = _failed(request, item.peer, error)
        self._finish(item, request, caller, answer)

    def _finish(self, item: _engine.ControlItem, request: Command, caller: Caller, outcome: object) -> None:
        if outcome is AGAIN:
            self._net.again(item)
            caller._request_is_done()
            return
        if outcome is not None and not isinstance(outcome, Command):
            mistake = TypeError(f"a handler returned {type(outcome).__name__}, not a Command, None or a Verdict")
            outcome = _failed(request, item.peer, mistake)
        if outcome is None or request.is_oneway:
            self._net.answer(item)
        else:
            self._net.answer(item, _encoded(request, outcome, item.peer))
        caller._request_is_done()


def _give_up(answer: asyncio.Future[Command], timeout_ms: int) -> None:
    if not answer.done():
        answer.set_exception(RequestTimeout(f"the client did not answer within {timeout_ms:,} ms"))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _call(callback: Callable[[int], object], conn: int) -> None:
    try:
        callback(conn)
    except Exception:  # noqa: BLE001 - one part's mistake must not keep the news from the others
        _log.exception("a part failed at the end of a connection", extra={"conn": conn})


def _failed(request: Command, peer: str, error: Exception) -> Command:
    _log.error("a request failed", exc_info=error, extra={"code": request.code, "peer": peer})
    text = error.message if isinstance(error, Error) else str(error)
    # However long the text, it has to fit a frame.
    text = text[:_REMARK_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
    # As cmq_broker_code_of: this code makes clients try another broker.
    is_store = isinstance(error, StorageError | StoreClosed)
    code = ResponseCode.SERVICE_NOT_AVAILABLE if is_store else ResponseCode.SYSTEM_ERROR
    return request.response(code, remark=f"{type(error).__name__}: {text}")


def _encoded(request: Command, answer: Command, peer: str) -> bytes:
    """The answer's frame. A response that is passed on from another connection gets the number it has on this one."""
    if answer.opaque != request.opaque or answer.flag != FLAG_RESPONSE or answer.format != request.format:
        answer = replace(answer, opaque=request.opaque, flag=FLAG_RESPONSE, format=request.format)
    if len(answer.body) > FRAME_BYTES_MAX - _HEADER_BYTES_MAX:
        _log.warning("an answer is too large", extra={"code": request.code, "peer": peer, "bytes": len(answer.body)})
        size, most = len(answer.body), FRAME_BYTES_MAX
        remark = f"the answer has {size:,} bytes; a frame holds {most:,} with its header: ask for less"
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark).encode()
    try:
        return answer.encode()
    except Exception as error:  # noqa: BLE001 - a field that is not text, say: a handler's mistake like any other
        return _failed(request, peer, error).encode()
