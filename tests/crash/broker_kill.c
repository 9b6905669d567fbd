/* kill -9 of a broker under load: a child serves a store on a socket; clients send, many at a time, and record the
 * acknowledged messages; the child is killed at some moment; its store is recovered and must hold every acknowledged
 * message, of this round and of those before, at the acknowledged place. Under either flush mode: an acknowledged
 * message survives the process.
 *
 * CMQ_CRASH_ROUNDS: how many kills; without it a dozen, with CMQ_LONG hundreds. CMQ_SEED repeats the choices, though
 * not the moments.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

enum { CLIENTS = 3, WINDOW = 64, ROUNDS_PER_STORE = 10, ACKNOWLEDGED_MAX = 400000, INPUT_BYTES = 1 << 18 };

typedef struct acknowledged_send {
    int64_t number;          /* its body says it, too */
    int64_t queue_offset;
    int32_t queue_id;
} acknowledged_send;

typedef struct sender {
    int socket;
    int64_t next, answered;  /* numbers of this client: sent up to, answered up to */
    int64_t base;            /* number of its first */
    uint8_t in[INPUT_BYTES];
    size_t used;
} sender;

static acknowledged_send *told;
static uint32_t told_count;
static sender senders[CLIENTS];
static int64_t next_number;

/* ---- the child ---- */

static _Noreturn void serve(const cmq_store_options *options, int pipe_end)
{
    static kit_broker kit;
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, options));
    kit_broker_serve(&kit, store, NULL, true);
    const uint16_t port = cmq_net_port(kit.net, 0);
    if (write(pipe_end, &port, sizeof port) != (ssize_t)sizeof port) _exit(2);
    for (;;) pause();
}

/* ---- clients ---- */

static void send_some(sender *s)
{
    char number[24], queue[12], properties[64];
    while (s->next - s->answered < WINDOW) {
        const int64_t which = s->base + s->next;
        snprintf(number, sizeof number, "%" PRId64, which);
        snprintf(queue, sizeof queue, "%d", (int)(which % 4));
        snprintf(properties, sizeof properties, "TAGS\x01%s\x02UNIQ_KEY\x01%s\x02", queue, number);
        const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "t"}, {"d", "4"},        {"e", queue},
                                    {"f", "0"}, {"g", "1"}, {"h", "0"}, {"i", properties}, {NULL, NULL}};
        if (!kit_try_request(s->socket, 310, (int32_t)s->next, fields, number, strlen(number))) return;
        s->next++;
    }
}

/* False when the broker has gone. */
static bool take_answers(sender *s)
{
    static uint8_t scratch[INPUT_BYTES];
    static kit_answer answer;
    const ssize_t got = recv(s->socket, s->in + s->used, sizeof s->in - s->used, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    s->used += (size_t)got;
    size_t at = 0;
    for (;;) {
        cmq_frame frame;
        size_t needed;
        const cmq_status status = cmq_frame_next((cmq_slice){.data = s->in + at, .bytes = s->used - at},
                                                 CMQ_FRAME_BYTES_MAX, &frame, &needed);
        if (status == CMQ_AGAIN) break;
        CHECK_OK(status);
        CHECK_OK(cmq_command_parse(&frame, scratch, sizeof scratch, &answer.command));
        CHECK_INT(answer.command.code, 0);
        CHECK(told_count < ACKNOWLEDGED_MAX);
        told[told_count++] = (acknowledged_send){
            .number = s->base + answer.command.opaque,
            .queue_offset = kit_number(&answer, "queueOffset"),
            .queue_id = (int32_t)kit_number(&answer, "queueId"),
        };
        s->answered++;
        at += frame.bytes;
    }
    memmove(s->in, s->in + at, s->used - at);
    s->used -= at;
    return true;
}

/* Until `enough` more were acknowledged. */
static void send_until(uint32_t enough)
{
    const uint32_t end = told_count + enough;
    while (told_count < end) {
        struct pollfd ready[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            send_some(&senders[i]);
            ready[i] = (struct pollfd){.fd = senders[i].socket, .events = POLLIN};
        }
        CHECK(poll(ready, CLIENTS, 10000) > 0);
        for (int i = 0; i < CLIENTS; i++) CHECK(ready[i].revents == 0 || take_answers(&senders[i]));
    }
}

/* ---- a round ---- */

static void check_store(const cmq_store_options *options)
{
    cmq_store *store;
    kit_found *found = kit_found_make(1);
    CHECK_OK(cmq_store_open(&store, options));
    for (uint32_t i = 0; i < told_count; i++) {
        char expected[24];
        const int bytes = snprintf(expected, sizeof expected, "%" PRId64, told[i].number);
        cmq_found_batch_release(&found->batch);
        const cmq_status status =
            cmq_store_read_offset(store, cmq_slice_of_text("T"), told[i].queue_id, told[i].queue_offset, &found->batch);
        if (status != CMQ_OK)
            cmq_test_fail(__FILE__, __LINE__, "message %" PRId64 " was acknowledged and is lost: %s", told[i].number,
                          cmq_last_error()->text);
        const cmq_record_view view = kit_view(&found->items[0]);
        CHECK_BYTES(view.body.data, view.body.bytes, expected, (size_t)bytes);
    }
    kit_found_free(found);
    CHECK_OK(cmq_store_close(store));
}

static void one_kill(const cmq_store_options *options)
{
    int ends[2], status;
    uint16_t port;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[0]);
        serve(options, ends[1]);
    }
    close(ends[1]);
    CHECK_INT(read(ends[0], &port, sizeof port), sizeof port);
    for (int i = 0; i < CLIENTS; i++) {
        senders[i] = (sender){.socket = kit_connect(port), .base = next_number};
        next_number += INT64_C(1000000);
    }
    send_until(1 + (uint32_t)cmq_test_random_below(2000));
    CHECK(kill(child, SIGKILL) == 0);
    /* Acknowledgements sent before the kill count, too. */
    for (int i = 0; i < CLIENTS; i++) {
        struct pollfd ready = {.fd = senders[i].socket, .events = POLLIN};
        while (poll(&ready, 1, 10000) > 0 && take_answers(&senders[i])) continue;
        close(senders[i].socket);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        cmq_test_fail(__FILE__, __LINE__, "the broker ended before the kill: %d", status);
    close(ends[0]);
}

static void killed_broker_keeps_acknowledged_messages(void)
{
    const uint32_t rounds = (uint32_t)kit_amount("CMQ_CRASH_ROUNDS", 12, 400);
    const char *directory = kit_directory();
    char root[CMQ_PATH_BYTES] = "";
    cmq_store_options options = {0};
    uint64_t messages = 0;
    told = calloc(ACKNOWLEDGED_MAX, sizeof *told);
    CHECK(told != NULL);
    for (uint32_t round = 0; round < rounds; round++) {
        if (round % ROUNDS_PER_STORE == 0) {
            if (round > 0) kit_remove_tree(root);
            snprintf(root, sizeof root, "%.3000s/store-%" PRIu32, directory, round);
            options = (cmq_store_options){.path = root, .create = true, .background = true, .segment_bytes = 1 << 20,
                                          .flush = cmq_test_random_below(2) == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC};
            messages += told_count;
            told_count = 0;
        }
        one_kill(&options);
        check_store(&options);
    }
    printf("killed: %" PRIu32 " times, %" PRIu64 " messages acknowledged\n", rounds, messages + told_count);
    free(told);
}

CMQ_TEST_MAIN(CMQ_TEST(killed_broker_keeps_acknowledged_messages))
