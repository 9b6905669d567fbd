# Message: one stored message. A light object: where its record lies in the map, and the batch that pins the map. Fields
# are read on demand.

cdef enum:
    DEF_FETCH = 512                  # messages per release of the GIL


@cython.final
@cython.no_gc
cdef class _Pull:
    """The fields that the messages of one pull share."""
    cdef str broker_name
    cdef str topic
    cdef str namespace               # of its client, or None
    cdef int32_t queue_id
    cdef int64_t min_offset
    cdef int64_t max_offset
    # of popped messages: their handle up to the blank before the queue offset; else None
    cdef str pop_head


@cython.final
@cython.no_gc
cdef class _Batch:
    """Records found together, and the pins that keep their memory: as long as one message of it lives, so does the
    mapping, also after
    close() of the store. Made first, filled second, so that no failure loses a pin."""
    cdef cmq_found_batch found
    cdef unsigned long forks

    @staticmethod
    cdef _Batch make(uint32_t capacity):
        cdef _Batch self = _Batch.__new__(_Batch)
        self.found.items = <cmq_found *>malloc(capacity * sizeof(cmq_found))
        if self.found.items is NULL:
            raise MemoryError
        self.found.capacity = capacity
        self.forks = _forks
        return self

    def __dealloc__(self):
        cmq_found_batch_release(&self.found)
        free(self.found.items)


