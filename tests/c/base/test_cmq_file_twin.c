/* Tests tests/c/support/cmq_file_twin.c, the file system that loses unsynced changes: those it must keep, those it must
 * sometimes lose.
 *
 * Threads: yes
 * "Sometimes" is checked over a few hundred images, whose odds make a miss less likely than one in 10^9.
 */
#include "support/cmq_file_twin.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cmq_lock.h"
#include "support/cmq_test.h"

#define IMAGES 400
#define SECTOR 512
#define PAGE 4096

static char root[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
static cmq_file_twin *twin;
static cmq_fs *fs;

/* ---- helpers ---- */

static const char *in_root(const char *name)
{
    static _Thread_local char paths[4][CMQ_PATH_BYTES];
    static _Thread_local unsigned next;
    char *into = paths[next++ % 4];
    CHECK_OK(cmq_path_join(into, root, name));
    return into;
}

static void start(void)
{
    /* Thousands of images: in memory where the machine has such a directory. */
    if (getenv("TMPDIR") == NULL && access("/dev/shm", W_OK) == 0) CHECK(setenv("TMPDIR", "/dev/shm", 1) == 0);
    const char *directory = cmq_test_directory();
    CHECK_OK(cmq_path_join(root, directory, "store"));
    CHECK_OK(cmq_path_join(image, directory, "image"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    twin = cmq_file_twin_create(root, cmq_test_random());
    fs = cmq_file_twin_fs(twin);
}

static void stop(void)
{
    cmq_file_twin_close(twin);
    twin = NULL;
}

static cmq_file *open_file(const char *name)
{
    cmq_file *file;
    CHECK_OK(cmq_file_open(fs, in_root(name), CMQ_OPEN_CREATE, &file));
    return file;
}

/* A file of `bytes` times `value` that is durable, with its name. */
static cmq_file *durable_file(const char *name, size_t bytes, int value)
{
    cmq_file *file = open_file(name);
    uint8_t *content = malloc(bytes + 1);
    CHECK(content != NULL);
    memset(content, value, bytes + 1);
    CHECK_OK(cmq_file_write(file, 0, content, bytes));
    CHECK_OK(cmq_file_sync(file));
    CHECK_OK(cmq_fs_sync_directory(fs, root));
    free(content);
    return file;
}

/* The file `name` of the last image; its length or -1. `into` must have room. */
static int64_t read_image(const char *name, uint8_t *into, size_t room)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_file_info info;
    CHECK_OK(cmq_path_join(path, image, name));
    const cmq_status status = cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file);
    if (status == CMQ_ERR_NOT_FOUND) return -1;
    CHECK_OK(status);
    CHECK_OK(cmq_file_info_of(file, &info));
    CHECK(info.bytes <= room);
    CHECK_OK(cmq_file_read(file, 0, into, (size_t)info.bytes));
    cmq_file_close(file);
    return (int64_t)info.bytes;
}

static int64_t image_length(const char *name)
{
    static uint8_t content[1 << 18];
    return read_image(name, content, sizeof content);
}

/* The value of a file that has one and the same byte everywhere; -1: no file, -2: empty, -3: mixed. */
static int image_value(const char *name)
{
    uint8_t content[1 << 16];
    const int64_t bytes = read_image(name, content, sizeof content);
    if (bytes <= 0) return bytes < 0 ? -1 : -2;
    for (int64_t i = 1; i < bytes; i++)
        if (content[i] != content[0]) return -3;
    return content[0];
}

static void fill(cmq_file *file, uint64_t offset, size_t bytes, int value)
{
    uint8_t content[1 << 14];
    CHECK(bytes <= sizeof content);
    memset(content, value, bytes);
    CHECK_OK(cmq_file_write(file, offset, content, bytes));
}

/* ---- content ---- */

static void synced_survives_always(void)
{
    start();
    cmq_file *file = durable_file("a", 3000, 'a');
    CHECK(cmq_file_twin_all_durable(twin));
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(image_length("a"), 3000);
        CHECK_INT(image_value("a"), 'a');
    }
    cmq_file_close(file);
    stop();
}

static void sectors_tear_in_every_way(void)
{
    start();
    cmq_file *file = durable_file("a", 4 * SECTOR, 'o');
    fill(file, 0, 4 * SECTOR, 'n');
    CHECK(!cmq_file_twin_all_durable(twin));
    int seen[16] = {0};
    for (int i = 0; i < IMAGES; i++) {
        uint8_t content[4 * SECTOR];
        int which = 0;
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(read_image("a", content, sizeof content), 4 * SECTOR);
        for (int sector = 0; sector < 4; sector++) {
            /* never inside one */
            for (int at = 0; at < SECTOR; at++) CHECK_INT(content[sector * SECTOR + at], content[sector * SECTOR]);
            which |= (content[sector * SECTOR] == 'n') << sector;
        }
        seen[which]++;
    }
    CHECK(seen[0] > 0 && seen[15] > 0);
    int ways = 0;
    for (int which = 0; which < 16; which++) ways += seen[which] > 0;
    CHECK(ways >= 8);
    CHECK_OK(cmq_file_sync(file));
    for (int i = 0; i < 50; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(image_value("a"), 'n');
    }
    cmq_file_close(file);
    stop();
}

