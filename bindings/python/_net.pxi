# NetServer: the engine's sockets, and the queue from its loops to Python. cometmq.remoting.server and the broker serve
# the requests.

cdef class RequestHandler:
    """The handler that a server's loops call, in C.

    A class of this module derives from it; Python sees only that it is one.
    """

    cdef int lend(self, cmq_net_handler *into) except -1:
        """Fill in the handler, and stay usable until let_go."""
        raise TypeError(f"{type(self).__name__} handles no requests")

    cdef void let_go(self) noexcept:
        """The server is gone."""


@cython.final
cdef class ControlItem:
    """A request for Python, a client's answer, or the news that a connection is gone.

    Attributes:
        kind: ``NetServer.REQUEST``, ``RESPONSE`` or ``CLOSED``.
        conn: the connection's id, never used again.
        local_port: port that the client connected to.
        arrived_ns: on the monotonic clock.
    """
    cdef cmq_control_item _item
    cdef NetServer _server
    cdef readonly int kind
    cdef readonly uint64_t conn
    cdef readonly int local_port
    cdef readonly int64_t arrived_ns

    def __dealloc__(self):
        # Nobody waits for a request that was not answered.
        if self._server is not None:
            cmq_control_item_done(self._server._net_or_null(), &self._item)

    @property
    def host(self):
        """The client's address and port."""
        return _host_pair(&self._item.peer)

    @property
    def peer(self):
        """The same as text, ``ip:port``."""
        address, port = _host_pair(&self._item.peer)
        return f"[{address}]:{port}" if self._item.peer.ipv6 else f"{address}:{port}"

    @property
    def frame(self):
        """The whole frame as bytes; None for CLOSED, and once the item was answered or given back."""
        if self._item.frame is NULL:
            return None
        return PyBytes_FromStringAndSize(<const char *>self._item.frame, <Py_ssize_t>self._item.frame_bytes)


