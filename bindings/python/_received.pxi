# ReceivedMessage: a message that a consumer pulled. decode_pulled makes them of a broker's answer.

cdef enum:
    # an answer that is parsed within some microseconds is not worth waiting for the GIL again
    _PULL_NOGIL_BYTES = 65536
    # of all compressed inner batches of an answer; no client compresses batches, so none is refused for it
    _UNFOLDED_BYTES_MAX = 16777216
    _UNFOLDED_COUNT_MAX = 65536      # … and of their messages: 43 KB could become 800,000 objects

cdef bytes _RETRY_PREFIX_BYTES = b"%RETRY%"


cdef inline bint _is_retry_topic(cmq_slice topic) noexcept:
    cdef size_t prefix = <size_t>len(_RETRY_PREFIX_BYTES)
    return topic.bytes >= prefix and memcmp(topic.data, PyBytes_AS_STRING(<PyObject *>_RETRY_PREFIX_BYTES), prefix) == 0


@cython.final
@cython.no_gc
cdef class ReceivedMessage(Message):
    """A message as a consumer received it. Immutable; any thread may use it; can be pickled.

    It keeps the whole answer that it came in, up to some hundred KiB. Where messages are kept for long, keep
    ``bytes(message)`` instead.

    Two are equal when they are the same stored message of the same broker.
    """

    @property
    def broker_name(self):
        """Broker whose queue it was in."""
        return self._pull.broker_name

    @property
    def topic(self):
        """Topic that it was published to, also when it comes from a retry topic."""
        self._parse()
        cdef object origin = None
        if _is_retry_topic(self._view.topic):
            origin = self._property(_slice_of_bytes(b"RETRY_TOPIC"))
        if origin is None:
            return self._pull.topic
        cdef str name = origin.decode("utf-8", "replace")
        return name if self._pull.namespace is None else name.removeprefix(self._pull.namespace + "%")

    @property
    def stored_topic(self):
        """Topic whose queue it was in."""
        self._parse()
        return _text(self._view.topic)

    @property
    def queue_id(self):
        """Queue that it was in."""
        return self._pull.queue_id

    @property
    def reconsume_times(self):
        """How often it was sent back, or tried again in order."""
        self._parse()
        return max(self._view.reconsume_times, self._reconsume_raised)

    @property
    def min_offset(self):
        """Least offset of its queue when it was pulled."""
        return self._pull.min_offset

    @property
    def max_offset(self):
        """Offset behind the last message of its queue when it was pulled."""
        return self._pull.max_offset

    @property
    def body_size(self):
        """Bytes of the body as stored, which may be compressed."""
        self._parse()
        return self._view.body.bytes

    @property
    def original_message_id(self):
        """The offset message id that it had before it was sent back for the first time."""
        value = self._property(_slice_of_bytes(b"ORIGIN_MESSAGE_ID"))
        return self.message_id if value is None else value.decode("ascii", "replace")

    @property
    def pop_handle(self):
        """A popped message's handle for its acknowledgement, as in upstream's property ``POP_CK``; None where it was
        pulled.
        """
        return None if self._pull.pop_head is None else f"{self._pull.pop_head} {self._queue_offset}"

    def __eq__(self, other):
        if type(other) is not ReceivedMessage:
            return NotImplemented
        cdef ReceivedMessage that = <ReceivedMessage>other
        if self is that:
            return True
        self._parse()
        that._parse()
        if self._queue_offset != that._queue_offset or self._physical_offset != that._physical_offset:
            return False
        if self._view.store_timestamp_ms != that._view.store_timestamp_ms or self._pull.queue_id != that._pull.queue_id:
            return False
        return self._pull.broker_name == that._pull.broker_name

    def __hash__(self):
        return hash((self._physical_offset, self._queue_offset))

    def __repr__(self):
        tags = self.tags
        label = "" if tags is None else f" tags={tags!r}"
        again = f" reconsume_times={self.reconsume_times}" if self.reconsume_times else ""
        place = f"{self.topic}/{self._pull.broker_name}/{self._pull.queue_id}@{self._queue_offset}"
        return f"<ReceivedMessage {place}{label}{again} {self.body_size} B>"

    cdef bytes _own_record(self):
        """Its record; of an element of an inner batch, a record made of it."""
        cdef cmq_record_fields fields
        cdef cmq_record_sizes sizes
        cdef bytes record
        self._parse()
        if not self._is_element:
            return PyBytes_FromStringAndSize(<const char *>self._record, <Py_ssize_t>self._record_bytes)
        memset(&fields, 0, sizeof(fields))
        fields.topic = self._view.topic
        fields.body = self._view.body
        fields.properties = self._view.properties
        fields.queue_offset = self._view.queue_offset
        fields.physical_offset = self._physical_offset
        fields.born_timestamp_ms = self._view.born_timestamp_ms
        fields.store_timestamp_ms = self._view.store_timestamp_ms
        fields.prepared_transaction_offset = self._view.prepared_transaction_offset
        fields.queue_id = self._view.queue_id
        fields.flag = self._view.flag
        fields.sys_flag = self._view.sys_flag
        fields.reconsume_times = self._view.reconsume_times
        fields.born_host = self._view.born_host
        fields.store_host = self._view.store_host
        fields.has_body_crc = True
        fields.body_crc = self._view.body_crc
        _check(cmq_record_measure(&fields, &sizes))
        record = PyBytes_FromStringAndSize(NULL, sizes.record_bytes)
        cmq_record_encode(<uint8_t *>PyBytes_AS_STRING(<PyObject *>record), &fields, &sizes)
        return record

    def __reduce__(self):
        cdef _Pull pull = self._pull
        return _received_again, (self._own_record(), pull.broker_name, pull.topic, pull.queue_id, pull.namespace,
                                 pull.min_offset, pull.max_offset,
                                 self._queue_offset, self._is_element, self._reconsume_raised, pull.pop_head)


