/* test_cmq_queues: the whole set against a plain list of records: random puts, flushes, reopenings, cuts, expiry,
 * deletion, power losses.
 *
 * The model is a log: records in physical order, each in one queue. The expected content of a queue follows from the
 * log alone.
 */
#include "store/queue/cmq_queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_test.h"

#define FILE_UNITS 40
#define BATCH_FILE_UNITS 30
#define EXT_FILE_BYTES 700
#define RECORDS_MAX 6000
#define QUEUES 7
#define ALL INT64_MAX

typedef struct record {
    int64_t phy, offset, tags_code, store_ms;
    int32_t bytes, count;
    int queue;              /* -1: of a queue that was deleted since */
} record;

static const struct {
    const char *topic;
    int32_t id;
    cmq_queue_kind kind;
} names[QUEUES] = {{"alpha", 0, CMQ_QUEUE_SIMPLE}, {"alpha", 1, CMQ_QUEUE_SIMPLE}, {"%LMQ%light", 0, CMQ_QUEUE_SIMPLE},
                   {"beta", 11, CMQ_QUEUE_SIMPLE}, {"batch", 0, CMQ_QUEUE_BATCH},  {"batch", 3, CMQ_QUEUE_BATCH},
                   {"late", 0, CMQ_QUEUE_SIMPLE}};

static struct {
    record records[RECORDS_MAX];
    int count;
    int64_t log_min, log_end;
    int64_t covered;          /* units of records that end at or before are in the files */
    int64_t deleted_at;       /* records below may be of deleted queues: replays begin above */
    int64_t first[QUEUES];    /* offset at which the queue's present life began */
    bool bare[QUEUES];        /* expiry and then a cut may have left no unit: nobody knows where it was */
    bool ext;
    const char *root;
    cmq_fs *fs;
    cmq_queues *queues;
} m;

/* ---- the store under test ---- */

static void open_set(void)
{
    const cmq_queues_options options = {.fs = m.fs,
                                        .root = m.root,
                                        .queue_file_bytes = FILE_UNITS * 20,
                                        .batch_file_bytes = BATCH_FILE_UNITS * 46,
                                        .ext_file_bytes = EXT_FILE_BYTES,
                                        .ext_enabled = m.ext,
                                        .descriptors_max = 8,
                                        .maps_max = 2};
    CHECK_OK(cmq_queues_create(&m.queues, &options));
    CHECK_OK(cmq_queues_load(m.queues));
}

static void begin(const char *root, cmq_fs *fs, bool ext)
{
    memset(&m, 0, sizeof m);
    m.root = root;
    m.fs = fs;
    m.ext = ext;
    open_set();
}

static cmq_queue *find(int q) { return cmq_queues_find(m.queues, cmq_slice_of_text(names[q].topic), names[q].id); }

static void reput(const record *r)
{
    cmq_queue *queue;
    CHECK_OK(cmq_queues_require(m.queues, cmq_slice_of_text(names[r->queue].topic), names[r->queue].id,
                                names[r->queue].kind, &queue));
    CHECK_OK(cmq_queue_reput(queue, r->offset, r->phy, r->bytes, r->tags_code, r->store_ms, r->count));
}

/* ---- operations ---- */

static void put_some(void)
{
    const int q = (int)cmq_test_random_below(QUEUES);
    int n = 1 + (int)cmq_test_random_below(30);
    cmq_queue *queue = find(q);
    const bool is_new = queue == NULL;
    if (is_new) {
        CHECK_OK(cmq_queues_require(m.queues, cmq_slice_of_text(names[q].topic), names[q].id, names[q].kind, &queue));
        m.first[q] = strcmp(names[q].topic, "late") == 0 ? 95 : 0;
    }
    if (m.count + n > RECORDS_MAX) n = RECORDS_MAX - m.count;
    if (n == 0) return;
    CHECK_OK(cmq_queue_make_room(queue, (uint32_t)n, m.log_end));
    for (int i = 0; i < n; i++) {
        record *r = &m.records[m.count++];
        const bool starts = is_new && i == 0 && m.first[q] > 0;   /* later than at 0 */
        *r = (record){.phy = m.log_end,
                      .offset = starts ? m.first[q] : cmq_queue_next(queue),
                      .tags_code = cmq_test_random_below(3) == 0 ? -77 : (int32_t)cmq_test_random_below(5),
                      .store_ms = 1000 + m.count,
                      .bytes = 90 + (int32_t)cmq_test_random_below(200),
                      .count = names[q].kind == CMQ_QUEUE_BATCH ? 1 + (int32_t)cmq_test_random_below(9) : 1,
                      .queue = q};
        if (starts) {
            CHECK_OK(cmq_queue_reput(queue, r->offset, r->phy, r->bytes, r->tags_code, r->store_ms, r->count));
            CHECK_OK(cmq_queue_make_room(queue, (uint32_t)n, m.log_end));
        } else
            cmq_queue_put(queue, r->phy, r->bytes, r->tags_code, r->store_ms, r->count);
        m.log_end += r->bytes;
    }
    m.bare[q] = false;
}

