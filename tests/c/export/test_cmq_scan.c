/* Tests csrc/export/: every column in every form against the records themselves, the limits of batches, damage, keys,
 * and what lives how long.
 *
 * Threads: yes: a batch is released in another thread, after the store is closed.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export/cmq_scan_internal.h"
#include "store/record/cmq_message_id.h"
#include "store/record/cmq_wire_batch.h"
#include "support/cmq_store_kit.h"

static cmq_store *store;
static char root[CMQ_PATH_BYTES];

static void start(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    store = kit_open_at(root);
}

/* ---- reading arrays ---- */

static bool is_valid(const struct ArrowArray *array, int64_t row)
{
    const uint8_t *bits = array->buffers[0];
    return bits == NULL || (bits[row / 8] >> row % 8 & 1) != 0;
}

static cmq_slice string_at(const struct ArrowArray *array, int64_t row)
{
    const int32_t *offsets = array->buffers[1];
    CHECK(offsets[row] >= 0 && offsets[row] <= offsets[row + 1]);
    return (cmq_slice){.data = (const uint8_t *)array->buffers[2] + offsets[row],
                       .bytes = (size_t)(offsets[row + 1] - offsets[row])};
}

static cmq_slice view_at(const struct ArrowArray *array, int64_t row)
{
    const uint8_t *view = (const uint8_t *)array->buffers[1] + 16 * row;
    int32_t words[4];
    memcpy(words, view, sizeof words);
    CHECK(words[0] >= 0);
    if (words[0] <= 12) {
        for (int i = words[0]; i < 12; i++) CHECK_INT(view[4 + i], 0);
        return (cmq_slice){.data = view + 4, .bytes = (size_t)words[0]};
    }
    const int64_t variadic = array->n_buffers - 3;
    CHECK(words[2] >= 0 && words[2] < variadic && words[3] >= 0);
    const int64_t *sizes = array->buffers[array->n_buffers - 1];
    CHECK((int64_t)words[3] + words[0] <= sizes[words[2]]);
    const uint8_t *data = (const uint8_t *)array->buffers[2 + words[2]] + words[3];
    CHECK(memcmp(data, view + 4, 4) == 0);
    return (cmq_slice){.data = data, .bytes = (size_t)words[0]};
}

/* A text in whatever form; bytes SIZE_MAX: null. */
static cmq_slice text_at(const struct ArrowArray *array, int64_t row)
{
    if (!is_valid(array, row)) return (cmq_slice){.bytes = SIZE_MAX};
    if (array->dictionary == NULL) return string_at(array, row);
    const int32_t code = ((const int32_t *)array->buffers[1])[row];
    CHECK(code >= 0 && code < array->dictionary->length);
    return string_at(array->dictionary, code);
}

static int64_t long_at(const struct ArrowArray *array, int64_t row)
{
    return ((const int64_t *)array->buffers[1])[row];
}
static int32_t int_at(const struct ArrowArray *array, int64_t row) { return ((const int32_t *)array->buffers[1])[row]; }

static bool same(cmq_slice text, const char *expected)
{
    if (expected == NULL) return text.bytes == SIZE_MAX;
    return text.bytes != SIZE_MAX && cmq_slice_equal(text, cmq_slice_of_text(expected));
}

/* ---- scans ---- */

static const cmq_scan_column body_alone[] = {{.kind = CMQ_SCAN_BODY, .name = "body"}};
static const cmq_scan_column body_plain[] = {{.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "body"}};

static cmq_scan *open_scan(cmq_scan_options options, const char *topic)
{
    const cmq_slice name = cmq_slice_of_text(topic != NULL ? topic : "");
    cmq_scan *scan;
    if (topic != NULL) options.read.topics = &name;
    if (topic != NULL) options.read.topic_count = 1;
    CHECK_OK(cmq_scan_open(store, &options, &scan));
    return scan;
}

