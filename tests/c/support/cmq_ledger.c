/* cmq_ledger: see cmq_ledger.h. */
#include "support/cmq_ledger.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "support/cmq_test.h"

#define FOUND_ITEMS 64u
#define ODD_NAME "odd"
#define ODD_ZEROS_MAX 1800u
#define ODD_BYTES_MAX 2404u   /* a tiny store's segment holds several */

/* ---- plans ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static uint64_t roll(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    return mix(*state);
}

static uint32_t below(uint64_t *state, uint32_t bound) { return (uint32_t)(roll(state) % bound); }

/* into = prefix and number; by hand, as plans are made so often that printf would be a fifth of a crash test. */
static void put_name(char *into, const char *prefix, uint32_t number)
{
    char digits[10];
    size_t count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (*prefix != '\0') *into++ = *prefix++;
    while (count > 0) *into++ = digits[--count];
    *into = '\0';
}

void ledger_plan_of(const ledger *of, uint32_t number, ledger_plan *plan_out)
{
    uint64_t group = mix(of->seed + number / LEDGER_GROUP), one = mix(of->seed * 31 + number);
    memset(plan_out, 0, sizeof *plan_out);
    plan_out->topic_number = below(&group, LEDGER_TOPICS);
    put_name(plan_out->topic, "topic-", plan_out->topic_number);
    const uint32_t kind = below(&group, 8);
    plan_out->prepared = of->prepared && kind == 0;
    const bool batch_topic = of->inner && strcmp(plan_out->topic, LEDGER_INNER_TOPIC) == 0;
    plan_out->inner = batch_topic && !plan_out->prepared && kind >= 3;
    plan_out->messages = plan_out->inner ? 1 + (int32_t)below(&one, 5) : 1;
    for (uint32_t i = 0; of->light && kind == 1 && !batch_topic && i < LEDGER_LIGHT; i++)
        plan_out->light[i] = below(&one, 2) == 0;
    plan_out->queue_id = (int32_t)below(&one, LEDGER_QUEUES);
    put_name(plan_out->tag, "t", below(&one, 3));
    if (below(&one, 16) < of->keys_of) plan_out->key_count = 1 + below(&one, 3);
    for (uint32_t i = 0; i < plan_out->key_count; i++)
        put_name(plan_out->key[i], "k", i == 0 ? number : below(&one, 50));
    plan_out->body_bytes =
        LEDGER_BODY_MIN + below(&one, below(&one, 8) == 0 ? of->body_bytes_max : of->body_bytes_max / 8 + 1);
    if (!of->hostile || plan_out->inner || plan_out->light[0] || plan_out->light[1] || below(&one, 4) != 0) return;
    plan_out->content = (ledger_content)(LEDGER_ZEROS_INSIDE + below(&one, LEDGER_BLANKS));
    plan_out->odd_lead = below(&one, 600);
    plan_out->odd_zeros = 1 + below(&one, below(&one, 2) == 0 ? 8 : ODD_ZEROS_MAX);
}

/* From byte 8 on: a record of its own, a head without one, or a blank, over and over. The places that they name are
 * other ones. */
static void fill_with_records(uint8_t *into, ledger_content content, uint32_t bytes)
{
    static const uint8_t body[] = {'b'};
    uint8_t one[CMQ_RECORD_BYTES_MIN + sizeof body + 1] = {0};
    const uint32_t record_bytes = sizeof one;
    cmq_store_u32(one, content == LEDGER_BLANKS ? 256 : record_bytes);
    cmq_store_u32(one + CMQ_RECORD_AT_MAGIC, content == LEDGER_BLANKS ? CMQ_RECORD_MAGIC_BLANK : CMQ_RECORD_MAGIC_V1);
    if (content == LEDGER_RECORDS) {
        cmq_store_u32(one + CMQ_RECORD_AT_BODY_CRC, cmq_crc31(body, sizeof body));
        cmq_store_u32(one + 84, sizeof body);   /* with IPv4 hosts: the body's length, the body, the topic's length, the
                                                 * topic, no properties */
        one[88] = body[0];
        one[89] = 1;
        one[90] = 't';
    }
    const uint32_t step = content == LEDGER_HEADS ? 8 : content == LEDGER_BLANKS ? 16 : record_bytes;
    for (uint32_t at = 8; at < bytes; at += step) memcpy(into + at, one, bytes - at < step ? bytes - at : step);
}

