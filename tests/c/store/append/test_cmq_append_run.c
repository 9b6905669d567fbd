/* Tests of messages appended many at a time (cmq_append_run.c, moulds in cmq_record.c): the same bytes, the same
 * refusals as one by one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 600u
#define TEXT_BYTES_MAX 40u
#define BODY_BYTES_MAX 900u

/* ---- moulds ---- */

static cmq_slice random_text(uint8_t *into, size_t most)
{
    const size_t bytes = (size_t)cmq_test_random_below(most + 1);
    for (size_t i = 0; i < bytes; i++) into[i] = (uint8_t)('a' + cmq_test_random_below(26));
    return (cmq_slice){.data = into, .bytes = bytes};
}

static cmq_record_fields random_fields(uint8_t topic[300], uint8_t tags[64], uint8_t properties[64])
{
    cmq_record_fields fields = {.queue_id = (int32_t)cmq_test_random_below(9),
                                .flag = (int32_t)cmq_test_random(),
                                .sys_flag = (int32_t)(cmq_test_random() & 0x703),
                                .reconsume_times = (int32_t)cmq_test_random_below(4),
                                .born_timestamp_ms = (int64_t)cmq_test_random(),
                                .store_timestamp_ms = (int64_t)cmq_test_random(),
                                .prepared_transaction_offset = (int64_t)cmq_test_random()};
    fields.topic = random_text(topic, cmq_test_random_below(4) == 0 ? 255 : 20);
    fields.tags = random_text(tags, 20);
    fields.properties = random_text(properties, 30);
    fields.born_host.ipv6 = cmq_test_random_below(3) == 0;
    fields.store_host.ipv6 = cmq_test_random_below(3) == 0;
    fields.born_host.port = (int32_t)cmq_test_random_below(65536);
    for (int i = 0; i < 4; i++) fields.born_host.address[i] = (uint8_t)cmq_test_random();
    return fields;
}

/* Random records: the mould's bytes are the encoder's, and nothing behind them is touched. */
static void test_a_cast_equals_the_encoded_record(void)
{
    uint8_t topic[300], tags[64], properties[64], body[2000], keys[64], more_tags[64], encoded[4096], cast_bytes[4096];
    for (int round = 0; round < 3000; round++) {
        cmq_record_fields fields = random_fields(topic, tags, properties);
        const bool tags_vary = cmq_test_random_below(2) == 0;
        cmq_record_mould mould;
        if (!cmq_record_mould_make(&fields, tags_vary, &mould)) {
            CHECK_INT(fields.topic.bytes, 0);
            continue;
        }
        cmq_record_cast cast = {.body = random_text(body, cmq_test_random_below(2) == 0 ? 70 : sizeof body),
                                .keys = random_text(keys, 40)};
        if (tags_vary) fields.tags = cast.tags = random_text(more_tags, 30);
        fields.body = cast.body;
        fields.keys = cast.keys;
        fields.queue_id = (int32_t)cmq_test_random();
        fields.queue_offset = (int64_t)cmq_test_random();
        fields.physical_offset = (int64_t)cmq_test_random();
        cmq_record_sizes sizes;
        CHECK_OK(cmq_record_measure(&fields, &sizes));
        CHECK(cmq_record_mould_measure(&mould, &cast));
        CHECK_INT(cast.record_bytes, sizes.record_bytes);
        memset(encoded, 0x5A, sizeof encoded);
        memset(cast_bytes, 0x5A, sizeof cast_bytes);
        cmq_record_encode(encoded, &fields, &sizes);
        cmq_record_mould_cast(&mould, cast_bytes, &cast, fields.queue_id, fields.queue_offset, fields.physical_offset);
        CHECK_BYTES(cast_bytes, sizeof cast_bytes, encoded, sizeof encoded);
    }
}

