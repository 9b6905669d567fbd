# Externs of csrc/broker that the control plane calls; the headers document them.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from _cmq cimport *
from _cmq_net cimport cmq_net_handler


cdef extern from "broker/tables/cmq_tables.h" nogil:
    ctypedef struct cmq_tables:
        pass

    ctypedef struct cmq_filter:
        pass

    ctypedef enum cmq_topic_kind:
        CMQ_TOPIC_SIMPLE
        CMQ_TOPIC_BATCH

    ctypedef enum cmq_message_type:
        CMQ_MESSAGE_UNSPECIFIED
        CMQ_MESSAGE_MIXED

    ctypedef struct cmq_topic_entry:
        cmq_slice name
        int32_t read_queues, write_queues
        int32_t perm
        int32_t sys_flag
        cbool order
        cmq_topic_kind kind
        cmq_message_type message_type

    ctypedef struct cmq_group_entry:
        cmq_slice name
        cbool consume_enable
        cbool consume_broadcast_enable
        cbool consume_from_min
        cbool order
        cbool notify
        int32_t retry_queues
        int32_t retry_max
        int32_t sys_flag
        int64_t broker_id
        int64_t which_broker_when_slow

    ctypedef enum cmq_message_model:
        CMQ_MODEL_CLUSTERING
        CMQ_MODEL_BROADCASTING

    ctypedef enum cmq_consume_type:
        CMQ_CONSUME_ACTIVELY
        CMQ_CONSUME_PASSIVELY
        CMQ_CONSUME_POP

    ctypedef enum cmq_expression_type:
        CMQ_EXPRESSION_TAG
        CMQ_EXPRESSION_OTHER

    ctypedef struct cmq_subscription:
        cmq_slice topic
        cmq_expression_type type
        cbool read_forbidden
        cmq_filter *filter
        int64_t sub_version
        int64_t filter_version

    ctypedef struct cmq_consumer_entry:
        cmq_slice group
        cmq_message_model model
        cmq_consume_type type
        uint32_t subscription_count
        const cmq_subscription *subscriptions

    cmq_status cmq_filter_parse(cmq_slice expression, cmq_filter **filter_out)
    cmq_status cmq_filter_select(cmq_slice expression, cmq_filter **filter_out)
    void cmq_filter_release(cmq_filter *filter)
    cmq_status cmq_tables_create(cmq_tables **tables_out)
    void cmq_tables_destroy(cmq_tables *tables)
    cmq_status cmq_tables_put_topic(cmq_tables *tables, const cmq_topic_entry *topic)
    cmq_status cmq_tables_put_group(cmq_tables *tables, const cmq_group_entry *group)
    cmq_status cmq_tables_put_consumer(cmq_tables *tables, const cmq_consumer_entry *consumer)
    cbool cmq_tables_remove_topic(cmq_tables *tables, cmq_slice topic)
    cbool cmq_tables_remove_group(cmq_tables *tables, cmq_slice group)
    cbool cmq_tables_remove_consumer(cmq_tables *tables, cmq_slice group)
    void cmq_tables_set_perm(cmq_tables *tables, int32_t perm)


cdef extern from "broker/tables/cmq_offsets.h" nogil:
    int64_t CMQ_OFFSETS_NONE
    uint32_t CMQ_OFFSETS_TEXT_MIN

    ctypedef struct cmq_offsets:
        pass

    ctypedef struct cmq_offset_key:
        cmq_slice group, topic
        int32_t queue_id

    ctypedef struct cmq_offset_item:
        cmq_slice group, topic
        int32_t queue_id
        int64_t offset
        int64_t pull_offset

    ctypedef struct cmq_offset_items:
        cmq_offset_item *items
        uint32_t capacity, count
        uint8_t *text
        uint32_t text_bytes

    cmq_status cmq_offsets_create(cmq_offsets **offsets_out, uint32_t entries_max)
    void cmq_offsets_destroy(cmq_offsets *offsets)
    ctypedef struct cmq_offset_asker:
        uint64_t conn
        uint64_t network
        int64_t now_ns

    cmq_status cmq_offsets_commit_of(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset,
                                     cmq_offset_asker asker)
    void cmq_offsets_share_out(cmq_offsets *offsets)
    int64_t cmq_offsets_query(cmq_offsets *offsets, const cmq_offset_key *key)
    int64_t cmq_offsets_pull_offset(cmq_offsets *offsets, const cmq_offset_key *key)
    uint32_t cmq_offsets_remove(cmq_offsets *offsets, cmq_slice group, cmq_slice topic)
    int64_t cmq_offsets_version(cmq_offsets *offsets)
    void cmq_offsets_take_changes(cmq_offsets *offsets, cmq_offset_items *items)