static void files_survive_out_of_order(void)
{
    start();
    cmq_file *first = durable_file("a", PAGE, 'o'), *second = durable_file("b", PAGE, 'o');
    fill(first, 0, PAGE, 'n');
    fill(second, 0, PAGE, 'n');
    int only_first = 0, only_second = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        only_first += image_value("a") == 'n' && image_value("b") == 'o';
        only_second += image_value("a") == 'o' && image_value("b") == 'n';
    }
    CHECK(only_first > 0 && only_second > 0);
    cmq_file_close(first);
    cmq_file_close(second);
    stop();
}

/* The one sync that was forgotten among many that were not needed: only one file of many is old. */
static void one_file_alone_gets_lost(void)
{
    enum { FILES = 12 };
    start();
    cmq_file *files[FILES];
    char names[FILES][16];
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof names[i], "f%d", i);
        files[i] = durable_file(names[i], 10, 'o');
        fill(files[i], 0, 10, 'n');
    }
    int one_lost = 0, one_kept = 0;
    for (int i = 0; i < IMAGES; i++) {
        int kept = 0;
        cmq_file_twin_crash_image(twin, image);
        for (int k = 0; k < FILES; k++) kept += image_value(names[k]) == 'n';
        one_lost += kept == FILES - 1;
        one_kept += kept == 1;
    }
    CHECK(one_lost > IMAGES / 40 && one_kept > IMAGES / 100);   /* by chance of each file alone it would be one image in
                                                                 * a thousand */
    for (int i = 0; i < FILES; i++) cmq_file_close(files[i]);
    stop();
}

static void lengths_get_lost(void)
{
    start();
    cmq_file *file = durable_file("a", SECTOR, 'a');
    CHECK_OK(cmq_file_resize(file, 4 * SECTOR));
    fill(file, 2 * SECTOR, SECTOR, 'b');
    int shorter = 0, longer = 0, hole = 0;
    for (int i = 0; i < IMAGES; i++) {
        uint8_t content[4 * SECTOR];
        cmq_file_twin_crash_image(twin, image);
        const int64_t bytes = read_image("a", content, sizeof content);
        CHECK(bytes == SECTOR || bytes == 4 * SECTOR);
        shorter += bytes == SECTOR;
        longer += bytes == 4 * SECTOR;
        hole += bytes == 4 * SECTOR && content[2 * SECTOR] == 0;
        CHECK_INT(content[0], 'a');
    }
    CHECK(shorter > 0 && longer > 0 && hole > 0);
    CHECK_OK(cmq_file_sync(file));
    CHECK_OK(cmq_file_resize(file, 100));
    shorter = longer = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        shorter += image_length("a") == 100;
        longer += image_length("a") == 4 * SECTOR;
    }
    CHECK_INT(shorter + longer, IMAGES);
    CHECK(shorter > 0 && longer > 0);
    cmq_file_close(file);
    stop();
}

static void mapped_stores_are_unsynced_until_synced(void)
{
    start();
    cmq_file *file = durable_file("a", 4 * PAGE, 'o');
    uint8_t *data;
    CHECK_OK(cmq_file_map(file, 0, 4 * PAGE, true, &data));
    memset(data, 'n', 2 * PAGE);
    int lost = 0;
    for (int i = 0; i < 50; i++) {
        cmq_file_twin_crash_image(twin, image);
        lost += image_value("a") != 'n';
    }
    CHECK(lost > 0);
    /* The second page only: it stays, the first does not have to. */
    CHECK_OK(cmq_file_sync_mapped(file, data + PAGE, 10));
    lost = 0;
    for (int i = 0; i < IMAGES; i++) {
        uint8_t content[4 * PAGE];
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(read_image("a", content, sizeof content), 4 * PAGE);
        lost += content[0] == 'o';
        CHECK_INT(content[PAGE], 'n');
        CHECK_INT(content[2 * PAGE - 1], 'n');
    }
    CHECK(lost > 0);
    /* A sync of the file covers the stores; those after it are at risk again, also when the mapping is gone. */
    CHECK_OK(cmq_file_sync(file));
    memset(data + 3 * PAGE, 'x', PAGE);
    cmq_file_unmap(file, data, 4 * PAGE);
    lost = 0;
    for (int i = 0; i < IMAGES; i++) {
        uint8_t content[4 * PAGE];
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(read_image("a", content, sizeof content), 4 * PAGE);
        CHECK_INT(content[0], 'n');
        lost += content[3 * PAGE] == 'o';
    }
    CHECK(lost > 0 && lost < IMAGES);
    cmq_file_close(file);
    stop();
}

/* A version that was written back early stays possible when it has been overwritten since. */
static void versions_between_come_up(void)
{
    start();
    cmq_file *file = durable_file("a", SECTOR, 'a'), *other = open_file("other");
    fill(file, 0, SECTOR, 'b');
    for (int i = 0; i < 200; i++) fill(other, 0, 1, i);   /* time passes */
    fill(file, 0, SECTOR, 'c');
    int seen[3] = {0};
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        const int value = image_value("a");
        CHECK(value >= 'a' && value <= 'c');
        seen[value - 'a']++;
    }
    CHECK(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
    cmq_file_close(file);
    cmq_file_close(other);
    stop();
}

