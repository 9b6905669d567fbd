# Messages on their way out, written in one call each: properties, unique id, and the request, or the record of a batch.
#
# The fast path takes plain messages: an uncompressed body of bytes, tags, keys, a sharding key, and properties that the
# client itself does not use. It rejects nothing: for any other message it returns None, and the slow path
# (cometmq.client.send.request_making) encodes or rejects that message. Both write the same bytes.
#
# Why this logic stands in a binding: docs/decisions/0027-logic-in-two-binding-files.md.
from posix.time cimport CLOCK_REALTIME

cdef enum:
    _ID_BYTES = 32
    _ID_HEAD_BYTES = 20
    _PLAIN_BYTES = 2048              # of properties, where they go the fast path
    _OWN_BYTES = 64                  # room for the unique id and WAIT, with their names
    _BATCH_OVERHEAD_BYTES = 22       # of a record of a batch beside its body and properties
    _STORED_BYTES_MAX = 32767        # properties of a record: their length has 15 bits
    _TAILS_MIN = 64

cdef cmq_slice _TAGS_NAME, _KEYS_NAME, _SHARDING_KEY_NAME, _UNIQ_KEY_NAME
cdef bytes _tags_name = b"TAGS"
cdef bytes _keys_name = b"KEYS"
cdef bytes _sharding_key_name = b"__SHARDINGKEY"
cdef bytes _uniq_key_name = b"UNIQ_KEY"
_TAGS_NAME = _slice_of_bytes(_tags_name)
_KEYS_NAME = _slice_of_bytes(_keys_name)
_SHARDING_KEY_NAME = _slice_of_bytes(_sharding_key_name)
_UNIQ_KEY_NAME = _slice_of_bytes(_uniq_key_name)


cdef int64_t _wall_ms(object now_ms) except -1:
    """Milliseconds since 1970, by a clock that was given or the machine's."""
    cdef timespec now
    if now_ms is not None:
        return now_ms()
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


# ---- messages --------------------------------------------------------------------------------------------------------

# Compiled, since a frozen dataclass of Python takes longer to be made than all the rest of the fast path.
@cython.auto_pickle(True)
@cython.dataclasses.dataclass(frozen=True)
cdef class OutgoingMessage:
    """A message to be sent. Immutable.

    Attributes:
        body: its bytes.
        tags: its tag, or None.
        keys: its keys, several with blanks between, or None.
        properties: further names and values.
        delay_level: 1 for the broker's first delay (1 second by default) and so on; 0 for none.
        sharding_key: messages with the same one go to the same queue, in order.
        queue_id: the queue, where neither the sharding key nor the sender shall choose.
        topic: where to, or None where the sender knows.
        flag: a number of the sender's own, int32.
        wait_stored: False where the broker shall answer before its flush or its slave is done.
        delay_ms: hold the message back for so long (a broker of 5.0 or newer); None for not.
        deliver_at_ms: hold it back until then, milliseconds since 1970; None for not.
    """
    body: object
    tags: object = None
    keys: object = None
    properties: object = None
    delay_level: object = 0
    sharding_key: object = None
    queue_id: object = None
    topic: object = None
    flag: object = 0
    wait_stored: object = True
    delay_ms: object = None
    deliver_at_ms: object = None

    def __post_init__(self):
        if type(self.body) is bytes:
            return
        if isinstance(self.body, str) or not isinstance(self.body, (bytes, bytearray, memoryview)):
            raise _errors.WrongType(f"a body is bytes, not {type(self.body).__name__}; encode a text first: "
                                    f"text.encode(). The topic follows it: OutgoingMessage(body, topic=...)")


# ---- unique ids ------------------------------------------------------------------------------------------------------

cdef inline void _write_hex(uint8_t *into, uint32_t number, int digits) noexcept nogil:
    cdef int i
    for i in range(digits):
        into[i] = "0123456789ABCDEF"[number >> 4 * (digits - 1 - i) & 15]


