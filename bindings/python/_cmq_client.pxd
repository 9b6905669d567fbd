# Externs of csrc/wire that only a client needs. The headers say what each does.
from libc.stdint cimport int32_t, int64_t

from _cmq cimport *
from _cmq_net cimport *


cdef extern from "wire/cmq_send_header.h" nogil:
    ctypedef struct cmq_send_header:
        cmq_slice producer_group
        cmq_slice topic
        cmq_slice default_topic
        int32_t default_topic_queues
        int32_t queue_id
        int32_t sys_flag
        int64_t born_ms
        int32_t flag
        cmq_slice properties
        int32_t reconsume_times
        cbool unit_mode
        cbool has_max_reconsume_times
        int32_t max_reconsume_times
        cbool batch
        cmq_slice broker_name

    void cmq_send_header_write(cmq_command_writer *writer, int32_t code, const cmq_send_header *header)


cdef extern from "wire/cmq_send_response.h" nogil:
    ctypedef struct cmq_send_response:
        cmq_slice message_id
        int32_t queue_id
        int64_t queue_offset
        cmq_slice transaction_id
        cmq_slice region_id
        cmq_slice trace_on
        cmq_slice batch_unique_id
        cmq_slice recall_handle

    cmq_status cmq_send_response_read(const cmq_command *command, cmq_send_response *response_out)


cdef extern from "wire/cmq_pull_header.h" nogil:
    ctypedef struct cmq_pull_header:
        cmq_slice group
        cmq_slice topic
        int32_t queue_id
        int64_t queue_offset
        int32_t max_messages
        int32_t sys_flag
        int64_t commit_offset
        int64_t suspend_ms
        cmq_slice subscription
        int64_t sub_version
        cmq_slice expression_type
        int32_t max_bytes
        cmq_slice broker_name

    void cmq_pull_header_write(cmq_command_writer *writer, const cmq_pull_header *header)


cdef extern from "wire/cmq_pull_response.h" nogil:
    ctypedef struct cmq_pull_response:
        int64_t suggested_broker_id
        int64_t next_begin_offset
        int64_t min_offset
        int64_t max_offset
        int64_t offset_delta
        cbool has_offset_delta

    cmq_status cmq_pull_response_read(const cmq_command *command, cmq_pull_response *response_out)
