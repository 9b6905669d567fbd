/* test_cmq_index: the list of index files against a plain array: rolls, queries with cursors, rewinds, expiry, names,
 * followers, full disks.
 *
 * Threads: yes
 */
#include "store/index/cmq_index.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/cmq_hash.h"
#include "support/cmq_test.h"

#define SLOTS 37
#define ENTRIES 100
#define BEGIN_MS 1700000000000
#define PUTS_MAX 20000

/* ---- a store in memory ---- */

typedef struct model_key {
    int64_t phy, store_ms;
    uint32_t hash;
} model_key;

static model_key model[PUTS_MAX];
static uint32_t model_count;

static _Atomic int64_t clock_ms;

static void key_text(uint32_t number, char into[32]) { snprintf(into, 32, "key-%" PRIu32, number); }

static uint32_t hash_of(const char *topic, const char *key)
{
    char text[300];
    snprintf(text, sizeof text, "%s#%s", topic, key);
    return (uint32_t)cmq_index_hash(cmq_jhash(cmq_slice_of_text(text)));
}

static cmq_index_options options_of(const char *root, bool read_only)
{
    return (cmq_index_options){.fs = cmq_fs_posix(),
                               .root = root,
                               .read_only = read_only,
                               .slots = SLOTS,
                               .entries = ENTRIES,
                               .clock = cmq_clock_manual(&clock_ms)};
}

static cmq_index *open_with(const cmq_index_options *options)
{
    cmq_index *index;
    CHECK_OK(cmq_index_create(&index, options));
    CHECK_OK(cmq_index_load(index));
    return index;
}

static cmq_index *open_index(const char *root, bool read_only)
{
    const cmq_index_options options = options_of(root, read_only);
    return open_with(&options);
}

static void path_of(const char *root, int64_t name, char path[CMQ_PATH_BYTES])
{
    snprintf(path, CMQ_PATH_BYTES, "%s/index/%017" PRId64, root, name);
}

/* Put `records` more, one to four keys each, of a small set so that chains grow; and into the model. */
static void put_records(cmq_index *index, uint32_t records)
{
    cmq_index_key keys[256];
    uint32_t count = 0;
    int64_t phy = model_count > 0 ? model[model_count - 1].phy : 0,
            store_ms = model_count > 0 ? model[model_count - 1].store_ms : BEGIN_MS;
    for (uint32_t i = 0; i < records && count + 4 <= 256 && model_count + 4 <= PUTS_MAX; i++) {
        phy += 100 + (int64_t)cmq_test_random_below(50);
        store_ms += 1 + (int64_t)cmq_test_random_below(1500);
        for (uint64_t left = 1 + cmq_test_random_below(4); left > 0; left--) {
            char key[32];
            key_text((uint32_t)cmq_test_random_below(60), key);
            keys[count] = (cmq_index_key){.phy = phy, .store_ms = store_ms, .hash = hash_of("Topic", key)};
            model[model_count++] = (model_key){.phy = phy, .store_ms = store_ms, .hash = keys[count].hash};
            count++;
        }
    }
    CHECK_OK(cmq_index_make_room(index, count));
    cmq_index_put(index, keys, count);
    atomic_fetch_add(&clock_ms, (int64_t)cmq_test_random_below(3));
}

/* ---- checks ---- */

static uint32_t query_all(cmq_index *index, const char *key, int64_t begin_ms, int64_t end_ms, int64_t min_phy,
                          int64_t *phy, uint32_t capacity)
{
    cmq_index_cursor cursor = {0};
    uint32_t total = 0;
    while (!cursor.done) {
        const uint32_t most = 1 + (uint32_t)cmq_test_random_below(10);
        uint32_t count;
        CHECK(total + most <= capacity);
        CHECK_OK(cmq_index_query(index, hash_of("Topic", key), begin_ms, end_ms, min_phy,
                                 &cursor, phy + total, most, &count));
        CHECK(count <= most && (count == most || cursor.done));
        total += count;
    }
    uint32_t count = 1;
    CHECK_OK(cmq_index_query(index, hash_of("Topic", key), begin_ms, end_ms, min_phy,
                             &cursor, phy, 1, &count));
    CHECK_INT(count, 0);
    return total;
}

