# A client's requests and answers without a Command: sends and pulls. The connection that carries them is _link.pxi.

@cython.final
cdef class SendRequest:
    """A send of one message, or of a batch's bytes.

    Immutable; its texts and bytes are kept, not copied, until it is written into a connection.
    """
    cdef readonly int32_t code
    cdef readonly str producer_group
    cdef readonly str topic
    cdef readonly str default_topic
    cdef readonly str broker_name
    cdef readonly bytes properties
    cdef readonly bytes body
    cdef readonly int64_t born_timestamp_ms
    cdef readonly int32_t default_topic_queues
    cdef readonly int32_t queue_id
    cdef readonly int32_t sys_flag
    cdef readonly int32_t flag
    cdef readonly int32_t reconsume_times
    cdef readonly int32_t max_reconsume_times
    cdef readonly bint unit_mode
    cdef readonly bint batch

    def __init__(self, *, int32_t code, str producer_group not None, str topic not None, int32_t queue_id,
                 bytes properties not None,
                 bytes body not None, int64_t born_timestamp_ms, int32_t sys_flag=0, int32_t flag=0,
                 int32_t reconsume_times=0,
                 int32_t max_reconsume_times=-1, bint unit_mode=False, bint batch=False,
                 str default_topic not None="TBW102",
                 int32_t default_topic_queues=4, str broker_name=None):
        self.code = code
        self.producer_group = producer_group
        self.topic = topic
        self.default_topic = default_topic
        self.broker_name = broker_name
        self.properties = properties
        self.body = body
        self.born_timestamp_ms = born_timestamp_ms
        self.default_topic_queues = default_topic_queues
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.flag = flag
        self.reconsume_times = reconsume_times
        self.max_reconsume_times = max_reconsume_times
        self.unit_mode = unit_mode
        self.batch = batch

    def to_queue(self, str broker_name, int32_t queue_id):
        """Return the same send to another queue."""
        return self._to(broker_name, queue_id, self.properties, self.body, self.born_timestamp_ms, self.sys_flag,
                        self.flag)

    def message(self, str broker_name, int32_t queue_id, bytes properties not None, bytes body not None,
                int64_t born_timestamp_ms,
                int32_t sys_flag=0, int32_t flag=0):
        """Return a send that shares all else with this one: the quick way to many."""
        return self._to(broker_name, queue_id, properties, body, born_timestamp_ms, sys_flag, flag)

    cdef SendRequest _to(self, str broker_name, int32_t queue_id, bytes properties, bytes body,
                         int64_t born_timestamp_ms, int32_t sys_flag, int32_t flag):
        cdef SendRequest other = SendRequest.__new__(SendRequest)
        other.code = self.code
        other.producer_group = self.producer_group
        other.topic = self.topic
        other.default_topic = self.default_topic
        other.broker_name = broker_name
        other.properties = properties
        other.body = body
        other.born_timestamp_ms = born_timestamp_ms
        other.default_topic_queues = self.default_topic_queues
        other.queue_id = queue_id
        other.sys_flag = sys_flag
        other.flag = flag
        other.reconsume_times = self.reconsume_times
        other.max_reconsume_times = self.max_reconsume_times
        other.unit_mode = self.unit_mode
        other.batch = self.batch
        return other

    cdef void _write(self, cmq_command_writer *writer) except *:
        cdef cmq_send_header header
        header.producer_group = _slice_of_text(self.producer_group)
        header.topic = _slice_of_text(self.topic)
        header.default_topic = _slice_of_text(self.default_topic)
        header.default_topic_queues = self.default_topic_queues
        header.queue_id = self.queue_id
        header.sys_flag = self.sys_flag
        header.born_ms = self.born_timestamp_ms
        header.flag = self.flag
        header.properties = _slice_of_bytes(self.properties)
        header.reconsume_times = self.reconsume_times
        header.unit_mode = self.unit_mode
        header.has_max_reconsume_times = self.max_reconsume_times >= 0
        header.max_reconsume_times = self.max_reconsume_times
        header.batch = self.batch
        header.broker_name = _NO_BYTES if self.broker_name is None else _slice_of_text(self.broker_name)
        cmq_send_header_write(writer, self.code, &header)

    def __repr__(self):
        return f"<SendRequest {self.code} {self.topic}/{self.broker_name}/{self.queue_id} {len(self.body)} B>"