static void punch_is_a_change_and_reserve_is_none(void)
{
    start();
    cmq_file *file = durable_file("a", 2 * PAGE, 'a');
    CHECK_OK(cmq_file_reserve(file, 0, 2 * PAGE));
    CHECK(cmq_file_twin_all_durable(twin));
    CHECK_OK(cmq_file_punch(file, 0, 2 * PAGE));
    int zero = 0, old = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        zero += image_value("a") == 0;
        old += image_value("a") == 'a';
    }
    CHECK(zero > 0 && old > 0);
    cmq_file_close(file);
    stop();
}

/* ---- names ---- */

static void creations_get_lost_until_the_directory_is_synced(void)
{
    start();
    cmq_file *file = open_file("a");
    fill(file, 0, 10, 'a');
    CHECK_OK(cmq_file_sync(file));
    int lost = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK(image_value("a") == 'a' || image_value("a") == -1);   /* whole or not at all */
        lost += image_value("a") == -1;
    }
    CHECK(lost > 0 && lost < IMAGES);
    CHECK_OK(cmq_fs_sync_directory(fs, root));
    for (int i = 0; i < 50; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(image_value("a"), 'a');
    }
    cmq_file_close(file);
    stop();
}

static void renames_get_lost_and_never_half_done(void)
{
    start();
    cmq_file_close(durable_file("a", 10, 'o'));
    cmq_file_close(durable_file("a.tmp", 10, 'n'));
    CHECK_OK(cmq_fs_rename(fs, in_root("a.tmp"), in_root("a")));
    int lost = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        const int value = image_value("a"), tmp = image_value("a.tmp");
        CHECK((value == 'o' && tmp == 'n') || (value == 'n' && tmp == -1));
        lost += value == 'o';
    }
    CHECK(lost > 0 && lost < IMAGES);
    CHECK_OK(cmq_fs_sync_directory(fs, root));
    for (int i = 0; i < 50; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(image_value("a"), 'n');
        CHECK_INT(image_value("a.tmp"), -1);
    }
    stop();
}

/* The old mistake: a file is replaced by one that was not synced. */
static void a_rename_may_outlive_the_content(void)
{
    start();
    cmq_file_close(durable_file("a", 10, 'o'));
    cmq_file *file = open_file("a.tmp");
    fill(file, 0, 10, 'n');
    CHECK_OK(cmq_fs_rename(fs, in_root("a.tmp"), in_root("a")));
    int empty = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK(image_value("a") != -1);   /* the name itself was durable */
        empty += image_value("a") == -2;
    }
    CHECK(empty > 0);
    cmq_file_close(file);
    stop();
}

static void removed_files_come_back(void)
{
    start();
    cmq_file *file = durable_file("a", 10, 'a');
    cmq_file *kept = durable_file("b", 10, 'b');
    fill(file, 0, 10, 'x');
    cmq_file_close(file);
    CHECK_OK(cmq_fs_remove(fs, in_root("a")));
    int back_old = 0, back_new = 0, gone = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        back_old += image_value("a") == 'a';
        back_new += image_value("a") == 'x';
        gone += image_value("a") == -1;
        CHECK_INT(image_value("b"), 'b');
    }
    CHECK_INT(back_old + back_new + gone, IMAGES);
    CHECK(back_old > 0 && back_new > 0 && gone > 0);
    CHECK_OK(cmq_fs_sync_directory(fs, root));
    CHECK(cmq_file_twin_all_durable(twin));
    for (int i = 0; i < 50; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(image_value("a"), -1);
    }
    cmq_file_close(kept);
    stop();
}

static void changes_of_names_are_lost_one_by_one(void)
{
    start();
    cmq_file_close(open_file("a"));
    cmq_file_close(open_file("b"));
    int only_a = 0, only_b = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        const bool a = image_length("a") >= 0, b = image_length("b") >= 0;
        only_a += a && !b;
        only_b += b && !a;
    }
    CHECK(only_a > 0 && only_b > 0);
    stop();
}

/* On one name, changes keep their order: a file that was moved away and whose name was reused must be somewhere. */
static void nothing_durable_falls_between_two_names(void)
{
    start();
    cmq_file_close(durable_file("a", 10, 'o'));
    CHECK_OK(cmq_fs_rename(fs, in_root("a"), in_root("a.bak")));
    cmq_file *file = open_file("a");
    fill(file, 0, 10, 'n');
    CHECK_OK(cmq_file_sync(file));
    cmq_file_close(file);
    int moved = 0, both = 0;
    for (int i = 0; i < IMAGES; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK((image_value("a") == 'o') != (image_value("a.bak") == 'o'));
        moved += image_value("a") == -1;
        both += image_value("a") == 'n';
    }
    CHECK(moved > 0 && both > 0 && moved + both < IMAGES);
    stop();
}

/* A file that moves between two directories is in one of them; a sync of either one settles it, with the creation
 * before it. */
