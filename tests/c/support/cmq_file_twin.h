/* cmq_file_twin: a cmq_fs for tests: real files under one directory, and a memory of what would survive a power loss.
 *
 * Owns:      the content of every file at its last sync, the directory changes that no sync_directory covers yet, and a
 *            descriptor per file until the twin is closed.
 * Model:     tests/crash/FAULTS.md. In short: at any call any subset of the sectors (512 B), lengths, creations,
 *            renames and removals that no sync covers may be lost. The twin never calls a real fsync: its syncs are
 *            notes in its memory.
 * Use:       make it over a directory (existing files count as durable), give cmq_file_twin_fs() to the store, and ask
 *            for crash images, from a hook at a call or at any time between; then open the image with cmq_fs_posix(),
 *            or another twin.
 * Threads:   all functions from any thread. Stores into mappings are seen when the twin compares, without a call.
 * Errors:    the twin's own failures end the test (cmq_test_fail); the store sees only the faults asked for.
 * Limits:    files below the root change through the twin only; no links; files up to 256 MiB, kept in memory whole.
 */
#ifndef CMQ_FILE_TWIN_H
#define CMQ_FILE_TWIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"

typedef struct cmq_file_twin cmq_file_twin;

/* The kinds of calls. Those up to CMQ_TWIN_CHANGES change what would survive, and are numbered for hooks. */
typedef enum cmq_twin_kind {
    CMQ_TWIN_CREATE,   /* an open that makes the file */
    CMQ_TWIN_WRITE,
    CMQ_TWIN_SYNC,
    CMQ_TWIN_RESIZE,
    CMQ_TWIN_RESERVE,
    CMQ_TWIN_PUNCH,
    CMQ_TWIN_SYNC_MAPPED,
    CMQ_TWIN_MAKE_DIRECTORY,   /* once per directory that is made; its parent's SYNC_DIRECTORY follows as a call of its
                                * own */
    CMQ_TWIN_REMOVE,
    CMQ_TWIN_REMOVE_DIRECTORY,
    CMQ_TWIN_RENAME,
    CMQ_TWIN_SYNC_DIRECTORY,
    CMQ_TWIN_SYNC_ALL,
    CMQ_TWIN_CHANGES,
    CMQ_TWIN_OPEN = CMQ_TWIN_CHANGES,   /* an open of a file that is there, or is not and stays so */
    CMQ_TWIN_READ,
    CMQ_TWIN_MAP,
    CMQ_TWIN_LOCK,
    CMQ_TWIN_STAT,   /* also the info of an open file */
    CMQ_TWIN_LIST,
    CMQ_TWIN_DISK_SPACE,
    CMQ_TWIN_KINDS,
    CMQ_TWIN_ANY_CHANGE = CMQ_TWIN_KINDS   /* for faults and counts: all kinds up to CMQ_TWIN_CHANGES together */
} cmq_twin_kind;

#define CMQ_TWIN_BIT(kind) (1u << (kind))
#define CMQ_TWIN_FILE_SYNCS (CMQ_TWIN_BIT(CMQ_TWIN_SYNC) | CMQ_TWIN_BIT(CMQ_TWIN_SYNC_MAPPED))
#define CMQ_TWIN_ALL_SYNCS                                                                                             \
    (CMQ_TWIN_FILE_SYNCS | CMQ_TWIN_BIT(CMQ_TWIN_SYNC_DIRECTORY) | CMQ_TWIN_BIT(CMQ_TWIN_SYNC_ALL))

/* Over `root`, an existing directory; all in it counts as durable. Owned: cmq_file_twin_close. */
cmq_file_twin *cmq_file_twin_create(const char *root, uint64_t seed);

/* The same over the files of `below`, where images are written, too. */
cmq_file_twin *cmq_file_twin_create_over(cmq_fs *below, const char *root, uint64_t seed);

/* Ends the test when a handle or a mapping is still open. NULL is fine. */
void cmq_file_twin_close(cmq_file_twin *twin);

