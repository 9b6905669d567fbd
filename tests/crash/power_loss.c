/* Power loss, and disks that fail: random work on a tiny store over the twin of the file system
 * (tests/crash/FAULTS.md), crash images at random calls, each opened again and compared with what was promised.
 *
 * A session works on one store. At chosen calls its hook takes an image; after the operation each image becomes a
 * session of its own (with images of its own, also of the recovery), or is opened with the system's files. Expected
 * after each: acknowledged messages are there once and in order, queues, light queues and keys agree with the log,
 * nothing was invented, and the store goes on.
 *
 * Cases: power_loss (images only), failing_disk (errors at chosen calls, then images), without_syncs_it_fails (the
 *        checks' own proof).
 * CMQ_CRASH_IMAGES: how many images; without it a few hundred, with CMQ_LONG a million. CMQ_SEED repeats a run.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/cmq_store_internal.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_ledger.h"
#include "support/cmq_memory_fs.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define LEVEL_MAX 2          /* an image of an image is only opened and checked */
#define PENDING_MAX 4
/* Sessions that work on the system's files: four times slower, but with real mappings and locks. */
#define REAL_ONE_IN 16

typedef struct image {
    char path[CMQ_PATH_BYTES];
    ledger ledger;
    ledger_expected expected;
    cmq_twin_style style;
    char call[300];
} image;

typedef struct session {
    int level;
    cmq_fs *fs;                  /* where the store and its images are: in memory, or the system's files */
    char root[CMQ_PATH_BYTES];
    cmq_file_twin *twin;
    cmq_store *store;
    cmq_store_options options;
    ledger ledger;
    ledger_expected expected;    /* of an image taken now */
    bool retention;
    bool two_paths;              /* the log lies in two folders */
    char log_path[2][CMQ_PATH_BYTES];
    const char *log_paths[2];
    uint32_t one_in;             /* calls, of which one becomes an image */
    image pending[PENDING_MAX];
    uint32_t pending_count;
    const char *doing;
} session;

/* State that all sessions of a run share. */
static struct {
    const char *directory;       /* in either */
    cmq_memory_fs *memory;
    uint64_t images_left, images_taken, image_number, sessions;
    unsigned ignored_syncs;
    char why[1200];
} all;

static bool __attribute__((format(printf, 2, 3))) violated(const session *s, const char *format, ...)
{
    char what[LEDGER_WHY_BYTES + 100];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (all.why[0] == '\0')
        snprintf(all.why, sizeof all.why, "level %d, %.200s, %s flush, segments of %" PRId64 ", during %s: %s",
                 s->level, s->root, s->options.flush == CMQ_FLUSH_SYNC ? "sync" : "async", s->options.segment_bytes,
                 s->doing, what);
    return false;
}

static bool fine(const session *s, const char *what, cmq_status status)
{
    return status == CMQ_OK || violated(s, "%s gave %s (%s)", what, cmq_status_name(status), cmq_last_error()->text);
}

/* The store, wherever it stands: as a process that dies. Images of a session that failed are not looked at. */
static void let_go(session *s)
{
    for (uint32_t i = 0; i < s->pending_count; i++) ledger_free(&s->pending[i].ledger);
    s->pending_count = 0;
    cmq_store_abandon(s->store);
    s->store = NULL;
}

/* The handle is gone whatever comes back. */
static cmq_status close_store(session *s)
{
    const cmq_status status = cmq_store_close(s->store);
    s->store = NULL;
    return status;
}

/* ---- images ---- */

static void take_image(session *s, const char *call)
{
    image *into = &s->pending[s->pending_count++];
    snprintf(into->path, sizeof into->path, "%.3000s/image-%" PRIu64, all.directory, all.image_number++);
    into->style = cmq_file_twin_crash_image(s->twin, into->path);
    ledger_copy(&into->ledger, &s->ledger);
    into->expected = s->expected;
    snprintf(into->call, sizeof into->call, "%.299s", call);
    all.images_left--;
    all.images_taken++;
}