static void moves_between_directories_are_one_change(void)
{
    for (int synced = 1; synced <= 2; synced++) {
        start();
        CHECK_OK(cmq_fs_make_directory(fs, in_root("1")));
        CHECK_OK(cmq_fs_make_directory(fs, in_root("2")));
        cmq_file *file = open_file("1/a");
        fill(file, 0, 10, 'a');
        CHECK_OK(cmq_file_sync(file));
        cmq_file_close(file);
        CHECK_OK(cmq_fs_rename(fs, in_root("1/a"), in_root("2/a")));
        int seen[3] = {0};
        for (int i = 0; i < IMAGES; i++) {
            cmq_file_twin_crash_image(twin, image);
            CHECK(image_value("1/a") == -1 || image_value("2/a") == -1);
            seen[image_value("1/a") == 'a' ? 1 : image_value("2/a") == 'a' ? 2 : 0]++;
        }
        CHECK(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
        CHECK_OK(cmq_fs_sync_directory(fs, in_root(synced == 1 ? "1" : "2")));
        for (int i = 0; i < 50; i++) {
            cmq_file_twin_crash_image(twin, image);
            CHECK_INT(image_value("1/a"), -1);
            CHECK_INT(image_value("2/a"), 'a');
        }
        stop();
    }
}

static void directories_are_durable_when_made_and_lost_when_not_synced(void)
{
    start();
    CHECK_OK(cmq_fs_make_directory(fs, in_root("x//y/z/")));
    CHECK_OK(cmq_fs_make_directory(fs, in_root("x/y")));
    CHECK(cmq_file_twin_all_durable(twin));
    CHECK_INT(cmq_file_twin_calls(twin, CMQ_TWIN_MAKE_DIRECTORY), 3);
    CHECK_INT(cmq_file_twin_calls(twin, CMQ_TWIN_SYNC_DIRECTORY), 3);
    CHECK_OK(cmq_fs_make_directory_unsynced(fs, in_root("x/q")));
    CHECK_INT(cmq_file_twin_calls(twin, CMQ_TWIN_SYNC_DIRECTORY), 3);
    cmq_file *file = open_file("x/q/a");
    fill(file, 0, 10, 'a');
    CHECK_OK(cmq_file_sync(file));
    CHECK_OK(cmq_fs_sync_directory(fs, in_root("x/q")));
    int lost = 0;
    for (int i = 0; i < IMAGES; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file_info info;
        cmq_file_twin_crash_image(twin, image);
        CHECK_OK(cmq_path_join(path, image, "x/y/z"));
        CHECK_OK(cmq_fs_stat(cmq_fs_posix(), path, &info));
        lost += image_value("x/q/a") == -1;   /* with its directory */
    }
    CHECK(lost > 0 && lost < IMAGES);
    cmq_file_close(file);
    CHECK_OK(cmq_fs_remove(fs, in_root("x/q/a")));
    CHECK_OK(cmq_fs_remove_directory(fs, in_root("x/q")));
    CHECK_STATUS(cmq_fs_remove_directory(fs, in_root("x")), CMQ_ERR_IO);
    CHECK_STATUS(cmq_fs_remove(fs, in_root("x/none")), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_fs_sync_all(fs, root));
    CHECK(cmq_file_twin_all_durable(twin));
    stop();
}

/* The replacement for a syncfs that reports no failures syncs each file and name of a tree. */
static void a_tree_is_synced(void)
{
    start();
    CHECK_OK(cmq_fs_make_directory_unsynced(fs, in_root("t/u/v")));
    cmq_file *files[3] = {open_file("t/a"), open_file("t/u/b"), open_file("t/u/v/c")};
    for (int i = 0; i < 3; i++) {
        fill(files[i], 0, 600, (char)('a' + i));
        cmq_file_close(files[i]);
    }
    CHECK(!cmq_file_twin_all_durable(twin));
    CHECK_OK(cmq_fs_sync_tree(fs, root));
    CHECK(cmq_file_twin_all_durable(twin));
    CHECK_STATUS(cmq_fs_sync_tree(fs, in_root("none")), CMQ_ERR_NOT_FOUND);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_SYNC, .nth = 2, .times = 1, .sys_errno = EIO});
    CHECK_STATUS(cmq_fs_sync_tree(fs, root), CMQ_ERR_IO);
    stop();
}

static void existing_files_are_durable(void)
{
    start();
    stop();
    cmq_file *file;
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), in_root("d")));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), in_root("d/a"), CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_write(file, 0, "aaa", 3));
    cmq_file_close(file);
    twin = cmq_file_twin_create(root, cmq_test_random());
    fs = cmq_file_twin_fs(twin);
    for (int i = 0; i < 20; i++) {
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(image_value("d/a"), 'a');
    }
    stop();
}

/* ---- styles and repeatability ---- */

