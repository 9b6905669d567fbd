/* Tests csrc/store/read/cmq_lookup.c: single messages by physical offset, message id, queue offset and key; queue
 * offsets by time (spec store 8.3). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/record/cmq_message_id.h"
#include "support/cmq_store_kit.h"

static cmq_store *store;
static kit_found *found;
static char root[CMQ_PATH_BYTES];

static void start(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    store = kit_open_at(root);
    found = kit_found_make(10);
}

static void stop(void)
{
    kit_found_free(found);
    kit_close(store);
}

static void release(void) { cmq_found_batch_release(&found->batch); }

static void by_physical_offset_and_id(void)
{
    start();
    const cmq_appended a = kit_append(store, "T", 0, "a", NULL, NULL), b = kit_append(store, "T", 0, "b", NULL, NULL);
    CHECK_OK(cmq_store_read_physical(store, b.first_physical_offset, &found->batch));
    CHECK(kit_body_is(&found->items[0], "b"));
    CHECK_INT(found->items[0].queue_offset, 1);
    release();
    /* An offset id says the store's address and the physical offset. */
    char id[CMQ_MESSAGE_ID_BYTES_MAX + 1];
    const cmq_record_host host = {.address = {127, 0, 0, 1}, .port = 10911};
    const size_t bytes = cmq_message_id_format(&host, a.first_physical_offset, id);
    cmq_record_host parsed;
    int64_t phy;
    CHECK_OK(cmq_message_id_parse((cmq_slice){.data = (const uint8_t *)id, .bytes = bytes}, &parsed, &phy));
    CHECK_OK(cmq_store_read_physical(store, phy, &found->batch));
    CHECK(kit_body_is(&found->items[0], "a"));
    release();
    static const int64_t no_places[] = {-1, 1, 90};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(cmq_store_read_physical(store, no_places[i], &found->batch),
                     no_places[i] < 0 ? CMQ_ERR_OFFSET : CMQ_ERR_CORRUPT);
        CHECK_INT(found->batch.count + found->batch.pin_count, 0);
    }
    CHECK_STATUS(cmq_store_read_physical(store, b.end, &found->batch), CMQ_ERR_OFFSET);
    CHECK_STATUS(cmq_store_read_physical(store, INT64_MAX, &found->batch), CMQ_ERR_OFFSET);
    stop();
}

static void by_queue_offset(void)
{
    start();
    kit_append_many(store, "T", "m", 50);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 50; i++) {
            char body[16];
            snprintf(body, sizeof body, "m%d", i);
            CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, i, &found->batch));
            CHECK(kit_body_is(&found->items[0], body));
            CHECK(strcmp(cmq_queue_topic(found->items[0].queue), "T") == 0);
            release();
        }
        CHECK_OK(cmq_store_maintain(store, true));
    }
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, -1, &found->batch), CMQ_ERR_OFFSET);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, 50, &found->batch), CMQ_ERR_OFFSET);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 1, 0, &found->batch), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("None"), 0, 0, &found->batch), CMQ_ERR_NOT_FOUND);
    stop();
}

/* A damaged body is never handed out by a look-up. */
static void damaged_bodies_are_reported(void)
{
    start();
    const cmq_appended appended = kit_append(store, "T", 0, "a body of some length", NULL, "k");
    kit_flip(kit_path(root, "commitlog/00000000000000000000"), appended.first_physical_offset + 95, 1);
    CHECK_STATUS(cmq_store_read_physical(store, appended.first_physical_offset, &found->batch), CMQ_ERR_CORRUPT);
    CHECK_INT(cmq_last_error()->offset, appended.first_physical_offset);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, 0, &found->batch), CMQ_ERR_CORRUPT);
    CHECK_STATUS(cmq_store_find_key(store, kit_slice("T"), kit_slice("k"), 0, INT64_MAX, &found->batch),
                 CMQ_ERR_CORRUPT);
    CHECK_INT(cmq_last_error()->offset, appended.first_physical_offset);
    CHECK_INT(found->batch.count + found->batch.pin_count, 0);
    stop();
}

/* ---- keys ---- */

static const char *find(const char *topic, const char *key, int64_t begin_ms, int64_t end_ms)
{
    static char text[1024];
    size_t used = 0;
    text[0] = '\0';
    CHECK_OK(
        cmq_store_find_key(store, cmq_slice_of_text(topic), cmq_slice_of_text(key), begin_ms, end_ms, &found->batch));
    for (uint32_t i = 0; i < found->batch.count; i++) {
        const cmq_record_view view = kit_view(&found->items[i]);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", i > 0 ? " " : "", (int)view.body.bytes,
                                 (const char *)view.body.data);
    }
    release();
    return text;
}

