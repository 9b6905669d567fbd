/* cmq_store_kit: see cmq_store_kit.h. */
#include "support/cmq_store_kit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES (1 << 20)

_Atomic int64_t kit_now_ms;

void kit_set_clock(void) { atomic_store(&kit_now_ms, (int64_t)time(NULL) * 1000 + 3600000); }

cmq_clock kit_clock(void)
{
    if (atomic_load(&kit_now_ms) == 0) kit_set_clock();
    return cmq_clock_manual(&kit_now_ms);
}

uint64_t kit_amount(const char *name, uint64_t usual, uint64_t many)
{
    const char *given = getenv(name);
    if (given != NULL) return strtoull(given, NULL, 10);
    return getenv("CMQ_LONG") != NULL ? many : usual;
}

const char *kit_directory(void)
{
    if (getenv("TMPDIR") == NULL && access("/dev/shm", W_OK) == 0) CHECK(setenv("TMPDIR", "/dev/shm", 1) == 0);
    return cmq_test_directory();
}

const char *kit_path(const char *root, const char *name)
{
    static _Thread_local char paths[8][CMQ_PATH_BYTES];
    static _Thread_local unsigned next;
    char *into = paths[next++ % 8];
    CHECK_OK(cmq_path_join(into, root, name));
    return into;
}

/* ---- stores ---- */

cmq_store_options kit_options(const char *root)
{
    return (cmq_store_options){
        .path = root,
        .clock = kit_clock(),
        .create = true,
        .segment_bytes = KIT_SEGMENT_BYTES,
        .queue_file_bytes = KIT_QUEUE_UNITS * CMQ_UNIT_BYTES,
        .batch_file_bytes = KIT_QUEUE_UNITS * CMQ_BATCH_UNIT_BYTES,
        .ext_file_bytes = 4096,
        .index_slots = KIT_INDEX_SLOTS,
        .index_entries = KIT_INDEX_ENTRIES,
    };
}

cmq_store *kit_open(const cmq_store_options *options)
{
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, options));
    return store;
}

cmq_store *kit_open_at(const char *root)
{
    const cmq_store_options options = kit_options(root);
    return kit_open(&options);
}

void kit_close(cmq_store *store) { CHECK_OK(cmq_store_close(store)); }

static cmq_column one_value(const char *text)
{
    return text == NULL ? (cmq_column){0} : (cmq_column){.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(text)};
}

cmq_status kit_try_append(cmq_store *store, const char *topic, int32_t queue_id, const char *body, const char *tags,
                          const char *keys, cmq_appended *appended_out)
{
    const cmq_append append = {
        .common = {.topic = cmq_slice_of_text(topic), .queue_id = queue_id},
        .count = 1,
        .bodies = one_value(body),
        .tags = one_value(tags),
        .keys = one_value(keys),
    };
    return cmq_store_append(store, &append, appended_out);
}

cmq_appended kit_append(cmq_store *store, const char *topic, int32_t queue_id, const char *body, const char *tags,
                        const char *keys)
{
    cmq_appended appended;
    CHECK_OK(kit_try_append(store, topic, queue_id, body, tags, keys, &appended));
    CHECK_INT(appended.count, 1);
    return appended;
}

void kit_append_many(cmq_store *store, const char *topic, const char *prefix, int count)
{
    for (int i = 0; i < count; i++) {
        char body[64];
        snprintf(body, sizeof body, "%s%d", prefix, i);
        kit_append(store, topic, 0, body, NULL, NULL);
    }
}

/* ---- reading ---- */

kit_found *kit_found_make(uint32_t capacity)
{
    kit_found *found = calloc(1, sizeof *found);
    CHECK(found != NULL && capacity <= KIT_FOUND_MAX);
    found->batch.items = found->items;
    found->batch.capacity = capacity;
    return found;
}

void kit_found_free(kit_found *found)
{
    cmq_found_batch_release(&found->batch);
    free(found);
}

cmq_record_view kit_view(const cmq_found *found)
{
    cmq_record_view view;
    CHECK_OK(
        cmq_record_parse(found->record, found->record_bytes, found->physical_offset, CMQ_RECORD_CHECK_BODY_CRC, &view));
    return view;
}