static void styles_all_occur(void)
{
    start();
    cmq_file *file = durable_file("a", 8 * SECTOR, 'o');
    fill(file, 0, 8 * SECTOR, 'n');
    cmq_file_close(open_file("b"));
    int seen[CMQ_TWIN_STYLES] = {0};
    for (int i = 0; i < IMAGES; i++) {
        const cmq_twin_style style = cmq_file_twin_crash_image(twin, image);
        seen[style]++;
        if (i < 2) CHECK_INT(style, i == 0 ? CMQ_TWIN_NOTHING : CMQ_TWIN_EVERYTHING);
        if (style != CMQ_TWIN_MIX) {
            CHECK_INT(image_value("a"), style == CMQ_TWIN_NOTHING ? 'o' : 'n');
            CHECK_INT(image_length("b"), style == CMQ_TWIN_NOTHING ? -1 : 0);
        }
    }
    for (int style = 0; style < CMQ_TWIN_STYLES; style++) CHECK(seen[style] > 0);
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    CHECK_INT(image_value("a"), 'o');
    cmq_file_close(file);
    stop();
}

/* The same calls with the same seed give the same images. */
static uint64_t fingerprint_of_run(uint64_t seed)
{
    start();
    stop();
    twin = cmq_file_twin_create(root, seed);
    fs = cmq_file_twin_fs(twin);
    cmq_file *file = durable_file("a", 8 * SECTOR, 'o');
    uint64_t fingerprint = 0;
    for (int i = 0; i < 40; i++) {
        uint8_t content[8 * SECTOR];
        fill(file, (uint64_t)(i % 8) * SECTOR, SECTOR, i + 1);
        cmq_file_twin_crash_image(twin, image);
        CHECK_INT(read_image("a", content, sizeof content), 8 * SECTOR);
        for (size_t at = 0; at < sizeof content; at += SECTOR) fingerprint = fingerprint * 31 + content[at];
    }
    cmq_file_close(file);
    stop();
    return fingerprint;
}

static void seeds_repeat(void)
{
    const uint64_t first = fingerprint_of_run(7);
    CHECK(first == fingerprint_of_run(7));
    CHECK(first != fingerprint_of_run(8));
}

/* ---- hooks ---- */

typedef struct heard {
    uint64_t count, last_number;
    cmq_twin_kind last_kind;
    char last_path[CMQ_PATH_BYTES];
} heard;

static void hear(void *context, const cmq_twin_call *call)
{
    heard *into = context;
    into->count++;
    into->last_number = call->number;
    into->last_kind = call->kind;
    snprintf(into->last_path, sizeof into->last_path, "%s", call->path);
    cmq_file_twin_crash_image(twin, image);
    cmq_file_close(open_file("made_by_the_hook"));   /* runs no hook */
}

static void hooks_run_before_the_call_takes_effect(void)
{
    start();
    heard all = {0}, one = {0};
    cmq_file *file = durable_file("a", 10, 'o');
    const uint64_t before = cmq_file_twin_calls(twin, CMQ_TWIN_ANY_CHANGE);
    CHECK_INT(before, 4);   /* create, write, sync, sync_directory */
    cmq_file_twin_on_call(twin, 0, hear, &all);
    fill(file, 0, 10, 'n');
    CHECK_INT(all.count, 1);
    CHECK_INT(all.last_kind, CMQ_TWIN_WRITE);
    CHECK_INT(all.last_number, 5);
    CHECK(strcmp(all.last_path, in_root("a")) == 0);
    CHECK_INT(image_value("a"), 'o');
    CHECK_OK(cmq_file_sync(file));
    CHECK_INT(all.last_kind, CMQ_TWIN_SYNC);
    CHECK_INT(all.last_number, 7);   /* 6 was the hook's own creation */
    cmq_file_twin_on_call(twin, 10, hear, &one);
    fill(file, 0, 10, 'x');   /* 8 */
    fill(file, 0, 10, 'x');   /* 9 */
    CHECK_INT(one.count, 0);
    fill(file, 0, 10, 'x');
    CHECK_INT(one.count, 1);
    fill(file, 0, 10, 'x');
    CHECK_INT(one.count, 1);
    cmq_file_twin_on_call(twin, 0, NULL, NULL);
    fill(file, 0, 10, 'x');
    cmq_file_close(file);
    stop();
}

/* ---- faults ---- */

static void fail_next(cmq_twin_kind kind, int sys_errno, bool halfway)
{
    const cmq_twin_fault fault = {.kind = kind, .nth = 1, .times = 1, .sys_errno = sys_errno, .halfway = halfway};
    cmq_file_twin_fail(twin, &fault);
}