static void flush_some(bool durable)
{
    int64_t end = m.log_end, covered;
    if (m.count > 0 && cmq_test_random_below(2) == 0) end = m.records[cmq_test_random_below((uint64_t)m.count)].phy;
    CHECK_OK(cmq_queues_flush(m.queues, end, durable, &covered));
    CHECK(covered >= end);
    if (end > m.covered) m.covered = end;
}

/* The steps of recovery: find the ends of the units below `whole_end`, and put again the records of the log from `from`
 * on. */
static void recover_from(int64_t whole_end, int64_t from)
{
    int64_t dispatched;
    if (whole_end > m.log_end) whole_end = m.log_end;
    CHECK_OK(cmq_queues_recover(m.queues, m.log_min, whole_end, whole_end, &dispatched));
    CHECK(dispatched <= m.log_end);
    for (int i = 0; i < m.count; i++)
        if (m.records[i].queue >= 0 && m.records[i].phy + m.records[i].bytes > from && m.records[i].phy >= m.log_min)
            reput(&m.records[i]);
    CHECK_OK(cmq_queues_end_recover(m.queues));
    CHECK_INT(cmq_queues_gaps(m.queues), 0);
}

static const record *last_of(int q)
{
    for (int i = m.count; i > 0; i--)
        if (m.records[i - 1].queue == q) return &m.records[i - 1];
    return NULL;
}

static void cut_log(void)
{
    if (m.count == 0) return;
    const int keep = m.count - (int)cmq_test_random_below(m.count < 60 ? (uint64_t)m.count : 60);
    if (keep == m.count || m.records[keep].phy < m.log_min || m.records[keep].phy < m.deleted_at) return;
    m.count = keep;
    m.log_end = m.records[keep].phy;
    if (m.covered > m.log_end) m.covered = m.log_end;
    for (int q = 0; q < QUEUES; q++) {
        const record *last = last_of(q);
        if (last == NULL || last->phy < m.log_min) m.bare[q] = true;
    }
}

static void reopen(void)
{
    cmq_queues_destroy(m.queues);
    if (cmq_test_random_below(3) == 0) cut_log();
    open_set();
    const bool trusted = cmq_test_random_below(2) == 0 && m.covered > 0;
    int64_t from = m.covered;
    /* Without a trusted point everything from some older record on is read again. */
    if (!trusted && m.count > 0 && cmq_test_random_below(2) == 0) {
        from = m.records[cmq_test_random_below((uint64_t)m.count)].phy;
        if (from > m.covered) from = m.covered;
        if (from < m.deleted_at) from = m.deleted_at < m.covered ? m.deleted_at : m.covered;
    }
    recover_from(trusted ? m.covered : m.log_end, from);
}

static void truncate_running(void)
{
    const int64_t before = m.log_end;
    cut_log();
    if (m.log_end == before) return;
    CHECK_OK(cmq_queues_truncate(m.queues, m.log_end));
}

static void expire(void)
{
    if (m.count == 0) return;
    const int at = (int)cmq_test_random_below((uint64_t)m.count);
    /* A store expires nothing that its queue files do not have yet. */
    if (cmq_test_random_below(3) != 0 || m.records[at].phy <= m.log_min || m.records[at].phy > m.covered) return;
    m.log_min = m.records[at].phy;
    CHECK_OK(cmq_queues_expire(m.queues, m.log_min, m.covered));
}

