/* cmq_queue_end_sums: see cmq_queue_end_sums.h. */
#include "store/queue/cmq_queue_end_sums.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "store/marks/cmq_own_files.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_sums.h"

#define MAGIC UINT64_C(0x434D5151454E4453)   /* "CMQQENDS" */
#define VERSION 3u
#define VERSION_BEGINS 2u   /* without ends of queues that have no sum */
#define VERSION_SUMS 1u     /* without begins, too */
#define NO_SUM 128u
#define HEAD_BYTES 16u
#define ENTRY_BYTES 34u
#define ENTRY_BYTES_SUMS 18u
#define COPY_BYTES 4096

enum { UNKNOWN = 0, SOUND = 1, DIFFERS = 2 };

/* One queue's end, as the table had it. */
struct cmq_queue_end {
    int64_t end;             /* units below are covered; 0: none are */
    uint32_t crc;
    uint16_t units;          /* covered ones, with the unit that lies across the block's border */
    _Atomic uint8_t state;   /* of the look at them */
};

_Static_assert(sizeof(cmq_queue_end) == 16, "as the header says");
_Static_assert(CMQ_SUMS_BLOCK_BYTES / CMQ_UNIT_BYTES + 2 <= UINT16_MAX, "a block's units can be counted");

static cmq_status CMQ_MUST_CHECK path_of(const cmq_queues *queues, char into[CMQ_PATH_BYTES])
{
    return cmq_path_join(into, queues->root, CMQ_OWN_FOLDER "/ends");
}

/* Where the block begins that byte `end` of the queue's files is behind. */
static int64_t block_start(const cmq_queue *queue, int64_t end)
{
    const int64_t file_bytes = cmq_queue_file_bytes(queue), last = end - 1, start = last / file_bytes * file_bytes;
    return start + (last - start) / CMQ_SUMS_BLOCK_BYTES * CMQ_SUMS_BLOCK_BYTES;
}

/* Extend *crc by bytes [from, end) of the queue's files. */
static bool extend_by_files(const cmq_queue *queue, int64_t from, int64_t end, uint32_t *crc)
{
    uint8_t copy[COPY_BYTES];
    while (from < end) {
        const size_t bytes = end - from < COPY_BYTES ? (size_t)(end - from) : COPY_BYTES;
        if (cmq_queue_file_read(queue, cmq_queue_folder(queue), from, copy, bytes) != CMQ_OK) return false;
        *crc = cmq_crc32_extend(*crc, copy, bytes);
        from += (int64_t)bytes;
    }
    return true;
}

/* ---- writing ---- */

/* The entry of one queue; returns its bytes, 0 where it has no units in its files. An end that is also that of a block
 * has no sum. */
static size_t encode(cmq_queue *queue, uint8_t *into)
{
    cmq_queue_begin begin = {0};
    cmq_queue_lock(queue);
    const int64_t position = cmq_queue_tail_flushed(&queue->tail), end = position * cmq_queue_unit_bytes(queue);
    const bool there = position > 0 && !cmq_queue_deleted(queue),
               summed = there && queue->files.sum_known && block_start(queue, end + 1) != end;
    const uint32_t crc = queue->files.sum;
    if (there) cmq_queue_learn_begin(queue, &begin);
    cmq_queue_unlock(queue);
    if (!there) return 0;
    const size_t topic_bytes = cmq_queue_topic_bytes(queue);
    CMQ_ASSERT(topic_bytes <= UINT8_MAX);
    cmq_store_i64(into, position);
    cmq_store_u32(into + 8, summed ? crc : 0);
    cmq_store_i32(into + 12, queue->id);
    into[16] = (uint8_t)(queue->tail.kind | (summed ? 0 : NO_SUM));
    into[17] = (uint8_t)topic_bytes;
    cmq_store_i64(into + 18, begin.position);
    cmq_store_i64(into + 26, begin.behind_phy);
    memcpy(into + ENTRY_BYTES, cmq_queue_topic(queue), topic_bytes);
    return ENTRY_BYTES + topic_bytes;
}

static void write_table(const cmq_queues *queues, const uint8_t *table, size_t bytes)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    if (path_of(queues, path) != CMQ_OK || cmq_file_open(queues->fs, path, CMQ_OPEN_CREATE, &file) != CMQ_OK) return;
    (void)!cmq_file_write(file, 0, table, bytes);
    cmq_file_close(file);
}

