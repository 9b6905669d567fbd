/* cmq_load_internal: declarations private to the files of cmq_load.
 *
 * Way: cmq_load.c (life, phases) -> [this] -> cmq_load_conn.c (sockets), cmq_load_send.c (producers), cmq_load_end.c
 *      (ends of transactions), cmq_load_pull.c (consumers that pull), cmq_load_pop.c (those that pop),
 *      cmq_load_offsets.c (questions, and the verdict)
 */
#ifndef CMQ_LOAD_INTERNAL_H
#define CMQ_LOAD_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "load/cmq_load.h"
#include "load/cmq_load_body.h"
#include "load/cmq_marks.h"
#include "store/record/cmq_record.h"
#include "wire/cmq_command.h"

/* Which answer it is shows in its opaque: a slot of a producer, a queue that is pulled, a queue whose last offset or
 * group's offset is asked for, a pop, or how many messages were acknowledged. All have ten digits, so that requests of
 * a queue are of one length. */
enum {
    LOAD_OPAQUE_SEND = 1000000000,
    LOAD_OPAQUE_PULL = 1100000000,
    LOAD_OPAQUE_OFFSET = 1200000000,
    LOAD_OPAQUE_GROUP = 1300000000,
    LOAD_OPAQUE_POP = 1400000000,
    LOAD_OPAQUE_ACK = 1500000000
};

enum { LOAD_SCRATCH_BYTES = 1 << 20, LOAD_HOLD_MS = 15000, LOAD_UNIQUE_BYTES = 32 };

typedef struct load_conn {
    int fd;
    bool connected;
    bool waits_for_room;      /* EPOLLOUT is asked for */
    uint32_t endpoint;
    uint32_t index;           /* among producers, or among consumers */
    bool consumes;
    uint32_t pops;            /* without an answer */
    uint8_t *out;             /* [out_sent, out_used) is not sent yet */
    size_t out_capacity, out_used, out_sent;
    uint8_t *in;              /* [0, in_used): a frame that is not whole */
    size_t in_capacity, in_used;
    uint32_t waiting;         /* requests without an answer */
    int64_t progress_ns;      /* when something came, or the first of them went out */

    /* Producers. */
    struct load_slot *slots;
    uint32_t *free_slots;     /* a stack */
    uint32_t free_count;
    uint64_t sequence;        /* of the next message */
    uint32_t queue_at;        /* the queue of the next send */
} load_conn;

typedef struct load_slot {
    int64_t sent_ns;
    uint32_t queue;
    bool busy;
    bool ends;                /* its half message is stored, and the answer to its commit is waited for */
} load_slot;

/* A request to send to one queue, whole but for four places, and its body. */
typedef struct load_mould {
    uint8_t *bytes;
    size_t header_bytes;      /* with the frame's prefix */
    size_t at_opaque;
    size_t at_born;           /* 13 digits */
    size_t at_unique;         /* LOAD_UNIQUE_BYTES */
} load_mould;

typedef struct load_queue {
    uint32_t endpoint;
    int32_t queue_id;
    int64_t first_offset;     /* before the run; -1: not known yet */
    int64_t last_offset;      /* behind the last message, asked for at the end */
    int64_t committed;        /* the group's offset, likewise */
    bool asked;               /* an answer about one of them is on its way */
    load_mould mould;
    cmq_marks accepted;       /* offsets from first_offset on */
    uint32_t consumer;        /* the one that pulls it */
    int64_t next_offset;      /* to be pulled */
    bool pulling;
} load_queue;

struct cmq_load {
    cmq_load_options options;         /* pointers in it are not valid any more; these are: */
    struct sockaddr_storage *addresses;
    char (*names)[64];                /* of the endpoints, for texts */
    char **brokers;                   /* their brokerNames */
    char *topic, *producer_group, *consumer_group;
    uint8_t *pool;
    uint8_t *scratch;                 /* LOAD_SCRATCH_BYTES */
    load_conn *conns;                 /* producers, then consumers; without either one per endpoint would do nothing */
    uint32_t conn_count;
    load_queue *queues;
    cmq_marks *seen;                  /* per producer: which of its messages came */
    int epoll_fd, timer_fd, stop_fd;
    size_t body_bytes;                /* of one request */
    size_t property_bytes;            /* of one message of a batch */
    int64_t now_ns;                   /* read when a turn begins, and for every burst of sends */
    int64_t born_ms;                  /* wall clock of the same moment */
    int64_t send_begin_ns, send_end_ns, consume_begin_ns, consume_end_ns;
    int64_t cpu_begin_ns;
    int64_t checked_ns;               /* when answers were last looked for that are late */
    uint64_t issued;                  /* messages that were given to producers */
    uint32_t refused_in_row;
    uint32_t next_paced;              /* the next producer when sends are paced */
    bool sending;                     /* producers may begin further sends */
    bool consuming;                   /* consumers pull */
    cmq_load_phase phase;
    cmq_command command;              /* the answer at hand */
    cmq_load_result result;
    _Atomic bool stop;
    _Atomic int shown_phase;
    _Atomic uint64_t shown_sent, shown_accepted, shown_consumed;
};