/* The bodies joined by spaces, a bar between batches; "!" for damage. Static memory. */
static const char *bodies_of(cmq_scan *scan, bool plain)
{
    static char text[65536];
    size_t used = 0;
    text[0] = '\0';
    for (bool end = false; !end;) {
        struct ArrowArray batch;
        const cmq_status status = cmq_scan_next(scan, &batch, &end);
        if (status == CMQ_ERR_CORRUPT) {
            used += (size_t)snprintf(text + used, sizeof text - used, "! ");
            continue;
        }
        CHECK_OK(status);
        if (batch.release == NULL) break;
        CHECK(batch.length > 0 && batch.n_children == 1);
        for (int64_t i = 0; i < batch.length; i++) {
            const cmq_slice body = plain ? string_at(batch.children[0], i) : view_at(batch.children[0], i);
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%.*s ", (int)body.bytes, (const char *)body.data);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "| ");
        batch.release(&batch);
        CHECK(batch.release == NULL);
    }
    cmq_scan_close(scan);
    if (used > 0) text[used - 1] = '\0';
    return text;
}

/* The same without the bars. */
static const char *rows_of(cmq_scan_options options, const char *topic)
{
    static char text[65536];
    options.columns = body_alone;
    options.column_count = 1;
    const char *from = bodies_of(open_scan(options, topic), false);
    size_t used = 0;
    for (; *from != '\0'; from++) {
        if (from[0] != '|') text[used++] = *from;
        else if (from[1] == ' ') from++;
    }
    while (used > 0 && text[used - 1] == ' ') used--;
    text[used] = '\0';
    return text;
}

/* ---- every column ---- */

enum {
    C_TOPIC,
    C_TOPIC_D,
    C_QUEUE,
    C_OFFSET,
    C_VIEW,
    C_PLAIN,
    C_BYTES,
    C_TAGS,
    C_TAGS_D,
    C_KEYS,
    C_UNIQUE,
    C_BORN,
    C_BORN_US,
    C_STORE,
    C_MAP,
    C_PROP,
    C_PROP_D,
    C_FLAG,
    C_SYS,
    C_RECONSUME,
    C_ID,
    C_PHY,
    C_BORN_HOST,
    C_STORE_HOST,
    C_CRC,
    C_PREPARED,
    C_CONSTANT,
    C_COUNT
};

static const cmq_scan_column every[C_COUNT] = {
    [C_TOPIC] = {.kind = CMQ_SCAN_TOPIC, .name = "topic"},
    [C_TOPIC_D] = {.kind = CMQ_SCAN_TOPIC, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "topic_d"},
    [C_QUEUE] = {.kind = CMQ_SCAN_QUEUE_ID, .name = "queue"},
    [C_OFFSET] = {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "offset"},
    [C_VIEW] = {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_VIEW, .name = "view"},
    [C_PLAIN] = {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "plain"},
    [C_BYTES] = {.kind = CMQ_SCAN_BODY_BYTES, .name = "bytes"},
    [C_TAGS] = {.kind = CMQ_SCAN_TAGS, .name = "tags"},
    [C_TAGS_D] = {.kind = CMQ_SCAN_TAGS, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "tags_d"},
    [C_KEYS] = {.kind = CMQ_SCAN_KEYS, .name = "keys"},
    [C_UNIQUE] = {.kind = CMQ_SCAN_UNIQUE_ID, .name = "unique"},
    [C_BORN] = {.kind = CMQ_SCAN_BORN_TIMESTAMP, .form = CMQ_SCAN_FORM_MS, .name = "born"},
    [C_BORN_US] = {.kind = CMQ_SCAN_BORN_TIMESTAMP, .form = CMQ_SCAN_FORM_US, .name = "born_us"},
    [C_STORE] = {.kind = CMQ_SCAN_STORE_TIMESTAMP, .name = "store"},
    [C_MAP] = {.kind = CMQ_SCAN_PROPERTIES, .name = "map"},
    [C_PROP] = {.kind = CMQ_SCAN_PROPERTY, .name = "prop", .property = "p"},
    [C_PROP_D] = {.kind = CMQ_SCAN_PROPERTY, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "prop_d", .property = "p"},
    [C_FLAG] = {.kind = CMQ_SCAN_FLAG, .name = "flag"},
    [C_SYS] = {.kind = CMQ_SCAN_SYS_FLAG, .name = "sys"},
    [C_RECONSUME] = {.kind = CMQ_SCAN_RECONSUME_TIMES, .name = "reconsume"},
    [C_ID] = {.kind = CMQ_SCAN_MESSAGE_ID, .name = "id"},
    [C_PHY] = {.kind = CMQ_SCAN_PHYSICAL_OFFSET, .name = "phy"},
    [C_BORN_HOST] = {.kind = CMQ_SCAN_BORN_HOST, .name = "born_host"},
    [C_STORE_HOST] = {.kind = CMQ_SCAN_STORE_HOST, .name = "store_host"},
    [C_CRC] = {.kind = CMQ_SCAN_BODY_CRC, .name = "crc"},
    [C_PREPARED] = {.kind = CMQ_SCAN_PREPARED_OFFSET, .name = "prepared"},
    [C_CONSTANT] = {.kind = CMQ_SCAN_CONSTANT, .name = "constant", .property = "broker-\xC3\xA4"},
};

#define MESSAGES 400

static const uint32_t body_sizes[] = {0, 1, 12, 13, 100, 700};

/* Message `number`: everything about it differs. Every third host is IPv6, every seventh property is no UTF-8, every
 * fifth comes twice. */
static void append_message(int number)
{
    static uint8_t body[1024];
    char tags[32], keys[32], properties[128];
    const uint32_t bytes = body_sizes[number % 6];
    for (uint32_t i = 0; i < bytes; i++) body[i] = (uint8_t)(number * 7 + (int)i);
    cmq_append append = {.count = 1};
    append.common.topic = cmq_slice_of_text(number % 4 == 3 ? "B" : "A");
    append.common.queue_id = number % 3;
    append.common.flag = -number;
    append.common.reconsume_times = number + 3;
    append.common.prepared_transaction_offset = 1000000007LL * number;
    append.common.born_timestamp_ms = 1600000000000LL + number;
    append.common.born_host = (cmq_record_host){
        .address = {10, 0, (uint8_t)(number >> 8), (uint8_t)number}, .port = 40000 + number, .ipv6 = number % 3 == 0};
    append.common.store_host = (cmq_record_host){
        .address = {127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}, .port = 10911, .ipv6 = number % 5 == 0};
    append.bodies = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = bytes}};
    snprintf(tags, sizeof tags, "tag%d", number % 5);
    snprintf(keys, sizeof keys, "k%d group%d", number, number % 9);
    if (number % 2 == 0) append.tags = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(tags)};
    if (number % 3 != 1) append.keys = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(keys)};
    snprintf(properties, sizeof properties, "%sUNIQ_KEY\001u%d\002%s", number % 7 == 0 ? "bad\001x\x80y\002" : "",
             number,
             number % 5 == 0   ? "p\001first\002q\0011\002p\001second\002"
             : number % 5 == 1 ? "p\001once\002"
                               : "");
    append.properties = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(properties)};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    atomic_fetch_add(&kit_now_ms, 10);
}

