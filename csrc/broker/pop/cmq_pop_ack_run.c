/* cmq_pop_ack_run: acks of one turn, of messages that were popped together: one look-up, or one record, for all of
 * them.
 *
 * A client that acknowledges what a pop gave it sends its acks one behind the other. They wait here until one comes
 * that is of another checkpoint, a pop or a change wants to go on, or the turn ends; then they are merged at once, or
 * stored as one record of many acks (bAck), and answered. None is answered before.
 *
 * Source: consumption specification 4.6, 4.7; upstream's AckMessageProcessor, which stores acks of 200151 in this way.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"

typedef struct reply {
    cmq_conn_id conn;
    int32_t opaque, flag;
    cmq_header_format format;
    bool has_opaque;
} reply;

struct cmq_pop_ack_run {
    cmq_pop_acked what;                /* slices point into requests of this turn */
    uint32_t count;
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    reply replies[CMQ_POP_MESSAGES_MAX];
};

cmq_status cmq_pop_ack_run_create(cmq_pop_ack_run **run_out)
{
    *run_out = calloc(1, sizeof **run_out);
    return *run_out != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory for the acks of a turn");
}

void cmq_pop_ack_run_destroy(cmq_pop_ack_run *run) { free(run); }

/* ---- one checkpoint's ---- */

void cmq_pop_ack_wake(cmq_broker_loop *l, const cmq_pop_acked *what)
{
    cmq_pop_notify_rest(l, what->topic, what->group, -1);
    cmq_pop_notify_rest(l, what->topic, what->group, what->queue_id);
}

/* There may be fewer messages in flight than are allowed now. */
static void wake_limited(cmq_broker_loop *l, const cmq_pop_acked *what)
{
    cmq_slice normal;
    if (cmq_pop_retry_of(what->topic) == CMQ_POP_NORMAL)
        cmq_pop_ack_wake(l, what);
    else if (cmq_pop_normal_topic(what->topic, what->group, &normal) == CMQ_OK)
        cmq_pop_notify_revived(l->broker, normal, what->group);
}

bool cmq_pop_ack_is_ours(const cmq_pop_service *pops, const cmq_pop_handle *handle)
{
    return cmq_slice_equal(handle->broker, cmq_slice_of_text(cmq_pop_service_options_of(pops)->broker));
}

static cmq_status CMQ_MUST_CHECK store(cmq_pop_service *pops, const cmq_pop_acked *what, const int64_t *offsets,
                                       uint32_t count)
{
    const cmq_pop_handle *handle = &what->handle;
    const bool is_one = count == 1;
    uint32_t stored;
    const cmq_pop_store_item item = {
        .is_ack = true,
        .revive_queue = handle->revive_queue,
        .ack = {.topic = what->topic,
                .group = what->group,
                .broker = handle->broker,
                .queue_id = what->queue_id,
                .start_offset = handle->start_offset,
                .pop_ms = handle->pop_ms,
                .invisible_ms = handle->invisible_ms,
                .offset = is_one ? offsets[0] : -1},
        .offsets = is_one ? NULL : offsets,
        .count = count,
    };
    return cmq_pop_service_store(pops, &item, 1, &stored);
}

cmq_status cmq_pop_ack_offsets(cmq_broker_loop *l, const cmq_pop_acked *what, const int64_t *offsets, uint32_t count)
{
    cmq_pop_service *pops = l->broker->options.pops;
    cmq_pop_buffer *buffer = cmq_pop_service_buffer(pops);
    const cmq_pop_key key = {.topic = what->topic, .group = what->group, .queue_id = what->queue_id};
    const int64_t pop_ms = what->handle.pop_ms;
    CMQ_ASSERT(count > 0 && count <= CMQ_POP_MESSAGES_MAX);
    /* Another broker's handle is about another broker's checkpoint, which the revive will not find. */
    const bool ours = cmq_pop_ack_is_ours(pops, &what->handle);
    cmq_status status = CMQ_AGAIN;
    if (ours)
        status = cmq_pop_buffer_ack(buffer, &key, what->handle.start_offset, pop_ms, offsets, count,
                                    cmq_pop_service_now_ms(pops));
    if (status == CMQ_AGAIN) {
        status = store(pops, what, offsets, count);
        if (status == CMQ_OK && ours)
            cmq_pop_buffer_acks_stored(buffer, &key, what->handle.start_offset, pop_ms, what->handle.invisible_ms,
                                       offsets, count);
        else if (status == CMQ_OK)
            cmq_pop_buffer_in_flight_done(buffer, &key, what->handle.start_offset, count, pop_ms,
                                          what->handle.invisible_ms);
    }
    if (status == CMQ_OK) cmq_bump(&l->counters.pop_acks, count);
    if (cmq_pop_service_options_of(pops)->in_flight_max > 0) wake_limited(l, what);
    return status;
}

/* ---- a turn's ---- */

static bool is_alike(const cmq_pop_acked *a, const cmq_pop_acked *b)
{
    return a->handle.start_offset == b->handle.start_offset && a->handle.pop_ms == b->handle.pop_ms &&
           a->handle.invisible_ms == b->handle.invisible_ms && a->handle.revive_queue == b->handle.revive_queue &&
           a->queue_id == b->queue_id && cmq_slice_equal(a->topic, b->topic) && cmq_slice_equal(a->group, b->group) &&
           cmq_slice_equal(a->handle.broker, b->handle.broker);
}

void cmq_pop_ack_later(cmq_broker_loop *l, const cmq_conn *conn, const cmq_command *command, const cmq_pop_acked *what,
                       int64_t offset)
{
    cmq_pop_ack_run *run = l->ack_run;
    if (run->count == CMQ_POP_MESSAGES_MAX || (run->count > 0 && !is_alike(&run->what, what))) cmq_pop_ack_run_flush(l);
    if (run->count == 0) run->what = *what;
    run->replies[run->count] = (reply){.conn = cmq_conn_id_of(conn),
                                       .opaque = command->opaque,
                                       .flag = command->flag,
                                       .format = command->format,
                                       .has_opaque = command->has_opaque};
    run->offsets[run->count++] = offset;
}

void cmq_pop_ack_run_flush(cmq_broker_loop *l)
{
    cmq_pop_ack_run *run = l->ack_run;
    char text[CMQ_ERROR_TEXT_BYTES] = "";
    if (run->count == 0) return;
    const cmq_status status = cmq_pop_ack_offsets(l, &run->what, run->offsets, run->count);
    if (status != CMQ_OK) snprintf(text, sizeof text, "%s", cmq_last_error()->text);
    for (uint32_t i = 0; i < run->count; i++) {
        const reply *to = &run->replies[i];
        const cmq_command request = {
            .format = to->format, .opaque = to->opaque, .has_opaque = to->has_opaque, .flag = to->flag};
        cmq_conn *conn = cmq_loop_conn(l->loop, to->conn);
        if (conn == NULL) continue;
        cmq_conn_answer(conn, &request, status == CMQ_OK ? CMQ_RESPONSE_SUCCESS : cmq_broker_code_of(status),
                        status == CMQ_OK ? CMQ_SLICE_NONE : cmq_slice_of_text(text));
    }
    run->count = 0;
}
