/* cmq_follow: see cmq_follow.h.
 *
 * The page (4096 bytes, the machine's byte order: it never leaves the machine). Fields that different threads write
 * stand on cache lines of their own:
 *
 *     0  magic u64, version u32, closed u32, generation i64, writer_pid i64, crc32 of magic, version, generation and
 *     pid
 *    64  confirmed_end i64, store_ms i64, signal u32, 88: confirmed_end twice more the writer's hot line; followers
 *        only set the signal's lowest bit
 *   128  files_end i64                                     flush
 *   192  log_min i64                                       retention
 *   256  beat_ms i64                                       the beat
 *   320  announced i64, completed i64                      deletions
 *   384  the writer: boot id 16 bytes, inode of this file u64, pid namespace u64, start of the process u64, beat in ms
 *        since the boot i64, flags u32 (1: synced, 2: confirmed_end stands there three times), crc32 of magic, all of
 *        it but the beat, and the generation
 *   448  the acknowledged end when the page was taken: boot id 16 bytes, inode u64, end i64, flags u32, crc32 of it;
 *        496: the last generation i64
 *  1024  96 deletions in turn: at i64, expired_below i64, topic u64, 0
 *
 * A page that an older version made has zeros where later fields are: no deletions, nothing proven. All that proves
 * something lies in the first 512 bytes, which a disk writes whole or not at all.
 */
#include "store/follow/cmq_follow.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "base/cmq_host.h"
#include "store/marks/cmq_own_files.h"

#define MAGIC 0x574F4C4C4F46514Du   /* "MQFOLLOW" in memory */
#define VERSION 1u
#define PAGE_BYTES 4096
#define POLL_MS 2   /* of a follower that nobody wakes: below what a person notices, above what costs a core anything */

#define DELETIONS 96
#define END_COPIES 2
#define FLAG_SYNCED 1u
#define FLAG_COPIES 2u   /* the page has end_again */
#define FRESH_MS (3 * CMQ_FOLLOW_BEAT_MS)

typedef struct page_deletion {
    _Atomic int64_t at, expired_below;
    _Atomic uint64_t topic, unused;
} page_deletion;

typedef struct page_head {
    uint64_t magic;
    uint32_t version;
    _Atomic uint32_t closed;
    _Atomic int64_t generation;
    _Atomic int64_t writer_pid;
    _Atomic uint32_t crc;
} page_head;

/* The writer. Changed only while the generation is 0. */
typedef struct page_writer {
    uint8_t boot_id[CMQ_BOOT_ID_BYTES];
    uint64_t inode;
    uint64_t pid_namespace;
    uint64_t started;
    _Atomic int64_t beat_boot_ms;
    uint32_t flags;
    _Atomic uint32_t crc;
} page_writer;

typedef struct page_acknowledged {
    uint8_t boot_id[CMQ_BOOT_ID_BYTES];
    uint64_t inode;
    int64_t end;
    uint32_t flags;
    uint32_t crc;
} page_acknowledged;

typedef struct follow_page {
    alignas(64) page_head head;
    alignas(64) _Atomic int64_t confirmed_end;
    _Atomic int64_t store_ms;
    _Atomic uint32_t signal;   /* sequence, a multiple of two; lowest bit: somebody waits for it to change */
    _Atomic int64_t end_again[END_COPIES];   /* confirmed_end once more: no CRC covers the hot line */
    alignas(64) _Atomic int64_t files_end;
    alignas(64) _Atomic int64_t log_min;
    alignas(64) _Atomic int64_t beat_ms;
    alignas(64) _Atomic int64_t announced;
    _Atomic int64_t completed;
    alignas(64) page_writer writer;
    alignas(64) page_acknowledged acknowledged;
    alignas(16) _Atomic int64_t last_generation;   /* also while the generation is 0 */
    alignas(1024) page_deletion deletions[DELETIONS];
} follow_page;

