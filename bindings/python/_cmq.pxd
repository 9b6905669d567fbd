# Every extern declaration of the C engine that the bindings use, and nothing else. Mirrors csrc/**/*.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _arrow_abi cimport ArrowArray, ArrowSchema


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint cbool "bool"


cdef extern from "base/cmq_status.h" nogil:
    ctypedef enum cmq_status:
        CMQ_OK
        CMQ_AGAIN
        CMQ_END
        CMQ_ERR_ARGUMENT
        CMQ_ERR_TOPIC
        CMQ_ERR_TOO_LARGE
        CMQ_ERR_NOT_FOUND
        CMQ_ERR_OFFSET
        CMQ_ERR_CORRUPT
        CMQ_ERR_NOT_STORE
        CMQ_ERR_AMBIGUOUS
        CMQ_ERR_SETTING
        CMQ_ERR_IO
        CMQ_ERR_DISK_FULL
        CMQ_ERR_LOCKED
        CMQ_ERR_CLOSED
        CMQ_ERR_FENCED
        CMQ_ERR_READ_ONLY
        CMQ_ERR_MEMORY
        CMQ_ERR_PERMISSION
        CMQ_ERR_LIMIT

    ctypedef struct cmq_error:
        cmq_status status
        int sys_errno
        int64_t offset
        char text[512]

    const cmq_error *cmq_last_error()
    enum: CMQ_ERROR_TEXT_BYTES
    const char *cmq_status_name(cmq_status status)
    cmq_status cmq_fail(cmq_status status, const char *format, ...)


cdef extern from "base/cmq_bytes.h" nogil:
    ctypedef struct cmq_slice:
        const uint8_t *data
        size_t bytes

    bint cmq_slice_equal(cmq_slice a, cmq_slice b)
    void cmq_store_u16(uint8_t *at, uint16_t value)
    void cmq_store_u32(uint8_t *at, uint32_t value)
    uint32_t cmq_load_u32(const uint8_t *at)
    int32_t cmq_load_i32(const uint8_t *at)
    int64_t cmq_load_i64(const uint8_t *at)


cdef extern from "base/cmq_bloom.h" nogil:
    enum: CMQ_BLOOM_HASHES_MAX
    ctypedef struct cmq_bloom:
        uint32_t hash_count, bit_count

    cmq_status cmq_bloom_init(cmq_bloom *bloom_out, uint32_t error_percent, uint32_t entry_count)
    void cmq_bloom_positions(const cmq_bloom *bloom, cmq_slice entry, uint32_t *positions_out)


cdef extern from "filter/cmq_selector.h" nogil:
    ctypedef struct cmq_selector
    ctypedef enum cmq_selector_answer:
        CMQ_SELECTOR_FALSE
        CMQ_SELECTOR_TRUE
        CMQ_SELECTOR_NULL
        CMQ_SELECTOR_ERROR

    cmq_status cmq_selector_compile(cmq_slice text, cmq_selector **selector_out, size_t *tail_out)
    void cmq_selector_free(cmq_selector *selector)
    cmq_selector_answer cmq_selector_evaluate(const cmq_selector *selector, cmq_slice properties)


cdef extern from "base/cmq_hash.h" nogil:
    uint32_t cmq_jhash_extend(uint32_t hash, const uint8_t *utf8, size_t bytes)


cdef extern from "base/cmq_crc32.h" nogil:
    uint32_t cmq_crc31(const void *data, size_t bytes)
    const char *cmq_crc32_variant_name()


cdef extern from "base/cmq_map_guard.h" nogil:
    cmq_status cmq_map_guard_check(const void *address, size_t bytes, int64_t physical_offset)


cdef extern from "base/cmq_file.h" nogil:
    ctypedef struct cmq_fs:
        pass

    cmq_fs *cmq_fs_posix()


