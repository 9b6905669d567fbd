/* fuzz_broker: hostile bytes on a connection of a whole broker: sends, batches, pulls, offsets, pops and whatever else
 * its loops read.
 *
 * An input's first byte says how the rest reaches the broker. Bit 0: as it is; else the first frame's lengths are made
 * to fit the input, so that most inputs get as far as the handler. Bit 1: in two pieces, a turn between them. Bit 2:
 * the connection is reset before the answer is read. Bits 4 to 7: time that passes.
 *
 * Properties: the broker goes on; all that it writes are frames whose headers parse; a message of another client is
 *             stored and read as if nothing had been.
 * Run:        by replay_main.c over corpus/broker and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "base/cmq_bytes.h"
#include "support/cmq_pop_kit.h"
#include "support/cmq_store_kit.h"

#define CONTROL_TOPIC "of_another_client"
enum { CONTROL_EVERY = 256, RESTART_EVERY = 8192, TURNS = 3, ITEMS = 64 };
enum { AS_IT_IS = 1, IN_PIECES = 2, RESET = 4 };

static const char *directory;
static char root[CMQ_PATH_BYTES];
static int64_t control_sent;
static uint64_t inputs;
static uint8_t answers[4 << 20];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- a broker ---- */

static void begin_serving(void)
{
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC,
                          &(cmq_pop_service_options){.merge = inputs / RESTART_EVERY % 2 == 1});
    kit_broker_topic(&kit, CONTROL_TOPIC, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    const cmq_topic_entry batches = {.name = kit_slice("B"),
                                     .read_queues = 1,
                                     .write_queues = 1,
                                     .perm = CMQ_PERM_READ | CMQ_PERM_WRITE,
                                     .kind = CMQ_TOPIC_BATCH};
    CHECK_OK(cmq_tables_put_topic(kit.tables, &batches));
    control_sent = 0;
}

static void clean_up(void)
{
    kit_broker_stop(&kit);
    kit_remove_tree(directory);
}

/* A new broker takes over what the one before left, and after it one with an empty store. */
static void restart(void)
{
    kit_broker_stop(&kit);
    begin_serving();
    kit_broker_pass_pops(&kit, 2000);
    kit_broker_stop(&kit);
    kit_remove_tree(root);
    begin_serving();
}

/* What the loops hand to the control plane, which is not there. */
static void take_control_items(void)
{
    cmq_control_item items[ITEMS];
    for (uint32_t count; (count = cmq_net_control_take(kit.net, items, ITEMS)) > 0;)
        for (uint32_t i = 0; i < count; i++) cmq_control_item_done(kit.net, &items[i]);
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++) kit_broker_turn(&kit);
    take_control_items();
}

static void control(void)
{
    const int client = kit_client(&kit);   /* anew: the time that inputs let pass ends idle connections */
    char body[24];
    snprintf(body, sizeof body, "%" PRId64, control_sent);
    kit_send_message(client, 1, CONTROL_TOPIC, "a", body);
    control_sent++;
    /* inputs that find the topic's name may send there, too */
    const int64_t offset = kit_number(expect(client, 1, OK), "queueOffset");
    CHECK(offset >= control_sent - 1);
    kit_pull(client, 2, CONTROL_TOPIC, offset, 4, 0, "*");
    const kit_answer *answer = expect(client, 2, OK);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK(cmq_slice_equal(view.body, kit_slice(body)));
    close(client);
}

/* ---- one input ---- */

static void put_u32(uint8_t *into, uint32_t value)
{
    for (int i = 0; i < 4; i++) into[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Make the first frame's lengths fit what there is. */
static void fit(uint8_t *frame, size_t bytes)
{
    if (bytes < CMQ_FRAME_PREFIX_BYTES) return;
    const size_t rest = bytes - 4;
    if (cmq_load_u32(frame) > rest) put_u32(frame, (uint32_t)rest);
    const uint32_t whole = cmq_load_u32(frame), header = cmq_load_u32(frame + 4);
    const uint32_t format = header & 0x01000000u;
    if (whole >= 4 && (header & 0xFFFFFFu) > whole - 4) put_u32(frame + 4, format | (whole - 4));
    else put_u32(frame + 4, format | (header & 0xFFFFFFu));
}

static void write_all(int client, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = send(client, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            turn();
            continue;
        }
        if (n < 0) return;   /* the broker has closed the connection */
        data += n;
        bytes -= (size_t)n;
    }
    turn();
}

static void check_frames(size_t bytes)
{
    static uint8_t scratch[1 << 20];
    cmq_frame frame;
    cmq_command command;
    size_t needed;
    for (size_t at = 0; at < bytes; at += frame.bytes) {
        const cmq_slice rest = {.data = answers + at, .bytes = bytes - at};
        const cmq_status status = cmq_frame_next(rest, CMQ_FRAME_BYTES_MAX, &frame, &needed);
        if (status == CMQ_AGAIN) return;   /* the connection was closed in the middle */
        CHECK_OK(status);
        CHECK(frame.header.bytes <= sizeof scratch);
        CHECK_OK(cmq_command_parse(&frame, scratch, sizeof scratch, &command));
        CHECK((command.flag & 1) == 1);
    }
}

static void read_answers(int client)
{
    size_t used = 0;
    for (;;) {
        const ssize_t n = recv(client, answers + used, sizeof answers - used, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        used += (size_t)n;
        if (used == sizeof answers) return;
        kit_broker_turn(&kit);
    }
    check_frames(used);
}

static void run_one(uint8_t how, uint8_t *data, size_t size)
{
    const struct linger at_once = {.l_onoff = 1};
    const size_t first = (how & IN_PIECES) != 0 ? size / 2 : size;
    const int client = kit_client(&kit);
    if ((how & AS_IT_IS) == 0) fit(data, size);
    write_all(client, data, first);
    if (first < size) write_all(client, data + first, size - first);
    CHECK_INT(setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    if ((how & RESET) == 0) {
        if (how >> 4 != 0) kit_broker_pass(&kit, INT64_C(100) << (how >> 4));
        turn();
        read_answers(client);
    }
    close(client);
    turn();
    if (how >> 4 == 15) kit_broker_pass_pops(&kit, 1000);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    if (inputs++ == 0) {
        directory = kit_directory();
        CHECK_OK(cmq_path_join(root, directory, "store"));
        begin_serving();
        CMQ_ASSERT(atexit(clean_up) == 0);
    }
    uint8_t *copy = malloc(size - 1);
    CMQ_ASSERT(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    run_one(data[0], copy, size - 1);
    free(copy);
    if (inputs % CONTROL_EVERY == 0) control();
    if (inputs % RESTART_EVERY == 0) restart();
    return 0;
}