static void check_number_columns(struct ArrowArray **columns, int64_t i, int number, const cmq_record_view *view)
{
    CHECK_INT(int_at(columns[C_QUEUE], i), number % 3);
    CHECK_INT(long_at(columns[C_OFFSET], i), view->queue_offset);
    CHECK_INT(long_at(columns[C_BYTES], i), body_sizes[number % 6]);
    CHECK_INT(long_at(columns[C_BORN], i), 1600000000000LL + number);
    CHECK_INT(long_at(columns[C_BORN_US], i), (1600000000000LL + number) * 1000);
    CHECK_INT(long_at(columns[C_STORE], i), view->store_timestamp_ms);
    CHECK_INT(int_at(columns[C_FLAG], i), -number);
    CHECK_INT(int_at(columns[C_SYS], i), view->sys_flag);
    CHECK_INT(int_at(columns[C_RECONSUME], i), number + 3);
    CHECK_INT(long_at(columns[C_PHY], i), view->physical_offset);
    CHECK_INT(int_at(columns[C_CRC], i), (int32_t)view->body_crc);
    CHECK_INT(long_at(columns[C_PREPARED], i), 1000000007LL * number);
}

static void check_map(const struct ArrowArray *map, int64_t i, int number, const char *tags, const char *keys)
{
    const struct ArrowArray *names = map->children[0]->children[0], *values = map->children[0]->children[1];
    const int32_t *offsets = map->buffers[1];
    char pairs[256], expected[256];
    size_t used = 0;
    for (int32_t at = offsets[i]; at < offsets[i + 1]; at++) {
        const cmq_slice name = string_at(names, at), value = string_at(values, at);
        used += (size_t)snprintf(pairs + used, sizeof pairs - used, "%.*s=%.*s,", (int)name.bytes,
                                 (const char *)name.data, (int)value.bytes, (const char *)value.data);
    }
    pairs[used] = '\0';
    used = 0;
    if (tags != NULL) used += (size_t)snprintf(expected + used, sizeof expected - used, "TAGS=%s,", tags);
    if (keys != NULL) used += (size_t)snprintf(expected + used, sizeof expected - used, "KEYS=%s,", keys);
    snprintf(expected + used, sizeof expected - used, "%sUNIQ_KEY=u%d,%s", number % 7 == 0 ? "bad=x\xEF\xBF\xBDy," : "",
             number,
             number % 5 == 0   ? "p=second,q=1,"
             : number % 5 == 1 ? "p=once,"
                               : "");
    CHECK_TEXT(pairs, expected);
}

static void format_host(const cmq_record_host *host, char into[64])
{
    char address[INET6_ADDRSTRLEN];
    CHECK(inet_ntop(host->ipv6 ? AF_INET6 : AF_INET, host->address, address, sizeof address) != NULL);
    snprintf(into, 64, host->ipv6 ? "[%s]:%d" : "%s:%d", address, host->port);
}

static void check_text_columns(struct ArrowArray **columns, int64_t i, int number, const cmq_record_view *view)
{
    char tags[32], keys[32], unique[32], host[64], id[CMQ_MESSAGE_ID_BYTES_MAX + 1];
    snprintf(tags, sizeof tags, "tag%d", number % 5);
    snprintf(keys, sizeof keys, "k%d group%d", number, number % 9);
    snprintf(unique, sizeof unique, "u%d", number);
    const char *topic = number % 4 == 3 ? "B" : "A", *tag = number % 2 == 0 ? tags : NULL,
               *key = number % 3 != 1 ? keys : NULL;
    const char *property = number % 5 == 0 ? "second" : number % 5 == 1 ? "once" : NULL;
    CHECK(same(text_at(columns[C_TOPIC], i), topic) && same(text_at(columns[C_TOPIC_D], i), topic));
    CHECK(same(text_at(columns[C_TAGS], i), tag) && same(text_at(columns[C_TAGS_D], i), tag));
    CHECK(same(text_at(columns[C_KEYS], i), key) && same(text_at(columns[C_UNIQUE], i), unique));
    CHECK(same(text_at(columns[C_PROP], i), property) && same(text_at(columns[C_PROP_D], i), property));
    CHECK(same(text_at(columns[C_CONSTANT], i), "broker-\xC3\xA4"));
    id[cmq_message_id_format(&view->store_host, view->physical_offset, id)] = '\0';
    CHECK(same(text_at(columns[C_ID], i), id));
    format_host(&view->born_host, host);
    CHECK(same(text_at(columns[C_BORN_HOST], i), host));
    format_host(&view->store_host, host);
    CHECK(same(text_at(columns[C_STORE_HOST], i), host));
    check_map(columns[C_MAP], i, number, tag, key);
}

/* The record as the log has it; `lives` says where in the map. */
static cmq_record_view record_at(int64_t phy, cmq_found *item, cmq_found_batch *batch)
{
    *batch = (cmq_found_batch){.items = item, .capacity = 1};
    CHECK_OK(cmq_store_read_physical(store, phy, batch));
    return kit_view(item);
}

static void check_batch(const struct ArrowArray *batch, int *number)
{
    CHECK(batch->n_children == C_COUNT && batch->null_count == 0 && batch->n_buffers == 1 && batch->buffers[0] == NULL);
    for (int64_t i = 0; i < batch->length; i++, ++*number) {
        struct ArrowArray **columns = batch->children;
        cmq_found item;
        cmq_found_batch found;
        const cmq_record_view view = record_at(long_at(columns[C_PHY], i), &item, &found);
        const cmq_slice body = view_at(columns[C_VIEW], i);
        CHECK(cmq_slice_equal(body, view.body) && cmq_slice_equal(string_at(columns[C_PLAIN], i), view.body));
        CHECK(body.bytes <= 12 || body.data == view.body.data);   /* where it lies in the log: nothing was copied */
        check_number_columns(columns, i, *number, &view);
        check_text_columns(columns, i, *number, &view);
        cmq_found_batch_release(&found);
    }
}

