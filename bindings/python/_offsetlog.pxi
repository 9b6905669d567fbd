# OffsetLog: the journal of committed offsets. When it is written, and what counts, is cometmq.store.progress_journal's.

cdef cmq_offset_journal_basis _basis_of(tuple basis) except *:
    cdef cmq_offset_journal_basis found
    found.crc, found.bytes = basis
    return found


@cython.final
cdef class OffsetLog:
    """An empty journal in place of any other, open for writing.

    Args:
        path: the store's directory; the caller has its lock.
        basis: crc and length of the JSON that it continues; zeros: there is none.
        durable: commits will wait for the disk.
    """
    cdef cmq_offset_journal *_log

    def __init__(self, path, tuple basis not None, bint durable):
        import os
        if self._log is not NULL:
            raise RuntimeError("the journal is open already")
        cdef bytes root = os.fsencode(os.path.realpath(path))
        cdef cmq_offset_journal_basis continued = _basis_of(basis)
        cdef const char *raw = root
        cdef int64_t now_ms = <int64_t>(_time.time() * 1000)
        cdef cmq_status status
        with nogil:
            status = cmq_offset_journal_create(cmq_fs_posix(), raw, &continued, now_ms, durable, &self._log)
        _check(status)

    def __dealloc__(self):
        cmq_offset_journal_close(self._log)

    def append(self, str group not None, list places not None):
        """Append one commit: ``(topic, queue_id, offset)`` of each queue.

        Returns what to wait for, or -1 where it has no room.
        """
        cdef Py_ssize_t count = len(places), i
        cdef cmq_offset_journal_entry few[8]
        cdef cmq_offset_journal_entry *entries = few
        cdef cmq_slice name = _slice_of_text(group)
        cdef uint64_t end = 0
        cdef cmq_status status
        if count > 8:
            entries = <cmq_offset_journal_entry *>malloc(<size_t>count * sizeof(cmq_offset_journal_entry))
            if entries is NULL:
                raise MemoryError
        try:
            for i in range(count):
                topic, queue_id, offset = places[i]
                entries[i].topic = _slice_of_text(topic)
                entries[i].queue_id = queue_id
                entries[i].offset = offset
            status = cmq_offset_journal_append(self._log, name, entries, <uint32_t>count, &end)
        finally:
            if entries is not few:
                free(entries)
        if status == CMQ_AGAIN:
            return -1
        _check(status)
        return end

    def wait(self, uint64_t end):
        """Return when everything below ``end`` is durable."""
        cdef cmq_status status
        with nogil:
            status = cmq_offset_journal_wait(self._log, end)
        _check(status)

    def restart(self, tuple basis not None):
        """Restart on a JSON that has all that was appended, durably."""
        cdef cmq_offset_journal_basis continued = _basis_of(basis)
        _check(cmq_offset_journal_restart(self._log, &continued))

    def remove(self):
        """Remove the file; nothing is appended any more."""
        _check(cmq_offset_journal_remove(self._log))


cdef cmq_status _note_commit(void *context, cmq_slice group, const cmq_offset_journal_entry *entry) noexcept with gil:
    try:
        (<list>context).append((_text(group), _text(entry.topic), entry.queue_id, entry.offset))
        return CMQ_OK
    except BaseException:
        return CMQ_ERR_MEMORY


_OFFSETLOG_STATES = ("none", "other", "read")


def read_offset_log(path, tuple basis not None, cursor):
    """Return the journal's state (none, other, read), the cursor behind it, and ``(group, topic, queue_id, offset)`` of
    its commits.
    """
    import os
    cdef bytes root = os.fsencode(os.path.realpath(path))
    cdef cmq_offset_journal_basis continued = _basis_of(basis)
    cdef cmq_offset_journal_cursor place
    cdef cmq_offset_journal_found found = CMQ_OFFSETLOG_NONE
    cdef list commits = []
    cdef cmq_status status
    memset(&place, 0, sizeof(place))
    if cursor is not None:
        place.head_crc, place.chain, place.at = cursor
    status = cmq_offset_journal_read(cmq_fs_posix(), root, &continued, &place, _note_commit, <void *>commits, &found)
    _check(status)
    return _OFFSETLOG_STATES[<int>found], (place.head_crc, place.chain, place.at), commits


def forget_offset_log(path):
    """Remove the journal that a dead writer left; fine where there is none. The caller has the store's lock."""
    import os
    cdef bytes root = os.fsencode(os.path.realpath(path))
    _check(cmq_offset_journal_forget(cmq_fs_posix(), root))
