/* Tests csrc/export/cmq_spark_rows.c and cmq_ipc_file.c: rows of Spark become a whole file with the length and checksum
 * that are reported; values that cannot be written are refused, bytes that are no rows too, and leave no file. That the
 * files are Arrow's is for the readers in tests/spark.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "export/cmq_spark_rows.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define COLUMNS 7u

enum { BODY, TOPIC, TAGS, KEYS, PROPERTIES, QUEUE, SHARD };

static const uint8_t all_kinds[COLUMNS] = {CMQ_SPARK_BODY,       CMQ_SPARK_TOPIC,    CMQ_SPARK_TAGS,     CMQ_SPARK_KEYS,
                                           CMQ_SPARK_PROPERTIES, CMQ_SPARK_QUEUE_32, CMQ_SPARK_SHARD_KEY};
static const uint8_t list_kinds[] = {CMQ_SPARK_BODY, CMQ_SPARK_KEY_LIST, CMQ_SPARK_QUEUE_8};

/* ---- rows as Spark makes them ---- */

typedef struct row {
    uint8_t bytes[1 << 16];
    size_t used;
} row;

static row made;

static void put_word(row *into, size_t at, uint64_t word) { memcpy(into->bytes + at, &word, sizeof word); }

/* A row of `count` columns that are all null. */
static void begin(uint32_t count)
{
    made = (row){.used = 8 + 8 * (size_t)count};
    put_word(&made, 0, UINT64_MAX >> (64 - count));
}

static void clear_null(uint32_t column)
{
    uint64_t nulls;
    memcpy(&nulls, made.bytes, sizeof nulls);
    put_word(&made, 0, nulls & ~(UINT64_C(1) << column));
}

static void set_number(uint32_t column, uint64_t word)
{
    clear_null(column);
    put_word(&made, 8 + 8 * (size_t)column, word);
}

static void set_bytes(uint32_t column, const void *data, size_t bytes)
{
    set_number(column, (uint64_t)made.used << 32 | bytes);
    if (bytes > 0) memcpy(made.bytes + made.used, data, bytes);
    made.used += (bytes + 7) / 8 * 8;
}

static void set_text(uint32_t column, const char *text) { set_bytes(column, text, strlen(text)); }

/* An array of texts, where NULL is a null; returns its bytes. */
static size_t put_array(uint8_t *into, const char *const *texts, uint32_t count)
{
    uint64_t nulls = 0;
    size_t used = 16 + 8 * (size_t)count;
    const uint64_t elements = count;
    memcpy(into, &elements, 8);
    for (uint32_t i = 0; i < count; i++) {
        const size_t bytes = texts[i] == NULL ? 0 : strlen(texts[i]);
        const uint64_t word = (uint64_t)used << 32 | bytes;
        if (texts[i] == NULL) nulls |= UINT64_C(1) << i;
        memcpy(into + 16 + 8 * (size_t)i, &word, 8);
        if (bytes > 0) memcpy(into + used, texts[i], bytes);
        used += (bytes + 7) / 8 * 8;
    }
    memcpy(into + 8, &nulls, 8);
    return used;
}

static void set_list(uint32_t column, const char *const *texts, uint32_t count)
{
    static uint8_t array[4096];
    set_bytes(column, array, put_array(array, texts, count));
}

static void set_map(uint32_t column, const char *const *names, const char *const *values, uint32_t count)
{
    static uint8_t map[1 << 15];
    const uint64_t names_bytes = put_array(map + 8, names, count);
    memcpy(map, &names_bytes, 8);
    const size_t values_bytes = put_array(map + 8 + names_bytes, values, count);
    set_bytes(column, map, 8 + names_bytes + values_bytes);
}

/* ---- a file ---- */

static char file_path[CMQ_PATH_BYTES];   /* of the newest file */

/* At file_path. */
static cmq_spark_rows *create_there(const uint8_t *of, uint32_t count, bool has_topic)
{
    cmq_spark_rows *rows;
    const cmq_spark_options options = {.fs = cmq_fs_posix(),
                                       .path = file_path,
                                       .kinds = of,
                                       .count = count,
                                       .body_bytes_max = 1000,
                                       .has_topic = has_topic};
    CHECK_OK(cmq_spark_rows_create(&options, &rows));
    return rows;
}

