# Link: one connection of a client, without the event loop: waiting requests, bytes out, answers in.
# cometmq.remoting.hub drives it.
#
# All state is touched with the GIL held, which is the lock. The one thing done without it is a write by another thread
# than the loop's: _writing says so, and then others only put their frames behind. The loop's own reads and writes keep
# the GIL: they do not wait, and to get it back beside a thread that computes would take 5 ms.
#
# Why this logic stands in a binding: docs/decisions/0027-logic-in-two-binding-files.md.
from os import strerror as _os_strerror

from libc.errno cimport EAGAIN, EINTR, errno

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SHUT_RDWR
    ssize_t _socket_send "send"(int fd, const void *data, size_t bytes, int flags)
    ssize_t _socket_recv "recv"(int fd, void *into, size_t bytes, int flags)
    int _socket_shutdown "shutdown"(int fd, int how)

cdef extern from "<unistd.h>" nogil:
    int _close_fd "close"(int fd)

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

cdef enum _RequestKind:
    _KIND_COMMAND
    _KIND_SEND
    _KIND_PULL

cdef enum:
    _GO_AWAY_CODE = 1500
    _SLOTS_MIN = 64
    _FRAME_MS_MAX = 30000        # a frame that began is there by then, as a server wants it of clients
    _WAITING_MAX = 65536             # requests that may wait for their answers at a time
    _UNSENT_BYTES_MAX = 67108864
    _HEADER_ROOM_BYTES = 1024        # of a header beside its properties, in most cases
    _INPUT_BYTES = 65536
    _INPUT_BYTES_KEPT = 1048576      # a buffer that became larger is given back once it is empty
    _FLUSH_BYTES = 32768             # that another thread's frames wait for at most
    # so many answers outstanding, and what the loop sends waits for the end of its turn
    _UNANSWERED_LOOP = 1
    _UNANSWERED_OTHERS = 16          # the same of other threads: the loop is asked to write what they put behind
    _WRITES_IN_ROW = 8               # by a thread that writes for others, before it leaves the rest to the loop


cdef struct _slot:
    int32_t opaque
    uint8_t kind
    bint is_taken
    bint is_again                    # it was answered "go away" before
    int64_t timeout_ms
    int64_t deadline_ms
    uint64_t received_before


cdef struct _bytes_out:
    uint8_t *data
    size_t begin, end, capacity


cdef int _out_reserve(_bytes_out *out, size_t room) except -1:
    cdef size_t used = out.end - out.begin
    cdef size_t capacity
    cdef uint8_t *grown
    if out.capacity - out.end >= room:
        return 0
    if out.begin and used:
        memmove(out.data, out.data + out.begin, used)
    out.begin = 0
    out.end = used
    if out.capacity - used >= room:
        return 0
    capacity = max(out.capacity * 2, used + room, <size_t>_FLUSH_BYTES)
    grown = <uint8_t *>realloc(out.data, capacity)
    if grown is NULL:
        raise MemoryError
    out.data = grown
    out.capacity = capacity
    return 0


cdef void _out_empty(_bytes_out *out) noexcept:
    out.begin = out.end = 0
    if out.capacity > _INPUT_BYTES_KEPT:
        free(out.data)
        out.data = NULL
        out.capacity = 0