/* The value of the odd property; its length. */
static uint32_t fill_odd(uint8_t into[ODD_BYTES_MAX], const ledger_plan *plan)
{
    memset(into, 'x', plan->odd_lead);
    memset(into + plan->odd_lead, 0, plan->odd_zeros);
    const uint32_t bytes = plan->odd_lead + plan->odd_zeros;
    if (plan->content == LEDGER_ZEROS_BEHIND) return bytes;
    into[bytes] = 'y';
    return bytes + 1;
}

static bool has_odd(const ledger_plan *plan)
{
    return plan->content == LEDGER_ZEROS_INSIDE || plan->content == LEDGER_ZEROS_BEHIND;
}

static void fill_body(uint8_t *into, uint64_t seed, uint32_t number, uint32_t generation, const ledger_plan *plan)
{
    const uint32_t bytes = plan->body_bytes;
    cmq_store_u32(into, number);
    cmq_store_u32(into + 4, generation);
    uint64_t state = mix(seed ^ (uint64_t)number << 32 ^ generation);
    for (uint32_t at = 8; at < bytes; at += 8) {
        uint8_t word[8];
        cmq_store_u64(word, roll(&state));
        memcpy(into + at, word, bytes - at < 8 ? bytes - at : 8);
    }
    if (plan->content >= LEDGER_HEADS) fill_with_records(into, plan->content, bytes);
}

/* ---- entries ---- */

void ledger_init(ledger *of, uint64_t seed)
{
    *of = (ledger){.seed = seed, .keys_of = 8, .body_bytes_max = 400, .generation = 1, .deleting = -1};
}

void ledger_free(ledger *of)
{
    free(of->entries);
    of->entries = NULL;
    of->count = of->capacity = 0;
}

void ledger_copy(ledger *into, const ledger *from)
{
    *into = *from;
    into->entries = malloc((from->count + 1) * sizeof *into->entries);
    CHECK(into->entries != NULL);
    into->capacity = from->count + 1;
    if (from->count > 0) memcpy(into->entries, from->entries, from->count * sizeof *into->entries);
}

uint32_t ledger_group_left(const ledger *of) { return LEDGER_GROUP - of->count % LEDGER_GROUP; }

/* Count the offsets that message `number` takes. */
static void take_offsets(ledger *of, uint32_t number, ledger_entry *entry)
{
    ledger_plan plan;
    ledger_plan_of(of, number, &plan);
    *entry = (ledger_entry){.physical_offset = -1, .generation = of->generation, .light_offset = {-1, -1}};
    if (plan.prepared) return;
    entry->queue_offset = of->next_offset[plan.topic_number][plan.queue_id];
    of->next_offset[plan.topic_number][plan.queue_id] += plan.messages;
    for (uint32_t i = 0; i < LEDGER_LIGHT; i++)
        if (plan.light[i]) entry->light_offset[i] = of->next_light[i]++;
}

void ledger_foresee(ledger *of, uint32_t count)
{
    if (of->count + count > of->capacity) {
        of->capacity = (of->count + count) * 2;
        of->entries = realloc(of->entries, of->capacity * sizeof *of->entries);
        CHECK(of->entries != NULL);
    }
    for (uint32_t i = 0; i < count; i++) take_offsets(of, of->count + i, &of->entries[of->count + i]);
    of->count += count;
}

void ledger_cut(ledger *of, uint32_t count)
{
    while (of->count > count) {
        const ledger_entry *entry = &of->entries[--of->count];
        ledger_plan plan;
        ledger_plan_of(of, of->count, &plan);
        if (plan.prepared) continue;
        of->next_offset[plan.topic_number][plan.queue_id] = entry->queue_offset;
        for (uint32_t i = 0; i < LEDGER_LIGHT; i++)
            if (entry->light_offset[i] >= 0) of->next_light[i] = entry->light_offset[i];
    }
}

/* Is message `number`, of the log, in its topic's queue? */
static bool is_queued(const ledger *of, uint32_t number, const ledger_plan *plan)
{
    return !plan->prepared && number >= of->gone_below[plan->topic_number];
}

static void note_deletion(ledger *of)
{
    of->gone_below[of->deleting] = of->count;
    for (int id = 0; id < LEDGER_QUEUES; id++) of->next_offset[of->deleting][id] = 0;
    of->deleting = -1;
}