@cython.no_gc
@cython.freelist(1024)
cdef class Message:
    """One stored message. Immutable; any thread may use it; stays valid after the store is closed.

    It keeps the mapped file of its record in memory. Where messages are kept for long, keep ``bytes(message)`` instead.

    Two messages are equal when they are the same stored message: the same place in the log, and the same bytes there;
    whichever call, handle or process found them. The same body appended twice makes two messages, which differ.
    """
    cdef _Batch _batch
    cdef bytes _owner                # holds the bytes that the slices point into where that is not the map; else None
    cdef bytes _plain                # the body after decompression, once asked for
    cdef const uint8_t *_record
    cdef uint32_t _record_bytes
    cdef bint _parsed
    cdef bint _is_element            # of an inner batch: its own body, properties and flag stand in _view
    cdef int64_t _queue_offset
    cdef int64_t _physical_offset
    cdef _Pull _pull                 # ReceivedMessage's own: here, so that both have one size and share the free list
    cdef int32_t _reconsume_raised   # likewise
    cdef cmq_record_view _view

    def __reduce__(self):
        raise _errors.WrongType("a message of a store cannot be pickled, as it refers to the store's mapped files: "
                                "pass on the fields that are needed (body_bytes, tags, keys), or its topic, queue_id "
                                "and queue_offset")

    @cython.final
    cdef int _parse(self) except -1:
        if not self._parsed:
            if self._record is NULL:
                raise TypeError("messages come from a store: read(), get(), find()")
            _check(cmq_record_parse(self._record, self._record_bytes, self._physical_offset, 0, &self._view))
            self._require_readable(self._view.properties)
            self._parsed = True
        return 0

    @cython.final
    cdef int _require_readable(self, cmq_slice part) except -1:
        """A page of the map that cannot be read is zeros, which are not part of a message."""
        _check(cmq_map_guard_check(part.data, part.bytes, self._physical_offset))
        return 0

    # ---- where it is

    @property
    def topic(self):
        """Topic."""
        self._parse()
        return _text(self._view.topic)

    @property
    def queue_id(self):
        """Queue of the topic."""
        self._parse()
        return self._view.queue_id

    @property
    def queue_offset(self):
        """Number of the message in its queue."""
        return self._queue_offset

    @property
    def physical_offset(self):
        """Byte position of its record in the commit log."""
        return self._physical_offset

    @property
    def record_bytes(self):
        """Size of its record; messages of one inner batch share a record."""
        return self._record_bytes

    @property
    def message_id(self):
        """The offset message id: store host, port and physical offset in hexadecimal."""
        self._parse()
        return _message_id(&self._view.store_host, self._physical_offset)

    # ---- body and properties

    @property
    def raw_body(self):
        """The body as stored, which may be compressed: a read-only memoryview, not copied."""
        return PyMemoryView_FromObject(_RawBody.of(self))

    @property
    def body(self):
        """The body, decompressed if need be: a read-only memoryview, not copied unless it was compressed."""
        return PyMemoryView_FromObject(self)

    @property
    def body_bytes(self):
        """The body as ``bytes``: a copy."""
        return self._body_copy()

    def __bytes__(self):
        return self._body_copy()

    @cython.final
    cdef bytes _body_copy(self):
        self._parse()
        if self._view.sys_flag & CMQ_SYS_COMPRESSED:
            return self._decompressed()
        self._require_readable(self._view.body)
        return PyBytes_FromStringAndSize(<const char *>self._view.body.data, <Py_ssize_t>self._view.body.bytes)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self._parse()
        cdef bytes plain
        if self._view.sys_flag & CMQ_SYS_COMPRESSED:
            plain = self._decompressed()
            PyBuffer_FillInfo(buffer, self, PyBytes_AS_STRING(<PyObject *>plain), len(plain), 1, flags)
        else:
            self._require_readable(self._view.body)
            PyBuffer_FillInfo(buffer, self, <void *>self._view.body.data, <Py_ssize_t>self._view.body.bytes, 1, flags)

    @cython.final
    cdef bytes _decompressed(self):
        if self._plain is None:
            self._plain = _decompress(self._view.sys_flag, PyMemoryView_FromObject(_RawBody.of(self)))
        return self._plain

    @property
    def is_compressed(self):
        """True when the stored body is compressed."""
        self._parse()
        return (self._view.sys_flag & CMQ_SYS_COMPRESSED) != 0

    @property
    def is_inner_batch(self):
        """True for a record that is a whole inner batch, read with ``unwrap=False``; its body is the wire form of its
        messages.
        """
        self._parse()
        return not self._is_element and (self._view.sys_flag & CMQ_SYS_INNER_BATCH) != 0

    @cython.final
    cdef bytes _property(self, cmq_slice name):
        cdef cmq_slice value
        self._parse()
        if not cmq_property_find(self._view.properties, name, &value):
            return None
        return (<const char *>value.data)[:value.bytes]

    @property
    def tags(self):
        """The tag, or None."""
        value = self._property(_slice_of_bytes(b"TAGS"))
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def keys(self):
        """The keys that the index knows it by, as a tuple."""
        value = self._property(_slice_of_bytes(b"KEYS"))
        return () if value is None else tuple([key for key in value.decode("utf-8", "replace").split(" ") if key])

    @property
    def unique_id(self):
        """The id that its sender gave it (property ``UNIQ_KEY``), or None."""
        value = self._property(_slice_of_bytes(b"UNIQ_KEY"))
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def properties(self):
        """All properties as a new dict, ``TAGS`` and ``KEYS`` too; without the store's own proof of the record
        (``__CRC32#``).
        """
        self._parse()
        pairs = _decode_properties(self._view.properties)
        pairs.pop("__CRC32#", None)
        return pairs

    @property
    def flag(self):
        """The sender's own 32 bits."""
        self._parse()
        return self._view.flag

    @property
    def sys_flag(self):
        """RocketMQ's bits: compression, transaction, address families, inner batch."""
        self._parse()
        return self._view.sys_flag

    @property
    def body_crc(self):
        """Checksum of the stored body, 0 for an empty one. An element of an inner batch has that of the whole."""
        self._parse()
        return self._view.body_crc

    @property
    def magic(self):
        """Magic number of the record: its version."""
        self._parse()
        return self._view.magic

    # ---- when and from whom

    @property
    def born_timestamp_ms(self):
        """When its sender made it, in milliseconds since 1970."""
        self._parse()
        return self._view.born_timestamp_ms

    @property
    def born_host(self):
        """Its sender, as (address, port)."""
        self._parse()
        return _host_pair(&self._view.born_host)

    @property
    def store_timestamp_ms(self):
        """When it was stored, in milliseconds since 1970. Never falls along the log."""
        self._parse()
        return self._view.store_timestamp_ms

    @property
    def store_host(self):
        """The broker that stored it, as (address, port)."""
        self._parse()
        return _host_pair(&self._view.store_host)

    @property
    def reconsume_times(self):
        """How often a consumer has sent it back."""
        self._parse()
        return self._view.reconsume_times

    @property
    def prepared_transaction_offset(self):
        """Physical offset of a transaction's half message; -1 - that of the first record, in messages that
        ``store.transaction()`` stored together; else 0."""
        self._parse()
        return self._view.prepared_transaction_offset

    # ---- which one it is

    def __eq__(self, other):
        if type(other) is not Message:
            return NotImplemented
        cdef Message that = <Message>other
        if self is that:
            return True
        if self._physical_offset != that._physical_offset or self._queue_offset != that._queue_offset:
            return False
        if self._record_bytes != that._record_bytes or self._is_element != that._is_element:
            return False
        # Another store, or the place after a cut, has other bytes: at least the time.
        return self._record == that._record or memcmp(self._record, that._record, self._record_bytes) == 0

    def __hash__(self):
        return hash((self._physical_offset, self._queue_offset))

    def __repr__(self):
        self._parse()
        tags = self.tags
        label = "" if tags is None else f" tags={tags!r}"
        return f"<Message {self.topic}/{self._view.queue_id}@{self._queue_offset}{label} {self._view.body.bytes} B>"