cdef extern from "broker/pop/flight/cmq_pop_fifo_table.h" nogil:
    uint32_t CMQ_POP_ORDER_BATCH_MAX

    ctypedef struct cmq_pop_fifo_table:
        pass

    ctypedef struct cmq_pop_fifo_table_item:
        cmq_slice group, topic
        int32_t queue_id
        cmq_slice attempt
        int64_t pop_ms, invisible_ms, used_ms
        uint64_t acked
        cbool counted
        uint32_t count
        int64_t offsets[64]
        int64_t visible_ms[64]
        int32_t times[64]

    cmq_status cmq_pop_fifo_table_create(cmq_pop_fifo_table **order_out, uint32_t queues_max)
    void cmq_pop_fifo_table_destroy(cmq_pop_fifo_table *order)
    cbool cmq_pop_fifo_table_clear(cmq_pop_fifo_table *order, const cmq_offset_key *key)
    cbool cmq_pop_fifo_table_next(cmq_pop_fifo_table *order, uint32_t *cursor, cmq_pop_fifo_table_item *item_out)
    cmq_status cmq_pop_fifo_table_restore(cmq_pop_fifo_table *order, const cmq_pop_fifo_table_item *item)
    uint64_t cmq_pop_fifo_table_version(cmq_pop_fifo_table *order)


cdef extern from "broker/delay/cmq_delay.h" nogil:
    ctypedef struct cmq_delay:
        pass

    ctypedef struct cmq_delay_options:
        cmq_store *store
        cmq_tables *tables

    ctypedef struct cmq_delay_progress:
        int32_t level_max
        int64_t offsets[129]
        int64_t version

    ctypedef struct cmq_delay_mark:
        int64_t log_end
        cmq_delay_progress progress

    ctypedef enum cmq_delay_state:
        CMQ_DELAY_IDLE
        CMQ_DELAY_RUNNING
        CMQ_DELAY_RETRYING
        CMQ_DELAY_FENCED

    ctypedef struct cmq_delay_counters:
        cmq_delay_state state
        uint64_t delivered
        uint64_t skipped
        uint64_t undelivered
        uint64_t rounds

    cmq_status cmq_delay_create(cmq_delay **delay_out, const cmq_delay_options *options)
    cmq_status cmq_delay_start(cmq_delay *delay)
    void cmq_delay_stop(cmq_delay *delay)
    void cmq_delay_destroy(cmq_delay *delay)
    void cmq_delay_progress_of(cmq_delay *delay, cmq_delay_progress *progress_out)
    cmq_status cmq_delay_set_progress(cmq_delay *delay, int32_t level, int64_t offset)
    void cmq_delay_mark_of(cmq_delay *delay, cmq_delay_mark *mark_out)
    cmq_status cmq_delay_recover(cmq_delay *delay, int64_t log_end, int64_t *deliveries_out)
    void cmq_delay_count(cmq_delay *delay, cmq_delay_counters *counters_out)


cdef extern from "broker/timer/cmq_timer_check.h" nogil:
    int CMQ_TIMER_CHECK_WIRE_BYTES

    ctypedef struct cmq_timer_check:
        int64_t read_ms

    void cmq_timer_check_encode(const cmq_timer_check *check, uint8_t *into)


