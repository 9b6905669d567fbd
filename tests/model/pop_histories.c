/* POP against a simple reference: random histories of pops, acks, changes, expiries, stops, kills, power losses and
 * clocks that are set, on virtual time, through a broker's socket, over the store, the timer and the revive as they
 * are. The expectations of the reference are in pop_reference.h.
 *
 * A history is a list of steps, each with random numbers of its own, so that steps can be left out and the others stay
 * the same. One that fails is shrunk to the steps that it needs, and printed with its seed.
 *
 * CMQ_HISTORIES: how many; without it 60, always the same, with CMQ_LONG 30,000. CMQ_SEED repeats a run, CMQ_HISTORY=n
 * one history by its own seed.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pop_reference.h"
#include "store/record/cmq_property.h"
#include "support/cmq_broker_kit.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

enum { POP = 200050, ACK = 200051, CHANGE = 200053, BATCH_ACK = 200151, NOTHING = 210 };
enum { STEPS = 70, STEPS_MAX = 128, REVIVE_QUEUES = 8, DRAINS_MAX = 16 };
enum { SLACK_MS = 12000, TOPIC_SLACK_MS = 120000 };   /* a retry topic that was not made for long: put again, 10 s or 20
                                                       * s later */

#define START_MS INT64_C(1700000000000)
#define REVIVE_TOPIC CMQ_POP_REVIVE_TOPIC_PREFIX "C"

/* ---- a history ---- */

typedef enum step_kind {
    SEND,
    GIVE,
    ORDERED_GIVE,
    ACK_ONE,
    ACK_MANY,
    ACK_ORDERED,
    CHANGE_ONE,
    CHANGE_ORDERED,
    PASS_LITTLE,
    PASS_MUCH,
    PERSIST,
    FLUSH,
    RESTART,
    KILL,
    POWER,
    CLOCK_ON,
    CLOCK_BACK,
    TOPICS,
    STEP_KINDS
} step_kind;

static const char *const step_names[STEP_KINDS] = {
    "send",           "pop",           "ordered pop", "ack",     "batch ack", "ordered ack", "change",
    "ordered change", "pass",          "pass much",   "persist", "flush",     "restart",     "kill",
    "power loss",     "clock forward", "clock back",  "topics"};
/* Of 200. */
static const uint8_t step_weights[STEP_KINDS] = {22, 32, 10, 34, 12, 10, 16, 4, 22, 14, 6, 4, 3, 3, 3, 2, 1, 2};

typedef struct history {
    uint64_t seed;
    bool left_out[STEPS_MAX];
    bool told;                         /* print each step */
} history;

typedef struct dice {
    uint64_t state;
} dice;

static uint64_t throw_dice(dice *of, uint64_t bound)
{
    of->state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t mixed = of->state;
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return (mixed ^ mixed >> 31) % bound;
}

static dice dice_of(uint64_t seed, uint64_t step)
{
    return (dice){.state = seed * UINT64_C(0xD1342543DE82EF95) + step * UINT64_C(0x2545F4914F6CDD1D)};
}

/* ---- the world ---- */

