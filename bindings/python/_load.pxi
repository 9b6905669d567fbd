# LoadRun: one run of the engine's load generator. cometmq.loadtest sets its options and shows its figures.

_LOAD_PHASES = ("connecting", "sending", "consuming", "counting", "done")


cdef dict _histogram_dict(const cmq_histogram *histogram):
    """Durations in ns, and how many there are."""
    return {
        "count": histogram.count,
        "mean_ns": histogram.sum_ns // histogram.count if histogram.count else 0,
        "min_ns": histogram.min_ns,
        "p50_ns": cmq_histogram_quantile(histogram, 0.5),
        "p90_ns": cmq_histogram_quantile(histogram, 0.9),
        "p99_ns": cmq_histogram_quantile(histogram, 0.99),
        "p999_ns": cmq_histogram_quantile(histogram, 0.999),
        "max_ns": histogram.max_ns,
    }


cdef str _note(const char *text):
    """A text of the engine's; None when it is empty. A remark may be cut in the middle of a character."""
    return text.decode("utf-8", "replace") if text[0] else None


@cython.final
cdef class LoadRun:
    """One run: made, run once, asked for its result.

    run() blocks without the GIL; stop() and progress() may be called by any thread meanwhile.
    """
    cdef cmq_load *_load
    cdef bint _started
    cdef bint _finished

    def __init__(self, endpoints, queues, str topic not None, *, int format, uint32_t producers, uint32_t consumers,
                 uint32_t depth, uint32_t batch,
                 uint32_t body_bytes, uint64_t count, int64_t duration_ms, uint64_t rate_per_s, bint oneway,
                 bint no_wait, bint consume_after, bint transactions,
                 uint32_t pull_messages, int64_t timeout_ms, uint64_t run, int take=0, uint32_t pops_in_flight=1,
                 int64_t invisible_ms=60000,
                 brokers=(), str producer_group=None, str consumer_group=None):
        if self._load is not NULL:
            raise RuntimeError("this run was made before")
        cdef cmq_load_options options
        cdef cmq_load_endpoint *c_endpoints = NULL
        cdef cmq_load_queue *c_queues = NULL
        cdef list hosts = [host.encode() for host, _ in endpoints]
        cdef list ports = [port for _, port in endpoints]
        cdef list names = [name.encode() for name in brokers]
        cdef list places = list(queues)
        cdef Py_ssize_t i
        memset(&options, 0, sizeof(options))
        try:
            c_endpoints = <cmq_load_endpoint *>calloc(len(hosts) + 1, sizeof(cmq_load_endpoint))
            c_queues = <cmq_load_queue *>calloc(len(places) + 1, sizeof(cmq_load_queue))
            if c_endpoints is NULL or c_queues is NULL:
                raise MemoryError
            for i in range(len(hosts)):
                c_endpoints[i].host = <const char *><bytes>hosts[i]
                c_endpoints[i].port = ports[i]
                if i < len(names):
                    c_endpoints[i].broker = <const char *><bytes>names[i]
            for i in range(len(places)):
                c_queues[i].endpoint, c_queues[i].queue_id = places[i]
            options.endpoints = c_endpoints
            options.endpoint_count = <uint32_t>len(hosts)
            options.queues = c_queues
            options.queue_count = <uint32_t>len(places)
            options.topic = _slice_of_text(topic)
            if producer_group is not None:
                options.producer_group = _slice_of_text(producer_group)
            if consumer_group is not None:
                options.consumer_group = _slice_of_text(consumer_group)
            options.format = <cmq_header_format>format
            options.producers = producers
            options.consumers = consumers
            options.depth = depth
            options.batch = batch
            options.body_bytes = body_bytes
            options.count = count
            options.duration_ms = duration_ms
            options.rate_per_s = rate_per_s
            options.oneway = oneway
            options.no_wait = no_wait
            options.transactions = transactions
            options.consume_after = consume_after
            options.take = <cmq_load_take>take
            options.pull_messages = pull_messages
            options.pops_in_flight = pops_in_flight
            options.invisible_ms = invisible_ms
            options.timeout_ms = timeout_ms
            options.run = run
            _check(cmq_load_create(&self._load, &options))
        finally:
            free(c_endpoints)
            free(c_queues)

    def __dealloc__(self):
        cmq_load_destroy(self._load)

    def run(self):
        """Run to the end.

        Raises ConnectionLost, LimitReached, CorruptRecord, or InvalidArgument when the broker rejects a request;
        result() has the figures up to then.
        """
        cdef cmq_status status
        if self._load is NULL or self._started:
            raise RuntimeError("a run is run once")
        self._started = True
        with nogil:
            status = cmq_load_run(self._load)
        self._finished = True
        if status == CMQ_OK:
            return
        error = _failure(status)
        if status in (CMQ_ERR_IO, CMQ_ERR_PERMISSION, CMQ_ERR_NOT_FOUND):
            raise _errors.ConnectionLost(error.message)
        raise error

    def stop(self):
        """End the run soon. Any thread."""
        if self._load is not NULL:
            cmq_load_stop(self._load)

    def progress(self):
        """Return (phase, messages sent, accepted, consumed). Any thread."""
        cdef cmq_load_progress progress
        if self._load is NULL:
            return _LOAD_PHASES[0], 0, 0, 0
        cmq_load_look(self._load, &progress)
        return _LOAD_PHASES[<int>progress.phase], progress.sent, progress.accepted, progress.consumed

    def result(self):
        """Return what was measured, by name; RuntimeError while it runs."""
        cdef const cmq_load_result *result
        if not self._finished:
            raise RuntimeError("the run has not ended")
        result = cmq_load_result_of(self._load)
        return {
            "stopped": bool(result.stopped),
            "verified": bool(result.verified),
            "problem": _note(result.problem),
            "sent": result.sent,
            "accepted": result.accepted,
            "not_on_disk": result.not_on_disk,
            "refused": result.refused,
            "refusal": _note(result.refusal),
            "sends": result.sends,
            "consumed": result.consumed,
            "pulls": result.pulls,
            "pulls_empty": result.pulls_empty,
            "acks": result.acks,
            "acked": result.acked,
            "duplicates": result.duplicates,
            "broken": result.broken,
            "bad_offsets": result.bad_offsets,
            "holes": result.holes,
            "missing": result.missing,
            "send_ns": result.send_ns,
            "consume_ns": result.consume_ns,
            "send_cpu_ns": result.send_cpu_ns,
            "consume_cpu_ns": result.consume_cpu_ns,
            "send_latency": _histogram_dict(&result.send_latency),
            "end_to_end": _histogram_dict(&result.end_to_end),
        }