_Static_assert(offsetof(follow_page, confirmed_end) == 64 && offsetof(follow_page, signal) == 80, "layout of the page");
_Static_assert(offsetof(follow_page, end_again) == 88, "layout of the page");
_Static_assert(offsetof(follow_page, files_end) == 128 && offsetof(follow_page, log_min) == 192, "layout of the page");
_Static_assert(offsetof(follow_page, beat_ms) == 256 && offsetof(follow_page, announced) == 320, "layout of the page");
_Static_assert(offsetof(follow_page, writer) == 384 && offsetof(follow_page, acknowledged) == 448,
               "layout of the page");
_Static_assert(offsetof(follow_page, last_generation) == 496, "layout of the page, and within one sector");
_Static_assert(offsetof(follow_page, deletions) == 1024 && sizeof(page_deletion) == 32, "layout of the page");
_Static_assert(sizeof(follow_page) <= PAGE_BYTES, "one page holds it");
_Static_assert(sizeof(_Atomic int64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "atomics are plain words");

struct cmq_follow {
    cmq_file *file;
    follow_page *page;
    cmq_follow_mode mode;
    uint64_t inode;    /* of a writer's page */
};

static uint32_t head_crc(const page_head *head)
{
    uint64_t words[4] = {head->magic, head->version,
                         (uint64_t)atomic_load_explicit(&head->generation, memory_order_relaxed),
                         (uint64_t)atomic_load_explicit(&head->writer_pid, memory_order_relaxed)};
    return cmq_crc32(words, sizeof words);
}

/* ---- the writer, and the acknowledged end ---- */

/* With the generation: an older version that begins one leaves the writer before it in its place. */
static uint32_t writer_crc(const page_writer *writer, int64_t generation)
{
    uint32_t words[14] = {(uint32_t)MAGIC};
    memcpy(words + 1, writer->boot_id, sizeof writer->boot_id);
    memcpy(words + 5, &writer->inode, 8);
    memcpy(words + 7, &writer->pid_namespace, 8);
    memcpy(words + 9, &writer->started, 8);
    words[11] = writer->flags;
    memcpy(words + 12, &generation, 8);
    return cmq_crc32(words, sizeof words);
}

static uint32_t acknowledged_crc(const page_acknowledged *said)
{
    return cmq_crc32(said, offsetof(page_acknowledged, crc));
}

static int64_t since_boot_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool is_this_boot(const uint8_t id[CMQ_BOOT_ID_BYTES])
{
    uint8_t own[CMQ_BOOT_ID_BYTES];
    return cmq_host_boot_id(own) && memcmp(own, id, sizeof own) == 0;
}

static bool writer_is_known(const follow_page *page)
{
    const int64_t generation = atomic_load_explicit(&page->head.generation, memory_order_acquire);
    return page->writer.inode != 0 &&
           atomic_load_explicit(&page->writer.crc, memory_order_acquire) == writer_crc(&page->writer, generation);
}

static bool says_where(const page_acknowledged *said)
{
    return said->inode != 0 && said->crc == acknowledged_crc(said);
}

/* The end that two of three copies say; 0: none is believed. A writer that dies between two copies has acknowledged
 * nothing beyond the older one. */
static int64_t proven_end(const follow_page *page)
{
    const int64_t end = atomic_load_explicit(&page->confirmed_end, memory_order_acquire);
    const int64_t second = atomic_load_explicit(&page->end_again[0], memory_order_acquire),
                  third = atomic_load_explicit(&page->end_again[1], memory_order_acquire);
    if ((page->writer.flags & FLAG_COPIES) == 0 || end == second || end == third) return end;
    return second == third ? second : 0;
}

/* How far the log is acknowledged for certain: by the writer whose generation stands in the page, or by the one before,
 * whose end a writer that did not come to an end of its recovery has kept. */
static page_acknowledged acknowledged_of(const follow_page *page, uint64_t inode)
{
    page_acknowledged best = {0};
    const page_acknowledged *kept = &page->acknowledged;
    if (says_where(kept) && kept->inode == inode && ((kept->flags & FLAG_SYNCED) != 0 || is_this_boot(kept->boot_id)))
        best = *kept;
    const page_writer *writer = &page->writer;
    const bool stands = atomic_load_explicit(&page->head.generation, memory_order_acquire) != 0 &&
                        atomic_load_explicit(&page->head.crc, memory_order_acquire) == head_crc(&page->head);
    if (!stands || !writer_is_known(page) || writer->inode != inode) return best;
    const int64_t end = proven_end(page);
    if (end <= best.end || ((writer->flags & FLAG_SYNCED) == 0 && !is_this_boot(writer->boot_id))) return best;
    best = (page_acknowledged){.inode = inode, .end = end, .flags = writer->flags & FLAG_SYNCED};
    memcpy(best.boot_id, writer->boot_id, sizeof best.boot_id);
    best.crc = acknowledged_crc(&best);
    return best;
}

static void name_writer(page_writer *writer, uint64_t inode, bool synced, int64_t generation)
{
    atomic_store_explicit(&writer->crc, 0, memory_order_seq_cst);
    (void)cmq_host_boot_id(writer->boot_id);   /* zeros, where the system does not say: no boot's */
    writer->inode = inode;
    writer->pid_namespace = cmq_host_pid_namespace();
    writer->started = cmq_host_process_start(getpid());
    writer->flags = FLAG_COPIES | (synced ? FLAG_SYNCED : 0);
    atomic_store_explicit(&writer->beat_boot_ms, since_boot_ms(), memory_order_relaxed);
    atomic_store_explicit(&writer->crc, writer_crc(writer, generation), memory_order_seq_cst);
}

static bool page_is_known(const follow_page *page)
{
    return page->head.magic == MAGIC && page->head.version == VERSION;
}

/* ---- open ---- */

static cmq_status map_page(cmq_fs *fs, const char *root, cmq_open_mode mode, cmq_follow *follow)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, CMQ_OWN_FOLDER "/follow");
    if (status != CMQ_OK) return status;
    status = cmq_file_open(fs, path, mode, &follow->file);
    if (status != CMQ_OK) return status;
    cmq_file_info info;
    status = cmq_file_info_of(follow->file, &info);
    if (status != CMQ_OK) return status;
    if (info.bytes < PAGE_BYTES) {
        if (mode != CMQ_OPEN_CREATE)
            return cmq_fail(CMQ_ERR_NOT_FOUND, "%s has %llu bytes: no page yet", path, (unsigned long long)info.bytes);
        status = cmq_file_resize(follow->file, PAGE_BYTES);
        if (status != CMQ_OK) return status;
    }
    /* Without blocks a store into the map could meet a full disk, which is a signal and not an error. */
    if (mode == CMQ_OPEN_CREATE) status = cmq_file_reserve(follow->file, 0, PAGE_BYTES);
    uint8_t *address = NULL;
    if (status == CMQ_OK) status = cmq_file_map(follow->file, 0, PAGE_BYTES, mode != CMQ_OPEN_READ, &address);
    follow->page = (follow_page *)(void *)address;
    return status;
}

