# BrokerPlane: the requests that a broker's loops serve themselves, and the tables that the control plane fills for
# them.

cdef enum:
    _TRAFFIC_STEP = 256
    _LANES_STEP = 32
    _OFFSET_STEP = 512


@cython.final
@cython.no_gc_clear
cdef class BrokerPlane(RequestHandler):
    """The data plane of one broker over an open store. Any thread may call any method; none waits for a loop.

    It keeps the store's handle open: close the plane first, and before it the server that it is the handler of.
    """
    cdef StoreHandle _handle
    cdef cmq_tables *_tables
    cdef cmq_offsets *_offsets
    cdef cmq_pop_fifo_table *_pop_order
    cdef cmq_delay *_delay
    cdef cmq_timer *_timer           # NULL: timers are off
    cdef cmq_pop_service *_pops             # NULL: so are pops
    cdef bint _pops_run
    cdef cmq_txn *_txn               # NULL: half messages are refused
    cdef cmq_broker *_broker
    cdef bint _entered
    cdef Py_ssize_t _calls           # under way
    cdef Py_ssize_t _servers         # that it handles
    cdef bint _closing
    cdef object _drained             # Event: the last call under way has left
    cdef cmq_record_host _host

    def __init__(self, StoreHandle handle not None, settings not None):
        if self._handle is not None:
            raise RuntimeError("this plane was made before")
        cdef cmq_broker_options options
        cdef cmq_delay_options delay
        cdef bytes cluster = settings.cluster.encode(), region = settings.region.encode()
        cdef bytes broker_ip = settings.broker_ip.encode()
        cdef bytes name = None if settings.broker_name is None else settings.broker_name.encode()
        pull = settings.pull
        memset(&options, 0, sizeof(options))
        memset(&delay, 0, sizeof(delay))
        _set_host(&options.store_host, settings.store_address, settings.store_port)
        handle.enter()
        self._handle = handle
        self._entered = True
        self._host = options.store_host
        _check(cmq_tables_create(&self._tables))
        _check(cmq_offsets_create(&self._offsets, 0))
        _check(cmq_pop_fifo_table_create(&self._pop_order, 0))
        delay.store = handle._store
        delay.tables = self._tables
        _check(cmq_delay_create(&self._delay, &delay))
        if settings.timers is not None:
            self._make_timer(settings.timers)
        if settings.pops is not None and self._timer is not NULL and name is not None:
            self._make_pops(settings.pops, cluster, name)
        if settings.transactions is not None:
            self._make_transactions(settings.transactions)
        options.store = handle._store
        options.txn = self._txn
        options.timer = self._timer
        options.pops = self._pops
        if name is not None:
            options.name = name
        options.tables = self._tables
        options.offsets = self._offsets
        options.cluster = cluster
        options.region = region
        options.broker_ip = broker_ip
        options.trace_off = not settings.trace
        options.message_bytes_max = settings.message_bytes_max
        options.sends_waiting_max = settings.sends_waiting_max
        options.flush_timeout_ms = settings.flush_timeout_ms
        options.long_polling_off = not pull.long_polling
        options.short_polling_ms = pull.short_polling_ms
        options.holds_max = pull.holds_max
        options.lite_pull_off = not pull.lite
        options.property_filter = pull.property_filter
        options.transfer_count_memory = pull.transfer_count_memory
        options.transfer_bytes_memory = pull.transfer_bytes_memory
        options.transfer_count_disk = pull.transfer_count_disk
        options.transfer_bytes_disk = pull.transfer_bytes_disk
        options.memory_bytes = pull.memory_bytes
        _check(cmq_broker_create(&self._broker, &options))

    cdef int _make_timer(self, timers) except -1:
        cdef cmq_timer_options options
        cdef cmq_status status
        memset(&options, 0, sizeof(options))
        options.store = self._handle._store
        options.tables = self._tables
        options.precision_ms = timers.precision_ms
        options.delay_ms_max = timers.delay_ms_max
        options.roll_window_slots = timers.roll_window_slots
        options.slot_messages = timers.slot_messages
        options.flush_interval_ms = timers.flush_interval_ms
        options.log_file_bytes = timers.log_file_bytes
        with nogil:
            status = cmq_timer_create(&self._timer, &options)
        _check(status)
        return 0

    cdef int _make_pops(self, pops, bytes cluster, bytes name) except -1:
        cdef cmq_pop_service_options options
        memset(&options, 0, sizeof(options))
        options.store = self._handle._store
        options.tables = self._tables
        options.offsets = self._offsets
        options.order = self._pop_order
        options.timer = self._timer
        options.cluster = cluster
        options.broker = name
        options.host = self._host
        options.revive_queues = pops.revive_queues
        options.revive_queues_read = pops.revive_queues_read
        options.merge = pops.merge
        options.stay_ms = pops.stay_ms
        options.stay_out_ms = pops.stay_out_ms
        options.merged_max = pops.merged_max
        options.lane_max = pops.lane_max
        options.retry_v2 = pops.retry_v2
        options.retry_v1_off = not pops.retry_v1
        options.retry_percent = pops.retry_percent or -1
        options.begin_late = not pops.begin_early
        options.in_flight_max = pops.in_flight_max
        options.waits_max = pops.waits_max
        options.waits_key_max = pops.waits_key_max
        options.give_up = pops.give_up
        _check(cmq_pop_service_create(&self._pops, &options))
        return 0

    cdef int _make_transactions(self, transactions) except -1:
        cdef cmq_txn_options options
        memset(&options, 0, sizeof(options))
        options.store = self._handle._store
        options.offsets = self._offsets
        options.host = self._host
        _set_txn_rules(&options.rules, transactions)
        _check(cmq_txn_create(&self._txn, &options))
        return 0

    def __dealloc__(self):
        # A child of a fork has none of the threads that freeing would end; its memory goes with it.
        if self._handle is not None and self._handle._opened_forks == _forks:
            self._free()

    cdef void _free(self) noexcept:
        with nogil:
            cmq_delay_destroy(self._delay)
            if self._pops_run:
                # stop_pops has logged the checkpoints that could not be stored.
                cmq_pop_service_stop(self._pops)
            cmq_broker_destroy(self._broker)
            cmq_pop_service_destroy(self._pops)
            # stop_transactions has written the waiting texts, or logged its failure; the next start reads the commits.
            cmq_txn_destroy(self._txn)
            if self._timer is not NULL:
                # stop_timers has logged any failed write; the next start reads those timers from the log.
                cmq_timer_stop(self._timer)
                cmq_timer_destroy(self._timer)
        cmq_pop_fifo_table_destroy(self._pop_order)
        cmq_offsets_destroy(self._offsets)
        cmq_tables_destroy(self._tables)
        self._delay = NULL
        self._pops = NULL
        self._pops_run = False
        self._txn = NULL
        self._timer = NULL
        self._broker = NULL
        self._pop_order = NULL
        self._offsets = NULL
        self._tables = NULL
        if self._entered:
            self._entered = False
            self._handle.leave()

    cdef int enter(self) except -1:
        if self._broker is NULL or self._closing or self._handle._opened_forks != _forks:
            raise _errors.StoreClosed("the broker's data plane is closed")
        self._calls += 1
        return 0

    cdef void leave(self) noexcept:
        self._calls -= 1
        if self._closing and self._calls == 0:
            self._drained.set()

    cdef int lend(self, cmq_net_handler *into) except -1:
        self.enter()
        into[0] = cmq_broker_handler(self._broker)
        self._servers += 1
        self.leave()
        return 0

    cdef void let_go(self) noexcept:
        self._servers -= 1

    def close(self):
        """Refuse further calls, wait for those under way, free everything, and let the store go.

        Stop the server first: a RuntimeError says that one still uses the plane.
        """
        if self._broker is NULL or self._handle._opened_forks != _forks:
            return
        if self._servers:
            raise RuntimeError("the broker's data plane is in use; stop its server first")
        self._drained = _threading.Event()
        self._closing = True
        if self._calls:
            self._drained.wait()
        if self._broker is not NULL:
            self._free()

    # ---- tables

    def put_topic(self, str name not None, *, int32_t read_queues, int32_t write_queues, int32_t perm,
                  int32_t sys_flag=0, bint order=False,
                  bint batch=False):
        """Make a topic known to the loops, or change it. ``batch``: it keeps inner batches (``queue.type=BatchCQ``)."""
        cdef cmq_topic_entry topic
        memset(&topic, 0, sizeof(topic))
        topic.name = _slice_of_text(name)
        topic.read_queues = read_queues
        topic.write_queues = write_queues
        topic.perm = perm
        topic.sys_flag = sys_flag
        topic.order = order
        topic.kind = CMQ_TOPIC_BATCH if batch else CMQ_TOPIC_SIMPLE
        self.enter()
        cdef cmq_status status = cmq_tables_put_topic(self._tables, &topic)
        if status == CMQ_OK and batch:
            status = cmq_store_set_batch_topic(self._handle._store, topic.name)
        self.leave()
        _check(status)

    def remove_topic(self, str name not None):
        """Forget a topic."""
        self.enter()
        cmq_tables_remove_topic(self._tables, _slice_of_text(name))
        self.leave()

    def put_group(self, str name not None, *, bint consume_enable, bint consume_broadcast_enable, bint consume_from_min,
                  bint order, bint notify,
                  int32_t retry_queues, int32_t retry_max, int32_t sys_flag, int64_t broker_id,
                  int64_t which_broker_when_slow):
        """Make a consumer group known to the loops, or change it."""
        cdef cmq_group_entry group
        memset(&group, 0, sizeof(group))
        group.name = _slice_of_text(name)
        group.consume_enable = consume_enable
        group.consume_broadcast_enable = consume_broadcast_enable
        group.consume_from_min = consume_from_min
        group.order = order
        group.notify = notify
        group.retry_queues = retry_queues
        group.retry_max = retry_max
        group.sys_flag = sys_flag
        group.broker_id = broker_id
        group.which_broker_when_slow = which_broker_when_slow
        self.enter()
        cdef cmq_status status = cmq_tables_put_group(self._tables, &group)
        self.leave()
        _check(status)

    def remove_group(self, str name not None):
        """Forget a consumer group."""
        self.enter()
        cmq_tables_remove_group(self._tables, _slice_of_text(name))
        self.leave()

    def put_consumer(self, str group not None, *, bint broadcasting, int consume_type, object subscriptions,
                     bint end_holds=True):
        """Say what the online members of a group subscribe to.

        ``end_holds``: pulls held for it are answered, so that their clients ask again.

        ``subscriptions``: tuples of topic, TAG expression (None: an expression of another kind), version, whether
        reading is forbidden, and of the other kind the SQL92 expression in effect with its version, or None.
        """
        cdef list rows = list(subscriptions)
        cdef Py_ssize_t count = len(rows), i
        cdef cmq_consumer_entry consumer
        cdef cmq_subscription *parts = <cmq_subscription *>calloc(<size_t>count + 1, sizeof(cmq_subscription))
        if parts is NULL:
            raise MemoryError
        memset(&consumer, 0, sizeof(consumer))
        consumer.group = _slice_of_text(group)
        consumer.model = CMQ_MODEL_BROADCASTING if broadcasting else CMQ_MODEL_CLUSTERING
        consumer.type = <cmq_consume_type>consume_type
        consumer.subscription_count = <uint32_t>count
        consumer.subscriptions = parts
        self.enter()
        try:
            for i in range(count):
                topic, expression, version, forbidden, selector = rows[i]
                parts[i].topic = _slice_of_text(topic)
                parts[i].sub_version = version
                parts[i].read_forbidden = forbidden
                parts[i].type = CMQ_EXPRESSION_OTHER if expression is None else CMQ_EXPRESSION_TAG
                parts[i].filter_version = INT64_MIN   # CMQ_FILTER_NO_DATA
                if expression is not None:
                    _check(cmq_filter_parse(_slice_of_text(expression), &parts[i].filter))
                elif selector is not None:
                    text, parts[i].filter_version = selector
                    _check(cmq_filter_select(_slice_of_text(text), &parts[i].filter))
            _check(cmq_tables_put_consumer(self._tables, &consumer))
            if end_holds:
                _check(cmq_broker_group_changed(self._broker, consumer.group))
        finally:
            self.leave()
            for i in range(count):
                cmq_filter_release(parts[i].filter)
            free(parts)

    def remove_consumer(self, str group not None):
        """Say that nobody of a group is online; pulls held for it are answered."""
        self.enter()
        cmq_tables_remove_consumer(self._tables, _slice_of_text(group))
        cdef cmq_status status = cmq_broker_group_changed(self._broker, _slice_of_text(group))
        self.leave()
        _check(status)

    def release_holds(self):
        """Answer every held pull now.

        For stopping: drain the server first, or the clients' next pulls are held again.
        """
        self.enter()
        cdef cmq_status status = cmq_broker_group_changed(self._broker, _slice_of_text(""))
        self.leave()
        _check(status)

    def set_broker_perm(self, int32_t perm):
        """Say what the broker as a whole allows: 4 read, 2 write."""
        self.enter()
        cmq_tables_set_perm(self._tables, perm)
        self.leave()

    # ---- progress

    def commit_offset(self, str group not None, str topic not None, int32_t queue_id, int64_t offset,
                      bytes address=None):
        """Set progress; does nothing while a reset waits to be answered.

        ``address``: the asking client's, for its share.
        """
        cdef cmq_offset_key key = _offset_key(group, topic, queue_id)
        cdef cmq_offset_asker asker = _offset_asker(address)
        self.enter()
        cdef cmq_status status = cmq_offsets_commit_of(self._offsets, &key, offset, asker)
        self.leave()
        if status != CMQ_AGAIN:
            _check(status)

    def query_offset(self, str group not None, str topic not None, int32_t queue_id):
        """Return the next offset to consume (a pending reset first), or None."""
        cdef cmq_offset_key key = _offset_key(group, topic, queue_id)
        self.enter()
        cdef int64_t offset = cmq_offsets_query(self._offsets, &key)
        self.leave()
        return None if offset == CMQ_OFFSETS_NONE else offset

    def pull_offset(self, str group not None, str topic not None, int32_t queue_id):
        """Return where the group's next pull will begin, or None."""
        cdef cmq_offset_key key = _offset_key(group, topic, queue_id)
        self.enter()
        cdef int64_t offset = cmq_offsets_pull_offset(self._offsets, &key)
        self.leave()
        return None if offset == CMQ_OFFSETS_NONE else offset

    def reset_offset(self, str group not None, str topic not None, int32_t queue_id, int64_t offset,
                     bytes address=None):
        """Set progress so that the next pull is answered with it; held pops look again."""
        cdef cmq_offset_key key = _offset_key(group, topic, queue_id)
        cdef cmq_offset_asker asker = _offset_asker(address)
        self.enter()
        cdef cmq_status status = cmq_broker_reset_offset(self._broker, &key, offset, asker)
        self.leave()
        _check(status)

    def remove_offsets(self, *, str group=None, str topic=None):
        """Forget progress of a group, of a topic, or of a group in a topic; returns how much there was."""
        if not group and not topic:
            raise _errors.InvalidArgument("name a group, a topic, or both")
        self.enter()
        # In this order: a batch that is settled meanwhile would commit what was just removed.
        if self._pops is not NULL:
            cmq_pop_service_forget(self._pops, _slice_of_value(topic, "topic"), _slice_of_value(group, "group"))
        cdef uint32_t removed = cmq_offsets_remove(self._offsets, _slice_of_value(group, "group"),
                                                   _slice_of_value(topic, "topic"))
        self.leave()
        return removed

    def take_offset_changes(self):
        """Return (group, topic, queue id, offset) of each commit and removal (queue id -1) since the last call."""
        cdef cmq_offset_item rows[_OFFSET_STEP]
        cdef cmq_offset_items items
        cdef uint32_t i
        cdef list found = []
        memset(&items, 0, sizeof(items))
        items.items = rows
        items.capacity = _OFFSET_STEP
        items.text_bytes = CMQ_OFFSETS_TEXT_MIN
        items.text = <uint8_t *>malloc(items.text_bytes)
        if items.text is NULL:
            raise MemoryError
        try:
            self.enter()
            try:
                while True:
                    cmq_offsets_take_changes(self._offsets, &items)
                    if items.count == 0:
                        return found
                    for i in range(items.count):
                        found.append((_text(rows[i].group), _text(rows[i].topic), rows[i].queue_id, rows[i].offset))
            finally:
                self.leave()
        finally:
            free(items.text)

    def offset_version(self):
        """Return what the data version of the progress has moved by."""
        self.enter()
        cdef int64_t version = cmq_offsets_version(self._offsets)
        self.leave()
        return version

    # ---- ordered batches

    def ordered_batches(self):
        """Return (group, topic, queue id, attempt or None, pop ms, invisible ms, used ms, acked, counted, offsets,
        visible ms, times) of all.
        """
        cdef cmq_pop_fifo_table_item *item = <cmq_pop_fifo_table_item *>malloc(sizeof(cmq_pop_fifo_table_item))
        cdef uint32_t cursor = 0, i
        cdef list found = []
        if item is NULL:
            raise MemoryError
        try:
            self.enter()
            try:
                while cmq_pop_fifo_table_next(self._pop_order, &cursor, item):
                    found.append((
                        _text(item.group), _text(item.topic), item.queue_id, _text(item.attempt) if item.attempt.bytes
                        else None,
                        item.pop_ms, item.invisible_ms, item.used_ms, item.acked, item.counted,
                        tuple([item.offsets[i] for i in range(item.count)]),
                        tuple([item.visible_ms[i] for i in range(item.count)]),
                        tuple([item.times[i] for i in range(item.count)])))
                return found
            finally:
                self.leave()
        finally:
            free(item)

    def restore_ordered(self, str group not None, str topic not None, int32_t queue_id, *, str attempt, int64_t pop_ms,
                        int64_t invisible_ms,
                        int64_t used_ms, uint64_t acked, bint counted, tuple offsets not None,
                        tuple visible_ms not None, tuple times not None):
        """Take over a batch as it was written down: its messages' offsets, when they are visible (0: with the batch),
        how often they were given out.
        """
        cdef cmq_status status
        cdef uint32_t i
        if not len(offsets) == len(visible_ms) == len(times) <= CMQ_POP_ORDER_BATCH_MAX:
            raise _errors.InvalidArgument(f"an ordered batch has 1 to {CMQ_POP_ORDER_BATCH_MAX} messages, not "
                                          f"{len(offsets)}")
        cdef cmq_pop_fifo_table_item *item = <cmq_pop_fifo_table_item *>calloc(1, sizeof(cmq_pop_fifo_table_item))
        if item is NULL:
            raise MemoryError
        try:
            item.group = _slice_of_text(group)
            item.topic = _slice_of_text(topic)
            item.attempt = _slice_of_text(attempt or "")
            item.queue_id = queue_id
            item.pop_ms = pop_ms
            item.invisible_ms = invisible_ms
            item.used_ms = used_ms
            item.acked = acked
            item.counted = counted
            item.count = len(offsets)
            for i in range(item.count):
                item.offsets[i] = offsets[i]
                item.visible_ms[i] = visible_ms[i]
                item.times[i] = times[i]
            self.enter()
            status = cmq_pop_fifo_table_restore(self._pop_order, item)
            self.leave()
        finally:
            free(item)
        _check(status)

    def clear_ordered(self, str group not None, str topic not None, int32_t queue_id):
        """Forget a queue's batch; returns whether there was one."""
        cdef cmq_offset_key key = _offset_key(group, topic, queue_id)
        self.enter()
        cdef bint was_there = cmq_pop_fifo_table_clear(self._pop_order, &key)
        self.leave()
        return was_there

    def ordered_version(self):
        """Return a number that rises with every change of a batch."""
        self.enter()
        cdef uint64_t version = cmq_pop_fifo_table_version(self._pop_order)
        self.leave()
        return version

    # ---- delay levels

    def set_delay_progress(self, int32_t level, int64_t offset):
        """Set a level's next offset, before start_delay."""
        self.enter()
        cdef cmq_status status = cmq_delay_set_progress(self._delay, level, offset)
        self.leave()
        _check(status)

    def recover_delay(self, int64_t log_end):
        """Move levels on by the deliveries that the log shows behind a mark; returns their number."""
        cdef int64_t deliveries = 0
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_delay_recover(self._delay, log_end, &deliveries)
        self.leave()
        _check(status)
        return deliveries

    def start_delay(self):
        """Begin to deliver."""
        cmq_offsets_share_out(self._offsets)   # the stored offsets are loaded by now
        self.enter()
        cdef cmq_status status = cmq_delay_start(self._delay)
        self.leave()
        _check(status)

    def stop_delay(self):
        """Deliver nothing more; delivered messages are confirmed and counted on return."""
        self.enter()
        with nogil:
            cmq_delay_stop(self._delay)
        self.leave()

    def delay_mark(self):
        """Return (physical offset, {level: next queue offset}).

        Every delivery that the offsets count lies before the physical offset, and is on disk.

        Waits for the disk, so that progress which is written down never counts a delivery that a power loss takes.
        """
        cdef cmq_delay_mark mark
        cdef cmq_status status
        self.enter()
        cmq_delay_mark_of(self._delay, &mark)
        with nogil:
            status = cmq_store_flush(self._handle._store)
        self.leave()
        _check(status)
        return mark.log_end, {level: mark.progress.offsets[level] for level in range(1, mark.progress.level_max + 1)
                              if mark.progress.offsets[level] >= 0}

    def delay_progress(self):
        """Return {level: next queue offset} as it is, without waiting for the disk."""
        cdef cmq_delay_progress progress
        self.enter()
        cmq_delay_progress_of(self._delay, &progress)
        self.leave()
        return {level: progress.offsets[level] for level in range(1, progress.level_max + 1)
                if progress.offsets[level] >= 0}

    def delay_version(self):
        """Return what the data version of the levels' progress has moved by."""
        cdef cmq_delay_progress progress
        self.enter()
        cmq_delay_progress_of(self._delay, &progress)
        self.leave()
        return progress.version

    # ---- timers

    def start_timers(self):
        """Begin to enter and deliver timer messages, where they are on."""
        cdef cmq_status status = CMQ_OK
        self.enter()
        if self._timer is not NULL:
            status = cmq_timer_start(self._timer)
        self.leave()
        _check(status)

    def stop_timers(self):
        """Deliver no more timers, and write their files."""
        cdef cmq_status status = CMQ_OK
        self.enter()
        if self._timer is not NULL:
            with nogil:
                status = cmq_timer_stop(self._timer)
        self.leave()
        _check(status)

    def timer_check(self):
        """Return the used part of timercheck as it was last written, or None where timers are off."""
        cdef cmq_timer_check check
        cdef uint8_t encoded[56]
        if self._timer is NULL:
            return None
        self.enter()
        cmq_timer_check_of(self._timer, &check)
        self.leave()
        cmq_timer_check_encode(&check, encoded)
        return encoded[:CMQ_TIMER_CHECK_WIRE_BYTES]

    # ---- transactions

    def start_transactions(self):
        """Read which half messages are open, where transactions are on. The progress must be loaded."""
        cdef cmq_status status = CMQ_OK
        self.enter()
        if self._txn is not NULL:
            with nogil:
                status = cmq_txn_start(self._txn)
        self.leave()
        _check(status)

    def stop_transactions(self):
        """Write the ends that wait to be written."""
        cdef cmq_status status = CMQ_OK
        self.enter()
        if self._txn is not NULL:
            with nogil:
                status = cmq_txn_stop(self._txn)
        self.leave()
        _check(status)

    def set_transaction_rules(self, rules not None):
        """Let other settings hold."""
        cdef cmq_txn_rules into
        _set_txn_rules(&into, rules)
        self.enter()
        if self._txn is not NULL:
            cmq_txn_set_rules(self._txn, &into)
        self.leave()

    def step_transactions(self, producers not None):
        """Write ends that are due, and do a part of the round of checks; returns (whether to call again at once,
        questions).

        A question is (producer group, unique id, queue offset, physical offset, message id, body). ``producers`` is
        a container of the groups that are connected. Waits for the disk.
        """
        cdef cmq_status status = CMQ_OK
        cdef cmq_txn_asker asker
        cdef cbool more = False
        cdef list questions = []
        cdef tuple context = (producers, questions)
        cdef list found = []
        asker.is_there = _is_producer_there
        asker.ask = _note_question
        asker.context = <void *>context
        self.enter()
        if self._txn is not NULL:
            with nogil:
                status = cmq_txn_step(self._txn, &asker, &more)
        self.leave()
        _check(status)
        for group, unique, queue_offset, physical_offset, body in questions:
            found.append((group, unique, queue_offset, physical_offset, _message_id(&self._host, physical_offset),
                          body))
        return more, found

    def resume_half(self, int64_t physical_offset):
        """Append a discarded message as a half message that was never checked; waits for the disk."""
        cdef cmq_status status
        if self._txn is NULL:
            raise _errors.InvalidArgument("this broker has no transactions")
        self.enter()
        with nogil:
            status = cmq_txn_resume(self._txn, physical_offset)
        self.leave()
        _check(status)

    def half_counts(self):
        """Return {topic: (half messages, of them ended)} since the start."""
        cdef cmq_traffic_item rows[_TRAFFIC_STEP]
        cdef uint32_t cursor = 0, count, i
        cdef dict found = {}
        self.enter()
        try:
            while self._txn is not NULL:
                count = cmq_txn_list_halves(self._txn, &cursor, rows, _TRAFFIC_STEP)
                if count == 0:
                    break
                for i in range(count):
                    found[_text(rows[i].topic)] = (rows[i].messages, rows[i].bytes)
            return found
        finally:
            self.leave()

    # ---- pops

    def start_pops(self):
        """Begin to revive what was popped and not acknowledged, where pops are on."""
        cdef cmq_status status = CMQ_OK
        self.enter()
        if self._pops is not NULL and not self._pops_run:
            status = cmq_pop_service_start(self._pops)
            self._pops_run = status == CMQ_OK
        self.leave()
        _check(status)

    def stop_pops(self):
        """Revive nothing more, and store what is popped and not done with."""
        cdef cmq_status status = CMQ_OK
        self.enter()
        if self._pops_run:
            self._pops_run = False
            with nogil:
                status = cmq_pop_service_stop(self._pops)
        self.leave()
        _check(status)

    def take_wanted_topics(self):
        """Return the retry topics that are to be made with one queue; then put them, and call wanted_topics_made."""
        cdef uint8_t name[256]
        cdef size_t name_bytes
        cdef list found = []
        self.enter()
        while self._pops is not NULL and cmq_pop_service_take_wanted(self._pops, name, &name_bytes):
            found.append(name[:name_bytes].decode("utf-8", "replace"))
        self.leave()
        return found

    def wanted_topics_made(self):
        """Say that the tables have them."""
        self.enter()
        if self._pops is not NULL:
            cmq_pop_service_topic_made(self._pops)
        self.leave()

    def pop_offset(self, str group not None, str topic not None, int32_t queue_id):
        """Return where the group's next pop begins, where that is behind what was committed, or None."""
        cdef cmq_pop_key key
        cdef int64_t offset = -1
        key.topic = _slice_of_text(topic)
        key.group = _slice_of_text(group)
        key.queue_id = queue_id
        self.enter()
        if self._pops is not NULL:
            offset = cmq_pop_buffer_next(cmq_pop_service_buffer(self._pops), &key)
        self.leave()
        return None if offset < 0 else offset

    def pops_in_flight(self, str group not None):
        """Return (topic, queue id, messages, oldest pop ms, first due ms) of each queue of which a group has popped
        messages that are not done.
        """
        cdef cmq_pop_lane_item items[_LANES_STEP]
        cdef uint8_t names[_LANES_STEP * 512]
        cdef uint32_t cursor = 0, count, i
        cdef cmq_slice wanted = _slice_of_text(group)
        cdef list found = []
        self.enter()
        try:
            while self._pops is not NULL:
                count = cmq_pop_buffer_list(cmq_pop_service_buffer(self._pops), &cursor, items, _LANES_STEP, names,
                                            sizeof(names))
                if count == 0:
                    break
                for i in range(count):
                    if cmq_slice_equal(items[i].group, wanted):
                        found.append((_text(items[i].topic), items[i].queue_id, items[i].in_flight,
                                      items[i].oldest_pop_ms, items[i].due_ms))
            return found
        finally:
            self.leave()

    def flush(self):
        """Bring all that was stored to the disk."""
        cdef cmq_status status
        self.enter()
        with nogil:
            status = cmq_store_flush(self._handle._store)
        self.leave()
        _check(status)

    # ---- storing, counting

    def put(self, str topic not None, int32_t queue_id, bytes body not None, object properties, *, int32_t flag,
            int32_t sys_flag,
            int64_t born_timestamp_ms, bytes born_address not None, int born_port, int32_t reconsume_times):
        """Store a message of the broker's own; returns (queue offset, physical offset, message id).

        Waits for the disk under sync flush.

        ``properties`` is a mapping, or as stored; a DELAY above 0 or a TIMER_DELAY_SEC, TIMER_DELAY_MS or
        TIMER_DELIVER_MS parks the message.
        """
        cdef bytes encoded = properties if type(properties) is bytes else _encode_properties(properties, True)
        cdef cmq_append request
        cdef cmq_appended appended
        cdef cmq_status status
        memset(&request, 0, sizeof(request))
        request.common.topic = _slice_of_text(topic)
        request.common.queue_id = queue_id
        request.common.flag = flag
        request.common.sys_flag = sys_flag
        request.common.born_timestamp_ms = born_timestamp_ms
        request.common.reconsume_times = reconsume_times
        _set_host(&request.common.born_host, born_address, born_port)
        request.common.store_host = self._host
        request.count = 1
        request.bodies.kind = CMQ_COLUMN_ONE
        request.bodies.one = _slice_of_bytes(body)
        request.properties.kind = CMQ_COLUMN_ONE
        request.properties.one = _slice_of_bytes(encoded)
        self.enter()
        with nogil:
            status = cmq_broker_put(self._broker, &request, &appended)
        self.leave()
        _check(status)
        return appended.first_queue_offset, appended.first_physical_offset, _message_id(&self._host,
                                                                                        appended.first_physical_offset)

    def counters(self):
        """Return the loops' totals by name."""
        cdef cmq_broker_counters c
        cdef cmq_delay_counters d
        cdef cmq_timer_counters t
        cdef cmq_pop_service_counters p
        cdef cmq_txn_counters x
        memset(&t, 0, sizeof(t))
        memset(&x, 0, sizeof(x))
        memset(&p, 0, sizeof(p))
        self.enter()
        cmq_broker_count(self._broker, &c)
        cmq_delay_count(self._delay, &d)
        if self._timer is not NULL:
            cmq_timer_count(self._timer, &t)
        if self._pops is not NULL:
            cmq_pop_service_count(self._pops, &p)
        if self._txn is not NULL:
            cmq_txn_count(self._txn, &x)
        self.leave()
        return {
            "sends": c.sends, "send_failures": c.send_failures, "messages_in": c.messages_in,
            "message_bytes_in": c.message_bytes_in,
            "pulls": c.pulls, "pulls_found": c.pulls_found, "messages_out": c.messages_out,
            "message_bytes_out": c.message_bytes_out,
            "held": c.held, "hold_wakes": c.hold_wakes, "hold_timeouts": c.hold_timeouts,
            "hold_refused": c.hold_refused,
            "holds_now": c.holds_now, "waiting_for_disk_now": c.waiting_for_disk, "control": c.control,
            "delay_delivered": d.delivered, "delay_skipped": d.skipped, "delay_undelivered": d.undelivered,
            "timer_entered": t.entered, "timer_delivered": t.delivered, "timer_late": t.late, "timer_rolled": t.rolled,
            "timer_recalled": t.recalled, "timer_remade_now": <int>t.remade,
            "timer_skipped": t.skipped, "timer_undelivered": t.undelivered, "timer_pending_now": t.pending,
            "timer_read_behind_ms_now": t.read_behind_ms,
            "timer_queue_behind_now": t.queue_behind,
            "delay_state_now": <int>d.state, "timer_state_now": t.state, "pop_revive_state_now": p.revive.state,
            "pops": c.pops, "pops_found": c.pops_found, "pop_acks": c.pop_acks, "pop_changes": c.pop_changes,
            "pop_acks_refused": c.pop_acks_refused,
            "pops_held": c.pops_held, "pop_wakes": c.pop_wakes, "pop_timeouts": c.pop_timeouts,
            "pops_refused": c.pops_refused,
            "pops_held_now": c.pops_held_now, "pop_checkpoints_merged": p.buffer.merged,
            "pop_checkpoints_stored": p.buffer.stored,
            "pop_checkpoints_given_up": p.buffer.given_up, "pop_checkpoints_now": p.buffer.checkpoints_now,
            "pop_checkpoints_refused_now": p.buffer.refused_now,
            "pop_in_flight_now": p.buffer.in_flight_now, "pop_revived": p.revive.revived,
            "pop_put_again": p.revive.put_again,
            "pop_gone": p.revive.gone, "pop_skipped": p.revive.skipped, "pop_damaged": p.revive.damaged,
            "pop_unfinished_now": p.revive.unfinished_now, "pop_revive_behind_now": p.revive.behind_now,
            "pop_revive_lag_ms_now": p.revive.lag_ms,
            "txn_commits": c.commits, "txn_rollbacks": c.rollbacks, "txn_ends_refused": c.ends_refused,
            "txn_ends_unwritten": c.ends_unwritten, "txn_commits_undelivered": c.commits_undelivered,
            "txn_asked": x.asked, "txn_copied": x.copied, "txn_discarded": x.discarded, "txn_skipped": x.skipped,
            "txn_recovered": x.recovered, "txn_rounds": x.rounds, "txn_op_records": x.op_records,
            "txn_texts_now": x.texts_now, "txn_behind_now": x.behind,
        }

    def traffic(self):
        """Return {(topic, group): (messages, bytes)}; without a group what was received, with one what it was given."""
        cdef cmq_traffic_item rows[_TRAFFIC_STEP]
        cdef uint32_t loop = 0, cursor = 0, count, i
        cdef dict found = {}
        self.enter()
        try:
            while True:
                count = cmq_broker_list_traffic(self._broker, &loop, &cursor, rows, _TRAFFIC_STEP)
                if count == 0:
                    return found
                for i in range(count):
                    name = (_text(rows[i].topic), _text(rows[i].group))
                    messages, size = found.get(name, (0, 0))
                    found[name] = (messages + rows[i].messages, size + rows[i].bytes)
        finally:
            self.leave()