cdef _Pull _pull_of(str broker_name, str topic, int32_t queue_id, str namespace, int64_t min_offset, int64_t max_offset,
                    str pop_head=None):
    cdef _Pull pull = _Pull.__new__(_Pull)
    pull.broker_name = broker_name
    pull.topic = topic
    pull.queue_id = queue_id
    pull.namespace = namespace
    pull.min_offset = min_offset
    pull.max_offset = max_offset
    pull.pop_head = pop_head
    return pull


cdef inline ReceivedMessage _received_of(_Pull pull, bytes owner, const uint8_t *record, const cmq_record_view *view):
    cdef ReceivedMessage message = ReceivedMessage.__new__(ReceivedMessage)
    message._pull = pull
    message._owner = owner
    message._record = record
    message._record_bytes = view.record_bytes
    message._physical_offset = view.physical_offset
    message._view = view[0]
    message._parsed = True
    return message


def _received_again(bytes record not None, str broker_name not None, str topic not None, int32_t queue_id,
                    str namespace, int64_t min_offset,
                    int64_t max_offset, int64_t queue_offset, bint is_element, int32_t reconsume_raised,
                    str pop_head=None):
    """Make a message again that was pickled."""
    cdef cmq_record_view view
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>record)
    cdef cmq_status status = cmq_record_parse(at, <size_t>len(record), -1, 0, &view)
    if status == CMQ_AGAIN or status == CMQ_END:
        raise _errors.CorruptRecord("the bytes of a pickled message end within it")
    _check(status)
    cdef ReceivedMessage message = _received_of(_pull_of(broker_name, topic, queue_id, namespace, min_offset,
                                                         max_offset, pop_head), record, at, &view)
    message._queue_offset = queue_offset
    message._is_element = is_element
    message._reconsume_raised = reconsume_raised
    return message


def set_reconsume_times(ReceivedMessage message not None, int32_t times):
    """Say how often a message was tried again in order, where that is more than its record says.

    For the consumer that holds it.
    """
    message._reconsume_raised = times


# ---- a pull's answer -------------------------------------------------------------------------------------------------

@cython.final
cdef class PulledMessages:
    """The messages of one answer."""
    cdef readonly list messages
    cdef readonly int64_t body_bytes
    cdef readonly Py_ssize_t decoded
    cdef readonly list unreadable    # (queue offset, why) of each record that was passed over, but for the unnamed
    cdef readonly Py_ssize_t unnamed # how many damaged records beyond the first were passed over

    def __repr__(self):
        return f"<PulledMessages {len(self.messages)} of {self.decoded}, {self.body_bytes} B>"


cdef struct _found_view:
    const uint8_t *record
    cmq_record_view view


cdef struct _wanted_tags:
    cmq_slice *tags                  # NULL: all are wanted
    size_t count


cdef bint _is_wanted(const _wanted_tags *wanted, cmq_slice properties) noexcept nogil:
    cdef cmq_slice name, value
    cdef size_t i
    if wanted.tags is NULL:
        return True
    name.data = <const uint8_t *>"TAGS"
    name.bytes = 4
    if not cmq_property_find(properties, name, &value):
        return False
    for i in range(wanted.count):
        if wanted.tags[i].bytes == value.bytes and memcmp(wanted.tags[i].data, value.data, value.bytes) == 0:
            return True
    return False