/* Every record of the key whose time is in the range is found, once, newest first; other results are at most 999 ms
 * outside. */
static void check_query(cmq_index *index, const char *key, int64_t begin_ms, int64_t end_ms, int64_t min_phy)
{
    static int64_t phy[PUTS_MAX + 16];
    const uint32_t found = query_all(index, key, begin_ms, end_ms, min_phy, phy, PUTS_MAX + 16);
    const uint32_t hash = hash_of("Topic", key);
    uint32_t at = 0;
    int64_t last = INT64_MAX;
    for (uint32_t i = model_count; i > 0; i--) {
        const model_key *expected = &model[i - 1];
        if (expected->hash != hash || expected->phy < min_phy || expected->phy == last) continue;
        last = expected->phy;
        const bool inside = expected->store_ms >= begin_ms && expected->store_ms <= end_ms;
        const bool near = expected->store_ms + 999 >= begin_ms && expected->store_ms - 999 <= end_ms;
        if (at < found && phy[at] == expected->phy) {
            CHECK(near);
            at++;
        } else {
            CHECK(!inside);
        }
    }
    CHECK_INT(at, found);
}

static void check_queries(cmq_index *index, int64_t min_phy)
{
    for (uint32_t i = 0; i < 70; i++) {
        char key[32];
        key_text(i, key);
        check_query(index, key, 0, INT64_MAX, min_phy);
    }
    const int64_t span = model_count > 0 ? model[model_count - 1].store_ms - BEGIN_MS + 2000 : 2000;
    for (uint32_t i = 0; i < 30; i++) {
        char key[32];
        key_text((uint32_t)cmq_test_random_below(60), key);
        const int64_t begin = BEGIN_MS - 1000 + (int64_t)cmq_test_random_below((uint64_t)span);
        check_query(index, key, begin, begin + (int64_t)cmq_test_random_below(20000), min_phy);
    }
}

/* Every file is what a replay of its entries makes of it; all but the last are full; names rise. */
static void check_files(cmq_index *index, const char *root, uint64_t entries_expected)
{
    uint64_t entries = 0;
    int64_t name = 0;
    for (uint32_t i = 0; i < cmq_index_files(index); i++) {
        cmq_index_file_info info;
        CHECK_OK(cmq_index_file_at(index, i, &info));
        char path[CMQ_PATH_BYTES];
        path_of(root, info.name, path);
        bool fits;
        CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, SLOTS, ENTRIES, true, &fits));
        CHECK(fits);
        CHECK(info.name > name);
        name = info.name;
        entries += (uint64_t)info.count - 1;
        if (i + 1 < cmq_index_files(index)) CHECK_INT(info.count, ENTRIES);
    }
    CHECK_INT(entries, entries_expected);
    cmq_index_file_info info;
    CHECK_STATUS(cmq_index_file_at(index, cmq_index_files(index), &info), CMQ_ERR_NOT_FOUND);
}

/* ---- cases ---- */

static void start(void)
{
    model_count = 0;
    atomic_store(&clock_ms, BEGIN_MS);
}

static void rolls_and_queries(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    CHECK_INT(cmq_index_end_phy(index), -1);
    check_queries(index, 0);
    for (int i = 0; i < 30; i++) {
        put_records(index, 1 + (uint32_t)cmq_test_random_below(60));
        CHECK_INT(cmq_index_end_phy(index), model[model_count - 1].phy);
        if (i % 5 == 0) check_queries(index, 0);
    }
    check_queries(index, model[model_count / 2].phy);
    check_files(index, root, model_count);
    cmq_index_destroy(index);

    index = open_index(root, false);
    check_files(index, root, model_count);
    put_records(index, 40);
    check_queries(index, 0);
    check_files(index, root, model_count);
    cmq_index_destroy(index);
}