static void forget(int q)
{
    for (int i = 0; i < m.count; i++)
        if (m.records[i].queue == q) m.records[i].queue = -1;
    m.deleted_at = m.log_end;
    m.first[q] = 0;
    m.bare[q] = false;
}

static void flush_all(void)
{
    int64_t covered;
    CHECK_OK(cmq_queues_flush(m.queues, m.log_end, true, &covered));
    CHECK(covered >= m.log_end);
    m.covered = m.log_end;
}

static void delete_topic(void)
{
    if (cmq_test_random_below(4) != 0) return;
    const char *topic = names[cmq_test_random_below(QUEUES)].topic;
    bool there = false;
    for (int q = 0; q < QUEUES; q++) there |= strcmp(names[q].topic, topic) == 0 && find(q) != NULL;
    flush_all();
    CHECK_STATUS(cmq_queues_delete_topic(m.queues, cmq_slice_of_text(topic)), there ? CMQ_OK : CMQ_ERR_NOT_FOUND);
    for (int q = 0; q < QUEUES; q++)
        if (strcmp(names[q].topic, topic) == 0) forget(q);
}

static bool keeps_alpha(void *context, cmq_slice topic)
{
    (void)context;
    return cmq_slice_equal(topic, cmq_slice_of_text("alpha"));
}

static void delete_expired(void)
{
    if (cmq_test_random_below(3) != 0) return;
    uint32_t deleted, expected = 0;
    bool gone[QUEUES] = {false}, were_there[QUEUES];
    flush_all();
    for (int q = 0; q < QUEUES; q++) {
        const record *last = last_of(q);
        were_there[q] = find(q) != NULL;
        gone[q] = were_there[q] && last != NULL && last->phy + last->bytes <= m.log_min &&
                  strcmp(names[q].topic, "alpha") != 0;
    }
    CHECK_OK(cmq_queues_delete_expired(m.queues, m.log_min, keeps_alpha, NULL, &deleted));
    for (int q = 0; q < QUEUES; q++) {
        if (m.bare[q]) gone[q] = were_there[q] && find(q) == NULL;
        expected += gone[q];
    }
    CHECK_INT(deleted, expected);
    for (int q = 0; q < QUEUES; q++) {
        if (!gone[q]) continue;
        CHECK(find(q) == NULL);
        forget(q);
    }
}

/* ---- checks ---- */

static void check_unit(const cmq_unit *unit, const record *r, bool ext)
{
    CHECK_INT(unit->offset, r->offset);
    CHECK_INT(unit->phy, r->phy);
    CHECK_INT(unit->bytes, r->bytes);
    CHECK_INT(unit->tags_code, r->tags_code);
    CHECK_INT(unit->count, r->count);
    if (ext || names[r->queue].kind == CMQ_QUEUE_BATCH) CHECK_INT(unit->store_ms, r->store_ms);
}

/* The readable records of a queue in order. */
static int collect(int q, const record **into)
{
    int count = 0;
    for (int i = 0; i < m.count; i++)
        if (m.records[i].queue == q && m.records[i].phy >= m.log_min) into[count++] = &m.records[i];
    return count;
}