cdef enum:
    _UNREADABLE_NAMED = 16           # damaged records of an answer that are named


cdef struct _parsed_answer:
    _found_view *items
    size_t count, capacity
    size_t at                        # of the record that could not be read
    Py_ssize_t decoded
    size_t unreadable[_UNREADABLE_NAMED]   # the first ones that were passed over: where their bytes begin
    Py_ssize_t unreadable_count


cdef size_t _whole_bytes(const uint8_t *at, size_t left) noexcept nogil:
    """A record's own length; 0 where no record can be that long.

    The record behind it can be read even if this one is damaged.
    """
    if left < CMQ_RECORD_BYTES_MIN:
        return 0
    cdef uint32_t size = cmq_load_u32(at)
    cdef uint32_t magic = cmq_load_u32(at + 4)
    return size if CMQ_RECORD_BYTES_MIN <= size <= left and (magic == CMQ_RECORD_MAGIC_V1
                                                             or magic == CMQ_RECORD_MAGIC_V2) else 0


cdef cmq_status _parse_answer(const uint8_t *data, size_t bytes, const _wanted_tags *wanted,
                              _parsed_answer *answer) noexcept nogil:
    """Find the records that are wanted; a record of an inner batch is wanted for its elements."""
    cdef cmq_status status
    cdef cmq_record_view *view
    cdef void *grown
    cdef bint is_batch
    while answer.at < bytes:
        if answer.count == answer.capacity:
            answer.capacity = answer.capacity * 2 if answer.capacity else 64
            grown = realloc(answer.items, answer.capacity * sizeof(_found_view))
            if grown is NULL:
                return CMQ_ERR_MEMORY
            answer.items = <_found_view *>grown
        view = &answer.items[answer.count].view
        status = cmq_record_parse(data + answer.at, bytes - answer.at, -1, CMQ_RECORD_CHECK_BODY_CRC, view)
        if status == CMQ_ERR_CORRUPT and _whole_bytes(data + answer.at, bytes - answer.at) > 0:
            if answer.unreadable_count < _UNREADABLE_NAMED:
                answer.unreadable[answer.unreadable_count] = answer.at
            answer.unreadable_count += 1
            answer.at += _whole_bytes(data + answer.at, bytes - answer.at)
            continue
        if status != CMQ_OK:
            return status
        answer.items[answer.count].record = data + answer.at
        answer.at += view.record_bytes
        is_batch = (view.sys_flag & CMQ_SYS_INNER_BATCH) != 0
        if not is_batch:
            answer.decoded += 1
        if is_batch or _is_wanted(wanted, view.properties):
            answer.count += 1
    return CMQ_OK


cdef struct _unfold_budget:
    int64_t bytes, count             # budget left for the compressed inner batches of this answer


cdef int _add_inner_batch(PulledMessages pulled, ReceivedMessage record, const _wanted_tags *wanted,
                          _unfold_budget *left) except -1:
    """All of an inner batch, or nothing of it where it cannot be read; other messages are not affected."""
    cdef Py_ssize_t messages = len(pulled.messages), decoded = pulled.decoded
    cdef int64_t body_bytes = pulled.body_bytes
    try:
        _add_elements(pulled, record, wanted, left)
    except (_errors.CorruptRecord, _errors.DecompressionError, _errors.LimitReached) as error:
        del pulled.messages[messages:]
        pulled.decoded = decoded
        pulled.body_bytes = body_bytes
        pulled.unreadable.append((record._queue_offset, str(error)))
    return 0


cdef bytes _unfold(ReceivedMessage record, _unfold_budget *left):
    """Inflate a compressed inner batch within the answer's remaining budget."""
    cdef bytes body = _decompress(record._view.sys_flag, PyMemoryView_FromObject(_RawBody.of(record)), left.bytes)
    cdef uint32_t count = 0
    if len(body) > 0:
        _check(cmq_wire_batch_count(_slice_of_bytes(body), &count))
    if count > left.count:
        raise _errors.LimitReached(f"the compressed batches of an answer unfold to more than {_UNFOLDED_COUNT_MAX} "
                                   f"messages")
    left.bytes -= len(body)
    left.count -= count
    return body