cdef extern from "base/cmq_lock.h" nogil:
    cmq_status cmq_lock_probe_writer(cmq_fs *fs, const char *path, int64_t *holder_pid_out, cbool *ours_out)


cdef extern from "store/log/cmq_segment.h" nogil:
    ctypedef struct cmq_segment:
        pass


cdef extern from "store/queue/cmq_queue.h" nogil:
    ctypedef struct cmq_queues:
        pass

    ctypedef struct cmq_queue:
        pass

    ctypedef enum cmq_queue_kind:
        CMQ_QUEUE_SIMPLE
        CMQ_QUEUE_BATCH

    ctypedef struct cmq_unit:
        int64_t offset
        int64_t phy
        int64_t tags_code
        int64_t store_ms
        int32_t bytes
        int32_t count

    cmq_queue *cmq_queues_find(const cmq_queues *queues, cmq_slice topic, int32_t queue_id)
    uint32_t cmq_queues_count(const cmq_queues *queues)
    cmq_queue *cmq_queues_at(const cmq_queues *queues, uint32_t index)
    const char *cmq_queue_topic(const cmq_queue *queue)
    uint32_t cmq_queue_topic_bytes(const cmq_queue *queue)
    int32_t cmq_queue_id(const cmq_queue *queue)
    cmq_queue_kind cmq_queue_kind_of(const cmq_queue *queue)
    cbool cmq_queue_deleted(const cmq_queue *queue)
    cbool cmq_queue_begun(const cmq_queue *queue)
    int64_t cmq_queue_min(const cmq_queue *queue)
    int64_t cmq_queue_max(const cmq_queue *queue, int64_t confirmed_end)
    cmq_status cmq_queue_read(cmq_queue *queue, int64_t start, int64_t confirmed_end, cmq_unit *units_out,
                              uint32_t capacity,
                              uint32_t *count_out, int64_t *next_out)


cdef extern from "store/record/cmq_record.h" nogil:
    enum:
        CMQ_SYS_COMPRESSED
        CMQ_SYS_INNER_BATCH
        CMQ_RECORD_BYTES_MIN
        CMQ_RECORD_AT_QUEUE_ID
        CMQ_RECORD_AT_QUEUE_OFFSET
    uint32_t CMQ_RECORD_MAGIC_V1
    uint32_t CMQ_RECORD_MAGIC_V2

    ctypedef struct cmq_record_host:
        uint8_t address[16]
        int32_t port
        cbool ipv6

    ctypedef struct cmq_record_fields:
        cmq_slice topic
        cmq_slice body
        cmq_slice properties
        int64_t queue_offset
        int64_t physical_offset
        int64_t born_timestamp_ms
        int64_t store_timestamp_ms
        int64_t prepared_transaction_offset
        int32_t queue_id
        int32_t flag
        int32_t sys_flag
        int32_t reconsume_times
        cmq_record_host born_host
        cmq_record_host store_host
        cbool has_body_crc
        uint32_t body_crc

    ctypedef struct cmq_record_sizes:
        uint32_t record_bytes

    cmq_status cmq_record_measure(const cmq_record_fields *fields, cmq_record_sizes *sizes_out)
    void cmq_record_encode(uint8_t *into, const cmq_record_fields *fields, const cmq_record_sizes *sizes)

    ctypedef struct cmq_record_view:
        uint32_t record_bytes
        uint32_t magic
        uint32_t body_crc
        int32_t queue_id
        int32_t flag
        int32_t sys_flag
        int32_t reconsume_times
        int64_t queue_offset
        int64_t physical_offset
        int64_t born_timestamp_ms
        int64_t store_timestamp_ms
        int64_t prepared_transaction_offset
        cmq_record_host born_host
        cmq_record_host store_host
        cmq_slice body
        cmq_slice topic
        cmq_slice properties

    enum:
        CMQ_RECORD_CHECK_BODY_CRC

    cmq_status cmq_record_parse(const uint8_t *at, size_t available, int64_t physical_offset, unsigned checks,
                                cmq_record_view *view_out)