/* One batch larger than several files; room for more than is put leaves nothing behind. */
static void batches_over_files(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    static cmq_index_key keys[1000];
    for (uint32_t i = 0; i < 1000; i++) keys[i] = (cmq_index_key){.phy = i + 1, .store_ms = BEGIN_MS + i, .hash = i};
    CHECK_OK(cmq_index_make_room(index, 1500));
    CHECK_INT(cmq_index_files(index), 0);   /* not to be seen before they hold something */
    cmq_index_put(index, keys, 1000);
    CHECK_INT(cmq_index_files(index), 11);
    check_files(index, root, 1000);
    for (uint32_t i = 1; i < 11; i++) {
        cmq_index_file_info before, info;
        CHECK_OK(cmq_index_file_at(index, i - 1, &before));
        CHECK_OK(cmq_index_file_at(index, i, &info));
        CHECK_INT(info.begin_phy, before.end_phy + 1);
    }
    cmq_index_destroy(index);
    char folder[CMQ_PATH_BYTES], **names;
    size_t count;
    CHECK_OK(cmq_path_join(folder, root, "index"));
    CHECK_OK(cmq_fs_list(cmq_fs_posix(), folder, &names, &count));
    CHECK_INT(count, 11);
    cmq_fs_free_names(names, count);
}

/* Spec store 4.2: the first entry of a rolled file counts from the end of the file before. */
static void rolled_file_counts_from_the_end_before(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    CHECK_OK(cmq_index_make_room(index, ENTRIES));
    for (int64_t i = 1; i <= ENTRIES; i++) {
        const cmq_index_key key = {.phy = i, .store_ms = i < ENTRIES ? BEGIN_MS + i : BEGIN_MS + 7000, .hash = 5};
        cmq_index_put(index, &key, 1);
    }
    cmq_index_file_info info;
    CHECK_OK(cmq_index_file_at(index, 1, &info));
    CHECK_INT(info.begin_ms, BEGIN_MS + 7000);
    CHECK_INT(info.begin_phy, ENTRIES);
    char path[CMQ_PATH_BYTES];
    path_of(root, info.name, path);
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    uint8_t entry[20];
    CHECK_OK(cmq_file_read(file, 40 + 4 * SLOTS + 20, entry, sizeof entry));
    cmq_file_close(file);
    CHECK_INT(cmq_load_i32(entry + 12), 6);   /* 7000 - 99 ms */
    cmq_index_destroy(index);
}

/* A query goes on in the next older file when the one it stood in is gone, from the slot's head there. */
static void cursor_of_a_file_that_is_gone(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    CHECK_OK(cmq_index_make_room(index, 3 * ENTRIES));
    for (int64_t i = 1; i < 3 * ENTRIES - 3; i++) {
        const cmq_index_key key = {.phy = i, .store_ms = BEGIN_MS + i, .hash = hash_of("Topic", "k")};
        cmq_index_put(index, &key, 1);
    }
    cmq_index_file_info first, second;
    CHECK_OK(cmq_index_file_at(index, 0, &first));
    CHECK_OK(cmq_index_file_at(index, 1, &second));
    atomic_fetch_add(&clock_ms, 1000);
    cmq_index_cursor cursor = {.file_name = second.name, .entry = 50};
    CHECK_OK(cmq_index_cut(index, second.begin_phy));   /* as when a writer elsewhere went back */
    CHECK_INT(cmq_index_files(index), 1);
    int64_t phy[ENTRIES];
    uint32_t count;
    CHECK_OK(cmq_index_query(index, hash_of("Topic", "k"), 0, INT64_MAX, 0, &cursor, phy,
                             ENTRIES, &count));
    CHECK_INT(count, ENTRIES - 1);
    CHECK_INT(phy[0], first.end_phy);
    CHECK(cursor.done);
    cmq_index_destroy(index);
}

/* Spec store 4.4: the name is local time; a later file's is later also when the clock stands or goes back. */
static void names_rise(void)
{
    start();
    setenv("TZ", "XST-5:30", 1);   /* five and a half hours east, without a data base */
    tzset();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    atomic_store(&clock_ms, 1798741799998);   /* 2026-12-31T23:59:59.998 there */
    for (int i = 0; i < 4; i++) {
        put_records(index, 60);
        atomic_store(&clock_ms, 1798741799998 - i * 3600000);
    }
    static const int64_t names[] = {20261231235959998, 20261231235959999, 20270101000000000};
    CHECK(cmq_index_files(index) >= 4);
    cmq_index_file_info info;
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_OK(cmq_index_file_at(index, i, &info));
        CHECK_INT(info.name, names[i]);
    }
    check_files(index, root, model_count);
    /* A name that another process took is passed over. */
    CHECK_OK(cmq_index_file_at(index, cmq_index_files(index) - 1, &info));
    char path[CMQ_PATH_BYTES];
    path_of(root, info.name + 1, path);
    cmq_file *foreign;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE_NEW, &foreign));
    cmq_file_close(foreign);
    const uint32_t files = cmq_index_files(index);
    while (cmq_index_files(index) == files) put_records(index, 20);
    CHECK_OK(cmq_index_file_at(index, files, &info));
    CHECK(info.name > 20270101000000000);
    cmq_index_destroy(index);
    unsetenv("TZ");
    tzset();
}

