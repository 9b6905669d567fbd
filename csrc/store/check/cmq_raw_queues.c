/* cmq_raw_queues: see cmq_raw_queues.h. */
#include "store/check/cmq_raw_queues.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"

struct cmq_raw_queues {
    cmq_fs *fs;
    char root[CMQ_PATH_BYTES];
    cmq_rawqueue **queues;
    uint32_t count, capacity;
    uint32_t *slots;             /* open addressing: index + 1, 0: free */
    uint32_t slot_count;
    char **topics;               /* each name once */
    uint32_t topic_count, topic_capacity;

    cmq_file *open_file;         /* of open_queue, starting at open_start; NULL */
    uint32_t open_queue;
    int64_t open_start;
};

/* ---- the table ---- */

static uint32_t hash_of(cmq_slice topic, int32_t id)
{
    return (cmq_jhash(topic) ^ (uint32_t)id * UINT32_C(0x9E3779B9)) * UINT32_C(0x85EBCA6B);
}

static uint32_t slot_of(const cmq_raw_queues *set, cmq_slice topic, int32_t id)
{
    uint32_t slot = (hash_of(topic, id) >> 7) & (set->slot_count - 1);
    for (; set->slots[slot] != 0; slot = (slot + 1) & (set->slot_count - 1)) {
        const cmq_rawqueue *there = set->queues[set->slots[slot] - 1];
        if (there->id == id && cmq_slice_equal(topic, cmq_slice_of_text(there->topic))) break;
    }
    return slot;
}

static cmq_status CMQ_MUST_CHECK grow(cmq_raw_queues *set)
{
    if (set->count < set->capacity) return CMQ_OK;
    const uint32_t capacity = set->capacity == 0 ? 64 : set->capacity * 2, slot_count = capacity * 2;
    cmq_rawqueue **queues = realloc(set->queues, capacity * sizeof(cmq_rawqueue *));
    if (queues != NULL) set->queues = queues;
    uint32_t *slots = calloc(slot_count, sizeof *slots);
    if (queues == NULL || slots == NULL) {
        free(slots);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for a list of %u queues", capacity);
    }
    free(set->slots);
    set->slots = slots;
    set->slot_count = slot_count;
    set->capacity = capacity;
    for (uint32_t i = 0; i < set->count; i++) {
        const cmq_rawqueue *queue = set->queues[i];
        set->slots[slot_of(set, cmq_slice_of_text(queue->topic), queue->id)] = i + 1;
    }
    return CMQ_OK;
}

/* Takes `starts` over, whatever is returned. */
static cmq_status CMQ_MUST_CHECK add_queue(cmq_raw_queues *set, const cmq_rawqueue *found)
{
    cmq_status status = grow(set);
    cmq_rawqueue *queue = status == CMQ_OK ? malloc(sizeof *queue) : NULL;
    if (queue == NULL) {
        free(found->starts);
        return status != CMQ_OK ? status : cmq_fail(CMQ_ERR_MEMORY, "no memory for a queue");
    }
    *queue = *found;
    queue->index = set->count;
    set->queues[set->count++] = queue;
    set->slots[slot_of(set, cmq_slice_of_text(queue->topic), queue->id)] = set->count;
    return CMQ_OK;
}

const cmq_rawqueue *cmq_raw_queues_find(const cmq_raw_queues *set, cmq_slice topic, int32_t id)
{
    if (set->count == 0) return NULL;
    const uint32_t found = set->slots[slot_of(set, topic, id)];
    return found == 0 ? NULL : set->queues[found - 1];
}

uint32_t cmq_raw_queues_count(const cmq_raw_queues *set) { return set->count; }
const cmq_rawqueue *cmq_raw_queues_at(const cmq_raw_queues *set, uint32_t index) { return set->queues[index]; }

/* ---- looking at folders ---- */