static void at_call(void *context, const cmq_twin_call *call)
{
    session *s = context;
    if (all.images_left == 0 || s->pending_count == PENDING_MAX || cmq_test_random_below(s->one_in) != 0) return;
    char text[300];
    const char *path = strlen(call->path) > strlen(s->root) ? call->path + strlen(s->root) : call->path;
    snprintf(text, sizeof text, "%s %.80s at %" PRIu64 ", %" PRIu64 " bytes, while %.60s",
             cmq_file_twin_kind_name(call->kind), path, call->offset, call->bytes, s->doing);
    take_image(s, text);
}

static void drop_image(const session *s, image *of)
{
    kit_remove_tree_in(s->fs, of->path);
    ledger_free(&of->ledger);
}

static bool run_session(session *s, int steps);

/* Set the paths of the options: pointers into the session, which must not move any more. */
static void set_places(session *s)
{
    s->options.path = s->root;
    if (!s->two_paths) return;
    for (int i = 0; i < 2; i++) {
        snprintf(s->log_path[i], sizeof s->log_path[i], "%.4000s/%s", s->root, i == 0 ? "commitlog" : "second-disk");
        s->log_paths[i] = s->log_path[i];
    }
    s->options.commitlog_paths = s->log_paths;
    s->options.commitlog_path_count = 2;
}

/* Options for opening `root` again; sizes are found in the files where there are any, but a store without files needs
 * them. */
static session session_on(const session *like, int level, const char *root, const ledger *book,
                          const ledger_expected *expected)
{
    session s = {.level = level,
                 .fs = like->fs,
                 .options = like->options,
                 .expected = *expected,
                 .retention = like->retention,
                 .two_paths = like->two_paths,
                 .one_in = 20,
                 .doing = "opening"};
    snprintf(s.root, sizeof s.root, "%.4000s", root);
    ledger_copy(&s.ledger, book);
    s.options.fs = like->fs;
    s.options.background = false;
    return s;
}

/* Check a store that is open; under sync flush what survived is durable from now on, under async flush with the next
 * flush. */
static bool check_store(session *s, const char *when)
{
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    if (!ledger_settle(&s->ledger, s->store, &s->expected, &found, why)) return violated(s, "%s: %s", when, why);
    ledger_cut(&s->ledger, found);
    s->ledger.generation++;
    if (s->options.flush == CMQ_FLUSH_SYNC) s->expected.acknowledged = found;
    return true;
}

/* As a follower finds it, before any writer recovers it. */
static bool check_read_only(session *s)
{
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    ledger_expected expected = s->expected;
    expected.index_may_lack = true;   /* keys behind the last durable point come back with recovery */
    cmq_store_options options = s->options;
    options.read_only = true;
    options.create = false;
    const cmq_status status = cmq_store_open(&s->store, &options);
    if (status == CMQ_ERR_NOT_FOUND && s->expected.acknowledged == 0) return true;   /* nothing was made yet */
    if (!fine(s, "opening read-only", status)) return false;
    ledger view;   /* a follower's view of a deletion in progress does not bind the writer */
    ledger_copy(&view, &s->ledger);
    const bool agrees = ledger_settle(&view, s->store, &expected, &found, why) || violated(s, "read-only: %s", why);
    ledger_free(&view);
    return fine(s, "closing a follower", close_store(s)) && agrees;
}

static bool open_and_check(session *s, const char *when)
{
    return fine(s, when, cmq_store_open(&s->store, &s->options)) && check_store(s, when);
}

/* The last level: open without a twin, go on, open again after a clean and after an unclean end. */
static bool finish_with_files(session *s)
{
    set_places(s);
    bool good = cmq_test_random_below(2) == 0 || check_read_only(s);
    if (!good || !open_and_check(s, "opening the image")) return false;
    for (int round = 0; round < 2 && good; round++) {
        cmq_appended appended;
        s->doing = "going on in an image";
        for (int i = 0; i < 3 && good; i++) {
            const uint32_t count = 1 + (uint32_t)cmq_test_random_below(ledger_group_left(&s->ledger));
            good = fine(s, "append", ledger_append(&s->ledger, s->store, count, &(ledger_call){0}, &appended));
        }
        if (good && cmq_test_random_below(2) == 0)
            good = fine(s, "maintain", cmq_store_maintain(s->store, cmq_test_random_below(2) == 0));
        s->expected.acknowledged = s->ledger.count;
        if (!good) return false;
        if (cmq_test_random_below(2) == 0) good = fine(s, "close", close_store(s));
        else cmq_store_abandon(s->store);
        s->store = NULL;
        if (good) good = open_and_check(s, "opening the image again");
    }
    return good && fine(s, "close", close_store(s));
}

