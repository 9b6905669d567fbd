/* cmq_segment: see cmq_segment.h. */
#include "store/log/cmq_segment.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

struct cmq_segment {
    cmq_segment_family *family;
    cmq_segment *next;            /* in the family's list, for freeing */
    cmq_fs *fs;
    cmq_file *file;               /* NULL: closed, the mapping does not need it */
    uint64_t device, inode;       /* of the file that is mapped */
    uint8_t *data;
    int64_t start;
    int64_t bytes;
    bool writable;
    _Atomic int64_t warm;
    _Atomic int32_t pins;         /* 0: unmapped, for ever */
    char path[];
};

struct cmq_segment_family {
    pthread_mutex_t mutex;        /* guards the list */
    cmq_segment *first;
    _Atomic int32_t references;   /* the log's own, and one per mapped segment */
};

cmq_status cmq_segment_family_create(cmq_segment_family **family_out)
{
    *family_out = NULL;
    cmq_segment_family *family = calloc(1, sizeof *family);
    if (family == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the commit log");
    pthread_mutex_init(&family->mutex, NULL);
    atomic_init(&family->references, 1);
    *family_out = family;
    return CMQ_OK;
}

void cmq_segment_family_release(cmq_segment_family *family)
{
    if (family == NULL) return;
    /* acq_rel: the thread that frees must see all that other holders did with the segments. */
    if (atomic_fetch_sub_explicit(&family->references, 1, memory_order_acq_rel) != 1) return;
    for (cmq_segment *segment = family->first; segment != NULL;) {
        cmq_segment *next = segment->next;
        CMQ_ASSERT(segment->data == NULL);
        free(segment);
        segment = next;
    }
    pthread_mutex_destroy(&family->mutex);
    free(family);
}

static void adopt(cmq_segment_family *family, cmq_segment *segment)
{
    atomic_fetch_add_explicit(&family->references, 1, memory_order_relaxed);
    pthread_mutex_lock(&family->mutex);
    segment->next = family->first;
    family->first = segment;
    pthread_mutex_unlock(&family->mutex);
}

/* A file that is there already is left from a creation whose sync failed: nothing about it is durable, so it is created
 * again. It holds nothing. */
static cmq_status make_empty(cmq_file *file, const char *path)
{
    uint64_t data;
    const cmq_status status = cmq_file_next_data(file, 0, &data);
    if (status == CMQ_OK)
        return cmq_fail(CMQ_ERR_NOT_STORE, "%s has data, but the log ends before it: close the store and open it again",
                        path);
    return status == CMQ_END ? cmq_file_resize(file, 0) : status;
}

/* The file gets its full length, and its name is durable, before anything is written into it. */
static cmq_status make_full_length(cmq_fs *fs, cmq_file *file, const char *path, int64_t bytes)
{
    cmq_status status = cmq_file_resize(file, (uint64_t)bytes);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    if (status != CMQ_OK) return status;
    char directory[CMQ_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    CMQ_ASSERT(slash != NULL);
    memcpy(directory, path, (size_t)(slash - path));
    directory[slash - path] = '\0';
    return cmq_fs_sync_directory(fs, directory);
}

static cmq_status open_file(cmq_fs *fs, const char *path, int64_t bytes, cmq_segment_access access, cmq_file **file_out,
                            cmq_file_info *info_out)
{
    const bool may_create = access == CMQ_SEGMENT_STAGED || access == CMQ_SEGMENT_MAPPED;
    const cmq_open_mode mode = access == CMQ_SEGMENT_READ ? CMQ_OPEN_READ
                               : may_create               ? CMQ_OPEN_CREATE
                                                          : CMQ_OPEN_WRITE;
    cmq_status status = cmq_file_open(fs, path, mode, file_out);
    if (status != CMQ_OK) return status;
    status = cmq_file_info_of(*file_out, info_out);
    if (status == CMQ_OK && may_create) {
        if (info_out->bytes > 0) status = make_empty(*file_out, path);
        if (status == CMQ_OK) status = make_full_length(fs, *file_out, path, bytes);
    } else if (status == CMQ_OK && info_out->bytes != (uint64_t)bytes)
        status = cmq_fail(
            CMQ_ERR_SETTING,
            "%s has %llu bytes, but segments of this log have %lld; set mappedFileSizeCommitLog to the length of "
            "its files",
            path, (unsigned long long)info_out->bytes, (long long)bytes);
    if (status != CMQ_OK) {
        cmq_file_close(*file_out);
        *file_out = NULL;
    }
    return status;
}

cmq_status cmq_segment_open(cmq_segment_family *family, cmq_fs *fs, const char *path, int64_t start, int64_t bytes,
                            cmq_segment_access access, cmq_segment **segment_out)
{
    *segment_out = NULL;
    const size_t path_bytes = strlen(path) + 1;
    cmq_segment *segment = calloc(1, sizeof *segment + path_bytes);
    if (segment == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a segment of the commit log");
    memcpy(segment->path, path, path_bytes);
    segment->family = family;
    segment->fs = fs;
    segment->start = start;
    segment->bytes = bytes;
    segment->writable = access == CMQ_SEGMENT_MAPPED || access == CMQ_SEGMENT_MAPPED_AGAIN;
    atomic_init(&segment->pins, 1);
    cmq_file_info info;
    cmq_status status = open_file(fs, path, bytes, access, &segment->file, &info);
    if (status == CMQ_OK) status = cmq_file_map(segment->file, 0, (size_t)bytes, segment->writable, &segment->data);
    if (status != CMQ_OK) {
        cmq_file_close(segment->file);
        free(segment);
        return status;
    }
    segment->device = info.device;
    segment->inode = info.inode;
    if (access == CMQ_SEGMENT_READ) cmq_segment_close_file(segment);
    adopt(family, segment);
    *segment_out = segment;
    return CMQ_OK;
}

int64_t cmq_segment_start(const cmq_segment *segment) { return segment->start; }
const char *cmq_segment_path(const cmq_segment *segment) { return segment->path; }
cmq_file *cmq_segment_file(const cmq_segment *segment) { return segment->file; }
uint8_t *cmq_segment_data(const cmq_segment *segment) { return segment->data; }
bool cmq_segment_writable(const cmq_segment *segment) { return segment->writable; }
int64_t cmq_segment_warm(const cmq_segment *segment)
{
    return atomic_load_explicit(&segment->warm, memory_order_acquire);
}
void cmq_segment_set_warm(cmq_segment *segment, int64_t bytes)
{
    atomic_store_explicit(&segment->warm, bytes, memory_order_release);
}

cmq_status cmq_segment_reopen(cmq_segment *segment, cmq_segment_access access, cmq_segment **segment_out)
{
    /* A new handle: readers that pinned the old one keep it. */
    return cmq_segment_open(segment->family, segment->fs, segment->path, segment->start, segment->bytes, access,
                            segment_out);
}

void cmq_segment_close_file(cmq_segment *segment)
{
    cmq_file_close(segment->file);
    segment->file = NULL;
}

cmq_status cmq_segment_replaced(const cmq_segment *segment, bool *replaced_out)
{
    cmq_file_info named;
    *replaced_out = false;
    const cmq_status status = cmq_fs_stat(segment->fs, segment->path, &named);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    /* One of another length is being made. */
    *replaced_out =
        (named.inode != segment->inode || named.device != segment->device) && named.bytes == (uint64_t)segment->bytes;
    return CMQ_OK;
}

bool cmq_segment_try_pin(cmq_segment *segment)
{
    int32_t pins = atomic_load_explicit(&segment->pins, memory_order_relaxed);
    while (pins > 0)
        if (atomic_compare_exchange_weak_explicit(&segment->pins, &pins, pins + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

void cmq_segment_pin(cmq_segment *segment)
{
    const int32_t before = atomic_fetch_add_explicit(&segment->pins, 1, memory_order_relaxed);
    CMQ_ASSERT(before > 0);
}

void cmq_segment_unpin(cmq_segment *segment)
{
    const int32_t before = atomic_fetch_sub_explicit(&segment->pins, 1, memory_order_acq_rel);
    CMQ_ASSERT(before > 0);
    if (before != 1) return;
    cmq_fs_unmap(segment->fs, segment->data, (size_t)segment->bytes);
    cmq_segment_close_file(segment);
    segment->data = NULL;
    cmq_segment_family_release(segment->family);
}