cmq_status ledger_delete(ledger *of, cmq_store *store, uint32_t topic)
{
    char text[16];
    bool there = false;
    snprintf(text, sizeof text, "topic-%" PRIu32, topic);
    for (int id = 0; id < LEDGER_QUEUES; id++) there = there || of->next_offset[topic][id] > 0;
    of->deleting = (int32_t)topic;
    const cmq_status status = cmq_store_delete_topic(store, cmq_slice_of_text(text));
    if (status == CMQ_OK) note_deletion(of);
    of->deleting = -1;
    return status == CMQ_ERR_NOT_FOUND && !there ? CMQ_OK : status;
}

/* ---- append ---- */

typedef struct call_memory {
    cmq_slice bodies[LEDGER_GROUP], tags[LEDGER_GROUP], keys[LEDGER_GROUP], properties[LEDGER_GROUP];
    int32_t queue_ids[LEDGER_GROUP];
    int64_t queue_offsets[LEDGER_GROUP], physical_offsets[LEDGER_GROUP];
    char text[LEDGER_GROUP][160];
    uint8_t odd[LEDGER_GROUP][ODD_BYTES_MAX + 8];
    ledger_plan plans[LEDGER_GROUP];
} call_memory;

static cmq_slice copy_text(char **at, const char *text)
{
    const cmq_slice slice = {.data = (const uint8_t *)*at, .bytes = strlen(text)};
    memcpy(*at, text, slice.bytes + 1);
    *at += slice.bytes + 1;
    return slice;
}

static void join_keys(const ledger_plan *plan, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s%s%s%s%s", plan->key[0], plan->key_count > 1 ? " " : "", plan->key[1],
             plan->key_count > 2 ? " " : "", plan->key[2]);
}

static void prepare_message(const ledger *of, uint32_t number, uint32_t i, call_memory *memory, uint8_t *body)
{
    ledger_plan *plan = &memory->plans[i];
    char *at = memory->text[i], text[64];
    ledger_plan_of(of, number, plan);
    fill_body(body, of->seed, number, of->generation, plan);
    memory->bodies[i] = (cmq_slice){.data = body, .bytes = plan->body_bytes};
    memory->tags[i] = copy_text(&at, plan->tag);
    memory->keys[i] = CMQ_SLICE_NONE;
    memory->queue_ids[i] = plan->queue_id;
    if (plan->key_count > 0) {
        join_keys(plan, text, sizeof text);
        memory->keys[i] = copy_text(&at, text);
    }
    if (plan->inner) {
        snprintf(text, sizeof text, "INNER_NUM\001%" PRId32 "\002", plan->messages);
        memory->properties[i] = copy_text(&at, text);
    } else if (plan->light[0] || plan->light[1]) {
        snprintf(text, sizeof text, "INNER_MULTI_DISPATCH\001%s%s%s\002", plan->light[0] ? "%LMQ%0" : "",
                 plan->light[0] && plan->light[1] ? "," : "", plan->light[1] ? "%LMQ%1" : "");
        memory->properties[i] = copy_text(&at, text);
    } else if (has_odd(plan)) {
        uint8_t *odd = memory->odd[i];
        memcpy(odd, ODD_NAME "\001", sizeof ODD_NAME);
        const uint32_t bytes = (uint32_t)sizeof ODD_NAME + fill_odd(odd + sizeof ODD_NAME, plan);
        odd[bytes] = 2;
        memory->properties[i] = (cmq_slice){.data = odd, .bytes = bytes + (plan->content == LEDGER_ZEROS_INSIDE)};
    } else {
        memory->properties[i] = CMQ_SLICE_NONE;
    }
}

/* Compare the store's offsets with the expected ones. A wrong queue offset is no assertion failure: a store that is
 * meant to fail returns one. */
static cmq_status note_offsets(ledger *of, uint32_t first, uint32_t count, const call_memory *memory)
{
    for (uint32_t i = 0; i < count; i++) {
        ledger_entry *entry = &of->entries[first + i];
        if (memory->queue_offsets[i] != entry->queue_offset)
            return cmq_fail(CMQ_ERR_CORRUPT, "message %u got the queue offset %" PRId64 ", its turn was %" PRId64,
                            first + i, memory->queue_offsets[i], entry->queue_offset);
        entry->physical_offset = memory->physical_offsets[i];
        if (first + i > 0) CHECK(entry->physical_offset > of->entries[first + i - 1].physical_offset);
    }
    return CMQ_OK;
}

