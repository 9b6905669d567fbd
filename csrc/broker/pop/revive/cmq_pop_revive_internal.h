/* cmq_pop_revive_internal: private to the revive service's files: the service, and one revive queue. */
#ifndef CMQ_POP_REVIVE_INTERNAL_H
#define CMQ_POP_REVIVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "broker/delay/cmq_delay_record.h"
#include "broker/pop/revive/cmq_pop_ahead.h"
#include "broker/pop/revive/cmq_pop_revive.h"
#include "broker/pop/revive/cmq_pop_unfinished.h"
#include "store/follow/cmq_watch.h"

#define CMQ_POP_REVIVE_BATCH 256u    /* records read at once */
#define CMQ_POP_WANTED_MAX 64u
#define CMQ_POP_WAITED_MAX 16u       /* beyond, none is waited for until one of them is made */

/* A retry topic that was not there when it was needed. */
typedef struct cmq_pop_waited_topic {
    uint64_t hash;                 /* of its name */
    int64_t since_ms;              /* 0: none */
} cmq_pop_waited_topic;

/* One revive queue. */
typedef struct cmq_pop_revive_queue {
    cmq_pop_unfinished *unfinished;
    const cmq_queue *queue;        /* of which `next` and `unfinished` tell; NULL: not seen yet. One that is deleted and
                                    * made again is another */
    int64_t next;                  /* to be read; -1: not begun */
    int64_t late;                  /* the last checkpoint that came when what was due after it had come; -1: none */
    int64_t end_ms;                /* the latest deliver time that was read; 0: none since the table was empty */
    cmq_pop_waited_topic waited[CMQ_POP_WAITED_MAX];   /* retry topics that are not there, or were not */
} cmq_pop_revive_queue;

typedef struct cmq_pop_wanted {
    size_t bytes;
    uint8_t name[CMQ_POP_TOPIC_BYTES_MAX];
} cmq_pop_wanted;

struct cmq_pop_revive {
    cmq_pop_revive_options options;
    char *revive_topic, *broker;
    cmq_store *store;
    cmq_timer_options timer;
    cmq_clock clock;
    cmq_watcher *watcher;
    cmq_tables_reader *tables;
    int event_fd;
    pthread_t thread;
    bool system_clock, started;
    _Atomic bool stopping;
    pthread_mutex_t mutex;         /* counters and wanted */
    cmq_pop_revive_counters counters;
    uint32_t wanted_count;
    cmq_pop_wanted wanted[CMQ_POP_WANTED_MAX];

    /* The thread's, or who calls step. */
    cmq_pop_revive_counters seen;  /* since the last merge into counters */
    cmq_unit units[CMQ_POP_REVIVE_BATCH];
    cmq_found items[CMQ_POP_REVIVE_BATCH];
    cmq_pop_ahead ahead;           /* of the checkpoint at hand */
    cmq_pop_room room;
    cmq_pop_record_room record_room;
    uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES + 64];
    cmq_pop_revive_queue states[];
};

/* Put the unacknowledged messages of checkpoint `index` into its retry topic, or again into the revive log; *end is
 * then the place up to which the log must become durable. Finished messages are marked, whatever the status. CMQ_AGAIN:
 * its retry topic is being made. */
cmq_status CMQ_MUST_CHECK cmq_pop_revive_put(cmq_pop_revive *revive, cmq_pop_revive_queue *queue, uint32_t index,
                                             int64_t now_ms, int64_t *end);

#endif