cdef extern from "store/record/cmq_property.h" nogil:
    enum:
        CMQ_PROPERTY_BYTES_MAX

    cbool cmq_property_next(cmq_slice *rest, cmq_slice *name_out, cmq_slice *value_out)
    cbool cmq_property_find(cmq_slice properties, cmq_slice name, cmq_slice *value_out)
    cmq_status cmq_property_append(uint8_t *buffer, size_t capacity, size_t *used, cmq_slice name, cmq_slice value)
    cbool cmq_property_has_separator(cmq_slice text)
    cmq_status cmq_property_check_name(cmq_slice name)
    size_t cmq_property_pair_bytes(cmq_slice name, cmq_slice value)
    uint8_t *cmq_property_write(uint8_t *into, cmq_slice name, cmq_slice value)


cdef extern from "store/record/cmq_wire_batch.h" nogil:
    ctypedef struct cmq_wire_batch_element:
        int32_t flag
        cmq_slice body
        cmq_slice properties

    cmq_status cmq_wire_batch_count(cmq_slice body, uint32_t *count_out) nogil
    cmq_status cmq_wire_batch_next(cmq_slice *rest, cmq_wire_batch_element *element_out)


cdef extern from "store/record/cmq_message_id.h" nogil:
    enum:
        CMQ_MESSAGE_ID_BYTES_MAX

    size_t cmq_message_id_format(const cmq_record_host *store_host, int64_t physical_offset, char *id_out)
    cmq_status cmq_message_id_parse(cmq_slice id, cmq_record_host *store_host_out, int64_t *physical_offset_out)