static cmq_spark_rows *create(const uint8_t *of, uint32_t count, bool has_topic)
{
    CHECK_OK(cmq_path_join(file_path, kit_directory(), "rows.tmp"));
    return create_there(of, count, has_topic);
}

/* In memory of its own of that size, so that a sanitizer sees a byte too far. */
static cmq_status take(cmq_spark_rows *rows, const row *from, size_t bytes, uint64_t said)
{
    size_t taken;
    uint8_t *packed = malloc(8 + bytes);
    memcpy(packed, &said, 8);
    memcpy(packed + 8, from->bytes, bytes);
    const cmq_slice given = {.data = packed, .bytes = 8 + bytes};
    cmq_status status = cmq_spark_rows_take(rows, given, &taken);
    if (status == CMQ_OK && taken == 0) {   /* the batch was full */
        CHECK_OK(cmq_spark_rows_flush(rows));
        status = cmq_spark_rows_take(rows, given, &taken);
    }
    CHECK(status != CMQ_OK || taken == given.bytes);
    free(packed);
    return status;
}

static cmq_status add(cmq_spark_rows *rows) { return take(rows, &made, made.used, made.used); }

static void rows_become_a_whole_file(void)
{
    static const char *const names[] = {"region", "none", "CMQ_HANDOFF"}, *const values[] = {"eu", NULL, "of:0"};
    cmq_spark_file file;
    cmq_spark_rows *rows = create(all_kinds, COLUMNS, false);
    for (int i = 0; i < 70000; i++) {   /* more than a batch has */
        begin(COLUMNS);
        set_text(BODY, i % 3 == 0 ? "" : "body");
        set_text(TOPIC, i % 2 == 0 ? "orders" : "%RETRY%group");
        if (i % 5 != 0) set_text(TAGS, "t\xc3\xa4g | x");
        if (i % 7 != 0) set_text(KEYS, "a b");
        if (i % 2 != 0) set_map(PROPERTIES, names, values, 3);
        if (i % 4 != 0) set_number(QUEUE, 65535);
        if (i % 6 != 0) set_text(SHARD, "customer");
        CHECK_OK(add(rows));
    }
    CHECK_OK(cmq_spark_rows_finish(rows, &file));
    CHECK_STATUS(cmq_spark_rows_finish(rows, &(cmq_spark_file){0}), CMQ_ERR_CLOSED);
    cmq_spark_rows_close(rows);
    CHECK_INT(file.rows, 70000);
    CHECK_INT(kit_file_bytes(file_path), file.bytes);
    uint8_t *content = malloc(file.bytes);
    kit_read_bytes(file_path, 0, content, file.bytes);
    CHECK_INT(cmq_crc32(content, file.bytes), file.crc32);
    CHECK(memcmp(content, "ARROW1\0\0", 8) == 0 && memcmp(content + file.bytes - 6, "ARROW1", 6) == 0);
    free(content);
}

static void a_file_without_rows_or_an_end_is_removed(void)
{
    cmq_spark_file file;
    cmq_spark_rows *rows = create(list_kinds, 3, true);
    CHECK_OK(cmq_spark_rows_finish(rows, &file));
    CHECK_INT(file.rows, 0);
    cmq_spark_rows_close(rows);
    CHECK(!kit_exists(file_path));
    rows = create(list_kinds, 3, true);
    begin(3);
    set_text(BODY, "x");
    CHECK_OK(add(rows));
    CHECK_OK(cmq_spark_rows_flush(rows));
    cmq_spark_rows_close(rows);
    CHECK(!kit_exists(file_path));
    cmq_spark_rows_close(NULL);
}