/* Messages that the mould cannot hold, and those that the encoder would refuse. */
static void test_messages_without_a_mould(void)
{
    static uint8_t long_text[CMQ_PROPERTY_BYTES_MAX + 1];
    memset(long_text, 'x', sizeof long_text);
    cmq_record_mould mould;
    cmq_record_fields fields = {.topic = kit_slice("T")};
    CHECK(cmq_record_mould_make(&fields, false, &mould));
    cmq_record_cast cast = {.keys = {.data = long_text, .bytes = CMQ_PROPERTY_BYTES_MAX - 6}};
    CHECK(cmq_record_mould_measure(&mould, &cast));
    cast.keys.bytes++;
    CHECK(!cmq_record_mould_measure(&mould, &cast));
    cast.keys.bytes = SIZE_MAX;
    CHECK(!cmq_record_mould_measure(&mould, &cast));
    cast = (cmq_record_cast){.body = {.data = long_text, .bytes = (size_t)INT32_MAX}};
    CHECK(!cmq_record_mould_measure(&mould, &cast));

    fields.properties = (cmq_slice){.data = long_text, .bytes = sizeof long_text};
    CHECK(!cmq_record_mould_make(&fields, false, &mould));
    fields.properties = CMQ_SLICE_NONE;
    fields.tags = (cmq_slice){.data = long_text, .bytes = 600};
    CHECK(!cmq_record_mould_make(&fields, false, &mould));
    CHECK(cmq_record_mould_make(&fields, true, &mould));
    fields.tags = CMQ_SLICE_NONE;
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_SINGLE;
    CHECK(!cmq_record_mould_make(&fields, false, &mould));
}

/* ---- stores ---- */

typedef struct messages {
    uint8_t bytes[MESSAGES][BODY_BYTES_MAX + 2 * TEXT_BYTES_MAX];
    cmq_slice bodies[MESSAGES], tags[MESSAGES], keys[MESSAGES];
    int32_t queue_ids[MESSAGES];     /* a few small ones, and one beyond those that a hold of the writer lock
                                      * remembers */
} messages;

/* Keys of every kind: none, one, short, long, several, with spaces to spare. */
static cmq_slice random_keys(uint8_t *into)
{
    cmq_slice keys = random_text(into, cmq_test_random_below(3) == 0 ? TEXT_BYTES_MAX : 16);
    const uint64_t spaces = cmq_test_random_below(4);
    for (uint64_t i = 0; i < spaces && keys.bytes > 0; i++) into[cmq_test_random_below(keys.bytes)] = ' ';
    return keys;
}

static messages *make_messages(void)
{
    messages *all = malloc(sizeof *all);
    CHECK(all != NULL);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint8_t *at = all->bytes[i];
        all->bodies[i] = random_text(at, cmq_test_random_below(10) == 0 ? BODY_BYTES_MAX : 60);
        all->tags[i] = random_text(at + BODY_BYTES_MAX, 12);
        all->keys[i] = random_keys(at + BODY_BYTES_MAX + TEXT_BYTES_MAX);
        all->queue_ids[i] = cmq_test_random_below(20) == 0 ? 700 : (int32_t)cmq_test_random_below(5);
    }
    return all;
}

static cmq_append call_of(const messages *all, uint32_t from, uint32_t count, bool tags_vary, bool keyed, bool dealt)
{
    cmq_append append = {.common = {.topic = kit_slice("T"), .queue_id = 2, .flag = 7}, .count = count};
    append.bodies = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = all->bodies + from};
    append.tags = tags_vary ? (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = all->tags + from}
                            : (cmq_column){.kind = CMQ_COLUMN_ONE, .one = kit_slice("tag")};
    if (keyed) append.keys = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = all->keys + from};
    if (dealt) append.queue_ids = all->queue_ids + from;
    append.properties = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = kit_slice("a\001b\002")};
    return append;
}

/* All messages, in calls of up to `most`; offsets are checked against each other. */
static void append_all(cmq_store *store, const messages *all, uint32_t most, bool tags_vary, bool keyed, bool dealt)
{
    int64_t queue_offsets[MESSAGES], phys[MESSAGES], next[701] = {0};
    for (uint32_t from = 0; from < MESSAGES;) {
        const uint32_t left = MESSAGES - from, wanted = 1 + (uint32_t)cmq_test_random_below(most);
        cmq_append append = call_of(all, from, wanted < left ? wanted : left, tags_vary, keyed, dealt);
        append.queue_offsets_out = queue_offsets;
        append.physical_offsets_out = phys;
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        CHECK_INT(appended.count, append.count);
        CHECK_INT(appended.first_queue_offset, queue_offsets[0]);
        CHECK_INT(appended.first_physical_offset, phys[0]);
        for (uint32_t i = 0; i < append.count; i++)
            CHECK_INT(queue_offsets[i], next[dealt ? append.queue_ids[i] : 2]++);
        from += append.count;
    }
}

static const char *compared_root;
static uint32_t compared;