static bool follow_up(const session *parent, image *of)
{
    session s = session_on(parent, parent->level + 1, of->path, &of->ledger, &of->expected);
    bool good;
    if (s.level < LEVEL_MAX && cmq_test_random_below(3) == 0) {
        s.one_in = 8;
        good = run_session(&s, 4);
    } else {
        good = finish_with_files(&s);
        let_go(&s);
    }
    ledger_free(&s.ledger);
    if (!good && strlen(all.why) < 900) {
        char text[400];
        snprintf(text, sizeof text, "; image of level %d, %s, taken at %s", s.level,
                 of->style == CMQ_TWIN_NOTHING      ? "nothing unsynced kept"
                 : of->style == CMQ_TWIN_EVERYTHING ? "all kept"
                                                    : "a mix",
                 of->call);
        strcat(all.why, text);
    }
    return good;
}

/* The images that the last operation left. */
static bool follow_up_all(session *s)
{
    bool good = true;
    for (uint32_t i = 0; i < s->pending_count; i++) {
        if (good) good = follow_up(s, &s->pending[i]);
        if (good) drop_image(s, &s->pending[i]);
        else ledger_free(&s->pending[i].ledger);
    }
    s->pending_count = 0;
    return good;
}

/* ---- work ---- */

static bool do_append(session *s)
{
    const uint32_t left = ledger_group_left(&s->ledger);
    const uint32_t count = 1 + (uint32_t)cmq_test_random_below(left < 24 ? left : 24);
    const bool sync = s->options.flush == CMQ_FLUSH_SYNC;
    const int64_t more_bytes = s->ledger.hostile ? 2600 : 400;   /* of head and properties, which may be mostly zeros */
    const bool fits = count * (s->ledger.body_bytes_max + more_bytes) < s->options.segment_bytes;
    const ledger_call call = {.no_wait = cmq_test_random_below(5) == 0,
                              .one_segment = fits && cmq_test_random_below(4) == 0};
    cmq_appended appended;
    s->doing = call.no_wait ? "append without waiting" : call.one_segment ? "append of a batch" : "append";
    if (!fine(s, s->doing, ledger_append(&s->ledger, s->store, count, &call, &appended))) return false;
    if (sync && !call.no_wait) s->expected.acknowledged = s->ledger.count;
    return true;
}

static bool do_flush(session *s)
{
    s->doing = "flush";
    if (!fine(s, "flush", cmq_store_flush(s->store))) return false;
    s->expected.acknowledged = s->ledger.count;
    return true;
}

static bool do_maintain(session *s)
{
    const bool force = cmq_test_random_below(3) == 0;
    s->doing = force ? "a durable point" : "upkeep";
    if (!fine(s, s->doing, cmq_store_maintain(s->store, force))) return false;
    s->expected.acknowledged = s->ledger.count;
    return true;
}

static bool do_expire(session *s)
{
    cmq_store_info info;
    uint32_t deleted;
    if (!s->retention) return true;
    s->doing = "retention";
    CHECK_OK(cmq_store_info_of(s->store, &info));
    s->expected.expired_below = info.log_end;
    if (!fine(s, "expire", cmq_store_expire(s->store, true, &deleted))) return false;
    CHECK_OK(cmq_store_info_of(s->store, &info));
    s->expected.expired_below = info.log_min;
    return true;
}

