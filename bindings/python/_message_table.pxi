# MessageTable: a consumer's messages of one queue, by offset. cometmq.client.group.process_queue decides with it.
#
# Entries lie in one array, ascending, and what a pull brings nearly always belongs behind all of them; so to put, find
# and remove a message is a few nanoseconds and no allocation. One that was removed in the middle stays as a gap until
# it is at an end: the array is as long as the span of the unfinished offsets, which the gates before a pull limit.

cdef struct _table_entry:
    int64_t offset
    int64_t bytes
    PyObject *message                # NULL: a gap
    bint is_taken


@cython.no_gc
cdef class MessageTable:
    """Messages by their offsets: those that wait, and those that were taken and are not finished. For one thread.

    A message is anything with ``queue_offset`` and ``body_size``, which must not change.
    """
    cdef _table_entry *_entries
    cdef size_t _begin, _end, _capacity
    cdef size_t _next                # where what is looked for next probably is
    cdef Py_ssize_t _count, _taken
    cdef int64_t _size_bytes, _last_new

    def __dealloc__(self):
        self._forget()
        free(self._entries)

    @property
    def count(self):
        """Messages held."""
        return self._count

    @property
    def size_bytes(self):
        """Bytes of their bodies."""
        return self._size_bytes

    @property
    def waiting(self):
        """How many of them were not taken."""
        return self._count - self._taken

    @property
    def waiting_bounds(self):
        """The first and the last offset that wait, or None."""
        cdef size_t first = self._first_waiting()
        return None if first == self._end else (self._entries[first].offset, self._entries[self._last_waiting()].offset)

    @property
    def taken_bounds(self):
        """The first and the last offset that were taken, or None."""
        cdef size_t i
        cdef object first = None
        cdef int64_t last = 0
        for i in range(self._begin, self._end):
            if self._entries[i].message is not NULL and self._entries[i].is_taken:
                last = self._entries[i].offset
                if first is None:
                    first = last
        return None if first is None else (first, last)

    @property
    def max_span(self):
        """Offsets between the first and the last message that wait."""
        cdef size_t first = self._first_waiting()
        return 0 if first == self._end else self._entries[self._last_waiting()].offset - self._entries[first].offset

    # ---- adding messages

    def put_all(self, messages):
        """Take messages. One that is held already is replaced and counts once."""
        cdef object message
        cdef int64_t offset, size
        for message in messages:
            if type(message) is ReceivedMessage:
                offset = (<ReceivedMessage>message)._queue_offset
                size = (<int64_t>(<ReceivedMessage>message)._view.body.bytes if (<ReceivedMessage>message)._parsed
                        else message.body_size)
            else:
                offset = message.queue_offset
                size = message.body_size
            self._put(offset, size, message)

    cdef int _put(self, int64_t offset, int64_t size, object message) except -1:
        cdef size_t at
        cdef PyObject *replaced
        if self._begin == self._end or offset > self._entries[self._end - 1].offset:
            self._reserve()
            at = self._end
            self._end += 1
        else:
            at = self._at_or_behind(offset)
            if self._entries[at].offset != offset:
                at = self._make_room(at)
            elif self._entries[at].message is not NULL:
                self._size_bytes += size - self._entries[at].bytes
                self._entries[at].bytes = size
                replaced = self._entries[at].message
                self._entries[at].message = <PyObject *>message
                Py_INCREF_BORROWED(<PyObject *>message)
                Py_DECREF_BORROWED(replaced)
                return 0
        Py_INCREF_BORROWED(<PyObject *>message)
        self._entries[at].offset = offset
        self._entries[at].bytes = size
        self._entries[at].message = <PyObject *>message
        self._entries[at].is_taken = False
        self._count += 1
        self._size_bytes += size
        self._last_new = offset
        return 0

    cdef int _reserve(self) except -1:
        """Make room for one entry behind the last."""
        cdef size_t used = self._end - self._begin
        cdef size_t capacity
        cdef _table_entry *grown
        if self._end < self._capacity:
            return 0
        if self._begin and used <= self._capacity // 2:
            memmove(self._entries, self._entries + self._begin, used * sizeof(_table_entry))
            self._begin = 0
            self._end = used
            return 0
        capacity = max(<size_t>64, self._capacity * 2)
        grown = <_table_entry *>realloc(self._entries, capacity * sizeof(_table_entry))
        if grown is NULL:
            raise MemoryError
        self._entries = grown
        self._capacity = capacity
        return 0

    cdef size_t _make_room(self, size_t at) except? 0:
        """Move the entries from there on one place back; returns the place, which is a gap."""
        cdef size_t behind = self._end - at
        self._reserve()
        at = self._end - behind
        memmove(self._entries + at + 1, self._entries + at, behind * sizeof(_table_entry))
        self._end += 1
        self._entries[at].message = NULL
        return at

    # ---- where it is

    cdef size_t _at_or_behind(self, int64_t offset) noexcept:
        """The entry of that offset, or the first behind it; the end where there is none."""
        cdef size_t low = self._begin
        cdef size_t high = self._end
        cdef size_t middle
        if low <= self._next < high and self._entries[self._next].offset == offset:
            return self._next
        while low < high:
            middle = low + (high - low) // 2
            if self._entries[middle].offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef size_t _find(self, object message, bint is_taken) except? 0:
        """The entry of a message that waits, or of one that was taken; the end where there is none."""
        cdef int64_t offset = ((<ReceivedMessage>message)._queue_offset if type(message) is ReceivedMessage
                               else message.queue_offset)
        cdef size_t at = self._at_or_behind(offset)
        self._next = at + 1
        if (at == self._end or self._entries[at].offset != offset or self._entries[at].message is NULL
                or self._entries[at].is_taken != is_taken):
            return self._end
        return at

    cdef size_t _first_waiting(self) noexcept:
        cdef size_t at = self._begin
        if self._count == self._taken:
            return self._end
        while self._entries[at].message is NULL or self._entries[at].is_taken:
            at += 1
        return at

    cdef size_t _last_waiting(self) noexcept:
        """Where the last is that waits; one must."""
        cdef size_t at = self._end - 1
        while self._entries[at].message is NULL or self._entries[at].is_taken:
            at -= 1
        return at

    def contains(self, message):
        """Whether the message still waits to be finished."""
        return self._find(message, False) != self._end

    def first(self):
        """Return the first message that waits, or None."""
        cdef size_t at = self._first_waiting()
        return None if at == self._end else <object>self._entries[at].message

    # ---- removing messages

    cdef void _drop(self, size_t at) noexcept:
        """Let one message go."""
        cdef PyObject *message = self._entries[at].message
        self._entries[at].message = NULL
        self._count -= 1
        self._taken -= self._entries[at].is_taken
        self._size_bytes -= self._entries[at].bytes
        while self._begin < self._end and self._entries[self._begin].message is NULL:
            self._begin += 1
        while self._begin < self._end and self._entries[self._end - 1].message is NULL:
            self._end -= 1
        if self._begin == self._end:
            self._begin = self._end = 0
        # Last: a message's destructor must find the table whole.
        Py_DECREF_BORROWED(message)

    def remove_all(self, messages):
        """Let messages go that wait; returns the first offset that then waits, else the one behind the last that came,
        or -1 where none waited.
        """
        cdef object message
        cdef size_t at
        if self._count == self._taken:
            return -1
        for message in messages:
            at = self._find(message, False)
            if at != self._end:
                self._drop(at)
        at = self._first_waiting()
        return self._last_new + 1 if at == self._end else self._entries[at].offset

    def take_first(self, Py_ssize_t most):
        """Return the first messages that wait, which are taken then."""
        cdef list taken = []
        cdef size_t at = self._first_waiting()
        while at < self._end and len(taken) < most:
            if self._entries[at].message is not NULL and not self._entries[at].is_taken:
                taken.append(<object>self._entries[at].message)
                self._entries[at].is_taken = True
                self._taken += 1
            at += 1
        return taken

    def finish(self, messages=None):
        """Let messages go that were taken, all of them or these; returns the greatest offset of them, or -1."""
        cdef object message
        cdef int64_t greatest = -1
        cdef size_t at
        for message in self._all_taken() if messages is None else messages:
            at = self._find(message, True)
            if at != self._end:
                greatest = max(greatest, self._entries[at].offset)
                self._drop(at)
        return greatest

    def put_back(self, messages=None):
        """Let messages that were taken, all of them or these, wait again."""
        cdef object message
        cdef size_t at
        for message in self._all_taken() if messages is None else messages:
            at = self._find(message, True)
            if at != self._end:
                self._entries[at].is_taken = False
                self._taken -= 1

    cdef list _all_taken(self):
        cdef size_t i
        return [<object>self._entries[i].message for i in range(self._begin, self._end)
                if self._entries[i].message is not NULL and self._entries[i].is_taken]

    def clear(self):
        """Let every message go."""
        self._forget()

    cdef void _forget(self) noexcept:
        cdef _table_entry *entries = self._entries
        cdef size_t begin = self._begin
        cdef size_t end = self._end
        cdef size_t i
        self._entries = NULL
        self._begin = self._end = self._capacity = self._next = 0
        self._count = self._taken = 0
        self._size_bytes = self._last_new = 0
        for i in range(begin, end):
            if entries[i].message is not NULL:
                Py_DECREF_BORROWED(entries[i].message)
        free(entries)