static void compare_file(void *context, const char *path, int64_t bytes)
{
    const char *root = context;
    const char *name = path + strlen(root);
    if (strncmp(name, "/commitlog/", 11) != 0 && strncmp(name, "/consumequeue/", 14) != 0 &&
        strncmp(name, "/index/", 7) != 0)
        return;
    const char *other = kit_path(compared_root, name + 1);
    CHECK_INT(kit_file_bytes(other), bytes);
    uint8_t *a = malloc((size_t)bytes + 1), *b = malloc((size_t)bytes + 1);
    CHECK(a != NULL && b != NULL);
    kit_read_bytes(path, 0, a, (size_t)bytes);
    kit_read_bytes(other, 0, b, (size_t)bytes);
    CHECK_BYTES(a, (size_t)bytes, b, (size_t)bytes);
    free(a);
    free(b);
    compared++;
}

/* Batches and single calls leave the same files: log with its blanks, queue, index. */
static void test_batches_leave_the_same_as_single_calls(void)
{
    for (int kind = 0; kind < 16; kind++) {
        const bool tags_vary = kind & 1, keyed = kind & 2;
        char roots[2][CMQ_PATH_BYTES];
        messages *all = make_messages();
        kit_set_clock();
        const int64_t began_ms = atomic_load(&kit_now_ms);
        for (int way = 0; way < 2; way++) {
            CHECK_OK(cmq_path_join(roots[way], kit_directory(), "store"));
            atomic_store(&kit_now_ms, began_ms);   /* the same times in both */
            cmq_store_options options = kit_options(roots[way]);
            if (kind & 4) options.flush = CMQ_FLUSH_ASYNC;
            cmq_store *store = kit_open(&options);
            append_all(store, all, way == 0 ? 1 : 150, tags_vary, keyed, kind & 8);
            kit_close(store);
        }
        compared = 0;
        compared_root = roots[1];
        kit_each_file(roots[0], compare_file, roots[0]);
        CHECK(compared >= (keyed ? 8u : 5u));
        free(all);
        kit_remove_tree(roots[0]);
        kit_remove_tree(roots[1]);
    }
}

/* A message that is wrong: those before it are appended, and the failure says which one it was about. */
static void test_a_wrong_message_among_many(void)
{
    messages *all = make_messages();
    cmq_store *store = kit_open_at(kit_path(kit_directory(), "store"));
    const struct { cmq_slice *place; cmq_slice value; cmq_status status; } wrong[] = {
        {&all->tags[200], kit_slice("a\001b"), CMQ_ERR_ARGUMENT},
        {&all->keys[130], kit_slice("eleven\002long"), CMQ_ERR_ARGUMENT},
        {&all->bodies[64], {.data = all->bytes[0], .bytes = 5u << 20}, CMQ_ERR_TOO_LARGE},
        {&all->bodies[0], {.data = all->bytes[0], .bytes = 5u << 20}, CMQ_ERR_TOO_LARGE},
    };
    static const uint32_t at[] = {200, 130, 64, 0};
    int64_t there = 0;
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        const cmq_slice kept = *wrong[i].place;
        *wrong[i].place = wrong[i].value;
        const cmq_append append = call_of(all, 0, MESSAGES, true, true, false);
        cmq_appended appended;
        CHECK_STATUS(cmq_store_append(store, &append, &appended), wrong[i].status);
        CHECK_INT(appended.count, at[i]);
        there += at[i];
        CHECK_INT(kit_max(store, "T", 2), there);
        *wrong[i].place = kept;
    }
    kit_close(store);
    free(all);
}

/* A disk that fills up: as many messages as there is room for, and those are whole; all of them when there is room
 * again. */
static void test_a_full_disk_takes_messages_that_fit(void)
{
    const char *root = kit_directory();
    messages *all = make_messages();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.segment_bytes = 1 << 20;
    options.flush = CMQ_FLUSH_ASYNC;
    cmq_store *store = kit_open(&options);
    const cmq_append append = call_of(all, 0, MESSAGES, true, true, false);
    cmq_appended appended;
    int64_t there = 0;
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_RESERVE, .nth = 3, .sys_errno = ENOSPC});
    cmq_status status = CMQ_OK;
    for (int call = 0; call < 100 && status == CMQ_OK; call++) {
        status = cmq_store_append(store, &append, &appended);
        there += appended.count;
    }
    CHECK_STATUS(status, CMQ_ERR_DISK_FULL);
    CHECK_INT(kit_max(store, "T", 2), there);
    cmq_file_twin_clear_faults(twin);
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.count, MESSAGES);
    CHECK_INT(appended.first_queue_offset, there);
    kit_close(store);
    cmq_file_twin_close(twin);
    free(all);
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_cast_equals_the_encoded_record), CMQ_TEST(test_messages_without_a_mould),
              CMQ_TEST(test_batches_leave_the_same_as_single_calls), CMQ_TEST(test_a_wrong_message_among_many),
              CMQ_TEST(test_a_full_disk_takes_messages_that_fit))