cdef extern from "store/cmq_store.h" nogil:
    ctypedef struct cmq_store:
        pass

    ctypedef struct cmq_reader:
        pass

    ctypedef enum cmq_flush_mode:
        CMQ_FLUSH_SYNC
        CMQ_FLUSH_ASYNC

    ctypedef struct cmq_retention:
        cbool enabled
        int64_t reserved_ms
        uint32_t delete_hours
        double max_used_ratio
        double force_ratio
        double warning_ratio
        uint32_t files_per_round

    ctypedef enum cmq_index_tags:
        CMQ_INDEX_TAGS_AS_FOUND
        CMQ_INDEX_TAGS_ON
        CMQ_INDEX_TAGS_OFF

    ctypedef struct cmq_store_options:
        const char *path
        cbool read_only
        cbool create
        cbool background
        cmq_flush_mode flush
        int64_t segment_bytes
        int64_t queue_file_bytes
        int64_t batch_file_bytes
        int64_t ext_file_bytes
        int32_t index_slots
        int32_t index_entries
        const char *const *commitlog_paths
        uint32_t commitlog_path_count
        uint32_t body_bytes_max
        const char *delay_levels
        const char *const *batch_topics
        uint32_t batch_topic_count
        cbool index_disabled
        cmq_index_tags index_tags
        cbool ext_enabled
        cbool lmq_enabled
        uint32_t light_queues_max
        cbool property_crc
        cbool check_property_crc
        int64_t durable_point_bytes
        int64_t durable_point_ms
        cmq_retention retention

    ctypedef struct cmq_store_opening:
        cbool created
        cbool was_unclean
        cbool trusted_point
        int64_t scanned_from
        int64_t scanned_to
        int64_t records
        int64_t cut_bytes
        int64_t removed_records
        const char *removed
        int64_t gaps
        int64_t index_missing_from
        int overwrites
        const char *overwritten
        int64_t elapsed_us

    ctypedef enum cmq_column_kind:
        CMQ_COLUMN_NONE
        CMQ_COLUMN_ONE
        CMQ_COLUMN_SLICES
        CMQ_COLUMN_FIXED
        CMQ_COLUMN_OFFSETS32
        CMQ_COLUMN_OFFSETS64

    ctypedef struct cmq_column:
        cmq_column_kind kind
        cmq_slice one
        const cmq_slice *slices
        const uint8_t *data
        const int32_t *offsets32
        const int64_t *offsets64
        int64_t stride
        uint32_t width

    ctypedef struct cmq_append:
        cmq_record_fields common
        uint32_t count
        cmq_column bodies
        cmq_column tags
        cmq_column keys
        cmq_column properties
        const int32_t *queue_ids
        const int64_t *born_timestamps
        cbool one_segment
        cbool no_wait
        int64_t *queue_offsets_out
        int64_t *physical_offsets_out

    ctypedef struct cmq_appended:
        uint32_t count
        int64_t first_queue_offset
        int64_t first_physical_offset
        int64_t end
        int64_t store_timestamp_ms

    ctypedef struct cmq_store_info:
        cbool read_only
        cbool fenced
        cbool disk_full
        cbool writer_alive
        cbool writer_is_ours
        int64_t log_min
        int64_t log_end
        int64_t flushed
        int64_t segment_bytes
        int64_t queue_file_bytes
        int64_t batch_file_bytes
        int64_t ext_file_bytes
        int32_t index_slots
        int32_t index_entries
        int64_t store_timestamp_ms
        uint32_t queue_count
        cmq_flush_mode flush

    ctypedef struct cmq_found:
        const uint8_t *record
        cmq_queue *queue
        int64_t physical_offset
        int64_t queue_offset
        uint32_t record_bytes
        int32_t count

    ctypedef struct cmq_found_batch:
        cmq_found *items
        uint32_t capacity
        uint32_t count
        uint32_t pin_count

    ctypedef enum cmq_boundary:
        CMQ_BOUNDARY_LOWER
        CMQ_BOUNDARY_UPPER

    ctypedef struct cmq_read_start:
        cmq_slice topic
        int32_t queue_id
        cbool has_end
        int64_t offset
        int64_t end

    ctypedef struct cmq_read_options:
        const cmq_slice *topics
        uint32_t topic_count
        const cmq_read_start *starts
        uint32_t start_count
        cbool only_starts
        cbool may_be_missing
        const int32_t *queue_ids
        uint32_t queue_id_count
        const cmq_slice *tags
        uint32_t tag_count
        const cmq_selector *where
        cbool backwards
        cbool has_start
        cbool has_end
        int64_t start
        int64_t end
        cbool has_start_time
        cbool has_end_time
        int64_t start_time_ms
        int64_t end_time_ms
        cbool has_start_physical
        int64_t start_physical
        cbool only_queued
        cbool check_crc
        cbool fetch_tails

    cmq_status cmq_store_open(cmq_store **store_out, const cmq_store_options *options)
    cmq_status cmq_store_close(cmq_store *store)
    void cmq_store_opening_of(const cmq_store *store, cmq_store_opening *opening_out)

    cmq_status cmq_store_check_append(cmq_store *store, const cmq_append *append)
    cmq_status cmq_store_append(cmq_store *store, const cmq_append *append, cmq_appended *appended_out)
    cmq_status cmq_store_append_together(cmq_store *store, const cmq_append *parts, uint32_t count,
                                         cmq_appended *appended_out)
    cmq_status cmq_store_wait(cmq_store *store, int64_t end)
    cmq_status cmq_store_flush(cmq_store *store)

    cbool cmq_store_upkeep_error(cmq_store *store, char *into)
    ctypedef struct cmq_deletion:
        int64_t log_offset
        int64_t age_ms
        cbool is_due
    ctypedef struct cmq_retention_report:
        double used_ratio
        uint32_t level
        cbool is_full
        uint32_t deletion_count
        uint32_t unlisted
        cmq_deletion *deletions
    cmq_status cmq_store_set_retention(cmq_store *store, const cmq_retention *retention)
    void cmq_store_take_retention_report(cmq_store *store, cmq_retention_report *report_out)
    cmq_status cmq_store_info_of(cmq_store *store, cmq_store_info *info_out)
    const cmq_queues *cmq_store_queues(const cmq_store *store)
    int64_t cmq_store_confirmed(const cmq_store *store)
    cmq_status cmq_store_refresh(cmq_store *store)
    cmq_status cmq_store_wait_more(cmq_store *store, int64_t seen_end, int64_t timeout_ms)

    void cmq_found_batch_release(cmq_found_batch *batch)
    cmq_status cmq_reader_open(cmq_store *store, const cmq_read_options *options, cmq_reader **reader_out)
    void cmq_reader_close(cmq_reader *reader)
    cmq_status cmq_reader_next(cmq_reader *reader, cmq_found_batch *batch, cbool *end_out)
    cmq_status cmq_reader_position(const cmq_reader *reader, cmq_slice topic, int32_t queue_id, int64_t *offset_out)

    cmq_status cmq_store_read_physical(cmq_store *store, int64_t physical_offset, cmq_found_batch *batch)
    cmq_status cmq_store_read_offset(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t offset,
                                     cmq_found_batch *batch)
    ctypedef struct cmq_key_search_options:
        cmq_slice topic
        cmq_slice key
        int64_t begin_ms
        int64_t end_ms
        uint64_t limit
        uint64_t misses_max
        cbool only_queued

    ctypedef struct cmq_key_search:
        pass

    cmq_status cmq_key_search_open(cmq_store *store, const cmq_key_search_options *options, cmq_key_search **search_out)
    void cmq_key_search_close(cmq_key_search *search)
    cmq_status cmq_key_search_next(cmq_key_search *search, cmq_found_batch *batch)
    cmq_status cmq_store_check_end(cmq_store *store)
    cmq_status cmq_store_offset_at(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t time_ms,
                                   cmq_boundary boundary,
                                   int64_t *offset_out)
    cmq_status cmq_store_earliest_ms(cmq_store *store, int64_t *time_ms_out)

    cmq_status cmq_store_delete_topic(cmq_store *store, cmq_slice topic)
    cmq_status cmq_store_delete_expired_queues(cmq_store *store, uint32_t *deleted_out)
    cmq_status cmq_store_set_batch_topic(cmq_store *store, cmq_slice topic)
    cmq_status cmq_store_maintain(cmq_store *store, cbool force_durable_point)
    cmq_status cmq_store_expire(cmq_store *store, cbool manual, uint32_t *deleted_out)


