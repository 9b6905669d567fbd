# ColumnScan: messages as columns, record batch after record batch, through Arrow's C stream interface or one by one.
# Neither needs pyarrow here.
#
# A batch owns its buffers and the pins of what it points into; it outlives scan, handle and store. The engine's calls
# run without the GIL.

cdef dict _SCAN_KINDS = {
    "topic": <int>CMQ_SCAN_TOPIC, "queue_id": <int>CMQ_SCAN_QUEUE_ID, "queue_offset": <int>CMQ_SCAN_QUEUE_OFFSET,
    "body": <int>CMQ_SCAN_BODY, "body_bytes": <int>CMQ_SCAN_BODY_BYTES, "tags": <int>CMQ_SCAN_TAGS,
    "keys": <int>CMQ_SCAN_KEYS,
    "unique_id": <int>CMQ_SCAN_UNIQUE_ID, "born_timestamp": <int>CMQ_SCAN_BORN_TIMESTAMP,
    "store_timestamp": <int>CMQ_SCAN_STORE_TIMESTAMP, "properties": <int>CMQ_SCAN_PROPERTIES,
    "property": <int>CMQ_SCAN_PROPERTY,
    "flag": <int>CMQ_SCAN_FLAG, "sys_flag": <int>CMQ_SCAN_SYS_FLAG, "reconsume_times": <int>CMQ_SCAN_RECONSUME_TIMES,
    "message_id": <int>CMQ_SCAN_MESSAGE_ID, "physical_offset": <int>CMQ_SCAN_PHYSICAL_OFFSET,
    "born_host": <int>CMQ_SCAN_BORN_HOST,
    "store_host": <int>CMQ_SCAN_STORE_HOST, "body_crc": <int>CMQ_SCAN_BODY_CRC,
    "prepared_offset": <int>CMQ_SCAN_PREPARED_OFFSET,
    "constant": <int>CMQ_SCAN_CONSTANT,
}
cdef dict _SCAN_FORMS = {
    "default": <int>CMQ_SCAN_FORM_DEFAULT, "view": <int>CMQ_SCAN_FORM_VIEW, "plain": <int>CMQ_SCAN_FORM_PLAIN,
    "dictionary": <int>CMQ_SCAN_FORM_DICTIONARY, "ms": <int>CMQ_SCAN_FORM_MS, "us": <int>CMQ_SCAN_FORM_US,
}
SCAN_KINDS = tuple(_SCAN_KINDS)
SCAN_FORMS = tuple(_SCAN_FORMS)


cdef class _ScanRequest:
    """The engine's options, and all that they borrow."""
    cdef cmq_scan_options options
    cdef cmq_scan_column *columns
    cdef cmq_read_start *ranges
    cdef list kept

    def __cinit__(self):
        self.kept = []

    def __dealloc__(self):
        free(self.columns)
        free(self.ranges)

    cdef const char *_keep(self, object text) except? NULL:
        cdef bytes encoded
        if text is None:
            return NULL
        encoded = text.encode()
        if 0 in encoded:
            raise _errors.InvalidArgument(f"a column's name or property cannot hold a NUL: {text!r}")
        self.kept.append(encoded)
        return PyBytes_AS_STRING(<PyObject *>encoded)

    cdef const cmq_slice *_slices(self, object values, str name, uint32_t *count_out) except? NULL:
        cdef _Column column
        values = tuple(values)
        count_out[0] = <uint32_t>len(values)
        if not values:
            return NULL
        column = _column_of(values, name, _TEXTS)
        self.kept.append(column)
        return column.slices

    cdef int set_columns(self, list columns) except -1:
        cdef Py_ssize_t i
        self.columns = <cmq_scan_column *>malloc((len(columns) + 1) * sizeof(cmq_scan_column))
        if self.columns is NULL:
            raise MemoryError
        for i in range(len(columns)):
            kind, form, name, prop = columns[i]
            if kind not in _SCAN_KINDS or (form or "default") not in _SCAN_FORMS:
                raise _errors.InvalidArgument(f"column {name!r}: there is no kind {kind!r} in form {form!r}")
            self.columns[i].kind = <cmq_scan_kind><int>_SCAN_KINDS[kind]
            self.columns[i].form = <cmq_scan_form><int>_SCAN_FORMS[form or "default"]
            self.columns[i].name = self._keep(name)
            self.columns[i].property = self._keep(prop)
        self.options.columns = self.columns
        self.options.column_count = <uint32_t>len(columns)
        return 0

    cdef int set_ranges(self, list ranges) except -1:
        """(topic, queue id, start, end) each; end None: to the end of what there is."""
        cdef Py_ssize_t i
        self.ranges = <cmq_read_start *>malloc((len(ranges) + 1) * sizeof(cmq_read_start))
        if self.ranges is NULL:
            raise MemoryError
        for i in range(len(ranges)):
            topic, queue_id, start, end = ranges[i]
            self.kept.append(topic)
            self.ranges[i].topic = _slice_of_text(topic)
            self.ranges[i].queue_id = queue_id
            self.ranges[i].offset = start
            self.ranges[i].has_end = end is not None
            self.ranges[i].end = end if end is not None else 0
        self.options.read.starts = self.ranges
        self.options.read.start_count = <uint32_t>len(ranges)
        self.options.read.only_starts = True
        return 0

    cdef int set_queue_ids(self, object queue_ids) except -1:
        cdef bytes ids
        queue_ids = tuple(queue_ids)
        if queue_ids:
            ids = _queue_ids_of(queue_ids, len(queue_ids), 0x7FFFFFFF, -1)
            self.kept.append(ids)
            self.options.read.queue_ids = <const int32_t *>PyBytes_AS_STRING(<PyObject *>ids)
            self.options.read.queue_id_count = <uint32_t>len(queue_ids)
        return 0


