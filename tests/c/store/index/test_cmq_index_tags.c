/* Tests csrc/store/recover/cmq_index_tags.c and csrc/store/index/cmq_index_walk.c: tags in the index, as RocketMQ has
 * them since 5.4, and entries of kinds that are not known.
 *
 * Checks: every way of appending, a recovery and a repair enter the same tags; where the options do not say, a store
 *         goes on as its newest entries; verify takes no tag for damage; a repair keeps entries that it does not know.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/index/cmq_index.h"
#include "support/cmq_repair_kit.h"

static char root[CMQ_PATH_BYTES];

static void begin(void) { snprintf(root, sizeof root, "%s", kit_path(kit_directory(), "store")); }

static cmq_store *open_tags(cmq_index_tags tags)
{
    cmq_store_options options = kit_options(root);
    options.index_tags = tags;
    return kit_open(&options);
}

static cmq_index *open_index(bool read_only)
{
    cmq_index *index;
    const cmq_index_options options = {.fs = cmq_fs_posix(),
                                       .root = root,
                                       .read_only = read_only,
                                       .slots = KIT_INDEX_SLOTS,
                                       .entries = KIT_INDEX_ENTRIES,
                                       .clock = kit_clock()};
    CHECK_OK(cmq_index_create(&index, &options));
    CHECK_OK(cmq_index_load(index));
    return index;
}

static uint32_t entries_of(uint32_t hash)
{
    int64_t phy[1024];
    uint32_t count;
    cmq_index_cursor cursor = {0};
    cmq_index *index = open_index(true);
    CHECK_OK(cmq_index_query(index, hash, 0, INT64_MAX, 0, &cursor, phy, 1024, &count));
    cmq_index_destroy(index);
    return count;
}

static uint32_t tagged(const char *tag)
{
    return entries_of(cmq_index_tags_hash(cmq_index_topic_seed(kit_slice("T")), kit_slice(tag)));
}

static void check_verified(int unknown)
{
    cmq_verified verified;
    const int *counts = kit_verify(root, &verified);
    for (int kind = 0; kind <= CMQ_PROBLEM_TIME; kind++)
        CHECK_INT(counts[kind], kind == CMQ_PROBLEM_INDEX_UNKNOWN ? unknown : 0);
    CHECK_INT(verified.verdict, CMQ_SEVERITY_NOTE);
    CHECK_INT(verified.keys_missing, 0);
}

static cmq_column slices(const cmq_slice *values) { return (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = values}; }
static cmq_column one(const char *value) { return (cmq_column){.kind = CMQ_COLUMN_ONE, .one = kit_slice(value)}; }

/* Twelve messages with the tag "a" and six with "b", in every way: alone, as columns, with one tag for all, in a batch
 * of one segment, by properties, half and committed; and some without. */
