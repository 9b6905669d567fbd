/* cmq_index: see cmq_index.h. The list of files: making, loading, dropping, flushing and querying them; one file's
 * bytes are cmq_index_file's.
 *
 * The list is guarded by a mutex that is held for a few loads and stores only, never over a system call or a walk: a
 * reader takes a reference to one file and lets go. A file that is removed while somebody walks it stays mapped until
 * he is done.
 */
#include "store/index/cmq_index.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "store/index/cmq_index_file.h"

#define NAME_DIGITS 17
#define NAME_ATTEMPTS 1000   /* names that other files have already: a clock that stood still that long is a mistake of
                              * ours */

struct cmq_index {
    cmq_fs *fs;
    cmq_clock clock;
    bool read_only, only_fitting;
    int32_t slots, entries;

    pthread_mutex_t lock;            /* guards files, count, capacity */
    cmq_index_file **files;           /* rising names; one reference each */
    uint32_t count, capacity;

    cmq_index_file *current;          /* writer: the last file, with a reference of its own; NULL when there is none */
    cmq_index_file **pending;         /* writer: files made for room, not in the list yet */
    uint32_t pending_count, pending_capacity;
    _Atomic bool names_changed;      /* a file was made since the folder was synced */

    const char *root;                /* behind `folder`'s bytes */
    char folder[];
};

/* ---- the list ---- */

