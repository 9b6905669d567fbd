/* cmq_timer_kit: a store on a clock that stands still, the timers over it, and messages for them. */
#ifndef CMQ_TIMER_KIT_H
#define CMQ_TIMER_KIT_H

#include <stdio.h>
#include <stdlib.h>

#include "broker/timer/cmq_timer.h"
#include "broker/timer/cmq_timer_log.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define LOG_FILE_BYTES (16 + 10 * CMQ_TIMER_UNIT_BYTES + 7)

static char root[CMQ_PATH_BYTES];
static cmq_file_twin *twin;

static inline cmq_store *open_again(void)
{
    cmq_store_options options = kit_options(root);
    if (twin != NULL) options.fs = cmq_file_twin_fs(twin);
    return kit_open(&options);
}

/* Time begins at a whole second, so that slots are easy to name. */
static inline cmq_store *open_store_in(const char *directory)
{
    kit_set_clock();
    atomic_store(&kit_now_ms, atomic_load(&kit_now_ms) / 100000 * 100000);
    twin = NULL;
    CHECK_OK(cmq_path_join(root, directory, "store"));
    return open_again();
}

static inline cmq_store *open_store(void) { return open_store_in(kit_directory()); }

/* Over files that can be made to fail. */
static inline cmq_store *open_twin_store(void)
{
    kit_set_clock();
    atomic_store(&kit_now_ms, atomic_load(&kit_now_ms) / 100000 * 100000);
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    twin = cmq_file_twin_create(root, cmq_test_seed());
    return open_again();
}

static inline cmq_timer_options timer_options(cmq_store *store)
{
    return (cmq_timer_options){.store = store, .clock = kit_clock(), .manual = true, .log_file_bytes = LOG_FILE_BYTES};
}

static inline cmq_timer *make_timer_with(const cmq_timer_options *options)
{
    cmq_timer *timer;
    CHECK_OK(cmq_timer_create(&timer, options));
    CHECK_OK(cmq_timer_start(timer));
    return timer;
}

static inline cmq_timer *make_timer(cmq_store *store)
{
    const cmq_timer_options options = timer_options(store);
    return make_timer_with(&options);
}

static inline int64_t now(void) { return atomic_load(&kit_now_ms); }
static inline void pass(int64_t ms) { atomic_fetch_add(&kit_now_ms, ms); }

static inline int64_t step(cmq_timer *timer)
{
    int64_t next_due_ms;
    CHECK_OK(cmq_timer_step(timer, &next_due_ms));
    return next_due_ms;
}

static inline cmq_timer_counters counters_of(cmq_timer *timer)
{
    cmq_timer_counters counters;
    cmq_timer_count(timer, &counters);
    return counters;
}

static inline void append_to(cmq_store *store, cmq_slice topic, int32_t queue_id, const char *properties,
                             cmq_slice more, const char *body)
{
    cmq_appended appended;
    const cmq_append append = {.common = {.topic = topic, .queue_id = queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(properties)},
                               .properties_more = {.kind = CMQ_COLUMN_ONE, .one = more}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

/* Send a message as the broker does. */
static inline void send_with(cmq_store *store, const cmq_timer_options *options, const char *topic, int32_t queue_id,
                             int64_t deliver_ms, const char *body, const char *properties)
{
    cmq_timer_parked parked;
    CHECK_OK(cmq_timer_park(options, kit_slice(topic), queue_id, deliver_ms, now(), &parked));
    append_to(store, parked.topic, parked.queue_id, properties, parked.extra, body);
}

static inline void send_at(cmq_store *store, int64_t deliver_ms, const char *body)
{
    const cmq_timer_options options = {0};
    char properties[128];
    snprintf(properties, sizeof properties, "UNIQ_KEY\001%s\002", body);
    send_with(store, &options, "T", 2, deliver_ms, body, properties);
}

/* A deletion of the message of T with this id, whose key is `before` and the id. */
static inline void send_deletion_by(cmq_store *store, int64_t deliver_ms, const char *before, const char *id)
{
    const cmq_timer_options options = {0};
    char properties[128];
    snprintf(properties, sizeof properties, "UNIQ_KEY\001%s\002TIMER_DEL_UNIQKEY\001%s%s\002", id, before, id);
    send_with(store, &options, "T", 0, deliver_ms, "0", properties);
}

/* As a recall makes it. */
static inline void send_deletion(cmq_store *store, int64_t deliver_ms, const char *id)
{
    send_deletion_by(store, deliver_ms, "T+", id);
}

static inline const char *delivered(cmq_store *store)
{
    return cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 2) == NULL ? "" : kit_read_topic(store, "T");
}

static inline void stop(cmq_timer *timer)
{
    CHECK_OK(cmq_timer_stop(timer));
    cmq_timer_destroy(timer);
}

static inline void finish(cmq_timer *timer, cmq_store *store)
{
    stop(timer);
    kit_close(store);
    cmq_file_twin_close(twin);
}

#endif