# ---- verification and repair (_verify.pxi) ----

cdef extern from "store/check/cmq_verify.h" nogil:
    ctypedef enum cmq_severity:
        CMQ_SEVERITY_NOTE
        CMQ_SEVERITY_REPAIRABLE
        CMQ_SEVERITY_DAMAGED

    ctypedef enum cmq_problem_kind:
        CMQ_PROBLEM_RECORD

    ctypedef struct cmq_problem:
        cmq_problem_kind kind
        cmq_severity severity
        int64_t physical_offset
        int64_t queue_offset
        int64_t count
        const char *topic
        int32_t queue_id
        const char *text

    ctypedef struct cmq_verify_options:
        cbool (*problem)(void *context, const cmq_problem *problem) noexcept nogil
        cbool (*progress)(void *context, int64_t done_bytes, int64_t all_bytes) noexcept nogil
        void *context

    ctypedef struct cmq_verified:
        cmq_severity verdict
        cbool complete
        int64_t log_min
        int64_t log_end
        int64_t records
        int64_t body_bytes
        int64_t units
        int64_t queues
        int64_t keys
        int64_t index_entries
        int64_t keys_missing
        int64_t problems[3]

    cmq_status cmq_store_verify(cmq_store *store, const cmq_verify_options *options, cmq_verified *verified_out)
    const char *cmq_problem_name(cmq_problem_kind kind)