static void calls_fail_as_asked(void)
{
    start();
    cmq_file *file = durable_file("a", 10, 'a'), *other;
    uint8_t content[10], *data;
    cmq_file_info info;
    cmq_disk_space space;
    char **names;
    size_t count;
    int64_t holder;
    fail_next(CMQ_TWIN_WRITE, ENOSPC, false);
    CHECK_STATUS(cmq_file_write(file, 0, "xxxxxxxxxx", 10), CMQ_ERR_DISK_FULL);
    CHECK_INT(cmq_last_error()->sys_errno, ENOSPC);
    CHECK_OK(cmq_file_read(file, 0, content, 10));
    CHECK_BYTES(content, 10, "aaaaaaaaaa", 10);
    fail_next(CMQ_TWIN_WRITE, EIO, true);
    CHECK_STATUS(cmq_file_write(file, 0, "xxxxxxxxxx", 10), CMQ_ERR_IO);
    CHECK_OK(cmq_file_read(file, 0, content, 10));
    CHECK_BYTES(content, 10, "xxxxxaaaaa", 10);
    fail_next(CMQ_TWIN_CREATE, ENOSPC, false);
    CHECK_OK(cmq_file_open(fs, in_root("a"), CMQ_OPEN_CREATE, &other));   /* there already: no creation */
    cmq_file_close(other);
    CHECK_STATUS(cmq_file_open(fs, in_root("b"), CMQ_OPEN_CREATE, &other), CMQ_ERR_DISK_FULL);
    CHECK_STATUS(cmq_fs_stat(fs, in_root("b"), &info), CMQ_ERR_NOT_FOUND);
    fail_next(CMQ_TWIN_OPEN, EMFILE, false);
    CHECK_STATUS(cmq_file_open(fs, in_root("a"), CMQ_OPEN_READ, &other), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_READ, EIO, false);
    CHECK_STATUS(cmq_file_read(file, 0, content, 10), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_RESIZE, EIO, false);
    CHECK_STATUS(cmq_file_resize(file, 100), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_RESERVE, ENOSPC, true);
    CHECK_STATUS(cmq_file_reserve(file, 0, 100), CMQ_ERR_DISK_FULL);
    fail_next(CMQ_TWIN_PUNCH, EIO, false);
    CHECK_STATUS(cmq_file_punch(file, 0, 10), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_MAP, ENOMEM, false);
    CHECK_STATUS(cmq_file_map(file, 0, 10, true, &data), CMQ_ERR_MEMORY);
    fail_next(CMQ_TWIN_LOCK, EIO, false);
    CHECK_STATUS(cmq_file_lock(file, &holder), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_STAT, EACCES, false);
    CHECK_STATUS(cmq_fs_stat(fs, in_root("a"), &info), CMQ_ERR_PERMISSION);
    fail_next(CMQ_TWIN_LIST, EIO, false);
    CHECK_STATUS(cmq_fs_list(fs, root, &names, &count), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_RENAME, EIO, false);
    CHECK_STATUS(cmq_fs_rename(fs, in_root("a"), in_root("b")), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_REMOVE, EIO, false);
    CHECK_STATUS(cmq_fs_remove(fs, in_root("a")), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_MAKE_DIRECTORY, ENOSPC, false);
    CHECK_STATUS(cmq_fs_make_directory(fs, in_root("d")), CMQ_ERR_DISK_FULL);
    fail_next(CMQ_TWIN_SYNC_DIRECTORY, EIO, false);
    CHECK_STATUS(cmq_fs_sync_directory(fs, root), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_SYNC_ALL, EIO, false);
    CHECK_STATUS(cmq_fs_sync_all(fs, root), CMQ_ERR_IO);
    fail_next(CMQ_TWIN_DISK_SPACE, EIO, false);
    CHECK_STATUS(cmq_fs_disk_space(fs, root, &space), CMQ_ERR_IO);
    CHECK_INT(cmq_file_twin_failures(twin), 18);
    cmq_file_close(file);
    stop();
}

static void faults_start_and_end_as_asked(void)
{
    start();
    cmq_file *file = durable_file("a", 10, 'a');
    const cmq_twin_fault second_and_third = {.kind = CMQ_TWIN_WRITE, .nth = 2, .times = 2, .sys_errno = EIO};
    cmq_file_twin_fail(twin, &second_and_third);
    static const cmq_status expected[] = {CMQ_OK, CMQ_ERR_IO, CMQ_ERR_IO, CMQ_OK, CMQ_OK};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        CHECK_STATUS(cmq_file_write(file, 0, "x", 1), expected[i]);
    const cmq_twin_fault power_is_gone = {.kind = CMQ_TWIN_ANY_CHANGE, .nth = 2, .times = 0, .sys_errno = EIO};
    cmq_file_twin_fail(twin, &power_is_gone);
    CHECK_OK(cmq_file_resize(file, 20));
    for (int i = 0; i < 5; i++) {
        CHECK_STATUS(cmq_file_write(file, 0, "x", 1), CMQ_ERR_IO);
        CHECK_STATUS(cmq_file_sync(file), CMQ_ERR_IO);
    }
    uint8_t byte;
    CHECK_OK(cmq_file_read(file, 0, &byte, 1));
    cmq_file_twin_clear_faults(twin);
    CHECK_OK(cmq_file_write(file, 0, "x", 1));
    cmq_file_close(file);
    stop();
}