@cython.final
@cython.no_gc_clear
cdef class NetServer:
    """Listening sockets, their loops' threads, and the control queue. The loops never take the GIL.

    Any thread may call any method; take() is for one thread. close() ends the loops and closes every connection. In a
    child of a fork every call but close() raises StoreClosed.
    """
    REQUEST = <int>CMQ_CONTROL_REQUEST
    RESPONSE = <int>CMQ_CONTROL_RESPONSE
    CLOSED = <int>CMQ_CONTROL_CLOSED

    cdef cmq_net *_net
    cdef RequestHandler _handler
    cdef bint _lent
    cdef bint _started
    cdef uint32_t _addresses
    cdef Py_ssize_t _in_flight
    cdef bint _closing
    cdef unsigned long _opened_forks
    cdef object _gone

    def __cinit__(self):
        self._opened_forks = _forks

    def __init__(self, addresses, *, int loops=1, RequestHandler handler=None, uint32_t connections_max=0,
                 uint32_t frame_bytes_max=0,
                 uint64_t unsent_bytes_max=0, uint64_t unsent_bytes_pause=0, uint64_t buffered_bytes_max=0,
                 uint32_t control_count_max=0,
                 uint64_t control_bytes_max=0, uint32_t control_conn_max=0, uint32_t address_conns_max=0,
                 int64_t idle_ms=0, int64_t frame_ms=0):
        if self._net is not NULL or self._gone is not None:
            raise RuntimeError("this server was made before")
        cdef cmq_net_options options
        cdef cmq_status status
        cdef _Texts texts = _Texts.of(addresses)
        memset(&options, 0, sizeof(options))
        self._gone = _threading.Event()
        self._addresses = texts.count
        options.addresses = texts.texts
        options.address_count = texts.count
        if not 1 <= loops <= 16:
            raise _errors.InvalidArgument(f"loops is {loops}; give 1 to 16")
        options.loops = <uint32_t>loops
        options.limits.connections_max = connections_max
        options.limits.frame_bytes_max = frame_bytes_max
        options.limits.unsent_bytes_max = unsent_bytes_max
        options.limits.unsent_bytes_pause = unsent_bytes_pause
        options.limits.buffered_bytes_max = buffered_bytes_max
        options.limits.control_count_max = control_count_max
        options.limits.control_bytes_max = control_bytes_max
        options.limits.control_conn_max = control_conn_max
        options.limits.address_conns_max = address_conns_max
        options.limits.idle_ms = idle_ms
        options.limits.frame_ms = frame_ms
        if handler is not None:
            handler.lend(&options.handler)
            self._handler = handler
            self._lent = True
        with nogil:
            status = cmq_net_create(&self._net, &options)
        if status == CMQ_OK:
            return
        error = _failure(status)
        self._release()
        if status in (CMQ_ERR_IO, CMQ_ERR_PERMISSION, CMQ_ERR_NOT_FOUND):
            raise _errors.CannotListen(error.message, errno=error.errno)
        raise error

    def __dealloc__(self):
        if self._net is NULL:
            return
        if self._opened_forks != _forks:
            cmq_net_abandon(self._net)
            return
        with nogil:
            cmq_net_destroy(self._net)
        self._net = NULL
        self._release()

    cdef void _release(self) noexcept:
        if self._lent:
            self._lent = False
            self._handler.let_go()

    cdef cmq_net *_net_or_null(self) noexcept:
        return self._net if self._opened_forks == _forks else NULL

    # ---- life

    cdef int enter(self) except -1:
        if self._net is NULL or self._closing or self._opened_forks != _forks:
            raise _errors.StoreClosed("the server is closed")
        self._in_flight += 1
        return 0

    cdef void leave(self) noexcept:
        self._in_flight -= 1

    def start(self):
        """Begin to accept. Once."""
        cdef cmq_status status
        self.enter()
        if self._started:
            self.leave()
            raise RuntimeError("this server was started before")
        self._started = True
        with nogil:
            status = cmq_net_start(self._net)
        self.leave()
        _check(status)

    def drain(self):
        """Accept nothing more, and turn further requests away; requests being served go on."""
        self.enter()
        cmq_net_drain(self._net)
        self.leave()

    def is_idle(self):
        """True when no request waits, none is kept by the handler, and all output was sent."""
        self.enter()
        cdef bint idle = cmq_net_is_idle(self._net)
        self.leave()
        return idle

    @property
    def closed(self):
        """True when no call is answered any more."""
        return self._net is NULL or self._closing or self._opened_forks != _forks

    def close(self):
        """End the loops and close every connection at once. Twice is fine; a second call waits for the first."""
        cdef cmq_net *net = self._net
        if self._opened_forks != _forks:
            self._net = NULL
            if net is not NULL:
                cmq_net_abandon(net)
            return
        if self._closing:
            self._gone.wait()
            return
        if net is NULL:
            return
        self._closing = True
        # No call but start() gives up the GIL, and that one ends soon.
        while self._in_flight:
            _time.sleep(0)
        self._net = NULL
        with nogil:
            cmq_net_destroy(net)
        self._release()
        self._closing = False
        self._gone.set()

    def ports(self):
        """Return the port of each address."""
        self.enter()
        cdef list found = [cmq_net_port(self._net, i) for i in range(self._addresses)]
        self.leave()
        return found

    # ---- the control queue

    @property
    def control_fd(self):
        """A descriptor that is readable while items wait, for ``add_reader``."""
        self.enter()
        cdef int fd = cmq_net_control_fd(self._net)
        self.leave()
        return fd

    def take(self, int max_items=256):
        """Return the items that wait, oldest first, up to so many; one thread only."""
        cdef cmq_control_item found[256]
        cdef uint32_t capacity = <uint32_t>max(1, min(max_items, 256)), count, i
        cdef ControlItem item
        cdef list items = []
        self.enter()
        count = cmq_net_control_take(self._net, found, capacity)
        self.leave()
        for i in range(count):
            item = ControlItem.__new__(ControlItem)
            item._server = self
            item._item = found[i]
            item.kind = <int>found[i].kind
            item.conn = found[i].conn
            item.local_port = found[i].local_port
            item.arrived_ns = found[i].arrived_ns
            items.append(item)
        return items

    def answer(self, ControlItem item not None, frame=None):
        """Send the answer of a request, and let the item go; without a frame there is none.

        A client that has gone is not an error.
        """
        if frame is not None:
            self.send(item.conn, frame)
        self.enter()
        cmq_control_item_done(self._net, &item._item)
        self.leave()

    def again(self, ControlItem item not None):
        """Give a request back to its loop, which can serve it now."""
        if item.kind != <int>CMQ_CONTROL_REQUEST or item._item.frame is NULL:
            raise _errors.InvalidArgument("only a request that was not answered can be given back")
        self.enter()
        cmq_net_again(self._net, &item._item)
        self.leave()

    def send(self, uint64_t conn, const uint8_t[::1] frame not None):
        """Put a whole frame into a connection's output; False when the connection is known to be gone."""
        return self._post(conn, frame, False)

    def offer(self, uint64_t conn, const uint8_t[::1] frame not None):
        """The same, but drop the frame where the connection has not taken what is there."""
        return self._post(conn, frame, True)

    cdef bint _post(self, uint64_t conn, const uint8_t[::1] frame, bint may_be_lost) except -1:
        cdef cmq_status status
        if not frame.shape[0]:
            raise _errors.InvalidArgument("a frame has at least 8 bytes")
        self.enter()
        if may_be_lost:
            status = cmq_net_offer(self._net, conn, &frame[0], <size_t>frame.shape[0])
        else:
            status = cmq_net_send(self._net, conn, &frame[0], <size_t>frame.shape[0])
        self.leave()
        if status == CMQ_ERR_NOT_FOUND:
            return False
        _check(status)
        return True

    def close_conn(self, uint64_t conn):
        """Close a connection once what is in its output was sent."""
        self.enter()
        cmq_net_close_conn(self._net, conn)
        self.leave()

    def counters(self):
        """Return the loops' totals, and what is open now, by name as ``cmq_net_counters`` has them."""
        cdef cmq_net_counters c
        self.enter()
        cmq_net_count(self._net, &c)
        self.leave()
        return {
            "accepted": c.accepted, "closed": c.closed, "refused": c.refused, "frames_in": c.frames_in,
            "frames_out": c.frames_out,
            "bytes_in": c.bytes_in, "bytes_out": c.bytes_out, "control_items": c.control_items,
            "control_refused": c.control_refused, "offers_dropped": c.offers_dropped,
            "closed_corrupt": c.closed_corrupt, "closed_slow_reader": c.closed_slow_reader,
            "closed_slow_frame": c.closed_slow_frame,
            "closed_idle": c.closed_idle, "closed_memory": c.closed_memory, "closed_tls": c.closed_tls,
            "reads": c.reads, "writes": c.writes,
            "turns": c.turns, "open": c.open, "buffered_bytes": c.buffered_bytes,
        }