cdef class UniqueIdCounter:
    """Makes unique ids: a head of 20 digits, the time in the month, and a counter. Any thread.

    ``month_of(now_ms)`` returns begin and end of the month of a time, in milliseconds since 1970.
    """
    cdef uint8_t _head[_ID_HEAD_BYTES]
    cdef object _month_of
    cdef int64_t _begins_ms, _ends_ms
    cdef uint32_t _count

    def __init__(self, str head not None, month_of not None):
        cdef bytes digits = head.encode()
        if len(digits) != _ID_HEAD_BYTES:
            raise ValueError(f"the head of a unique id has {_ID_HEAD_BYTES} digits, not {len(digits)}")
        memcpy(self._head, <const char *>digits, _ID_HEAD_BYTES)
        self._month_of = month_of

    def next(self, int64_t now_ms):
        """Return another one; ``now_ms`` is milliseconds since 1970."""
        cdef uint8_t made[_ID_BYTES]
        cdef uint32_t in_month = self._in_month(now_ms)
        self._write(in_month, self._next(), made)
        return (<const char *>made)[:_ID_BYTES].decode("ascii")

    cdef uint32_t _in_month(self, int64_t now_ms) except? 0:
        if not self._begins_ms <= now_ms < self._ends_ms:
            begins_ms, ends_ms = self._month_of(now_ms)
            self._begins_ms = begins_ms
            self._ends_ms = ends_ms
        return <uint32_t>(now_ms - self._begins_ms)

    cdef uint16_t _next(self) noexcept:
        cdef uint16_t number = <uint16_t>self._count
        self._count += 1
        return number

    cdef void _write(self, uint32_t in_month, uint16_t number, uint8_t *into) noexcept:
        memcpy(into, self._head, _ID_HEAD_BYTES)
        _write_hex(into + _ID_HEAD_BYTES, in_month, 8)
        _write_hex(into + _ID_HEAD_BYTES + 8, number, 4)


cdef str _unique_id_in(bytes stored):
    """The unique id among properties in the stored form."""
    cdef cmq_slice value = _NO_BYTES
    cmq_property_find(_slice_of_bytes(stored), _UNIQ_KEY_NAME, &value)
    return _text(value)


# ---- properties ------------------------------------------------------------------------------------------------------

cdef size_t _own_bytes(bint wait_stored) noexcept:
    """A record's bytes beside its body and its own properties."""
    return _BATCH_OVERHEAD_BYTES + _UNIQ_KEY_NAME.bytes + 1 + _ID_BYTES + (11 if wait_stored else 12)


cdef size_t _write_own(uint8_t *into, UniqueIdCounter ids, uint32_t in_month, uint16_t number,
                       bint wait_stored) noexcept:
    """The unique id and WAIT, which every message has; at most _OWN_BYTES."""
    cdef size_t used = 9 + _ID_BYTES
    memcpy(into, <const char *>b"UNIQ_KEY\x01", 9)
    ids._write(in_month, number, into + 9)
    if wait_stored:
        memcpy(into + used, <const char *>b"\x02WAIT\x01true\x02", 11)
        return used + 11
    memcpy(into + used, <const char *>b"\x02WAIT\x01false\x02", 12)
    return used + 12


cdef int _add_plain(uint8_t *buffer, size_t *used, cmq_slice name, object value) except -1:
    """Append a pair to buffer[0, _PLAIN_BYTES), nothing for an empty value; 0 where the slow path is to look at it."""
    cdef cmq_slice text
    if value is None:
        return 1
    if type(value) is not str:
        return 0
    try:
        text = _slice_of_text(<str>value)
    except _errors.InvalidArgument:
        return 0
    if text.bytes > _PLAIN_BYTES or cmq_property_has_separator(text):
        return 0
    if text.bytes == 0:
        return 1
    if cmq_property_pair_bytes(name, text) > _PLAIN_BYTES - used[0]:
        return 0
    used[0] = <size_t>(cmq_property_write(buffer + used[0], name, text) - buffer)
    return 1