static void a_file_whose_schema_cannot_be_written_is_removed(void)
{
    cmq_spark_rows *rows;
    const char *root = kit_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = 1, .times = 1, .sys_errno = ENOSPC});
    CHECK_OK(cmq_path_join(file_path, root, "rows.tmp"));
    const cmq_spark_options options = {
        .fs = cmq_file_twin_fs(twin), .path = file_path, .kinds = list_kinds, .count = 3, .body_bytes_max = 10};
    CHECK_STATUS(cmq_spark_rows_create(&options, &rows), CMQ_ERR_DISK_FULL);
    CHECK(rows == NULL && !kit_exists(file_path));
    cmq_file_twin_close(twin);
}

/* ---- values ---- */

/* The row that was made is refused, in words with this text; or, NULL, taken. */
static void check_refusal(const uint8_t *of, uint32_t count, bool has_topic, const char *text)
{
    cmq_spark_rows *rows = create(of, count, has_topic);
    const cmq_status status = add(rows);
    if (text == NULL) CHECK_OK(status);
    else if (status == CMQ_OK || strstr(cmq_last_error()->text, text) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "'%s', not '%s'", status == CMQ_OK ? "taken" : cmq_last_error()->text, text);
    cmq_spark_rows_close(rows);
    CHECK(!kit_exists(file_path));
}

static void check_text(uint32_t column, const char *value, const char *text)
{
    begin(COLUMNS);
    set_text(BODY, "x");
    set_text(column, value);
    check_refusal(all_kinds, COLUMNS, true, text);
}

static void texts_that_cannot_be_written_are_refused(void)
{
    char long_topic[257];
    memset(long_topic, 'a', sizeof long_topic);
    long_topic[128] = '\0';
    check_text(TOPIC, long_topic, "too long");
    check_text(TOPIC, long_topic + 1, NULL);
    memcpy(long_topic, "%DLQ%", 5);
    check_text(TOPIC, long_topic, NULL);
    check_text(TOPIC, "", "empty");
    check_text(TOPIC, "a/b", "the column topic: a name has 'a/b'");
    check_text(TOPIC, "\xc3\xa4", "other than letters");
    check_text(TOPIC, "SCHEDULE_TOPIC_XXXX", "RocketMQ's own");
    check_text(TAGS, " a", "the column tags has ' a'");
    check_text(TAGS, "a\t", "one tag");
    check_text(TAGS, "a||b", "one tag");
    check_text(TAGS, "a\x01" "b", "one tag");
    check_text(TAGS, "|", NULL);
    check_text(TAGS, "", NULL);
    check_text(TAGS, "a\xff", "not UTF-8");
    check_text(KEYS, "a\x02" "b", "the column keys has 'a?b'");
    check_text(KEYS, "\xc3", "not UTF-8");
    check_text(KEYS, " a  b ", NULL);
    check_text(SHARD, "\xff", "the column shardKey has '\xff': it is not UTF-8");   /* Java hashes characters */
    begin(COLUMNS);
    check_refusal(all_kinds, COLUMNS, true, "the column body has a null");
    set_text(BODY, "x");
    check_refusal(all_kinds, COLUMNS, false, "the column topic has a null");
    static char large[1001];
    set_bytes(BODY, large, 1001);
    check_refusal(all_kinds, COLUMNS, true, "1001 bytes; at most 1000");
    begin(COLUMNS);
    set_bytes(BODY, large, 1000);
    check_refusal(all_kinds, COLUMNS, true, NULL);
}

static void check_queue(const uint8_t *of, uint32_t count, uint32_t column, int64_t queue, const char *text)
{
    begin(count);
    set_text(BODY, "x");
    set_number(column, (uint64_t)queue);
    check_refusal(of, count, true, text);
}

static void queues_are_read_by_their_width(void)
{
    check_queue(all_kinds, COLUMNS, QUEUE, 65535, NULL);
    check_queue(all_kinds, COLUMNS, QUEUE, 65536, "has 65536; queues are 0 to 65,535");
    check_queue(all_kinds, COLUMNS, QUEUE, UINT32_MAX, "has -1;");
    check_queue(all_kinds, COLUMNS, QUEUE, (INT64_C(1) << 40) + 3, NULL);   /* above its 32 bits is nothing */
    check_queue(list_kinds, 3, 2, 128, "has -128;");
    check_queue(list_kinds, 3, 2, 127, NULL);
    check_queue((const uint8_t[]){CMQ_SPARK_BODY, CMQ_SPARK_QUEUE_16}, 2, 1, 0xFFFF, "has -1;");
    check_queue((const uint8_t[]){CMQ_SPARK_BODY, CMQ_SPARK_QUEUE_64}, 2, 1, INT64_MIN, "has -9223372036854775808;");
}

