# Messages that are appended at once or not at all: StoreHandle.append_together, behind transactions.


cdef class _Together:
    """The messages of one call, as the engine takes them. Their texts belong to `messages`."""
    cdef list messages
    cdef uint32_t count
    cdef cmq_append *parts
    cdef cmq_appended *appended

    def __dealloc__(self):
        free(self.parts)
        free(self.appended)

    @staticmethod
    cdef _Together of(list messages, const cmq_append *template):
        cdef _Together self = _Together.__new__(_Together)
        cdef uint32_t i
        self.messages = messages
        self.count = <uint32_t>len(messages)
        self.parts = <cmq_append *>calloc(self.count + 1, sizeof(cmq_append))
        self.appended = <cmq_appended *>calloc(self.count + 1, sizeof(cmq_appended))
        if self.parts is NULL or self.appended is NULL:
            raise MemoryError
        for i in range(self.count):
            self.parts[i] = template[0]
            _set_part(&self.parts[i], messages[i])
        return self

    cdef cmq_status check(self, cmq_store *store) noexcept nogil:
        """Return the status that appending the first message at fault would have; append nothing."""
        cdef cmq_status status = CMQ_OK
        cdef uint32_t i
        for i in range(self.count):
            if status == CMQ_OK:
                status = cmq_store_check_append(store, &self.parts[i])
        return status

    cdef cmq_status append(self, cmq_store *store) noexcept nogil:
        return cmq_store_append_together(store, self.parts, self.count, self.appended)

    cdef list results(self):
        cdef AppendResult result
        cdef list results = []
        cdef uint32_t i
        for i in range(self.count):
            result = AppendResult.__new__(AppendResult)
            result.topic = self.messages[i][0]
            result.queue_id = self.parts[i].common.queue_id
            result.queue_offset = self.appended[i].first_queue_offset
            result.physical_offset = self.appended[i].first_physical_offset
            result.store_timestamp_ms = self.appended[i].store_timestamp_ms
            result.end = self.appended[i].end
            result._store_host = self.parts[i].common.store_host
            results.append(result)
        return results


cdef int _set_part(cmq_append *part, tuple message) except -1:
    cdef bytes body
    topic, body, tags, keys, properties, queue_id, flag, born = message
    part.count = 1
    part.common.topic = _slice_of_text(topic)
    part.common.queue_id = queue_id
    part.common.flag = flag
    part.common.born_timestamp_ms = born
    part.bodies.kind = CMQ_COLUMN_ONE
    part.bodies.one = _slice_of_bytes(body)
    if tags is not None:
        part.tags.kind = CMQ_COLUMN_ONE
        part.tags.one = _slice_of_value(tags, "tags")
        _check_tag(part.tags.one, "tags")
    if keys is not None:
        part.keys.kind = CMQ_COLUMN_ONE
        part.keys.one = _slice_of_value(keys, "keys")
    if properties is not None:
        part.properties.kind = CMQ_COLUMN_ONE
        part.properties.one = _slice_of_bytes(properties)
    return 0