cdef int _add_properties(uint8_t *buffer, size_t *used, dict properties, frozenset special) except -1:
    """The same for further names and values, none of which has a meaning for the client."""
    cdef cmq_slice text
    for name, value in properties.items():
        if type(name) is not str or name in special:
            return 0
        try:
            text = _slice_of_text(<str>name)
        except _errors.InvalidArgument:
            return 0
        if (text.bytes > _PLAIN_BYTES or cmq_property_check_name(text) != CMQ_OK or value is None
                or not _add_plain(buffer, used, text, value)):
            return 0
    return 1


cdef int _write_plain(uint8_t *buffer, size_t *used, object tags, object keys, object sharding_key, object properties,
                      frozenset special) except -1:
    """A message's properties in the stored form; 0 where they are not plain."""
    used[0] = 0
    if tags is not None and not (_add_plain(buffer, used, _TAGS_NAME, tags)
                                 and _is_plain_tag(_slice_of_text(<str>tags))):
        return 0
    if keys is not None and not _add_plain(buffer, used, _KEYS_NAME, keys):
        return 0
    if sharding_key is not None and not _add_plain(buffer, used, _SHARDING_KEY_NAME, sharding_key):
        return 0
    if properties is not None:
        return type(properties) is dict and _add_properties(buffer, used, <dict>properties, special)
    return 1


# ---- one by one ------------------------------------------------------------------------------------------------------