static void check_reads(int q, cmq_queue *queue, const record **all, int count)
{
    const bool ext = m.ext && strncmp(names[q].topic, "%LMQ%", 5) != 0;
    cmq_unit units[300];
    uint32_t got;
    int64_t next, at = 0;
    const uint32_t step = 1 + (uint32_t)cmq_test_random_below(300);
    for (int seen = 0; seen < count;) {
        CHECK_OK(cmq_queue_read(queue, at, ALL, units, step, &got, &next));
        CHECK(got > 0);
        for (uint32_t i = 0; i < got; i++) check_unit(&units[i], all[seen++], ext);
        CHECK_INT(next, units[got - 1].offset + units[got - 1].count);
        at = next;
    }
    CHECK_OK(cmq_queue_read(queue, at, ALL, units, step, &got, &next));
    CHECK_INT(got, 0);
    at = ALL;
    for (int seen = count; seen > 0;) {
        CHECK_OK(cmq_queue_read_back(queue, at, ALL, units, step, &got, &next));
        CHECK(got > 0);
        for (uint32_t i = 0; i < got; i++) check_unit(&units[i], all[--seen], ext);
        at = next;
    }
    CHECK_OK(cmq_queue_read_back(queue, at, ALL, units, step, &got, &next));
    CHECK_INT(got, 0);
    const uint32_t hash = (uint32_t)-77;
    at = 0;
    for (int seen = 0;;) {
        CHECK_OK(cmq_queue_scan(queue, at, ALL, &hash, 1, 1 + cmq_test_random_below(200), units, step, &got, &next));
        for (uint32_t i = 0; i < got; i++) {
            while (seen < count && all[seen]->tags_code != -77) seen++;
            CHECK(seen < count);
            check_unit(&units[i], all[seen++], ext);
        }
        if (next == at) {
            while (seen < count && all[seen]->tags_code != -77) seen++;
            CHECK_INT(seen, count);
            break;
        }
        at = next;
    }
}

static int compare_store_ms(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->phy >= *(const int64_t *)context ? 1 : -1;
}

static void check_queue(int q)
{
    static const record *all[RECORDS_MAX];
    cmq_queue *queue = find(q);
    const int count = collect(q, all);
    if (queue == NULL) {
        CHECK_INT(count, 0);
        return;
    }
    const record *last = last_of(q);
    const int64_t end = last != NULL ? last->offset + last->count : m.first[q];
    if (last != NULL && !m.bare[q]) CHECK_INT(cmq_queue_next(queue), end);
    if (count > 0) CHECK_INT(cmq_queue_min(queue), all[0]->offset);
    else CHECK_INT(cmq_queue_min(queue), cmq_queue_max(queue, ALL));
    if (last != NULL && !m.bare[q]) CHECK_INT(cmq_queue_max(queue, ALL), end);
    check_reads(q, queue, all, count);
    if (count == 0) return;
    const int pick = (int)cmq_test_random_below((uint64_t)count);
    int64_t phy = all[pick]->phy, found;
    CHECK_OK(cmq_queue_search(queue, 0, ALL, ALL, compare_store_ms, &phy, &found));
    CHECK_INT(found, all[pick]->offset);
    CHECK_INT(cmq_queue_max(queue, phy), pick == 0 ? all[0]->offset : all[pick - 1]->offset + all[pick - 1]->count);
    cmq_unit unit;
    uint32_t got;
    const int64_t inside = all[pick]->offset + (int64_t)cmq_test_random_below((uint64_t)all[pick]->count);
    CHECK_OK(cmq_queue_read(queue, inside, ALL, &unit, 1, &got, &found));
    CHECK_INT(got, 1);
    check_unit(&unit, all[pick], false);
}

static void check_all(void)
{
    for (int q = 0; q < QUEUES; q++) check_queue(q);
}

/* ---- cases ---- */

static void run_random(bool ext, int steps)
{
    /* Over the twin, whose syncs are notes: the same calls without waiting for a disk. */
    const char *root = cmq_test_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    begin(root, cmq_file_twin_fs(twin), ext);
    for (int i = 0; i < steps && m.count < RECORDS_MAX; i++) {
        switch (cmq_test_random_below(16)) {
        case 0: flush_some(false); break;
        case 1: flush_some(true); break;
        case 2: reopen(); break;
        case 3: expire(); break;
        case 4: delete_topic(); break;
        case 5: delete_expired(); break;
        case 6: truncate_running(); break;
        case 7: cmq_queues_trim(m.queues); break;
        case 8: check_all(); break;
        default: put_some(); break;
        }
    }
    check_all();
    reopen();
    check_all();
    cmq_queues_destroy(m.queues);
    cmq_file_twin_close(twin);
}

static void random_operations(void)
{
    for (int i = 0; i < 3; i++) run_random(false, 500);
}

static void random_operations_with_ext(void)
{
    for (int i = 0; i < 3; i++) run_random(true, 500);
}