@cython.final
@cython.no_gc
cdef class _RawBody:
    """Exports a message's stored body."""
    cdef Message _message

    @staticmethod
    cdef _RawBody of(Message message):
        message._parse()
        message._require_readable(message._view.body)
        cdef _RawBody self = _RawBody.__new__(_RawBody)
        self._message = message
        return self

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef cmq_slice *body = &self._message._view.body
        PyBuffer_FillInfo(buffer, self, <void *>body.data, <Py_ssize_t>body.bytes, 1, flags)


cdef object _decompress_body = None


cdef bytes _decompress(int sys_flag, object stored, object limit_bytes=None):
    """Through cometmq._compression, which is imported by the first body that needs it; up to its own limit, or to the
    one that is given.
    """
    global _decompress_body
    if _decompress_body is None:
        from cometmq._compression import decompress_body as function
        _decompress_body = function
    return _decompress_body(sys_flag, stored) if limit_bytes is None else _decompress_body(sys_flag, stored,
                                                                                           limit_bytes)


cdef inline Message _message_of(_Batch batch, const cmq_found *found):
    """The message of a record, or the record of an inner batch as it is."""
    cdef Message message = Message.__new__(Message)
    message._batch = batch
    message._record = found.record
    message._record_bytes = found.record_bytes
    message._physical_offset = found.physical_offset
    message._queue_offset = found.queue_offset
    return message


cdef list _unwrapped(Message record, int64_t first, int64_t last):
    """The messages of an inner batch with queue offsets in [first, last), in order (spec store 2.10)."""
    cdef cmq_wire_batch_element element
    cdef cmq_slice rest
    cdef cmq_status status
    cdef Message message
    cdef list messages = []
    cdef int64_t offset = record._queue_offset
    record._parse()
    rest = record._view.body
    if record._view.sys_flag & CMQ_SYS_COMPRESSED:
        rest = _slice_of_bytes(record._decompressed())
    while True:
        status = cmq_wire_batch_next(&rest, &element)
        if status == CMQ_END:
            return messages
        _check(status)
        if first <= offset < last:
            message = Message.__new__(Message)
            message._batch = record._batch
            message._owner = record._plain if record._plain is not None else record._owner
            message._record = record._record
            message._record_bytes = record._record_bytes
            message._physical_offset = record._physical_offset
            message._queue_offset = offset
            message._view = record._view
            message._view.flag = element.flag
            message._view.body = element.body
            message._view.properties = element.properties
            message._view.queue_offset = offset
            message._view.sys_flag &= ~<int32_t>CMQ_SYS_COMPRESSED
            message._is_element = True
            message._parsed = True
            messages.append(message)
        offset += 1


# ---- from a connection -----------------------------------------------------------------------------------------------

cdef Message _received(bytes data, size_t at):
    """The message whose record begins there; it keeps the bytes."""
    cdef Message message = Message.__new__(Message)
    cdef const uint8_t *record = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>data) + at
    cdef cmq_status status = cmq_record_parse(record, <size_t>len(data) - at, -1, 0, &message._view)
    if status == CMQ_AGAIN or status == CMQ_END:
        raise _errors.CorruptRecord("the bytes end within a message", offset=at)
    _check(status)
    message._owner = data
    message._record = record
    message._record_bytes = message._view.record_bytes
    message._queue_offset = message._view.queue_offset
    message._physical_offset = message._view.physical_offset
    message._parsed = True
    return message


cdef bint _body_matches(const cmq_record_view *view) noexcept:
    """Whether the stored body has the record's CRC; an empty one needs none. No program writes a negative length."""
    if view.body.bytes == 0:
        return cmq_load_u32(view.body.data - 4) == 0
    return cmq_crc31(view.body.data, view.body.bytes) == view.body_crc


def decode_messages(bytes data not None, list damaged=None):
    """Return the messages in the body of a broker's answer: records one behind the other, inner batches taken apart.

    Bodies are not copied: each message keeps ``data``. CorruptRecord where the bytes are not whole records, or a body
    does not match its CRC; with ``damaged`` such a message is passed over, and its error added to that list.
    """
    cdef list messages = []
    cdef object error
    cdef Message message
    cdef size_t at = 0
    while at < <size_t>len(data):
        message = _received(data, at)
        at += message._record_bytes
        if not _body_matches(&message._view):
            error = _errors.CorruptRecord(
                f"the body of message {message.queue_offset} of queue {message.queue_id}, topic {message.topic}, does "
                f"not match its CRC", offset=message.physical_offset)
            if damaged is None:
                raise error
            damaged.append(error)
        elif message._view.sys_flag & CMQ_SYS_INNER_BATCH:
            messages.extend(_unwrapped(message, 0, 0x7FFFFFFFFFFFFFFF))
        else:
            messages.append(message)
    return messages
