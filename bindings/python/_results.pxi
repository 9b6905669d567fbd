# Results of appends: the places of stored messages.

@cython.final
cdef class AppendResult:
    """Where a message was stored.

    Attributes:
        topic: topic.
        queue_id: queue.
        queue_offset: number of the message in its queue.
        physical_offset: byte position of its record in the commit log.
        store_timestamp_ms: when it was stored.
        end: physical offset behind its record, for ``wait_durable``.
    """
    cdef readonly str topic
    cdef readonly int32_t queue_id
    cdef readonly int64_t queue_offset
    cdef readonly int64_t physical_offset
    cdef readonly int64_t store_timestamp_ms
    cdef readonly int64_t end
    cdef cmq_record_host _store_host

    @property
    def message_id(self):
        """The offset message id, as ``get_by_id`` takes it."""
        return _message_id(&self._store_host, self.physical_offset)

    cdef tuple _identity(self):
        return self.topic, self.queue_id, self.queue_offset, self.physical_offset

    def __eq__(self, other):
        if type(other) is not AppendResult:
            return NotImplemented
        return self._identity() == (<AppendResult>other)._identity()

    def __hash__(self):
        return hash(self._identity())

    def __repr__(self):
        return f"<AppendResult {self.topic}/{self.queue_id}@{self.queue_offset} at {self.physical_offset}>"


@cython.final
cdef class AppendManyResult:
    """Where a batch was stored.

    Attributes:
        topic: topic.
        count: number of messages; also ``len()``.
        queue_id: the queue of all of them, or None when they went to several.
        store_timestamp_ms: when the last was stored.
        end: physical offset behind the last record, for ``wait_durable``.
    """
    cdef readonly str topic
    cdef readonly Py_ssize_t count
    cdef readonly object queue_id
    cdef readonly int64_t store_timestamp_ms
    cdef readonly int64_t end
    cdef bytes _queue_ids            # int32 each, or None
    cdef bytes _queue_offsets        # int64 each
    cdef bytes _physical_offsets
    cdef cmq_record_host _store_host

    def __len__(self):
        return self.count

    @property
    def queue_ids(self):
        """Queue of each message, as a numpy array of int32."""
        import numpy
        if self._queue_ids is None:
            return numpy.full(self.count, 0 if self.queue_id is None else self.queue_id, dtype=numpy.int32)
        return numpy.frombuffer(self._queue_ids, dtype=numpy.int32)

    @property
    def queue_offsets(self):
        """Number of each message in its queue, as a numpy array of int64."""
        import numpy
        return numpy.frombuffer(self._queue_offsets, dtype=numpy.int64)

    @property
    def physical_offsets(self):
        """Byte position of each record in the commit log, as a numpy array of int64."""
        import numpy
        return numpy.frombuffer(self._physical_offsets, dtype=numpy.int64)

    def __getitem__(self, Py_ssize_t index):
        """The result of one message. Its ``end`` and time are the batch's."""
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"the batch has {_counted(self.count, 'message')}")
        cdef AppendResult one = AppendResult.__new__(AppendResult)
        one.topic = self.topic
        if self._queue_ids is None:
            one.queue_id = self.queue_id
        else:
            one.queue_id = (<const int32_t *>PyBytes_AS_STRING(<PyObject *>self._queue_ids))[index]
        one.queue_offset = (<const int64_t *>PyBytes_AS_STRING(<PyObject *>self._queue_offsets))[index]
        one.physical_offset = (<const int64_t *>PyBytes_AS_STRING(<PyObject *>self._physical_offsets))[index]
        one.store_timestamp_ms = self.store_timestamp_ms
        one.end = self.end
        one._store_host = self._store_host
        return one

    def __repr__(self):
        where = self.topic if self.queue_id is None else f"{self.topic}/{self.queue_id}"
        return f"<AppendManyResult {where}: {_counted(self.count, 'message')} up to {self.end}>"


def record_of(Message message not None):
    """Return a copy of the message's whole record as it is stored; of a message inside an inner batch, the batch's
    record.
    """
    return PyBytes_FromStringAndSize(<const char *>message._record, <Py_ssize_t>message._record_bytes)


def append_result_of(Message message not None):
    """Return the result that appending this stored message had."""
    cdef AppendResult one = AppendResult.__new__(AppendResult)
    message._parse()
    one.topic = message.topic
    one.queue_id = message._view.queue_id
    one.queue_offset = message._queue_offset
    one.physical_offset = message._physical_offset
    one.store_timestamp_ms = message._view.store_timestamp_ms
    one.end = message._physical_offset + message._record_bytes
    one._store_host = message._view.store_host
    return one


def append_many_result_of(str topic not None, list messages not None):
    """Return the result that appending these stored messages of a topic had."""
    cdef AppendManyResult many = AppendManyResult.__new__(AppendManyResult)
    cdef Message message
    cdef Py_ssize_t i
    many.topic = topic
    many.count = len(messages)
    many._queue_ids = PyBytes_FromStringAndSize(NULL, many.count * sizeof(int32_t))
    many._queue_offsets = PyBytes_FromStringAndSize(NULL, many.count * sizeof(int64_t))
    many._physical_offsets = PyBytes_FromStringAndSize(NULL, many.count * sizeof(int64_t))
    for i in range(many.count):
        message = messages[i]
        message._parse()
        (<int32_t *>PyBytes_AS_STRING(<PyObject *>many._queue_ids))[i] = message._view.queue_id
        (<int64_t *>PyBytes_AS_STRING(<PyObject *>many._queue_offsets))[i] = message._queue_offset
        (<int64_t *>PyBytes_AS_STRING(<PyObject *>many._physical_offsets))[i] = message._physical_offset
        many.store_timestamp_ms = max(many.store_timestamp_ms, message._view.store_timestamp_ms)
        many.end = max(many.end, message._physical_offset + <int64_t>message._record_bytes)
        many._store_host = message._view.store_host
    return many