static void load_skips_foreign_files(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    put_records(index, 20);
    cmq_index_destroy(index);
    static const char *const names[] = {"notes.txt", "2026", "20260101000000000x", "00000000000000000",
                                        "20260101000000001"};
    for (size_t i = 0; i < 5; i++) {
        char path[CMQ_PATH_BYTES];
        snprintf(path, sizeof path, "%s/index/%s", root, names[i]);
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE_NEW,
                               &file)); /* the last one: a creation that did not finish */
        cmq_file_close(file);
    }
    char folder[CMQ_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s/index/20260101000000002", root);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
    index = open_index(root, true);
    CHECK_INT(cmq_index_files(index), 1);
    cmq_index_destroy(index);
    index = open_index(root, false);
    CHECK_INT(cmq_index_files(index), 1);
    check_queries(index, 0);
    cmq_index_destroy(index);

    cmq_index_options options = options_of(root, false);
    options.entries++;
    CHECK_OK(cmq_index_create(&index, &options));
    CHECK_STATUS(cmq_index_load(index), CMQ_ERR_SETTING);
    cmq_index_destroy(index);
    options.entries = 1;
    CHECK_STATUS(cmq_index_create(&index, &options), CMQ_ERR_ARGUMENT);
    CHECK(index == NULL);
}

/* Upstream's rule after a crash; and that the keys from the returned offset on, put again, give everything back. */
static void drop_newer(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    for (int i = 0; i < 8; i++) put_records(index, 40);
    cmq_index_position position;
    int64_t full_end_ms, from;
    do {   /* until the last file holds more than the rest of a record that began in the one before */
        put_records(index, 1);
        cmq_index_at(index, &position);
        CHECK_OK(cmq_index_flush(index, &full_end_ms));
    } while (position.count < 6 || position.count >= ENTRIES);
    const uint32_t files = cmq_index_files(index);
    CHECK(files >= 3);
    cmq_index_file_info info;
    CHECK_OK(cmq_index_file_at(index, files - 1, &info));
    CHECK(info.end_ms > full_end_ms);
    CHECK_OK(cmq_index_drop_newer(index, full_end_ms, &from));
    CHECK_INT(cmq_index_files(index), files - 1);
    CHECK_OK(cmq_index_file_at(index, files - 2, &info));
    CHECK_INT(info.end_ms, full_end_ms);
    CHECK_INT(from, info.end_phy);
    const uint32_t all = model_count;
    for (uint32_t i = 0; i < all; i++) {
        if (model[i].phy < from) continue;
        const cmq_index_key key = {.phy = model[i].phy, .store_ms = model[i].store_ms, .hash = model[i].hash};
        CHECK_OK(cmq_index_make_room(index, 1));
        cmq_index_put(index, &key, 1);
    }
    check_queries(index, 0);   /* the record at `from` has its keys twice, but is given once */
    CHECK_OK(cmq_index_drop_newer(index, 0, &from));
    CHECK_INT(cmq_index_files(index), 0);
    CHECK_INT(from, 0);
    CHECK_INT(cmq_index_end_phy(index), -1);
    model_count = 0;
    put_records(index, 10);
    check_queries(index, 0);
    cmq_index_destroy(index);
}

static void cut_model(cmq_index *index, int64_t log_end)
{
    while (model_count > 0 && model[model_count - 1].phy >= log_end) model_count--;
    CHECK_OK(cmq_index_cut(index, log_end));
    const int64_t end_phy = cmq_index_end_phy(index);
    CHECK(end_phy < log_end);
    if (cmq_index_files(index) > 0 && model_count > 0) CHECK_INT(end_phy, model[model_count - 1].phy);
}