static void by_key(void)
{
    start();
    kit_append(store, "T", 0, "m0", NULL, "AaAa other");
    kit_append(store, "T", 1, "m1", NULL, "BBBB");      /* the same hash as AaAa */
    kit_append(store, "U", 0, "m2", NULL, "AaAa");      /* another topic */
    kit_append(store, "T", 0, "m3", NULL, "AaAa  AaAa BBBB");
    kit_append(store, "T", 0, "m4", NULL, "AaA");
    for (int round = 0; round < 3; round++) {
        CHECK_TEXT(find("T", "AaAa", 0, INT64_MAX), "m3 m0");   /* newest first, each once */
        CHECK_TEXT(find("T", "BBBB", 0, INT64_MAX), "m3 m1");
        CHECK_TEXT(find("T", "other", 0, INT64_MAX), "m0");
        CHECK_TEXT(find("U", "AaAa", 0, INT64_MAX), "m2");
        CHECK_TEXT(find("T", "none", 0, INT64_MAX), "");
        CHECK_TEXT(find("T", "AaAa other", 0, INT64_MAX), "");
        CHECK_TEXT(find("V", "AaAa", 0, INT64_MAX), "");
        CHECK_TEXT(find("T", "", 0, INT64_MAX), "");
        if (round == 0) cmq_store_abandon(store);
        else kit_close(store);
        store = kit_open_at(root);
    }
    stop();
}

static void by_unique_key(void)
{
    start();
    cmq_append append = {
        .common = {.topic = kit_slice("T")}, .count = 1, .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("m")}};
    append.properties =
        (cmq_column){.kind = CMQ_COLUMN_ONE, .one = kit_slice("UNIQ_KEY\0017F0000010000ABCD\002KEYS\001k\002")};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_TEXT(find("T", "7F0000010000ABCD", 0, INT64_MAX), "m");
    CHECK_TEXT(find("T", "k", 0, INT64_MAX), "m");
    stop();
}

/* Many messages of one key over many index files; a batch takes the newest; times are exact although entries count
 * seconds. */
static void by_key_and_time(void)
{
    start();
    const int64_t t = atomic_load(&kit_now_ms);
    for (int i = 0; i < 300; i++) {
        char body[16];
        snprintf(body, sizeof body, "m%d", i);
        kit_append(store, "T", 0, body, NULL, i % 2 == 0 ? "even k" : "odd k");
        atomic_fetch_add(&kit_now_ms, 300);
    }
    CHECK_TEXT(find("T", "k", 0, INT64_MAX), "m299 m298 m297 m296 m295 m294 m293 m292 m291 m290");
    CHECK_TEXT(find("T", "even", t + 3000, t + 3000 + 1199), "m12 m10");
    CHECK_TEXT(find("T", "even", t + 3000, t + 3000), "m10");
    CHECK_TEXT(find("T", "even", t + 3001, t + 3599), "");
    CHECK_TEXT(find("T", "k", t, t + 899), "m2 m1 m0");
    CHECK_TEXT(find("T", "k", INT64_MIN, t), "m0");
    CHECK_TEXT(find("T", "k", t + 1, t), "");
    stop();
}

/* ---- time ---- */

typedef struct expectation {
    int64_t ms;
    int64_t lower, upper;
} expectation;

static void by_time(void)
{
    start();
    const int64_t t = atomic_load(&kit_now_ms);
    /* Ordinals 0-2 at 100, 3 at 200, 4-6 at 300, then enough at 400 for another file, the last at 500. */
    static const int64_t times[] = {100, 100, 100, 200, 300, 300, 300};
    for (size_t i = 0; i < 7; i++) {
        atomic_store(&kit_now_ms, t + times[i]);
        kit_append(store, "T", 0, "m", NULL, NULL);
    }
    atomic_store(&kit_now_ms, t + 400);
    for (int i = 7; i < 60; i++) kit_append(store, "T", 0, "m", NULL, NULL);
    atomic_store(&kit_now_ms, t + 500);
    kit_append(store, "T", 0, "m", NULL, NULL);
    static const expectation table[] = {
        {0, 0, 0},       /* before the first: LOWER the first, UPPER 0 */
        {99, 0, 0},
        {100, 0, 2},     /* the first and the last of an equal run */
        {101, 3, 2},     /* none equal: the first later, the last earlier */
        {200, 3, 3},
        {250, 4, 3},
        {300, 4, 6},
        {400, 7, 59},    /* a run over several files is one run */
        {450, 60, 59},
        {500, 60, 60},
        {501, 61, 60},   /* behind the last: LOWER the ordinal after it, UPPER the last */
    };
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
            int64_t lower, upper;
            CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, t + table[i].ms, CMQ_BOUNDARY_LOWER, &lower));
            CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, t + table[i].ms, CMQ_BOUNDARY_UPPER, &upper));
            if (lower != table[i].lower || upper != table[i].upper)
                cmq_test_fail(__FILE__, __LINE__, "at %lld: [%lld, %lld], expected [%lld, %lld]",
                              (long long)table[i].ms, (long long)lower, (long long)upper, (long long)table[i].lower,
                              (long long)table[i].upper);
        }
        CHECK_OK(cmq_store_maintain(store, true));
    }
    int64_t offset;
    CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, INT64_MIN, CMQ_BOUNDARY_LOWER, &offset));
    CHECK_INT(offset, 0);
    CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, INT64_MAX, CMQ_BOUNDARY_UPPER, &offset));
    CHECK_INT(offset, 60);
    CHECK_STATUS(cmq_store_offset_at(store, kit_slice("T"), 1, 0, CMQ_BOUNDARY_UPPER, &offset), CMQ_ERR_NOT_FOUND);
    int64_t earliest;
    CHECK_OK(cmq_store_earliest_ms(store, &earliest));
    CHECK_INT(earliest, t + 100);
    stop();
}