/* A topic goes, durably; its next messages start at 0. */
static bool do_delete(session *s)
{
    const uint32_t topic = (uint32_t)cmq_test_random_below(LEDGER_TOPICS);
    s->doing = "deleting a topic";
    if (!fine(s, s->doing, ledger_delete(&s->ledger, s->store, topic))) return false;
    s->expected.acknowledged = s->ledger.count;
    return true;
}

static bool do_reopen(session *s)
{
    const bool clean = cmq_test_random_below(2) == 0;
    s->doing = clean ? "closing" : "being killed";
    /* A process that dies leaves what it wrote: under async flush all that was appended. */
    ledger_expected kept = s->expected;
    if (clean || s->options.flush == CMQ_FLUSH_ASYNC) kept.acknowledged = s->ledger.count;
    if (clean) {
        if (!fine(s, "close", close_store(s))) return false;
        s->expected.acknowledged = s->ledger.count;
    } else {
        cmq_store_abandon(s->store);
        s->store = NULL;
    }
    s->doing = clean ? "opening after a close" : "opening after a kill";
    const cmq_status status = cmq_store_open(&s->store, &s->options);
    if (!fine(s, s->doing, status)) return false;
    const uint32_t durable = s->expected.acknowledged;
    s->expected.acknowledged = kept.acknowledged;
    if (!check_store(s, s->doing)) return false;
    if (s->options.flush == CMQ_FLUSH_ASYNC) s->expected.acknowledged = durable;
    return true;
}

/* A process that dies inside a call of the store, also while it recovers: its earlier writes are in the page cache, and
 * there are no later ones. The next process recovers them, and a later power loss takes the unsynced bytes of both. */
static bool do_kill_inside(session *s)
{
    const cmq_twin_fault death = {.kind = CMQ_TWIN_ANY_CHANGE,
                                  .nth = 1 + cmq_test_random_below(25),
                                  .sys_errno = EIO,
                                  .dead = true,
                                  .halfway = cmq_test_random_below(2) == 0};
    const uint64_t dice = cmq_test_random_below(4);
    const bool async = s->options.flush == CMQ_FLUSH_ASYNC;
    ledger_expected kept = s->expected;
    uint32_t more = 0;
    cmq_status status = CMQ_OK;
    if (async) kept.acknowledged = s->ledger.count;
    s->doing = "being killed inside a call";
    cmq_file_twin_fail(s->twin, &death);
    if (dice == 0) {
        cmq_store_abandon(s->store);
        s->store = NULL;
        status = cmq_store_open(&s->store, &s->options);
    } else if (dice == 1) {
        status = cmq_store_maintain(s->store, true);
    } else {
        const uint32_t left = ledger_group_left(&s->ledger),
                       count = 1 + (uint32_t)cmq_test_random_below(left < 24 ? left : 24);
        const uint32_t before = s->ledger.count;
        cmq_appended appended;
        status = ledger_append(&s->ledger, s->store, count, &(ledger_call){0}, &appended);
        more = count - (s->ledger.count - before);
    }
    (void)status;   /* whatever status the dead one got */
    ledger_foresee(&s->ledger, more);
    cmq_store_abandon(s->store);
    s->store = NULL;
    cmq_file_twin_clear_faults(s->twin);
    s->doing = "opening after a kill inside a call";
    if (!fine(s, s->doing, cmq_store_open(&s->store, &s->options))) return false;
    const uint32_t durable = s->expected.acknowledged;
    s->expected.acknowledged = kept.acknowledged;
    if (!check_store(s, s->doing)) return false;
    if (async) s->expected.acknowledged = durable;
    return true;
}

/* The helper thread's work beside a busy writer. */
static bool do_prewarm(session *s)
{
    s->doing = "making a segment ahead";
    const cmq_status status = cmq_log_prewarm_step(s->store->log);
    return status == CMQ_END || fine(s, s->doing, status);
}

static bool do_check(session *s)
{
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    /* The check reads the log before the queues: the store's threads must confirm nothing in between. */
    if (s->options.background && !do_flush(s)) return false;
    ledger_expected now = {.acknowledged =
                               s->options.flush == CMQ_FLUSH_ASYNC ? s->ledger.count : s->expected.acknowledged,
                           .expired_below = s->expected.expired_below};
    s->doing = "reading";
    return ledger_check(&s->ledger, s->store, &now, &found, why) || violated(s, "the open store: %s", why);
}