static void check_list(const char *const *keys, uint32_t count, const char *text)
{
    begin(3);
    set_text(BODY, "x");
    set_list(1, keys, count);
    check_refusal(list_kinds, 3, true, text);
}

static void check_map(const char *name, const char *value, const char *text)
{
    begin(COLUMNS);
    set_text(BODY, "x");
    set_map(PROPERTIES, &name, &value, 1);
    check_refusal(all_kinds, COLUMNS, true, text);
}

static void lists_and_maps_are_checked(void)
{
    check_list((const char *const[]){"a", "b"}, 2, NULL);
    check_list(NULL, 0, NULL);
    check_list((const char *const[]){"a", NULL}, 2, "null or has a blank");
    check_list((const char *const[]){"a b"}, 1, "null or has a blank");
    check_list((const char *const[]){"a\x01"}, 1, "control character");
    check_map("region", "eu", NULL);
    check_map("region", "", NULL);
    check_map("TAGS", "x", "the column properties: TAGS has a column of its own");
    check_map("KEYS", "x", "a column of its own");
    check_map("a", "b\x02", "the column properties");
    check_map("", "b", "the column properties");
    check_map("a", "\xff", "not UTF-8");
    static char value[32600];
    memset(value, 'v', sizeof value - 1);
    check_map("a", value, "the columns tags, keys, properties of a row together have");
    value[32500] = '\0';
    check_map("a", value, NULL);
}

static void the_last_pair_of_a_name_is_kept(void)
{
    static const char *const names[] = {"a", "b", "a", "a"};
    static const char *const twice[] = {"1", "2", "3", NULL}, *const once[] = {NULL, "2", "3", NULL};
    cmq_spark_file files[2];
    for (int i = 0; i < 2; i++) {
        cmq_spark_rows *rows = create(all_kinds, COLUMNS, true);
        begin(COLUMNS);
        set_text(BODY, "x");
        set_map(PROPERTIES, names, i == 0 ? twice : once, 4);
        CHECK_OK(add(rows));
        CHECK_OK(cmq_spark_rows_finish(rows, &files[i]));
        cmq_spark_rows_close(rows);
        CHECK_OK(cmq_fs_remove(cmq_fs_posix(), file_path));
    }
    CHECK_INT(files[0].crc32, files[1].crc32);
}

/* ---- bytes ---- */

static void columns_that_are_none_are_refused(void)
{
    static const struct {
        uint8_t kinds[8];
        uint32_t count;
    } wrong[] = {{{0}, 0},
                 {{CMQ_SPARK_TAGS}, 1},
                 {{CMQ_SPARK_BODY, CMQ_SPARK_KIND_COUNT}, 2},
                 {{CMQ_SPARK_BODY, CMQ_SPARK_KEYS, CMQ_SPARK_KEY_LIST}, 3},
                 {{CMQ_SPARK_BODY, CMQ_SPARK_BODY}, 2},
                 {{0, 1, 2, 3, 4, 5, 6, 7}, 8}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cmq_spark_rows *rows;
        CHECK_OK(cmq_path_join(file_path, kit_directory(), "rows.tmp"));
        const cmq_spark_options options = {.fs = cmq_fs_posix(),
                                           .path = file_path,
                                           .kinds = wrong[i].kinds,
                                           .count = wrong[i].count,
                                           .body_bytes_max = 10};
        CHECK_STATUS(cmq_spark_rows_create(&options, &rows), CMQ_ERR_ARGUMENT);
        CHECK(rows == NULL && !kit_exists(file_path));
    }
}

