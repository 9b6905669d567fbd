/* cmq_follow: one mapped page through which a writer publishes the confirmed end to followers, in this and other
 * processes, and wakes them.
 *
 * Publishing is two stores and one atomic step; the futex call is made only when somebody said that he waits. Sequence
 * and waiting bit are one word:
 *
 *   follower: set the bit; is the sequence still what I saw? FUTEX_WAIT(sequence with the bit)
 *   writer:   confirmed_end = ...; word = next sequence without the bit; was the bit set? FUTEX_WAKE(all)
 *
 * Queues that the writer deletes are announced there too, with the log's end at that moment: a follower that has come
 * so far forgets them, and takes later records of the same topic as a new life of it.
 *
 * The page also proves things to later openings. It names its writer: the boot, the namespace and the process.
 * And it remembers, over the death of that writer, how far the log was acknowledged: bytes that a writer confirmed
 * under sync flush are on disk, and those that one of this boot confirmed are at least in the page cache. A copy of the
 * page proves nothing, since it is another file.
 *
 * Owns:       the file <root>/cometmq/follow; it is never shortened or replaced, because followers have it mapped.
 * Invariant:  within one generation confirmed_end, files_end and log_min never go back.
 * Threads:    publish, files_end, log_min, beat, close, announce with complete: one thread at a time each (fields do
 *             not share a writer).
 *             snapshot and wait: any thread, on a writer's or a follower's handle; destroy comes after the last of
 *             them.
 * Way:        writer -> [cmq_follow] -> followers, waiting reads
 * Source:     ours. Never synced: a state of it on disk is true, and may be old.
 */
#ifndef CMQ_FOLLOW_H
#define CMQ_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_file.h"
#include "base/cmq_status.h"

typedef struct cmq_follow cmq_follow;

/* The content of the page; consistent within one generation. */
typedef struct cmq_follow_state {
    int64_t generation;        /* new, and larger, at each writer's opening; 0: a writer is opening just now, nothing
                                * else is valid */
    int64_t writer_pid;        /* of the process that opened it; the store's lock shows whether it lives */
    int64_t confirmed_end;     /* records that end at or before it may be read */
    int64_t files_end;         /* their queue units are in the queue files up to here */
    int64_t log_min;           /* start of the first log segment */
    int64_t store_ms;          /* store timestamp of the last confirmed record (may be one publish ahead of or behind
                                * confirmed_end) */
    int64_t beat_ms;           /* the writer's clock at its last beat */
    int64_t announced;         /* deletions so far, at least those that lie before confirmed_end; never goes back */
    int64_t completed;         /* … whose files are gone, too */
    uint32_t sequence;         /* changes with every publish */
    bool closed;               /* the writer closed in order: nothing more will come in this generation */
} cmq_follow_state;

/* How a follower waits. */
typedef enum cmq_follow_mode {
    CMQ_FOLLOW_WRITER = 0,     /* the writer's own handle */
    CMQ_FOLLOW_WAKES = 1,      /* may write to the page: woken at once */
    CMQ_FOLLOW_POLLS = 2       /* may only read it: looks every few milliseconds */
} cmq_follow_mode;

/* The first values of a generation. */
typedef struct cmq_follow_values {
    int64_t now_ms;
    int64_t confirmed_end;
    int64_t files_end;
    int64_t log_min;
    bool synced;               /* confirmed_end never passes the synced end */
} cmq_follow_values;

/* writer, right behind its lock: make or take over the page, and invalidate it: followers of an earlier writer wait
 * until cmq_follow_begin. *follow_out owned: cmq_follow_destroy. */
cmq_status CMQ_MUST_CHECK cmq_follow_take(cmq_fs *fs, const char *root, cmq_follow **follow_out);

/* writer, once the log is recovered: a new generation with these first values; wakes everybody. Earlier
 * acknowledgements are forgotten. */
void cmq_follow_begin(cmq_follow *follow, const cmq_follow_values *values);

/* The acknowledged end that the page of a store proves: every byte of the log below was on disk, or is in the page
 * cache of this boot; 0: not known. The caller has to know whether anybody else has written the log since. */