static void append_in_every_way(cmq_store *store)
{
    cmq_appended appended;
    const cmq_slice bodies[] = {kit_slice("1"), kit_slice("2"), kit_slice("3"), kit_slice("4")};
    const cmq_slice tags[] = {kit_slice("a"), kit_slice("b"), CMQ_SLICE_NONE, kit_slice("a")};
    const cmq_slice keys[] = {kit_slice("long-key-1"), CMQ_SLICE_NONE, kit_slice("k l"), kit_slice("m")};
    kit_append(store, "T", 0, "body", "a", NULL);
    kit_append(store, "T", 0, "body", "b", "key");
    kit_append(store, "T", 0, "body", NULL, "key");
    cmq_append append = {.common = {.topic = kit_slice("T")}, .count = 4, .bodies = slices(bodies)};
    append.tags = slices(tags);
    CHECK_OK(cmq_store_append(store, &append, &appended));   /* a run without keys */
    append.keys = slices(keys);
    CHECK_OK(cmq_store_append(store, &append, &appended));   /* a run with keys */
    append.one_segment = true;
    CHECK_OK(cmq_store_append(store, &append, &appended));   /* a batch */
    append.one_segment = false;
    append.count = 2;
    append.tags = one("a");
    append.keys = (cmq_column){0};
    CHECK_OK(cmq_store_append(store, &append, &appended));   /* one tag for all */
    append.tags = (cmq_column){0};
    append.count = 1;
    append.properties = one("TAGS\001a\002UNIQ_KEY\001u\002");
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.properties = one("TAGS\001a\002");
    append.common.sys_flag = CMQ_SYS_TRANSACTION_PREPARED;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.common.sys_flag = CMQ_SYS_TRANSACTION_ROLLBACK;   /* not in the index */
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.common.sys_flag = CMQ_SYS_TRANSACTION_COMMIT;
    append.properties = one("TAGS\001b\002");
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.common.sys_flag = 0;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.properties = one("TAGS\001a\002");
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

static void check_every_way(void)
{
    CHECK_INT(tagged("a"), 12);
    CHECK_INT(tagged("b"), 6);
    check_verified(0);
}

static void tags_are_entered_in_every_way(void)
{
    begin();
    cmq_store *store = open_tags(CMQ_INDEX_TAGS_ON);
    append_in_every_way(store);
    kit_close(store);
    check_every_way();
    /* The same as a repair makes of the log. */
    kit_repair(root);
    check_every_way();
}

static void recovery_enters_tags_again(void)
{
    begin();
    char copy[CMQ_PATH_BYTES];
    snprintf(copy, sizeof copy, "%s", kit_path(kit_directory(), "killed"));
    cmq_store *store = open_tags(CMQ_INDEX_TAGS_ON);
    append_in_every_way(store);
    kit_copy_tree(root, copy);
    kit_close(store);
    for (int with_point = 0; with_point < 2; with_point++) {
        kit_copy_tree(copy, root);
        /* Without our point, recovery goes by upstream's rules: all index files may be torn. */
        if (with_point == 0) kit_remove_tree(kit_path(root, "cometmq"));
        kit_close(open_tags(CMQ_INDEX_TAGS_AS_FOUND));
        check_every_way();
    }
}

static void without_an_option_a_store_goes_on_as_it_was(void)
{
    begin();
    static const struct {
        cmq_index_tags asked;
        uint32_t more;
    } openings[] = {{CMQ_INDEX_TAGS_AS_FOUND, 0}, {CMQ_INDEX_TAGS_ON, 4},       {CMQ_INDEX_TAGS_AS_FOUND, 4},
                    {CMQ_INDEX_TAGS_OFF, 0},      {CMQ_INDEX_TAGS_AS_FOUND, 0}, {CMQ_INDEX_TAGS_ON, 4}};
    uint32_t expected = 0;
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        cmq_store *store = open_tags(openings[i].asked);
        for (int n = 0; n < 4; n++) kit_append(store, "T", 0, "body", "a", "key");
        for (int n = 0; n < 3; n++) kit_append(store, "T", 0, "body", NULL, "key");
        kit_close(store);
        expected += openings[i].more;
        CHECK_INT(tagged("a"), expected);
        check_verified(0);
    }
    kit_repair(root);   /* the newest have them: all get them */
    CHECK_INT(tagged("a"), 24);
    check_verified(0);
}

static void a_repair_keeps_tags_and_unknown_entries(void)
{
    begin();
    cmq_store *store = open_tags(CMQ_INDEX_TAGS_ON);
    kit_append(store, "T", 0, "first", "a", "key");
    kit_append(store, "T", 0, "second", NULL, NULL);
    const cmq_appended last = kit_append(store, "T", 0, "third", "a", "key");
    kit_close(store);
    cmq_index *index = open_index(false);
    const cmq_index_key unknown = {
        .phy = last.first_physical_offset, .store_ms = last.store_timestamp_ms, .hash = 12345};
    int64_t full_ms;
    CHECK_OK(cmq_index_make_room(index, 1));
    cmq_index_put(index, &unknown, 1);
    CHECK_OK(cmq_index_flush(index, &full_ms));
    cmq_index_destroy(index);
    for (int round = 0; round < 2; round++) {
        CHECK_INT(entries_of(12345), 1);
        CHECK_INT(tagged("a"), 2);
        check_verified(1);
        cmq_store_options options = kit_options(root);
        options.index_tags = CMQ_INDEX_TAGS_OFF;   /* what is there stays */
        CHECK_OK(kit_try_repair(root, (cmq_repair_options){.store = &options}));
    }
    CHECK_INT(kit_report.keys, 5);
}

CMQ_TEST_MAIN(CMQ_TEST(tags_are_entered_in_every_way), CMQ_TEST(recovery_enters_tags_again),
              CMQ_TEST(without_an_option_a_store_goes_on_as_it_was), CMQ_TEST(a_repair_keeps_tags_and_unknown_entries))