/* After a power loss at any time, what a durable flush covered is there, and the log completes the rest. */
static void run_power_losses(bool ext)
{
    char store[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
    const char *root = cmq_test_directory();
    CHECK_OK(cmq_path_join(store, root, "store"));
    CHECK_OK(cmq_path_join(image, root, "image"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), store));
    cmq_file_twin *twin = cmq_file_twin_create(store, cmq_test_random());
    begin(store, cmq_file_twin_fs(twin), ext);
    for (int i = 0; i < 60; i++) {
        for (int n = (int)cmq_test_random_below(6); n > 0; n--) put_some();
        int64_t covered, durable;
        CHECK_OK(cmq_queues_flush(m.queues, m.log_end - (int64_t)cmq_test_random_below(200),
                                  cmq_test_random_below(2) == 0, &covered));
        if (cmq_test_random_below(8) == 0) expire();
        /* covers nothing more, and tells what is durable */
        CHECK_STATUS(cmq_queues_flush(m.queues, 0, true, &durable), CMQ_OK);
        if (i % 10 != 0) continue;
        (void)cmq_file_twin_crash_image(twin, image);
        cmq_queues *queues = m.queues;
        m.root = image;
        m.fs = cmq_fs_posix();
        open_set();
        recover_from(durable, durable);
        check_all();
        cmq_queues_destroy(m.queues);
        m.queues = queues;
        m.root = store;
        m.fs = cmq_file_twin_fs(twin);
    }
    cmq_queues_destroy(m.queues);
    cmq_file_twin_close(twin);
}

static void power_losses(void) { run_power_losses(false); }
static void power_losses_with_ext(void) { run_power_losses(true); }

static void many_queues_grow_the_table(void)
{
    const char *root = cmq_test_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    begin(root, cmq_file_twin_fs(twin), false);
    enum { COUNT = 700 };
    char topic[32];
    cmq_queue *queue;
    for (int i = 0; i < COUNT; i++) {
        snprintf(topic, sizeof topic, "t%d", i / 2);
        CHECK_OK(cmq_queues_require(m.queues, cmq_slice_of_text(topic), i % 2, CMQ_QUEUE_SIMPLE, &queue));
        CHECK_OK(cmq_queue_make_room(queue, 1, 0));
        cmq_queue_put(queue, i * 100, 100, i, 0, 1);
    }
    CHECK_INT(cmq_queues_count(m.queues), COUNT);
    int64_t covered, end;
    CHECK_OK(cmq_queues_flush(m.queues, COUNT * 100, true, &covered));   /* more files than are synced one by one */
    CHECK(cmq_file_twin_all_durable(twin));
    cmq_queues_destroy(m.queues);
    open_set();
    CHECK_OK(cmq_queues_recover(m.queues, 0, COUNT * 100, COUNT * 100, &end));
    CHECK_INT(end, COUNT * 100);
    CHECK_INT(cmq_queues_count(m.queues), COUNT);
    for (int i = 0; i < COUNT; i++) {
        cmq_unit unit;
        uint32_t count;
        int64_t next;
        snprintf(topic, sizeof topic, "t%d", i / 2);
        queue = cmq_queues_find(m.queues, cmq_slice_of_text(topic), i % 2);
        CHECK(queue != NULL && strcmp(cmq_queue_topic(queue), topic) == 0);
        CHECK_OK(cmq_queue_read(queue, 0, ALL, &unit, 1, &count, &next));
        CHECK_INT(count, 1);
        CHECK_INT(unit.tags_code, i);
    }
    cmq_queues_destroy(m.queues);
    cmq_file_twin_close(twin);
}

