/* cmq_restore: appends the whole records of a folder under cometmq/removed again, as new messages.
 *
 * Their old places are taken: the log went on there. So they get new offsets and a new store time; topic, queue, body,
 * properties, born time and hosts are theirs. Read in windows by pread; a record is searched wherever the bytes before
 * are not one, and counts if its own place field is right. Records of a transaction whose first one was never begun
 * (docs/decisions/0036) were not acknowledged and are left out.
 *
 * Way: cometmq/removed -> [cmq_restore] -> cmq_append
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_file_tree.h"
#include "store/cmq_store_internal.h"
#include "store/marks/cmq_own_files.h"
#include "store/recover/cmq_removed.h"

#define WINDOW_BYTES_MIN ((size_t)8 << 20)
#define CUT_SUFFIX ".cut"
#define ZEROS_BEHIND                                                                                                   \
    ((size_t)40                                                                                                        \
     << 10) /* a cut was kept to its last byte that is not zero: the last record's properties may go on in zeros */

typedef struct restoring {
    cmq_store *store;
    const cmq_restore_options *options;
    cmq_restored *restored;
    uint8_t *window;
    size_t window_bytes;
    cmq_file *file;            /* the one that is read, … */
    int64_t file_phy;          /* … which begins here in the log */
    int64_t together;          /* the first record of the last transaction that was asked for, … */
    bool unfinished;           /* … and the answer */
    char topic[256];           /* the last one that was asked for … */
    int32_t queue_id;
    bool asked, wanted;        /* … and the answer */
} restoring;

static bool is_wanted(restoring *r, const cmq_record_view *view)
{
    const cmq_restore_options *options = r->options;
    if (options->wanted == NULL) return true;
    if (r->asked && view->queue_id == r->queue_id && cmq_slice_equal(view->topic, cmq_slice_of_text(r->topic)))
        return r->wanted;
    r->wanted = options->wanted(options->context, view->topic, view->queue_id);
    r->asked = view->topic.bytes < sizeof r->topic;
    r->queue_id = view->queue_id;
    if (r->asked) {
        memcpy(r->topic, view->topic.data, view->topic.bytes);
        r->topic[view->topic.bytes] = '\0';
    }
    return r->wanted;
}

static cmq_column one(cmq_slice value)
{
    return (cmq_column){.kind = value.bytes > 0 ? CMQ_COLUMN_ONE : CMQ_COLUMN_NONE, .one = value};
}

/* Is it of a transaction whose head was not written? One that begins before this file was cut behind its head, for a
 * transaction lies in one segment. */