static void every_column(void)
{
    static const uint32_t batch_rows[] = {1, 7, 8, 100, 0};
    start();
    for (int i = 0; i < MESSAGES; i++) append_message(i);
    const cmq_slice topics[] = {kit_slice("B"), kit_slice("A")};
    for (int round = 0; round < 10; round++) {
        cmq_scan_options options = {.columns = every, .column_count = C_COUNT, .batch_rows = batch_rows[round % 5]};
        if (round >= 5) options.read.topics = topics;
        if (round >= 5) options.read.topic_count = 2;
        cmq_scan *scan = open_scan(options, NULL);
        int number = 0;
        for (;;) {
            struct ArrowArray batch;
            bool end;
            CHECK_OK(cmq_scan_next(scan, &batch, &end));
            if (batch.release == NULL) break;
            CHECK(options.batch_rows == 0 || batch.length <= options.batch_rows);
            check_batch(&batch, &number);
            for (int i = 0; i < C_COUNT; i++) CHECK_INT(batch.children[i]->length, batch.length);
            batch.release(&batch);
        }
        CHECK_INT(number, MESSAGES);
        cmq_scan_skipped skipped;
        uint32_t count;
        cmq_scan_skipped_of(scan, &skipped, NULL, 0, &count);
        CHECK(skipped.records == 0 && skipped.invalid_texts == (MESSAGES + 6) / 7 && skipped.expired == 0 &&
              count == 0);
        cmq_scan_close(scan);
    }
    kit_close(store);
}

static void schemas(void)
{
    static const char *const formats[C_COUNT] = {"u", "i", "i",       "l",       "vz",      "z",  "l", "u", "i",
                                                 "u", "u", "tsm:UTC", "tsu:UTC", "tsm:UTC", "+m", "u", "i", "i",
                                                 "i", "i", "u",       "l",       "u",       "u",  "i", "l", "u"};
    start();
    kit_append(store, "A", 0, "m", NULL, NULL);
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = every, .column_count = C_COUNT}, "A");
    struct ArrowSchema schema;
    CHECK_OK(cmq_scan_schema(scan, &schema));
    CHECK_TEXT(schema.format, "+s");
    CHECK_INT(schema.n_children, C_COUNT);
    for (int i = 0; i < C_COUNT; i++) {
        CHECK_TEXT(schema.children[i]->format, formats[i]);
        CHECK_TEXT(schema.children[i]->name, every[i].name);
        CHECK_INT(schema.children[i]->flags, ARROW_FLAG_NULLABLE);
        CHECK((schema.children[i]->dictionary != NULL) == (every[i].form == CMQ_SCAN_FORM_DICTIONARY));
    }
    /* A child that was moved out lives on alone. */
    struct ArrowSchema moved = *schema.children[C_MAP];
    schema.children[C_MAP]->release = NULL;
    schema.release(&schema);
    cmq_scan_close(scan);
    CHECK_TEXT(moved.children[0]->children[1]->name, "value");
    moved.release(&moved);
    kit_close(store);
}

static void bad_columns(void)
{
    static const cmq_scan_column bad[] = {{.kind = CMQ_SCAN_QUEUE_ID, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "a"},
                                          {.kind = CMQ_SCAN_TAGS, .form = CMQ_SCAN_FORM_VIEW, .name = "a"},
                                          {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_US, .name = "a"},
                                          {.kind = CMQ_SCAN_BORN_TIMESTAMP, .form = CMQ_SCAN_FORM_PLAIN, .name = "a"},
                                          {.kind = CMQ_SCAN_PROPERTY, .name = "a"},
                                          {.kind = CMQ_SCAN_KIND_COUNT, .name = "a"},
                                          {.kind = CMQ_SCAN_BODY, .name = "\xFF"}};
    start();
    kit_append(store, "A", 0, "m", NULL, NULL);
    cmq_scan *scan;
    const cmq_slice topic = kit_slice("A"), missing = kit_slice("Z");
    cmq_scan_options options = {.read = {.topics = &topic, .topic_count = 1}, .column_count = 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        options.columns = &bad[i];
        CHECK_STATUS(cmq_scan_open(store, &options, &scan), CMQ_ERR_ARGUMENT);
    }
    const cmq_scan_column twice[] = {body_alone[0], body_plain[0]};
    options.columns = twice;
    options.column_count = 2;
    CHECK_STATUS(cmq_scan_open(store, &options, &scan), CMQ_ERR_ARGUMENT);
    options.column_count = 0;
    CHECK_STATUS(cmq_scan_open(store, &options, &scan), CMQ_ERR_ARGUMENT);
    options.column_count = 1;
    options.read.topics = &missing;
    CHECK_STATUS(cmq_scan_open(store, &options, &scan), CMQ_ERR_NOT_FOUND);
    options.read.topics = &topic;
    options.read.backwards = true;
    CHECK_STATUS(cmq_scan_open(store, &options, &scan), CMQ_ERR_ARGUMENT);
    kit_close(store);
}

/* ---- batches ---- */

static void limits(void)
{
    start();
    kit_append_many(store, "A", "long enough for a view ", 6);
    cmq_scan_options options = {.columns = body_plain, .column_count = 1, .batch_bytes = 50};
#define BODY(n) "long enough for a view " #n
    CHECK_TEXT(bodies_of(open_scan(options, "A"), true),
               BODY(0) " " BODY(1) " | " BODY(2) " " BODY(3) " | " BODY(4) " " BODY(5) " |");
    options.batch_bytes = 1;   /* a body that is longer stands alone */
    options.limit_rows = 3;
    CHECK_TEXT(bodies_of(open_scan(options, "A"), true), BODY(0) " | " BODY(1) " | " BODY(2) " |");
    /* views cost nothing */
    options = (cmq_scan_options){.columns = body_alone, .column_count = 1, .batch_bytes = 1, .limit_rows = 2};
    CHECK_TEXT(bodies_of(open_scan(options, "A"), false), BODY(0) " " BODY(1) " |");
    options.limit_rows = 0;
    cmq_scan *scan = open_scan(options, "A");
    scan->view_span_max = 300;   /* of a variadic buffer: a record has about 115 bytes */
    CHECK_TEXT(bodies_of(scan, false), BODY(0) " " BODY(1) " " BODY(2) " | " BODY(3) " " BODY(4) " " BODY(5) " |");
    kit_close(store);
}