/* The generation that stood there is over: followers take nothing more of it. */
static void invalidate(cmq_follow *follow, uint64_t inode)
{
    follow_page *page = follow->page;
    const bool known = page_is_known(page);
    const page_acknowledged said = known ? acknowledged_of(page, inode) : (page_acknowledged){0};
    const int64_t stood = known ? atomic_load_explicit(&page->head.generation, memory_order_relaxed) : 0;
    if (stood > atomic_load_explicit(&page->last_generation, memory_order_relaxed))
        atomic_store_explicit(&page->last_generation, stood, memory_order_relaxed);   /* by an older version */
    page->acknowledged = said;
    /* Before the generation goes: a process that dies in between leaves one of the two. */
    atomic_store_explicit(&page->head.generation, 0, memory_order_seq_cst);
    if (!known) {
        page->head.magic = MAGIC;
        page->head.version = VERSION;
    }
    name_writer(&page->writer, inode, false, 0);
    atomic_store_explicit(&page->head.writer_pid, (int64_t)getpid(), memory_order_relaxed);
    atomic_store_explicit(&page->head.closed, 0, memory_order_relaxed);
    atomic_store_explicit(&page->head.crc, head_crc(&page->head), memory_order_seq_cst);
}

cmq_status cmq_follow_take(cmq_fs *fs, const char *root, cmq_follow **follow_out)
{
    *follow_out = NULL;
    char folder[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(folder, root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = cmq_fs_make_directory_in(fs, root, folder);
    if (status != CMQ_OK) return status;
    cmq_follow *follow = calloc(1, sizeof *follow);
    if (follow == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the follow page of %s", root);
    follow->mode = CMQ_FOLLOW_WRITER;
    cmq_file_info info;
    status = map_page(fs, root, CMQ_OPEN_CREATE, follow);
    if (status == CMQ_OK) status = cmq_file_info_of(follow->file, &info);
    if (status != CMQ_OK) {
        cmq_follow_destroy(follow);
        return status;
    }
    follow->inode = info.inode;
    invalidate(follow, info.inode);
    cmq_follow_wake(follow);
    *follow_out = follow;
    return CMQ_OK;
}

/* All on one cache line. */
static inline void store_end(follow_page *page, int64_t end)
{
    for (int i = 0; i < END_COPIES; i++) atomic_store_explicit(&page->end_again[i], end, memory_order_relaxed);
    atomic_store_explicit(&page->confirmed_end, end, memory_order_release);
}

void cmq_follow_begin(cmq_follow *follow, const cmq_follow_values *values)
{
    follow_page *page = follow->page;
    CMQ_ASSERT(follow->mode == CMQ_FOLLOW_WRITER);
    CMQ_ASSERT(atomic_load_explicit(&page->head.generation, memory_order_relaxed) == 0);
    /* The clock keeps it rising when the page was lost. */
    const int64_t before = atomic_load_explicit(&page->last_generation, memory_order_relaxed);
    const int64_t later = before >= values->now_ms ? before + 1 : values->now_ms, generation = later > 0 ? later : 1;
    name_writer(&page->writer, follow->inode, values->synced, generation);
    store_end(page, values->confirmed_end);
    atomic_store_explicit(&page->store_ms, 0, memory_order_relaxed);
    atomic_store_explicit(&page->files_end, values->files_end, memory_order_relaxed);
    atomic_store_explicit(&page->log_min, values->log_min, memory_order_relaxed);
    atomic_store_explicit(&page->beat_ms, values->now_ms, memory_order_relaxed);
    atomic_store_explicit(&page->completed, atomic_load_explicit(&page->announced, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&page->last_generation, generation, memory_order_relaxed);
    atomic_store_explicit(&page->head.generation, generation, memory_order_seq_cst);
    atomic_store_explicit(&page->head.crc, head_crc(&page->head), memory_order_seq_cst);
    page->acknowledged = (page_acknowledged){0};   /* the generation says it now */
    cmq_follow_wake(follow);
}

/* Open the page as it is, for a question; *follow_out NULL when there is none of a known version. */
static cmq_status look(cmq_fs *fs, const char *root, cmq_open_mode mode, cmq_follow *follow, cmq_file_info *info_out)
{
    cmq_status status = map_page(fs, root, mode, follow);
    if (status == CMQ_OK) status = cmq_file_info_of(follow->file, info_out);
    if (status == CMQ_OK && !page_is_known(follow->page)) status = CMQ_ERR_NOT_FOUND;
    return status;
}

static void end_look(cmq_follow *follow)
{
    if (follow->page != NULL) cmq_file_unmap(follow->file, (uint8_t *)follow->page, PAGE_BYTES);
    cmq_file_close(follow->file);
}

cmq_status cmq_follow_acknowledged(cmq_fs *fs, const char *root, int64_t *end_out)
{
    cmq_follow follow = {.mode = CMQ_FOLLOW_POLLS};
    cmq_file_info info;
    *end_out = 0;
    const cmq_status status = look(fs, root, CMQ_OPEN_READ, &follow, &info);
    if (status == CMQ_OK) *end_out = acknowledged_of(follow.page, info.inode).end;
    end_look(&follow);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

bool cmq_follow_is_of_this_boot(const cmq_follow *follow)
{
    cmq_file_info info;
    const page_writer *writer = &follow->page->writer;
    return atomic_load_explicit(&follow->page->head.generation, memory_order_acquire) != 0 &&
           writer_is_known(follow->page) && is_this_boot(writer->boot_id) &&
           cmq_file_info_of(follow->file, &info) == CMQ_OK && info.inode == writer->inode;
}

cmq_status cmq_follow_forget(cmq_fs *fs, const char *root)
{
    cmq_follow follow = {.mode = CMQ_FOLLOW_POLLS};
    cmq_file_info info;
    cmq_status status = look(fs, root, CMQ_OPEN_WRITE, &follow, &info);
    if (status == CMQ_OK) {
        follow.page->acknowledged = (page_acknowledged){0};
        atomic_store_explicit(&follow.page->head.generation, 0, memory_order_seq_cst);
        atomic_store_explicit(&follow.page->head.crc, head_crc(&follow.page->head), memory_order_seq_cst);
        /* An old page that the disk has must not come back behind a log that was changed. */
        status = cmq_file_sync_mapped(follow.file, (uint8_t *)follow.page, PAGE_BYTES);
    }
    end_look(&follow);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

cmq_status cmq_follow_open(cmq_fs *fs, const char *root, cmq_follow **follow_out)
{
    *follow_out = NULL;
    cmq_follow *follow = calloc(1, sizeof *follow);
    if (follow == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the follow page of %s", root);
    follow->mode = CMQ_FOLLOW_WAKES;
    cmq_status status = map_page(fs, root, CMQ_OPEN_WRITE, follow);
    if (follow->file == NULL && status != CMQ_OK && status != CMQ_ERR_NOT_FOUND) {
        /* Another user's store, or a read-only file system. */
        follow->mode = CMQ_FOLLOW_POLLS;
        status = map_page(fs, root, CMQ_OPEN_READ, follow);
    }
    if (status == CMQ_OK && !page_is_known(follow->page))
        status = cmq_fail(CMQ_ERR_NOT_FOUND, "the follow page of %s is of another version", root);
    if (status != CMQ_OK) {
        cmq_follow_destroy(follow);
        return status;
    }
    *follow_out = follow;
    return CMQ_OK;
}

void cmq_follow_destroy(cmq_follow *follow)
{
    if (follow == NULL) return;
    end_look(follow);
    free(follow);
}

cmq_follow_mode cmq_follow_mode_of(const cmq_follow *follow) { return follow->mode; }

/* ---- writer ---- */

/* FUTEX_WAIT and FUTEX_WAKE without the private flag: the kernel then finds waiters of other processes by file and
 * offset. */
static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *deadline)
{
    return syscall(SYS_futex, (void *)word, operation, value, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Move the sequence and take the waiting bit away in one step. The bit and the sequence must be one word: were the bit
 * a word of its own, a waiter that sets it after the sequence moved, and sleeps after our wake-up, would have lost it
 * (the test found that). */
static void signal_change(follow_page *page)
{
    uint32_t before = atomic_load_explicit(&page->signal, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&page->signal, &before, (before | 1u) + 1u, memory_order_acq_rel,
                                                  memory_order_relaxed))
        continue;
    if ((before & 1u) == 0) return;
    (void)futex(&page->signal, FUTEX_WAKE, INT_MAX, NULL);   /* fails only for a word that is not mapped */
}

void cmq_follow_publish(cmq_follow *follow, int64_t confirmed_end, int64_t store_ms)
{
    CMQ_ASSERT(follow->mode == CMQ_FOLLOW_WRITER);
    atomic_store_explicit(&follow->page->store_ms, store_ms, memory_order_relaxed);
    store_end(follow->page, confirmed_end);
    signal_change(follow->page);
}

void cmq_follow_set_files_end(cmq_follow *follow, int64_t files_end)
{
    atomic_store_explicit(&follow->page->files_end, files_end, memory_order_release);
}

void cmq_follow_set_log_min(cmq_follow *follow, int64_t log_min)
{
    atomic_store_explicit(&follow->page->log_min, log_min, memory_order_release);
}

uint64_t cmq_follow_topic(cmq_slice name)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);   /* FNV-1a: the same in every version */
    for (size_t i = 0; i < name.bytes; i++) hash = (hash ^ name.data[i]) * UINT64_C(0x100000001B3);
    return hash != 0 ? hash : 1;
}

void cmq_follow_announce(cmq_follow *follow, const cmq_follow_deletion *deletion)
{
    follow_page *page = follow->page;
    const int64_t number = atomic_load_explicit(&page->announced, memory_order_relaxed);
    page_deletion *place = &page->deletions[(uint64_t)number % DELETIONS];
    atomic_store_explicit(&place->at, deletion->at, memory_order_relaxed);
    atomic_store_explicit(&place->expired_below, deletion->expired_below, memory_order_relaxed);
    atomic_store_explicit(&place->topic, deletion->topic, memory_order_relaxed);
    atomic_store_explicit(&page->announced, number + 1, memory_order_release);
    signal_change(page);
}

void cmq_follow_complete(cmq_follow *follow)
{
    follow_page *page = follow->page;
    atomic_store_explicit(&page->completed, atomic_load_explicit(&page->announced, memory_order_relaxed),
                          memory_order_release);
}

bool cmq_follow_deletion_of(const cmq_follow *follow, int64_t number, cmq_follow_deletion *deletion_out)
{
    const follow_page *page = follow->page;
    const page_deletion *place = &page->deletions[(uint64_t)number % DELETIONS];
    deletion_out->at = atomic_load_explicit(&place->at, memory_order_relaxed);
    deletion_out->expired_below = atomic_load_explicit(&place->expired_below, memory_order_relaxed);
    deletion_out->topic = atomic_load_explicit(&place->topic, memory_order_relaxed);
    /* The writer fills a place before it counts it, so the one behind the last may be half new already. */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&page->announced, memory_order_acquire) - number < DELETIONS;
}

void cmq_follow_beat(cmq_follow *follow, int64_t now_ms)
{
    atomic_store_explicit(&follow->page->beat_ms, now_ms, memory_order_relaxed);
    atomic_store_explicit(&follow->page->writer.beat_boot_ms, since_boot_ms(), memory_order_relaxed);
}

void cmq_follow_close(cmq_follow *follow)
{
    CMQ_ASSERT(follow->mode == CMQ_FOLLOW_WRITER);
    atomic_store_explicit(&follow->page->head.closed, 1, memory_order_release);
    cmq_follow_wake(follow);
}

void cmq_follow_wake(cmq_follow *follow)
{
    if (follow->mode == CMQ_FOLLOW_POLLS) return;
    signal_change(follow->page);
}

/* ---- reader ---- */

cmq_follow_life cmq_follow_life_of(const cmq_follow *follow, int64_t holder)
{
    const follow_page *page = follow->page;
    const page_writer *writer = &page->writer;
    const int64_t pid = atomic_load_explicit(&page->head.writer_pid, memory_order_acquire);
    if (holder == CMQ_LOCK_FREE || atomic_load_explicit(&page->head.closed, memory_order_acquire) != 0 ||
        atomic_load_explicit(&page->head.crc, memory_order_acquire) != head_crc(&page->head))
        return CMQ_FOLLOW_STALE;
    /* A page that an older version made names nothing but the process. */
    if (!writer_is_known(page)) return pid == holder ? CMQ_FOLLOW_LIKELY : CMQ_FOLLOW_STALE;
    if (!is_this_boot(writer->boot_id)) return CMQ_FOLLOW_STALE;
    if (holder != CMQ_LOCK_HOLDER_UNKNOWN && writer->pid_namespace == cmq_host_pid_namespace()) {
        if (pid != holder) return CMQ_FOLLOW_STALE;
        const uint64_t started = cmq_host_process_start(holder);
        return started == 0 || writer->started == 0 ? CMQ_FOLLOW_LIKELY
               : started == writer->started         ? CMQ_FOLLOW_PROVEN
                                                    : CMQ_FOLLOW_STALE;
    }
    /* Two containers may have a process 1 each. */
    const int64_t age_ms = since_boot_ms() - atomic_load_explicit(&writer->beat_boot_ms, memory_order_relaxed);
    return age_ms >= -FRESH_MS && age_ms <= FRESH_MS ? CMQ_FOLLOW_LIKELY : CMQ_FOLLOW_STALE;
}

/* True when no writer began a generation meanwhile. */
static bool read_page(const follow_page *page, cmq_follow_state *state)
{
    const int64_t generation = atomic_load_explicit(&page->head.generation, memory_order_seq_cst);
    state->sequence =
        atomic_load_explicit(&page->signal, memory_order_acquire) & ~1u; /* first: a change after it ends a wait */
    state->closed = atomic_load_explicit(&page->head.closed, memory_order_acquire) != 0;
    state->writer_pid = atomic_load_explicit(&page->head.writer_pid, memory_order_acquire);
    /* Before confirmed_end, so that files_end never seems to be ahead of it. */
    state->files_end = atomic_load_explicit(&page->files_end, memory_order_acquire);
    state->log_min = atomic_load_explicit(&page->log_min, memory_order_acquire);
    state->confirmed_end = atomic_load_explicit(&page->confirmed_end, memory_order_acquire);
    /* After it: a deletion is announced before anything that is appended behind it is confirmed. */
    state->announced = atomic_load_explicit(&page->announced, memory_order_acquire);
    state->completed = atomic_load_explicit(&page->completed, memory_order_acquire);
    state->store_ms = atomic_load_explicit(&page->store_ms, memory_order_acquire);
    state->beat_ms = atomic_load_explicit(&page->beat_ms, memory_order_acquire);
    state->generation = generation;
    const uint32_t crc = atomic_load_explicit(&page->head.crc, memory_order_acquire);
    if (crc != head_crc(&page->head)) state->generation = 0;
    return atomic_load_explicit(&page->head.generation, memory_order_acquire) == generation;
}

void cmq_follow_snapshot(const cmq_follow *follow, cmq_follow_state *state_out)
{
    for (int attempt = 0; attempt < 100; attempt++)
        if (read_page(follow->page, state_out)) return;
    state_out->generation = 0;   /* writers come and go faster than we read: as if one were opening */
}

static struct timespec deadline_after(int64_t timeout_ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += timeout_ms / 1000;
    at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static bool earlier(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

cmq_status cmq_follow_wait(cmq_follow *follow, uint32_t seen, int64_t timeout_ms)
{
    follow_page *page = follow->page;
    const struct timespec end = deadline_after(timeout_ms > 0 ? timeout_ms : 0);
    const bool wakes = follow->mode != CMQ_FOLLOW_POLLS && timeout_ms > 0;
    for (;;) {
        const uint32_t word = wakes ? atomic_fetch_or_explicit(&page->signal, 1u, memory_order_acq_rel) | 1u
                              : atomic_load_explicit(&page->signal, memory_order_acquire);
        if ((word & ~1u) != seen) return CMQ_OK;
        if (!earlier(deadline_after(0), end)) return CMQ_AGAIN;
        const struct timespec next = deadline_after(POLL_MS);
        const struct timespec until = !wakes && earlier(next, end) ? next : end;
        /* Woken, interrupted, out of time or the word has changed: the loop looks again in each case. */
        if (futex(&page->signal, FUTEX_WAIT_BITSET, word, &until) != 0 && errno != EAGAIN && errno != EINTR &&
            errno != ETIMEDOUT) {
            /* A kernel that does not let us wait here (a sandbox): never spin. */
            const struct timespec pause = {.tv_sec = 0, .tv_nsec = POLL_MS * 1000000};
            (void)nanosleep(&pause, NULL);
        }
    }
}