cmq_status ledger_append(ledger *of, cmq_store *store, uint32_t count, const ledger_call *call,
                         cmq_appended *appended_out)
{
    CHECK(count > 0 && count <= ledger_group_left(of));
    call_memory *memory = malloc(sizeof *memory);
    uint8_t *bodies = malloc((size_t)count * (of->body_bytes_max + LEDGER_BODY_MIN));
    CHECK(memory != NULL && bodies != NULL);
    const uint32_t first = of->count;
    for (uint32_t i = 0; i < count; i++)
        prepare_message(of, first + i, i, memory, bodies + (size_t)i * (of->body_bytes_max + LEDGER_BODY_MIN));
    ledger_foresee(of, count);
    const cmq_append append = {
        .common = {.topic = cmq_slice_of_text(memory->plans[0].topic),
                   .sys_flag = memory->plans[0].prepared ? CMQ_SYS_TRANSACTION_PREPARED
                               : memory->plans[0].inner  ? CMQ_SYS_INNER_BATCH
                                                         : 0},
        .count = count,
        .bodies = {.kind = CMQ_COLUMN_SLICES, .slices = memory->bodies},
        .tags = {.kind = CMQ_COLUMN_SLICES, .slices = memory->tags},
        .keys = {.kind = CMQ_COLUMN_SLICES, .slices = memory->keys},
        .properties = {.kind = of->light || of->inner || of->hostile ? CMQ_COLUMN_SLICES : CMQ_COLUMN_NONE,
                       .slices = memory->properties},
        .queue_ids = memory->queue_ids,
        .no_wait = call->no_wait,
        .one_segment = call->one_segment,
        .queue_offsets_out = memory->queue_offsets,
        .physical_offsets_out = memory->physical_offsets,
    };
    cmq_status status = cmq_store_append(store, &append, appended_out);
    const cmq_status noted = note_offsets(of, first, appended_out->count, memory);
    if (noted != CMQ_OK) status = noted;
    ledger_cut(of, first + appended_out->count);
    free(memory);
    free(bodies);
    return status;
}

/* ---- check ---- */

typedef struct checking {
    const ledger *of;
    cmq_store *store;
    const ledger_expected *expected;
    uint32_t first, end;             /* numbers found in the log: [first, end) */
    int64_t *physical;               /* of message first + i */
    char *why;
    cmq_found items[FOUND_ITEMS];
    cmq_found_batch batch;
} checking;

static bool __attribute__((format(printf, 2, 3))) complain(checking *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->why, LEDGER_WHY_BYTES, format, args);
    va_end(args);
    return false;
}

static bool complain_status(checking *c, const char *what, cmq_status status)
{
    return complain(c, "%s gave %s (%s)", what, cmq_status_name(status), cmq_last_error()->text);
}

/* Parse a record and hold it against the plan of its number, in the generation that wrote it. */
static bool is_whole(const ledger *of, const cmq_found *found, cmq_record_view *view, ledger_stamp *stamp_out,
                     char why[LEDGER_WHY_BYTES])
{
    const long long at = found->physical_offset;
    *stamp_out = (ledger_stamp){.number = UINT32_MAX};
    const cmq_status status =
        cmq_record_parse(found->record, found->record_bytes, found->physical_offset, CMQ_RECORD_CHECK_BODY_CRC, view);
    if (status != CMQ_OK || view->body.bytes < LEDGER_BODY_MIN) {
        snprintf(why, LEDGER_WHY_BYTES, "no whole message lies at %lld: %.200s", at,
                 status == CMQ_OK ? "its body is too short" : cmq_last_error()->text);
        return false;
    }
    *stamp_out =
        (ledger_stamp){.number = cmq_load_u32(view->body.data), .generation = cmq_load_u32(view->body.data + 4)};
    ledger_plan plan;
    ledger_plan_of(of, stamp_out->number, &plan);
    uint8_t body[65536];
    char keys[64];
    cmq_property_known known;
    fill_body(body, of->seed, stamp_out->number, stamp_out->generation, &plan);
    cmq_property_find_known(view->properties, &known);
    join_keys(&plan, keys, sizeof keys);
    const char *differs = NULL;
    if (view->body.bytes != plan.body_bytes || memcmp(view->body.data, body, plan.body_bytes) != 0) differs = "body";
    else if (!cmq_slice_equal(view->topic, cmq_slice_of_text(plan.topic)) || view->queue_id != plan.queue_id)
        differs = "queue";
    else if (!cmq_slice_equal(known.value[CMQ_PROPERTY_TAGS], cmq_slice_of_text(plan.tag)) ||
             !cmq_slice_equal(known.value[CMQ_PROPERTY_KEYS], cmq_slice_of_text(keys)))
        differs = "tags or keys";
    if (differs == NULL && has_odd(&plan)) {
        uint8_t odd[ODD_BYTES_MAX];
        cmq_slice value = CMQ_SLICE_NONE;
        const cmq_slice expected = {.data = odd, .bytes = fill_odd(odd, &plan)};
        if (!cmq_property_find(view->properties, cmq_slice_of_text(ODD_NAME), &value) ||
            !cmq_slice_equal(value, expected))
            differs = "property";
    }
    if (differs != NULL)
        snprintf(why, LEDGER_WHY_BYTES,
                 "message %" PRIu32 " of generation %" PRIu32 " at %lld has another %s than it had", stamp_out->number,
                 stamp_out->generation, at, differs);
    return differs == NULL;
}