cdef extern from "store/marks/cmq_layout.h" nogil:
    ctypedef struct cmq_layout_sizes:
        int64_t segment_bytes
        int64_t queue_file_bytes
        int64_t batch_file_bytes
        int64_t ext_file_bytes
        int32_t index_slots
        int32_t index_entries


cdef extern from "store/check/cmq_repair.h" nogil:
    ctypedef struct cmq_repair_options:
        const cmq_store_options *store
        cbool dry_run
        cbool cut_tail
        cbool cut_damage
        cbool fill_damage
        cbool (*wanted)(void *context, cmq_slice topic) noexcept nogil
        cbool (*progress)(void *context, int64_t done_bytes, int64_t all_bytes) noexcept nogil
        void (*damage)(void *context, int64_t physical_offset, int64_t byte_count, const char *reason) noexcept nogil
        void *context

    ctypedef struct cmq_repair_report:
        cbool complete
        cbool finished_earlier
        cbool was_unclean
        cmq_layout_sizes sizes
        int64_t log_min
        int64_t log_end
        int64_t records
        int64_t messages
        int64_t keys
        int64_t queues
        int64_t queues_kept
        int64_t gaps
        int64_t unwanted
        int64_t damaged_places
        int64_t damaged_bytes
        int64_t filled_bytes
        int64_t first_damage
        int64_t tail_at
        int64_t tail_bytes
        int64_t cut_at
        int64_t cut_messages
        int64_t cut_bytes
        int64_t cut_files
        const char *kept

    cmq_status cmq_store_repair(const cmq_repair_options *options, cmq_repair_report *report_out)


cdef extern from "store/recover/cmq_removed.h" nogil:
    ctypedef struct cmq_restored:
        int64_t records
        int64_t doubtful
        int64_t unfinished
        int64_t refused
        const char *refusal
        cbool already

    ctypedef struct cmq_restore_options:
        const char *name
        cbool again
        cbool (*wanted)(void *context, cmq_slice topic, int32_t queue_id) noexcept nogil
        void *context

    cmq_status cmq_store_restore(cmq_store *store, const cmq_restore_options *options, cmq_restored *restored_out)


# ---- the journal of offsets (_offsetlog.pxi) ----

cdef extern from "store/marks/cmq_offset_journal.h" nogil:
    ctypedef struct cmq_offset_journal:
        pass

    ctypedef struct cmq_offset_journal_basis:
        uint32_t crc
        uint64_t bytes

    ctypedef struct cmq_offset_journal_entry:
        cmq_slice topic
        int32_t queue_id
        int64_t offset

    ctypedef enum cmq_offset_journal_found:
        CMQ_OFFSETLOG_NONE
        CMQ_OFFSETLOG_OTHER
        CMQ_OFFSETLOG_READ

    ctypedef struct cmq_offset_journal_cursor:
        uint32_t head_crc
        uint32_t chain
        uint64_t at

    ctypedef cmq_status (*cmq_offset_journal_visit)(void *context, cmq_slice group,
                                                    const cmq_offset_journal_entry *entry) noexcept

    cmq_status cmq_offset_journal_create(cmq_fs *fs, const char *root, const cmq_offset_journal_basis *basis,
                                         int64_t now_ms, cbool durable, cmq_offset_journal **log_out)
    cmq_status cmq_offset_journal_append(cmq_offset_journal *log, cmq_slice group,
                                         const cmq_offset_journal_entry *entries, uint32_t count, uint64_t *end_out)
    cmq_status cmq_offset_journal_wait(cmq_offset_journal *log, uint64_t end)
    cmq_status cmq_offset_journal_restart(cmq_offset_journal *log, const cmq_offset_journal_basis *basis)
    cmq_status cmq_offset_journal_remove(cmq_offset_journal *log)
    void cmq_offset_journal_close(cmq_offset_journal *log)
    cmq_status cmq_offset_journal_forget(cmq_fs *fs, const char *root)
    cmq_status cmq_offset_journal_read(cmq_fs *fs, const char *root, const cmq_offset_journal_basis *basis,
                                       cmq_offset_journal_cursor *cursor, cmq_offset_journal_visit visit,
                                  void *context, cmq_offset_journal_found *found_out)