static bool work(session *s)
{
    const uint64_t dice = cmq_test_random_below(100);
    if (dice < 57) return do_append(s);
    if (dice < 60) return do_delete(s);
    if (dice < 66) return do_flush(s);
    if (dice < 82) return do_maintain(s);
    if (dice < 86) return do_expire(s);
    if (dice < 92) return do_reopen(s);
    if (dice < 93) return do_check(s);
    if (dice < 94) return do_prewarm(s);
    if (dice < 96) return do_kill_inside(s);
    const int64_t step = dice < 97 ? -(int64_t)cmq_test_random_below(5000) : (int64_t)cmq_test_random_below(3000);
    atomic_fetch_add(&kit_now_ms, step);
    return true;
}

/* A session over a twin of its own. */
static bool run_session(session *s, int steps)
{
    all.sessions++;
    s->twin = cmq_file_twin_create_over(s->fs, s->root, cmq_test_random());
    cmq_file_twin_ignore_syncs(s->twin, all.ignored_syncs);
    s->options.fs = cmq_file_twin_fs(s->twin);
    set_places(s);
    cmq_file_twin_on_call(s->twin, 0, at_call, s);
    s->doing = s->level == 0 ? "making the store" : "opening a crashed store";
    bool good = open_and_check(s, s->doing) && follow_up_all(s);
    for (int i = 0; i < steps && good && all.images_left > 0; i++) {
        good = work(s);
        if (good) good = follow_up_all(s);
    }
    if (good) {
        s->doing = "closing at the end";
        good = fine(s, "close", close_store(s));
        s->expected.acknowledged = s->ledger.count;
        if (good && all.images_left > 0 && s->pending_count < PENDING_MAX) take_image(s, "the end");
        if (good) good = follow_up_all(s);
    }
    cmq_file_twin_on_call(s->twin, 0, NULL, NULL);
    let_go(s);
    cmq_file_twin_close(s->twin);
    return good;
}

/* ---- runs ---- */

static session new_session(void)
{
    static const int64_t segments[] = {4096, 8192, 16384, 65536};
    static const int64_t queue_units[] = {5, 20, 50};
    static const uint32_t bodies[] = {40, 400, 1600};
    static const char *const batch_topics[] = {LEDGER_INNER_TOPIC};
    session s = {.one_in = 12, .doing = "nothing"};
    snprintf(s.root, sizeof s.root, "%.3000s/store-%" PRIu64, all.directory, all.image_number++);
    s.fs = cmq_test_random_below(REAL_ONE_IN) == 0 ? cmq_fs_posix() : cmq_memory_fs_fs(all.memory);
    CHECK_OK(cmq_fs_make_directory_unsynced(s.fs, s.root));
    s.options = kit_options(s.root);
    s.options.flush = cmq_test_random_below(2) == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
    s.options.segment_bytes = segments[cmq_test_random_below(4)];
    s.options.queue_file_bytes = queue_units[cmq_test_random_below(3)] * CMQ_UNIT_BYTES;
    s.options.index_entries = 17 + (int32_t)cmq_test_random_below(64);
    s.options.ext_enabled = cmq_test_random_below(4) == 0;
    s.options.lmq_enabled = cmq_test_random_below(2) == 0;
    s.options.property_crc = cmq_test_random_below(4) == 0;
    s.options.batch_file_bytes = queue_units[cmq_test_random_below(3)] * CMQ_BATCH_UNIT_BYTES;
    if (cmq_test_random_below(2) == 0) {
        s.options.batch_topics = batch_topics;
        s.options.batch_topic_count = 1;
    }
    s.options.durable_point_ms = 1 + (int64_t)cmq_test_random_below(4000);
    s.options.durable_point_bytes = 1 + (int64_t)cmq_test_random_below(100000);
    s.options.retention.reserved_ms = 1;
    s.options.retention.files_per_round = 3;
    s.retention = cmq_test_random_below(2) == 0;
    s.two_paths = cmq_test_random_below(4) == 0;
    ledger_init(&s.ledger, cmq_test_random());
    s.ledger.body_bytes_max = bodies[cmq_test_random_below(s.options.segment_bytes > 4096 ? 3 : 2)];
    s.ledger.light = s.options.lmq_enabled;
    s.ledger.prepared = true;
    /* Upstream's property CRC of a batch follows properties that are not closed without a separator, and so becomes a
     * part of the last one's value. */
    s.ledger.hostile = !s.options.property_crc && cmq_test_random_below(2) == 0;
    s.ledger.inner = s.options.batch_topic_count > 0;
    s.ledger.keys_of = (uint32_t)cmq_test_random_below(17);
    return s;
}