/* Every entry as it was put, but for what lies below the second. */
static void entries_one_by_one(void)
{
    start();
    cmq_index *index = open_index(cmq_test_directory(), false);
    for (int i = 0; i < 5; i++) put_records(index, 60);
    uint32_t at = 0;
    cmq_index_key key;
    for (uint32_t i = 0; i < cmq_index_files(index); i++) {
        cmq_index_file_info info;
        CHECK_OK(cmq_index_file_at(index, i, &info));
        for (int32_t entry = 1; entry < info.count; entry++, at++) {
            CHECK_OK(cmq_index_entry_at(index, i, entry, &key));
            CHECK_INT(key.phy, model[at].phy);
            CHECK_INT(key.hash, model[at].hash);
            CHECK(key.store_ms <= model[at].store_ms && key.store_ms + 1000 > model[at].store_ms);
        }
        CHECK_STATUS(cmq_index_entry_at(index, i, 0, &key), CMQ_ERR_ARGUMENT);
        CHECK_STATUS(cmq_index_entry_at(index, i, info.count, &key), CMQ_ERR_ARGUMENT);
    }
    CHECK_INT(at, model_count);
    CHECK_STATUS(cmq_index_entry_at(index, cmq_index_files(index), 1, &key), CMQ_ERR_NOT_FOUND);
    /* Cut at every record in turn: exactly the entries before it are left. */
    while (model_count > 0) {
        cut_model(index, model[model_count - 1].phy);
        check_query(index, "key-7", 0, INT64_MAX, 0);
    }
    CHECK_INT(cmq_index_files(index), 0);
    CHECK_OK(cmq_index_cut(index, 0));
    put_records(index, 5);
    check_queries(index, 0);
    cmq_index_destroy(index);
}

/* Random work, flushes, crashes that lose nothing or go back to the durable point, expiry, followers. */
static void random_work(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false), *follower = open_index(root, true);
    cmq_index_position durable = {0};
    uint32_t durable_count = 0, expired = 0, last;
    int64_t min_phy = 0, full_end_ms;
    for (int step = 0; step < 200; step++) {
        switch (cmq_test_random_below(8)) {
        case 0:
            cmq_index_at(index, &durable);
            CHECK_OK(cmq_index_flush(index, &full_end_ms));
            durable_count = model_count;
            break;
        case 1:   /* a clean reopening */
            cmq_index_destroy(index);
            index = open_index(root, false);
            break;
        case 2:   /* a crash: back to the durable point */
            cmq_index_destroy(index);
            index = open_index(root, false);
            CHECK_OK(cmq_index_rewind(index, &durable, false));
            model_count = durable_count;
            atomic_fetch_add(&clock_ms, 1000);   /* or a new file could get a removed one's name, which a follower
                                                  * cannot tell */
            if (model_count == 0) min_phy = 0;
            break;
        case 3:
            if (durable_count == 0) break;
            if (model[durable_count / 2].phy > min_phy) min_phy = model[durable_count / 2].phy;
            CHECK_OK(cmq_index_expire(index, min_phy));
            break;
        case 4:   /* a power loss that took the end of the log */
            if (model_count == 0) break;
            last = model_count - 1 - (uint32_t)cmq_test_random_below(model_count < 150 ? model_count : 150);
            if (model[last].phy - 50 <= min_phy) break;   /* a log does not end before it begins */
            cut_model(index, model[last].phy - (int64_t)cmq_test_random_below(50));
            atomic_fetch_add(&clock_ms, 1000);
            cmq_index_at(index, &durable);
            CHECK_OK(cmq_index_flush(index, &full_end_ms));
            durable_count = model_count;
            break;
        default:
            put_records(index, 1 + (uint32_t)cmq_test_random_below(30));
        }
        if (step % 10 == 0) {
            check_queries(index, min_phy);
            CHECK_OK(cmq_index_refresh(follower));
            check_queries(follower, min_phy);
            CHECK_INT(cmq_index_files(follower), cmq_index_files(index));
        }
        uint64_t entries = 0;
        for (uint32_t i = 0; i < cmq_index_files(index); i++) {
            cmq_index_file_info info;
            CHECK_OK(cmq_index_file_at(index, i, &info));
            entries += (uint64_t)info.count - 1;
        }
        CHECK(entries <= model_count);
        expired = (uint32_t)(model_count - entries);
        for (uint32_t i = 0; i < expired; i++) CHECK(model[i].phy < min_phy);
        check_files(index, root, model_count - expired);
    }
    cmq_index_destroy(index);
    cmq_index_destroy(follower);
}