cdef size_t _write_request(int kind, object request, uint8_t *into, size_t capacity, cmq_header_format format,
                           int32_t opaque, bint is_oneway,
                           cmq_slice *body_out) except? 0:
    """Prefix and header. Bytes beyond the capacity are not written."""
    cdef cmq_command_writer writer
    cdef cmq_slice note = _NO_BYTES
    cdef int32_t flag = CMQ_COMMAND_ONEWAY if is_oneway else 0
    cdef int32_t code
    cdef str name, value
    if kind == _KIND_SEND:
        body_out[0] = _slice_of_bytes((<SendRequest>request).body)
        cmq_command_begin(&writer, into, capacity, format, (<SendRequest>request).code, opaque, flag, note)
        (<SendRequest>request)._write(&writer)
    elif kind == _KIND_PULL:
        body_out[0] = _NO_BYTES
        cmq_command_begin(&writer, into, capacity, format, (<PullRequest>request)._code(), opaque, flag, note)
        (<PullRequest>request)._write(&writer)
    else:
        code = request.code
        if not -0x8000 <= code <= 0x7FFF:
            format = CMQ_HEADER_JSON      # the other one has 16 bits for it, and Java's brokers do not guess the rest
        body_out[0] = _slice_of_bytes(request.body)
        flag |= <int32_t>request.flag
        if request.remark is not None:
            note = _slice_of_text(request.remark)
        cmq_command_begin(&writer, into, capacity, format, code, opaque, flag, note)
        writer.language = request.language
        writer.version = request.version
        for name, value in request.fields.items():
            cmq_command_add_text(&writer, _slice_of_text(name), _slice_of_text(value))
    return cmq_command_end(&writer, body_out.bytes)


cdef int32_t _code_of(int kind, object request) except? -1:
    if kind == _KIND_SEND:
        return (<SendRequest>request).code
    if kind == _KIND_PULL:
        return (<PullRequest>request)._code()
    return request.code


cdef int _append_request(_bytes_out *out, int kind, object request, cmq_header_format format, int32_t opaque,
                         bint is_oneway) except -1:
    cdef cmq_slice body = _NO_BYTES
    cdef size_t header_bytes, room
    if kind == _KIND_SEND:
        room = (_HEADER_ROOM_BYTES + <size_t>len((<SendRequest>request).properties)
                + <size_t>len((<SendRequest>request).body))
    else:
        room = _HEADER_ROOM_BYTES
    _out_reserve(out, room)
    header_bytes = _write_request(kind, request, out.data + out.end, out.capacity - out.end, format, opaque, is_oneway,
                                  &body)
    if header_bytes == 0:
        raise _errors.InvalidArgument(f"code {_code_of(kind, request)}: no frame can hold this header and a body of "
                                      f"{_counted(body.bytes, 'byte')}")
    if header_bytes + body.bytes > out.capacity - out.end:
        _out_reserve(out, header_bytes + body.bytes)
        _write_request(kind, request, out.data + out.end, out.capacity - out.end, format, opaque, is_oneway, &body)
    if body.bytes:
        memcpy(out.data + out.end + header_bytes, body.data, body.bytes)
    out.end += header_bytes + body.bytes
    return 0


cdef int _kind_of(object request):
    if type(request) is SendRequest:
        return _KIND_SEND
    return _KIND_PULL if type(request) is PullRequest else _KIND_COMMAND


def encode_request(request, *, int format, int32_t opaque=0, bint is_oneway=False):
    """Return the frame of a SendRequest, a PullRequest or a Command as a connection sends it."""
    cdef _bytes_out out
    memset(&out, 0, sizeof(out))
    try:
        _append_request(&out, _kind_of(request), request, <cmq_header_format>format, opaque, is_oneway)
        return PyBytes_FromStringAndSize(<const char *>out.data, <Py_ssize_t>out.end)
    finally:
        free(out.data)


def read_answer(request, const uint8_t[::1] frame not None):
    """Return the SendAnswer or PullAnswer that a frame is to the request. MalformedCommand where it is not one."""
    cdef cmq_slice slice
    cdef cmq_frame cut
    cdef cmq_command command
    cdef size_t needed = 0
    cdef uint8_t *scratch
    slice.bytes = <size_t>frame.shape[0]
    slice.data = &frame[0] if slice.bytes else NULL
    cdef cmq_status status = cmq_frame_next(slice, CMQ_FRAME_BYTES_MAX, &cut, &needed)
    if status == CMQ_AGAIN:
        raise _errors.MalformedCommand("the bytes end within the frame")
    if status != CMQ_OK:
        raise _bad_answer(status)
    scratch = <uint8_t *>malloc(cut.header.bytes + 1)
    if scratch is NULL:
        raise MemoryError
    try:
        status = cmq_command_parse(&cut, scratch, cut.header.bytes, &command)
        outcome = _bad_answer(status) if status != CMQ_OK else _answer_of(_kind_of(request), &cut, &command)
    finally:
        free(scratch)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


