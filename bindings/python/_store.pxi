# StoreHandle: a store directory in the engine: its life, appends, look-ups. Policy (topics, groups, defaults) is
# cometmq.store's.

cdef enum:
    DEF_WAIT_SLICE_MS = 100          # waits let signals and close() in this often


cdef class _Texts:
    """C strings that live as long as this does."""
    cdef list kept
    cdef const char **texts
    cdef uint32_t count

    def __dealloc__(self):
        free(self.texts)

    @staticmethod
    cdef _Texts of(object values):
        cdef _Texts self = _Texts.__new__(_Texts)
        cdef uint32_t i
        self.kept = [value if isinstance(value, bytes) else value.encode() for value in values]
        self.count = <uint32_t>len(self.kept)
        self.texts = <const char **>malloc((self.count + 1) * sizeof(char *))
        if self.texts is NULL:
            raise MemoryError
        for i in range(self.count):
            self.texts[i] = <bytes>self.kept[i]
        return self


def lock_holder(path):
    """Return the process id that holds the store's writer lock, 0 when nobody does, -1 when somebody unknown does."""
    return lock_writer(path)[0]


def lock_writer(path):
    """Return the same, and whether the holder is a CometMQ process by the guard that those take, too."""
    import os
    cdef bytes lock_path = os.fsencode(os.path.join(os.path.realpath(path), "lock"))
    cdef int64_t holder = 0
    cdef cbool ours = False
    _check(cmq_lock_probe_writer(cmq_fs_posix(), lock_path, &holder, &ours))
    return holder, bool(ours)


@cython.final
cdef class Hold:
    """Keeps a handle from being closed: while it is held, the writer's lock is."""
    cdef StoreHandle _handle

    def __enter__(self):
        self._handle.enter_hold()

    def __exit__(self, *exc):
        self._handle.leave_hold()