void cmq_queue_end_sums_store(cmq_queues *queues, size_t bytes_max)
{
    if (!atomic_exchange_explicit(&queues->ends_changed, false, memory_order_acq_rel)) return;
    const uint32_t count = cmq_queues_count(queues);
    size_t room = HEAD_BYTES + 4, used = HEAD_BYTES;
    for (uint32_t i = 0; i < count; i++) room += ENTRY_BYTES + cmq_queue_topic_bytes(cmq_queues_at(queues, i));
    if (room > bytes_max) room = bytes_max;   /* queues behind have no sum */
    uint8_t *table = malloc(room);
    if (table == NULL) {   /* the next durable point retries */
        atomic_store_explicit(&queues->ends_changed, true, memory_order_release);
        return;
    }
    uint32_t entries = 0;
    for (uint32_t i = 0; i < count; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (used + ENTRY_BYTES + cmq_queue_topic_bytes(queue) + 4 > room) break;
        const size_t bytes = encode(queue, table + used);
        used += bytes;
        entries += bytes > 0;
    }
    cmq_store_u64(table, MAGIC);
    cmq_store_u32(table + 8, VERSION);
    cmq_store_u32(table + 12, entries);
    cmq_store_u32(table + used, cmq_crc32(table, used));
    write_table(queues, table, used + 4);
    free(table);
}

/* ---- reading ---- */

/* The bytes of the file; NULL when there is none. */
static uint8_t *read_table(const cmq_queues *queues, size_t *bytes_out)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_file_info info;
    uint8_t *table = NULL;
    if (path_of(queues, path) != CMQ_OK || cmq_file_open(queues->fs, path, CMQ_OPEN_READ, &file) != CMQ_OK) return NULL;
    if (cmq_file_info_of(file, &info) == CMQ_OK && info.bytes >= HEAD_BYTES + 4 &&
        info.bytes <= CMQ_QUEUE_ENDS_BYTES_MAX)
        table = malloc((size_t)info.bytes);
    if (table != NULL && cmq_file_read(file, 0, table, (size_t)info.bytes) != CMQ_OK) {
        free(table);
        table = NULL;
    }
    cmq_file_close(file);
    *bytes_out = table != NULL ? (size_t)info.bytes : 0;
    return table;
}

cmq_status cmq_queue_end_sums_sync(const cmq_queues *queues)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_status status = path_of(queues, path);
    if (status == CMQ_OK) status = cmq_file_open(queues->fs, path, CMQ_OPEN_READ, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_sync(file);
    cmq_file_close(file);
    if (status == CMQ_OK) status = cmq_path_join(path, queues->root, CMQ_OWN_FOLDER);
    return status == CMQ_OK ? cmq_fs_sync_directory(queues->fs, path) : status;
}

/* The bytes of an entry before its topic; 0: of a version that is not known. */
static size_t entry_bytes(const uint8_t *table)
{
    const uint32_t version = cmq_load_u32(table + 8);
    return version == VERSION || version == VERSION_BEGINS ? ENTRY_BYTES
           : version == VERSION_SUMS                       ? ENTRY_BYTES_SUMS
                                                           : 0;
}

/* Is it a whole table? A longer one may have been there before: bytes behind the checksum do not count. */
static bool is_sound(const uint8_t *table, size_t bytes)
{
    const size_t fixed = entry_bytes(table);
    if (cmq_load_u64(table) != MAGIC || fixed == 0) return false;
    size_t at = HEAD_BYTES;
    for (uint32_t left = cmq_load_u32(table + 12); left > 0; left--) {
        if (bytes - at < fixed + 4) return false;
        const size_t entry = fixed + table[at + 17];
        if (bytes - at < entry + 4) return false;
        at += entry;
    }
    return cmq_load_u32(table + at) == cmq_crc32(table, at);
}

/* writer: continue the sum from the table. The units that recovery takes from the log behind it are in the file; where
 * they are cut and put again, the sum becomes unknown. */
static void continue_sum(cmq_queue *queue, int64_t end, uint32_t crc)
{
    const int64_t flushed = cmq_queue_tail_flushed(&queue->tail) * cmq_queue_unit_bytes(queue);
    if (block_start(queue, flushed) != block_start(queue, end)) return;
    if (!extend_by_files(queue, end, flushed, &crc)) return;
    const bool complete = block_start(queue, flushed + 1) == flushed;
    queue->files.sum = complete ? 0 : crc;
    queue->files.sum_known = !complete;
}