bool ledger_is_whole(const ledger *of, const cmq_found *found, ledger_stamp *stamp_out, char why[LEDGER_WHY_BYTES])
{
    cmq_record_view view;
    return is_whole(of, found, &view, stamp_out, why);
}

/* Is the record message `number`, whole? */
static bool check_record(checking *c, const cmq_found *found, uint32_t number, int64_t expected_offset)
{
    cmq_record_view view;
    ledger_stamp stamp;
    const ledger_entry *entry = &c->of->entries[number];
    if (!is_whole(c->of, found, &view, &stamp, c->why)) return false;
    if (stamp.number != number || stamp.generation != entry->generation)
        return complain(c,
                        "the record at %" PRId64 " is not message %" PRIu32 " of generation %" PRIu32 " but %" PRIu32
                        " of %" PRIu32,
                        found->physical_offset, number, entry->generation, stamp.number, stamp.generation);
    if (view.queue_offset != entry->queue_offset)
        return complain(c, "message %" PRIu32 " has queue offset %" PRId64 ", was promised %" PRId64, number,
                        view.queue_offset, entry->queue_offset);
    if (entry->physical_offset >= 0 && entry->physical_offset != found->physical_offset)
        return complain(c, "message %" PRIu32 " lies at %" PRId64 ", was promised %" PRId64, number,
                        found->physical_offset, entry->physical_offset);
    if (expected_offset >= 0 && found->queue_offset != expected_offset)
        return complain(c, "message %" PRIu32 " was read at queue offset %" PRId64 ", expected %" PRId64, number,
                        found->queue_offset, expected_offset);
    return true;
}

static bool number_of(checking *c, const cmq_found *found, uint32_t *number_out)
{
    cmq_record_view view;
    *number_out = UINT32_MAX;
    if (cmq_record_parse(found->record, found->record_bytes, found->physical_offset, 0, &view) != CMQ_OK ||
        view.body.bytes < LEDGER_BODY_MIN)
        return complain(c, "the record at %" PRId64 " is not the ledger's", found->physical_offset);
    *number_out = cmq_load_u32(view.body.data);
    if (*number_out >= c->of->count)
        return complain(c, "message %" PRIu32 " was never handed over, or was taken back", *number_out);
    return true;
}

static bool take_log_record(checking *c, const cmq_found *found)
{
    uint32_t number;
    if (!number_of(c, found, &number)) return false;
    if (c->first == UINT32_MAX) {
        c->first = c->end = number;
        if (number > 0 && found->physical_offset > c->expected->expired_below)
            return complain(c,
                            "the log begins with message %" PRIu32 " at %" PRId64 ", but only what lies below %" PRId64
                            " may have expired",
                            number, found->physical_offset, c->expected->expired_below);
        free(c->physical);
        c->physical = malloc((c->of->count - number) * sizeof *c->physical);
        CHECK(c->physical != NULL);
    }
    if (number != c->end)
        return complain(c, "message %" PRIu32 " follows message %" PRIu32 " in the log", number, c->end - 1);
    if (!check_record(c, found, number, -1)) return false;
    c->physical[number - c->first] = found->physical_offset;
    c->end++;
    return true;
}