cmq_status CMQ_MUST_CHECK cmq_follow_acknowledged(cmq_fs *fs, const char *root, int64_t *end_out);

/* With the store's lock: the log was changed on purpose, and the page proves nothing any more. No error without a
 * page. */
cmq_status CMQ_MUST_CHECK cmq_follow_forget(cmq_fs *fs, const char *root);

/* any: did a writer of this boot begin the generation that stands in the page? Then what it wrote is in the page cache,
 * or on disk. Of a copy of the page: no. */
bool cmq_follow_is_of_this_boot(const cmq_follow *follow);

/* follower: CMQ_ERR_NOT_FOUND when there is no page, or none of this version (then follow as over a foreign writer). */
cmq_status CMQ_MUST_CHECK cmq_follow_open(cmq_fs *fs, const char *root, cmq_follow **follow_out);

/* Whether the page is that of the process which holds the store's lock. */
typedef enum cmq_follow_life {
    CMQ_FOLLOW_STALE = 0,      /* another process's, or of another boot, or closed */
    /* of this boot, and its writer beat lately; its process cannot be identified from here */
    CMQ_FOLLOW_LIKELY,
    CMQ_FOLLOW_PROVEN          /* the holder is the very process that the page names */
} cmq_follow_life;

#define CMQ_FOLLOW_BEAT_MS 5000   /* a writer beats at least as often */

/* any: `holder` is what cmq_lock_probe says. */
cmq_follow_life cmq_follow_life_of(const cmq_follow *follow, int64_t holder);

/* Unmap and free; NULL is fine. A writer's page stays as it is: close first. */
void cmq_follow_destroy(cmq_follow *follow);

cmq_follow_mode cmq_follow_mode_of(const cmq_follow *follow);

/* writer, hot: these records are confirmed; wakes the waiters. */
void cmq_follow_publish(cmq_follow *follow, int64_t confirmed_end, int64_t store_ms);

/* writer: queue files are complete up to here. No wake-up: it concerns no waiter. */
void cmq_follow_set_files_end(cmq_follow *follow, int64_t files_end);

/* writer: the log begins here now. */
void cmq_follow_set_log_min(cmq_follow *follow, int64_t log_min);

/* Queues that were deleted. */
typedef struct cmq_follow_deletion {
    int64_t at;                /* the log's end then: of records before it, these queues have no unit any more */
    int64_t expired_below;     /* with topic 0: those all of whose records end at or before it, but system topics */
    uint64_t topic;            /* cmq_follow_topic of its name, or 0 */
} cmq_follow_deletion;

uint64_t cmq_follow_topic(cmq_slice name);   /* never 0 */

/* writer: announce a deletion before its files go (nothing may be appended in between), complete it when they are gone.
 * Wakes followers. */
void cmq_follow_announce(cmq_follow *follow, const cmq_follow_deletion *deletion);
void cmq_follow_complete(cmq_follow *follow);

/* any: deletion number `number` (below announced). False when newer ones have taken its place: the last 95 are kept. */
bool cmq_follow_deletion_of(const cmq_follow *follow, int64_t number, cmq_follow_deletion *deletion_out);

/* writer: still alive at this time. */
void cmq_follow_beat(cmq_follow *follow, int64_t now_ms);

/* writer: nothing more will come; wakes everybody. */
void cmq_follow_close(cmq_follow *follow);

/* any: wake everybody without a change of the positions (the sequence moves): before closing, to interrupt waits in
 * this process. On a handle that polls this does nothing. */
void cmq_follow_wake(cmq_follow *follow);

/* any: read the page. */
void cmq_follow_snapshot(const cmq_follow *follow, cmq_follow_state *state_out);

/* any: wait until the sequence is no longer `seen` (from a snapshot), CMQ_OK; or timeout_ms have passed, CMQ_AGAIN.
 * Spurious wake-ups are swallowed; a timeout of 0 only looks. */
cmq_status CMQ_MUST_CHECK cmq_follow_wait(cmq_follow *follow, uint32_t seen, int64_t timeout_ms);

#endif