static bool run_new_session(void)
{
    session s = new_session();
    const bool good = run_session(&s, 40);
    if (good) kit_remove_tree_in(s.fs, s.root);
    ledger_free(&s.ledger);
    return good;
}

/* The store's own threads at work: images are taken during their work. Woken after each operation, as appends wake
 * them. */
static bool run_session_beside_threads(void)
{
    session s = new_session();
    s.twin = cmq_file_twin_create_over(s.fs, s.root, cmq_test_random());
    s.options.fs = cmq_file_twin_fs(s.twin);
    s.options.background = true;
    set_places(&s);
    s.doing = "making the store";
    bool good = open_and_check(&s, s.doing);
    for (int i = 0; i < 40 && good && all.images_left > 0; i++) {
        good = work(&s);
        atomic_fetch_add(&kit_now_ms, 600);   /* the log, and every second time the queues, are due */
        if (good) cmq_store_wake_thread(s.store);
        if (good && cmq_test_random_below(4) == 0) take_image(&s, "the threads are at work");
        if (good) good = follow_up_all(&s);
    }
    all.sessions++;
    let_go(&s);
    cmq_file_twin_close(s.twin);
    if (good) kit_remove_tree_in(s.fs, s.root);
    ledger_free(&s.ledger);
    return good;
}

static void begin(uint64_t images)
{
    memset(&all, 0, sizeof all);
    all.directory = kit_directory();
    all.memory = cmq_memory_fs_create();
    all.images_left = images;
    kit_set_clock();
}

/* Sessions until all images are taken. What lies in memory when one fails is copied to the real directory of the same
 * name. */
static void run_all(const char *name, uint64_t images, bool (*run_one)(void))
{
    begin(images);
    while (all.images_left > 0) {
        if (run_one()) continue;
        cmq_fs *memory = cmq_memory_fs_fs(all.memory);
        cmq_file_info info;
        if (cmq_fs_stat(memory, all.directory, &info) == CMQ_OK)
            kit_copy_tree_to(memory, all.directory, cmq_fs_posix(), all.directory);
        cmq_test_fail(__FILE__, __LINE__, "after %" PRIu64 " images: %s", all.images_taken, all.why);
    }
    printf("%s: %" PRIu64 " images in %" PRIu64 " sessions, seed %" PRIu64 "\n", name, all.images_taken, all.sessions,
           cmq_test_seed());
    cmq_memory_fs_destroy(all.memory);
}

static void power_loss(void) { run_all("power_loss", kit_amount("CMQ_CRASH_IMAGES", 250, 1000000), run_new_session); }

static void power_loss_beside_threads(void)
{
    run_all("power_loss_beside_threads", kit_amount("CMQ_CRASH_IMAGES", 40, 50000), run_session_beside_threads);
}

/* ---- disks that fail ---- */