@cython.final
cdef class PullRequest:
    """A pull of one queue. Immutable."""
    cdef readonly bint lite
    cdef readonly str group
    cdef readonly str topic
    cdef readonly str subscription
    cdef readonly str expression_type
    cdef readonly str broker_name
    cdef readonly int64_t queue_offset
    cdef readonly int64_t commit_offset
    cdef readonly int64_t suspend_timeout_ms
    cdef readonly int64_t sub_version
    cdef readonly int32_t queue_id
    cdef readonly int32_t max_messages
    cdef readonly int32_t sys_flag
    cdef readonly int32_t max_bytes

    def __init__(self, *, str group not None, str topic not None, int32_t queue_id, int64_t queue_offset,
                 int32_t max_messages, int32_t sys_flag,
                 int64_t commit_offset, int64_t suspend_timeout_ms, int64_t sub_version, int32_t max_bytes,
                 str subscription=None,
                 str expression_type=None, str broker_name=None, bint lite=False):
        self.lite = lite
        self.group = group
        self.topic = topic
        self.subscription = subscription
        self.expression_type = expression_type
        self.broker_name = broker_name
        self.queue_offset = queue_offset
        self.commit_offset = commit_offset
        self.suspend_timeout_ms = suspend_timeout_ms
        self.sub_version = sub_version
        self.queue_id = queue_id
        self.max_messages = max_messages
        self.sys_flag = sys_flag
        self.max_bytes = max_bytes

    def again(self, int64_t queue_offset, int64_t commit_offset, int32_t sys_flag):
        """Return a pull that shares all else with this one: the next of its queue."""
        cdef PullRequest other = PullRequest.__new__(PullRequest)
        other.lite = self.lite
        other.group = self.group
        other.topic = self.topic
        other.subscription = self.subscription
        other.expression_type = self.expression_type
        other.broker_name = self.broker_name
        other.queue_offset = queue_offset
        other.commit_offset = commit_offset
        other.suspend_timeout_ms = self.suspend_timeout_ms
        other.sub_version = self.sub_version
        other.queue_id = self.queue_id
        other.max_messages = self.max_messages
        other.sys_flag = sys_flag
        other.max_bytes = self.max_bytes
        return other

    @property
    def code(self):
        """Its request code."""
        return self._code()

    cdef int32_t _code(self) noexcept:
        return 361 if self.lite else 11

    cdef void _write(self, cmq_command_writer *writer) except *:
        cdef cmq_pull_header header
        header.group = _slice_of_text(self.group)
        header.topic = _slice_of_text(self.topic)
        header.queue_id = self.queue_id
        header.queue_offset = self.queue_offset
        header.max_messages = self.max_messages
        header.sys_flag = self.sys_flag
        header.commit_offset = self.commit_offset
        header.suspend_ms = self.suspend_timeout_ms
        header.subscription = _NO_BYTES if self.subscription is None else _slice_of_text(self.subscription)
        header.sub_version = self.sub_version
        header.expression_type = _NO_BYTES if self.expression_type is None else _slice_of_text(self.expression_type)
        header.max_bytes = self.max_bytes
        header.broker_name = _NO_BYTES if self.broker_name is None else _slice_of_text(self.broker_name)
        cmq_pull_header_write(writer, &header)

    def __repr__(self):
        place = f"{self.topic}/{self.broker_name}/{self.queue_id}@{self.queue_offset}"
        return f"<PullRequest {self._code()} {self.group} {place}>"