static struct {
    const history *history;
    const char *directory;
    char root[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
    cmq_pop_service_options pops;
    bool sync, merge;
    cmq_file_twin *twin;
    kit_broker kit;
    int client;
    int64_t asked_ns;
    int32_t opaque;
    uint32_t lives;
    bool topics_held;                  /* retry topics that are wanted are not made for now */
    bool imaged;
} world;

static reference now_known, known_then;   /* the reference, and a copy of it when the power may have gone */

static int64_t now(void) { return atomic_load(&world.kit.now_ms); }

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *format, ...)
{
    va_list arguments;
    if (!world.history->told) return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

static void set_clock(int64_t ms)
{
    atomic_store(&world.kit.now_ms, ms);
    atomic_store(&kit_now_ms, ms);
}

static void note_topic(int group)
{
    char name[64];
    reference_topic(&now_known, group, true, name);
    kit_broker_topic(&world.kit, name, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    now_known.retry_made[group] = true;
}

static void commit_offset(const char *group, const char *topic, int32_t queue, int64_t offset)
{
    const cmq_offset_key key = {.group = kit_slice(group), .topic = kit_slice(topic), .queue_id = queue};
    if (offset >= 0) CHECK_OK(cmq_offsets_commit(world.kit.offsets, &key, offset));
}

static int64_t offset_of(const char *group, const char *topic, int32_t queue)
{
    const cmq_offset_key key = {.group = kit_slice(group), .topic = kit_slice(topic), .queue_id = queue};
    return cmq_offsets_query(world.kit.offsets, &key);
}

/* Serve the store at root, with what the control plane wrote down last. A life begins a millisecond after the one
 * before ended, at least. */
static void begin_life(int64_t ended_ms)
{
    const int64_t at_ms = ended_ms + 1;
    cmq_store_options options = kit_options(world.root);
    char topic[64];
    atomic_store(&kit_now_ms, at_ms);
    options.flush = world.sync ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
    if (world.sync) {
        world.twin = cmq_file_twin_create(world.root, now_known.at + world.history->seed);
        options.fs = cmq_file_twin_fs(world.twin);
    }
    kit_broker_serve_pops(&world.kit, kit_open(&options), at_ms, &world.pops);
    kit_broker_topic(&world.kit, REFERENCE_TOPIC, REFERENCE_QUEUES, CMQ_PERM_READ | CMQ_PERM_WRITE);
    for (int g = 0; g < REFERENCE_GROUPS; g++) {
        kit_broker_subscribe(&world.kit, reference_groups[g], REFERENCE_TOPIC, "*", 1);
        if (now_known.retry_made[g]) note_topic(g);
        for (int retry = 0; retry < 2; retry++)
            for (int q = 0; q < REFERENCE_QUEUES; q++) {
                reference_topic(&now_known, g, retry != 0, topic);
                commit_offset(reference_groups[g], topic, q, now_known.persisted.offsets[g][retry][q]);
            }
    }
    for (int q = 0; q < REVIVE_QUEUES; q++)
        commit_offset(CMQ_POP_REVIVE_GROUP, REVIVE_TOPIC, q, now_known.persisted.revive[q]);
    for (uint32_t i = 0; i < now_known.persisted.order_count; i++) {
        cmq_pop_fifo_table_item item = now_known.persisted.orders[i];
        item.group = kit_slice(reference_groups[REFERENCE_ORDERED]);
        item.topic = kit_slice(REFERENCE_TOPIC);
        item.attempt = CMQ_SLICE_NONE;
        CHECK_OK(cmq_pop_fifo_table_restore(world.kit.order, &item));
    }
    world.client = kit_client(&world.kit);
    world.asked_ns = world.kit.now_ns;
}

static void end_life(void)
{
    close(world.client);
    kit_broker_stop(&world.kit);
    cmq_file_twin_close(world.twin);
    world.twin = NULL;
}

/* The control plane's writes of every few seconds: first the log, then the state that rests on it. */
static void write_down(void)
{
    persisted *into = &now_known.persisted;
    char topic[64];
    uint32_t cursor = 0;
    CHECK_OK(cmq_store_flush(world.kit.store));
    for (int g = 0; g < REFERENCE_GROUPS; g++)
        for (int retry = 0; retry < 2; retry++)
            for (int q = 0; q < REFERENCE_QUEUES; q++) {
                reference_topic(&now_known, g, retry != 0, topic);
                into->offsets[g][retry][q] = offset_of(reference_groups[g], topic, q);
            }
    for (int q = 0; q < REVIVE_QUEUES; q++) into->revive[q] = offset_of(CMQ_POP_REVIVE_GROUP, REVIVE_TOPIC, q);
    for (into->order_count = 0; into->order_count < REFERENCE_QUEUES &&
                                cmq_pop_fifo_table_next(world.kit.order, &cursor, &into->orders[into->order_count]);)
        into->order_count++;
    reference_persisted(&now_known);
}

/* ---- looking at retry topics ---- */

static int64_t confirmed_max(const char *topic, int32_t queue)
{
    cmq_queue *found = cmq_queues_find(cmq_store_queues(world.kit.store), kit_slice(topic), queue);
    return found != NULL ? cmq_queue_max(found, cmq_store_confirmed(world.kit.store)) : 0;
}

static void look(void)
{
    char topic[64];
    for (int g = 0; g < REFERENCE_UNORDERED; g++) {
        reference_topic(&now_known, g, true, topic);
        const int64_t max = confirmed_max(topic, 0);
        kit_found *found = kit_found_make(1);
        while (now_known.copy_count[g] < max) {
            cmq_slice first;
            char body[16] = "", first_text[24] = "";
            CHECK_OK(
                cmq_store_read_offset(world.kit.store, kit_slice(topic), 0, now_known.copy_count[g], &found->batch));
            const cmq_record_view view = kit_view(&found->items[0]);
            CHECK(view.body.bytes < sizeof body &&
                  cmq_property_find(view.properties, kit_slice("1ST_POP_TIME"), &first) &&
                  first.bytes < sizeof first_text);
            memcpy(body, view.body.data, view.body.bytes);
            memcpy(first_text, first.data, first.bytes);
            tell("        revived: %s of %s, the %d. time, to offset %d\n", body, reference_groups[g],
                 view.reconsume_times, now_known.copy_count[g]);
            reference_revived(&now_known, g, atoi(body), view.reconsume_times, strtoll(first_text, NULL, 10), now());
            cmq_found_batch_release(&found->batch);
        }
        kit_found_free(found);
    }
}

/* ---- time ---- */

static void flush(void)
{
    CHECK_OK(cmq_store_flush(world.kit.store));
    reference_flushed(&now_known);
}

static void serve_once(void)
{
    uint8_t name[CMQ_POP_TOPIC_BYTES_MAX + 1];
    size_t bytes;
    int64_t due_ms;
    flush();
    CHECK_OK(cmq_timer_step(world.kit.timer, &due_ms));
    CHECK_OK(cmq_pop_service_step(world.kit.pops));
    while (!world.topics_held && cmq_pop_service_take_wanted(world.kit.pops, name, &bytes)) {
        for (int g = 0; g < REFERENCE_UNORDERED; g++) {
            char topic[64];
            reference_topic(&now_known, g, true, topic);
            if (strlen(topic) == bytes && memcmp(topic, name, bytes) == 0) note_topic(g);
        }
        cmq_pop_service_topic_made(world.kit.pops);
    }
    kit_broker_turn(&world.kit);
}

static void pass(dice *of, int64_t ms)
{
    while (ms > 0) {
        const int64_t most = 200 + (int64_t)throw_dice(of, 4000), chunk = ms < most ? ms : most;
        world.kit.now_ns += chunk * INT64_C(1000000);
        set_clock(now() + chunk);
        ms -= chunk;
        /* a group commit takes less than any of these steps */
        for (uint64_t rounds = 1 + throw_dice(of, 4); rounds > 0; rounds--) serve_once();
    }
}

/* ---- requests ---- */

/* A connection that was silent for two minutes is closed. */
static void stay_connected(void)
{
    if (world.kit.now_ns - world.asked_ns > INT64_C(100000000000)) {
        close(world.client);
        world.client = kit_client(&world.kit);
    }
    world.asked_ns = world.kit.now_ns;
}

static const kit_answer *ask(int32_t code, const kit_field *fields, const char *body)
{
    stay_connected();
    kit_request(world.client, code, ++world.opaque, 0, CMQ_HEADER_JSON, fields, body, strlen(body));
    const kit_answer *answer = kit_answer_of(&world.kit, world.client);
    CHECK_INT(answer->command.opaque, world.opaque);
    return answer;
}

/* Report delivered messages to the reference, a queue's at a time. Returns how many there were. */
static uint32_t take_messages(int group, const kit_answer *answer, bool ordered)
{
    given batch = {.group = group,
                   .pop_ms = kit_number(answer, "popTime"),
                   .invisible_ms = kit_number(answer, "invisibleTime"),
                   .revive_queue = (int32_t)kit_number(answer, "reviveQid")};
    uint32_t count = 0;
    for (size_t at = 0; at < answer->body.bytes; count++) {
        cmq_record_view view;
        cmq_slice handle;
        char body[16] = "";
        CHECK_OK(
            cmq_record_parse(answer->body.data + at, answer->body.bytes - at, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
        CHECK(view.body.bytes < sizeof body && cmq_slice_equal(view.topic, kit_slice(REFERENCE_TOPIC)));
        memcpy(body, view.body.data, view.body.bytes);
        const bool retry = cmq_property_find(view.properties, kit_slice("POP_CK"), &handle);
        if (batch.count > 0 && (retry != batch.retry || view.queue_id != batch.queue_id)) {
            reference_given(&now_known, &batch, ordered, now());
            batch.count = 0;
        }
        batch.retry = retry;
        batch.queue_id = view.queue_id;
        batch.offsets[batch.count] = view.queue_offset;
        batch.messages[batch.count++] = atoi(body);
        tell(" %s%s@%d:%" PRId64, body, retry ? "r" : "", view.queue_id, view.queue_offset);
        at += view.record_bytes;
    }
    if (batch.count > 0) reference_given(&now_known, &batch, ordered, now());
    return count;
}

/* Everything that is there must have been looked at by a pop that did not come back full. */
static void check_nothing_is_left(int group, int32_t queue)
{
    char topic[64];
    for (int q = 0; q < REFERENCE_QUEUES; q++)
        if (queue < 0 || queue == q) reference_went_to(&now_known, group, false, q, confirmed_max(REFERENCE_TOPIC, q));
    reference_topic(&now_known, group, true, topic);
    if (now_known.retry_made[group]) reference_went_to(&now_known, group, true, 0, confirmed_max(topic, 0));
}

static uint32_t give(int group, int32_t queue, uint32_t most, int64_t invisible_ms)
{
    const bool ordered = group == REFERENCE_ORDERED;
    char queue_text[12], most_text[12], invisible[24], born[24];
    snprintf(queue_text, sizeof queue_text, "%d", queue);
    snprintf(most_text, sizeof most_text, "%u", most);
    snprintf(invisible, sizeof invisible, "%" PRId64, invisible_ms);
    snprintf(born, sizeof born, "%" PRId64, now());
    const kit_field fields[] = {{"consumerGroup", reference_groups[group]},
                                {"topic", REFERENCE_TOPIC},
                                {"queueId", queue_text},
                                {"maxMsgNums", most_text},
                                {"invisibleTime", invisible},
                                {"pollTime", "0"},
                                {"bornTime", born},
                                {"initMode", "0"},
                                {"order", ordered ? "true" : "false"},
                                {NULL, NULL}};
    look();
    tell("pop by %s of queue %d, %u for %" PRId64 " ms:", reference_groups[group], queue, most, invisible_ms);
    const kit_answer *answer = ask(POP, fields, "");
    if (answer->command.code != NOTHING) CHECK_INT(answer->command.code, 0);
    if (ordered) reference_ordered_look(&now_known, queue);
    const uint32_t count = take_messages(group, answer, ordered);
    tell("\n");
    if (count < most && !ordered) check_nothing_is_left(group, queue);
    if (count == 0 && ordered) {
        int64_t max[REFERENCE_QUEUES];
        for (int q = 0; q < REFERENCE_QUEUES; q++) max[q] = confirmed_max(REFERENCE_TOPIC, q);
        reference_ordered_none(&now_known, queue, now(), max);
    }
    return count;
}

static const char *handle_of(const handed *of, int64_t offset)
{
    static char text[256];
    const int retry = !of->retry ? 0 : world.pops.retry_v2 ? 2 : 1;
    snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " %" PRId64 " %d %d broker-a %d %" PRId64, of->offsets[0],
             of->pop_ms, of->invisible_ms, of->revive_queue, retry, of->queue_id, offset);
    return text;
}

static const kit_answer *settle(int32_t code, const handed *of, uint32_t index, int64_t invisible_ms)
{
    char topic[64], queue[12], offset[24], invisible[24];
    reference_topic(&now_known, of->group, of->retry, topic);
    snprintf(queue, sizeof queue, "%d", of->queue_id);
    snprintf(offset, sizeof offset, "%" PRId64, of->offsets[index]);
    snprintf(invisible, sizeof invisible, "%" PRId64, invisible_ms);
    const kit_field fields[] = {{"consumerGroup", reference_groups[of->group]},
                                {"topic", topic},
                                {"queueId", queue},
                                {"offset", offset},
                                {"extraInfo", handle_of(of, of->offsets[index])},
                                {"invisibleTime", invisible},
                                {NULL, NULL}};
    return ask(code, fields, "");
}

static void ack_one(handed *of, uint32_t index)
{
    tell("ack %d by %s, popped %" PRId64 " ms ago for %" PRId64 "\n", reference_message(&now_known, of, index),
         reference_groups[of->group], now() - of->pop_ms, of->invisible_ms);
    look();
    CHECK_INT(settle(ACK, of, index, 0)->command.code, 0);
    reference_acked(&now_known, of, index, now(), true);
}

static void ack_many(handed *of, uint32_t bits)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t bytes[12] = {0};
    char text[17], body[600];
    const int retry = !of->retry ? 0 : world.pops.retry_v2 ? 2 : 1;
    for (uint32_t i = 0; i < of->count; i++)
        if ((bits >> i & 1) != 0)
            bytes[(of->offsets[i] - of->offsets[0]) / 8] |= (uint8_t)(1u << (of->offsets[i] - of->offsets[0]) % 8);
    for (int i = 0; i < 4; i++) {
        const uint32_t word = (uint32_t)bytes[3 * i] << 16 | (uint32_t)bytes[3 * i + 1] << 8 | bytes[3 * i + 2];
        for (int k = 0; k < 4; k++) text[4 * i + k] = digits[word >> (18 - 6 * k) & 63];
    }
    text[16] = 0;
    snprintf(body, sizeof body,
             "{\"acks\":[{\"b\":\"%s\",\"c\":\"%s\",\"it\":%" PRId64 ",\"pt\":%" PRId64
             ",\"q\":%d,\"r\":\"%d\",\"rq\":%d,\"so\":%" PRId64 ",\"t\":\"" REFERENCE_TOPIC
             "\"}],\"brokerName\":\"broker-a\"}",
             text, reference_groups[of->group], of->invisible_ms, of->pop_ms, of->queue_id, retry, of->revive_queue,
             of->offsets[0]);
    tell("batch ack by %s of", reference_groups[of->group]);
    look();
    CHECK_INT(ask(BATCH_ACK, (const kit_field[]){{NULL, NULL}}, body)->command.code, 0);
    for (uint32_t i = 0; i < of->count; i++) {
        if ((bits >> i & 1) == 0) continue;
        tell(" %d", reference_message(&now_known, of, i));
        reference_acked(&now_known, of, i, now(), true);
    }
    tell(", popped %" PRId64 " ms ago for %" PRId64 "\n", now() - of->pop_ms, of->invisible_ms);
}

static void change_one(handed *of, uint32_t index, int64_t invisible_ms)
{
    tell("change %d by %s, popped %" PRId64 " ms ago for %" PRId64 ", to %" PRId64 "\n",
         reference_message(&now_known, of, index), reference_groups[of->group], now() - of->pop_ms, of->invisible_ms,
         invisible_ms);
    look();
    const kit_answer *answer = settle(CHANGE, of, index, invisible_ms);
    CHECK_INT(answer->command.code, 0);
    CHECK_INT(kit_number(answer, "invisibleTime"), invisible_ms);
    CHECK_INT(kit_number(answer, "reviveQid"), of->revive_queue);
    reference_changed(&now_known, of, index, kit_number(answer, "popTime"), invisible_ms, now());
}

static void change_ordered(handed *of, uint32_t index, int64_t invisible_ms)
{
    tell("ordered change of offset %" PRId64 " of queue %d to %" PRId64 "\n", of->offsets[index], of->queue_id,
         invisible_ms);
    CHECK_INT(settle(CHANGE, of, index, invisible_ms)->command.code, 0);
    reference_ordered_changed(&now_known, of, index, invisible_ms, now());
}

static void ack_ordered(handed *of, uint32_t index)
{
    tell("ordered ack of offset %" PRId64 " of queue %d\n", of->offsets[index], of->queue_id);
    const int32_t code = settle(ACK, of, index, 0)->command.code;
    CHECK_INT(code, reference_ordered_acked(&now_known, of, index));
}

/* ---- ends of a life ---- */

static void next_life(int64_t at_ms)
{
    kit_remove_tree(world.root);
    memcpy(world.root, world.image, sizeof world.root);
    begin_life(at_ms);
    now_known.at++;
    look();
}

static void name_image(void)
{
    char name[24];
    snprintf(name, sizeof name, "life-%u", ++world.lives);
    CHECK_OK(cmq_path_join(world.image, world.directory, name));
}

static void restart(void)
{
    const int64_t at_ms = now();
    look();
    close(world.client);
    CHECK_OK(cmq_pop_service_stop(world.kit.pops));
    write_down();
    reference_stopped(&now_known);
    kit_broker_stop(&world.kit);
    cmq_file_twin_close(world.twin);
    world.twin = NULL;
    begin_life(at_ms);
    look();
}

static void be_killed(void)
{
    const int64_t at_ms = now();
    look();
    name_image();
    kit_copy_tree(world.root, world.image);
    end_life();
    /* Under sync flush what nobody waited for is still in the process's memory. */
    reference_crashed(&now_known, world.sync, world.merge, at_ms);
    next_life(at_ms);
}

static void take_image(void *context, const cmq_twin_call *call)
{
    (void)call;
    if (world.imaged) return;
    cmq_file_twin_crash_image(world.twin, world.image);
    *(int64_t *)context = now();
    world.imaged = true;
}

/* At a random call, while time passes or the control plane writes. */
static void lose_power(dice *of)
{
    int64_t at_ms = now();
    look();
    name_image();
    known_then = now_known;
    world.imaged = false;
    cmq_file_twin_on_call(world.twin, 1 + throw_dice(of, 60), take_image, &at_ms);
    if (throw_dice(of, 3) == 0)
        write_down();
    else
        pass(of, 1 + (int64_t)throw_dice(of, 15000));
    cmq_file_twin_on_call(world.twin, 0, NULL, NULL);
    if (!world.imaged) {
        look();
        known_then = now_known;
        take_image(&at_ms, NULL);
    }
    const bool made[REFERENCE_GROUPS] = {now_known.retry_made[0], now_known.retry_made[1], false};
    end_life();
    now_known = known_then;
    memcpy(now_known.retry_made, made, sizeof made);   /* the control plane's files are not what is tried here */
    reference_crashed(&now_known, true, world.merge, at_ms);
    char topic[64];
    kit_remove_tree(world.root);
    memcpy(world.root, world.image, sizeof world.root);
    begin_life(at_ms);
    for (int g = 0; g < REFERENCE_UNORDERED; g++) {
        reference_topic(&now_known, g, true, topic);
        reference_copies_left(&now_known, g, confirmed_max(topic, 0));
    }
    now_known.at++;
    look();
}

/* ---- steps ---- */

static int64_t any_invisible(dice *of)
{
    static const int64_t times[] = {0, 500, 1000, 3000, 5000, 8000, 15000, 30000, 60000};
    return times[throw_dice(of, sizeof times / sizeof times[0])] + (int64_t)throw_dice(of, 3);
}

static void send_some(dice *of)
{
    for (uint64_t n = 1 + throw_dice(of, 6); n > 0 && now_known.message_count < REFERENCE_MESSAGES_MAX; n--) {
        char body[16];
        const int32_t queue = (int32_t)throw_dice(of, REFERENCE_QUEUES);
        snprintf(body, sizeof body, "%d", now_known.message_count);
        kit_append(world.kit.store, REFERENCE_TOPIC, queue, body, NULL, NULL);
        tell("send %s to queue %d\n", body, queue);
        reference_sent(&now_known, queue);
    }
}

/* One of the last checkpoints: later ones oftener. NULL: none. */
static handed *any_checkpoint(dice *of, bool ordered)
{
    for (int tries = 0; tries < 20 && now_known.checkpoint_count > 0; tries++) {
        const uint64_t window = 1 + throw_dice(of, 24), back = throw_dice(of, window);
        if (back >= now_known.checkpoint_count) continue;
        handed *found = &now_known.checkpoints[now_known.checkpoint_count - 1 - back];
        if ((found->group == REFERENCE_ORDERED) == ordered) return found;
    }
    return NULL;
}

static void take_step(step_kind kind, dice *of)
{
    const bool ordered = kind == ACK_ORDERED || kind == CHANGE_ORDERED;
    handed *any = any_checkpoint(of, ordered);
    const uint32_t index = any != NULL ? (uint32_t)throw_dice(of, any->count) : 0;
    const int32_t queue = (int32_t)throw_dice(of, REFERENCE_QUEUES + 1) - 1;
    if (any == NULL && kind >= ACK_ONE && kind <= CHANGE_ORDERED) return;
    switch (kind) {
    case SEND: send_some(of); return;
    case GIVE:
        give((int)throw_dice(of, REFERENCE_UNORDERED), queue, 1 + (uint32_t)throw_dice(of, REFERENCE_BATCH_MAX),
             any_invisible(of));
        return;
    /* 0: the next pop's */
    case ORDERED_GIVE: give(REFERENCE_ORDERED, queue, 1 + (uint32_t)throw_dice(of, 4), 1 + any_invisible(of)); return;
    case ACK_ONE: ack_one(any, index); return;
    case ACK_MANY: ack_many(any, 1 + (uint32_t)throw_dice(of, (UINT64_C(1) << any->count) - 1)); return;
    case ACK_ORDERED: ack_ordered(any, index); return;
    case CHANGE_ONE: change_one(any, index, any_invisible(of)); return;
    case CHANGE_ORDERED: change_ordered(any, index, any_invisible(of)); return;
    case PASS_LITTLE: pass(of, 1 + (int64_t)throw_dice(of, 2000)); return;
    case PASS_MUCH: pass(of, 1 + (int64_t)throw_dice(of, 25000)); return;
    case PERSIST: write_down(); return;
    case FLUSH: flush(); return;
    case RESTART: restart(); return;
    case KILL: be_killed(); return;
    case POWER: if (world.sync) lose_power(of); return;
    case CLOCK_ON: set_clock(now() + (int64_t)throw_dice(of, 3600000)); return;
    case CLOCK_BACK: reference_set_back(&now_known); set_clock(now() - (int64_t)throw_dice(of, 60000)); return;
    case TOPICS: world.topics_held = !world.topics_held; now_known.puts_again = true; return;
    case STEP_KINDS: break;
    }
}

static step_kind kind_of(dice *of)
{
    uint64_t left = throw_dice(of, 200);
    int kind = 0;
    while (left >= step_weights[kind]) left -= step_weights[kind++];
    return (step_kind)kind;
}

/* ---- the end: everything comes back, and is done with ---- */

static bool drain_group(int group)
{
    bool any = false;
    while (give(group, -1, REFERENCE_BATCH_MAX, 60000) > 0) any = true;
    for (uint32_t i = 0; i < now_known.checkpoint_count; i++) {
        handed *of = &now_known.checkpoints[i];
        if (of->group != group || !of->fresh) continue;
        of->fresh = false;
        for (uint32_t k = 0; k < of->count; k++) group == REFERENCE_ORDERED ? ack_ordered(of, k) : ack_one(of, k);
    }
    return any;
}

static void drain(dice *of)
{
    bool more = true;
    world.topics_held = false;
    for (uint32_t i = 0; i < now_known.checkpoint_count; i++) now_known.checkpoints[i].fresh = false;
    for (int round = 0; more; round++) {
        CHECK(round < DRAINS_MAX);
        const int64_t horizon_ms =
            reference_horizon_ms(&now_known, now()) + (now_known.puts_again ? TOPIC_SLACK_MS : SLACK_MS);
        tell("everything comes back: %" PRId64 " ms\n", horizon_ms - now());
        pass(of, horizon_ms - now());
        for (int rounds = 0; rounds < 4; rounds++) serve_once();
        look();
        reference_all_came_back(&now_known, now());
        more = false;
        for (int g = 0; g < REFERENCE_GROUPS; g++) more |= drain_group(g);
    }
    reference_all_done(&now_known);
}

static void run_history(const history *of)
{
    dice setting = dice_of(of->seed, STEPS_MAX);
    memset(&now_known, 0, sizeof now_known);
    world.history = of;
    world.sync = throw_dice(&setting, 3) == 0;   /* these take longest */
    world.merge = throw_dice(&setting, 2) == 0;
    world.pops = (cmq_pop_service_options){.merge = world.merge, .retry_v2 = throw_dice(&setting, 4) == 0};
    world.pops.retry_v1_off = world.pops.retry_v2;
    reference_begin(&now_known, world.pops.retry_v2);
    CHECK_OK(cmq_path_join(world.root, world.directory, "life-0"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), world.root));
    tell("history %" PRIu64 ": %s, %s, %s\n", of->seed, world.sync ? "sync" : "async",
         world.merge ? "merged" : "stored", world.pops.retry_v2 ? "v2" : "v1");
    begin_life(START_MS);
    for (uint32_t i = 0; i < STEPS; i++) {
        dice step = dice_of(of->seed, i);
        const step_kind kind = kind_of(&step);
        if (of->left_out[i]) continue;
        if (kind > CHANGE_ORDERED) tell("%s (at %" PRId64 ")\n", step_names[kind], now());
        now_known.at++;
        take_step(kind, &step);
        look();
    }
    dice last = dice_of(of->seed, STEPS_MAX + 1);
    drain(&last);
    end_life();
}

/* ---- failing ---- */

/* In a process of its own, as a failed check ends it. */
static bool succeeds(const history *of, bool silent)
{
    int status;
    fflush(NULL);
    static const char *base;
    char directory[CMQ_PATH_BYTES];
    if (base == NULL) base = kit_directory();
    CHECK_OK(cmq_path_join(directory, base, "history"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), directory));
    world.directory = directory;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (silent && freopen("/dev/null", "w", stderr) == NULL) _exit(2);
        run_history(of);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    kit_remove_tree(directory);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Leave out what it also fails without: halves first, then single steps. */
static void shrink(history *of)
{
    for (uint32_t size = STEPS / 2; size > 0; size /= 2)
        for (uint32_t at = 0; at < STEPS; at += size) {
            history shorter = *of;
            for (uint32_t i = at; i < at + size && i < STEPS; i++) shorter.left_out[i] = true;
            if (!succeeds(&shorter, true)) *of = shorter;
        }
}

static void pops_keep_their_promises(void)
{
    const char *one = getenv("CMQ_HISTORY");
    const bool fixed = getenv("CMQ_LONG") == NULL && getenv("CMQ_HISTORIES") == NULL && getenv("CMQ_SEED") == NULL;
    const uint64_t count = one != NULL ? 1 : kit_amount("CMQ_HISTORIES", 60, 30000);
    for (uint64_t i = 0; i < count; i++) {
        history of = {.seed = one != NULL ? strtoull(one, NULL, 10) : fixed ? i : cmq_test_random() >> 16};
        if (succeeds(&of, true)) continue;
        fprintf(stderr,
                "a history fails; CMQ_HISTORY=%" PRIu64 " repeats it. It is shrunk now, to the steps that it needs:\n",
                of.seed);
        shrink(&of);
        of.told = true;
        const bool again = succeeds(&of, false);
        cmq_test_fail(__FILE__, __LINE__, "history %" PRIu64 " (%" PRIu64 " of %" PRIu64 ")%s", of.seed, i + 1, count,
                      again ? ", though not always" : "");
    }
    printf("%" PRIu64 " histories\n", count);
}

CMQ_TEST_MAIN(CMQ_TEST(pops_keep_their_promises))