static cmq_status CMQ_MUST_CHECK is_unfinished(restoring *r, const cmq_record_view *view, bool *unfinished_out)
{
    int64_t first;
    uint64_t head;
    *unfinished_out = false;
    if (!cmq_record_is_together(view, &first) || first < r->file_phy) return CMQ_OK;
    if (first != r->together) {
        const cmq_status status = cmq_file_read(r->file, (uint64_t)(first - r->file_phy), &head, sizeof head);
        if (status != CMQ_OK) return status;
        r->together = first;
        r->unfinished = head == 0;
    }
    *unfinished_out = r->unfinished;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK append_again(restoring *r, const cmq_record_view *view)
{
    int64_t first;
    const bool alone = cmq_record_is_together(view, &first);   /* from now on */
    const cmq_append append = {.common = {.topic = view->topic,
                                          .born_timestamp_ms = view->born_timestamp_ms,
                                          .prepared_transaction_offset = alone ? 0 : view->prepared_transaction_offset,
                                          .queue_id = view->queue_id,
                                          .flag = view->flag,
                                          .sys_flag = view->sys_flag,
                                          .reconsume_times = view->reconsume_times,
                                          .born_host = view->born_host,
                                          .store_host = view->store_host},
                               .count = 1,
                               .bodies = one(view->body),
                               .properties = one(view->properties),
                               .no_wait = true};
    cmq_appended appended;
    const cmq_status status = cmq_store_append(r->store, &append, &appended);
    if (status == CMQ_OK) r->restored->records++;
    /* Of the record's own making; anything else would meet the next one, too. */
    const bool refused =
        status == CMQ_ERR_ARGUMENT || status == CMQ_ERR_TOPIC || status == CMQ_ERR_TOO_LARGE || status == CMQ_ERR_LIMIT;
    if (!refused) return status;
    r->restored->refused++;
    snprintf(r->restored->refusal, sizeof r->restored->refusal, "%s", cmq_last_error()->text);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK take(restoring *r, const cmq_record_view *view)
{
    const cmq_record_proof proof = cmq_record_prove(view);
    if (proof == CMQ_RECORD_CONTRADICTED || (proof == CMQ_RECORD_UNPROVEN && cmq_record_has_zero(view))) {
        r->restored->doubtful++;
        return CMQ_OK;
    }
    bool unfinished;
    const cmq_status status = is_unfinished(r, view, &unfinished);
    if (status != CMQ_OK) return status;
    if (unfinished) {
        r->restored->unfinished++;
        return CMQ_OK;
    }
    return is_wanted(r, view) ? append_again(r, view) : CMQ_OK;
}

/* Whole records in the window's `bytes`, which lie at `phy` of the log; *used_out: so many are done with. `last`:
 * nothing follows the window. */
static cmq_status CMQ_MUST_CHECK take_window(restoring *r, int64_t phy, size_t bytes, bool last, size_t *used_out)
{
    size_t at = 0;
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && bytes - at >= CMQ_RECORD_BYTES_MIN) {
        cmq_record_view view;
        const cmq_status parsed =
            cmq_record_parse(r->window + at, bytes - at, phy + (int64_t)at, CMQ_RECORD_CHECK_BODY_CRC, &view);
        if (parsed == CMQ_AGAIN && !last && view.record_bytes <= r->window_bytes / 2) break;
        if (parsed == CMQ_OK) {
            status = take(r, &view);
            at += view.record_bytes;
            continue;
        }
        /* On to what may be the next one's magic. */
        at++;
        const uint8_t *hit =
            memchr(r->window + at + CMQ_RECORD_AT_MAGIC, CMQ_RECORD_MAGIC_V1 >> 24, bytes - at - CMQ_RECORD_AT_MAGIC);
        at = hit != NULL ? (size_t)(hit - r->window) - CMQ_RECORD_AT_MAGIC : bytes - CMQ_RECORD_BYTES_MIN + 1;
    }
    *used_out = at;
    return status;
}

static cmq_status CMQ_MUST_CHECK restore_file(restoring *r, const char *path, int64_t phy)
{
    cmq_file *file;
    cmq_file_info info;
    cmq_status status = cmq_file_open(r->store->fs, path, CMQ_OPEN_READ, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_info_of(file, &info);
    r->file = file;
    r->file_phy = phy;
    for (uint64_t at = 0; status == CMQ_OK && at < info.bytes;) {
        uint64_t data;
        size_t used = 0;
        status = cmq_file_next_data(file, at, &data);
        if (status != CMQ_OK) break;
        const uint64_t left = info.bytes - data;
        const size_t bytes = left < r->window_bytes ? (size_t)left : r->window_bytes;
        status = cmq_file_read(file, data, r->window, bytes);
        if (bytes == left) memset(r->window + bytes, 0, ZEROS_BEHIND);
        if (status == CMQ_OK)
            status =
                take_window(r, phy + (int64_t)data, bytes + (bytes == left ? ZEROS_BEHIND : 0), bytes == left, &used);
        at = bytes == left ? info.bytes : data + used;
    }
    cmq_file_close(file);
    return status == CMQ_END ? CMQ_OK : status;
}

/* The offset of the log that a file begins at, by its name; false for other files. */
static bool place_of(const char *name, int64_t *phy_out)
{
    char digits[CMQ_OFFSET_NAME_BYTES];
    const size_t length = strlen(name), number = CMQ_OFFSET_NAME_BYTES - 1;
    if (length != number && (length != number + sizeof CUT_SUFFIX - 1 || strcmp(name + number, CUT_SUFFIX) != 0))
        return false;
    memcpy(digits, name, number);
    digits[number] = '\0';
    return cmq_path_parse_offset_name(digits, phy_out) == CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK restore_folder(restoring *r, const char *folder)
{
    char log[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    char **names;
    size_t count, files = 0;
    cmq_status status = cmq_path_join(log, folder, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_list(r->store->fs, log, &names, &count);
    if (status == CMQ_ERR_NOT_FOUND) return cmq_fail(status, "%s holds no part of a log", folder);
    if (status != CMQ_OK) return status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        int64_t phy;
        if (!place_of(names[i], &phy)) continue;
        files++;
        status = cmq_path_join(path, log, names[i]);
        if (status == CMQ_OK) status = restore_file(r, path, phy);
    }
    cmq_fs_free_names(names, count);
    return status == CMQ_OK && files == 0 ? cmq_fail(CMQ_ERR_NOT_FOUND, "%s holds no part of a log", folder) : status;
}

/* Durable before the next one may ask whether it was done. */
static cmq_status CMQ_MUST_CHECK mark_restored(restoring *r, const char *folder)
{
    char path[CMQ_PATH_BYTES], text[64];
    cmq_file *file;
    cmq_status status = cmq_path_join(path, folder, CMQ_REMOVED_RESTORED);
    if (status == CMQ_OK) status = cmq_file_open(r->store->fs, path, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    const int length = snprintf(text, sizeof text, "%lld records\n", (long long)r->restored->records);
    status = cmq_file_write(file, 0, text, (size_t)length);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    cmq_file_close(file);
    return status == CMQ_OK ? cmq_fs_sync_directory(r->store->fs, folder) : status;
}

cmq_status cmq_store_restore(cmq_store *store, const cmq_restore_options *options, cmq_restored *restored_out)
{
    char folder[CMQ_PATH_BYTES], mark[CMQ_PATH_BYTES];
    restoring r = {.store = store, .options = options, .restored = restored_out, .together = -1};
    *restored_out = (cmq_restored){.records = 0};
    if (options->name[0] == '\0' || options->name[0] == '.' || strchr(options->name, '/') != NULL)
        return cmq_fail(CMQ_ERR_ARGUMENT, "\"%s\" is not the name of a folder under " CMQ_REMOVED_FOLDER,
                        options->name);
    cmq_status status = cmq_path_join(folder, store->root, CMQ_REMOVED_FOLDER);
    if (status == CMQ_OK) status = cmq_path_join(folder, folder, options->name);
    if (status == CMQ_OK) status = cmq_path_join(mark, folder, CMQ_REMOVED_RESTORED);
    if (status == CMQ_OK) status = cmq_file_tree_exists(store->fs, mark, &restored_out->already);
    if (status != CMQ_OK || (restored_out->already && !options->again)) return status;
    restored_out->already = false;
    r.window_bytes =
        2 * (size_t)store->record_bytes_max > WINDOW_BYTES_MIN ? 2 * (size_t)store->record_bytes_max : WINDOW_BYTES_MIN;
    r.window = malloc(r.window_bytes + ZEROS_BEHIND);
    if (r.window == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read %s", folder);
    status = restore_folder(&r, folder);
    free(r.window);
    if (status == CMQ_OK) status = cmq_store_flush(store);
    return status == CMQ_OK ? mark_restored(&r, folder) : status;
}