@cython.final
cdef class FastPath:
    """The fast path of plain messages to one topic, one request each. Any thread.

    It is there as long as its topic's queues are what they are, and closed by being forgotten.
    """
    cdef object _engine, _next_queue, _queue_of, _transmit, _clock, _now_ms, _blocking, _asynchronous, _once
    cdef dict _masters, _links
    cdef set _under_way
    cdef frozenset _special
    cdef SendRequest _template
    cdef UniqueIdCounter _ids
    cdef Py_ssize_t _body_bytes_max
    cdef int64_t _timeout_ms, _blocking_ms, _asynchronous_ms

    def __init__(self, engine not None, SendRequest template not None, UniqueIdCounter ids not None, *,
                 next_queue not None, queue_of not None,
                 dict masters not None, set under_way not None, transmit not None, dict links, clock not None, now_ms,
                 blocking not None,
                 asynchronous not None, once not None, frozenset special not None, Py_ssize_t body_bytes_max,
                 int64_t timeout_ms):
        """``next_queue()`` gives the queues in turn, ``queue_of(sharding_key)`` the one of a key, ``masters`` the
        address of a broker. ``transmit(address, request, on_answer, timeout_ms=)`` sends, where ``links`` has no
        connection that can be written to at once. ``clock()`` is in seconds, ``now_ms()`` since 1970 (None: the
        machine's). ``special`` names the properties that are not for the fast path. Of the policies
        ``once`` is for callers that wait and send to one queue."""
        self._engine = engine
        self._template = template
        self._ids = ids
        self._next_queue = next_queue
        self._queue_of = queue_of
        self._once = once
        self._special = special
        self._masters = masters
        self._under_way = under_way
        self._transmit = transmit
        self._links = links
        self._clock = clock
        self._now_ms = now_ms
        self._blocking = blocking
        self._asynchronous = asynchronous
        self._blocking_ms = blocking.timeout_ms(timeout_ms, attempts=0)
        self._asynchronous_ms = asynchronous.timeout_ms(timeout_ms, attempts=0)
        self._timeout_ms = timeout_ms
        self._body_bytes_max = body_bytes_max

    cdef bytes _stored(self, object body, object tags, object keys, object sharding_key, object properties,
                       int64_t *now_ms):
        """Its properties, where body and properties are plain; else None."""
        cdef uint8_t near[_PLAIN_BYTES + _OWN_BYTES]
        cdef size_t used = 0
        if type(body) is not bytes or not 0 < len(<bytes>body) <= self._body_bytes_max:
            return None
        if not _write_plain(near, &used, tags, keys, sharding_key, properties, self._special):
            return None
        now_ms[0] = _wall_ms(self._now_ms)
        used += _write_own(near + used, self._ids, self._ids._in_month(now_ms[0]), self._ids._next(), True)
        return PyBytes_FromStringAndSize(<const char *>near, <Py_ssize_t>used)

    def send(self, body, tags, keys, sharding_key, properties, bint is_awaited):
        """Send a message; return the future of its result, or None if it must take the slow path."""
        cdef PendingSend send
        cdef int64_t now_ms = 0
        cdef bytes stored = self._stored(body, tags, keys, sharding_key, properties, &now_ms)
        if stored is None:
            return None
        queue = self._next_queue() if sharding_key is None else self._queue_of(sharding_key)
        cdef str broker_name = queue.broker_name
        address = self._masters.get(broker_name)
        if address is None:
            return None
        send = PendingSend.__new__(PendingSend)
        send.engine = self._engine
        send.request = self._template._to(broker_name, queue.queue_id, stored, <bytes>body, now_ms, 0, 0)
        send.queue = queue
        send.is_fixed = sharding_key is not None
        send.policy = self._asynchronous if not is_awaited else self._once if send.is_fixed else self._blocking
        send.attempts = 1
        send.began_s = self._clock()
        send.deadline_s = send.began_s + self._timeout_ms / 1000.0
        send._id_source = stored
        send._under_way = self._under_way
        send._is_short = True
        self._under_way.add(send)
        try:
            self._pass_on(address, send.request, send, self._blocking_ms if send.policy is self._blocking
                          else self._asynchronous_ms)
        except BaseException:
            self._under_way.discard(send)
            raise
        return send

    def send_oneway(self, body, tags, keys, sharding_key, properties):
        """Send a message one-way; False if it must take the slow path."""
        cdef int64_t now_ms = 0
        cdef bytes stored = self._stored(body, tags, keys, sharding_key, properties, &now_ms)
        if stored is None:
            return False
        queue = self._next_queue() if sharding_key is None else self._queue_of(sharding_key)
        cdef str broker_name = queue.broker_name
        address = self._masters.get(broker_name)
        if address is None:
            return False
        self._pass_on(address, self._template._to(broker_name, queue.queue_id, stored, <bytes>body, now_ms, 0, 0), None,
                      self._timeout_ms)
        return True

    cdef int _pass_on(self, object address, SendRequest request, object on_answer, int64_t timeout_ms) except -1:
        cdef object link = None if self._links is None else self._links.get(address)
        if link is not None:
            try:
                if (<Link?>link)._begin(_KIND_SEND, request, on_answer, timeout_ms, -1, False):
                    return 0
            except (_errors.LimitReached, _errors.InvalidArgument):
                # Nothing was sent. The network finds the same, and fails the waiters when it is due.
                pass
        self._transmit(address, request, on_answer, timeout_ms=timeout_ms)
        return 0


# ---- batches ---------------------------------------------------------------------------------------------------------

cdef struct _id_tail:
    uint32_t in_month
    uint16_t number