/* A batch over many segments has a variadic buffer for each; one over more than it may pin ends. */
static void many_segments(void)
{
    start();
    char body[3001];
    memset(body, 'x', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    for (int i = 0; i < 400; i++) {
        char number[16];
        snprintf(number, sizeof number, "%07d", i);
        memcpy(body, number, 7);
        kit_append(store, "A", 0, body, NULL, NULL);
    }
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1}, "A");
    int rows = 0, batches = 0;
    for (;;) {
        struct ArrowArray batch;
        bool end;
        CHECK_OK(cmq_scan_next(scan, &batch, &end));
        if (batch.release == NULL) break;
        batches++;
        if (batches == 1) CHECK_INT(batch.children[0]->n_buffers, 3 + CMQ_SCAN_HOMES_MAX);
        for (int64_t i = 0; i < batch.length; i++, rows++)
            CHECK_INT(atoi((const char *)view_at(batch.children[0], i).data), rows);
        batch.release(&batch);
    }
    CHECK(rows == 400 && batches == 2);
    cmq_scan_close(scan);
    kit_close(store);
}

static void follows(void)
{
    start();
    kit_append_many(store, "A", "first", 2);
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1, .follow = true}, "A");
    struct ArrowArray batch;
    bool end;
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 2);
    batch.release(&batch);
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK(batch.release == NULL && !end);
    kit_append_many(store, "A", "later", 3);
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 3);
    batch.release(&batch);
    cmq_scan_close(scan);
    kit_close(store);
}

/* ---- inner batches and compression ---- */

static cmq_column one(const char *text) { return (cmq_column){.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(text)}; }

/* Elements "<prefix>0", ... with a key each. */
static size_t wire_body(const char *prefix, int count, uint8_t *into)
{
    uint8_t *at = into;
    for (int i = 0; i < count; i++) {
        char body[64], properties[64];
        snprintf(body, sizeof body, "%s%d", prefix, i);
        snprintf(properties, sizeof properties, "KEYS\001%s-key%d\002", prefix, i);
        const cmq_wire_batch_element element = {
            .flag = i, .body = cmq_slice_of_text(body), .properties = cmq_slice_of_text(properties)};
        at = cmq_wire_batch_write(at, &element);
    }
    return (size_t)(at - into);
}

/* "Compressed" is reversed; a body that begins with '?' is invalid. */
static cmq_status unreverse(void *context, int32_t sys_flag, cmq_slice stored, cmq_scan_room *room)
{
    ++*(int *)context;
    CHECK((sys_flag & CMQ_SYS_COMPRESSED) != 0);
    if (stored.bytes > 0 && stored.data[0] == '?') return cmq_fail(CMQ_ERR_CORRUPT, "not reversed");
    uint8_t *into = cmq_scan_room_take(room, stored.bytes);
    if (into == NULL) return CMQ_ERR_MEMORY;
    for (size_t i = 0; i < stored.bytes; i++) into[i] = stored.data[stored.bytes - 1 - i];
    return CMQ_OK;
}

static void append_special(const char *topic, int32_t sys_flag, const uint8_t *body, size_t bytes,
                           const char *properties)
{
    cmq_append append = {.count = 1};
    uint8_t *stored = malloc(bytes + 1);
    CHECK(stored != NULL);
    for (size_t i = 0; i < bytes; i++) stored[i] = (sys_flag & CMQ_SYS_COMPRESSED) != 0 ? body[bytes - 1 - i] : body[i];
    append.common.topic = cmq_slice_of_text(topic);
    append.common.sys_flag = sys_flag;
    append.common.store_host = append.common.born_host = (cmq_record_host){.address = {127, 0, 0, 1}, .port = 1};
    append.bodies = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = {.data = stored, .bytes = bytes}};
    if (properties != NULL) append.properties = one(properties);
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    free(stored);
}

static void inner_batches(void)
{
    static const char *const batch_topics[] = {"B"};
    uint8_t wire[4096];
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store_options store_options = kit_options(root);
    store_options.batch_topics = batch_topics;
    store_options.batch_topic_count = 1;
    store = kit_open(&store_options);
    size_t bytes = wire_body("element-number-", 3, wire);
    append_special("B", CMQ_SYS_INNER_BATCH, wire, bytes, "INNER_NUM\0013\002");
    bytes = wire_body("compressed-one-", 2, wire);
    append_special("B", CMQ_SYS_INNER_BATCH | CMQ_SYS_COMPRESSED, wire, bytes, "INNER_NUM\0012\002");
    bytes = wire_body("e", 4, wire);
    append_special("B", CMQ_SYS_INNER_BATCH, wire, bytes, "INNER_NUM\0014\002");
    int calls = 0;
    cmq_scan_options options = {.decompress = unreverse, .decompress_context = &calls};
    CHECK_TEXT(rows_of(options, "B"),
               "element-number-0 element-number-1 element-number-2 compressed-one-0 compressed-one-1 e0 e1 e2 e3");
    options.batch_rows = 2;   /* in the middle of a record */
    CHECK_TEXT(rows_of(options, "B"),
               "element-number-0 element-number-1 element-number-2 compressed-one-0 compressed-one-1 e0 e1 e2 e3");
    CHECK_INT(calls, 2);
    options.read.has_start = options.read.has_end = true;
    options.read.start = 1;
    options.read.end = 4;
    CHECK_TEXT(rows_of(options, "B"), "element-number-1 element-number-2 compressed-one-0");
    const cmq_slice key = kit_slice("compressed-one--key1");
    options = (cmq_scan_options){.decompress = unreverse, .decompress_context = &calls, .keys = &key, .key_count = 1};
    CHECK_TEXT(rows_of(options, "B"), "compressed-one-1");

    const cmq_scan_column offsets[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"},
                                       {.kind = CMQ_SCAN_FLAG, .name = "f"},
                                       {.kind = CMQ_SCAN_KEYS, .name = "k"}};
    options = (cmq_scan_options){
        .columns = offsets, .column_count = 3, .decompress = unreverse, .decompress_context = &calls};
    cmq_scan *scan = open_scan(options, "B");
    struct ArrowArray batch;
    bool end;
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 9);
    for (int64_t i = 0; i < 9; i++) CHECK_INT(long_at(batch.children[0], i), i);
    CHECK(int_at(batch.children[1], 8) == 3 && same(text_at(batch.children[2], 4), "compressed-one--key1"));
    batch.release(&batch);
    cmq_scan_close(scan);
    options.raw_bodies = true;
    scan = open_scan(options, "B");
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK(batch.length == 3 && long_at(batch.children[0], 2) == 5);
    batch.release(&batch);
    cmq_scan_close(scan);
    kit_close(store);
}