/* The newest file lost all but its first half of bytes: the durable point does not fit, and says so. */
static void rewind_to_deleted_files(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    put_records(index, 60);
    cmq_index_position position;
    int64_t full_end_ms;
    cmq_index_at(index, &position);
    CHECK_OK(cmq_index_flush(index, &full_end_ms));
    cmq_index_position other = position;
    other.file_name += 1;
    CHECK_STATUS(cmq_index_rewind(index, &other, false), CMQ_ERR_CORRUPT);
    other = position;
    other.count += 1;
    CHECK_STATUS(cmq_index_rewind(index, &other, false), CMQ_ERR_CORRUPT);
    check_queries(index, 0);   /* nothing was changed */
    CHECK_OK(cmq_index_rewind(index, &(cmq_index_position){0}, false));
    CHECK_INT(cmq_index_files(index), 0);
    cmq_index_destroy(index);
}

static void collisions_and_doubles(void)
{
    start();
    cmq_index *index = open_index(cmq_test_directory(), false);
    /* "AaAa" and "BBBB" have one hash; a record with both is given once, and both keys give both records. */
    const uint32_t hash = hash_of("Topic", "AaAa");
    CHECK_INT(hash, hash_of("Topic", "BBBB"));
    const cmq_index_key keys[] = {{.phy = 0, .store_ms = BEGIN_MS, .hash = hash},
                                  {.phy = 0, .store_ms = BEGIN_MS, .hash = hash},
                                  {.phy = 500, .store_ms = BEGIN_MS + 10, .hash = hash},
                                  {.phy = 500, .store_ms = BEGIN_MS + 10, .hash = hash}};
    CHECK_OK(cmq_index_make_room(index, 4));
    cmq_index_put(index, keys, 4);
    int64_t phy[20];
    CHECK_INT(query_all(index, "BBBB", 0, INT64_MAX, 0, phy, 20), 2);
    CHECK_INT(query_all(index, "AaAa", 0, INT64_MAX, 0, phy, 20), 2);
    CHECK_INT(query_all(index, "CCCC", 0, INT64_MAX, 0, phy, 20), 0);
    CHECK_INT(cmq_index_end_phy(index), 500);
    cmq_index_destroy(index);
}

/* ---- a disk without space ---- */

static cmq_fs_ops full_ops;
static cmq_fs full_fs = {.ops = &full_ops};
static bool disk_is_full;

static cmq_status full_reserve(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    if (disk_is_full) return cmq_fail_errno(ENOSPC, "cannot reserve");
    return cmq_fs_posix()->ops->reserve(file, offset, bytes);
}

static cmq_status full_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    if (disk_is_full) return cmq_fail_errno(ENOSPC, "cannot write");
    return cmq_fs_posix()->ops->write(file, offset, from, bytes);
}

static void disk_full(void)
{
    start();
    full_ops = *cmq_fs_posix()->ops;
    full_ops.reserve = full_reserve;
    full_ops.write = full_write;
    disk_is_full = false;
    const char *root = cmq_test_directory();
    cmq_index_options options = options_of(root, false);
    options.fs = &full_fs;
    cmq_index *index = open_with(&options);
    put_records(index, 10);
    disk_is_full = true;
    CHECK_STATUS(cmq_index_make_room(index, 500), CMQ_ERR_DISK_FULL);
    CHECK_STATUS(cmq_index_make_room(index, 500), CMQ_ERR_DISK_FULL);
    check_queries(index, 0);
    disk_is_full = false;
    for (int i = 0; i < 10; i++) put_records(index, 60);
    check_queries(index, 0);
    check_files(index, root, model_count);
    cmq_index_destroy(index);

    options.read_only = true;
    index = open_with(&options);
    CHECK_STATUS(cmq_index_make_room(index, 1), CMQ_ERR_READ_ONLY);
    cmq_index_destroy(index);
}