cdef extern from "broker/timer/cmq_timer.h" nogil:
    ctypedef struct cmq_timer:
        pass

    ctypedef struct cmq_timer_options:
        cmq_store *store
        cmq_tables *tables
        int32_t precision_ms
        int64_t delay_ms_max
        int32_t roll_window_slots
        int32_t slot_messages
        int32_t flush_interval_ms
        int64_t log_file_bytes

    ctypedef struct cmq_timer_counters:
        int state
        uint64_t entered, delivered, late, rolled, recalled, skipped, undelivered, rounds
        cbool remade
        int64_t pending, read_behind_ms, queue_behind

    cmq_status cmq_timer_create(cmq_timer **timer_out, const cmq_timer_options *options)
    cmq_status cmq_timer_start(cmq_timer *timer)
    cmq_status cmq_timer_stop(cmq_timer *timer)
    void cmq_timer_destroy(cmq_timer *timer)
    void cmq_timer_count(cmq_timer *timer, cmq_timer_counters *counters_out)
    void cmq_timer_check_of(cmq_timer *timer, cmq_timer_check *check_out)


cdef extern from "broker/pop/flight/cmq_pop_buffer.h" nogil:
    ctypedef struct cmq_pop_buffer_counters:
        uint64_t merged, stored, given_up
        uint64_t acks_merged, acks_unknown
        uint64_t checkpoints_now, lanes_now, in_flight_now, refused_now
        uint64_t bytes_now

    ctypedef struct cmq_pop_buffer:
        pass

    ctypedef struct cmq_pop_key:
        cmq_slice topic, group
        int32_t queue_id

    ctypedef struct cmq_pop_lane_item:
        cmq_slice topic, group
        int32_t queue_id
        uint32_t in_flight
        int64_t oldest_pop_ms, due_ms

    int64_t cmq_pop_buffer_next(cmq_pop_buffer *buffer, const cmq_pop_key *key)
    uint32_t cmq_pop_buffer_list(cmq_pop_buffer *buffer, uint32_t *cursor, cmq_pop_lane_item *items, uint32_t capacity,
                                 uint8_t *text, size_t text_bytes)


cdef extern from "broker/pop/revive/cmq_pop_revive.h" nogil:
    ctypedef struct cmq_pop_revive_counters:
        int state
        uint64_t checkpoints, acks, acks_late, revived, put_again, gone, skipped, damaged, early
        uint64_t unfinished_now, behind_now
        int64_t lag_ms


cdef extern from "broker/pop/cmq_pop_service.h" nogil:
    ctypedef struct cmq_pop_service:
        pass

    ctypedef struct cmq_pop_service_options:
        cmq_store *store
        cmq_tables *tables
        cmq_offsets *offsets
        cmq_pop_fifo_table *order
        cmq_timer *timer
        const char *cluster
        const char *broker
        cmq_record_host host
        uint32_t revive_queues
        uint32_t revive_queues_read
        cbool merge
        int64_t stay_ms, stay_out_ms
        uint32_t merged_max, lane_max
        cbool retry_v2, retry_v1_off
        int32_t retry_percent
        cbool begin_late
        uint32_t in_flight_max, waits_max, waits_key_max
        cbool give_up

    ctypedef struct cmq_pop_service_counters:
        cmq_pop_buffer_counters buffer
        cmq_pop_revive_counters revive

    cmq_status cmq_pop_service_create(cmq_pop_service **pops_out, const cmq_pop_service_options *options)
    cmq_status cmq_pop_service_start(cmq_pop_service *pops)
    cmq_status cmq_pop_service_stop(cmq_pop_service *pops)
    void cmq_pop_service_destroy(cmq_pop_service *pops)
    cbool cmq_pop_service_take_wanted(cmq_pop_service *pops, uint8_t *name_out, size_t *bytes_out)
    void cmq_pop_service_topic_made(cmq_pop_service *pops)
    void cmq_pop_service_forget(cmq_pop_service *pops, cmq_slice topic, cmq_slice group)
    void cmq_pop_service_count(cmq_pop_service *pops, cmq_pop_service_counters *counters_out)
    cmq_pop_buffer *cmq_pop_service_buffer(cmq_pop_service *pops)


cdef extern from "broker/tables/cmq_traffic.h" nogil:
    ctypedef struct cmq_traffic_item:
        cmq_slice topic, group
        uint64_t messages, bytes