static void cut_lengths_of_rows_are_refused(void)
{
    for (size_t bytes = 1; bytes < 8; bytes++) {
        size_t taken;
        cmq_spark_rows *rows = create(list_kinds, 3, true);
        uint8_t *packed = calloc(1, bytes);
        CHECK_STATUS(cmq_spark_rows_take(rows, (cmq_slice){.data = packed, .bytes = bytes}, &taken), CMQ_ERR_ARGUMENT);
        free(packed);
        cmq_spark_rows_close(rows);
    }
}

static void failed_file_takes_and_gives_nothing_more(void)
{
    begin(3);
    set_text(BODY, "body");
    const row whole = made;
    cmq_spark_rows *rows = create(list_kinds, 3, true);
    CHECK_OK(take(rows, &whole, whole.used, whole.used));
    CHECK_STATUS(take(rows, &whole, 1, whole.used), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(take(rows, &whole, whole.used, whole.used), CMQ_ERR_CLOSED);
    CHECK_STATUS(cmq_spark_rows_flush(rows), CMQ_ERR_CLOSED);
    CHECK_STATUS(cmq_spark_rows_finish(rows, &(cmq_spark_file){0}), CMQ_ERR_CLOSED);
    cmq_spark_rows_close(rows);
    CHECK(!kit_exists(file_path));
}

/* A file of its own for each row: after a refused one it takes no more. */
static cmq_status taken_alone(int form, uint32_t count, const row *one, size_t bytes, size_t said)
{
    cmq_spark_rows *rows = create_there(form == 0 ? all_kinds : list_kinds, count, true);
    const cmq_status status = take(rows, one, bytes, said);
    cmq_spark_rows_close(rows);
    return status;
}

static void cut_and_changed_rows_are_harmless(void)
{
    static const char *const names[] = {"region", "n"}, *const values[] = {"eu", NULL};
    static const char *const keys[] = {"k1", "k2"};
    for (int form = 0; form < 2; form++) {
        const uint32_t count = form == 0 ? COLUMNS : 3;
        begin(count);
        set_text(BODY, "body");
        if (form == 0) {
            set_text(TOPIC, "orders"), set_text(TAGS, "tag"), set_text(KEYS, "key");
            set_map(PROPERTIES, names, values, 2), set_number(QUEUE, 1), set_text(SHARD, "s");
        } else set_list(1, keys, 2);
        const row whole = made;
        CHECK_OK(cmq_path_join(file_path, kit_directory(), "rows.tmp"));
        for (size_t bytes = 0; bytes < whole.used; bytes++) {
            cmq_status status = taken_alone(form, count, &whole, bytes, whole.used);
            CHECK_STATUS(status, CMQ_ERR_ARGUMENT);
            status = taken_alone(form, count, &whole, bytes, bytes);
            CHECK(status == CMQ_OK || status == CMQ_ERR_ARGUMENT);
        }
        for (size_t at = 0; at < whole.used; at++) {
            for (int bit = 0; bit < 8; bit++) {
                row changed = whole;
                changed.bytes[at] ^= (uint8_t)(1 << bit);
                const cmq_status status = taken_alone(form, count, &changed, whole.used, whole.used);
                CHECK(status == CMQ_OK || status == CMQ_ERR_ARGUMENT || status == CMQ_ERR_TOO_LARGE);
            }
        }
    }
}

CMQ_TEST_MAIN(CMQ_TEST(rows_become_a_whole_file), CMQ_TEST(a_file_without_rows_or_an_end_is_removed),
              CMQ_TEST(a_file_whose_schema_cannot_be_written_is_removed),
              CMQ_TEST(texts_that_cannot_be_written_are_refused), CMQ_TEST(queues_are_read_by_their_width),
              CMQ_TEST(lists_and_maps_are_checked), CMQ_TEST(the_last_pair_of_a_name_is_kept),
              CMQ_TEST(columns_that_are_none_are_refused),
              CMQ_TEST(cut_lengths_of_rows_are_refused), CMQ_TEST(failed_file_takes_and_gives_nothing_more),
              CMQ_TEST(cut_and_changed_rows_are_harmless))