/* After a failed fsync the kernel holds the pages for clean: the next one succeeds and covers nothing of them. */
static void a_failed_sync_is_not_made_good_by_the_next(void)
{
    for (int rewritten = 0; rewritten < 2; rewritten++) {
        start();
        cmq_file *file = durable_file("a", SECTOR, 'o');
        fill(file, 0, SECTOR, 'n');
        fail_next(CMQ_TWIN_SYNC, EIO, false);
        CHECK_STATUS(cmq_file_sync(file), CMQ_ERR_IO);
        if (rewritten == 1) fill(file, 0, SECTOR, 'n');
        CHECK_OK(cmq_file_sync(file));
        int lost = 0;
        for (int i = 0; i < IMAGES; i++) {
            cmq_file_twin_crash_image(twin, image);
            lost += image_value("a") == 'o';
        }
        CHECK(rewritten == 1 ? lost == 0 : lost > 0);
        fill(file, 0, SECTOR, 'm');   /* written again: covered again */
        CHECK_OK(cmq_file_sync(file));
        for (int i = 0; i < 50; i++) {
            cmq_file_twin_crash_image(twin, image);
            CHECK_INT(image_value("a"), 'm');
        }
        cmq_file_close(file);
        stop();
    }
}

static void ignored_syncs_say_ok_and_keep_nothing(void)
{
    start();
    cmq_file *file = durable_file("a", SECTOR, 'o');
    cmq_file_twin_ignore_syncs(twin, CMQ_TWIN_FILE_SYNCS);
    fill(file, 0, SECTOR, 'n');
    CHECK_OK(cmq_file_sync(file));
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    CHECK_INT(image_value("a"), 'o');
    CHECK(!cmq_file_twin_all_durable(twin));
    cmq_file_twin_ignore_syncs(twin, 0);
    CHECK_OK(cmq_file_sync(file));
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    CHECK_INT(image_value("a"), 'n');
    cmq_file_close(file);
    stop();
}

static void disk_space_is_set_by_the_test(void)
{
    start();
    const cmq_disk_space given = {.total_bytes = 100, .free_bytes = 7, .usable_bytes = 5};
    cmq_disk_space space;
    cmq_file_twin_set_disk_space(twin, &given);
    CHECK_OK(cmq_fs_disk_space(fs, root, &space));
    CHECK_INT(space.usable_bytes, 5);
    cmq_file_twin_set_disk_space(twin, NULL);
    CHECK_OK(cmq_fs_disk_space(fs, root, &space));
    CHECK(space.total_bytes > 100);
    stop();
}

/* ---- the lock file ---- */

/* The twin opens files for its own reading; that must not cost the store its lock. */
static void images_do_not_drop_the_lock(void)
{
    start();
    cmq_lock *held, *second;
    CHECK_OK(cmq_lock_acquire(fs, in_root("lock"), &held));
    CHECK_STATUS(cmq_lock_acquire(fs, in_root("lock"), &second), CMQ_ERR_LOCKED);
    for (int i = 0; i < 10; i++) cmq_file_twin_crash_image(twin, image);
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(cmq_lock_acquire(cmq_fs_posix(), in_root("lock"), &second) == CMQ_ERR_LOCKED ? 0 : 1);
    int state;
    CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state));
    CHECK_INT(WEXITSTATUS(state), 0);
    cmq_lock_release(held);
    CHECK_OK(cmq_lock_acquire(fs, in_root("lock"), &held));
    cmq_lock_release(held);
    stop();
}

/* ---- a model: every sector of an image is one that the file had since its last sync ---- */

#define MODEL_SECTORS 12
#define MODEL_VERSIONS 64

typedef struct version {
    uint8_t bytes[MODEL_SECTORS * SECTOR];
    uint64_t length;
} version;

static version versions[MODEL_VERSIONS];   /* since the last sync, the first being what was synced */
static size_t version_count;

static bool length_is_known(int64_t length)
{
    for (size_t i = 0; i < version_count; i++)
        if (versions[i].length == (uint64_t)length) return true;
    return false;
}

static bool sector_is_known(const uint8_t *bytes, size_t at, size_t count)
{
    for (size_t i = 0; i < version_count; i++)
        if (memcmp(versions[i].bytes + at, bytes, count) == 0) return true;
    return false;
}

static void check_against_versions(void)
{
    uint8_t content[MODEL_SECTORS * SECTOR];
    cmq_file_twin_crash_image(twin, image);
    const int64_t length = read_image("a", content, sizeof content);
    CHECK(length_is_known(length));
    for (size_t at = 0; at < (size_t)length; at += SECTOR) {
        const size_t count = (size_t)length - at < SECTOR ? (size_t)length - at : SECTOR;
        CHECK(sector_is_known(content + at, at, count));
    }
}

static void images_are_made_of_versions_since_the_sync(void)
{
    start();
    cmq_file *file = durable_file("a", 0, 0);
    memset(versions, 0, sizeof versions);
    version_count = 1;
    for (int step = 0; step < 1500; step++) {
        if (version_count == MODEL_VERSIONS || cmq_test_random_below(8) == 0) {
            CHECK_OK(cmq_file_sync(file));
            versions[0] = versions[version_count - 1];
            version_count = 1;
        }
        version *next = &versions[version_count];
        *next = versions[version_count - 1];
        version_count++;
        const uint64_t at = cmq_test_random_below(sizeof next->bytes);
        const size_t bytes = (size_t)cmq_test_random_below(sizeof next->bytes - at) + 1;
        const int value = 1 + (int)cmq_test_random_below(255);
        const uint64_t die = cmq_test_random_below(4);
        if (die == 0) {
            CHECK_OK(cmq_file_resize(file, at));
            memset(next->bytes + at, 0, sizeof next->bytes - at);
            next->length = at;
        } else if (die == 1 && next->length > 0) {
            uint8_t *data;
            CHECK_OK(cmq_file_map(file, 0, (size_t)next->length, true, &data));
            memset(data + at % next->length, value, 1);
            next->bytes[at % next->length] = (uint8_t)value;
            cmq_file_unmap(file, data, (size_t)next->length);
        } else {
            fill(file, at, bytes, value);
            memset(next->bytes + at, value, bytes);
            if (next->length < at + bytes) next->length = at + bytes;
        }
        if (cmq_test_random_below(2) == 0) check_against_versions();
    }
    cmq_file_close(file);
    stop();
}

