# Externs of csrc/wire and csrc/net. The headers say what each does.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _cmq cimport *


cdef extern from "wire/cmq_frame.h" nogil:
    enum:
        CMQ_FRAME_BYTES_MAX
        CMQ_FRAME_PREFIX_BYTES

    ctypedef enum cmq_header_format:
        CMQ_HEADER_JSON
        CMQ_HEADER_ROCKETMQ

    ctypedef struct cmq_frame:
        cmq_header_format format
        cmq_slice header
        cmq_slice body
        size_t bytes

    cmq_status cmq_frame_next(cmq_slice buffer, uint32_t frame_bytes_max, cmq_frame *frame_out, size_t *needed_out)


cdef extern from "wire/cmq_command.h" nogil:
    enum:
        CMQ_COMMAND_FIELDS_MAX
        CMQ_COMMAND_RESPONSE
        CMQ_COMMAND_ONEWAY

    ctypedef struct cmq_field:
        cmq_slice name
        cmq_slice value

    ctypedef struct cmq_command:
        cmq_header_format format
        int32_t code
        int32_t language
        int32_t version
        int32_t opaque
        int32_t flag
        cbool has_opaque
        cmq_slice remark
        uint32_t field_count
        cmq_field fields[64]

    cmq_status cmq_command_parse(const cmq_frame *frame, uint8_t *scratch, size_t scratch_bytes,
                                 cmq_command *command_out)

    ctypedef struct cmq_command_writer:
        int32_t language
        int32_t version

    void cmq_command_begin(cmq_command_writer *writer, uint8_t *into, size_t capacity, cmq_header_format format,
                           int32_t code, int32_t opaque,
                           int32_t flag, cmq_slice remark)
    void cmq_command_add_text(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
    size_t cmq_command_end(cmq_command_writer *writer, size_t body_bytes)


cdef extern from "net/cmq_net.h" nogil:
    ctypedef struct cmq_net:
        pass

    ctypedef uint64_t cmq_conn_id

    uint64_t cmq_net_network_of(const cmq_record_host *host)

    ctypedef struct cmq_net_handler:
        void *context

    ctypedef struct cmq_net_limits:
        uint32_t connections_max
        uint32_t frame_bytes_max
        uint64_t unsent_bytes_max
        uint64_t unsent_bytes_pause
        uint64_t buffered_bytes_max
        uint32_t control_count_max
        uint64_t control_bytes_max
        uint32_t control_conn_max
        uint32_t address_conns_max
        int64_t idle_ms
        int64_t frame_ms

    ctypedef struct cmq_net_options:
        const char *const *addresses
        uint32_t address_count
        uint32_t loops
        cmq_net_handler handler
        cmq_net_limits limits

    cmq_status cmq_net_create(cmq_net **net_out, const cmq_net_options *options)
    cmq_status cmq_net_start(cmq_net *net)
    void cmq_net_drain(cmq_net *net)
    cbool cmq_net_is_idle(const cmq_net *net)
    void cmq_net_destroy(cmq_net *net)
    void cmq_net_abandon(cmq_net *net)
    uint16_t cmq_net_port(const cmq_net *net, uint32_t index)

    ctypedef enum cmq_control_kind:
        CMQ_CONTROL_REQUEST
        CMQ_CONTROL_RESPONSE
        CMQ_CONTROL_CLOSED

    ctypedef struct cmq_control_item:
        cmq_control_kind kind
        cmq_conn_id conn
        cmq_record_host peer
        uint16_t local_port
        int64_t arrived_ns
        uint8_t *frame
        size_t frame_bytes

    int cmq_net_control_fd(const cmq_net *net)
    uint32_t cmq_net_control_take(cmq_net *net, cmq_control_item *items, uint32_t capacity)
    void cmq_control_item_done(cmq_net *net, cmq_control_item *item)
    void cmq_net_again(cmq_net *net, cmq_control_item *item)
    cmq_status cmq_net_send(cmq_net *net, cmq_conn_id conn, const uint8_t *frame, size_t frame_bytes)
    cmq_status cmq_net_offer(cmq_net *net, cmq_conn_id conn, const uint8_t *frame, size_t frame_bytes)
    void cmq_net_close_conn(cmq_net *net, cmq_conn_id conn)

    ctypedef struct cmq_net_counters:
        uint64_t accepted, closed, refused
        uint64_t frames_in, frames_out, bytes_in, bytes_out
        uint64_t control_items, control_refused, offers_dropped
        uint64_t closed_corrupt, closed_slow_reader, closed_slow_frame, closed_idle, closed_memory, closed_tls
        uint64_t reads, writes, turns
        uint64_t open, buffered_bytes

    void cmq_net_count(const cmq_net *net, cmq_net_counters *counters_out)