/* A follower reads what another process writes, and changes nothing. */
static void follower_sees_files_and_its_own_tail(void)
{
    begin(cmq_test_directory(), cmq_fs_posix(), false);
    cmq_queues *writer = m.queues, *follower;
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = m.root,
                                        .read_only = true,
                                        .queue_file_bytes = FILE_UNITS * 20,
                                        .batch_file_bytes = BATCH_FILE_UNITS * 46,
                                        .ext_file_bytes = EXT_FILE_BYTES};
    CHECK_OK(cmq_queues_create(&follower, &options));
    CHECK_OK(cmq_queues_load(follower));
    int64_t covered = 0, end;
    CHECK_OK(cmq_queues_recover(follower, 0, 0, 0, &end));
    int seen = 0;
    for (int i = 0; i < 400; i++) {
        put_some();
        if (i % 7 == 0) CHECK_OK(cmq_queues_flush(writer, m.log_end, false, &covered));
        if (i % 3 != 0) continue;
        for (; seen < m.count; seen++) {
            m.queues = follower;
            reput(&m.records[seen]);
        }
        cmq_queues_follow_files(follower, covered);
        if (i % 6 == 0) cmq_queues_trim(follower);
        m.queues = follower;
        check_all();
        CHECK_STATUS(cmq_queues_flush(follower, m.log_end, false, &end), CMQ_ERR_READ_ONLY);
        if (i % 60 == 0) {   /* the writer deletes old files; the follower notices when it reads, or by a notice */
            m.queues = writer;
            m.log_min = m.records[m.count / 2].phy;
            CHECK_OK(cmq_queues_flush(writer, m.log_end, false, &covered));
            CHECK_OK(cmq_queues_expire(writer, m.log_min, covered));
            cmq_queues_follow_files(follower, covered);
            for (int q = 0; q < QUEUES; q++) {
                cmq_queue *queue = cmq_queues_find(follower, cmq_slice_of_text(names[q].topic), names[q].id);
                cmq_unit unit;
                uint32_t count;
                int64_t next;
                if (queue != NULL && i % 120 == 0) CHECK_OK(cmq_queue_read(queue, 0, ALL, &unit, 1, &count, &next));
            }
            CHECK_OK(cmq_queues_expire(follower, m.log_min, 0));
        }
        m.queues = writer;
    }
    /* The content of the files now, independent of the follower's view. */
    int found = 0;
    for (int i = 0; i < m.count; i++) {
        const record *r = &m.records[i];
        cmq_unit unit;
        cmq_queue *queue = cmq_queues_find(follower, cmq_slice_of_text(names[r->queue].topic), names[r->queue].id);
        if (r->phy < m.log_min || queue == NULL) continue;
        const cmq_status status = cmq_queue_file_unit(queue, r->offset, &unit);
        CHECK_STATUS(status, r->phy + r->bytes <= covered ? CMQ_OK : CMQ_AGAIN);
        if (status != CMQ_OK) continue;
        check_unit(&unit, r, false);
        found++;
    }
    CHECK(found > 0);
    cmq_queues_destroy(follower);
    cmq_queues_destroy(writer);
}

static void moved_store_is_not_created_again_at_its_old_place(void)
{
    char root[CMQ_PATH_BYTES], away[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_fs *fs = cmq_fs_posix();
    CHECK_OK(cmq_path_join(root, cmq_test_directory(), "store"));
    CHECK_OK(cmq_path_join(away, cmq_test_directory(), "away"));
    CHECK_OK(cmq_fs_make_directory(fs, root));
    begin(root, fs, false);
    cmq_queue *queue;
    CHECK_OK(cmq_fs_rename(fs, root, away));
    CHECK_OK(cmq_queues_require(m.queues, cmq_slice_of_text("t"), 0, CMQ_QUEUE_SIMPLE, &queue));
    CHECK_OK(cmq_queue_make_room(queue, 1, 0));
    cmq_queue_put(queue, 0, 90, 0, 1000, 1);
    int64_t covered;
    CHECK_STATUS(cmq_queues_flush(m.queues, 90, true, &covered), CMQ_ERR_IO);
    CHECK_STATUS(cmq_fs_stat(fs, root, &info), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_fs_rename(fs, away, root));
    CHECK_OK(cmq_queues_flush(m.queues, 90, true, &covered));
    CHECK_INT(covered, 90);
    cmq_queues_destroy(m.queues);
}

CMQ_TEST_MAIN(CMQ_TEST(random_operations), CMQ_TEST(random_operations_with_ext), CMQ_TEST(power_losses),
              CMQ_TEST(power_losses_with_ext), CMQ_TEST(many_queues_grow_the_table),
              CMQ_TEST(follower_sees_files_and_its_own_tail),
              CMQ_TEST(moved_store_is_not_created_again_at_its_old_place))