/* Read everything that `options` give; `take` looks at each. */
static bool read_through(checking *c, const cmq_read_options *options,
                         bool (*take)(checking *c, const cmq_found *found))
{
    cmq_reader *reader;
    cmq_status status = cmq_reader_open(c->store, options, &reader);
    if (status != CMQ_OK) return complain_status(c, "opening a reader", status);
    bool end = false, fine = true;
    for (int idle = 0; fine && !end && idle < 2;) {
        status = cmq_reader_next(reader, &c->batch, &end);
        if (status != CMQ_OK) fine = complain_status(c, "reading", status);
        idle = c->batch.count == 0 ? idle + 1 : 0;
        for (uint32_t i = 0; fine && i < c->batch.count; i++) fine = take(c, &c->batch.items[i]);
        cmq_found_batch_release(&c->batch);
    }
    cmq_reader_close(reader);
    return fine;
}

/* ---- queues ---- */

static struct {
    uint32_t topic;
    const char *tag;  /* NULL: every message */
    uint32_t next;    /* number from which to look for the next message of the topic */
} walking;

/* Bodies of the ledger's inner batches are no batches: a reader returns them under every tag, so that unfolding reports
 * them. */
static bool walks_by(const ledger *of, uint32_t number, const ledger_plan *plan)
{
    if (plan->topic_number != walking.topic || !is_queued(of, number, plan)) return false;
    return walking.tag == NULL || plan->inner || strcmp(plan->tag, walking.tag) == 0;
}

static bool take_topic_record(checking *c, const cmq_found *found)
{
    ledger_plan plan;
    for (;; walking.next++) {
        if (walking.next >= c->end)
            return complain(c, "topic %" PRIu32 " has a message at %" PRId64 " that the log does not have",
                            walking.topic, found->physical_offset);
        ledger_plan_of(c->of, walking.next, &plan);
        if (walks_by(c->of, walking.next, &plan)) break;
    }
    if (found->count != plan.messages)
        return complain(c, "message %" PRIu32 " was read as %" PRId32 " messages, has %" PRId32, walking.next,
                        found->count, plan.messages);
    if (found->physical_offset != c->physical[walking.next - c->first])
        return complain(c,
                        "queue %" PRId32 " of topic %" PRIu32 " should give message %" PRIu32 " at %" PRId64
                        " but gave what lies at %" PRId64,
                        plan.queue_id, walking.topic, walking.next, c->physical[walking.next - c->first],
                        found->physical_offset);
    const bool fine = check_record(c, found, walking.next, c->of->entries[walking.next].queue_offset);
    walking.next++;
    return fine;
}

static bool check_topic(checking *c, uint32_t topic, const char *tag)
{
    char text[16];
    snprintf(text, sizeof text, "topic-%" PRIu32, topic);
    const cmq_slice name = cmq_slice_of_text(text), tag_name = tag != NULL ? cmq_slice_of_text(tag) : CMQ_SLICE_NONE;
    walking.topic = topic;
    walking.tag = tag;
    walking.next = c->first;
    const cmq_read_options options = {
        .topics = &name, .topic_count = 1, .may_be_missing = true, .tags = &tag_name, .tag_count = tag != NULL ? 1 : 0};
    if (!read_through(c, &options, take_topic_record)) return false;
    for (; walking.next < c->end; walking.next++) {
        ledger_plan plan;
        ledger_plan_of(c->of, walking.next, &plan);
        if (walks_by(c->of, walking.next, &plan))
            return complain(c,
                            "message %" PRIu32 " at %" PRId64 " is in the log but not in its queue %s/%" PRId32 "%s%s",
                            walking.next, c->physical[walking.next - c->first], text, plan.queue_id,
                            tag != NULL ? " under its tag " : "", tag != NULL ? tag : "");
    }
    return true;
}

