/* cmq_pop_poll_count: how many pops of a topic, group and queue are held (200055). A loop's waits are its own, so the
 * question goes round.
 *
 *     request -> each loop adds its own -> the loop that was asked -> answer
 *
 * Owns:      a tally, in the list of the one loop that is to see it next. Those of a loop that ends go with it,
 *            unanswered, as its connections do.
 * Threads:   the loops; lists are under the broker's changed_mutex.
 * Source:    consumption specification 4.13; upstream's PollingInfoProcessor.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdlib.h>

#include "base/cmq_assert.h"

#define ANSWER_BYTES 256u

struct cmq_pop_poll_count {
    cmq_pop_poll_count *next;
    cmq_broker_loop *home;             /* which was asked */
    uint32_t loops;                    /* that it was sent to */
    bool is_counted;
    int64_t held;
    cmq_conn_id conn;
    int32_t opaque;
    cmq_header_format format;
    int32_t queue_id;
    size_t topic_bytes, group_bytes;
    uint8_t names[];                   /* the topic, then the group */
};

/* Give it to the loop that is next; to nobody when the one that was asked has ended. */
static void send_on(cmq_broker *broker, cmq_pop_poll_count *tally)
{
    pthread_mutex_lock(&broker->changed_mutex);
    uint32_t at = tally->loops;
    tally->is_counted = at >= broker->loop_count;
    if (tally->is_counted)
        for (at = 0; at < broker->loop_count && broker->loops[at] != tally->home; at++) continue;
    if (at < broker->loop_count) {
        cmq_broker_loop *to = broker->loops[at];
        tally->loops++;
        tally->next = to->pop_tallies;
        to->pop_tallies = tally;
        cmq_loop_wake(to->loop);
    } else {
        free(tally);
    }
    pthread_mutex_unlock(&broker->changed_mutex);
}

static void answer(cmq_broker_loop *l, const cmq_pop_poll_count *tally)
{
    cmq_conn *conn = cmq_loop_conn(l->loop, tally->conn);
    uint8_t *out = conn != NULL ? cmq_conn_reserve(conn, ANSWER_BYTES) : NULL;
    cmq_command_writer writer;
    cmq_conn_kept_done(l->loop);
    if (out == NULL) return;
    cmq_command_begin(&writer, out, ANSWER_BYTES, tally->format, CMQ_RESPONSE_SUCCESS, tally->opaque,
                      CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
    cmq_command_add_i64(&writer, CMQ_NAME("pollingNum"), tally->held);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= ANSWER_BYTES);
    cmq_conn_commit(conn, used);
}

void cmq_pop_poll_count_go_on(cmq_broker_loop *l)
{
    pthread_mutex_lock(&l->broker->changed_mutex);
    cmq_pop_poll_count *first = l->pop_tallies;
    l->pop_tallies = NULL;
    pthread_mutex_unlock(&l->broker->changed_mutex);
    for (cmq_pop_poll_count *tally = first, *next; tally != NULL; tally = next) {
        next = tally->next;
        if (tally->is_counted) {
            answer(l, tally);
            free(tally);
        } else {
            const cmq_slice topic = {.data = tally->names, .bytes = tally->topic_bytes},
                            group = {.data = tally->names + tally->topic_bytes, .bytes = tally->group_bytes};
            tally->held += cmq_pop_waits_count_at(l->pop_waits, topic, group, tally->queue_id);
            send_on(l->broker, tally);
        }
    }
}

void cmq_pop_poll_count_free(cmq_pop_poll_count *first)
{
    for (cmq_pop_poll_count *next; first != NULL; first = next) {
        next = first->next;
        free(first);
    }
}

cmq_net_verdict cmq_pop_poll_count_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again)
{
    cmq_pop_header header;
    cmq_pop_asked a;
    cmq_net_verdict verdict;
    if (!cmq_pop_asked_begin(l, conn, command, again, &header, &a, &verdict)) return verdict;
    if (a.oneway || !cmq_pop_check(l, &a)) return CMQ_NET_DONE;
    const cmq_slice topic = a.wait.topic, group = a.wait.group;
    cmq_pop_poll_count *tally = malloc(sizeof *tally + topic.bytes + group.bytes);
    if (tally == NULL) {
        cmq_pop_refuse(l, &a, CMQ_RESPONSE_SYSTEM_ERROR, "no memory for counting held pops");
        return CMQ_NET_DONE;
    }
    *tally = (cmq_pop_poll_count){.home = l,
                                  .conn = a.wait.conn,
                                  .opaque = a.wait.opaque,
                                  .format = a.wait.format,
                                  .queue_id = a.wait.queue_id,
                                  .topic_bytes = topic.bytes,
                                  .group_bytes = group.bytes};
    memcpy(tally->names, topic.data, topic.bytes);
    memcpy(tally->names + topic.bytes, group.data, group.bytes);
    cmq_conn_keep(conn);
    send_on(l->broker, tally);
    return CMQ_NET_DONE;
}
