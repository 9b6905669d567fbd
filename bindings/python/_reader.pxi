# Reader: messages in batches from the engine, one by one to Python. The GIL is released once per batch.

@cython.final
@cython.no_gc_clear
cdef class Reader:
    """An iterator over stored messages. One thread at a time.

    With ``follow`` it waits for new messages, for ``timeout_ms`` at most (-1: for ever) each time; then, or at the end,
    iteration stops, and may be taken up again later. Without ``topics`` it reads the whole log; ``only_queued`` leaves
    out what no queue has (deleted topics). ``starts`` says where to begin in single queues, and has the reader keep its
    positions. A damaged record raises CorruptRecord; iteration may go on behind it.
    """
    cdef StoreHandle _handle
    cdef cmq_reader *_reader
    cdef PyObject *_next_reader      # links of the handle's open readers
    cdef PyObject *_previous_reader
    cdef _Batch _batch               # being handed out
    cdef uint32_t _at
    cdef uint32_t _folded            # items of the batch that _positions knows of
    cdef dict _starts                # as given
    # (topic, queue id) -> next offset, of queues with a given start or a message handed out; None: not kept
    cdef dict _positions
    cdef list _elements              # of an inner batch being handed out
    cdef Py_ssize_t _element_at
    cdef object _failure             # error behind the messages that fetch() returned; the next call raises it
    cdef bint _ended
    cdef bint _busy
    cdef bint _follow
    cdef bint _unwrap
    cdef frozenset _tags
    cdef Selector _where
    cdef bint _backwards
    cdef int64_t _timeout_ms
    cdef int64_t _seen_end
    cdef int64_t _first              # queue offsets asked for, where they were
    cdef int64_t _last
    cdef uint32_t _batch_messages
    cdef str _called                 # in errors: a reader, or the consumer that it belongs to
    cdef object __weakref__

    def __init__(self, StoreHandle handle not None, *, topics=(), queue_ids=(), tags=(), Selector where=None,
                 bint backwards=False,
                 start=None, end=None,
                 start_time_ms=None, end_time_ms=None, start_physical=None, bint only_queued=False, dict starts=None,
                 bint may_be_missing=False,
                 bint follow=False, int64_t timeout_ms=-1, bint unwrap=True, uint32_t batch_messages=DEF_FETCH,
                 str called not None="reader"):
        if self._handle is not None:
            raise RuntimeError("this reader was opened before")
        self._called = called
        cdef cmq_read_options options
        cdef cmq_status status
        cdef _Column topic_column = _column_of(tuple(topics), "topics", _TEXTS)
        cdef _Column tag_column = _column_of(tuple(tags), "tags", _TEXTS)
        cdef bytes ids = None
        cdef cmq_read_start *places = NULL
        memset(&options, 0, sizeof(options))
        options.topics = topic_column.slices
        options.topic_count = <uint32_t>topic_column.count
        options.tags = tag_column.slices
        options.tag_count = <uint32_t>tag_column.count
        queue_ids = tuple(queue_ids)
        if queue_ids:
            ids = _queue_ids_of(queue_ids, len(queue_ids), 0x7FFFFFFF, -1)
            options.queue_ids = <const int32_t *>PyBytes_AS_STRING(<PyObject *>ids)
            options.queue_id_count = <uint32_t>len(queue_ids)
        options.where = where._program if where is not None else NULL
        options.check_crc = True
        options.backwards = backwards
        options.has_start = start is not None
        options.start = start if start is not None else 0
        options.has_end = end is not None
        options.end = end if end is not None else 0
        options.has_start_time = start_time_ms is not None
        options.start_time_ms = start_time_ms if start_time_ms is not None else 0
        options.has_end_time = end_time_ms is not None
        options.end_time_ms = end_time_ms if end_time_ms is not None else 0
        options.has_start_physical = start_physical is not None
        options.start_physical = start_physical if start_physical is not None else 0
        self._first = options.start if options.has_start else 0
        self._last = options.end if options.has_end else 0x7FFFFFFFFFFFFFFF
        self._follow = follow
        self._timeout_ms = timeout_ms
        self._unwrap = unwrap
        self._tags = frozenset(tag if isinstance(tag, str) else bytes(tag).decode() for tag in tags)
        self._where = where
        self._backwards = backwards
        self._batch_messages = batch_messages
        options.only_queued = only_queued
        options.may_be_missing = may_be_missing
        if starts is not None:
            self._starts = dict(starts)
            self._positions = dict(starts)
            places = _starts_of(starts)
            options.starts = places
            options.start_count = <uint32_t>len(starts)
        self._handle = handle
        try:
            handle.enter()
            self._seen_end = cmq_store_confirmed(handle._store)
            with nogil:
                status = cmq_reader_open(handle._store, &options, &self._reader)
            if status == CMQ_OK:
                self._link()
            handle.leave()
            _check_topic(status, ", ".join(topics))
        finally:
            free(places)

    cdef void _link(self) noexcept:
        self._next_reader = self._handle._first_reader
        self._previous_reader = NULL
        if self._next_reader is not NULL:
            (<Reader>self._next_reader)._previous_reader = <PyObject *>self
        self._handle._first_reader = <PyObject *>self

    cdef void _detach(self) noexcept:
        """Close in the engine and leave the handle's list."""
        if self._reader is NULL:
            return
        if self._previous_reader is not NULL:
            (<Reader>self._previous_reader)._next_reader = self._next_reader
        else:
            self._handle._first_reader = self._next_reader
        if self._next_reader is not NULL:
            (<Reader>self._next_reader)._previous_reader = self._previous_reader
        cmq_reader_close(self._reader)
        self._reader = NULL
        self._batch = None
        self._elements = None

    def __dealloc__(self):
        # In a child of a fork the reader is the parent's, and what it would lock may be locked.
        if self._reader is not NULL and self._handle._opened_forks == _forks:
            self._detach()

    @property
    def closed(self):
        """True after close() of the reader or of its store."""
        return self._reader is NULL

    @property
    def seen_end(self):
        """Confirmed end before the last look, for ``wait_more``."""
        return self._seen_end

    def __repr__(self):
        state = "closed" if self.closed else "at its end" if self._ended and not self._pending() else "open"
        return f"<Reader {state}; iterate over it>"

    def close(self):
        """Let go. Messages that were handed out stay valid."""
        if self._reader is NULL:
            return
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this reader")
        if self._handle._opened_forks == _forks:
            self._detach()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    cdef int _hold(self) except -1:
        if self._reader is NULL or self._handle._opened_forks != _forks:
            if self._handle is not None and self._handle.closed:
                raise self._handle._refusal()
            raise _errors.StoreClosed(f"the {self._called} is closed")
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this reader; give each thread one of its own")
        return 0

    cdef bint _fill(self) except -1:
        """Take the next batch from the engine; False when there is nothing now."""
        cdef cmq_status status
        cdef cbool ended = False
        cdef _Batch batch
        self._hold()
        if self._ended:
            return False
        if self._positions is not None:
            self._fold()
        batch = _Batch.make(self._batch_messages)
        status = CMQ_AGAIN
        while status == CMQ_AGAIN:
            self._handle.enter()
            self._busy = True
            with nogil:
                self._seen_end = cmq_store_confirmed(self._handle._store)
                status = cmq_reader_next(self._reader, &batch.found, &ended)
            self._busy = False
            self._handle.leave()
            if status == CMQ_AGAIN:
                PyErr_CheckSignals()
                self._hold()
        _check(status)
        self._ended = ended
        self._batch = batch
        self._at = self._folded = 0
        return batch.found.count > 0

    cdef Message _take(self):
        """The next message of what was fetched, or None."""
        cdef const cmq_found *found
        cdef Message message
        while True:
            if self._elements is not None:
                if self._element_at < len(self._elements):
                    message = <Message>self._elements[self._element_at]
                    self._element_at += 1
                    return message
                self._elements = None
            if self._batch is None or self._at >= self._batch.found.count:
                return None
            found = &self._batch.found.items[self._at]
            self._at += 1
            message = _message_of(self._batch, found)
            if not self._unwrap or (found.count == 1 and not message.is_inner_batch):
                return message
            self._elements = _unwrapped(message, self._first_of(found.queue), self._last)
            if self._tags:    # the engine gives a batch of which one message fits
                self._elements = [one for one in self._elements if one.tags in self._tags]
            if self._where is not None:
                self._elements = [one for one in self._elements if self._where.selects(<Message>one)]
            self._element_at = 0
            if self._backwards:
                self._elements.reverse()

    cdef int64_t _first_of(self, const cmq_queue *queue) except -1:
        """The first offset wanted of a queue: a start may lie in the middle of an inner batch."""
        if self._starts is None or queue is NULL:
            return self._first
        return self._starts.get(_queue_key(queue), self._first)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Message message
        if self._failure is not None:
            self._raise_failure()
        while True:
            message = self._take()
            if message is not None:
                return message
            if self._fill():
                continue
            if self._ended or not self._follow or not self._wait(self._timeout_ms):
                raise StopIteration

    cdef bint _wait(self, int64_t timeout_ms) except -1:
        """Wait for something beyond what was looked at; False when nothing came."""
        self._hold()
        self._busy = True
        try:
            return self._handle.wait_more(self._seen_end, timeout_ms)
        finally:
            self._busy = False

    def fetch(self, Py_ssize_t max_messages=DEF_FETCH, int64_t timeout_ms=0):
        """Up to ``max_messages`` messages; when there is none, wait up to ``timeout_ms`` (-1: for ever) for the first.

        Empty: nothing now.

        A failure behind messages that were found is raised by the next call; this one gives the messages.
        """
        cdef list messages = []
        cdef Message message
        cdef int64_t deadline = _monotonic_ms() + timeout_ms if timeout_ms >= 0 else -1
        cdef int64_t left = -1
        self._hold()
        if self._failure is not None:
            self._raise_failure()
        while len(messages) < max_messages:
            try:
                message = self._take()
                if message is not None:
                    messages.append(message)
                    continue
                if self._fill():
                    continue
            except _errors.Error as error:
                if not messages:
                    raise
                self._failure = error
                break
            if messages or self._ended or timeout_ms == 0:
                break
            if deadline >= 0:
                left = deadline - _monotonic_ms()
                if left <= 0:
                    break
            self._wait(left)
        return messages

    cdef int _raise_failure(self) except -1:
        failure = self._failure
        self._failure = None
        raise failure

    @property
    def ended(self):
        """True when everything that was asked for was read: nothing can follow."""
        return self._ended

    cdef bint _pending(self) noexcept:
        """Are there messages fetched and not handed out?"""
        if self._elements is not None and self._element_at < len(self._elements):
            return True
        return self._batch is not None and self._at < self._batch.found.count

    cdef int _fold(self) except -1:
        """Take what was handed out of the batch into _positions: the last of each queue counts, so from behind."""
        cdef uint32_t end = self._at, i
        cdef const cmq_found *found
        cdef const cmq_queue *before = NULL
        cdef set seen = set()
        if self._batch is None or end == self._folded:
            return 0
        if self._elements is not None and self._element_at < len(self._elements):
            end -= 1    # part of an inner batch
            if self._element_at > 0:
                found = &self._batch.found.items[end]
                key = _queue_key(found.queue)
                self._positions[key] = (<Message>self._elements[self._element_at - 1])._queue_offset + 1
                seen.add(key)
        for i in range(end, self._folded, -1):
            found = &self._batch.found.items[i - 1]
            if found.queue == before:
                continue
            before = found.queue
            key = _queue_key(before)
            if key not in seen:
                seen.add(key)
                self._positions[key] = found.queue_offset + found.count
        self._folded = end
        return 0

    def positions(self):
        """``{(topic, queue_id): next offset}`` behind what was handed out, for a reader with ``starts``.

        Where everything fetched was handed out, messages that the filter passed over count too.
        """
        cdef int64_t offset = 0
        cdef cmq_slice name
        self._hold()
        if self._positions is None:
            raise ValueError("the reader was opened without starts")
        self._handle.enter()
        try:
            self._fold()
            if not self._pending() and self._failure is None:
                for key in list(self._positions):
                    name = _slice_of_text(key[0])
                    if cmq_reader_position(self._reader, name, key[1], &offset) == CMQ_OK:
                        self._positions[key] = max(offset, <int64_t>self._positions[key])
        finally:
            self._handle.leave()
        return dict(self._positions)