@cython.final
@cython.no_gc_clear
cdef class StoreHandle:
    """A store in the engine. Any thread may call any method.

    close() refuses new calls, waits for those under way, and closes the open readers. In a child of a fork every call
    but close() raises StoreClosed. Memory of messages stays valid even after the handle is closed.
    """
    cdef cmq_store *_store
    cdef cmq_append _template        # every append starts from this
    cdef Py_ssize_t _in_flight
    cdef dict _holding               # thread -> how many of its calls are under way that run code of the caller's
    cdef bint _closing
    cdef bint _keep_gil              # async flush: an append waits for nothing
    cdef unsigned long _opened_forks
    cdef str _path
    cdef object _drained             # Event: the last call under way has left
    cdef object _gone                # Event: close() has finished
    cdef PyObject *_first_reader     # borrowed: open readers, linked
    cdef PyObject *_first_scan       # the same of scans
    cdef object __weakref__

    def __cinit__(self):
        self._opened_forks = _forks

    def __init__(self, path, *, bint read_only=False, bint create=True, bint background=True, bint sync_flush=True,
                 int64_t segment_bytes=0, int64_t queue_file_bytes=0, int64_t batch_file_bytes=0,
                 int64_t ext_file_bytes=0,
                 int32_t index_slots=0, int32_t index_entries=0, commitlog_paths=(), uint32_t body_bytes_max=0,
                 delay_levels=None,
                 batch_topics=(), bint index_enabled=True, index_tags=None, bint ext_enabled=False,
                 bint lmq_enabled=False,
                 uint32_t light_queues_max=0, bint property_crc=False,
                 bint check_property_crc=False, int64_t durable_point_bytes=0, int64_t durable_point_ms=0,
                 retention=None,
                 bytes store_address not None=b"\x7f\x00\x00\x01", int store_port=10911):
        import os
        if self._store is not NULL or self._gone is not None:
            raise RuntimeError("this handle was opened before")
        cdef cmq_store_options options
        cdef cmq_status status
        cdef int64_t holder = 0
        cdef _Texts paths = _Texts.of([os.fsencode(one) for one in commitlog_paths])
        cdef _Texts topics = _Texts.of(batch_topics)
        cdef bytes raw_path = os.fsencode(path)
        cdef bytes levels = None if delay_levels is None else delay_levels.encode()
        memset(&options, 0, sizeof(options))
        self._path = os.fsdecode(raw_path)
        options.path = raw_path
        options.read_only = read_only
        options.create = create and not read_only
        options.background = background
        options.flush = CMQ_FLUSH_SYNC if sync_flush else CMQ_FLUSH_ASYNC
        options.segment_bytes = segment_bytes
        options.queue_file_bytes = queue_file_bytes
        options.batch_file_bytes = batch_file_bytes
        options.ext_file_bytes = ext_file_bytes
        options.index_slots = index_slots
        options.index_entries = index_entries
        if paths.count:
            options.commitlog_paths = paths.texts
            options.commitlog_path_count = paths.count
        options.body_bytes_max = body_bytes_max
        if levels is not None:
            options.delay_levels = levels
        if topics.count:
            options.batch_topics = topics.texts
            options.batch_topic_count = topics.count
        options.index_disabled = not index_enabled
        options.index_tags = _index_tags(index_tags)
        options.ext_enabled = ext_enabled
        options.lmq_enabled = lmq_enabled
        options.light_queues_max = light_queues_max
        options.property_crc = property_crc
        options.check_property_crc = check_property_crc
        options.durable_point_bytes = durable_point_bytes
        options.durable_point_ms = durable_point_ms
        if retention is not None:
            _set_retention(&options.retention, retention)
        self._keep_gil = not sync_flush
        memset(&self._template, 0, sizeof(self._template))
        _set_host(&self._template.common.store_host, store_address, store_port)
        _set_host(&self._template.common.born_host, store_address, 0)
        with nogil:
            status = cmq_store_open(&self._store, &options)
        if status == CMQ_ERR_LOCKED:
            error = _failure(status)
            holder = lock_holder(path)
            error.holder_pid = holder if holder > 0 else None
            raise error
        _check(status)

    def __del__(self):
        if self._store is NULL or self._opened_forks != _forks:
            return
        cdef bytes path = self._path.encode("utf-8", "replace")
        PyErr_ResourceWarning(self, 1, "unclosed store %s; use `with cometmq.open(...)` or call close()",
                              <const char *>path)

    def __dealloc__(self):
        # No call is under way and no reader is left: both hold a reference.
        if self._store is NULL or self._opened_forks != _forks:
            return
        if cmq_store_close(self._store) != CMQ_OK:
            pass  # nobody is left to report to; the next opening recovers
        self._store = NULL

    # ---- life

    cdef int enter(self) except -1:
        """Hold the handle for a call. Every enter has its leave."""
        if self._store is NULL or self._closing or self._opened_forks != _forks:
            raise self._refusal()
        self._in_flight += 1
        return 0

    cdef int leave(self) except -1:
        self._in_flight -= 1
        if self._closing and self._in_flight == 0:
            self._drained.set()
        return 0

    cdef int enter_hold(self) except -1:
        """The same around code of the caller's, which may try to close the store: that would wait for itself."""
        self.enter()
        if self._holding is None:
            self._holding = {}
        thread = _threading.get_ident()
        self._holding[thread] = self._holding.get(thread, 0) + 1
        return 0

    cdef int leave_hold(self) except -1:
        thread = _threading.get_ident()
        if self._holding[thread] == 1:
            del self._holding[thread]
        else:
            self._holding[thread] -= 1
        return self.leave()

    cdef object _refusal(self):
        if self._opened_forks != _forks:
            return _errors.StoreClosed(f"{self._path} was opened by the parent process; open it again in this one, "
                                       'with mode="r" or "auto" while the parent writes')
        return _errors.StoreClosed(f"{self._path or 'the store'} is closed")

    def hold(self):
        """Return a context in which the store is open: close() waits for its end.

        For work on files that the lock guards.
        """
        cdef Hold hold = Hold.__new__(Hold)
        hold._handle = self
        return hold

    @property
    def path(self):
        """The directory."""
        return self._path

    @property
    def closed(self):
        """True when no call is answered any more."""
        return self._store is NULL or self._closing or self._opened_forks != _forks

    def check_close(self):
        """Raise StoreBusy where close() would wait for a call that this very thread is inside of."""
        if self._holding and self._opened_forks == _forks and _threading.get_ident() in self._holding:
            raise _errors.StoreBusy(f"{self._path} cannot be closed here: this thread is inside a call that holds it "
                                    f"open (a callback, a hold()); "
                                    "close it behind that call, or from another thread")

    def close(self):
        """Refuse new calls, wait for those under way, close readers, flush and let go.

        A second call waits for the first.
        """
        if self._opened_forks != _forks:
            # The parent's. Threads of its that do not exist here may have been changing what would have to be walked to
            # free it, and hold its locks: so it is left as it is, a copy-on-write image that goes with the child.
            self._store = NULL
            return
        self.check_close()
        if self._closing:
            self._gone.wait()
            return
        if self._store is NULL:
            return
        self._gone = _threading.Event()
        self._drained = _threading.Event()
        self._closing = True
        try:
            while self._in_flight:
                self._drained.wait(0.1)
        except BaseException:
            self._closing = False
            self._gone.set()
            raise
        cdef cmq_status status
        cdef cmq_store *store = self._store
        self._close_readers()
        self._store = NULL
        try:
            with nogil:
                status = cmq_store_close(store)
            _check(status)
        finally:
            self._closing = False
            self._gone.set()

    cdef int _close_readers(self) except -1:
        while self._first_reader is not NULL:
            (<Reader>self._first_reader)._detach()
        while self._first_scan is not NULL:
            (<ColumnScan>self._first_scan)._detach()
        return 0

    # ---- append

    def append(self, str topic not None, object body, object tags=None, object keys=None, bytes properties=None,
               int32_t queue_id=0,
               int32_t flag=0, int64_t born_timestamp_ms=0, bint wait=True):
        """Append one message; ``properties`` encoded, ``keys`` joined.

        Under asynchronous flush the GIL is kept unless another call is under way: the call then takes about as long as
        giving the GIL up and taking it back would. Under synchronous flush it is released.
        """
        cdef cmq_append request = self._template
        cdef cmq_appended appended
        cdef cmq_status status
        cdef Py_buffer buffer
        cdef bint has_buffer = False
        request.count = 1
        request.common.queue_id = queue_id
        request.common.flag = flag
        request.common.born_timestamp_ms = born_timestamp_ms
        request.no_wait = not wait
        request.bodies.kind = CMQ_COLUMN_ONE
        request.common.topic = _slice_of_text(topic)
        if tags is not None:
            request.tags.kind = CMQ_COLUMN_ONE
            request.tags.one = _slice_of_value(tags, "tags")
            _check_tag(request.tags.one, "tags")
        if keys is not None:
            request.keys.kind = CMQ_COLUMN_ONE
            request.keys.one = _slice_of_value(keys, "keys")
        if properties is not None:
            request.properties.kind = CMQ_COLUMN_ONE
            request.properties.one = _slice_of_bytes(properties)
        if type(body) is bytes:
            request.bodies.one = _slice_of_bytes(<bytes>body)
        elif isinstance(body, str) or not PyObject_CheckBuffer(body):
            raise _errors.WrongType(f"body must be bytes-like, not {type(body).__name__}"
                                    + (": encode it (body.encode())" if isinstance(body, str) else ""))
        else:
            _get_bytes(body, &buffer, "body")
            has_buffer = True
            request.bodies.one.data = <const uint8_t *>buffer.buf
            request.bodies.one.bytes = <size_t>buffer.len
        try:
            self.enter()
            if self._in_flight == 1 and (self._keep_gil or not wait):
                status = cmq_store_append(self._store, &request, &appended)
            else:
                with nogil:
                    status = cmq_store_append(self._store, &request, &appended)
            self.leave()
            _check(status)
        finally:
            if has_buffer:
                PyBuffer_Release(&buffer)
        cdef AppendResult result = AppendResult.__new__(AppendResult)
        result.topic = topic
        result.queue_id = queue_id
        result.queue_offset = appended.first_queue_offset
        result.physical_offset = appended.first_physical_offset
        result.store_timestamp_ms = appended.store_timestamp_ms
        result.end = appended.end
        result._store_host = request.common.store_host
        return result

    def append_together(self, list messages not None, bint only_check=False):
        """Append messages at once or not at all: (topic, body, tags, keys, properties, queue id, flag, born) each, as
        of append, bodies as bytes. ``only_check``: append nothing, raise what the first message at fault would raise.
        """
        cdef _Together together = _Together.of(messages, &self._template)
        cdef cmq_status status
        self.enter()
        with nogil:
            status = together.check(self._store) if only_check else together.append(self._store)
        self.leave()
        _check(status)
        return [] if only_check else together.results()

    def append_many(self, str topic not None, object bodies, object tags=None, object keys=None, object properties=None,
                    object queue=0,
                    int32_t queue_count=1, int64_t spread_from=-1, int32_t flag=0, object born_timestamps_ms=None,
                    bint wait=True,
                    bint one_segment=False, bint only_check=False):
        """Append a batch; the GIL is released once.

        ``only_check``: append nothing, raise what the first message at fault would raise.

        ``queue`` is an int or one int per message, each below ``queue_count``; ``spread_from`` >= 0 deals the messages
        out over ``queue_count`` queues from there instead. ``properties`` is encoded bytes for all, or encoded bytes
        per message.
        """
        cdef cmq_append request = self._template
        cdef cmq_appended appended
        cdef cmq_status status
        cdef _Column body_column = _column_of(bodies, "bodies", _BODIES)
        cdef Py_ssize_t count = body_column.count
        cdef _Column tag_column = _matching(_column_of(tags, "tags", _TAGS), count)
        cdef _Column key_column = _matching(_column_of(keys, "keys", _KEYS), count)
        cdef _Column property_column = _matching(_column_of(properties, "properties", _TEXTS), count)
        cdef _Numbers born = None
        cdef AppendManyResult result = AppendManyResult.__new__(AppendManyResult)
        if count > 0xFFFFFFF0:
            raise _errors.LimitReached(f"a batch of {count} messages; at most {0xFFFFFFF0} are appended by one call")
        memset(&appended, 0, sizeof(appended))
        request.common.topic = _slice_of_text(topic)
        request.common.flag = flag
        request.count = <uint32_t>count
        request.bodies = body_column.column
        request.tags = tag_column.column
        request.keys = key_column.column
        request.properties = property_column.column
        request.no_wait = not wait
        request.one_segment = one_segment
        if isinstance(born_timestamps_ms, int):
            request.common.born_timestamp_ms = born_timestamps_ms
        elif born_timestamps_ms is not None:
            born = _numbers_of(born_timestamps_ms, "born_timestamps_ms", count)
            request.born_timestamps = born.values
        result.topic = topic
        result._store_host = request.common.store_host
        result._queue_ids = _queue_ids_of(queue, count, queue_count, spread_from)
        if result._queue_ids is not None:
            request.queue_ids = <const int32_t *>PyBytes_AS_STRING(<PyObject *>result._queue_ids)
        else:
            result.queue_id = 0 if spread_from >= 0 else queue
            request.common.queue_id = result.queue_id
        result._queue_offsets = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
        result._physical_offsets = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
        request.queue_offsets_out = <int64_t *>PyBytes_AS_STRING(<PyObject *>result._queue_offsets)
        request.physical_offsets_out = <int64_t *>PyBytes_AS_STRING(<PyObject *>result._physical_offsets)
        if count > 0:
            self.enter()
            with nogil:
                if only_check:
                    status = cmq_store_check_append(self._store, &request)
                else:
                    status = cmq_store_append(self._store, &request, &appended)
            self.leave()
            if status != CMQ_OK:
                error = _failure(status)
                error.appended = appended.count
                raise error
        elif self.closed:
            raise self._refusal()
        result.count = count
        result.store_timestamp_ms = appended.store_timestamp_ms
        result.end = appended.end
        return result

    def wait_durable(self, int64_t end):
        """Wait until everything below the physical offset ``end`` is confirmed: on disk, under synchronous flush."""
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_wait(self._store, end)
        self.leave()
        _check(status)

    def flush(self):
        """Make everything that was appended durable."""
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_flush(self._store)
        self.leave()
        _check(status)

    # ---- the store's contents

    @property
    def confirmed_end(self):
        """Physical offset up to which messages can be read."""
        self.enter()
        cdef int64_t end = cmq_store_confirmed(self._store)
        self.leave()
        return end

    def refresh(self):
        """Read-only: look for what the writer has added."""
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_refresh(self._store)
        self.leave()
        _check(status)

    def wait_more(self, int64_t seen_end, int64_t timeout_ms):
        """Wait until more than ``seen_end`` is confirmed; False when ``timeout_ms`` (-1: for ever) have passed.

        Signals are let in.
        """
        cdef cmq_status status
        cdef int64_t deadline = _monotonic_ms() + timeout_ms if timeout_ms >= 0 else -1
        cdef int64_t left = DEF_WAIT_SLICE_MS
        while True:
            if deadline >= 0:
                left = min(max(deadline - _monotonic_ms(), 0), DEF_WAIT_SLICE_MS)
            self.enter()
            with nogil:
                status = cmq_store_wait_more(self._store, seen_end, left)
            self.leave()
            if status != CMQ_AGAIN:
                _check(status)
                return True
            PyErr_CheckSignals()
            if deadline >= 0 and _monotonic_ms() >= deadline:
                return False

    def opening(self):
        """The state in which opening found the store, as a dict."""
        import os
        cdef cmq_store_opening opening
        self.enter()
        cmq_store_opening_of(self._store, &opening)
        self.leave()
        return {
            "created": bool(opening.created), "was_unclean": bool(opening.was_unclean),
            "trusted_point": bool(opening.trusted_point),
            "scanned_from": opening.scanned_from, "scanned_to": opening.scanned_to, "records": opening.records,
            "cut_bytes": opening.cut_bytes, "removed": os.fsdecode(opening.removed) or None,
            "removed_records": opening.removed_records, "gaps": opening.gaps,
            "index_missing_from": opening.index_missing_from,
            "overwrites": ("in_place", "copied", "shared")[opening.overwrites],
            "overwritten": os.fsdecode(opening.overwritten) or None,
            "elapsed_us": opening.elapsed_us,
        }

    def upkeep_error(self):
        """Why the last round of upkeep failed, or the store is fenced; None when neither is so."""
        cdef char text[CMQ_ERROR_TEXT_BYTES]
        cdef cbool failed
        self.enter()
        with nogil:
            failed = cmq_store_upkeep_error(self._store, text)
        self.leave()
        return text.decode("utf-8", "replace") if failed else None

    def set_retention(self, retention):
        """Change the limits of a store that was opened with a retention: an object as cometmq.Retention."""
        cdef cmq_retention limits
        cdef cmq_status status
        memset(&limits, 0, sizeof(limits))
        _set_retention(&limits, retention)
        self.enter()
        with nogil:
            status = cmq_store_set_retention(self._store, &limits)
        self.leave()
        _check(status)

    def take_retention_report(self):
        """``(used ratio, level, disk full, deletions, number of unlisted deletions)`` since the last report."""
        cdef cmq_retention_report report
        cdef uint32_t i
        self.enter()
        with nogil:
            cmq_store_take_retention_report(self._store, &report)
        self.leave()
        deletions = [
            (report.deletions[i].log_offset, report.deletions[i].age_ms, bool(report.deletions[i].is_due))
            for i in range(report.deletion_count)
        ]
        return report.used_ratio, report.level, bool(report.is_full), deletions, report.unlisted

    def info(self):
        """The state, as a dict."""
        cdef cmq_store_info info
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_info_of(self._store, &info)
        self.leave()
        _check(status)
        return {
            "read_only": bool(info.read_only), "fenced": bool(info.fenced), "disk_full": bool(info.disk_full),
            "writer_alive": bool(info.writer_alive), "writer_is_ours": bool(info.writer_is_ours),
            "log_min": info.log_min,
            "log_end": info.log_end, "flushed": info.flushed, "segment_bytes": info.segment_bytes,
            "queue_file_bytes": info.queue_file_bytes, "batch_file_bytes": info.batch_file_bytes,
            "ext_file_bytes": info.ext_file_bytes,
            "index_slots": info.index_slots, "index_entries": info.index_entries,
            "store_timestamp_ms": info.store_timestamp_ms,
            "queue_count": info.queue_count, "sync_flush": info.flush == CMQ_FLUSH_SYNC,
        }

    def queues(self, str topic=None):
        """``(topic, queue_id, is_batch, min_offset, max_offset)`` of every queue, or of those of one topic."""
        cdef cmq_status status
        cdef const cmq_queues *queues
        cdef cmq_queue *queue
        cdef uint32_t i
        cdef int64_t end
        cdef list found = []
        cdef cmq_slice wanted = _NO_BYTES if topic is None else _slice_of_text(topic)
        self.enter()
        try:
            with nogil:
                status = cmq_store_refresh(self._store)
            _check(status)
            queues = cmq_store_queues(self._store)
            end = cmq_store_confirmed(self._store)
            for i in range(cmq_queues_count(queues)):
                queue = cmq_queues_at(queues, i)
                if cmq_queue_deleted(queue) or not cmq_queue_begun(queue) or (topic is not None
                                                                              and not _is_of_topic(queue, wanted)):
                    continue
                name = topic if topic is not None else _queue_key(queue)[0]
                found.append((name, cmq_queue_id(queue), cmq_queue_kind_of(queue) == CMQ_QUEUE_BATCH,
                              cmq_queue_min(queue),
                              cmq_queue_max(queue, end)))
        finally:
            self.leave()
        return found

    def queue(self, str topic not None, int32_t queue_id):
        """``(is_batch, min_offset, max_offset)`` of one queue, or None where there is no such queue."""
        cdef cmq_status status
        cdef cmq_queue *queue
        self.enter()
        try:
            with nogil:
                status = cmq_store_refresh(self._store)
            _check(status)
            queue = cmq_queues_find(cmq_store_queues(self._store), _slice_of_text(topic), queue_id)
            if queue is NULL or not cmq_queue_begun(queue):
                return None
            return (cmq_queue_kind_of(queue) == CMQ_QUEUE_BATCH, cmq_queue_min(queue),
                    cmq_queue_max(queue, cmq_store_confirmed(self._store)))
        finally:
            self.leave()

    def queue_units(self, str topic not None, int32_t queue_id, int64_t start, int32_t limit):
        """Up to ``limit`` units of a queue from ``start`` on, for checks: ``(queue_offset, physical_offset,
        record_bytes, tags_code, count)``.
        """
        cdef cmq_queue *queue
        cdef cmq_status status
        cdef uint32_t count = 0
        cdef int64_t next_offset = 0
        cdef cmq_unit *units = <cmq_unit *>malloc(<size_t>max(limit, 1) * sizeof(cmq_unit))
        if units is NULL:
            raise MemoryError
        try:
            self.enter()
            try:
                queue = cmq_queues_find(cmq_store_queues(self._store), _slice_of_text(topic), queue_id)
                if queue is NULL:
                    raise _errors.TopicNotFound(f"the store has no queue {queue_id} of {topic!r}", topic=topic)
                status = cmq_queue_read(queue, start, cmq_store_confirmed(self._store), units, <uint32_t>max(limit, 0),
                                        &count, &next_offset)
            finally:
                self.leave()
            _check(status)
            return [(units[i].offset, units[i].phy, units[i].bytes, units[i].tags_code,
                     units[i].count) for i in range(count)], next_offset
        finally:
            free(units)

    # ---- look-ups

    def read_physical(self, int64_t physical_offset):
        """The message whose record begins at ``physical_offset``; of an inner batch, its record."""
        cdef _Batch batch = _Batch.make(1)
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_read_physical(self._store, physical_offset, &batch.found)
        self.leave()
        _check(status)
        return _message_of(batch, &batch.found.items[0])

    def read_offset(self, str topic not None, int32_t queue_id, int64_t offset):
        """The message at ``offset`` of a queue."""
        cdef _Batch batch = _Batch.make(1)
        cdef cmq_slice name = _slice_of_text(topic)
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_read_offset(self._store, name, queue_id, offset, &batch.found)
        self.leave()
        _check_topic(status, topic)
        cdef Message message = _message_of(batch, &batch.found.items[0])
        if batch.found.items[0].count == 1 and not message.is_inner_batch:
            return message
        elements = _unwrapped(message, offset, offset + 1)
        if not elements:
            raise _errors.CorruptRecord(f"the inner batch at {message._physical_offset} has no message for the queue "
                                        f"offset {offset}",
                                        offset=message._physical_offset)
        return elements[0]

    def offset_at(self, str topic not None, int32_t queue_id, int64_t time_ms, bint upper=False):
        """The queue offset of the first message stored at or after the time, or of the last at or before it."""
        cdef cmq_slice name = _slice_of_text(topic)
        cdef int64_t offset = 0
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_offset_at(self._store, name, queue_id, time_ms, CMQ_BOUNDARY_UPPER if upper
                                         else CMQ_BOUNDARY_LOWER, &offset)
        self.leave()
        _check_topic(status, topic)
        return offset

    def check_end(self):
        """CorruptRecord where the log of a view is damaged at the view's end, so that messages are missing."""
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_check_end(self._store)
        self.leave()
        _check(status)

    def earliest_ms(self):
        """Store time of the oldest record, or None."""
        cdef int64_t time_ms = 0
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_earliest_ms(self._store, &time_ms)
        self.leave()
        if status == CMQ_ERR_NOT_FOUND:
            return None
        _check(status)
        return time_ms

    # ---- upkeep

    def delete_topic(self, str topic not None):
        """Forget a topic's queues."""
        cdef cmq_slice name = _slice_of_text(topic)
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_delete_topic(self._store, name)
        self.leave()
        _check_topic(status, topic)

    def delete_expired_queues(self):
        """Delete queues all of whose messages have expired; returns how many."""
        cdef uint32_t deleted = 0
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_delete_expired_queues(self._store, &deleted)
        self.leave()
        _check(status)
        return deleted

    def set_batch_topic(self, str topic not None):
        """Declare that a topic keeps batch queues, before its first message."""
        cdef cmq_slice name = _slice_of_text(topic)
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_set_batch_topic(self._store, name)
        self.leave()
        _check(status)

    def maintain(self, bint force_durable_point=False):
        """One round of upkeep: flushes that are due, a durable point, retention."""
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_maintain(self._store, force_durable_point)
        self.leave()
        _check(status)

    def expire(self, bint manual=True):
        """One round of retention; returns the number of segments deleted."""
        cdef uint32_t deleted = 0
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_expire(self._store, manual, &deleted)
        self.leave()
        _check(status)
        return deleted


