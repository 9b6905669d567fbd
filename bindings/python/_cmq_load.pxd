# Externs of csrc/load. The headers say what each does.
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

from _cmq cimport *
from _cmq_net cimport cmq_header_format


cdef extern from "load/cmq_histogram.h" nogil:
    ctypedef struct cmq_histogram:
        uint64_t count
        uint64_t sum_ns
        uint64_t min_ns
        uint64_t max_ns

    uint64_t cmq_histogram_quantile(const cmq_histogram *histogram, double share)


cdef extern from "load/cmq_load.h" nogil:
    ctypedef struct cmq_load:
        pass

    ctypedef struct cmq_load_endpoint:
        const char *host
        uint16_t port
        const char *broker

    ctypedef struct cmq_load_queue:
        uint32_t endpoint
        int32_t queue_id

    ctypedef enum cmq_load_take:
        CMQ_LOAD_PULL

    ctypedef struct cmq_load_options:
        const cmq_load_endpoint *endpoints
        uint32_t endpoint_count
        const cmq_load_queue *queues
        uint32_t queue_count
        cmq_slice topic
        cmq_slice producer_group
        cmq_slice consumer_group
        cmq_header_format format
        uint32_t producers
        uint32_t consumers
        uint32_t depth
        uint32_t batch
        uint32_t body_bytes
        uint64_t count
        int64_t duration_ms
        uint64_t rate_per_s
        cbool oneway
        cbool transactions
        cbool no_wait
        cbool consume_after
        cmq_load_take take
        uint32_t pull_messages
        uint32_t pops_in_flight
        int64_t invisible_ms
        int64_t timeout_ms
        uint64_t run

    ctypedef enum cmq_load_phase:
        CMQ_LOAD_CONNECTING

    ctypedef struct cmq_load_progress:
        cmq_load_phase phase
        uint64_t sent
        uint64_t accepted
        uint64_t consumed

    ctypedef struct cmq_load_result:
        cbool stopped
        cbool verified
        char problem[256]
        uint64_t sent
        uint64_t accepted
        uint64_t not_on_disk
        uint64_t refused
        char refusal[256]
        uint64_t sends
        uint64_t consumed
        uint64_t pulls
        uint64_t pulls_empty
        uint64_t acks
        uint64_t acked
        uint64_t duplicates
        uint64_t broken
        uint64_t bad_offsets
        uint64_t holes
        uint64_t missing
        int64_t send_ns
        int64_t consume_ns
        int64_t send_cpu_ns
        int64_t consume_cpu_ns
        cmq_histogram send_latency
        cmq_histogram end_to_end

    cmq_status cmq_load_create(cmq_load **load_out, const cmq_load_options *options)
    cmq_status cmq_load_run(cmq_load *load)
    void cmq_load_stop(cmq_load *load)
    void cmq_load_look(const cmq_load *load, cmq_load_progress *progress_out)
    const cmq_load_result *cmq_load_result_of(const cmq_load *load)
    void cmq_load_destroy(cmq_load *load)