cdef object _answer_of(int kind, const cmq_frame *frame, const cmq_command *command):
    if kind == _KIND_SEND:
        return _send_answer(command)
    if kind == _KIND_PULL:
        return _pull_answer(frame, command)
    return _command_tuple(frame, command)


@cython.final
cdef class Link:
    """One connection.

    Made on the loop's thread, which alone calls receive, flush, expire and close; begin may be called by any thread.

    ``wake()`` is called, at most once until the next turn(), by a thread that needs the loop's: to write, or to look at
    the clock earlier. ``on_request(tuple)`` gets what the server asks, ``on_go_away(request, on_answer, deadline_ms,
    timeout_ms)`` a request that is to be made again elsewhere. Exceptions of callbacks are given to ``on_failure``.
    """
    cdef int _fd
    cdef unsigned long _forks
    cdef unsigned long _thread
    cdef cmq_header_format _format
    cdef object _wake, _on_request, _on_go_away, _on_failure
    cdef object _interruption
    cdef list _on_answers, _requests
    cdef _slot *_slots
    cdef uint32_t _capacity, _waiting, _pulls, _oneways
    cdef uint32_t _next_opaque
    cdef _bytes_out _filling, _going
    cdef uint8_t *_input
    cdef size_t _input_begin, _input_end, _input_capacity
    cdef bint _writing, _blocked, _receiving, _wake_asked, _closed, _was_full
    cdef int _write_errno
    cdef int64_t _earliest_ms, _active_ms
    cdef int64_t _frame_ms                    # since when a frame is there in part; -1: none is
    cdef uint64_t _received_bytes, _dropped

    def __cinit__(self):
        self._fd = -1

    def __init__(self, int fd, *, int format, wake not None, on_request not None, on_go_away not None,
                 on_failure not None):
        if self._fd >= 0 or self._closed:
            raise RuntimeError("this link was made before")
        self._forks = _forks
        self._thread = PyThread_get_thread_ident()
        self._format = <cmq_header_format>format
        self._wake = wake
        self._on_request = on_request
        self._on_go_away = on_go_away
        self._on_failure = on_failure
        self._slots = <_slot *>calloc(_SLOTS_MIN, sizeof(_slot))
        if self._slots is NULL:
            raise MemoryError
        self._capacity = _SLOTS_MIN
        self._on_answers = [None] * _SLOTS_MIN
        self._requests = [None] * _SLOTS_MIN
        self._earliest_ms = INT64_MAX
        self._active_ms = _monotonic_ms()
        self._frame_ms = -1
        self._fd = fd

    def __dealloc__(self):
        # A thread that writes holds the object, so nobody does here. In a forked child this closes its own copy of the
        # descriptor.
        if self._fd >= 0:
            _close_fd(self._fd)
        free(self._slots)
        free(self._filling.data)
        free(self._going.data)
        free(self._input)

    def __repr__(self):
        state = "closed" if self._closed else f"fd {self._fd}"
        return f"<Link {state} {_counted(self._waiting, 'request')} waiting>"

    # ---- its state

    @property
    def waiting(self):
        """Requests that wait for their answers."""
        return self._waiting

    @property
    def unsent_bytes(self):
        """Bytes that wait to be written."""
        return self._unsent()

    @property
    def dropped_answers(self):
        """Answers that nobody waited for: they came twice, or too late."""
        return self._dropped

    @property
    def received_bytes(self):
        """Bytes that came."""
        return self._received_bytes

    @property
    def earliest_ms(self):
        """No request ends before that time of the monotonic clock."""
        return self._earliest_ms

    @property
    def active_ms(self):
        """When a byte went either way, by the monotonic clock."""
        return self._active_ms

    @property
    def is_blocked(self):
        """True when the socket takes no more: call flush() when it does again."""
        return self._blocked

    @property
    def write_errno(self):
        """Why a write failed, or 0. The connection is to be closed then."""
        return self._write_errno

    @property
    def is_closed(self):
        """True when it takes nothing more."""
        return self._closed

    cdef size_t _unsent(self) noexcept:
        return self._filling.end - self._filling.begin + self._going.end - self._going.begin

    cdef int _check_process(self) except -1:
        if self._forks != _forks:
            raise _errors.ForkedClient("this connection was made before the process forked: make a new client in the "
                                       "child")
        return 0

    # ---- requests

    def begin(self, request, on_answer, int64_t timeout_ms, int64_t deadline_ms=-1, bint is_again=False):
        """Number a request and send it; False when the link is closed.

        ``on_answer`` None: one-way. The deadline is given where it began to wait before; ``is_again`` where it is not
        to be sent away once more.

        LimitReached when too much waits, InvalidArgument for what no frame can hold; nothing was sent then.
        """
        return self._begin(_kind_of(request), request, on_answer, timeout_ms, deadline_ms, is_again)

    cdef bint _begin(self, int kind, object request, object on_answer, int64_t timeout_ms, int64_t deadline_ms,
                     bint is_again) except -1:
        cdef uint32_t unanswered
        cdef int32_t opaque
        cdef bint is_earlier = False
        self._check_process()
        if self._closed:
            return False
        if self._waiting >= _WAITING_MAX:
            raise _errors.LimitReached(f"{_WAITING_MAX} requests of this connection wait for their answers already: "
                                       f"send slower, or wait for answers")
        if self._unsent() > _UNSENT_BYTES_MAX:
            raise _errors.LimitReached(f"{_UNSENT_BYTES_MAX} bytes wait to be sent on this connection already: the "
                                       f"server reads too slowly")
        unanswered = self._waiting - self._pulls + self._oneways
        opaque = self._free_opaque()
        try:
            _append_request(&self._filling, kind, request, self._format, opaque, on_answer is None)
        except (UnicodeError, TypeError, AttributeError, OverflowError) as error:
            raise _errors.InvalidArgument(f"the request cannot be written: {error}") from error
        if self._closed:   # meanwhile, by another thread that had its turn
            return False
        if on_answer is None:
            self._oneways += 1
        else:
            if deadline_ms < 0:
                deadline_ms = _monotonic_ms() + timeout_ms
            self._take_slot(opaque, kind, request, on_answer, timeout_ms, deadline_ms, is_again)
            is_earlier = deadline_ms < self._earliest_ms
            if is_earlier:
                self._earliest_ms = deadline_ms
        self._sent_more(unanswered, is_earlier)
        return True

    def reply(self, bytes frame not None):
        """Send an answer's frame; False when the link is closed. On the loop's thread."""
        self._check_process()
        if self._closed:
            return False
        _out_reserve(&self._filling, <size_t>len(frame))
        memcpy(self._filling.data + self._filling.end, PyBytes_AS_STRING(<PyObject *>frame), <size_t>len(frame))
        self._filling.end += <size_t>len(frame)
        self._sent_more(0, False)
        return True

    cdef int _sent_more(self, uint32_t unanswered, bint is_earlier) except -1:
        """Something lies behind the output: write it, or see that it is written."""
        cdef bint on_loop = PyThread_get_thread_ident() == self._thread
        if not (self._writing or self._blocked or self._receiving):
            if unanswered < (<uint32_t>_UNANSWERED_LOOP if on_loop
                             else <uint32_t>_UNANSWERED_OTHERS) or self._unsent() >= _FLUSH_BYTES:
                self._write(not on_loop)
            else:
                is_earlier = True
        if is_earlier or self._blocked or self._write_errno:
            self._ask()
        return 0

    cdef int _ask(self) except -1:
        if not self._wake_asked:
            self._wake_asked = True
            try:
                self._wake()
            except BaseException:
                # Ctrl-C came before it, or within: asked for twice is asked for.
                self._wake_asked = False
                self._wake()
                raise
        return 0

    cdef int32_t _free_opaque(self) except -1:
        cdef uint32_t opaque
        if self._waiting * 2 >= self._capacity:
            self._grow()
        # Numbers follow each other; the place of one is its low bits. One whose place a request has that waits for long
        # is passed over.
        while True:
            opaque = self._next_opaque
            self._next_opaque = (opaque + 1) & 0x7FFFFFFF
            if not self._slots[opaque & (self._capacity - 1)].is_taken:
                return <int32_t>opaque

    cdef int _grow(self) except -1:
        cdef uint32_t before = self._capacity
        cdef uint32_t capacity = before * 2
        cdef list on_answers = [None] * capacity
        cdef list requests = [None] * capacity
        cdef uint32_t i, at
        cdef _slot *slots
        # Memory may have been collected just now, and another thread have had its turn and grown it.
        if self._capacity != before:
            return 0
        slots = <_slot *>calloc(capacity, sizeof(_slot))
        if slots is NULL:
            raise MemoryError
        for i in range(self._capacity):
            if self._slots[i].is_taken:
                at = <uint32_t>self._slots[i].opaque & (capacity - 1)
                slots[at] = self._slots[i]
                on_answers[at] = self._on_answers[i]
                requests[at] = self._requests[i]
        free(self._slots)
        self._slots = slots
        self._capacity = capacity
        self._on_answers = on_answers
        self._requests = requests
        return 0

    cdef int _take_slot(self, int32_t opaque, int kind, object request, object on_answer, int64_t timeout_ms,
                        int64_t deadline_ms,
                        bint is_again) except -1:
        cdef uint32_t at = <uint32_t>opaque & (self._capacity - 1)
        cdef _slot *slot = &self._slots[at]
        slot.opaque = opaque
        slot.kind = <uint8_t>kind
        slot.is_taken = True
        slot.is_again = is_again
        slot.timeout_ms = timeout_ms
        slot.deadline_ms = deadline_ms
        slot.received_before = self._received_bytes
        self._on_answers[at] = on_answer
        self._requests[at] = request
        self._waiting += 1
        self._pulls += kind == _KIND_PULL
        return 0

    cdef object _free_slot(self, uint32_t at):
        """Free a place; returns who waited there."""
        on_answer = self._on_answers[at]
        self._on_answers[at] = None
        self._requests[at] = None
        self._slots[at].is_taken = False
        self._waiting -= 1
        self._pulls -= self._slots[at].kind == _KIND_PULL
        return on_answer

    # ---- out

    cdef int _write(self, bint release) except -1:
        """Write what waits. Without the GIL where asked for; not while another thread writes."""
        cdef ssize_t count
        cdef int error, fd
        cdef unsigned rounds = 0
        cdef uint8_t *data
        cdef size_t bytes_left
        if self._writing or self._closed or self._write_errno:
            return 0
        self._writing = True
        while True:
            if self._going.begin == self._going.end:
                _out_empty(&self._going)
                if self._filling.begin == self._filling.end:
                    self._blocked = False
                    break
                self._going, self._filling = self._filling, self._going
            if rounds == _WRITES_IN_ROW:
                self._ask()
                break
            rounds += 1
            fd = self._fd
            data = self._going.data + self._going.begin
            bytes_left = self._going.end - self._going.begin
            if release:
                with nogil:
                    count = _socket_send(fd, data, bytes_left, MSG_NOSIGNAL | MSG_DONTWAIT)
                    error = errno
            else:
                count = _socket_send(fd, data, bytes_left, MSG_NOSIGNAL | MSG_DONTWAIT)
                error = errno
            if self._closed:
                break
            if count >= 0:
                self._going.begin += <size_t>count
                self._active_ms = _monotonic_ms()
            elif error == EAGAIN:
                self._blocked = True
                break
            elif error != EINTR:
                self._write_errno = error
                break
        self._writing = False
        if self._closed:
            self._let_go()
        return 0

    def flush(self):
        """Write what waits, as much as the socket takes."""
        self._check_process()
        self._blocked = False
        self._write(False)

    def turn(self):
        """The loop's turn after wake(): write what waits. Ask earliest_ms, is_blocked and write_errno then."""
        self._check_process()
        self._wake_asked = False
        self._oneways = 0
        if not self._blocked:
            self._write(False)

    # ---- in

    cdef int _input_room(self) except -1:
        """Make room behind the bytes that wait.

        The buffer doubles as bytes arrive: a large announced length alone allocates nothing.
        """
        cdef size_t used = self._input_end - self._input_begin
        cdef size_t capacity
        cdef uint8_t *grown
        if self._input_begin and used:
            memmove(self._input, self._input + self._input_begin, used)
        self._input_begin = 0
        self._input_end = used
        if used == 0 and self._input_capacity > _INPUT_BYTES_KEPT:
            free(self._input)
            self._input = NULL
            self._input_capacity = 0
        capacity = max(self._input_capacity, <size_t>_INPUT_BYTES)
        if used == capacity or (self._was_full and capacity < _INPUT_BYTES_KEPT):
            capacity *= 2
        if capacity > self._input_capacity:
            grown = <uint8_t *>realloc(self._input, capacity)
            if grown is NULL:
                raise MemoryError
            self._input = grown
            self._input_capacity = capacity
        return 0

    def receive(self):
        """Read once from the socket and hand out what came; False when the other side has ended.

        MalformedCommand for what no frame can be, OSError for what the socket says: close the link then.
        """
        cdef ssize_t count
        cdef int error
        self._check_process()
        if self._closed:
            return False
        self._input_room()
        count = _socket_recv(self._fd, self._input + self._input_end, self._input_capacity - self._input_end,
                             MSG_DONTWAIT)
        if count < 0:
            if errno == EAGAIN or errno == EINTR:
                return True
            error = errno
            raise OSError(error, _os_strerror(error))
        if count == 0:
            return False
        self._received_bytes += <uint64_t>count
        self._active_ms = _monotonic_ms()
        self._input_end += <size_t>count
        self._was_full = self._input_end == self._input_capacity
        self._receiving = True
        try:
            self._take_frames()
        finally:
            self._receiving = False
            if not self._closed and not self._blocked:
                self._write(False)
        if self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            raise interruption
        return True

    cdef int _take_frames(self) except -1:
        """Hand out all whole frames."""
        cdef cmq_slice rest
        cdef cmq_frame frame
        cdef size_t needed = 0
        cdef cmq_status status
        while not self._closed:
            rest.data = self._input + self._input_begin
            rest.bytes = self._input_end - self._input_begin
            status = cmq_frame_next(rest, CMQ_FRAME_BYTES_MAX, &frame, &needed)
            if status == CMQ_AGAIN:
                if rest.bytes and self._frame_ms < 0:
                    self._frame_ms = self._active_ms
                return 0
            if status != CMQ_OK:
                raise _bad_answer(status)
            self._input_begin += frame.bytes
            self._frame_ms = -1
            self._take_frame(&frame)
        return 0

    cdef int _take_frame(self, const cmq_frame *frame) except -1:
        cdef cmq_command command
        cdef uint8_t near[_SCRATCH_BYTES]
        cdef uint8_t *scratch = near
        cdef cmq_status status
        cdef int kind = _KIND_COMMAND
        cdef object outcome = None
        cdef object on_answer = None
        if frame.header.bytes > _SCRATCH_BYTES:
            scratch = <uint8_t *>malloc(frame.header.bytes)
            if scratch is NULL:
                raise MemoryError
        try:
            status = cmq_command_parse(frame, scratch, frame.header.bytes, &command)
            if status != CMQ_OK and status != CMQ_ERR_LIMIT:
                raise _bad_answer(status)
            if not command.flag & CMQ_COMMAND_RESPONSE:
                if status == CMQ_OK:
                    self._call(self._on_request, _command_tuple(frame, &command))
                else:
                    self._on_failure(_bad_answer(status))
                return 0
            on_answer = self._take_answer(&command, &kind)
            if on_answer is None:
                return 0
            outcome = _bad_answer(status) if status != CMQ_OK else _answer_of(kind, frame, &command)
        finally:
            if scratch != near:
                free(scratch)
        self._call(on_answer, outcome)
        return 0

    cdef object _take_answer(self, const cmq_command *command, int *kind):
        """The waiter for an answer; None without one, or when the request is made again elsewhere."""
        cdef uint32_t at = <uint32_t>command.opaque & (self._capacity - 1)
        cdef _slot *slot = &self._slots[at]
        cdef int64_t deadline_ms, timeout_ms
        if not command.has_opaque or not slot.is_taken or slot.opaque != command.opaque:
            self._dropped += 1
            return None
        kind[0] = slot.kind
        if command.code == _GO_AWAY_CODE and not slot.is_again:
            request = self._requests[at]
            deadline_ms = slot.deadline_ms
            timeout_ms = slot.timeout_ms
            on_answer = self._free_slot(at)
            try:
                self._on_go_away(request, on_answer, deadline_ms, timeout_ms)
            except Exception as error:
                self._on_failure(error)
            return None
        return self._free_slot(at)

    cdef int _call(self, object function, object value) except -1:
        try:
            function(value)
        except Exception as error:
            self._on_failure(error)
        except BaseException as error:
            self._interruption = error     # once the others have got their answers
        return 0

    # ---- ends

    def expire(self, int64_t now_ms):
        """Free the requests whose time is over: a list of (on_answer, code, timeout_ms, whether the other side is taken
        for dead).

        It is stuck if nothing has come since the request was sent, or if the frame being received began FRAME_MS ago: a
        peer that has lost a byte of its frames would otherwise leave every further request unanswered.
        """
        cdef list over = []
        cdef uint32_t i
        cdef _slot *slot
        cdef bint is_stuck = self._frame_ms >= 0 and now_ms - self._frame_ms >= _FRAME_MS_MAX
        self._earliest_ms = INT64_MAX
        for i in range(self._capacity):
            slot = &self._slots[i]
            if not slot.is_taken:
                continue
            if slot.deadline_ms > now_ms:
                self._earliest_ms = min(self._earliest_ms, slot.deadline_ms)
                continue
            code = _code_of(slot.kind, self._requests[i])
            is_dead = is_stuck or slot.received_before == self._received_bytes
            timeout_ms = slot.timeout_ms
            over.append((self._free_slot(i), code, timeout_ms, is_dead))
        return over

    def close(self):
        """Close the socket; returns what on_answer functions still waited. Closing twice is fine."""
        cdef list left = []
        cdef uint32_t i
        if self._closed:
            return left
        self._closed = True
        if not self._writing:
            self._let_go()
        elif self._forks == _forks:
            # The thread that writes closes it: its number must not be given to another socket meanwhile.
            _socket_shutdown(self._fd, SHUT_RDWR)
        for i in range(self._capacity):
            if self._slots[i].is_taken:
                left.append(self._free_slot(i))
        return left

    cdef void _let_go(self) noexcept:
        if self._fd >= 0:
            _close_fd(self._fd)
        self._fd = -1