/* ---- threads ---- */

static _Atomic int64_t published;   /* records at or below this offset are in the index */
static _Atomic int64_t oldest;      /* records from here on are not expired */
static _Atomic bool ended;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

#define THREAD_KEYS 5
#define PUT_TOGETHER 64u

static void *read_beside(void *context)
{
    cmq_index *index = context;
    static const char *const names[THREAD_KEYS] = {"a", "b", "c", "d", "e"};
    uint32_t at = 0;
    while (!atomic_load(&ended)) {
        const int64_t from = atomic_load(&oldest), to = atomic_load(&published);
        const uint32_t which = at++ % THREAD_KEYS;
        cmq_index_cursor cursor = {0};
        int64_t wanted =
            to - (to - which + THREAD_KEYS) % THREAD_KEYS; /* the newest record of this key that must be there */
        int64_t last = INT64_MAX, phy[16];
        while (!cursor.done) {
            uint32_t count;
            CHECK_OK(cmq_index_query(index, hash_of("Topic", names[which]), 0, INT64_MAX,
                                     from, &cursor, phy, 16, &count));
            for (uint32_t i = 0; i < count; i++) {
                CHECK(phy[i] < last && phy[i] % THREAD_KEYS == which);
                last = phy[i];
                if (phy[i] > wanted) continue;
                CHECK_INT(phy[i], wanted);
                wanted -= THREAD_KEYS;
            }
        }
        CHECK(wanted < atomic_load(&oldest) || wanted < 0);
    }
    return NULL;
}

static void *flush_beside(void *context)
{
    cmq_index *index = context;
    int64_t full = 0;
    while (!atomic_load(&ended)) {
        cmq_index_position position;
        int64_t full_end_ms;
        pthread_mutex_lock(&writing);
        cmq_index_at(index, &position);
        pthread_mutex_unlock(&writing);
        CHECK_OK(cmq_index_flush(index, &full_end_ms));
        CHECK(full_end_ms >= full);
        /* no put is half in, where a file ends either */
        if (position.count > 1) CHECK_INT(position.end_phy % PUT_TOGETHER, PUT_TOGETHER - 1);
        full = full_end_ms;
        if (position.count > 1) CHECK_INT(position.end_ms, BEGIN_MS + position.end_phy);   /* one moment's values */
        const int64_t keep = position.end_phy - 500;
        if (keep <= atomic_load(&oldest)) continue;
        atomic_store(&oldest, keep);
        CHECK_OK(cmq_index_expire(index, keep));
    }
    return NULL;
}

static void readers_and_flush_beside_the_writer(void)
{
    start();
    cmq_index *index = open_index(cmq_test_directory(), false);
    atomic_store(&published, -1);
    atomic_store(&oldest, 0);
    atomic_store(&ended, false);
    pthread_t readers[2], flusher;
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_beside, index) == 0);
    CHECK(pthread_create(&flusher, NULL, flush_beside, index) == 0);
    static const char *const names[THREAD_KEYS] = {"a", "b", "c", "d", "e"};
    for (int64_t phy = 0; phy < PUT_TOGETHER * INT64_C(190);) {
        cmq_index_key keys[PUT_TOGETHER];
        uint32_t count = 0;
        for (; count < PUT_TOGETHER; count++, phy++)
            keys[count] = (cmq_index_key){
                .phy = phy, .store_ms = BEGIN_MS + phy, .hash = hash_of("Topic", names[phy % THREAD_KEYS])};
        pthread_mutex_lock(&writing);
        CHECK_OK(cmq_index_make_room(index, count));
        cmq_index_put(index, keys, count);
        pthread_mutex_unlock(&writing);
        atomic_store(&published, phy - 1);
    }
    atomic_store(&ended, true);
    for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
    pthread_join(flusher, NULL);
    cmq_index_destroy(index);
}

/* ---- foreign bytes ---- */