@cython.final
cdef class PendingBatch:
    """Messages that will be one batch: the batch's bytes, written as they come.

    ``future`` is the send that they become; ``messages`` has them where somebody is to see them, else it is None.
    """
    cdef readonly str topic
    cdef readonly object queue                # they go to this one, or to any
    cdef readonly str tags
    cdef readonly bint wait_stored
    cdef readonly PendingSend future
    cdef readonly list messages
    cdef readonly bint is_awaited             # somebody waits for one of them
    cdef readonly double due_s                # when it goes
    cdef str _name
    cdef UniqueIdCounter _ids
    cdef _bytes_out _records
    cdef _id_tail *_tails
    cdef uint32_t _count, _capacity
    cdef bint _is_open

    def __init__(self):
        raise TypeError("an Accumulator makes batches")

    def __dealloc__(self):
        free(self._records.data)
        free(self._tails)

    def __len__(self):
        return self._count

    @property
    def size_bytes(self):
        """The messages' bytes in the batch; 0 once it was taken."""
        return self._records.end

    @property
    def unique_ids(self):
        """The ids of its messages."""
        cdef uint32_t i
        return [self._unique_id(i) for i in range(self._count)]

    def take_records(self):
        """Return the batch's bytes; they are kept no longer."""
        cdef bytes records = PyBytes_FromStringAndSize(<const char *>self._records.data, <Py_ssize_t>self._records.end)
        free(self._records.data)
        memset(&self._records, 0, sizeof(_bytes_out))
        return records

    cdef str _unique_id(self, uint32_t index):
        cdef uint8_t made[_ID_BYTES]
        self._ids._write(self._tails[index].in_month, self._tails[index].number, made)
        return (<const char *>made)[:_ID_BYTES].decode("ascii")

    cdef int _reserve(self, size_t record_bytes) except -1:
        """Make room for one record."""
        cdef _id_tail *tails
        _out_reserve(&self._records, record_bytes)
        if self._count == self._capacity:
            tails = <_id_tail *>realloc(self._tails, max(self._capacity * 2, <uint32_t>_TAILS_MIN) * sizeof(_id_tail))
            if tails is NULL:
                raise MemoryError
            self._tails = tails
            self._capacity = max(self._capacity * 2, <uint32_t>_TAILS_MIN)
        return 0

    cdef void _write(self, uint32_t in_month, cmq_slice stored, cmq_slice body, int32_t flag) noexcept:
        """Append a record; there is room."""
        cdef uint8_t *at = self._records.data + self._records.end
        cdef uint8_t *properties = at + _BATCH_OVERHEAD_BYTES + body.bytes
        cdef _id_tail *tail = &self._tails[self._count]
        cdef size_t properties_bytes
        tail.in_month = in_month
        tail.number = self._ids._next()
        memcpy(properties - 2 - body.bytes, body.data, body.bytes)
        memcpy(properties, stored.data, stored.bytes)
        properties_bytes = stored.bytes + _write_own(properties + stored.bytes, self._ids, in_month, tail.number,
                                                     self.wait_stored)
        cmq_store_u16(properties - 2, <uint16_t>properties_bytes)
        cmq_store_u32(at, <uint32_t>(_BATCH_OVERHEAD_BYTES + body.bytes + properties_bytes))
        memset(at + 4, 0, 8)                  # a magic number and a checksum, which nobody reads
        cmq_store_u32(at + 12, <uint32_t>flag)
        cmq_store_u32(at + 16, <uint32_t>body.bytes)
        self._records.end += _BATCH_OVERHEAD_BYTES + body.bytes + properties_bytes
        self._count += 1

    def __repr__(self):
        """Return topic, messages and bytes."""
        return f"PendingBatch({self.topic}, {_counted(self._count, 'message')}, {_counted(self._records.end, 'byte')})"