@cython.final
cdef class SendAnswer:
    """A broker's answer to a send.

    Immutable. After a code that does not say "stored" the place is unknown: -1 and None.
    """
    cdef readonly int32_t code
    cdef readonly int32_t queue_id
    cdef readonly int64_t queue_offset
    cdef readonly str remark
    cdef readonly str message_id
    cdef readonly str transaction_id
    cdef readonly str region_id
    cdef readonly str batch_unique_id
    cdef readonly str recall_handle
    cdef readonly bint trace_on

    def __init__(self, *, int32_t code, str remark=None, str message_id=None, int32_t queue_id=-1,
                 int64_t queue_offset=-1, str transaction_id=None,
                 str region_id=None, bint trace_on=True, str batch_unique_id=None, str recall_handle=None):
        self.code = code
        self.remark = remark
        self.message_id = message_id
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.transaction_id = transaction_id
        self.region_id = region_id
        self.trace_on = trace_on
        self.batch_unique_id = batch_unique_id
        self.recall_handle = recall_handle

    def __repr__(self):
        note = "" if self.remark is None else f" {self.remark!r}"
        return f"<SendAnswer {self.code}{note} {self.queue_id}@{self.queue_offset} {self.message_id}>"


@cython.final
cdef class PullAnswer:
    """A broker's answer to a pull. Immutable. The messages are in ``body``: see decode_pulled."""
    cdef readonly int32_t code
    cdef readonly int64_t suggested_broker_id
    cdef readonly int64_t next_begin_offset
    cdef readonly int64_t min_offset
    cdef readonly int64_t max_offset
    cdef readonly str remark
    cdef readonly object offset_delta
    cdef readonly bytes body

    def __init__(self, *, int32_t code, str remark=None, int64_t suggested_broker_id=0, int64_t next_begin_offset=0,
                 int64_t min_offset=0,
                 int64_t max_offset=0, offset_delta=None, bytes body not None=b""):
        self.code = code
        self.remark = remark
        self.suggested_broker_id = suggested_broker_id
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.offset_delta = offset_delta
        self.body = body

    def __repr__(self):
        note = "" if self.remark is None else f" {self.remark!r}"
        return (f"<PullAnswer {self.code}{note} next={self.next_begin_offset} min={self.min_offset} "
                f"max={self.max_offset} "
                f"broker={self.suggested_broker_id} {len(self.body)} B>")


# ---- answers, read ---------------------------------------------------------------------------------------------------

cdef object _bad_answer(cmq_status status):
    """The exception for an answer whose members are wrong."""
    return _errors.MalformedCommand(_failure(status).message)


cdef object _send_answer(const cmq_command *command):
    """A SendAnswer, or the exception that its caller gets instead."""
    cdef cmq_send_response response
    cdef cmq_status status = cmq_send_response_read(command, &response)
    cdef SendAnswer answer
    if status != CMQ_OK:
        return _bad_answer(status)
    answer = SendAnswer.__new__(SendAnswer)
    answer.code = command.code
    answer.remark = _text_or_none(command.remark)
    answer.message_id = _text_or_none(response.message_id)
    # Where the message is not stored neither is there.
    answer.queue_id = -1 if response.message_id.data is NULL else response.queue_id
    answer.queue_offset = -1 if response.message_id.data is NULL else response.queue_offset
    answer.transaction_id = _text_or_none(response.transaction_id)
    answer.region_id = _text_or_none(response.region_id)
    answer.trace_on = not (response.trace_on.bytes == 5
                           and memcmp(response.trace_on.data, <const char *>"false", 5) == 0)
    answer.batch_unique_id = _text_or_none(response.batch_unique_id)
    answer.recall_handle = _text_or_none(response.recall_handle)
    return answer


cdef object _pull_answer(const cmq_frame *frame, const cmq_command *command):
    """A PullAnswer, or the exception that its caller gets instead."""
    cdef cmq_pull_response response
    cdef cmq_status status = cmq_pull_response_read(command, &response)
    cdef PullAnswer answer
    if status != CMQ_OK:
        return _bad_answer(status)
    answer = PullAnswer.__new__(PullAnswer)
    answer.code = command.code
    answer.remark = _text_or_none(command.remark)
    answer.suggested_broker_id = response.suggested_broker_id
    answer.next_begin_offset = response.next_begin_offset
    answer.min_offset = response.min_offset
    answer.max_offset = response.max_offset
    answer.offset_delta = response.offset_delta if response.has_offset_delta else None
    answer.body = PyBytes_FromStringAndSize(<const char *>frame.body.data, <Py_ssize_t>frame.body.bytes)
    return answer