cdef enum:
    DEF_KEY_BATCH = 16               # messages of a key search's first step: most often the newest few are wanted


@cython.final
cdef class KeySearch:
    """An iterator over the messages of a topic that have a key, or that unique id, newest first. One thread at a time.

    It returns the messages stored when it was made, and skips those that expire meanwhile. It reads a step at a time,
    and holds no more than that.
    """
    cdef StoreHandle _handle
    cdef cmq_key_search *_search
    cdef _Batch _batch               # being handed out
    cdef uint32_t _at
    cdef uint32_t _step
    cdef bint _busy

    def __init__(self, StoreHandle handle not None, str topic not None, str key not None, *, int64_t begin_ms=0,
                 int64_t end_ms=0x7FFFFFFFFFFFFFFF, uint64_t limit=0, uint64_t misses_max=0, bint only_queued=False):
        if self._handle is not None:
            raise RuntimeError("this search was made before")
        cdef cmq_key_search_options options
        cdef cmq_status status
        options.topic = _slice_of_text(topic)
        options.key = _slice_of_text(key)
        options.begin_ms = begin_ms
        options.end_ms = end_ms
        options.limit = limit
        options.misses_max = misses_max
        options.only_queued = only_queued
        self._step = DEF_KEY_BATCH
        self._handle = handle
        handle.enter()
        with nogil:
            status = cmq_key_search_open(handle._store, &options, &self._search)
        handle.leave()
        _check_topic(status, topic)

    def __dealloc__(self):
        cmq_key_search_close(self._search)

    def __repr__(self):
        return "<KeySearch; iterate over it>"

    def __iter__(self):
        return self

    def __next__(self):
        if self._batch is None or self._at >= self._batch.found.count:
            self._fill()
        if self._batch.found.count == 0:
            raise StopIteration
        self._at += 1
        return _message_of(self._batch, &self._batch.found.items[self._at - 1])

    cdef int _fill(self) except -1:
        """Take the next step; an empty batch is the end."""
        cdef cmq_status status
        cdef _Batch batch
        if self._search is NULL:
            raise TypeError("a search is made by find()")
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this search; give each thread one of its own")
        batch = _Batch.make(self._step)
        self._handle.enter()
        self._busy = True
        with nogil:
            status = cmq_key_search_next(self._search, &batch.found)
        self._busy = False
        self._handle.leave()
        _check(status)
        self._step = min(self._step * 2, <uint32_t>DEF_FETCH)
        self._batch = batch
        self._at = 0
        return 0


cdef tuple _queue_key(const cmq_queue *queue):
    return (<const char *>cmq_queue_topic(queue))[:cmq_queue_topic_bytes(queue)].decode("utf-8",
                                                                                        "replace"), cmq_queue_id(queue)


cdef cmq_read_start *_starts_of(dict starts) except NULL:
    """A C array whose topics are borrowed from the dict's keys."""
    cdef cmq_read_start *places = <cmq_read_start *>malloc((len(starts) + 1) * sizeof(cmq_read_start))
    cdef Py_ssize_t i = 0
    if places is NULL:
        raise MemoryError
    try:
        for (topic, queue_id), offset in starts.items():
            places[i].topic = _slice_of_text(topic)
            places[i].queue_id = queue_id
            places[i].has_end = False
            places[i].offset = offset
            i += 1
    except BaseException:
        free(places)
        raise
    return places