static void hostile_files(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    for (int i = 0; i < 4; i++) put_records(index, 60);
    cmq_index_position position;
    int64_t full_end_ms, from;
    cmq_index_at(index, &position);
    CHECK_OK(cmq_index_flush(index, &full_end_ms));
    const uint32_t files = cmq_index_files(index);
    for (int round = 0; round < 60; round++) {
        cmq_index_file_info info;
        CHECK_OK(cmq_index_file_at(index, (uint32_t)cmq_test_random_below(files), &info));
        cmq_index_destroy(index);
        char path[CMQ_PATH_BYTES];
        path_of(root, info.name, path);
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
        for (int i = 0; i < 20; i++) {
            const uint64_t noise = cmq_test_random();
            const uint64_t at = cmq_test_random_below(4) == 0
                                    ? cmq_test_random_below(40)
                                    : cmq_test_random_below(40 + 4 * SLOTS + 20 * ENTRIES - 8);
            CHECK_OK(cmq_file_write(file, at, &noise, 1 + cmq_test_random_below(8)));
        }
        cmq_file_close(file);
        index = open_index(root, round % 2 == 0);
        for (uint32_t i = 0; i < 60; i++) {
            char key[32];
            static int64_t phy[4096];
            key_text(i, key);
            (void)query_all(index, key, (int64_t)cmq_test_random(), (int64_t)cmq_test_random(), 0, phy, 4096);
            (void)query_all(index, key, INT64_MIN, INT64_MAX, INT64_MIN, phy, 4096);
        }
        bool fits;
        CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, SLOTS, ENTRIES, true, &fits));
        int32_t slots, entries;
        const cmq_status status = cmq_index_find_split(cmq_fs_posix(), path, &slots, &entries);
        CHECK(status == CMQ_OK || status == CMQ_ERR_AMBIGUOUS);
    }
    cmq_index_destroy(index);
    index = open_index(root, false);
    const cmq_status status = cmq_index_rewind(index, &position, false);
    CHECK(status == CMQ_OK || status == CMQ_ERR_CORRUPT);
    CHECK_OK(cmq_index_drop_newer(index, 0, &from));
    model_count = 0;
    put_records(index, 60);
    cmq_index_destroy(index);
}

/* The flush opens files by name; one that was removed beside it has nothing to keep, and fails nothing. */
static void flush_beside_a_removal(void)
{
    start();
    const char *root = cmq_test_directory();
    cmq_index *index = open_index(root, false);
    cmq_index_file_info first;
    int64_t full_end_ms;
    char path[CMQ_PATH_BYTES];
    while (cmq_index_files(index) < 3) put_records(index, 20);
    CHECK_OK(cmq_index_file_at(index, 0, &first));
    path_of(root, first.name, path);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
    CHECK_OK(cmq_index_flush(index, &full_end_ms));
    cmq_index_destroy(index);
}

static void a_moved_store_gets_no_index_at_its_old_place(void)
{
    char root[CMQ_PATH_BYTES], away[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_fs *fs = cmq_fs_posix();
    CHECK_OK(cmq_path_join(root, cmq_test_directory(), "store"));
    CHECK_OK(cmq_path_join(away, cmq_test_directory(), "away"));
    CHECK_OK(cmq_fs_make_directory(fs, root));
    cmq_index *index = open_index(root, false);
    CHECK_OK(cmq_fs_rename(fs, root, away));
    CHECK_STATUS(cmq_index_make_room(index, 1), CMQ_ERR_IO);
    CHECK_STATUS(cmq_fs_stat(fs, root, &info), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_fs_rename(fs, away, root));
    CHECK_OK(cmq_index_make_room(index, 1));
    cmq_index_destroy(index);
}

CMQ_TEST_MAIN(CMQ_TEST(a_moved_store_gets_no_index_at_its_old_place),
              CMQ_TEST(flush_beside_a_removal), CMQ_TEST(rolls_and_queries), CMQ_TEST(batches_over_files),
              CMQ_TEST(rolled_file_counts_from_the_end_before), CMQ_TEST(cursor_of_a_file_that_is_gone),
              CMQ_TEST(names_rise), CMQ_TEST(load_skips_foreign_files), CMQ_TEST(drop_newer),
              CMQ_TEST(entries_one_by_one), CMQ_TEST(random_work), CMQ_TEST(rewind_to_deleted_files),
              CMQ_TEST(collisions_and_doubles), CMQ_TEST(disk_full), CMQ_TEST(readers_and_flush_beside_the_writer),
              CMQ_TEST(hostile_files))