/* Room for `needed` files. */
static cmq_status grow(cmq_index_file ***files, uint32_t needed, uint32_t *capacity)
{
    if (needed <= *capacity) return CMQ_OK;
    const uint32_t wanted = needed < 8 ? 8 : needed * 2;
    cmq_index_file **larger = realloc(*files, wanted * sizeof *larger);
    if (larger == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the list of index files");
    *files = larger;
    *capacity = wanted;
    return CMQ_OK;
}

/* How many files have a name of at most `name`. Under the lock. */
static uint32_t count_at_most(const cmq_index *index, int64_t name)
{
    uint32_t low = 0, high = index->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (index->files[middle]->name <= name) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Take over `file` (its reference) into its place by name; a name that is there already is released and ignored. */
static cmq_status add(cmq_index *index, cmq_index_file *file)
{
    pthread_mutex_lock(&index->lock);
    const uint32_t at = count_at_most(index, file->name);
    const bool known = at > 0 && index->files[at - 1]->name == file->name;
    const cmq_status status = known ? CMQ_OK : grow(&index->files, index->count + 1, &index->capacity);
    if (!known && status == CMQ_OK) {
        for (uint32_t i = index->count; i > at; i--) index->files[i] = index->files[i - 1];
        index->files[at] = file;
        index->count++;
    }
    pthread_mutex_unlock(&index->lock);
    if (known || status != CMQ_OK) cmq_index_file_release(file);
    return status;
}

/* Take `file` out of the list, if it is in. */
static void take_out(cmq_index *index, const cmq_index_file *file)
{
    cmq_index_file *found = NULL;
    pthread_mutex_lock(&index->lock);
    for (uint32_t i = 0; i < index->count; i++) {
        if (found != NULL) index->files[i - 1] = index->files[i];
        else if (index->files[i] == file) found = index->files[i];
    }
    if (found != NULL) index->count--;
    pthread_mutex_unlock(&index->lock);
    cmq_index_file_release(found);
}

/* The file at a place, held; NULL when there are not so many. */
static cmq_index_file *hold_at(const cmq_index *index, uint32_t at)
{
    cmq_index *mutable = (cmq_index *)(uintptr_t)index;   /* the mutex is no part of what const promises */
    cmq_index_file *file = NULL;
    pthread_mutex_lock(&mutable->lock);
    if (at < index->count) {
        file = index->files[at];
        cmq_index_file_hold(file);
    }
    pthread_mutex_unlock(&mutable->lock);
    return file;
}

/* The newest file whose name is at most `name`, held; NULL when there is none. */
static cmq_index_file *hold_at_most(cmq_index *index, int64_t name)
{
    cmq_index_file *file = NULL;
    pthread_mutex_lock(&index->lock);
    const uint32_t at = count_at_most(index, name);
    if (at > 0) {
        file = index->files[at - 1];
        cmq_index_file_hold(file);
    }
    pthread_mutex_unlock(&index->lock);
    return file;
}

uint32_t cmq_index_files(const cmq_index *index)
{
    cmq_index *mutable = (cmq_index *)(uintptr_t)index;
    pthread_mutex_lock(&mutable->lock);
    const uint32_t count = index->count;
    pthread_mutex_unlock(&mutable->lock);
    return count;
}

cmq_status cmq_index_file_at(const cmq_index *index, uint32_t at, cmq_index_file_info *info_out)
{
    *info_out = (cmq_index_file_info){0};
    cmq_index_file *file = hold_at(index, at);
    if (file == NULL) return cmq_fail(CMQ_ERR_NOT_FOUND, "there is no index file number %" PRIu32, at);
    cmq_index_position position;
    cmq_index_file_position(file, &position);
    *info_out = (cmq_index_file_info){.name = file->name,
                                      .count = position.count,
                                      .slots_used = position.slots_used,
                                      .begin_ms = position.begin_ms,
                                      .end_ms = position.end_ms,
                                      .begin_phy = position.begin_phy,
                                      .end_phy = position.end_phy};
    cmq_index_file_release(file);
    return CMQ_OK;
}

cmq_status cmq_index_entry_at(const cmq_index *index, uint32_t at, int32_t entry, cmq_index_key *key_out)
{
    *key_out = (cmq_index_key){0};
    cmq_index_file *file = hold_at(index, at);
    if (file == NULL) return cmq_fail(CMQ_ERR_NOT_FOUND, "there is no index file number %" PRIu32, at);
    cmq_index_position position;
    cmq_index_file_position(file, &position);
    cmq_status status = CMQ_OK;
    if (entry >= 1 && entry < position.count) cmq_index_file_entry(file, entry, key_out);
    else status = cmq_fail(CMQ_ERR_ARGUMENT, "index file %017" PRId64 " has no entry %" PRId32, file->name, entry);
    cmq_index_file_release(file);
    return status;
}

/* ---- names ---- */

static cmq_status path_of(const cmq_index *index, int64_t name, char path[CMQ_PATH_BYTES])
{
    char digits[32];
    snprintf(digits, sizeof digits, "%017" PRId64, name);
    return cmq_path_join(path, index->folder, digits);
}

static bool parse_name(const char *text, int64_t *name_out)
{
    int64_t name = 0;
    for (int i = 0; i < NAME_DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        name = name * 10 + (text[i] - '0');
    }
    *name_out = name;
    return text[NAME_DIGITS] == '\0' && name > 0;
}

static int64_t name_of_time(const struct tm *at, int64_t ms)
{
    const int64_t date = (int64_t)(at->tm_year + 1900) * 10000 + (at->tm_mon + 1) * 100 + at->tm_mday;
    return ((date * 1000000) + (int64_t)at->tm_hour * 10000 + at->tm_min * 100 + at->tm_sec) * 1000 + ms;
}

/* One millisecond later, as a calendar counts; just the next number where the name is no time. */
static int64_t name_after(int64_t name)
{
    int64_t rest = name / 1000;
    struct tm at = {
        .tm_sec = (int)(rest % 100), .tm_min = (int)(rest / 100 % 100), .tm_hour = (int)(rest / 10000 % 100)};
    rest /= 1000000;
    at.tm_mday = (int)(rest % 100);
    at.tm_mon = (int)(rest / 100 % 100) - 1;
    at.tm_year = (int)(rest / 10000) - 1900;
    const int64_t ms = name % 1000 + 1;
    const time_t seconds = timegm(&at) + ms / 1000;
    struct tm later;
    if (gmtime_r(&seconds, &later) == NULL) return name + 1;
    const int64_t after = name_of_time(&later, ms % 1000);
    return after > name ? after : name + 1;
}

/* The name of a file made now: local time, but later than every file there is, also when the clock went back. */
static int64_t new_name(cmq_index *index)
{
    const int64_t now_ms = cmq_clock_now_ms(&index->clock);
    const time_t seconds = (time_t)(now_ms / 1000);
    struct tm at;
    const int64_t name = localtime_r(&seconds, &at) != NULL ? name_of_time(&at, now_ms % 1000) : 0;
    int64_t last = 0;
    if (index->pending_count > 0) {
        last = index->pending[index->pending_count - 1]->name;
    } else {
        cmq_index_file *newest = hold_at_most(index, INT64_MAX);
        if (newest != NULL) last = newest->name;
        cmq_index_file_release(newest);
    }
    return name > last ? name : name_after(last);
}

/* ---- life ---- */

cmq_status cmq_index_create(cmq_index **index_out, const cmq_index_options *options)
{
    *index_out = NULL;
    if (cmq_index_file_bytes(options->slots, options->entries) == 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "maxHashSlotNum %d must be at least 1 and maxIndexNum %d at least 2",
                        options->slots, options->entries);
    char folder[CMQ_PATH_BYTES];
    const cmq_status status = cmq_path_join(folder, options->root, "index");
    if (status != CMQ_OK) return status;
    const size_t folder_bytes = strlen(folder) + 1, root_bytes = strlen(options->root) + 1;
    cmq_index *index = calloc(1, sizeof *index + folder_bytes + root_bytes);
    if (index == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the index of %s", options->root);
    memcpy(index->folder, folder, folder_bytes);
    index->root = memcpy(index->folder + folder_bytes, options->root, root_bytes);
    index->fs = options->fs;
    index->clock = options->clock;
    index->read_only = options->read_only;
    index->only_fitting = options->only_fitting;
    index->slots = options->slots;
    index->entries = options->entries;
    pthread_mutex_init(&index->lock, NULL);
    *index_out = index;
    return CMQ_OK;
}

/* Remove files that were made for room but never used. One that cannot be removed is an empty index file, which does no
 * harm. */
static void drop_pending(cmq_index *index)
{
    for (uint32_t i = 0; i < index->pending_count; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_status status = path_of(index, index->pending[i]->name, path);
        if (status == CMQ_OK) status = cmq_fs_remove(index->fs, path);
        (void)status;
        cmq_index_file_release(index->pending[i]);
    }
    index->pending_count = 0;
}

void cmq_index_destroy(cmq_index *index)
{
    if (index == NULL) return;
    drop_pending(index);
    cmq_index_abandon(index);
}

void cmq_index_abandon(cmq_index *index)
{
    if (index == NULL) return;
    for (uint32_t i = 0; i < index->pending_count; i++) cmq_index_file_release(index->pending[i]);
    free(index->pending);
    cmq_index_file_release(index->current);
    for (uint32_t i = 0; i < index->count; i++) cmq_index_file_release(index->files[i]);
    free(index->files);
    pthread_mutex_destroy(&index->lock);
    free(index);
}

/* The writer goes on in the last file. */
static void take_current(cmq_index *index)
{
    cmq_index_file *last = index->read_only ? NULL : hold_at_most(index, INT64_MAX);
    cmq_index_file_release(index->current);
    index->current = last;
    if (last != NULL) cmq_index_file_position(last, &last->at);
}

/* ---- load, refresh ---- */

static bool is_listed(cmq_index *index, int64_t name)
{
    cmq_index_file *file = hold_at_most(index, name);
    const bool listed = file != NULL && file->name == name;
    cmq_index_file_release(file);
    return listed;
}

/* Open one name of the folder and add it. Directories and names other than 17 digits are skipped, as is a file that is
 * gone or still of length 0. */
static cmq_status load_name(cmq_index *index, const char *text)
{
    int64_t name;
    if (!parse_name(text, &name) || is_listed(index, name)) return CMQ_OK;
    char path[CMQ_PATH_BYTES];
    cmq_status status = path_of(index, name, path);
    cmq_file_info info;
    if (status == CMQ_OK) status = cmq_fs_stat(index->fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND || (status == CMQ_OK && info.is_directory)) return CMQ_OK;
    cmq_index_file *file = NULL;
    if (status == CMQ_OK)
        status = cmq_index_file_open(index->fs, path, name, index->slots, index->entries, !index->read_only, &file);
    if (status == CMQ_ERR_NOT_FOUND || (status == CMQ_ERR_SETTING && index->only_fitting)) return CMQ_OK;
    if (status == CMQ_END) return index->read_only ? CMQ_OK : cmq_fs_remove(index->fs, path);
    return status != CMQ_OK ? status : add(index, file);
}

static cmq_status load_folder(cmq_index *index, char ***names_out, size_t *count_out)
{
    *names_out = NULL;
    *count_out = 0;
    cmq_status status = cmq_fs_list(index->fs, index->folder, names_out, count_out);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    for (size_t i = 0; i < *count_out && status == CMQ_OK; i++) status = load_name(index, (*names_out)[i]);
    return status;
}

cmq_status cmq_index_load(cmq_index *index)
{
    char **names;
    size_t count;
    const cmq_status status = load_folder(index, &names, &count);
    if (names != NULL) cmq_fs_free_names(names, count);
    if (status == CMQ_OK) take_current(index);
    return status;
}

cmq_status cmq_index_refresh(cmq_index *index)
{
    char **names;
    size_t left;
    const cmq_status status = load_folder(index, &names, &left);
    const size_t count = left;
    /* Both lists rise by name, so one walk down finds the files that are no longer there. */
    for (uint32_t i = cmq_index_files(index); status == CMQ_OK && i > 0; i--) {
        cmq_index_file *file = hold_at(index, i - 1);
        if (file == NULL) continue;   /* another refresh took it out */
        int64_t name = 0;
        while (left > 0 && (!parse_name(names[left - 1], &name) || name > file->name)) left--;
        if (left == 0 || name != file->name) take_out(index, file);
        cmq_index_file_release(file);
    }
    if (names != NULL) cmq_fs_free_names(names, count);
    return status;
}

/* ---- removing ---- */

static cmq_status remove_file(cmq_index *index, cmq_index_file *file)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = path_of(index, file->name, path);
    if (status == CMQ_OK) status = cmq_fs_remove(index->fs, path);
    if (status != CMQ_OK && status != CMQ_ERR_NOT_FOUND) return status;
    take_out(index, file);
    return CMQ_OK;
}

/* Remove every file from place `keep` on, the newest first, so that the rest is always a beginning. */
static cmq_status remove_from(cmq_index *index, uint32_t keep)
{
    CMQ_ASSERT(!index->read_only);
    const uint32_t count = cmq_index_files(index);
    cmq_status status = CMQ_OK;
    for (uint32_t i = count; i > keep && status == CMQ_OK; i--) {
        cmq_index_file *file = hold_at(index, i - 1);
        status = remove_file(index, file);
        cmq_index_file_release(file);
    }
    if (status == CMQ_OK && count > keep) status = cmq_fs_sync_directory(index->fs, index->folder);
    take_current(index);
    return status;
}

cmq_status cmq_index_drop_newer(cmq_index *index, int64_t checkpoint_index_ms, int64_t *rebuild_from_out)
{
    *rebuild_from_out = 0;
    drop_pending(index);
    uint32_t keep = 0;
    for (cmq_index_file_info info; keep < cmq_index_files(index); keep++) {
        const cmq_status status = cmq_index_file_at(index, keep, &info);
        if (status != CMQ_OK) return status;
        if (info.end_ms > checkpoint_index_ms) break;
        if (info.end_phy > *rebuild_from_out) *rebuild_from_out = info.end_phy;
    }
    return remove_from(index, keep);
}

cmq_status cmq_index_rewind(cmq_index *index, const cmq_index_position *position, bool untouched)
{
    drop_pending(index);
    if (position->file_name == 0) return remove_from(index, 0);
    cmq_index_file *file = hold_at_most(index, position->file_name);
    if (file == NULL || file->name != position->file_name) {
        cmq_index_file_release(file);
        return cmq_fail(CMQ_ERR_CORRUPT, "there is no index file %017" PRId64 " any more", position->file_name);
    }
    uint32_t keep = 0;
    for (cmq_index_file_info info; keep < cmq_index_files(index); keep++)
        if (cmq_index_file_at(index, keep, &info) != CMQ_OK || info.name > position->file_name) break;
    /* First: when it says that the file is another one, nothing was removed. */
    bool is_at = false;
    cmq_status status = untouched ? cmq_index_file_is_at(file, position, &is_at) : CMQ_OK;
    if (status == CMQ_OK && !is_at) status = cmq_index_file_rewind(file, position);
    cmq_index_file_release(file);
    if (status == CMQ_OK) status = remove_from(index, keep);
    return status;
}

/* Cut the newest file; *more_out when nothing of it is left, so that the one before may be concerned. */
static cmq_status cut_newest(cmq_index *index, int64_t log_end, bool *more_out)
{
    *more_out = false;
    const uint32_t count = cmq_index_files(index);
    cmq_index_file *newest = count > 0 ? hold_at(index, count - 1) : NULL;
    if (newest == NULL) return CMQ_OK;
    cmq_index_position position;
    cmq_index_file_position(newest, &position);
    cmq_status status = CMQ_OK;
    if (position.end_phy >= log_end) {
        status = cmq_index_file_cut(newest, log_end, &position);
        *more_out = status == CMQ_OK && position.count == 1;
    }
    cmq_index_file_release(newest);
    return *more_out ? remove_from(index, count - 1) : status;
}

cmq_status cmq_index_cut(cmq_index *index, int64_t log_end)
{
    drop_pending(index);
    cmq_status status = CMQ_OK;
    for (bool more = true; more && status == CMQ_OK;) status = cut_newest(index, log_end, &more);
    if (status == CMQ_OK) take_current(index);
    return status;
}

cmq_status cmq_index_expire(cmq_index *index, int64_t min_phy)
{
    while (cmq_index_files(index) > 1) {
        cmq_index_file *oldest = hold_at(index, 0);
        cmq_index_position position;
        cmq_index_file_position(oldest, &position);
        const bool expired = position.end_phy < min_phy;
        const cmq_status status = expired ? remove_file(index, oldest) : CMQ_OK;
        cmq_index_file_release(oldest);
        if (!expired || status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* ---- put ---- */

/* So that taking a pending file into the list cannot fail. */
static cmq_status room_in_list(cmq_index *index)
{
    pthread_mutex_lock(&index->lock);
    const cmq_status status = grow(&index->files, index->count + index->pending_count + 1, &index->capacity);
    pthread_mutex_unlock(&index->lock);
    return status;
}

/* Make an empty file for later, with room for its slots and first keys. */
static cmq_status make_pending(cmq_index *index)
{
    cmq_status status = grow(&index->pending, index->pending_count + 1, &index->pending_capacity);
    if (status == CMQ_OK) status = room_in_list(index);
    if (status == CMQ_OK) status = cmq_fs_make_directory_in(index->fs, index->root, index->folder);
    cmq_index_file *file = NULL;
    int64_t name = new_name(index);
    for (int attempt = 0; status == CMQ_OK && file == NULL; attempt++, name = name_after(name)) {
        char path[CMQ_PATH_BYTES];
        status = path_of(index, name, path);
        if (status == CMQ_OK)
            status = cmq_index_file_create(index->fs, path, name, index->slots, index->entries, &file);
        if (status == CMQ_ERR_IO && cmq_last_error()->sys_errno == EEXIST && attempt < NAME_ATTEMPTS) status = CMQ_OK;
    }
    if (status != CMQ_OK) return status;
    index->pending[index->pending_count++] = file;
    atomic_store_explicit(&index->names_changed, true, memory_order_release);
    return CMQ_OK;
}

/* How many of `keys` fit the file, reserving their room. */
static cmq_status reserve_keys(cmq_index_file *file, uint32_t *keys)
{
    const uint32_t room = (uint32_t)(file->entries - file->at.count);
    const uint32_t fit = *keys < room ? *keys : room;
    *keys -= fit;
    return fit == 0 ? CMQ_OK : cmq_index_file_reserve(file, file->at.count + (int32_t)fit);
}

cmq_status cmq_index_make_room(cmq_index *index, uint32_t keys)
{
    if (index->read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the index is opened read-only");
    cmq_status status = CMQ_OK;
    if (index->current != NULL) status = reserve_keys(index->current, &keys);
    for (uint32_t i = 0; status == CMQ_OK && keys > 0; i++) {
        if (i == index->pending_count) status = make_pending(index);
        if (status == CMQ_OK) status = reserve_keys(index->pending[i], &keys);
        if (status == CMQ_OK && keys > 0) cmq_index_file_close_file(index->pending[i]);   /* its room is made */
    }
    return status;
}

/* Go on in the next file, whose header begins with the end of the last (spec store 4.2). */
static void roll(cmq_index *index)
{
    CMQ_ASSERT(index->pending_count > 0);
    cmq_index_file *next = index->pending[0];
    index->pending_count--;
    for (uint32_t i = 0; i < index->pending_count; i++) index->pending[i] = index->pending[i + 1];
    cmq_index_position first = {.count = 1};
    if (index->current != NULL) {
        const cmq_index_position *last = &index->current->at;
        if (last->end_phy > 0) first.begin_phy = first.end_phy = last->end_phy;
        if (last->end_ms > 0) first.begin_ms = first.end_ms = last->end_ms;
    }
    cmq_index_file_set(next, &first);
    cmq_index_file_hold(next);
    const cmq_status status = add(index, next);
    CMQ_ASSERT(status == CMQ_OK);
    if (index->current != NULL) cmq_index_file_close_file(index->current);   /* full: nothing is written any more */
    cmq_index_file_release(index->current);
    index->current = next;
}

void cmq_index_put(cmq_index *index, const cmq_index_key *keys, uint32_t count)
{
    while (count > 0) {
        if (index->current == NULL || index->current->at.count >= index->entries) roll(index);
        const uint32_t room = (uint32_t)(index->entries - index->current->at.count);
        const uint32_t fit = count < room ? count : room;
        cmq_index_file_put(index->current, keys, fit);
        keys += fit;
        count -= fit;
    }
}

int64_t cmq_index_end_phy(const cmq_index *index)
{
    if (index->current == NULL) return -1;
    const cmq_index_position *at = &index->current->at;
    return at->count > 1 || at->end_phy > 0 ? at->end_phy : -1;
}

/* ---- flush ---- */

void cmq_index_at(const cmq_index *index, cmq_index_position *position_out)
{
    *position_out = index->current != NULL ? index->current->at : (cmq_index_position){0};
}

static cmq_status flush_file(cmq_index_file *file, int64_t *full_end_ms)
{
    cmq_index_position position;
    cmq_index_file_position(file, &position);   /* before the sync: entries put meanwhile may or may not be durable */
    if (file->synced != position.count) {
        const cmq_status status = cmq_index_file_sync(file);
        if (status != CMQ_OK) return status;
        file->synced = position.count;
    }
    if (position.count >= file->entries) *full_end_ms = position.end_ms;
    return CMQ_OK;
}

cmq_status cmq_index_flush(cmq_index *index, int64_t *full_end_ms_out)
{
    *full_end_ms_out = 0;
    cmq_status status = CMQ_OK;
    for (uint32_t count = cmq_index_files(index), i = 0; i < count && status == CMQ_OK; i++) {
        cmq_index_file *file = hold_at(index, i);
        if (file == NULL) break;   /* expired meanwhile */
        status = flush_file(file, full_end_ms_out);
        cmq_index_file_release(file);
    }
    if (status == CMQ_OK && atomic_exchange_explicit(&index->names_changed, false, memory_order_acq_rel)) {
        status = cmq_fs_sync_directory(index->fs, index->folder);
        if (status != CMQ_OK) atomic_store_explicit(&index->names_changed, true, memory_order_release);
    }
    return status;
}

/* ---- query ---- */

uint32_t cmq_index_topic_seed(cmq_slice topic)
{
    return cmq_jhash_extend(cmq_jhash(topic), (const uint8_t *)"#", 1);
}

static bool may_hold(const cmq_index_file *file, const cmq_index_file_wanted *wanted)
{
    cmq_index_position position;
    cmq_index_file_position(file, &position);
    return position.count > 1 && position.begin_ms <= wanted->end_ms && position.end_ms >= wanted->begin_ms &&
           position.end_phy >= wanted->min_phy;
}

static cmq_status CMQ_MUST_CHECK check_readable(const cmq_index_file *file, const cmq_index_file_wanted *wanted)
{
    if (!cmq_index_file_walk_is_lost(file, wanted)) return CMQ_OK;
    return cmq_fail_at(
        CMQ_ERR_CORRUPT, file->name,
        "index file %s cannot be read where the key's entries are: a bad sector, or the file was cut. Run "
        "`cometmq repair`",
        file->path);
}

cmq_status cmq_index_query(cmq_index *index, uint32_t hash, int64_t begin_ms, int64_t end_ms, int64_t min_phy,
                           cmq_index_cursor *cursor, int64_t *phy_out, uint32_t capacity, uint32_t *count_out)
{
    *count_out = 0;
    const cmq_index_file_wanted wanted = {
        .hash = hash, .begin_ms = begin_ms, .end_ms = end_ms, .min_phy = min_phy};
    while (!cursor->done && *count_out < capacity) {
        cmq_index_file *file = hold_at_most(index, cursor->file_name != 0 ? cursor->file_name : INT64_MAX);
        cursor->done = file == NULL;
        if (file == NULL) break;
        if (file->name != cursor->file_name) cursor->entry = 0;
        if (cursor->entry != 0 || may_hold(file, &wanted))
            *count_out += cmq_index_file_find(file, &wanted, &cursor->entry, &cursor->last_phy, phy_out + *count_out,
                                             capacity - *count_out);
        cursor->file_name = cursor->entry != 0 ? file->name : file->name - 1;
        cursor->done = cursor->file_name <= 0;
        const cmq_status status = check_readable(file, &wanted);
        cmq_index_file_release(file);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}