static void compressed_bodies(void)
{
    start();
    int calls = 0;
    char big[901];
    for (size_t i = 0; i < 900; i++) big[i] = (char)('a' + i % 26);
    big[900] = '\0';
    kit_append(store, "A", 0, "as it is", NULL, NULL);
    append_special("A", CMQ_SYS_COMPRESSED, (const uint8_t *)"short", 5, NULL);
    append_special("A", CMQ_SYS_COMPRESSED, (const uint8_t *)"long enough for a view", 22, NULL);
    append_special("A", CMQ_SYS_COMPRESSED, (const uint8_t *)"this is damaged?", 16, NULL);
    kit_append(store, "A", 0, "the last one of them", NULL, NULL);
    for (int plain = 0; plain < 2; plain++) {
        cmq_scan_options options = {.columns = plain ? body_plain : body_alone,
                                    .column_count = 1,
                                    .decompress = unreverse,
                                    .decompress_context = &calls};
        CHECK_TEXT(bodies_of(open_scan(options, "A"), plain),
                   "as it is short long enough for a view | ! the last one of them |");
        options.skip_corrupt = true;
        CHECK_TEXT(bodies_of(open_scan(options, "A"), plain),
                   "as it is short long enough for a view the last one of them |");
        options.raw_bodies = true;
        CHECK_TEXT(bodies_of(open_scan(options, "A"), plain),
                   "as it is trohs weiv a rof hguone gnol ?degamad si siht the last one of them |");
    }
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1, .limit_rows = 2}, "A");
    struct ArrowArray batch;
    bool end;
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 1);
    batch.release(&batch);
    CHECK_STATUS(cmq_scan_next(scan, &batch, &end), CMQ_ERR_SETTING);   /* nobody said how */
    cmq_scan_close(scan);
    /* More than one piece of memory, within one block and over batches. */
    for (int i = 0; i < 3000; i++) append_special("C", CMQ_SYS_COMPRESSED, (const uint8_t *)big, 900, NULL);
    for (int plain = 0; plain < 2; plain++) {
        cmq_scan_options options = {.columns = plain ? body_plain : body_alone,
                                    .column_count = 1,
                                    .decompress = unreverse,
                                    .decompress_context = &calls,
                                    .batch_rows = 2000};
        scan = open_scan(options, "C");
        for (int rows = 0;;) {
            CHECK_OK(cmq_scan_next(scan, &batch, &end));
            if (batch.release == NULL) {
                CHECK_INT(rows, 3000);
                break;
            }
            for (int64_t i = 0; i < batch.length; i++, rows++)
                CHECK(same(plain ? string_at(batch.children[0], i) : view_at(batch.children[0], i), big));
            batch.release(&batch);
        }
        cmq_scan_close(scan);
    }
    kit_close(store);
}

/* ---- damage ---- */

static void damage(void)
{
    start();
    for (int i = 0; i < 20; i++) kit_append_many(store, "A", "a body of some length ", 1);
    cmq_found item;
    cmq_found_batch found = {.items = &item, .capacity = 1};
    CHECK_OK(cmq_store_read_offset(store, kit_slice("A"), 0, 13, &found));
    const int64_t phy = item.physical_offset;
    cmq_found_batch_release(&found);
    kit_close(store);
    const char *segment = kit_path(root, "commitlog/00000000000000000000");
    kit_flip(segment, phy + 84, 0x40);   /* the body's length leaves the record */
    cmq_store_options store_options = kit_options(root);
    store_options.read_only = true;
    store = kit_open(&store_options);
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1}, "A");
    struct ArrowArray batch;
    bool end;
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 13);
    batch.release(&batch);
    CHECK_STATUS(cmq_scan_next(scan, &batch, &end), CMQ_ERR_CORRUPT);
    CHECK_INT(cmq_last_error()->offset, phy);
    CHECK(batch.release == NULL && strstr(cmq_last_error()->text, "cometmq verify") != NULL);
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 6);
    batch.release(&batch);
    cmq_scan_close(scan);
    scan = open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1, .skip_corrupt = true}, "A");
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 19);
    batch.release(&batch);
    cmq_scan_skipped skipped;
    int64_t offsets[4];
    uint32_t count;
    cmq_scan_skipped_of(scan, &skipped, offsets, 4, &count);
    CHECK(skipped.records == 1 && count == 1 && offsets[0] == phy);
    cmq_scan_close(scan);
    kit_close(store);
    kit_flip(segment, phy + 84, 0x40);
    kit_flip(segment, phy + 90, 0x01);   /* a bit of the body */
    store = kit_open(&store_options);
    CHECK_INT(strlen(bodies_of(open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1}, "A"), false)),
              20 * 24 + 1);
    scan = open_scan((cmq_scan_options){.columns = body_alone, .column_count = 1, .check_crc = true}, "A");
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 13);
    batch.release(&batch);
    CHECK_STATUS(cmq_scan_next(scan, &batch, &end), CMQ_ERR_CORRUPT);
    cmq_scan_close(scan);
    kit_close(store);
}