@cython.final
cdef class Accumulator:
    """The batches that grow: one per topic, queue, tags, and whether the broker is to wait. Any thread.

    A batch goes when it has grown beyond ``batch_max_bytes`` (``on_ready(batch)``, in the thread that made it grow), or
    when its time has come (:meth:`take_due`); ``on_fresh(batch)`` is called when one has begun. All together have a
    limit, ``total_max_bytes``; beyond it, messages go alone.
    """
    cdef object _engine, _on_fresh, _on_ready, _clock, _now_ms
    cdef UniqueIdCounter _ids
    cdef dict _pending                        # by names that are exactly str: to look one up runs no Python
    cdef size_t _batch_max_bytes, _total_max_bytes, _message_max_bytes, _held_bytes
    cdef double _delay_s
    cdef bint _keeps_messages

    def __init__(self, engine not None, UniqueIdCounter ids not None, *, size_t batch_max_bytes, size_t total_max_bytes,
                 size_t message_max_bytes,
                 int64_t delay_ms, on_fresh not None, on_ready not None, clock not None, now_ms=None,
                 bint keeps_messages=False):
        """``clock()`` is in seconds, ``now_ms()`` since 1970 (None: the machine's); ``message_max_bytes`` is the
        longest batch that brokers take.
        """
        self._engine = engine
        self._ids = ids
        self._batch_max_bytes = batch_max_bytes
        self._total_max_bytes = total_max_bytes
        self._message_max_bytes = message_max_bytes
        self._delay_s = delay_ms / 1000.0
        self._on_fresh = on_fresh
        self._on_ready = on_ready
        self._clock = clock
        self._now_ms = now_ms
        self._keeps_messages = keeps_messages
        self._pending = {}

    def add(self, str topic not None, queue, str tags, bytes body not None, bytes stored not None, *, int32_t flag=0,
            bint wait_stored=True,
            bint is_awaited=False, message=None):
        """Put a message, its own properties in the stored form, into its batch; returns its future, or None where it
        has to go alone.
        """
        cdef Gathered part
        cdef uint32_t in_month
        cdef size_t size = <size_t>len(stored) + <size_t>len(body) + _own_bytes(wait_stored)
        if len(stored) > _STORED_BYTES_MAX - _OWN_BYTES:
            raise _errors.MessageTooLarge(f"the properties take {len(stored):,} bytes; at most "
                                          f"{_STORED_BYTES_MAX - _OWN_BYTES:,}")
        if not self._takes(size):
            return None
        in_month = self._ids._in_month(_wall_ms(self._now_ms))
        part = Gathered.__new__(Gathered)
        self._put(self._with_room(topic, queue, tags, wait_stored, size), part, in_month, _slice_of_bytes(stored), body,
                  flag, is_awaited, message)
        return part

    cdef bint _takes(self, size_t size) noexcept:
        """Whether a record of so many bytes may be part of a batch now."""
        if size > self._batch_max_bytes or size > self._message_max_bytes or self._held_bytes > self._total_max_bytes:
            return False
        return size <= self._total_max_bytes - self._held_bytes

    cdef PendingBatch _with_room(self, str topic, object queue, str tags, bint wait_stored, size_t size):
        """Return the open batch for a record.

        No other thread runs between this call and the caller's next Python allocation.
        """
        cdef str place = "" if queue is None else f"{queue.broker_name}/{queue.queue_id}"
        cdef str name = f"{topic}\x01{tags or ''}\x01{place}\x01{wait_stored}"
        cdef PendingBatch pending, fresh
        while True:
            pending = self._pending.get(name)
            if pending is None:
                fresh = self._new(name, topic, queue, tags, wait_stored)
                pending = self._pending.setdefault(name, fresh)
            elif pending._records.end + size > self._message_max_bytes:
                self._ready(pending)
                continue
            if pending._is_open and pending._records.end + size <= self._message_max_bytes:
                return pending

    cdef PendingBatch _new(self, str name, str topic, object queue, str tags, bint wait_stored):
        cdef PendingBatch pending = PendingBatch.__new__(PendingBatch)
        pending._name = name
        pending.topic = topic
        pending.queue = queue
        pending.tags = tags
        pending.wait_stored = wait_stored
        pending._ids = self._ids
        pending.due_s = self._clock() + self._delay_s
        pending.messages = [] if self._keeps_messages else None
        pending.future = PendingSend.__new__(PendingSend)
        pending.future.engine = self._engine
        pending._is_open = True
        return pending

    cdef int _put(self, PendingBatch pending, Gathered part, uint32_t in_month, cmq_slice stored, bytes body,
                  int32_t flag, bint is_awaited,
                  object message) except -1:
        """Write a record into a batch that has just been looked up, and see whether the batch goes."""
        cdef size_t before = pending._records.end
        pending._reserve(_BATCH_OVERHEAD_BYTES + stored.bytes + _OWN_BYTES + <size_t>len(body))
        part._pending = pending
        part._index = pending._count
        pending._write(in_month, stored, _slice_of_bytes(body), flag)
        pending.is_awaited = pending.is_awaited or is_awaited
        self._held_bytes += pending._records.end - before
        if pending.messages is not None:
            pending.messages.append(message)
        if pending._records.end > self._batch_max_bytes:
            self._ready(pending)
        elif before == 0:
            try:
                self._on_fresh(pending)
            except BaseException:
                self._on_fresh(pending)         # Ctrl-C came before it; others may wait for this batch
                raise
        return 0

    cdef int _ready(self, PendingBatch pending) except -1:
        if self._take(pending):
            try:
                self._on_ready(pending)
            except BaseException:
                self._engine.was_interrupted(pending)
                raise
        return 0

    cdef bint _take(self, PendingBatch pending) except -1:
        """Close a batch; False where another thread has."""
        if not pending._is_open:
            return False
        pending._is_open = False
        self._held_bytes -= pending._records.end
        if self._pending.get(pending._name) is pending:
            del self._pending[pending._name]
        return True

    def take_due(self, double now_s):
        """Return the batches whose time has come; they are the caller's."""
        return [pending for pending in list(self._pending.values()) if (<PendingBatch>pending).due_s <= now_s
                and self._take(<PendingBatch>pending)]

    def take_all(self):
        """Return all batches; they are the caller's."""
        return self.take_due(float("inf"))

    @property
    def first_due_s(self):
        """When the next batch goes; None where there is none."""
        return min(((<PendingBatch>pending).due_s for pending in list(self._pending.values())), default=None)

    @property
    def held_bytes(self):
        """Bytes of all batches."""
        return self._held_bytes

    def __repr__(self):
        """Return how much waits."""
        return f"Accumulator(batches: {len(self._pending)}, {_counted(self._held_bytes, 'byte')})"