# ---- columns (_scan.pxi) ----

cdef extern from "export/cmq_scan.h" nogil:
    ctypedef enum cmq_scan_kind:
        CMQ_SCAN_TOPIC
        CMQ_SCAN_QUEUE_ID
        CMQ_SCAN_QUEUE_OFFSET
        CMQ_SCAN_BODY
        CMQ_SCAN_BODY_BYTES
        CMQ_SCAN_TAGS
        CMQ_SCAN_KEYS
        CMQ_SCAN_UNIQUE_ID
        CMQ_SCAN_BORN_TIMESTAMP
        CMQ_SCAN_STORE_TIMESTAMP
        CMQ_SCAN_PROPERTIES
        CMQ_SCAN_PROPERTY
        CMQ_SCAN_FLAG
        CMQ_SCAN_SYS_FLAG
        CMQ_SCAN_RECONSUME_TIMES
        CMQ_SCAN_MESSAGE_ID
        CMQ_SCAN_PHYSICAL_OFFSET
        CMQ_SCAN_BORN_HOST
        CMQ_SCAN_STORE_HOST
        CMQ_SCAN_BODY_CRC
        CMQ_SCAN_PREPARED_OFFSET
        CMQ_SCAN_CONSTANT

    ctypedef enum cmq_scan_form:
        CMQ_SCAN_FORM_DEFAULT
        CMQ_SCAN_FORM_VIEW
        CMQ_SCAN_FORM_PLAIN
        CMQ_SCAN_FORM_DICTIONARY
        CMQ_SCAN_FORM_MS
        CMQ_SCAN_FORM_US

    ctypedef struct cmq_scan_column:
        cmq_scan_kind kind
        cmq_scan_form form
        const char *name
        const char *property

    ctypedef struct cmq_scan_room:
        pass

    uint8_t *cmq_scan_room_take(cmq_scan_room *room, size_t bytes)

    ctypedef cmq_status (*cmq_scan_decompress)(void *context, int32_t sys_flag, cmq_slice stored,
                                               cmq_scan_room *room) noexcept

    ctypedef struct cmq_scan_options:
        cmq_read_options read
        const cmq_slice *keys
        uint32_t key_count
        const cmq_scan_column *columns
        uint32_t column_count
        uint32_t batch_rows
        uint32_t batch_bytes
        int64_t limit_rows
        cbool follow
        cbool raw_bodies
        cbool check_crc
        cbool skip_corrupt
        cmq_scan_decompress decompress
        void *decompress_context

    ctypedef struct cmq_scan:
        pass

    ctypedef struct cmq_scan_piece:
        const uint8_t *data
        size_t bytes
        int64_t start
        int64_t end
        int64_t offset_delta

    cmq_status cmq_scan_open(cmq_store *store, const cmq_scan_options *options, cmq_scan **scan_out)
    cmq_status cmq_scan_open_fed(const cmq_scan_options *options, cmq_scan **scan_out)
    cmq_status cmq_scan_feed(cmq_scan *scan, const cmq_scan_piece *pieces, uint32_t count)
    void cmq_scan_close(cmq_scan *scan)
    cmq_status cmq_scan_schema(const cmq_scan *scan, ArrowSchema *schema_out)
    cmq_status cmq_scan_next(cmq_scan *scan, ArrowArray *array_out, cbool *end_out)

    ctypedef struct cmq_scan_skipped:
        uint64_t records
        uint64_t invalid_texts
        uint64_t clamped_times
        uint64_t expired

    void cmq_scan_skipped_of(const cmq_scan *scan, cmq_scan_skipped *skipped_out, int64_t *offsets, uint32_t capacity,
                             uint32_t *count_out)
