# verify_store and repair_store: the engine's verification and repair, with callbacks into Python.
# cometmq.store.verification and .repairing define the severities and choices.

_SEVERITIES = ("note", "repairable", "damaged")


@cython.final
cdef class _Watcher:
    """Calls back from C; an exception in Python ends the call and is raised again behind it."""
    cdef object on_problem       # callable(dict) or None
    cdef object on_progress      # callable(done, all) -> bool or None
    cdef object on_damage        # callable(offset, bytes, reason) or None
    cdef object wants            # callable(topic) -> bool or None
    cdef BaseException error

    cdef int check(self, cmq_status status) except -1:
        """Raise what a callback raised, or what the status says. Before the next call into the engine."""
        if self.error is not None:
            raise self.error
        return _check(status)


cdef cbool _watch_problem(void *context, const cmq_problem *problem) noexcept with gil:
    cdef _Watcher watcher = <_Watcher>context
    if watcher.error is not None:
        return False
    try:
        if watcher.on_problem is not None:
            watcher.on_problem({
                "kind": cmq_problem_name(problem.kind).decode(),
                "severity": _SEVERITIES[<int>problem.severity],
                "physical_offset": problem.physical_offset if problem.physical_offset >= 0 else None,
                "topic": None if problem.topic is NULL else problem.topic.decode("utf-8", "replace"),
                "queue_id": problem.queue_id if problem.queue_id >= 0 else None,
                "queue_offset": problem.queue_offset if problem.queue_offset >= 0 else None,
                "count": problem.count,
                "text": problem.text.decode("utf-8", "replace"),
            })
        return True
    except BaseException as error:
        watcher.error = error
        return False


cdef cbool _watch_progress(void *context, int64_t done, int64_t all_bytes) noexcept with gil:
    cdef _Watcher watcher = <_Watcher>context
    if watcher.error is not None:
        return False
    try:
        PyErr_CheckSignals()
        return True if watcher.on_progress is None else bool(watcher.on_progress(done, all_bytes))
    except BaseException as error:
        watcher.error = error
        return False


cdef void _watch_damage(void *context, int64_t offset, int64_t byte_count, const char *reason) noexcept with gil:
    cdef _Watcher watcher = <_Watcher>context
    if watcher.error is not None or watcher.on_damage is None:
        return
    try:
        watcher.on_damage(offset, byte_count, reason.decode("utf-8", "replace"))
    except BaseException as error:
        watcher.error = error


cdef cbool _watch_wanted(void *context, cmq_slice topic) noexcept with gil:
    cdef _Watcher watcher = <_Watcher>context
    if watcher.error is not None:
        return True
    try:
        return bool(watcher.wants(_text(topic)))
    except BaseException as error:
        watcher.error = error
        return True


cdef cbool _watch_restored(void *context, cmq_slice topic, int32_t queue_id) noexcept with gil:
    cdef _Watcher watcher = <_Watcher>context
    if watcher.error is not None:
        return False
    try:
        PyErr_CheckSignals()
        return bool(watcher.wants(_text(topic), queue_id))
    except BaseException as error:
        watcher.error = error
        return False


def restore_removed(StoreHandle handle not None, str name not None, wants, *, bint again=False):
    """Append the whole records of a folder under ``cometmq/removed`` again; see csrc/store/recover/cmq_removed.h.

    Args:
        handle: the store, open for writing.
        name: of the folder.
        wants: called with topic and queue id; False leaves the record out.
        again: also what was restored before.
    """
    import os
    cdef _Watcher watcher = _Watcher()
    cdef cmq_restore_options options
    cdef cmq_restored restored
    cdef cmq_status status
    cdef bytes raw_name = os.fsencode(name)
    watcher.wants = wants
    memset(&options, 0, sizeof(options))
    options.name = raw_name
    options.again = again
    options.wanted = _watch_restored
    options.context = <void *>watcher
    handle.enter_hold()
    try:
        with nogil:
            status = cmq_store_restore(handle._store, &options, &restored)
        watcher.check(status)
    finally:
        handle.leave_hold()
    return {
        "records": restored.records,
        "doubtful": restored.doubtful,
        "unfinished": restored.unfinished,
        "refused": restored.refused,
        "refusal": restored.refusal.decode("utf-8", "replace") or None,
        "already": bool(restored.already),
    }


def verify_store(StoreHandle handle not None, on_problem=None, on_progress=None):
    """Hold every record, queue unit and index entry of an open store against each other.

    Args:
        handle: the store, read-only or the writer's own.
        on_problem: called with a dict per problem.
        on_progress: called every few MiB with bytes done and in all; False ends the verification.

    The callbacks run without other calls into this store; their exceptions end the verification and are raised again.
    """
    cdef _Watcher watcher = _Watcher()
    cdef cmq_verify_options options
    cdef cmq_verified verified
    cdef cmq_status status
    watcher.on_problem = on_problem
    watcher.on_progress = on_progress
    memset(&options, 0, sizeof(options))
    options.problem = _watch_problem
    options.progress = _watch_progress
    options.context = <void *>watcher
    handle.enter_hold()
    try:
        with nogil:
            status = cmq_store_verify(handle._store, &options, &verified)
        watcher.check(status)
    finally:
        handle.leave_hold()
    return {
        "verdict": _SEVERITIES[<int>verified.verdict],
        "complete": verified.complete,
        "log_min": verified.log_min,
        "log_end": verified.log_end,
        "records": verified.records,
        "body_bytes": verified.body_bytes,
        "units": verified.units,
        "queues": verified.queues,
        "keys": verified.keys,
        "index_entries": verified.index_entries,
        "keys_missing": verified.keys_missing,
        "notes": verified.problems[0],
        "repairable": verified.problems[1],
        "damaged": verified.problems[2],
    }