static cmq_status CMQ_MUST_CHECK take_file(const cmq_raw_queues *set, const char *folder, const char *name,
                                           cmq_rawqueue *queue)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    int64_t start;
    cmq_status status = cmq_path_join(path, folder, name);
    if (status == CMQ_OK) status = cmq_fs_stat(set->fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;   /* removed meanwhile */
    if (status != CMQ_OK) return status;
    if (info.is_directory || info.bytes != (uint64_t)queue->file_bytes ||
        cmq_path_parse_offset_name(name, &start) != CMQ_OK)
        return CMQ_OK;
    if (start % queue->file_bytes == 0 && start <= INT64_MAX - 2 * queue->file_bytes)
        queue->starts[queue->file_count++] = start;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK take_queue(cmq_raw_queues *set, const char *folder, cmq_rawqueue *queue)
{
    char **names;
    size_t count;
    cmq_status status = cmq_queue_file_list(set->fs, folder, &names, &count);
    if (status != CMQ_OK) return status;
    queue->file_count = 0;
    queue->starts = malloc((count + 1) * sizeof *queue->starts);
    if (queue->starts == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu file names", count);
    /* Names come sorted, and of 20 digits each: so do the starts. */
    for (size_t i = 0; i < count && status == CMQ_OK; i++) status = take_file(set, folder, names[i], queue);
    cmq_fs_free_names(names, count);
    if (status == CMQ_OK) return add_queue(set, queue);
    free(queue->starts);
    return status;
}

static cmq_status CMQ_MUST_CHECK keep_topic(cmq_raw_queues *set, const char *name, const char **topic_out)
{
    if (set->topic_count == set->topic_capacity) {
        const uint32_t capacity = set->topic_capacity == 0 ? 64 : set->topic_capacity * 2;
        char **topics = realloc(set->topics, capacity * sizeof(char *));
        if (topics == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u topics", capacity);
        set->topics = topics;
        set->topic_capacity = capacity;
    }
    char *copy = strdup(name);
    if (copy == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a topic name");
    set->topics[set->topic_count++] = copy;
    *topic_out = copy;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK take_topic(cmq_raw_queues *set, const char *folder, const char *name,
                                            cmq_rawqueue *queue)
{
    char topic[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    char **names = NULL;
    size_t count = 0;
    cmq_status status = cmq_path_join(topic, folder, name);
    if (status == CMQ_OK) status = cmq_queue_file_list(set->fs, topic, &names, &count);
    if (status == CMQ_OK && count > 0) status = keep_topic(set, name, &queue->topic);
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        queue->id = cmq_queue_file_parse_id(names[i]);
        /* A topic that changed its kind: the first folder wins, as in loading. */
        if (queue->id < 0 || cmq_raw_queues_find(set, cmq_slice_of_text(name), queue->id) != NULL) continue;
        cmq_file_info info;
        status = cmq_path_join(path, topic, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(set->fs, path, &info);
        if (status == CMQ_OK && info.is_directory) status = take_queue(set, path, queue);
        if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;
    }
    cmq_fs_free_names(names, count);
    return status;
}

static cmq_status CMQ_MUST_CHECK take_folder(cmq_raw_queues *set, cmq_queue_kind kind, int64_t file_bytes)
{
    char folder[CMQ_PATH_BYTES];
    char **names;
    size_t count;
    cmq_rawqueue queue = {.kind = kind,
                          .file_bytes = file_bytes,
                          .unit_bytes = kind == CMQ_QUEUE_BATCH ? CMQ_BATCH_UNIT_BYTES : CMQ_UNIT_BYTES};
    cmq_status status = cmq_path_join(
        folder, set->root, cmq_queue_file_folder_name(kind == CMQ_QUEUE_BATCH ? CMQ_FOLDER_BATCH : CMQ_FOLDER_SIMPLE));
    if (status == CMQ_OK) status = cmq_queue_file_list(set->fs, folder, &names, &count);
    if (status != CMQ_OK) return status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) status = take_topic(set, folder, names[i], &queue);
    cmq_fs_free_names(names, count);
    return status;
}

cmq_status cmq_raw_queues_load(cmq_fs *fs, const char *root, int64_t queue_file_bytes, int64_t batch_file_bytes,
                               cmq_raw_queues **set_out)
{
    *set_out = NULL;
    CMQ_ASSERT(queue_file_bytes > 0 && queue_file_bytes % CMQ_UNIT_BYTES == 0);
    CMQ_ASSERT(batch_file_bytes > 0 && batch_file_bytes % CMQ_BATCH_UNIT_BYTES == 0);
    cmq_raw_queues *set = calloc(1, sizeof *set);
    if (set == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a list of queues");
    set->fs = fs;
    cmq_status status = cmq_path_join(set->root, root, "");
    if (status == CMQ_OK) status = take_folder(set, CMQ_QUEUE_SIMPLE, queue_file_bytes);
    if (status == CMQ_OK) status = take_folder(set, CMQ_QUEUE_BATCH, batch_file_bytes);
    if (status != CMQ_OK) {
        cmq_raw_queues_free(set);
        return status;
    }
    *set_out = set;
    return CMQ_OK;
}

void cmq_raw_queues_free(cmq_raw_queues *set)
{
    if (set == NULL) return;
    for (uint32_t i = 0; i < set->count; i++) {
        free(set->queues[i]->starts);
        free(set->queues[i]);
    }
    for (uint32_t i = 0; i < set->topic_count; i++) free(set->topics[i]);
    free(set->topics);
    free(set->queues);
    free(set->slots);
    cmq_file_close(set->open_file);
    free(set);
}

/* ---- units ---- */

int64_t cmq_rawqueue_first(const cmq_rawqueue *queue)
{
    return queue->file_count == 0 ? 0 : queue->starts[0] / queue->unit_bytes;
}

int64_t cmq_rawqueue_end(const cmq_rawqueue *queue)
{
    return queue->file_count == 0 ? 0 : (queue->starts[queue->file_count - 1] + queue->file_bytes) / queue->unit_bytes;
}

/* The number of the first file that ends behind byte `offset`. */
static uint32_t file_behind(const cmq_rawqueue *queue, int64_t offset)
{
    uint32_t low = 0, high = queue->file_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (queue->starts[middle] + queue->file_bytes > offset) high = middle;
        else low = middle + 1;
    }
    return low;
}

cmq_status cmq_rawqueue_path(const char *root, const cmq_rawqueue *queue, int64_t start, char into[CMQ_PATH_BYTES])
{
    char id[16], name[CMQ_OFFSET_NAME_BYTES];
    snprintf(id, sizeof id, "%" PRId32, queue->id);
    cmq_status status = cmq_path_join(
        into, root, cmq_queue_file_folder_name(queue->kind == CMQ_QUEUE_BATCH ? CMQ_FOLDER_BATCH : CMQ_FOLDER_SIMPLE));
    if (status == CMQ_OK) status = cmq_path_join(into, into, queue->topic);
    if (status == CMQ_OK) status = cmq_path_join(into, into, id);
    if (status != CMQ_OK || start < 0) return status;
    cmq_path_offset_name(name, start);
    return cmq_path_join(into, into, name);
}

static cmq_status CMQ_MUST_CHECK open_file(cmq_raw_queues *set, const cmq_rawqueue *queue, int64_t start)
{
    if (set->open_file != NULL && set->open_queue == queue->index && set->open_start == start) return CMQ_OK;
    cmq_file_close(set->open_file);
    set->open_file = NULL;
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_rawqueue_path(set->root, queue, start, path);
    if (status == CMQ_OK) status = cmq_file_open(set->fs, path, CMQ_OPEN_READ, &set->open_file);
    if (status != CMQ_OK) set->open_file = NULL;
    set->open_queue = queue->index;
    set->open_start = start;
    return status;
}

cmq_status cmq_raw_queues_read(cmq_raw_queues *set, const cmq_rawqueue *queue, int64_t position, int64_t count,
                               uint8_t *into)
{
    CMQ_ASSERT(position >= 0 && count >= 0 && position <= INT64_MAX / queue->unit_bytes - count);
    int64_t offset = position * queue->unit_bytes, left = count * queue->unit_bytes;
    memset(into, 0, (size_t)left);
    while (left > 0) {
        const uint32_t file = file_behind(queue, offset);
        if (file == queue->file_count) return CMQ_OK;
        const int64_t start = queue->starts[file];
        if (start > offset) {   /* no file here */
            const int64_t gap = start - offset < left ? start - offset : left;
            into += gap;
            offset += gap;
            left -= gap;
            continue;
        }
        const int64_t inside = start + queue->file_bytes - offset, chunk = inside < left ? inside : left;
        cmq_status status = open_file(set, queue, start);
        if (status == CMQ_OK) status = cmq_file_read(set->open_file, (uint64_t)(offset - start), into, (size_t)chunk);
        if (status != CMQ_OK) return status;
        into += chunk;
        offset += chunk;
        left -= chunk;
    }
    return CMQ_OK;
}

cmq_status cmq_raw_queues_next(cmq_raw_queues *set, const cmq_rawqueue *queue, int64_t position, int64_t *position_out)
{
    *position_out = position;
    if (position < 0 || position >= cmq_rawqueue_end(queue)) return CMQ_END;
    int64_t offset = position * queue->unit_bytes;
    for (uint32_t file = file_behind(queue, offset); file < queue->file_count; file++) {
        const int64_t start = queue->starts[file];
        if (offset < start) offset = start;
        uint64_t data;
        cmq_status status = open_file(set, queue, start);
        if (status == CMQ_OK) status = cmq_file_next_data(set->open_file, (uint64_t)(offset - start), &data);
        if (status == CMQ_END || (status == CMQ_OK && data >= (uint64_t)queue->file_bytes)) continue;
        if (status != CMQ_OK) return status;
        /* A hole may end within a unit. */
        const int64_t at = (start + (int64_t)data) / queue->unit_bytes;
        *position_out = at > position ? at : position;
        return CMQ_OK;
    }
    return CMQ_END;
}

bool cmq_rawqueue_decode(const cmq_rawqueue *queue, int64_t position, const uint8_t *image, cmq_unit *unit_out,
                         bool *filler_out)
{
    *unit_out = (cmq_unit){0};
    *filler_out = queue->kind == CMQ_QUEUE_SIMPLE && cmq_image_is_filler(image);
    if (*filler_out || cmq_image_end(image) == INT64_MAX) return false;
    if (queue->kind == CMQ_QUEUE_BATCH) {
        if (!cmq_batch_queue_valid(image)) return false;
        cmq_batch_queue_decode(image, unit_out);
        return true;
    }
    *unit_out = (cmq_unit){.offset = position,
                           .phy = cmq_load_i64(image),
                           .bytes = cmq_load_i32(image + 8),
                           .tags_code = cmq_load_i64(image + 12),
                           .count = 1};
    return true;
}
