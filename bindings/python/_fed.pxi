# RecordColumns: records that were pulled from brokers, as Arrow columns. Without a store; the engine's calls run
# without the GIL.

@cython.final
@cython.no_gc_clear
cdef class RecordColumns(_Decompressing):
    """Records as they came in pulls' answers, as Arrow columns. One thread at a time; its batches may go to any thread.

    ``columns`` are as ColumnScan's, but for bodies in the form "view". ``tags``, ``keys`` and ``where`` are compared
    with each message's properties. Fed records are kept until their last row is out.
    """
    cdef cmq_scan *_scan
    cdef list _kept
    cdef Selector _where             # the engine borrows its program
    cdef bint _busy

    def __init__(self, *, columns, tags=(), keys=(), Selector where=None, uint32_t batch_rows=0, uint32_t batch_bytes=0,
                 bint check_crc=False, bint skip_corrupt=False):
        if self._scan is not NULL:
            raise RuntimeError("this object was made before")
        cdef _ScanRequest request = _ScanRequest()
        cdef cmq_scan_options *options = &request.options
        cdef cmq_status status
        request.set_columns(list(columns))
        options.read.tags = request._slices(tags, "tags", &options.read.tag_count)
        options.keys = request._slices(keys, "keys", &options.key_count)
        options.read.where = where._program if where is not None else NULL
        self._where = where
        options.batch_rows = batch_rows
        options.batch_bytes = batch_bytes
        options.check_crc = check_crc
        options.skip_corrupt = skip_corrupt
        options.decompress = _decompress_for_scan
        options.decompress_context = <void *>self
        _check(cmq_scan_open_fed(options, &self._scan))

    def __dealloc__(self):
        cmq_scan_close(self._scan)

    def close(self):
        """Let go. Batches that were given out stay valid."""
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this object")
        cmq_scan_close(self._scan)
        self._scan = NULL
        self._kept = None

    cdef int _hold(self) except -1:
        if self._scan is NULL:
            raise _errors.StoreClosed("this object is closed")
        if self._busy:
            raise _errors.StoreBusy("another thread is inside this object; give each thread one of its own")
        return 0

    def feed(self, list pieces not None):
        """Bring the bodies of pulls' answers: (body, start, end, offset_delta) each.

        Rows come of messages from offset ``start`` to before ``end``; ``offset_delta`` is added to the offsets that the
        records have.
        """
        cdef cmq_scan_piece *made
        cdef cmq_status status
        cdef Py_ssize_t i
        cdef bytes body
        self._hold()
        made = <cmq_scan_piece *>malloc((len(pieces) + 1) * sizeof(cmq_scan_piece))
        if made is NULL:
            raise MemoryError
        try:
            kept = []
            for i in range(len(pieces)):
                body, made[i].start, made[i].end, made[i].offset_delta = pieces[i]
                kept.append(body)
                made[i].data = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>body)
                made[i].bytes = <size_t>len(body)
            status = cmq_scan_feed(self._scan, made, <uint32_t>len(pieces))
            _check(status)
            self._kept = kept
        finally:
            free(made)

    def next_batch(self):
        """The next record batch as (schema capsule, array capsule), or None where all that was fed is out."""
        cdef ArrowArray *array
        cdef ArrowSchema *schema
        cdef cbool ended = False
        cdef cmq_status status = CMQ_AGAIN
        self._hold()
        array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if array is NULL:
            raise MemoryError
        capsule = PyCapsule_New(array, "arrow_array", _free_array_capsule)
        while status == CMQ_AGAIN:      # a million rows had none of the keys or tags
            self._busy = True
            with nogil:
                status = cmq_scan_next(self._scan, array, &ended)
            self._busy = False
            self.raise_failure()
            PyErr_CheckSignals()
        _check(status)
        if array.release is NULL:
            self._kept = None
            return None
        schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if schema is NULL:
            raise MemoryError
        schema_capsule = PyCapsule_New(schema, "arrow_schema", _free_schema_capsule)
        _check(cmq_scan_schema(self._scan, schema))
        return schema_capsule, capsule

    def skipped(self):
        """Records that were not returned as stored: as ColumnScan's, and ``expired`` is 0."""
        self._hold()
        return _skipped_of(self._scan)