def repair_store(path, *, bint dry_run=False, bint cut_tail=False, bint cut_damage=False, bint fill_damage=False,
                 wants=None, on_progress=None,
                 on_damage=None, int64_t segment_bytes=0, int64_t queue_file_bytes=0, int64_t batch_file_bytes=0,
                 int64_t ext_file_bytes=0,
                 int32_t index_slots=0, int32_t index_entries=0, commitlog_paths=(), delay_levels=None, batch_topics=(),
                 bint index_enabled=True, index_tags=None, bint ext_enabled=False,
                 bint lmq_enabled=False,
                 bint check_property_crc=False):
    """Rebuild queues and index from a store's log; see csrc/store/check/cmq_repair.h.

    Args:
        path: a store that nobody has open.
        wants: called with a topic that has no queue file: returns whether to build it from its records. None: yes.
        on_progress: called every few MiB with bytes done and in all; False ends the repair and leaves the store as it
        was.
        on_damage: called with physical offset, bytes and reason of each damaged place.
    """
    import os
    cdef _Watcher watcher = _Watcher()
    cdef cmq_store_options store
    cdef cmq_repair_options options
    cdef cmq_repair_report report
    cdef cmq_status status
    cdef int64_t holder = 0
    cdef _Texts paths = _Texts.of([os.fsencode(one) for one in commitlog_paths])
    cdef _Texts topics = _Texts.of(batch_topics)
    cdef bytes raw_path = os.fsencode(path)
    cdef bytes levels = None if delay_levels is None else delay_levels.encode()
    memset(&store, 0, sizeof(store))
    memset(&options, 0, sizeof(options))
    store.path = raw_path
    store.segment_bytes = segment_bytes
    store.queue_file_bytes = queue_file_bytes
    store.batch_file_bytes = batch_file_bytes
    store.ext_file_bytes = ext_file_bytes
    store.index_slots = index_slots
    store.index_entries = index_entries
    if paths.count:
        store.commitlog_paths = paths.texts
        store.commitlog_path_count = paths.count
    if levels is not None:
        store.delay_levels = levels
    if topics.count:
        store.batch_topics = topics.texts
        store.batch_topic_count = topics.count
    store.index_disabled = not index_enabled
    store.index_tags = _index_tags(index_tags)
    store.ext_enabled = ext_enabled
    store.lmq_enabled = lmq_enabled
    store.check_property_crc = check_property_crc
    watcher.on_progress = on_progress
    watcher.on_damage = on_damage
    watcher.wants = wants
    options.store = &store
    options.dry_run = dry_run
    options.cut_tail = cut_tail
    options.cut_damage = cut_damage
    options.fill_damage = fill_damage
    if wants is not None:
        options.wanted = _watch_wanted
    options.progress = _watch_progress
    options.damage = _watch_damage
    options.context = <void *>watcher
    with nogil:
        status = cmq_store_repair(&options, &report)
    if status == CMQ_ERR_LOCKED:
        error = _failure(status)
        holder = lock_holder(path)
        error.holder_pid = holder if holder > 0 else None
        raise error
    watcher.check(status)
    return _report_of(&report)


cdef dict _report_of(const cmq_repair_report *report):
    return {
        "complete": report.complete,
        "finished_earlier": report.finished_earlier,
        "was_unclean": report.was_unclean,
        "segment_bytes": report.sizes.segment_bytes,
        "queue_file_bytes": report.sizes.queue_file_bytes,
        "batch_file_bytes": report.sizes.batch_file_bytes,
        "ext_file_bytes": report.sizes.ext_file_bytes,
        "index_slots": report.sizes.index_slots,
        "index_entries": report.sizes.index_entries,
        "log_min": report.log_min,
        "log_end": report.log_end,
        "records": report.records,
        "messages": report.messages,
        "keys": report.keys,
        "queues": report.queues,
        "queues_kept": report.queues_kept,
        "gaps": report.gaps,
        "unwanted": report.unwanted,
        "damaged_places": report.damaged_places,
        "damaged_bytes": report.damaged_bytes,
        "filled_bytes": report.filled_bytes,
        "first_damage": report.first_damage if report.first_damage >= 0 else None,
        "tail_at": report.tail_at,
        "tail_bytes": report.tail_bytes,
        "cut_at": report.cut_at if report.cut_at >= 0 else None,
        "cut_messages": report.cut_messages,
        "cut_bytes": report.cut_bytes,
        "cut_files": report.cut_files,
        "kept": report.kept.decode("utf-8", "surrogateescape") or None,
    }