/* The bounds of each queue, from the messages found. */
static bool check_bounds(checking *c)
{
    int64_t min[LEDGER_TOPICS][LEDGER_QUEUES], max[LEDGER_TOPICS][LEDGER_QUEUES];
    memset(min, -1, sizeof min);
    memset(max, -1, sizeof max);
    for (uint32_t number = c->first; number < c->end; number++) {
        ledger_plan plan;
        ledger_plan_of(c->of, number, &plan);
        if (!is_queued(c->of, number, &plan)) continue;
        const int64_t offset = c->of->entries[number].queue_offset;
        if (min[plan.topic_number][plan.queue_id] < 0) min[plan.topic_number][plan.queue_id] = offset;
        max[plan.topic_number][plan.queue_id] = offset + plan.messages;
    }
    const int64_t confirmed = cmq_store_confirmed(c->store);
    for (uint32_t topic = 0; topic < LEDGER_TOPICS; topic++) {
        for (int32_t id = 0; id < LEDGER_QUEUES; id++) {
            char text[16];
            snprintf(text, sizeof text, "topic-%" PRIu32, topic);
            cmq_queue *queue = cmq_queues_find(cmq_store_queues(c->store), cmq_slice_of_text(text), id);
            if (min[topic][id] < 0 && c->of->gone_below[topic] > 0 && queue != NULL &&
                cmq_queue_max(queue, confirmed) > cmq_queue_min(queue))
                return complain(c, "queue %s/%" PRId32 " was deleted and has [%" PRId64 ", %" PRId64 ")", text, id,
                                cmq_queue_min(queue), cmq_queue_max(queue, confirmed));
            if (min[topic][id] < 0) continue;
            if (queue == NULL) return complain(c, "there is no queue %s/%" PRId32, text, id);
            if (cmq_queue_min(queue) != min[topic][id] || cmq_queue_max(queue, confirmed) != max[topic][id])
                return complain(
                    c,
                    "queue %s/%" PRId32 " says [%" PRId64 ", %" PRId64 "), its messages are [%" PRId64 ", %" PRId64 ")",
                    text, id, cmq_queue_min(queue), cmq_queue_max(queue, confirmed), min[topic][id], max[topic][id]);
        }
    }
    return true;
}

/* ---- light queues, keys ---- */

static bool check_light(checking *c, uint32_t number, const ledger_plan *plan)
{
    for (uint32_t i = 0; i < LEDGER_LIGHT; i++) {
        if (!plan->light[i]) continue;
        const cmq_slice name = cmq_slice_of_text(i == 0 ? "%LMQ%0" : "%LMQ%1");
        const int64_t offset = c->of->entries[number].light_offset[i];
        const cmq_status status = cmq_store_read_offset(c->store, name, 0, offset, &c->batch);
        if (status != CMQ_OK) return complain_status(c, "reading a light queue", status);
        const bool fine = c->batch.items[0].physical_offset == c->physical[number - c->first];
        cmq_found_batch_release(&c->batch);
        if (!fine)
            return complain(c, "%s at %" PRId64 " is not message %" PRIu32, i == 0 ? "%LMQ%0" : "%LMQ%1", offset,
                            number);
    }
    return true;
}

static bool has_key(const ledger_plan *plan, const char *key)
{
    for (uint32_t i = 0; i < plan->key_count; i++)
        if (strcmp(plan->key[i], key) == 0) return true;
    return false;
}

/* The first key of a message is its own; the others are shared by many. */
static bool check_key(checking *c, uint32_t number, const ledger_plan *plan, const char *key)
{
    const cmq_status status =
        cmq_store_find_key(c->store, cmq_slice_of_text(plan->topic), cmq_slice_of_text(key), 0, INT64_MAX, &c->batch);
    if (status != CMQ_OK) return complain_status(c, "finding a key", status);
    bool found = false, fine = true;
    for (uint32_t i = 0; i < c->batch.count && fine; i++) {
        uint32_t other;
        ledger_plan other_plan;
        fine = number_of(c, &c->batch.items[i], &other);
        if (!fine) break;
        ledger_plan_of(c->of, other, &other_plan);
        if (!has_key(&other_plan, key))
            fine = complain(c, "message %" PRIu32 " was found for key %s, which it has not", other, key);
        found = found || other == number;
        for (uint32_t j = 0; j < i; j++)
            if (c->batch.items[j].physical_offset == c->batch.items[i].physical_offset)
                fine = complain(c, "key %s found message %" PRIu32 " twice", key, other);
    }
    /* Shared keys may have more messages than the batch holds. */
    if (fine && !found && c->batch.count < FOUND_ITEMS && !c->expected->index_may_lack &&
        number >= c->of->gone_below[plan->topic_number])
        fine = complain(c, "message %" PRIu32 " at %" PRId64 " is not found by its key %s", number,
                        c->physical[number - c->first], key);
    cmq_found_batch_release(&c->batch);
    return fine;
}