@cython.final
cdef class BatchFastPath:
    """The fast path of plain messages to one topic into batches. Any thread."""
    cdef Accumulator _accumulator
    cdef str _topic
    cdef Py_ssize_t _body_bytes_max
    cdef frozenset _special
    cdef PendingBatch _last

    def __init__(self, Accumulator accumulator not None, str topic not None, *, frozenset special not None,
                 Py_ssize_t body_bytes_max):
        """``topic`` is the name on the wire, checked; ``special`` as a FastPath's, ``body_bytes_max`` what a body has
        at most.
        """
        self._special = special
        self._accumulator = accumulator
        self._topic = topic
        self._body_bytes_max = body_bytes_max

    def send(self, body, tags, keys, sharding_key, properties, bint is_awaited):
        """Put a message into its batch; its future brings what becomes of it. None where it is to go the slow path."""
        cdef uint8_t near[_PLAIN_BYTES]
        cdef cmq_slice stored
        cdef Accumulator accumulator = self._accumulator
        cdef PendingBatch pending
        cdef Gathered part
        cdef size_t size
        cdef uint32_t in_month
        stored.data = near
        if sharding_key is not None or type(body) is not bytes or not 0 < len(<bytes>body) <= self._body_bytes_max:
            return None
        if not _write_plain(near, &stored.bytes, tags, keys, None, properties, self._special):
            return None
        size = stored.bytes + <size_t>len(<bytes>body) + _own_bytes(True)
        if not accumulator._takes(size):
            return None
        in_month = accumulator._ids._in_month(_wall_ms(accumulator._now_ms))
        part = Gathered.__new__(Gathered)
        pending = self._last
        if (pending is None or not pending._is_open or pending.tags is not tags
                or pending._records.end + size > accumulator._message_max_bytes):
            pending = accumulator._with_room(self._topic, None, tags, True, size)
        accumulator._put(pending, part, in_month, stored, <bytes>body, 0, is_awaited, None)
        self._last = pending
        return part

    def send_oneway(self, body, tags, keys, sharding_key, properties):
        """Return False: one-way messages are not batched."""
        return False