/* Are messages acknowledged? */
static inline bool cmq_load_acks(const cmq_load *load)
{
    return load->options.consumers > 0 &&
           (load->options.take == CMQ_LOAD_POP_ACK_EACH || load->options.take == CMQ_LOAD_POP_ACK_MANY);
}

/* ---- cmq_load.c ---- */

/* Note the first thing that is wrong with what the broker did; the run goes on. */
void cmq_load_note(cmq_load *load, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t cmq_load_clock_ns(void);

/* The remark of a response, NUL-terminated. */
typedef struct cmq_load_remark {
    char text[160];
} cmq_load_remark;
cmq_load_remark cmq_load_remark_of(const cmq_command *command);

/* ---- cmq_load_conn.c ---- */

CMQ_MUST_CHECK cmq_status cmq_load_conn_open(cmq_load *load, load_conn *conn);
void cmq_load_conn_close(load_conn *conn);
/* Room for `bytes` at the end of the output; then add the bytes used to out_used. NULL when there is no memory. */
uint8_t *cmq_load_conn_reserve(load_conn *conn, size_t bytes);
/* Send pending output; the part that does not fit waits for room. */
CMQ_MUST_CHECK cmq_status cmq_load_conn_flush(cmq_load *load, load_conn *conn);
/* Handle epoll's events: finish connecting, read, pass frame by frame to cmq_load_answer. */
CMQ_MUST_CHECK cmq_status cmq_load_conn_ready(cmq_load *load, load_conn *conn, uint32_t events);
/* A request went out: its answer's time begins if no other waits. */
void cmq_load_conn_asked(cmq_load *load, load_conn *conn);
/* CMQ_ERR_IO when an answer has not come in time. */
CMQ_MUST_CHECK cmq_status cmq_load_conn_check_time(const cmq_load *load, const load_conn *conn);

/* One response: its opaque identifies the request. */
CMQ_MUST_CHECK cmq_status cmq_load_answer(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body);

/* ---- cmq_load_send.c ---- */

CMQ_MUST_CHECK cmq_status cmq_load_mould_queues(cmq_load *load);
CMQ_MUST_CHECK cmq_status cmq_load_sender_init(cmq_load *load, load_conn *conn);
/* Begin as many sends as the connection has free slots for, and as may begin now. Not flushed. */
CMQ_MUST_CHECK cmq_status cmq_load_send_more(cmq_load *load, load_conn *conn);
/* One send on each connection in turn, until so many messages have gone out as their time allows. Flushed. */
CMQ_MUST_CHECK cmq_status cmq_load_send_paced(cmq_load *load);
CMQ_MUST_CHECK cmq_status cmq_load_sent(cmq_load *load, load_conn *conn, const cmq_command *command);

/* ---- cmq_load_end.c ---- */

/* A half message is stored, as this answer says: commit it, under the send's opaque. Not flushed. */
CMQ_MUST_CHECK cmq_status cmq_load_commit(cmq_load *load, load_conn *conn, const load_queue *queue,
                                          const cmq_command *command);

/* ---- cmq_load_pull.c ---- */

/* Pull every queue of the connection that is not pulled yet. Not flushed. */
CMQ_MUST_CHECK cmq_status cmq_load_pull_all(cmq_load *load, load_conn *conn);
CMQ_MUST_CHECK cmq_status cmq_load_pulled(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body);
/* A message that came: is it whole, of this run, and the first time? The order of offsets is the caller's. */
CMQ_MUST_CHECK cmq_status cmq_load_take_message(cmq_load *load, const cmq_record_view *view);

/* ---- cmq_load_pop.c ---- */

/* Pop until so many are in flight as may be. Not flushed. */
CMQ_MUST_CHECK cmq_status cmq_load_pop_more(cmq_load *load, load_conn *conn);
CMQ_MUST_CHECK cmq_status cmq_load_popped(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body);
CMQ_MUST_CHECK cmq_status cmq_load_acked(cmq_load *load, const cmq_command *command);

/* ---- cmq_load_offsets.c ---- */

/* Ask for the last offset of each queue, or how far the group is, on any connection to its broker. Flushed. */
typedef enum load_question { LOAD_ASK_LAST, LOAD_ASK_COMMITTED } load_question;
CMQ_MUST_CHECK cmq_status cmq_load_ask_offsets(cmq_load *load, load_question what);
CMQ_MUST_CHECK cmq_status cmq_load_offset_known(cmq_load *load, const load_conn *conn, const cmq_command *command);
/* Messages in queues that the group is not behind, as was last heard. */
uint64_t cmq_load_uncommitted(const cmq_load *load);
/* Hold what was accepted against last offsets and what was consumed. */
void cmq_load_verify(cmq_load *load);

#endif