/* ---- keys ---- */

/* The result equals a filtered read of everything: keys with `follow` are filtered as they come. */
static void compare_keys(cmq_scan_options options, const char *topic)
{
    static char filtered[65536];
    options.follow = true;
    snprintf(filtered, sizeof filtered, "%s", rows_of(options, topic));
    options.follow = false;
    CHECK_TEXT(rows_of(options, topic), filtered);
}

static void check_keys(void)
{
    static const char *const names[] = {"k1", "group3", "k17", "nothing", "u8", "group", "both"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cmq_slice keys[] = {kit_slice(names[i]), kit_slice("k5")};
        cmq_scan_options options = {.keys = keys, .key_count = 1 + i % 2};
        compare_keys(options, "A");
        options.read.has_start = options.read.has_end = true;
        options.read.start = 2;
        options.read.end = 40;
        compare_keys(options, "A");
        const cmq_slice tag = kit_slice("red");
        const int32_t queue = 1;
        options = (cmq_scan_options){.keys = keys,
                                     .key_count = 2,
                                     .read = {.tags = &tag, .tag_count = 1, .queue_ids = &queue, .queue_id_count = 1}};
        compare_keys(options, "A");
        const cmq_read_start range = {.topic = kit_slice("A"), .queue_id = 0, .has_end = true, .offset = 3, .end = 60};
        options = (cmq_scan_options){
            .keys = keys, .key_count = 1, .read = {.starts = &range, .start_count = 1, .only_starts = true}};
        compare_keys(options, NULL);
        options = (cmq_scan_options){.keys = keys,
                                     .key_count = 1,
                                     .read = {.has_end_time = true, .end_time_ms = atomic_load(&kit_now_ms) - 50000}};
        compare_keys(options, "A");
    }
}

static void by_key(void)
{
    start();
    for (int i = 0; i < 200; i++) {
        char body[32], keys[64];
        snprintf(body, sizeof body, "body%d", i);
        snprintf(keys, sizeof keys, "k%d group%d both", i % 50, i % 7);
        kit_append(store, i % 5 == 4 ? "B" : "A", i % 2, body, i % 3 == 0 ? "red" : NULL, i % 4 == 3 ? NULL : keys);
        atomic_fetch_add(&kit_now_ms, 1000);
    }
    const cmq_slice key = kit_slice("group3");
    cmq_scan_options options = {.keys = &key, .key_count = 1};
    CHECK(strncmp(rows_of(options, "A"), "body10 body17 body38 ", 21) == 0);
    check_keys();
    kit_append(store, "A", 0, "the newest", "red", "k1 group3");
    check_keys();
    kit_close(store);
    /* By another process's eyes; then with the first index file gone; then with all of them. */
    cmq_store_options store_options = kit_options(root);
    store_options.read_only = true;
    for (int round = 0; round < 3; round++) {
        if (round == 2) kit_remove_tree(kit_path(root, "index"));
        store = kit_open(&store_options);
        check_keys();
        kit_close(store);
        store_options.index_disabled = round == 0;
    }
    const cmq_slice empty = kit_slice("");
    store = kit_open(&store_options);
    cmq_scan *scan;
    const cmq_slice topic = kit_slice("A");
    options = (cmq_scan_options){.keys = &empty,
                                 .key_count = 1,
                                 .columns = body_alone,
                                 .column_count = 1,
                                 .read = {.topics = &topic, .topic_count = 1}};
    CHECK_STATUS(cmq_scan_open(store, &options, &scan), CMQ_ERR_ARGUMENT);
    kit_close(store);
}

/* A scan that filters for long pauses in between. */
static void a_filter_pauses(void)
{
    start();
    for (int i = 0; i < 100; i++)
        kit_append(store, "A", 0, i == 77 ? "found" : "passed over", NULL, i == 77 ? "k" : "other");
    const cmq_slice key = kit_slice("k");
    cmq_scan *scan = open_scan(
        (cmq_scan_options){.columns = body_alone, .column_count = 1, .keys = &key, .key_count = 1, .follow = true},
        "A");
    scan->passed_max = 30;
    struct ArrowArray batch;
    bool end;
    for (int i = 0; i < 2; i++) CHECK_STATUS(cmq_scan_next(scan, &batch, &end), CMQ_AGAIN);
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK(batch.length == 1 && same(view_at(batch.children[0], 0), "found"));
    batch.release(&batch);
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK(batch.release == NULL && !end);
    cmq_scan_close(scan);
    kit_close(store);
}

/* A deleted topic's records, and prepared ones, are in log and index, and in no queue. */
static void keys_of_deleted_messages(void)
{
    start();
    kit_append(store, "A", 0, "old", NULL, "k");
    kit_append(store, "B", 0, "other", NULL, "k");
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("A")));
    kit_append(store, "A", 0, "new", NULL, "k");
    append_special("A", CMQ_SYS_TRANSACTION_PREPARED, (const uint8_t *)"half", 4, "KEYS\001k\002");
    const cmq_slice key = kit_slice("k");
    CHECK_TEXT(rows_of((cmq_scan_options){.keys = &key, .key_count = 1}, "A"), "new");
    compare_keys((cmq_scan_options){.keys = &key, .key_count = 1}, "A");
    kit_close(store);
}

/* Messages m0, m1 … with keys k0, k1 …: the first 100 and then every 50th below 550, so that an index file reaches over
 * several segments of the log; and those from 750 on. */