cdef bint _is_of_topic(const cmq_queue *queue, cmq_slice topic) noexcept nogil:
    return cmq_queue_topic_bytes(queue) == topic.bytes and memcmp(cmq_queue_topic(queue), topic.data, topic.bytes) == 0


cdef _Column _matching(_Column column, Py_ssize_t count):
    if column.count not in (-1, count):
        raise _errors.InvalidArgument(f"{column.name} and bodies must be of one length, not {column.count:,} and "
                                      f"{count:,}")
    return column


cdef bytes _queue_ids_of(object queue, Py_ssize_t count, int32_t queue_count, int64_t spread_from):
    """The queue of each message as int32, or None when all have the same."""
    cdef bytes ids
    cdef int32_t *at
    cdef Py_ssize_t i
    cdef _Numbers numbers
    if spread_from >= 0:
        if queue_count == 1:
            return None
        ids = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
        at = <int32_t *>PyBytes_AS_STRING(<PyObject *>ids)
        for i in range(count):
            at[i] = <int32_t>((spread_from + i) % queue_count)
        return ids
    if isinstance(queue, int):
        if not 0 <= queue < queue_count:
            raise _errors.InvalidArgument(f"the queue {queue} is outside 0 to {queue_count - 1}")
        return None
    numbers = _numbers_of(queue, "queue", count)
    ids = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
    at = <int32_t *>PyBytes_AS_STRING(<PyObject *>ids)
    for i in range(count):
        if not 0 <= numbers.values[i] < queue_count:
            raise _errors.InvalidArgument(f"queue[{i}] is {numbers.values[i]}, outside 0 to {queue_count - 1}")
        at[i] = <int32_t>numbers.values[i]
    return ids


cdef cmq_index_tags _index_tags(object asked) except *:
    """From None (as the store's index has them), True or False."""
    if asked is None:
        return CMQ_INDEX_TAGS_AS_FOUND
    return CMQ_INDEX_TAGS_ON if asked else CMQ_INDEX_TAGS_OFF


cdef int _set_retention(cmq_retention *into, object retention) except -1:
    """From an object with the fields of cometmq.Retention."""
    into.enabled = True
    into.reserved_ms = retention.reserved_ms
    into.delete_hours = 0
    for hour in retention.delete_hours:
        into.delete_hours |= <uint32_t>1 << <int>hour
    into.max_used_ratio = retention.max_used_ratio
    into.force_ratio = 0 if retention.force_ratio is None else retention.force_ratio
    into.warning_ratio = retention.warning_ratio
    into.files_per_round = retention.files_per_round
    return 0