static cmq_queue_was read_entry(const uint8_t *entry, size_t fixed)
{
    cmq_queue_was was = {.topic = {.data = entry + fixed, .bytes = entry[17]},
                         .id = cmq_load_i32(entry + 12),
                         .kind = (entry[16] & ~NO_SUM) == CMQ_QUEUE_BATCH ? CMQ_QUEUE_BATCH : CMQ_QUEUE_SIMPLE,
                         .end = cmq_load_i64(entry)};
    if (fixed == ENTRY_BYTES)
        was.begin = (cmq_queue_begin){.position = cmq_load_i64(entry + 18), .behind_phy = cmq_load_i64(entry + 26)};
    return was;
}

static void take_entry(cmq_queues *queues, const uint8_t *entry, const cmq_queue_was *was)
{
    cmq_queue *queue = cmq_queues_find(queues, was->topic, was->id);
    if (queue == NULL || cmq_queue_kind_of(queue) != was->kind || queue->index >= queues->end_count) return;
    cmq_queue_compare_begin(queue, &was->begin);
    if ((entry[16] & NO_SUM) != 0 || was->end <= 0 || was->end > cmq_queue_tail_flushed(&queue->tail)) return;
    const int64_t unit_bytes = cmq_queue_unit_bytes(queue), end = was->end * unit_bytes, from = block_start(queue, end);
    if (from < queue->files.first) return;
    queues->ends[queue->index] = (cmq_queue_end){
        .end = was->end, .crc = cmq_load_u32(entry + 8), .units = (uint16_t)(was->end - from / unit_bytes)};
    if (!queues->read_only) continue_sum(queue, end, cmq_load_u32(entry + 8));
}

static cmq_status CMQ_MUST_CHECK take_table(cmq_queues *queues, const uint8_t *table, const cmq_queues_point *point)
{
    const uint32_t queue_count = cmq_queues_count(queues), count = cmq_load_u32(table + 12);
    const size_t fixed = entry_bytes(table);
    size_t at = HEAD_BYTES;
    queues->ends = calloc(queue_count + 1, sizeof *queues->ends);
    cmq_queue_was *was = calloc((size_t)count + 1, sizeof *was);
    if (was == NULL || queues->ends == NULL) {   /* hints are no reason to fail */
        free(was);
        return CMQ_OK;
    }
    queues->end_count = queue_count;
    for (uint32_t i = 0; i < count; i++) {
        was[i] = read_entry(table + at, fixed);
        take_entry(queues, table + at, &was[i]);
        at += fixed + table[at + 17];
    }
    const cmq_status status = cmq_queues_learn_lost_ends(queues, was, count, point);
    free(was);
    return status;
}

cmq_status cmq_queues_load_ends(cmq_queues *queues, const cmq_queues_point *point)
{
    size_t bytes;
    cmq_status status = CMQ_OK;
    uint8_t *table = read_table(queues, &bytes);
    CMQ_ASSERT(queues->ends == NULL);
    if (table != NULL && is_sound(table, bytes)) status = take_table(queues, table, point);
    free(table);
    return status;
}

/* ---- looking ---- */

/* Several readers may look at once: they come to one answer. A file that cannot be read is the scan's to report. */
static uint8_t look(const cmq_queue *queue, cmq_queue_end *of)
{
    const int64_t end = of->end * cmq_queue_unit_bytes(queue);
    uint32_t crc = 0;
    if (!extend_by_files(queue, block_start(queue, end), end, &crc)) return SOUND;
    const uint8_t state = crc == of->crc ? SOUND : DIFFERS;
    atomic_store_explicit(&of->state, state, memory_order_relaxed);
    return state;
}

bool cmq_queue_end_sums_differ(const cmq_queue *queue, int64_t at, int64_t *end)
{
    if (queue->index >= queue->set->end_count) return false;
    cmq_queue_end *of = &queue->set->ends[queue->index];
    const int64_t from = of->end - of->units;
    if (at >= of->end || *end <= from) return false;
    uint8_t state = atomic_load_explicit(&of->state, memory_order_relaxed);
    if (state == UNKNOWN) state = look(queue, of);
    if (state == SOUND) return false;
    if (at < from) *end = from;
    else if (*end > of->end) *end = of->end;
    return at >= from;
}