bool kit_body_is(const cmq_found *found, const char *text)
{
    return cmq_slice_equal(kit_view(found).body, cmq_slice_of_text(text));
}

static void join_bodies(const cmq_found_batch *batch, char *text, size_t *used)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const cmq_record_view view = kit_view(&batch->items[i]);
        CHECK(*used + view.body.bytes + 2 < TEXT_BYTES);
        if (*used > 0) text[(*used)++] = ' ';
        if (view.body.bytes > 0) memcpy(text + *used, view.body.data, view.body.bytes);
        *used += view.body.bytes;
    }
    text[*used] = '\0';
}

const char *kit_read_with(cmq_store *store, const cmq_read_options *options)
{
    static char text[TEXT_BYTES];
    cmq_reader *reader;
    kit_found *found = kit_found_make(7);
    size_t used = 0;
    bool end = false;
    text[0] = '\0';
    CHECK_OK(cmq_reader_open(store, options, &reader));
    for (int idle = 0; !end && idle < 2;) {
        const cmq_status status = cmq_reader_next(reader, &found->batch, &end);
        if (status == CMQ_ERR_CORRUPT) {
            used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s!", used > 0 ? " " : "");
        } else {
            CHECK_OK(status);
            idle = found->batch.count == 0 ? idle + 1 : 0;
        }
        join_bodies(&found->batch, text, &used);
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
    return text;
}

const char *kit_read_topic(cmq_store *store, const char *topic)
{
    const cmq_slice name = cmq_slice_of_text(topic);
    return kit_read_with(store, &(cmq_read_options){.topics = &name, .topic_count = 1});
}

const char *kit_read_all(cmq_store *store) { return kit_read_with(store, &(cmq_read_options){0}); }

void kit_check_text(const char *file, int line, const char *actual, const char *expected)
{
    if (strcmp(actual, expected) != 0)
        cmq_test_fail(file, line, "text is \"%.400s\", expected \"%.400s\"", actual, expected);
}

int64_t kit_max(cmq_store *store, const char *topic, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), cmq_slice_of_text(topic), queue_id);
    return queue == NULL ? 0 : cmq_queue_max(queue, cmq_store_confirmed(store));
}

int64_t kit_min(cmq_store *store, const char *topic, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), cmq_slice_of_text(topic), queue_id);
    return queue == NULL ? 0 : cmq_queue_min(queue);
}

/* ---- files ---- */

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

void kit_remove_tree(const char *path)
{
    CHECK(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT);
}

void kit_remove_tree_in(cmq_fs *fs, const char *path)
{
    char **names;
    size_t count;
    cmq_file_info info;
    const cmq_status status = cmq_fs_stat(fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND) return;
    CHECK_OK(status);
    if (!info.is_directory) {
        CHECK_OK(cmq_fs_remove(fs, path));
        return;
    }
    CHECK_OK(cmq_fs_list(fs, path, &names, &count));
    for (size_t i = 0; i < count; i++) {
        char below[CMQ_PATH_BYTES];
        CHECK_OK(cmq_path_join(below, path, names[i]));
        kit_remove_tree_in(fs, below);
    }
    cmq_fs_free_names(names, count);
    CHECK_OK(cmq_fs_remove_directory(fs, path));
}

bool kit_exists(const char *path) { return access(path, F_OK) == 0; }

int64_t kit_file_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

static void transfer(const char *path, int64_t offset, void *into, const void *from, size_t bytes)
{
    const int file = open(path, into != NULL ? O_RDONLY : O_RDWR | O_CREAT, 0644);
    if (file < 0) cmq_test_fail(__FILE__, __LINE__, "cannot open %s: %s", path, strerror(errno));
    const ssize_t done =
        into != NULL ? pread(file, into, bytes, (off_t)offset) : pwrite(file, from, bytes, (off_t)offset);
    CHECK_INT(done, bytes);
    close(file);
}