static void append_sparse_keys(int from, int end)
{
    for (int i = from; i < end; i++) {
        char body[16], key[16];
        snprintf(body, sizeof body, "m%d", i);
        snprintf(key, sizeof key, "k%d", i);
        kit_append(store, "A", 0, body, NULL, i < 100 || (i % 50 == 0 && i < 550) || i >= 750 ? key : NULL);
        atomic_fetch_add(&kit_now_ms, 1000);
    }
}

/* Every key is found, here and by a view beside the writer. */
static void check_sparse_keys(int end)
{
    cmq_store *const writer = store;
    cmq_store_options view_options = kit_options(root);
    view_options.read_only = true;
    cmq_store *view = kit_open(&view_options);
    for (int i = 0; i < end; i += i < 750 ? 50 : 1) {
        if (i >= 550 && i < 750) continue;
        char name[16], body[16];
        snprintf(name, sizeof name, "k%d", i);
        snprintf(body, sizeof body, "m%d", i);
        const cmq_slice key = kit_slice(name);
        for (int look = 0; look < 2; look++) {
            store = look == 0 ? writer : view;
            CHECK_TEXT(rows_of((cmq_scan_options){.keys = &key, .key_count = 1}, "A"), body);
        }
    }
    kit_close(view);
    store = writer;
}

/* A crash of another program's: upstream's rule drops the newest index file, and enters again only the keys of the
 * records that are read again, here none. Lost keys stay lost through closing, crashing, further keys and another
 * program's visit; their messages are found all the same. */
static void keys_that_a_crash_took(void)
{
    start();
    append_sparse_keys(0, 740);
    CHECK_OK(cmq_store_maintain(store, true));
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq"));
    int end = 740;
    for (int round = 0; round < 7; round++) {
        cmq_store_opening opening;
        store = kit_open_at(root);
        cmq_store_opening_of(store, &opening);
        CHECK(opening.index_missing_from > 0 && opening.index_missing_from < opening.index_missing_end);
        check_sparse_keys(end);
        append_sparse_keys(end, end + 5);   /* from the third round on with keys */
        end += 5;
        check_sparse_keys(end);
        if (round == 1 || round == 4) cmq_store_abandon(store);
        else kit_close(store);
        /* the next finds a checkpoint that is not ours */
        if (round == 3) kit_flip(kit_path(root, "checkpoint"), 8, 1);
    }
}

/* ---- lifetimes ---- */

static void *release_in_thread(void *array)
{
    struct ArrowArray *batch = array;
    CHECK(same(view_at(batch, 0), "a body that lies in the map"));
    batch->release(batch);
    return NULL;
}

static void arrays_outlive_everything(void)
{
    start();
    for (int i = 0; i < 50; i++) kit_append(store, "A", 0, "a body that lies in the map", "tag", NULL);
    const cmq_scan_column columns[] = {{.kind = CMQ_SCAN_BODY, .name = "body"},
                                       {.kind = CMQ_SCAN_TAGS, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "tags"},
                                       {.kind = CMQ_SCAN_PROPERTIES, .name = "map"}};
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = columns, .column_count = 3, .batch_rows = 20}, "A");
    struct ArrowArray batches[2], more;
    bool end;
    for (int i = 0; i < 2; i++) CHECK_OK(cmq_scan_next(scan, &batches[i], &end));
    CHECK_OK(cmq_scan_next(scan, &more, &end));
    more.release(&more);
    cmq_scan_close(scan);
    kit_close(store);
    kit_remove_tree(root);
    /* Children apart from their batch: one in another thread, one here, the rest with the batch. */
    struct ArrowArray body = *batches[0].children[0], tags = *batches[0].children[1];
    batches[0].children[0]->release = NULL;
    batches[0].children[1]->release = NULL;
    batches[0].release(&batches[0]);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, release_in_thread, &body) == 0);
    CHECK(same(text_at(&tags, 19), "tag"));
    tags.release(&tags);
    CHECK(same(view_at(batches[1].children[0], 19), "a body that lies in the map"));
    batches[1].release(&batches[1]);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Codes keep their meaning while the dictionary grows, and older batches stay as they were. */
static void dictionaries_grow(void)
{
    start();
    for (int i = 0; i < 3000; i++) {
        char tag[32];
        snprintf(tag, sizeof tag, "tag-%d", i % 2 == 0 ? i : i / 100);
        kit_append(store, "A", 0, "m", tag, NULL);
    }
    const cmq_scan_column tags[] = {{.kind = CMQ_SCAN_TAGS, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "tags"}};
    cmq_scan *scan = open_scan((cmq_scan_options){.columns = tags, .column_count = 1, .batch_rows = 100}, "A");
    struct ArrowArray batches[30];
    bool end;
    for (int i = 0; i < 30; i++) CHECK_OK(cmq_scan_next(scan, &batches[i], &end));
    cmq_scan_close(scan);
    kit_close(store);
    for (int i = 0; i < 3000; i++) {
        char tag[32];
        snprintf(tag, sizeof tag, "tag-%d", i % 2 == 0 ? i : i / 100);
        const struct ArrowArray *codes = batches[i / 100].children[0];
        CHECK(same(text_at(codes, i % 100), tag));
        const int32_t code = int_at(codes, i % 100);
        CHECK(same(string_at(batches[29].children[0]->dictionary, code), tag));
    }
    for (int i = 0; i < 30; i++) batches[i].release(&batches[i]);
}

CMQ_TEST_MAIN(CMQ_TEST(every_column), CMQ_TEST(schemas), CMQ_TEST(bad_columns), CMQ_TEST(limits),
              CMQ_TEST(many_segments), CMQ_TEST(follows), CMQ_TEST(inner_batches), CMQ_TEST(compressed_bodies),
              CMQ_TEST(damage), CMQ_TEST(by_key), CMQ_TEST(a_filter_pauses), CMQ_TEST(keys_of_deleted_messages),
              CMQ_TEST(keys_that_a_crash_took), CMQ_TEST(arrays_outlive_everything), CMQ_TEST(dictionaries_grow))
