# A POP's additions to received messages: in which queue each really lies, and the handle by which it is acknowledged.


def popped_places(list messages not None):
    """Return of each message of a POP's answer, as decode_pulled made it: the kind of topic that it is stored under (0
    normal, 1 and 2 the retry
    topics of the two forms), its queue there, and the handle that the broker put into it, or None."""
    cdef ReceivedMessage message
    cdef cmq_slice topic
    cdef bytes handle
    cdef list places = []
    cdef int kind
    for message in messages:
        message._parse()
        topic = message._view.topic
        kind = 0
        if _is_retry_topic(topic):
            kind = 1 if memchr(topic.data, c'+', topic.bytes) is NULL else 2
        handle = message._property(_slice_of_bytes(b"POP_CK"))
        places.append((kind, message._view.queue_id, None if handle is None else handle.decode("utf-8", "replace")))
    return places


def set_popped(list messages not None, str head not None, int32_t queue_id, list offsets not None):
    """Set the places of messages of one queue: the common part of their handles, their queue, and each one's queue
    offset. For the consumer that holds
    them, also when a message gets another handle."""
    cdef ReceivedMessage message
    cdef _Pull pull = None
    cdef Py_ssize_t i
    if len(messages) != len(offsets):
        raise ValueError(f"{len(offsets)} offsets for {len(messages)} messages")
    for i in range(len(messages)):
        message = messages[i]
        if pull is None:
            pull = _pull_of(message._pull.broker_name, message._pull.topic, queue_id, message._pull.namespace,
                            message._pull.min_offset,
                            message._pull.max_offset, head)
        message._queue_offset = offsets[i]
        message._pull = pull