/* Arm a fault or two among the next calls. */
static void arm(session *s)
{
    static const int errors[] = {EIO, ENOSPC, EIO, EDQUOT};
    static const cmq_twin_kind likely[] = {CMQ_TWIN_SYNC,        CMQ_TWIN_WRITE,      CMQ_TWIN_RESERVE,
                                           CMQ_TWIN_SYNC_MAPPED, CMQ_TWIN_ANY_CHANGE, CMQ_TWIN_SYNC_DIRECTORY};
    for (uint64_t i = 1 + cmq_test_random_below(2); i > 0; i--) {
        cmq_twin_kind kind = likely[cmq_test_random_below(6)];
        if (cmq_test_random_below(3) == 0) kind = (cmq_twin_kind)cmq_test_random_below(CMQ_TWIN_KINDS);
        const cmq_twin_fault fault = {.kind = kind,
                                      .nth = 1 + cmq_test_random_below(5),
                                      .times = 1 + cmq_test_random_below(4),
                                      .sys_errno = errors[cmq_test_random_below(4)],
                                      .halfway = cmq_test_random_below(2) == 0};
        cmq_file_twin_fail(s->twin, &fault);
    }
}

static bool is_disk_error(cmq_status status)
{
    return status == CMQ_ERR_IO || status == CMQ_ERR_DISK_FULL || status == CMQ_ERR_FENCED ||
           status == CMQ_ERR_PERMISSION;
}

static bool is_fenced(session *s)
{
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(s->store, &info));
    return info.fenced;
}

/* One operation under faults: it works or says what failed. */
static cmq_status work_on_bad_disk(session *s)
{
    const uint64_t dice = cmq_test_random_below(10);
    const uint32_t left = ledger_group_left(&s->ledger);
    cmq_appended appended;
    cmq_status status;
    s->doing = "work on a bad disk";
    if (dice < 6) {
        const bool no_wait = cmq_test_random_below(5) == 0;
        status = ledger_append(&s->ledger, s->store, 1 + (uint32_t)cmq_test_random_below(left < 24 ? left : 24),
                               &(ledger_call){.no_wait = no_wait}, &appended);
        if (status == CMQ_OK && !no_wait && s->options.flush == CMQ_FLUSH_SYNC)
            s->expected.acknowledged = s->ledger.count;
        return status;
    }
    status = dice < 7 ? cmq_store_flush(s->store) : cmq_store_maintain(s->store, dice < 9);
    if (status == CMQ_OK) s->expected.acknowledged = s->ledger.count;
    return status;
}

/* The disk is mended: a store that is not fenced works again; one that is says so, and is read on. */
static bool go_on_after(session *s)
{
    cmq_appended appended;
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    const bool fenced = is_fenced(s);
    cmq_file_twin_clear_faults(s->twin);
    s->doing = fenced ? "work behind the fence" : "work after a failure";
    if (!ledger_check(&s->ledger, s->store, &s->expected, &found, why))
        return violated(s, "reading after a failure: %s", why);
    const cmq_status status = ledger_append(&s->ledger, s->store, 1, &(ledger_call){0}, &appended);
    if (fenced) return status == CMQ_ERR_FENCED || violated(s, "a fenced store appended: %s", cmq_status_name(status));
    if (!fine(s, "append on the mended disk", status) ||
        !fine(s, "flush on the mended disk", cmq_store_flush(s->store)))
        return false;
    s->expected.acknowledged = s->ledger.count;
    return fine(s, "upkeep on the mended disk", cmq_store_maintain(s->store, true));
}

/* Close or die, perhaps under faults, and open again on a mended disk. A process that dies of the disk is looked at
 * through what a power loss leaves, and through what the next process sees. */
static bool reopen_after(session *s)
{
    const uint64_t dice = cmq_test_random_below(4);
    const bool fenced = is_fenced(s);
    s->doing = "closing on a bad disk";
    if (dice == 0) arm(s);
    if (dice == 3) {
        cmq_store_abandon(s->store);
        s->store = NULL;
    } else {
        const cmq_status status = close_store(s);
        if (status == CMQ_OK && fenced) return violated(s, "a fenced store closed well");
        if (status == CMQ_OK) s->expected.acknowledged = s->ledger.count;
        else if (!is_disk_error(status))
            return violated(s, "close gave %s (%s)", cmq_status_name(status), cmq_last_error()->text);
    }
    s->doing = "opening on a bad disk";
    for (int attempt = 0; attempt < 3; attempt++) {
        if (attempt == 2 || cmq_test_random_below(2) == 0) cmq_file_twin_clear_faults(s->twin);
        else arm(s);
        const cmq_status status = cmq_store_open(&s->store, &s->options);
        if (status == CMQ_OK) break;
        if (attempt == 2 || !is_disk_error(status))
            return violated(s, "open gave %s (%s)", cmq_status_name(status), cmq_last_error()->text);
    }
    cmq_file_twin_clear_faults(s->twin);
    return check_store(s, "opening after a failure");
}

