/* cmq_load: puts load on any RocketMQ broker, measures how it is answered, and checks that nothing was lost, doubled or
 * changed.
 *
 *     connect -> first offsets of all queues (30) -> sends, so many in flight -> answers (of half messages: -> 37 ->
 *                                                    its answer)
 *                                                    pulls of every queue, held where nothing is -> messages
 *                                                    or pops of all queues -> messages -> acks, of each or of all
 *             -> sent messages that nobody got yet -> last offsets (30)
 *             -> where messages were acknowledged, the group's offsets (14)
 *
 * One thread, epoll, one read and one write for a burst; a request is a copy of its queue's mould with four places
 * filled in, so that the broker is measured and not this program. Routes and topics are the caller's: it says which
 * queues there are, and where.
 *
 * Owns:      the connections, and per queue one bit per message.
 * Invariant: a result is verified only if each accepted message has an offset of its own, the offsets of each queue
 *            have no hole (in transactions: the queues grew by as many messages as were committed), and (with
 *            consumers) each accepted message came once, whole, and, pulled, in the order of its queue's offsets; with
 *            acks, each was answered with success and the group's offset of each queue reached its end.
 * Threads:   create, run and result: one. cmq_load_look and cmq_load_stop: any, while the load lives.
 * Source:    remoting specification 2.2, 2.4, 2.6, 4.1 to 4.5.
 */
#ifndef CMQ_LOAD_H
#define CMQ_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "load/cmq_histogram.h"
#include "wire/cmq_frame.h"

enum {
    CMQ_LOAD_ENDPOINTS_MAX = 64,
    CMQ_LOAD_QUEUES_MAX = 65536,
    CMQ_LOAD_CONNECTIONS_MAX = 20000,
    CMQ_LOAD_DEPTH_MAX = 4096,
    CMQ_LOAD_BATCH_MAX = 4096
};

typedef struct cmq_load cmq_load;

typedef struct cmq_load_endpoint {
    const char *host;      /* numeric, IPv4 or IPv6 */
    uint16_t port;
    const char *broker;    /* its brokerName, which acks name; NULL where there are none */
} cmq_load_endpoint;

typedef struct cmq_load_queue {
    uint32_t endpoint;     /* which broker has it */
    int32_t queue_id;
} cmq_load_queue;

/* How consumers get messages. */
typedef enum cmq_load_take {
    CMQ_LOAD_PULL = 0,
    CMQ_LOAD_POP,              /* acknowledging nothing */
    CMQ_LOAD_POP_ACK_EACH,     /* one ack (200051) a message */
    CMQ_LOAD_POP_ACK_MANY      /* one ack (200151) for all of an answer */
} cmq_load_take;

/* Zero means the default in brackets. All that is pointed to is borrowed for cmq_load_create. */
typedef struct cmq_load_options {
    const cmq_load_endpoint *endpoints;
    uint32_t endpoint_count;
    const cmq_load_queue *queues;      /* of one topic that nobody else writes to meanwhile */
    uint32_t queue_count;
    cmq_slice topic;
    cmq_slice producer_group;          /* [PID_cometmq_bench] */
    cmq_slice consumer_group;          /* [GID_cometmq_bench] */
    cmq_header_format format;
    uint32_t producers;                /* connections; each sends to one broker, to its queues in turn */
    uint32_t consumers;                /* connections; each pulls some queues of one broker. 0: nobody consumes */
    uint32_t depth;                    /* sends in flight on one connection [1] */
    uint32_t batch;                    /* messages of one send [1]; above 1 as request 320 */
    uint32_t body_bytes;               /* of one message, CMQ_LOAD_BODY_BYTES_MIN at least [128] */
    uint64_t count;                    /* messages to send, a multiple of batch; 0: for duration_ms */
    int64_t duration_ms;               /* [10,000] */
    uint64_t rate_per_s;               /* messages a second in all; 0: as fast as answers come */
    bool oneway;                       /* sends want no answer */
    bool transactions;                 /* each send is a half message that is committed (37) when it is answered; the
                                        * send ends with the answer to that. Neither batches nor one-way */
    bool no_wait;                      /* WAIT=false: the answer need not wait for the disk */
    bool consume_after;                /* consume when everything was sent, for figures of each */
    cmq_load_take take;
    uint32_t pull_messages;            /* at most so many per pull or pop [32]; of a pop 32 at most */
    uint32_t pops_in_flight;           /* on one connection [1] */
    int64_t invisible_ms;              /* of popped messages [60,000]; a redelivered message is a problem */
    int64_t timeout_ms;                /* an answer that takes longer ends the run [10,000] */
    uint64_t run;                      /* a number that no other run has */
} cmq_load_options;