cdef extern from "broker/txn/cmq_txn.h" nogil:
    ctypedef struct cmq_txn:
        pass

    ctypedef struct cmq_txn_rules:
        cbool reject
        int64_t timeout_ms, interval_ms
        int32_t checks_max
        int64_t op_interval_ms
        int32_t op_bytes
        int64_t reserved_ms

    ctypedef struct cmq_txn_options:
        cmq_store *store
        cmq_offsets *offsets
        cmq_record_host host
        cmq_txn_rules rules

    ctypedef struct cmq_txn_question_item:
        cmq_slice group, unique
        int64_t queue_offset, physical_offset
        cmq_slice body

    ctypedef struct cmq_txn_asker:
        cbool (*is_there)(void *context, cmq_slice group) noexcept nogil
        void (*ask)(void *context, const cmq_txn_question_item *question) noexcept nogil
        void *context

    ctypedef struct cmq_txn_counters:
        uint64_t asked, copied, discarded, skipped, recovered, rounds, op_records, texts_now
        int64_t behind

    cmq_status cmq_txn_create(cmq_txn **txn_out, const cmq_txn_options *options)
    cmq_status cmq_txn_start(cmq_txn *txn)
    cmq_status cmq_txn_stop(cmq_txn *txn)
    void cmq_txn_destroy(cmq_txn *txn)
    void cmq_txn_set_rules(cmq_txn *txn, const cmq_txn_rules *rules)
    cmq_status cmq_txn_step(cmq_txn *txn, const cmq_txn_asker *asker, cbool *more_out)
    cmq_status cmq_txn_resume(cmq_txn *txn, int64_t physical_offset)
    void cmq_txn_count(cmq_txn *txn, cmq_txn_counters *counters_out)
    uint32_t cmq_txn_list_halves(cmq_txn *txn, uint32_t *cursor, cmq_traffic_item *items, uint32_t capacity)


cdef extern from "broker/cmq_broker.h" nogil:
    ctypedef struct cmq_broker:
        pass

    ctypedef struct cmq_broker_options:
        cmq_store *store
        cmq_tables *tables
        cmq_offsets *offsets
        cmq_pop_service *pops
        const char *cluster
        const char *name
        const char *region
        const char *broker_ip
        cmq_record_host store_host
        cbool trace_off
        uint32_t message_bytes_max
        cbool long_polling_off
        int64_t short_polling_ms
        uint32_t holds_max
        int32_t transfer_count_memory
        int32_t transfer_bytes_memory
        int32_t transfer_count_disk
        int32_t transfer_bytes_disk
        int64_t memory_bytes
        uint32_t sends_waiting_max
        int64_t flush_timeout_ms
        cmq_timer *timer
        cbool lite_pull_off
        cmq_txn *txn
        cbool property_filter

    ctypedef struct cmq_broker_counters:
        uint64_t sends, send_failures, messages_in, message_bytes_in
        uint64_t pulls, pulls_found, messages_out, message_bytes_out
        uint64_t pops, pops_found, pop_acks, pop_changes
        uint64_t pop_acks_refused
        uint64_t pops_held, pop_wakes, pop_timeouts, pops_refused
        uint64_t pops_held_now
        uint64_t held, hold_wakes, hold_timeouts, hold_refused
        uint64_t holds_now
        uint64_t waiting_for_disk
        uint64_t control
        uint64_t commits, rollbacks, ends_refused, ends_unwritten, commits_undelivered

    cmq_status cmq_broker_create(cmq_broker **broker_out, const cmq_broker_options *options)
    void cmq_broker_destroy(cmq_broker *broker)
    cmq_net_handler cmq_broker_handler(cmq_broker *broker)
    cmq_status cmq_broker_group_changed(cmq_broker *broker, cmq_slice group)
    cmq_status cmq_broker_reset_offset(cmq_broker *broker, const cmq_offset_key *key, int64_t offset,
                                       cmq_offset_asker asker)
    cmq_status cmq_broker_put(cmq_broker *broker, const cmq_append *append, cmq_appended *appended_out)
    void cmq_broker_count(const cmq_broker *broker, cmq_broker_counters *counters_out)
    uint32_t cmq_broker_list_traffic(const cmq_broker *broker, uint32_t *loop, uint32_t *cursor,
                                     cmq_traffic_item *items, uint32_t capacity)