static bool check_derived(checking *c)
{
    for (uint32_t number = c->first; number < c->end; number++) {
        ledger_plan plan;
        ledger_plan_of(c->of, number, &plan);
        if (!check_light(c, number, &plan)) return false;
        for (uint32_t i = 0; i < plan.key_count; i++)
            if (!check_key(c, number, &plan, plan.key[i])) return false;
    }
    return true;
}

bool ledger_check(const ledger *of, cmq_store *store, const ledger_expected *expected, uint32_t *found_out,
                  char why[LEDGER_WHY_BYTES])
{
    checking *c = calloc(1, sizeof *c);
    CHECK(c != NULL);
    *c = (checking){.of = of,
                    .store = store,
                    .expected = expected,
                    .first = UINT32_MAX,
                    .why = why,
                    .batch = {.capacity = FOUND_ITEMS}};
    c->batch.items = c->items;
    bool fine = read_through(c, &(cmq_read_options){0}, take_log_record);
    if (fine && c->first == UINT32_MAX) {
        c->first = c->end = 0;
        /* Nothing at all: then nothing that has not expired may have been acknowledged. */
        if (expected->acknowledged > 0 &&
            of->entries[expected->acknowledged - 1].physical_offset >= expected->expired_below)
            fine = complain(c, "the log is empty, but %" PRIu32 " messages were acknowledged", expected->acknowledged);
        if (fine && expected->expired_below > 0) c->first = c->end = expected->acknowledged;
    }
    if (fine && c->end < expected->acknowledged)
        fine = complain(
            c, "the log ends with message %" PRId64 " at [%" PRId64 ", %" PRId64 "), but %" PRIu32 " were acknowledged",
            (int64_t)c->end - 1, c->end > c->first ? c->physical[c->end - 1 - c->first] : -1,
            cmq_store_confirmed(store), expected->acknowledged);
    if (fine) fine = check_bounds(c);
    for (uint32_t topic = 0; fine && topic < LEDGER_TOPICS; topic++)
        fine = check_topic(c, topic, NULL) && check_topic(c, topic, "t1");
    if (fine) fine = check_derived(c);
    *found_out = c->end;
    free(c->physical);
    free(c);
    return fine;
}

/* Does every queue of the topic restart at 0? Where no message of it is left in the log, this alone shows a deletion.
 * */
static bool begins_anew(cmq_store *store, uint32_t topic)
{
    char text[24];
    bool anew = true;
    snprintf(text, sizeof text, "topic-%" PRIu32, topic);
    for (int32_t id = 0; id < LEDGER_QUEUES && anew; id++) {
        const cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), cmq_slice_of_text(text), id);
        anew = queue == NULL || cmq_queue_max(queue, cmq_store_confirmed(store)) == 0;
    }
    return anew;
}

bool ledger_settle(ledger *of, cmq_store *store, const ledger_expected *expected, uint32_t *found_out,
                   char why[LEDGER_WHY_BYTES])
{
    if (of->deleting < 0) return ledger_check(of, store, expected, found_out, why);
    char whys[2][LEDGER_WHY_BYTES / 2];
    const bool anew = begins_anew(store, (uint32_t)of->deleting);
    ledger after;
    ledger_copy(&after, of);
    note_deletion(&after);
    of->deleting = -1;
    for (int attempt = 0; attempt < 2; attempt++) {
        const bool deleted = anew == (attempt == 0);   /* the likelier first: without messages of the topic both are
                                                        * right */
        if (ledger_check(deleted ? &after : of, store, expected, found_out, why) &&
            (!deleted || *found_out == after.count)) {
            if (deleted) {
                ledger_free(of);
                *of = after;
            } else {
                ledger_free(&after);
            }
            return true;
        }
        snprintf(whys[deleted], sizeof whys[deleted], "%.*s", (int)sizeof whys[deleted] - 1, why);
    }
    ledger_free(&after);
    snprintf(why, LEDGER_WHY_BYTES, "neither as before the deletion (%.160s) nor as after it (%.160s)", whys[false],
             whys[true]);
    return false;
}