/* Expired messages are too old for every time. */
static void by_time_after_retention(void)
{
    kit_set_clock();
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    cmq_store_options options = kit_options(root);
    options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 1};
    store = kit_open(&options);
    found = kit_found_make(10);
    int64_t earliest, lower, upper;
    CHECK_STATUS(cmq_store_earliest_ms(store, &earliest), CMQ_ERR_NOT_FOUND);
    const int64_t t = atomic_load(&kit_now_ms);
    for (int i = 0; i < 400; i++) {
        kit_append(store, "T", 0, "m", NULL, NULL);
        atomic_fetch_add(&kit_now_ms, 10);
    }
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK_INT(deleted, 1);
    const int64_t min = kit_min(store, "T", 0);
    CHECK(min > 0 && min < 400);
    CHECK_OK(cmq_store_earliest_ms(store, &earliest));
    CHECK_INT(earliest, t + min * 10);
    CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, t, CMQ_BOUNDARY_LOWER, &lower));
    CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, t, CMQ_BOUNDARY_UPPER, &upper));
    CHECK_INT(lower, min);
    CHECK_INT(upper, min);
    CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, t + min * 10 + 15, CMQ_BOUNDARY_LOWER, &lower));
    CHECK_OK(cmq_store_offset_at(store, kit_slice("T"), 0, t + min * 10 + 15, CMQ_BOUNDARY_UPPER, &upper));
    CHECK_INT(lower, min + 2);
    CHECK_INT(upper, min + 1);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, min - 1, &found->batch), CMQ_ERR_OFFSET);
    stop();
}

static void without_an_index(void)
{
    kit_set_clock();
    cmq_store_options options = kit_options(kit_path(kit_directory(), "store"));
    options.index_disabled = true;
    store = kit_open(&options);
    found = kit_found_make(1);
    kit_append(store, "T", 0, "m", NULL, "k");
    CHECK_STATUS(cmq_store_find_key(store, kit_slice("T"), kit_slice("k"), 0, INT64_MAX, &found->batch),
                 CMQ_ERR_SETTING);
    CHECK(!kit_exists(kit_path(options.path, "index")));
    stop();
}

/* A unit that reads as zeros points at the first record of the log; that is not the message that was asked for. */
static void a_unit_of_zeros_is_damage(void)
{
    static const uint8_t zeros[CMQ_UNIT_BYTES];
    start();
    kit_append_many(store, "Other", "o", 3);
    kit_append_many(store, "T", "m", 50);
    kit_close(store);
    kit_write_bytes(kit_path(root, "consumequeue/T/0/00000000000000000000"), CMQ_UNIT_BYTES, zeros, sizeof zeros);
    store = kit_open_at(root);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, 1, &found->batch), CMQ_ERR_CORRUPT);
    CHECK_INT(found->batch.count, 0);
    release();
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 2, &found->batch));
    CHECK(kit_body_is(&found->items[0], "m2"));
    release();
    stop();
}

/* One bit of a unit's physical offset: behind the log, or before its first byte. */
static void a_unit_that_points_out_of_the_log_is_damage(void)
{
    static const int64_t bytes[] = {0, 1, 4};
    start();
    kit_append_many(store, "T", "m", 50);
    kit_close(store);
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        kit_flip(kit_path(root, "consumequeue/T/0/00000000000000000000"), (int64_t)i * CMQ_UNIT_BYTES + bytes[i], 128);
    store = kit_open_at(root);
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, (int64_t)i, &found->batch), CMQ_ERR_CORRUPT);
        CHECK_INT(found->batch.count, 0);
        release();
    }
    stop();
}

CMQ_TEST_MAIN(CMQ_TEST(by_physical_offset_and_id), CMQ_TEST(by_queue_offset), CMQ_TEST(a_unit_of_zeros_is_damage),
              CMQ_TEST(a_unit_that_points_out_of_the_log_is_damage),
              CMQ_TEST(damaged_bodies_are_reported), CMQ_TEST(by_key), CMQ_TEST(by_unique_key),
              CMQ_TEST(by_key_and_time), CMQ_TEST(by_time), CMQ_TEST(by_time_after_retention),
              CMQ_TEST(without_an_index))