/* ---- the twin's purpose: a log with and without its flush ---- */

#define RECORD_BYTES 100

/* Append records; return how many images lack a record that was acknowledged before. */
static int acknowledged_but_lost(unsigned ignored_syncs)
{
    int missing = 0;
    start();
    cmq_file *file = durable_file("log", 0, 0);
    cmq_file_twin_ignore_syncs(twin, ignored_syncs);
    for (int record = 1; record <= 60; record++) {
        uint8_t content[61 * RECORD_BYTES];
        fill(file, (uint64_t)(record - 1) * RECORD_BYTES, RECORD_BYTES, record);
        CHECK_OK(cmq_file_sync(file));   /* acknowledged */
        cmq_file_twin_crash_image(twin, image);
        const int64_t bytes = read_image("log", content, sizeof content);
        bool whole = bytes == record * RECORD_BYTES;
        for (int64_t i = 0; whole && i < bytes; i++) whole = content[i] == i / RECORD_BYTES + 1;
        missing += whole ? 0 : 1;
    }
    cmq_file_close(file);
    stop();
    return missing;
}

static void a_flush_left_out_is_found(void)
{
    CHECK_INT(acknowledged_but_lost(0), 0);
    CHECK(acknowledged_but_lost(CMQ_TWIN_ALL_SYNCS) > 20);
}

/* ---- threads ---- */

static atomic_bool threads_end;

static void *write_and_sync(void *name)
{
    cmq_file *file = open_file(name);
    for (int i = 0; i < 300; i++) {
        fill(file, (uint64_t)(i % 7) * SECTOR, SECTOR, i);
        if (i % 3 == 0) CHECK_OK(cmq_file_sync(file));
    }
    cmq_file_close(file);
    return NULL;
}

static void *take_images(void *unused)
{
    while (!atomic_load(&threads_end)) cmq_file_twin_crash_image(twin, image);
    return unused;
}

static void threads_may_share_it(void)
{
    start();
    pthread_t writers[3], imager;
    static char names[3][8] = {"a", "b", "c"};
    atomic_store(&threads_end, false);
    CHECK(pthread_create(&imager, NULL, take_images, NULL) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&writers[i], NULL, write_and_sync, names[i]) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(writers[i], NULL) == 0);
    atomic_store(&threads_end, true);
    CHECK(pthread_join(imager, NULL) == 0);
    CHECK_INT(cmq_file_twin_calls(twin, CMQ_TWIN_WRITE), 900);
    CHECK_INT(cmq_file_twin_calls(twin, CMQ_TWIN_SYNC), 300);
    stop();
}

CMQ_TEST_MAIN(CMQ_TEST(synced_survives_always), CMQ_TEST(sectors_tear_in_every_way),
              CMQ_TEST(files_survive_out_of_order), CMQ_TEST(one_file_alone_gets_lost), CMQ_TEST(lengths_get_lost),
              CMQ_TEST(mapped_stores_are_unsynced_until_synced), CMQ_TEST(versions_between_come_up),
              CMQ_TEST(punch_is_a_change_and_reserve_is_none),
              CMQ_TEST(creations_get_lost_until_the_directory_is_synced),
              CMQ_TEST(renames_get_lost_and_never_half_done), CMQ_TEST(a_rename_may_outlive_the_content),
              CMQ_TEST(removed_files_come_back), CMQ_TEST(changes_of_names_are_lost_one_by_one),
              CMQ_TEST(nothing_durable_falls_between_two_names), CMQ_TEST(moves_between_directories_are_one_change),
              CMQ_TEST(directories_are_durable_when_made_and_lost_when_not_synced), CMQ_TEST(a_tree_is_synced),
              CMQ_TEST(existing_files_are_durable), CMQ_TEST(styles_all_occur), CMQ_TEST(seeds_repeat),
              CMQ_TEST(hooks_run_before_the_call_takes_effect), CMQ_TEST(calls_fail_as_asked),
              CMQ_TEST(faults_start_and_end_as_asked), CMQ_TEST(a_failed_sync_is_not_made_good_by_the_next),
              CMQ_TEST(ignored_syncs_say_ok_and_keep_nothing), CMQ_TEST(disk_space_is_set_by_the_test),
              CMQ_TEST(images_do_not_drop_the_lock), CMQ_TEST(images_are_made_of_versions_since_the_sync),
              CMQ_TEST(a_flush_left_out_is_found), CMQ_TEST(threads_may_share_it))