cmq_fs *cmq_file_twin_fs(cmq_file_twin *twin);

/* ---- power loss ---- */

typedef enum cmq_twin_style {
    CMQ_TWIN_NOTHING,      /* nothing unsynced survives */
    CMQ_TWIN_EVERYTHING,   /* all survives, as after a killed process */
    CMQ_TWIN_MIX,          /* a random choice of what survives */
    CMQ_TWIN_STYLES
} cmq_twin_style;

/* Write what the disk might hold if the power went now into the directory `into`, which is made, or emptied first. Each
 * call chooses again: the first is NOTHING, the second EVERYTHING, the others a MIX but for one in sixteen of each of
 * those. Returns the style. */
cmq_twin_style cmq_file_twin_crash_image(cmq_file_twin *twin, const char *into);

/* The same with the style given. */
void cmq_file_twin_crash_image_of(cmq_file_twin *twin, const char *into, cmq_twin_style style);

/* Whether anything that was changed could be lost now. */
bool cmq_file_twin_all_durable(cmq_file_twin *twin);

/* ---- calls ---- */

typedef struct cmq_twin_call {
    cmq_twin_kind kind;
    uint64_t number;    /* 1 for the first changing call of this twin */
    const char *path;   /* as it was given; valid during the hook */
    uint64_t offset;    /* WRITE, RESERVE, PUNCH, SYNC_MAPPED; of RESIZE the new length */
    uint64_t bytes;
} cmq_twin_call;

typedef void (*cmq_twin_hook)(void *context, const cmq_twin_call *call);

/* Call `hook` on the calling thread at the start of changing call `nth`, before it has any effect; nth 0: of every one.
 * The state after call n is that at the start of n + 1. The hook may take images; calls that it makes itself run no
 * hook. NULL ends it. */
void cmq_file_twin_on_call(cmq_file_twin *twin, uint64_t nth, cmq_twin_hook hook, void *context);

/* How many calls of a kind came so far; of CMQ_TWIN_ANY_CHANGE: the number of the last changing call. */
uint64_t cmq_file_twin_calls(cmq_file_twin *twin, cmq_twin_kind kind);

const char *cmq_file_twin_kind_name(cmq_twin_kind kind);

/* ---- faults ---- */

typedef struct cmq_twin_fault {
    cmq_twin_kind kind;   /* or CMQ_TWIN_ANY_CHANGE */
    uint64_t nth;         /* 1: the next such call */
    uint64_t times;       /* how many calls in a row fail; 0: all from then on */
    int sys_errno;        /* EIO, ENOSPC, ...; the store gets cmq_fail_errno of it */
    bool halfway;         /* WRITE, RESERVE, PUNCH: the first half of the bytes is done before the failure */
    bool dead;            /* the process dies at this call: with times 0 and any change. No hook is called from then on,
                           * and a sync that fails taints nothing */
} cmq_twin_fault;

/* Add a fault. A failed sync makes nothing durable, and what was dirty then is not covered by a later sync either
 * unless it is written again, because the kernel marks pages clean when their write-back fails. At most 16 at a time.
 * */
void cmq_file_twin_fail(cmq_file_twin *twin, const cmq_twin_fault *fault);

/* No more faults; their effects stay. */
void cmq_file_twin_clear_faults(cmq_file_twin *twin);

/* How many calls failed by a fault. */
uint64_t cmq_file_twin_failures(cmq_file_twin *twin);

/* Syncs of these kinds (CMQ_TWIN_BIT, CMQ_TWIN_ALL_SYNCS) answer CMQ_OK and make nothing durable: a store whose flush
 * was left out. */
void cmq_file_twin_ignore_syncs(cmq_file_twin *twin, unsigned kinds);

/* The result of disk_space; NULL: the real one again. */
void cmq_file_twin_set_disk_space(cmq_file_twin *twin, const cmq_disk_space *space);

#endif