static bool run_faulty_session(void)
{
    session s = new_session();
    s.twin = cmq_file_twin_create_over(s.fs, s.root, cmq_test_random());
    s.options.fs = cmq_file_twin_fs(s.twin);
    set_places(&s);
    s.one_in = 60;
    s.doing = "making the store";
    bool good = open_and_check(&s, s.doing);
    cmq_file_twin_on_call(s.twin, 0, at_call, &s);
    for (int i = 0; i < 25 && good; i++) {
        if (cmq_test_random_below(3) == 0) arm(&s);
        cmq_status status = CMQ_OK;
        for (int j = 0; j < 6 && status == CMQ_OK; j++) status = work_on_bad_disk(&s);
        if (status != CMQ_OK && !is_disk_error(status))
            good = violated(&s, "%s (%s)", cmq_status_name(status), cmq_last_error()->text);
        const bool fenced = good && is_fenced(&s);
        if (good && status != CMQ_OK) good = go_on_after(&s);
        if (good) good = follow_up_all(&s);
        /* After a failed sync the page cache may show bytes that are on no disk, and a process cannot detect that: such
         * a store's promises do not cover a power loss until the machine is restarted. So this boot's images end
         * here. */
        if (good && (fenced || cmq_test_random_below(5) == 0)) {
            const uint64_t failures = cmq_file_twin_failures(s.twin);
            cmq_file_twin_on_call(s.twin, 0, NULL, NULL);
            good = reopen_after(&s);
            if (fenced || cmq_file_twin_failures(s.twin) > failures) break;
            cmq_file_twin_on_call(s.twin, 0, at_call, &s);
        }
    }
    cmq_file_twin_clear_faults(s.twin);
    all.sessions++;
    let_go(&s);
    cmq_file_twin_on_call(s.twin, 0, NULL, NULL);
    cmq_file_twin_close(s.twin);
    if (good) kit_remove_tree_in(s.fs, s.root);
    ledger_free(&s.ledger);
    return good;
}

static void failing_disk(void)
{
    run_all("failing_disk", kit_amount("CMQ_CRASH_IMAGES", 125, 100000), run_faulty_session);
}

/* ---- the checks themselves: a build whose syncs are left out must not pass ---- */

static void without(unsigned kinds, const char *what)
{
    begin(4000);
    all.ignored_syncs = kinds;
    bool good = true;
    while (good && all.images_left > 0) good = run_new_session();
    if (good)
        cmq_test_fail(__FILE__, __LINE__, "without %s nothing was lost in %" PRIu64 " images: these tests see nothing",
                      what, all.images_taken);
    printf("without %s: found after %" PRIu64 " images\n", what, all.images_taken);
    cmq_memory_fs_destroy(all.memory);
}

static void without_syncs_it_fails(void)
{
    without(CMQ_TWIN_ALL_SYNCS, "any sync");
    without(CMQ_TWIN_BIT(CMQ_TWIN_SYNC), "fdatasync");
    without(CMQ_TWIN_BIT(CMQ_TWIN_SYNC_MAPPED), "msync");
    without(CMQ_TWIN_BIT(CMQ_TWIN_SYNC_DIRECTORY), "syncs of directories");
    /* takes a thousand images */
    if (getenv("CMQ_LONG") != NULL) without(CMQ_TWIN_BIT(CMQ_TWIN_SYNC_ALL), "syncfs after a kill");
}

CMQ_TEST_MAIN(CMQ_TEST(power_loss), CMQ_TEST(power_loss_beside_threads), CMQ_TEST(failing_disk),
              CMQ_TEST(without_syncs_it_fails))