cdef enum:
    _EINTR = 4
    _EIO = 5
    _ENOMEM = 12
    _EBUSY = 16
    _EINVAL = 22


cdef class _Decompressing:
    """The context of the engine's hook: it keeps an exception raised inside."""
    cdef object _hook_failure

    cdef int raise_failure(self) except -1:
        if self._hook_failure is not None:
            error, self._hook_failure = self._hook_failure, None
            raise error
        return 0


@cython.final
@cython.no_gc_clear
cdef class ColumnScan(_Decompressing):
    """Messages as Arrow columns. One thread at a time; its batches may go to any thread.

    ``columns`` are (kind, form, name, property): see ``SCAN_KINDS`` and ``SCAN_FORMS``. ``ranges`` are (topic, queue
    id, start, end or None), and read instead of topics. Without topics and ranges it reads the whole log. It is an
    Arrow stream once; for another, make another scan.

    With ``follow`` it waits at the end for new messages, ``timeout_ms`` at most each time (-1: for ever); then it ends.
    Close it, or let it go; both leave alone what it gave.
    """
    cdef StoreHandle _handle
    cdef cmq_scan *_scan
    cdef PyObject *_next_scan        # links of the handle's open scans
    cdef PyObject *_previous_scan
    cdef bint _busy
    cdef bint _paused                # it was filtering only, and is to go on
    cdef bint _streamed
    cdef bint _follow
    cdef int64_t _timeout_ms
    cdef int64_t _seen_end
    cdef Selector _where             # the engine borrows its program
    cdef bytes _stream_error         # the text that get_last_error returns
    cdef object _failure             # the exception behind it
    cdef object __weakref__

    def __init__(self, StoreHandle handle not None, *, columns, topics=(), tags=(), Selector where=None, keys=(),
                 queue_ids=(), start=None,
                 end=None,
                 start_time_ms=None, end_time_ms=None, ranges=None, bint only_queued=True, bint may_be_missing=False,
                 uint32_t batch_rows=0,
                 uint32_t batch_bytes=0, int64_t limit_rows=0, bint raw_bodies=False, bint check_crc=False,
                 bint skip_corrupt=False,
                 bint follow=False, int64_t timeout_ms=-1):
        if self._handle is not None:
            raise RuntimeError("this scan was opened before")
        cdef _ScanRequest request = _ScanRequest()
        cdef cmq_scan_options *options = &request.options
        cdef cmq_status status
        topics = tuple(topics)
        request.set_columns(list(columns))
        options.read.topics = request._slices(topics, "topics", &options.read.topic_count)
        options.read.tags = request._slices(tags, "tags", &options.read.tag_count)
        options.read.where = where._program if where is not None else NULL
        options.keys = request._slices(keys, "keys", &options.key_count)
        request.set_queue_ids(queue_ids)
        if ranges is not None:
            request.set_ranges(list(ranges))
        options.read.has_start = start is not None
        options.read.start = start if start is not None else 0
        options.read.has_end = end is not None
        options.read.end = end if end is not None else 0
        options.read.has_start_time = start_time_ms is not None
        options.read.start_time_ms = start_time_ms if start_time_ms is not None else 0
        options.read.has_end_time = end_time_ms is not None
        options.read.end_time_ms = end_time_ms if end_time_ms is not None else 0
        options.read.only_queued = only_queued and not topics and ranges is None
        options.read.may_be_missing = may_be_missing
        options.batch_rows = batch_rows
        options.batch_bytes = batch_bytes
        options.limit_rows = limit_rows
        options.raw_bodies = raw_bodies
        options.check_crc = check_crc
        options.skip_corrupt = skip_corrupt
        options.follow = follow
        options.decompress = _decompress_for_scan
        options.decompress_context = <void *>self
        self._follow = follow
        self._timeout_ms = timeout_ms
        self._where = where
        self._handle = handle
        handle.enter()
        self._seen_end = cmq_store_confirmed(handle._store)
        with nogil:
            status = cmq_scan_open(handle._store, options, &self._scan)
        if status == CMQ_OK:
            self._link()
        handle.leave()
        _check_topic(status, ", ".join(topics))

    cdef void _link(self) noexcept:
        self._next_scan = self._handle._first_scan
        self._previous_scan = NULL
        if self._next_scan is not NULL:
            (<ColumnScan>self._next_scan)._previous_scan = <PyObject *>self
        self._handle._first_scan = <PyObject *>self

    cdef void _detach(self) noexcept:
        """Close in the engine and leave the handle's list."""
        if self._scan is NULL:
            return
        if self._previous_scan is not NULL:
            (<ColumnScan>self._previous_scan)._next_scan = self._next_scan
        else:
            self._handle._first_scan = self._next_scan
        if self._next_scan is not NULL:
            (<ColumnScan>self._next_scan)._previous_scan = self._previous_scan
        cmq_scan_close(self._scan)
        self._scan = NULL

    def __dealloc__(self):
        # In a child of a fork the scan is the parent's, and what it would lock may be locked.
        if self._scan is not NULL and self._handle._opened_forks == _forks:
            self._detach()

    @property
    def closed(self):
        """True after close() of the scan or of its store."""
        return self._scan is NULL

    @property
    def failure(self):
        """The exception behind the stream's last error, or None."""
        return self._failure

    def close(self):
        """Let go. Batches that were given out stay valid."""
        if self._scan is NULL:
            return
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this scan")
        if self._handle._opened_forks == _forks:
            self._detach()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    cdef int _hold(self) except -1:
        if self._scan is NULL or self._handle._opened_forks != _forks:
            if self._handle is not None and self._handle.closed:
                raise self._handle._refusal()
            raise _errors.StoreClosed("the scan is closed")
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this scan; give each thread one of its own")
        return 0

    # ---- batches

    cdef bint _step(self, ArrowArray *array, cbool *ended) except -1:
        """One call of the engine; False when it gave no batch."""
        cdef cmq_status status
        self._hold()
        self._handle.enter()
        self._busy = True
        with nogil:
            self._seen_end = cmq_store_confirmed(self._handle._store)
            status = cmq_scan_next(self._scan, array, ended)
        self._busy = False
        self._handle.leave()
        self.raise_failure()
        self._paused = status == CMQ_AGAIN
        if not self._paused:
            _check(status)
        return array.release is not NULL

    cdef bint _next(self, ArrowArray *array) except -1:
        """The next batch; False at the end."""
        cdef cbool ended = False
        while not self._step(array, &ended):
            if self._paused:
                PyErr_CheckSignals()
                continue
            if ended or not self._follow:
                return False
            self._busy = True
            try:
                if not self._handle.wait_more(self._seen_end, self._timeout_ms):
                    return False
            finally:
                self._busy = False
        return True

    def next_batch(self):
        """The next record batch as (schema capsule, array capsule), or None at the end."""
        cdef ArrowArray *array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if array is NULL:
            raise MemoryError
        try:
            if not self._next(array):
                free(array)
                return None
        except BaseException:
            free(array)
            raise
        capsule = PyCapsule_New(array, "arrow_array", _free_array_capsule)
        return self.__arrow_c_schema__(), capsule

    def __arrow_c_schema__(self):
        """The schema as a capsule."""
        cdef ArrowSchema *schema
        self._hold()
        schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if schema is NULL:
            raise MemoryError
        capsule = PyCapsule_New(schema, "arrow_schema", _free_schema_capsule)
        _check(cmq_scan_schema(self._scan, schema))
        return capsule

    def __arrow_c_stream__(self, requested_schema=None):
        """The scan as an Arrow stream, in its own schema whatever is requested, as the protocol allows. Once."""
        cdef ArrowArrayStream *stream
        self._hold()
        if self._streamed:
            raise _errors.InvalidArgument("this scan has been streamed already; make another one to read again")
        stream = <ArrowArrayStream *>calloc(1, sizeof(ArrowArrayStream))
        if stream is NULL:
            raise MemoryError
        stream.get_schema = _scan_stream_schema
        stream.get_next = _scan_stream_next
        stream.get_last_error = _scan_stream_error
        stream.release = _scan_stream_release
        stream.private_data = <void *>self
        Py_INCREF_BORROWED(<PyObject *>self)
        capsule = PyCapsule_New(stream, "arrow_array_stream", _free_stream_capsule)
        self._streamed = True
        return capsule

    def skipped(self):
        """Messages that were not returned as stored: {"records", "offsets", "invalid_texts", "clamped_times",
        "expired"}.

        ``records`` were damaged and passed over (``skip_corrupt``), ``offsets`` are the physical offsets of the first
        1024 of them; ``invalid_texts`` were not UTF-8 and were corrected; ``clamped_times`` lay outside the years 1 to
        9999; ``expired`` messages were to be read and are gone.
        """
        self._hold()
        self._handle.enter()
        try:
            return _skipped_of(self._scan)
        finally:
            self._handle.leave()

    cdef int _fail_stream(self, error) noexcept:
        """Keep the error for get_last_error; returns what get_next answers."""
        self._failure = error
        self._stream_error = str(error).encode("utf-8", "replace")
        if isinstance(error, MemoryError):
            return _ENOMEM
        if isinstance(error, KeyboardInterrupt):
            self._stream_error = b"interrupted"
            return _EINTR
        if isinstance(error, _errors.StoreBusy):
            return _EBUSY
        return _EINVAL if isinstance(error, _errors.InvalidArgument) else _EIO