void kit_read_bytes(const char *path, int64_t offset, void *into, size_t bytes)
{
    transfer(path, offset, into, NULL, bytes);
}

void kit_write_bytes(const char *path, int64_t offset, const void *from, size_t bytes)
{
    transfer(path, offset, NULL, from, bytes);
}

void kit_flip(const char *path, int64_t offset, uint8_t bits)
{
    uint8_t byte;
    kit_read_bytes(path, offset, &byte, 1);
    byte ^= bits;
    kit_write_bytes(path, offset, &byte, 1);
}

void kit_resize(const char *path, int64_t bytes)
{
    if (truncate(path, (off_t)bytes) != 0)
        cmq_test_fail(__FILE__, __LINE__, "cannot resize %s: %s", path, strerror(errno));
}

static void copy_content(cmq_file *source, cmq_file *target)
{
    static uint8_t block[65536];
    cmq_file_info info;
    uint64_t at = 0, data;
    CHECK_OK(cmq_file_info_of(source, &info));
    CHECK_OK(cmq_file_resize(target, info.bytes));
    while (at < info.bytes && cmq_file_next_data(source, at, &data) == CMQ_OK) {
        const size_t bytes = info.bytes - data < sizeof block ? (size_t)(info.bytes - data) : sizeof block;
        CHECK_OK(cmq_file_read(source, data, block, bytes));
        CHECK_OK(cmq_file_write(target, data, block, bytes));
        at = data + bytes;
    }
}

static void set_time(const char *path, int64_t modified_ms)
{
    const struct timespec at = {.tv_sec = modified_ms / 1000, .tv_nsec = modified_ms % 1000 * 1000000};
    const struct timespec times[2] = {at, at};
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
}

void kit_copy_tree_to(cmq_fs *from_fs, const char *from, cmq_fs *to_fs, const char *to)
{
    char **names;
    size_t count;
    CHECK_OK(cmq_fs_make_directory_unsynced(to_fs, to));
    CHECK_OK(cmq_fs_list(from_fs, from, &names, &count));
    for (size_t i = 0; i < count; i++) {
        char source[CMQ_PATH_BYTES], target[CMQ_PATH_BYTES];
        cmq_file_info info;
        cmq_file *read, *written;
        CHECK_OK(cmq_path_join(source, from, names[i]));
        CHECK_OK(cmq_path_join(target, to, names[i]));
        CHECK_OK(cmq_fs_stat(from_fs, source, &info));
        if (info.is_directory) {
            kit_copy_tree_to(from_fs, source, to_fs, target);
            continue;
        }
        if (strcmp(names[i], "lock") == 0) continue;   /* to open a lock file and close it drops this process's lock */
        CHECK_OK(cmq_file_open(from_fs, source, CMQ_OPEN_READ, &read));
        CHECK_OK(cmq_file_open(to_fs, target, CMQ_OPEN_CREATE, &written));
        copy_content(read, written);
        cmq_file_close(read);
        cmq_file_close(written);
        if (to_fs == cmq_fs_posix()) set_time(target, info.modified_ms);
    }
    cmq_fs_free_names(names, count);
}

void kit_copy_tree(const char *from, const char *to)
{
    if (kit_exists(to)) kit_remove_tree(to);
    kit_copy_tree_to(cmq_fs_posix(), from, cmq_fs_posix(), to);
}

void kit_each_file_in(cmq_fs *fs, const char *root, void (*each)(void *context, const char *path, int64_t bytes),
                      void *context)
{
    char **names;
    size_t count;
    CHECK_OK(cmq_fs_list(fs, root, &names, &count));
    for (size_t i = 0; i < count; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file_info info;
        CHECK_OK(cmq_path_join(path, root, names[i]));
        CHECK_OK(cmq_fs_stat(fs, path, &info));
        if (info.is_directory) kit_each_file_in(fs, path, each, context);
        else each(context, path, (int64_t)info.bytes);
    }
    cmq_fs_free_names(names, count);
}

void kit_each_file(const char *root, void (*each)(void *context, const char *path, int64_t bytes), void *context)
{
    kit_each_file_in(cmq_fs_posix(), root, each, context);
}