typedef enum cmq_load_phase {
    CMQ_LOAD_CONNECTING = 0,
    CMQ_LOAD_SENDING,
    CMQ_LOAD_CONSUMING,   /* everything was sent, not everything was consumed */
    CMQ_LOAD_COUNTING,    /* last offsets are asked for */
    CMQ_LOAD_DONE
} cmq_load_phase;

typedef struct cmq_load_progress {
    cmq_load_phase phase;
    uint64_t sent, accepted, consumed;   /* messages */
} cmq_load_progress;

enum { CMQ_LOAD_PROBLEM_BYTES = 256 };

typedef struct cmq_load_result {
    bool stopped;                    /* by cmq_load_stop */
    bool verified;
    char problem[CMQ_LOAD_PROBLEM_BYTES];   /* the first thing that was wrong; empty when verified, or stopped */
    uint64_t sent;                   /* messages in requests that went out */
    uint64_t accepted;               /* messages that the broker says it has, or, sent one-way, that it was found to
                                      * have */
    uint64_t not_on_disk;            /* of those: accepted with a time-out of disk or slave (codes 10 to 12) */
    uint64_t refused;                /* messages in sends answered with another code */
    char refusal[CMQ_LOAD_PROBLEM_BYTES];   /* code and remark of the first of them */
    uint64_t sends;                  /* requests */
    uint64_t consumed;               /* messages that came, each once */
    uint64_t pulls, pulls_empty;     /* or pops */
    uint64_t acks, acked;            /* requests, and messages that were acknowledged by them */
    uint64_t duplicates;             /* redelivered messages */
    uint64_t broken;                 /* bodies that are not as they were sent, or of another run */
    uint64_t bad_offsets;            /* offsets that came twice, before the first, or out of order */
    uint64_t holes;                  /* offsets between first and last that no response named */
    uint64_t missing;                /* accepted messages that were not consumed */
    int64_t send_ns;                 /* from the first send to the last answer */
    int64_t consume_ns;              /* from the first pull (after sending, with consume_after) to the last message, or
                                      * its ack's answer */
    int64_t send_cpu_ns, consume_cpu_ns;   /* of this program, meanwhile; one figure where both went on at once */
    cmq_histogram send_latency;      /* of a send, to its answer */
    cmq_histogram end_to_end;        /* of a message, from its send to its consumer; without consume_after */
} cmq_load_result;

/* Check the options and make ready. CMQ_ERR_ARGUMENT names the option that cannot be. */
CMQ_MUST_CHECK cmq_status cmq_load_create(cmq_load **load_out, const cmq_load_options *options);

/* Run to the end. CMQ_ERR_IO: a connection failed or ended, or no response came in time. CMQ_ERR_CORRUPT: a malformed
 * response. CMQ_ERR_ARGUMENT: the broker rejected a request (its code and remark are in the text). The result has the
 * measurements up to then. */
CMQ_MUST_CHECK cmq_status cmq_load_run(cmq_load *load);

/* End the run soon; it returns CMQ_OK. */
void cmq_load_stop(cmq_load *load);

void cmq_load_look(const cmq_load *load, cmq_load_progress *progress_out);

/* Borrowed, until the load is destroyed; complete when cmq_load_run has returned. */
const cmq_load_result *cmq_load_result_of(const cmq_load *load);

void cmq_load_destroy(cmq_load *load);

#endif