cdef enum:
    DEF_SKIPPED_MAX = 1024


cdef dict _skipped_of(cmq_scan *scan):
    cdef cmq_scan_skipped counts
    cdef int64_t offsets[DEF_SKIPPED_MAX]
    cdef uint32_t count = 0
    cmq_scan_skipped_of(scan, &counts, offsets, DEF_SKIPPED_MAX, &count)
    return {"records": counts.records, "offsets": [offsets[i] for i in range(count)],
            "invalid_texts": counts.invalid_texts,
            "clamped_times": counts.clamped_times, "expired": counts.expired}


# ---- the stream's functions: called by anyone, on any thread, without the GIL

cdef int _scan_stream_schema(ArrowArrayStream *stream, ArrowSchema *out) noexcept with gil:
    cdef ColumnScan scan = <ColumnScan>stream.private_data
    out.release = NULL
    try:
        scan._hold()
        _check(cmq_scan_schema(scan._scan, out))
    except BaseException as error:  # noqa: BLE001 - the stream's error
        return scan._fail_stream(error)
    return 0


cdef int _scan_stream_next(ArrowArrayStream *stream, ArrowArray *out) noexcept with gil:
    cdef ColumnScan scan = <ColumnScan>stream.private_data
    out.release = NULL
    try:
        scan._next(out)
    except BaseException as error:  # noqa: BLE001 - the stream's error
        return scan._fail_stream(error)
    return 0