cdef int _add_elements(PulledMessages pulled, ReceivedMessage record, const _wanted_tags *wanted,
                       _unfold_budget *left) except -1:
    """The wanted elements of an inner batch; their offsets count on from the record's."""
    cdef cmq_wire_batch_element element
    cdef cmq_slice rest = record._view.body
    cdef cmq_status status
    cdef ReceivedMessage message
    cdef bytes owner = record._owner
    cdef int64_t offset = record._queue_offset
    cdef int64_t stored = record._view.queue_offset
    if record._view.sys_flag & CMQ_SYS_COMPRESSED:
        owner = _unfold(record, left)
        rest = _slice_of_bytes(owner)
    while True:
        status = cmq_wire_batch_next(&rest, &element)
        if status == CMQ_END:
            return 0
        _check(status)
        pulled.decoded += 1
        if _is_wanted(wanted, element.properties):
            message = _received_of(record._pull, record._owner, record._record, &record._view)
            message._plain = owner      # owns the memory of the slices; an element is not compressed itself
            message._queue_offset = offset
            message._view.queue_offset = stored
            message._view.flag = element.flag
            message._view.body = element.body
            message._view.properties = element.properties
            message._view.sys_flag &= ~<int32_t>CMQ_SYS_COMPRESSED
            message._is_element = True
            pulled.messages.append(message)
            pulled.body_bytes += <int64_t>element.body.bytes
        offset += 1
        stored += 1


def decode_pulled(bytes body not None, *, str broker_name not None, str topic not None, int32_t queue_id, tags=None,
                  int64_t offset_delta=0,
                  int64_t min_offset=0, int64_t max_offset=0, str namespace=None):
    """Return the messages in a pull's answer, those of the wanted tags; ``tags`` None wants all.

    Inner batches are taken apart.

    ``topic`` is the name that users know; ``namespace`` is taken from the name that a retried message was published
    under. ``offset_delta`` is added to their queue offsets. Bodies are not copied: each message keeps ``body``. A
    record that cannot be read, but says where it ends, is passed over, and is in ``unreadable``, as are compressed
    batches beyond the answer's budget. CorruptRecord where the bytes are not whole records; nothing is returned then.
    """
    cdef PulledMessages pulled = PulledMessages.__new__(PulledMessages)
    cdef _Pull pull = _pull_of(broker_name, topic, queue_id, namespace, min_offset, max_offset)
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>body)
    cdef size_t bytes_of_body = <size_t>len(body)
    cdef _parsed_answer answer
    cdef const uint8_t *damaged
    cdef _wanted_tags wanted
    cdef list names = [] if tags is None else list(tags)
    cdef ReceivedMessage message
    cdef _unfold_budget left
    cdef cmq_status status
    cdef size_t i
    memset(&answer, 0, sizeof(answer))
    left.bytes = _UNFOLDED_BYTES_MAX
    left.count = _UNFOLDED_COUNT_MAX
    wanted.tags = NULL
    wanted.count = <size_t>len(names)
    pulled.messages = []
    pulled.unreadable = []
    try:
        if tags is not None:
            wanted.tags = <cmq_slice *>malloc((wanted.count + 1) * sizeof(cmq_slice))
            if wanted.tags is NULL:
                raise MemoryError
            for i in range(wanted.count):
                wanted.tags[i] = _slice_of_text(names[i])
        if bytes_of_body >= _PULL_NOGIL_BYTES:
            with nogil:
                status = _parse_answer(data, bytes_of_body, &wanted, &answer)
        else:
            status = _parse_answer(data, bytes_of_body, &wanted, &answer)
        if status == CMQ_ERR_MEMORY:
            raise MemoryError
        if status == CMQ_AGAIN or status == CMQ_END:
            raise _errors.CorruptRecord("the bytes end within a message", offset=answer.at)
        if status != CMQ_OK:
            raise _errors.CorruptRecord(_failure(status).message, offset=answer.at)
        pulled.decoded = answer.decoded
        for i in range(<size_t>min(answer.unreadable_count, _UNREADABLE_NAMED)):
            damaged = data + answer.unreadable[i]
            offset = cmq_load_i64(damaged + CMQ_RECORD_AT_QUEUE_OFFSET) + offset_delta
            why = f"the record of queue {cmq_load_i32(damaged + CMQ_RECORD_AT_QUEUE_ID)} is damaged"
            pulled.unreadable.append((offset, why))
        pulled.unnamed = max(answer.unreadable_count - _UNREADABLE_NAMED, 0)
        for i in range(answer.count):
            message = _received_of(pull, body, answer.items[i].record, &answer.items[i].view)
            message._queue_offset = answer.items[i].view.queue_offset + offset_delta
            if message._view.sys_flag & CMQ_SYS_INNER_BATCH:
                _add_inner_batch(pulled, message, &wanted, &left)
            else:
                pulled.messages.append(message)
                pulled.body_bytes += <int64_t>message._view.body.bytes
    finally:
        free(wanted.tags)
        free(answer.items)
    return pulled