cdef int _set_txn_rules(cmq_txn_rules *into, rules) except -1:
    into.reject = rules.reject
    into.timeout_ms = rules.timeout_ms
    into.interval_ms = rules.interval_ms
    into.checks_max = rules.checks_max
    into.op_interval_ms = rules.op_interval_ms
    into.op_bytes = rules.op_bytes
    into.reserved_ms = rules.reserved_ms
    return 0


cdef cbool _is_producer_there(void *context, cmq_slice group) noexcept with gil:
    return _text(group) in (<tuple>context)[0]


cdef void _note_question(void *context, const cmq_txn_question_item *question) noexcept with gil:
    (<list>(<tuple>context)[1]).append((
        _text(question.group), _text(question.unique), question.queue_offset, question.physical_offset,
        (<const char *>question.body.data)[:question.body.bytes]))


cdef cmq_offset_asker _offset_asker(bytes address) except *:
    cdef cmq_offset_asker asker
    cdef cmq_record_host host
    memset(&asker, 0, sizeof(asker))
    asker.now_ns = _monotonic_ms() * 1000000   # the loops' clock
    if address is not None:
        _set_host(&host, address, 0)
        asker.network = cmq_net_network_of(&host)
    return asker


cdef cmq_offset_key _offset_key(str group, str topic, int32_t queue_id) except *:
    cdef cmq_offset_key key
    key.group = _slice_of_text(group)
    key.topic = _slice_of_text(topic)
    key.queue_id = queue_id
    return key