cdef const char *_scan_stream_error(ArrowArrayStream *stream) noexcept with gil:
    cdef ColumnScan scan = <ColumnScan>stream.private_data
    return NULL if scan._stream_error is None else PyBytes_AS_STRING(<PyObject *>scan._stream_error)


cdef void _scan_stream_release(ArrowArrayStream *stream) noexcept with gil:
    cdef PyObject *scan = <PyObject *>stream.private_data
    stream.release = NULL
    stream.private_data = NULL
    Py_DECREF_BORROWED(scan)


# ---- capsules: a consumer that took the content over has set its release to NULL

cdef void _free_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release is not NULL:
        schema.release(schema)
    free(schema)


cdef void _free_array_capsule(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release is not NULL:
        array.release(array)
    free(array)


cdef void _free_stream_capsule(object capsule) noexcept:
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release is not NULL:
        stream.release(stream)
    free(stream)


# ---- decompression

cdef cmq_status _decompress_for_scan(void *context, int32_t sys_flag, cmq_slice stored,
                                     cmq_scan_room *room) noexcept with gil:
    """The engine's hook: through cometmq._compression, with the GIL, for compressed bodies only."""
    cdef _Decompressing scan = <_Decompressing>context
    cdef bytes plain
    cdef uint8_t *into
    cdef bytes text
    try:
        view = PyMemoryView_FromMemory(<char *>stored.data, <Py_ssize_t>stored.bytes, PyBUF_READ)
        try:
            plain = _decompress(sys_flag, view)
        finally:
            view.release()
        into = cmq_scan_room_take(room, <size_t>len(plain))
        if into is NULL:
            return cmq_last_error().status
        memcpy(into, PyBytes_AS_STRING(<PyObject *>plain), <size_t>len(plain))
        return CMQ_OK
    except _errors.DecompressionError as error:
        text = str(error).encode("utf-8", "replace")
        return cmq_fail(CMQ_ERR_CORRUPT, b"%s", <const char *>text)
    except _errors.LimitReached as error:
        text = str(error).encode("utf-8", "replace")
        return cmq_fail(CMQ_ERR_LIMIT, b"%s", <const char *>text)
    except BaseException as error:  # noqa: BLE001 - raised again by raise_failure
        scan._hook_failure = error
        return cmq_fail(CMQ_ERR_IO, b"decompression failed")
