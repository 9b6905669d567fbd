/* Tests csrc/broker/tables/cmq_offsets.c: commits, resets, removal, what changed, limits; random work against a plain
 * model. Threads: yes. */
#include "broker/tables/cmq_offsets.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

#define NOBODY ((cmq_offset_asker){0})

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static cmq_offset_key key(const char *group, const char *topic, int32_t queue_id)
{
    return (cmq_offset_key){.group = cmq_slice_of_text(group), .topic = cmq_slice_of_text(topic), .queue_id = queue_id};
}

static cmq_offsets *make_offsets(uint32_t entries_max)
{
    cmq_offsets *offsets;
    CHECK_OK(cmq_offsets_create(&offsets, entries_max));
    return offsets;
}

static int64_t query(cmq_offsets *offsets, const char *group, const char *topic, int32_t queue_id)
{
    const cmq_offset_key of = key(group, topic, queue_id);
    return cmq_offsets_query(offsets, &of);
}

static void commit(cmq_offsets *offsets, const char *group, const char *topic, int32_t queue_id, int64_t offset)
{
    const cmq_offset_key of = key(group, topic, queue_id);
    CHECK_OK(cmq_offsets_commit(offsets, &of, offset));
}

/* "group/topic/queue=offset …" of up to `capacity` changes; static. */
static const char *changes(cmq_offsets *offsets, uint32_t capacity)
{
    static char text[4096];
    static uint8_t names[CMQ_OFFSETS_TEXT_MIN];
    cmq_offset_item list[64];
    cmq_offset_items items = {.items = list, .capacity = capacity, .text = names, .text_bytes = sizeof names};
    size_t used = 0;
    text[0] = '\0';
    cmq_offsets_take_changes(offsets, &items);
    CHECK(items.count <= capacity);
    for (uint32_t i = 0; i < items.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s/%.*s/%d=%lld", i > 0 ? " " : "",
                                 (int)list[i].group.bytes, (const char *)list[i].group.data, (int)list[i].topic.bytes,
                                 (const char *)list[i].topic.data, (int)list[i].queue_id, (long long)list[i].offset);
    return text;
}

#define CHECK_CHANGES(offsets, expected)                                      \
    do {                                                                      \
        const char *actual_ = changes(offsets, 64);                           \
        CHECK_BYTES(actual_, strlen(actual_), expected, strlen(expected));    \
    } while (0)

static void commits_overwrite(void)
{
    cmq_offsets *offsets = make_offsets(0);
    CHECK_INT(query(offsets, "g", "T", 0), CMQ_OFFSETS_NONE);
    commit(offsets, "g", "T", 0, 10);
    commit(offsets, "g", "T", 1, 11);
    commit(offsets, "g", "U", 0, 12);
    commit(offsets, "h", "T", 0, 13);
    commit(offsets, "g", "T", 0, 4);   /* smaller: as upstream */
    CHECK_INT(query(offsets, "g", "T", 0), 4);
    CHECK_INT(query(offsets, "g", "T", 1), 11);
    CHECK_INT(query(offsets, "g", "U", 0), 12);
    CHECK_INT(query(offsets, "h", "T", 0), 13);
    CHECK_INT(query(offsets, "gT", "", 0), CMQ_OFFSETS_NONE);
    CHECK_INT(query(offsets, "", "gT", 0), CMQ_OFFSETS_NONE);
    CHECK_INT(cmq_offsets_count(offsets), 4);
    cmq_offsets_destroy(offsets);
}

static void an_advance_never_goes_back(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key key = {.group = cmq_slice_of_text("g"), .topic = cmq_slice_of_text("T")};
    CHECK_OK(cmq_offsets_advance(offsets, &key, 5));
    CHECK_INT(query(offsets, "g", "T", 0), 5);
    CHECK_OK(cmq_offsets_advance(offsets, &key, 4));
    CHECK_INT(query(offsets, "g", "T", 0), 5);
    CHECK_OK(cmq_offsets_advance(offsets, &key, 6));
    CHECK_INT(query(offsets, "g", "T", 0), 6);
    CHECK_OK(cmq_offsets_reset(offsets, &key, 2, (cmq_offset_asker){0}));
    CHECK_STATUS(cmq_offsets_advance(offsets, &key, 7), CMQ_AGAIN);
    CHECK_INT(query(offsets, "g", "T", 0), 2);
    CHECK_STATUS(cmq_offsets_advance(offsets, &key, -1), CMQ_ERR_ARGUMENT);
    cmq_offsets_destroy(offsets);
}

/* Names stay distinct where they meet. */
static void names_do_not_run_together(void)
{
    cmq_offsets *offsets = make_offsets(0);
    commit(offsets, "ab", "c", 0, 1);
    commit(offsets, "a", "bc", 0, 2);
    CHECK_INT(query(offsets, "ab", "c", 0), 1);
    CHECK_INT(query(offsets, "a", "bc", 0), 2);
    cmq_offsets_destroy(offsets);
}

static void wrong_keys_are_refused(void)
{
    cmq_offsets *offsets = make_offsets(0);
    char name[CMQ_OFFSETS_NAME_BYTES_MAX + 1];
    memset(name, 'n', sizeof name);
    cmq_offset_key of = key("g", "T", -1);
    CHECK_STATUS(cmq_offsets_commit(offsets, &of, 1), CMQ_ERR_ARGUMENT);
    CHECK_INT(cmq_offsets_query(offsets, &of), CMQ_OFFSETS_NONE);
    of = key("", "T", 0);
    CHECK_STATUS(cmq_offsets_pulled(offsets, &of, 1, 1, NOBODY), CMQ_ERR_ARGUMENT);
    of = key("g", "T", 0);
    CHECK_STATUS(cmq_offsets_commit(offsets, &of, -5), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_offsets_reset(offsets, &of, -1, (cmq_offset_asker){0}), CMQ_ERR_ARGUMENT);
    of.topic = (cmq_slice){.data = (uint8_t *)name, .bytes = sizeof name};
    CHECK_STATUS(cmq_offsets_commit(offsets, &of, 1), CMQ_ERR_ARGUMENT);
    of.topic.bytes--;
    CHECK_OK(cmq_offsets_commit(offsets, &of, 1));
    CHECK_INT(cmq_offsets_query(offsets, &of), 1);
    cmq_offsets_destroy(offsets);
    CHECK_STATUS(cmq_offsets_create(&offsets, UINT32_MAX), CMQ_ERR_ARGUMENT);
    CHECK(offsets == NULL);
}

static void a_reset_waits_for_the_next_pull(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key of = key("g", "T", 3), other = key("g", "T", 4);
    CHECK_OK(cmq_offsets_pulled(offsets, &of, 120, 100, NOBODY));
    CHECK_INT(cmq_offsets_pull_offset(offsets, &of), 120);
    CHECK_INT(cmq_offsets_take_reset(offsets, &of), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_reset(offsets, &of, 7, (cmq_offset_asker){0}));
    CHECK_OK(cmq_offsets_reset(offsets, &of, 8, (cmq_offset_asker){0}));
    CHECK_STATUS(cmq_offsets_commit(offsets, &of, 101), CMQ_AGAIN);
    CHECK_STATUS(cmq_offsets_pulled(offsets, &of, 121, 102, NOBODY), CMQ_AGAIN);
    CHECK_INT(cmq_offsets_query(offsets, &of), 8);
    CHECK_INT(cmq_offsets_pull_offset(offsets, &of), CMQ_OFFSETS_NONE);
    CHECK_INT(cmq_offsets_take_reset(offsets, &other), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_commit(offsets, &other, 50));
    CHECK_INT(cmq_offsets_take_reset(offsets, &of), 8);
    CHECK_INT(cmq_offsets_take_reset(offsets, &of), CMQ_OFFSETS_NONE);
    CHECK_INT(cmq_offsets_query(offsets, &of), 8);
    CHECK_OK(cmq_offsets_pulled(offsets, &of, 20, CMQ_OFFSETS_NONE, NOBODY));
    CHECK_INT(cmq_offsets_pull_offset(offsets, &of), 20);
    CHECK_OK(cmq_offsets_commit(offsets, &of, 20));
    CHECK_INT(cmq_offsets_query(offsets, &of), 20);
    cmq_offsets_destroy(offsets);
}

static cmq_offset_asker asker(uint64_t conn, int64_t now_s)
{
    return (cmq_offset_asker){.conn = conn, .now_ns = now_s * INT64_C(1000000000)};
}

/* The member that loses the queue is notified, does not act on it, and commits its old place late. */
static void former_owner_does_not_undo_a_reset(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key of = key("g", "T", 0);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 100, asker(1, 0)));
    CHECK_OK(cmq_offsets_reset(offsets, &of, 7, (cmq_offset_asker){0}));
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 120, asker(1, 1)), 7);
    CHECK_STATUS(cmq_offsets_commit_of(offsets, &of, 110, asker(1, 1)), CMQ_AGAIN);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 7, asker(2, 2)), CMQ_OFFSETS_NONE);
    CHECK_STATUS(cmq_offsets_commit_of(offsets, &of, 110, asker(1, 3)), CMQ_AGAIN);
    CHECK_STATUS(cmq_offsets_pulled(offsets, &of, 130, 111, asker(1, 3)), CMQ_AGAIN);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 9, asker(2, 4)));
    CHECK_OK(cmq_offsets_commit(offsets, &of, 10));
    /* The next owner begins where the group is. */
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 10, asker(3, 5)), CMQ_OFFSETS_NONE);
    CHECK_STATUS(cmq_offsets_commit_of(offsets, &of, 11, asker(2, 6)), CMQ_AGAIN);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 12, asker(3, 6)));
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 13, asker(1, 65)));
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 14, asker(2, 65)));
    cmq_offsets_destroy(offsets);
}

/* A member took the reset in a moment in which two owned the queue, and lost it again: the other one went on from
 * before the reset, and committed behind it when the fence had gone. */
static void owner_that_missed_a_reset_gets_it_though_another_took_it(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key of = key("g", "T", 0);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 67, asker(1, 0)));
    CHECK_OK(cmq_offsets_reset(offsets, &of, 0, (cmq_offset_asker){0}));
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 0, asker(2, 1)), CMQ_OFFSETS_NONE);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 32, asker(2, 1)), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 1, asker(2, 2)));
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 67, asker(1, 3)), 1);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 1, asker(1, 14)), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 5, asker(1, 15)));
    /* Both know now, wherever they read: neither sends the other back. */
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 64, asker(2, 16)), CMQ_OFFSETS_NONE);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 5, asker(2, 17)), CMQ_OFFSETS_NONE);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 33, asker(1, 18)), CMQ_OFFSETS_NONE);
    for (uint64_t conn = 3; conn <= 4; conn++) {
        CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 40, asker(conn, 19)), 5);
        CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 40, asker(conn, 19)), CMQ_OFFSETS_NONE);
    }
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 40, asker(5, 20)), CMQ_OFFSETS_NONE);   /* too many */
    cmq_offsets_destroy(offsets);
}

static void reset_is_over_for_a_client_that_chose_to_be_elsewhere(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key of = key("g", "T", 0);
    CHECK_OK(cmq_offsets_reset(offsets, &of, 7, (cmq_offset_asker){0}));
    for (int i = 0; i < 3; i++) CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 50, asker(1, i)), 7);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 50, asker(2, 3)), 7);   /* another one starts its own count */
    for (int i = 0; i < 3; i++) CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 50, asker(1, i)), 7);
    CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 50, asker(1, 4)), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_commit_of(offsets, &of, 51, asker(1, 4)));
    cmq_offsets_destroy(offsets);
}

static void resets_beyond_the_fences_end_with_the_first_pull_that_gets_one(void)
{
    cmq_offsets *offsets = make_offsets(0);
    for (int q = 0; q <= (int)CMQ_OFFSETS_FENCES_MAX; q++) {
        const cmq_offset_key of = key("g", "T", q);
        CHECK_OK(cmq_offsets_reset(offsets, &of, 7, (cmq_offset_asker){0}));
        CHECK_INT(cmq_offsets_reset_for_pull(offsets, &of, 50, asker(1, 0)), 7);
    }
    const cmq_offset_key first = key("g", "T", 0), second = key("g", "T", 1);
    CHECK_OK(cmq_offsets_commit_of(offsets, &first, 51, asker(1, 0)));
    CHECK_STATUS(cmq_offsets_commit_of(offsets, &second, 51, asker(1, 0)), CMQ_AGAIN);
    cmq_offsets_remove(offsets, first.group, first.topic);
    CHECK_OK(cmq_offsets_commit_of(offsets, &second, 51, asker(2, 0)));
    cmq_offsets_destroy(offsets);
}

static void removal_takes_pending_resets_along(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key of = key("g", "T", 0);
    CHECK_OK(cmq_offsets_reset(offsets, &of, 8, (cmq_offset_asker){0}));
    CHECK_INT(cmq_offsets_remove(offsets, of.group, of.topic), 1);
    CHECK_INT(cmq_offsets_take_reset(offsets, &of), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_commit(offsets, &of, 1));
    CHECK_INT(cmq_offsets_take_reset(offsets, &of), CMQ_OFFSETS_NONE);
    cmq_offsets_destroy(offsets);
}

/* ---- changes ---- */

static void changes_come_once_and_in_order(void)
{
    cmq_offsets *offsets = make_offsets(0);
    const cmq_offset_key pulled = key("g", "P", 0);
    CHECK_CHANGES(offsets, "");
    commit(offsets, "g", "T", 0, 1);
    commit(offsets, "g", "T", 1, 2);
    CHECK_OK(cmq_offsets_pulled(offsets, &pulled, 9, CMQ_OFFSETS_NONE, NOBODY));   /* no commit: no change */
    commit(offsets, "g", "T", 0, 3);
    CHECK_CHANGES(offsets, "g/T/0=3 g/T/1=2");
    CHECK_CHANGES(offsets, "");
    commit(offsets, "g", "T", 0, 3);   /* the same again */
    CHECK_CHANGES(offsets, "");
    for (int i = 0; i < 5; i++) commit(offsets, "h", "T", i, i);
    CHECK(strcmp(changes(offsets, 2), "h/T/0=0 h/T/1=1") == 0);
    commit(offsets, "h", "T", 0, 7);
    CHECK(strcmp(changes(offsets, 3), "h/T/2=2 h/T/3=3 h/T/4=4") == 0);
    CHECK_CHANGES(offsets, "h/T/0=7");
    cmq_offsets_destroy(offsets);
}

static void removals_are_listed_before_later_changes(void)
{
    cmq_offsets *offsets = make_offsets(0);
    commit(offsets, "g", "T", 0, 1);
    commit(offsets, "g", "U", 0, 2);
    commit(offsets, "h", "T", 0, 3);
    CHECK_CHANGES(offsets, "g/T/0=1 g/U/0=2 h/T/0=3");
    commit(offsets, "g", "T", 1, 4);
    CHECK_INT(cmq_offsets_remove(offsets, cmq_slice_of_text("g"), cmq_slice_of_text("T")), 2);
    CHECK_INT(query(offsets, "g", "T", 0), CMQ_OFFSETS_NONE);
    commit(offsets, "g", "T", 1, 5);
    CHECK_CHANGES(offsets, "g/T/-1=-1 g/T/1=5");
    CHECK_INT(cmq_offsets_remove(offsets, CMQ_SLICE_NONE, cmq_slice_of_text("T")), 2);
    CHECK_CHANGES(offsets, "g/T/-1=-1 h/T/-1=-1");
    CHECK_INT(cmq_offsets_remove(offsets, cmq_slice_of_text("g"), CMQ_SLICE_NONE), 1);
    CHECK_INT(cmq_offsets_remove(offsets, cmq_slice_of_text("g"), CMQ_SLICE_NONE), 0);
    CHECK_INT(cmq_offsets_remove(offsets, CMQ_SLICE_NONE, CMQ_SLICE_NONE), 0);
    CHECK_CHANGES(offsets, "g/U/-1=-1");
    CHECK_INT(cmq_offsets_count(offsets), 0);
    cmq_offsets_destroy(offsets);
}

static void the_version_steps_every_500_commits(void)
{
    cmq_offsets *offsets = make_offsets(0);
    for (int i = 0; i < 499; i++) commit(offsets, "g", "T", 0, i);
    CHECK_INT(cmq_offsets_version(offsets), 0);
    commit(offsets, "g", "T", 0, 498);
    CHECK_INT(cmq_offsets_version(offsets), 1);
    cmq_offsets_destroy(offsets);
}

static void entries_are_limited(void)
{
    cmq_offsets *offsets = make_offsets(3);
    for (int i = 0; i < 3; i++) commit(offsets, "g", "T", i, 1);
    cmq_offset_key of = key("g", "T", 3);
    CHECK_STATUS(cmq_offsets_commit(offsets, &of, 1), CMQ_ERR_LIMIT);
    of = key("new", "T", 0);
    CHECK_STATUS(cmq_offsets_reset(offsets, &of, 1, (cmq_offset_asker){0}), CMQ_ERR_LIMIT);
    commit(offsets, "g", "T", 2, 9);
    CHECK_INT(cmq_offsets_remove(offsets, cmq_slice_of_text("g"), CMQ_SLICE_NONE), 3);
    CHECK_CHANGES(offsets, "g/T/-1=-1");   /* frees the changes that wait to be read */
    CHECK_OK(cmq_offsets_commit(offsets, &of, 1));
    cmq_offsets_destroy(offsets);
}

/* ---- many ---- */

static void a_hundred_thousand_queues(void)
{
    enum { GROUPS = 50, QUEUES = 2000 };
    char group[32];
    const size_t before = mallinfo2().uordblks;
    cmq_offsets *offsets = make_offsets(0);
    for (int g = 0; g < GROUPS; g++) {
        snprintf(group, sizeof group, "group-%d", g);
        for (int q = 0; q < QUEUES; q++) commit(offsets, group, "topic", q, g * 10000 + q);
    }
    const size_t each = (mallinfo2().uordblks - before) / (GROUPS * QUEUES);
    if (!SANITIZED && each > 48) cmq_test_fail(__FILE__, __LINE__, "a queue takes %zu bytes", each);
    static cmq_offset_item list[1000];
    static uint8_t text[100000], seen[GROUPS][QUEUES];
    cmq_offset_items items = {.items = list, .capacity = 1000, .text = text, .text_bytes = sizeof text};
    int count = 0;
    for (cmq_offsets_take_changes(offsets, &items); items.count > 0; cmq_offsets_take_changes(offsets, &items)) {
        for (uint32_t i = 0; i < items.count; i++, count++) {
            const long long g = list[i].offset / 10000;
            snprintf(group, sizeof group, "group-%lld", g);
            CHECK_BYTES(list[i].group.data, list[i].group.bytes, group, strlen(group));
            CHECK_INT(list[i].offset % 10000, list[i].queue_id);
            CHECK_INT(seen[g][list[i].queue_id]++, 0);
        }
    }
    CHECK_INT(count, GROUPS * QUEUES);
    cmq_offsets_destroy(offsets);
}

/* Random commits, resets, pulls, removals, and changes taken in small steps, against arrays. */
enum { MODEL_GROUPS = 7, MODEL_TOPICS = 5, MODEL_QUEUES = 11 };

typedef struct model {
    int64_t offset[MODEL_GROUPS][MODEL_TOPICS][MODEL_QUEUES];
    int64_t written[MODEL_GROUPS][MODEL_TOPICS][MODEL_QUEUES];   /* the state of a reader that follows the changes */
    bool reset[MODEL_GROUPS][MODEL_TOPICS][MODEL_QUEUES];
} model;

static void follow(cmq_offsets *offsets, model *m, uint32_t capacity)
{
    uint8_t text[CMQ_OFFSETS_TEXT_MIN];
    cmq_offset_item list[16];
    cmq_offset_items items = {.items = list, .capacity = capacity, .text = text, .text_bytes = sizeof text};
    cmq_offsets_take_changes(offsets, &items);
    for (uint32_t i = 0; i < items.count; i++) {
        const int g = list[i].group.data[1] - '0', t = list[i].topic.data[1] - '0';
        if (list[i].queue_id >= 0) m->written[g][t][list[i].queue_id] = list[i].offset;
        for (int q = 0; list[i].queue_id < 0 && q < MODEL_QUEUES; q++) m->written[g][t][q] = CMQ_OFFSETS_NONE;
    }
}

static void random_work_as_in_a_model(void)
{
    unsigned seed = (unsigned)cmq_test_seed();
    cmq_offsets *offsets = make_offsets(MODEL_GROUPS * MODEL_TOPICS * MODEL_QUEUES * 4);
    model *m = calloc(1, sizeof *m);
    CHECK(m != NULL);
    memset(m->offset, 0xFF, sizeof m->offset);
    memset(m->written, 0xFF, sizeof m->written);
    for (int i = 0; i < 60000; i++) {
        const int g = rand_r(&seed) % MODEL_GROUPS, t = rand_r(&seed) % MODEL_TOPICS, q = rand_r(&seed) % MODEL_QUEUES,
                  act = rand_r(&seed) % 100;
        const char group[] = {'g', (char)('0' + g), '\0'}, topic[] = {'t', (char)('0' + t), '\0'};
        const cmq_offset_key of = key(group, topic, q);
        const int64_t offset = rand_r(&seed) % 1000;
        if (act < 60) {
            CHECK_STATUS(cmq_offsets_commit(offsets, &of, offset), m->reset[g][t][q] ? CMQ_AGAIN : CMQ_OK);
            if (!m->reset[g][t][q]) m->offset[g][t][q] = offset;
        } else if (act < 65) {
            CHECK_OK(cmq_offsets_reset(offsets, &of, offset, (cmq_offset_asker){0}));
            m->offset[g][t][q] = offset;
            m->reset[g][t][q] = true;
        } else if (act < 80) {
            CHECK_INT(cmq_offsets_take_reset(offsets, &of), m->reset[g][t][q] ? m->offset[g][t][q] : CMQ_OFFSETS_NONE);
            m->reset[g][t][q] = false;
        } else if (act < 84) {
            const bool any_group = act == 80, any_topic = act == 81;
            cmq_offsets_remove(offsets, any_group ? CMQ_SLICE_NONE : of.group, any_topic ? CMQ_SLICE_NONE : of.topic);
            for (int a = 0; a < MODEL_GROUPS; a++)
                for (int b = 0; b < MODEL_TOPICS; b++)
                    if ((any_group || a == g) && (any_topic || b == t)) {
                        memset(m->offset[a][b], 0xFF, sizeof m->offset[a][b]);
                        memset(m->reset[a][b], 0, sizeof m->reset[a][b]);
                    }
        } else if (act < 90) {
            follow(offsets, m, (uint32_t)(rand_r(&seed) % 16 + 1));
        }
        CHECK_INT(cmq_offsets_query(offsets, &of), m->offset[g][t][q]);
    }
    for (int i = 0; i < 10000; i++) follow(offsets, m, 1);
    CHECK_BYTES(m->written, sizeof m->written, m->offset, sizeof m->offset);
    cmq_offsets_destroy(offsets);
    free(m);
}

/* ---- threads ---- */

typedef struct worker {
    cmq_offsets *offsets;
    int number;
    int commits;
} worker;

static void *commit_all_the_time(void *argument)
{
    const worker *w = argument;
    for (int i = 0; i < w->commits; i++) {
        const cmq_offset_key of = key(i % 3 == 0 ? "g" : "h", "T", w->number * 100 + i % 50);
        CHECK_OK(cmq_offsets_pulled(w->offsets, &of, i + 1, i, NOBODY));
        CHECK_INT(cmq_offsets_query(w->offsets, &of), i);
    }
    return NULL;
}

static void loops_beside_the_control_thread(void)
{
    cmq_offsets *offsets = make_offsets(0);
    pthread_t threads[3];
    worker workers[3];
    int64_t last[400];
    memset(last, 0xFF, sizeof last);
    for (int i = 0; i < 3; i++) {
        workers[i] = (worker){.offsets = offsets, .number = i, .commits = SANITIZED ? 5000 : 50000};
        CHECK(pthread_create(&threads[i], NULL, commit_all_the_time, &workers[i]) == 0);
    }
    static uint8_t text[4096];
    cmq_offset_item list[64];
    cmq_offset_items items = {.items = list, .capacity = 64, .text = text, .text_bytes = sizeof text};
    bool joined = false;
    for (;;) {
        cmq_offsets_take_changes(offsets, &items);
        for (uint32_t i = 0; i < items.count; i++) {
            if (list[i].group.data[0] != 'g') continue;
            CHECK(list[i].offset > last[list[i].queue_id]);
            last[list[i].queue_id] = list[i].offset;
        }
        if (items.count == 0 && joined) break;
        if (items.count == 0 && cmq_offsets_version(offsets) == 3 * workers[0].commits / 500) {
            for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
            joined = true;
        }
    }
    for (int q = 0; q < 400; q++) CHECK_INT(last[q], query(offsets, "g", "T", q));
    cmq_offsets_destroy(offsets);
}

/* 64 groups of a topic of 65,536 queues took the whole table, and nobody else could commit. */
static void no_group_takes_the_shared_room(void)
{
    cmq_offsets *offsets;
    CHECK_OK(cmq_offsets_create(&offsets, 400000));
    cmq_offsets_share_out(offsets);
    char name[32];
    for (int group = 0; group < 20; group++) {
        snprintf(name, sizeof name, "greedy-%d", group);
        cmq_offset_key key = {.group = cmq_slice_of_text(name), .topic = cmq_slice_of_text("T")};
        cmq_status status = CMQ_OK;
        for (key.queue_id = 0; key.queue_id < 65536 && status == CMQ_OK; key.queue_id++)
            status = cmq_offsets_begin(offsets, &key, 0, (cmq_offset_asker){0});
        CHECK_STATUS(status, CMQ_ERR_LIMIT);
        /* Other groups have room. */
        for (int small = 0; small < 4; small++) {
            snprintf(name, sizeof name, "small-%d-%d", group, small);
            const cmq_offset_key own = {
                .group = cmq_slice_of_text(name), .topic = cmq_slice_of_text("T"), .queue_id = small};
            CHECK_OK(cmq_offsets_commit(offsets, &own, 5));
        }
    }
    /* Nobody's share counts against another group, however many there are. */
    for (int small = 0; small < 20000; small++) {
        snprintf(name, sizeof name, "many-%d", small);
        const cmq_offset_key own = {.group = cmq_slice_of_text(name), .topic = cmq_slice_of_text("T")};
        CHECK_OK(cmq_offsets_commit(offsets, &own, 5));
    }
    /* A group may use again the room that it gives back. */
    const cmq_slice greedy = cmq_slice_of_text("greedy-0");
    CHECK(cmq_offsets_remove(offsets, greedy, CMQ_SLICE_NONE) > 0);
    const cmq_offset_key again = {.group = greedy, .topic = cmq_slice_of_text("U")};
    CHECK_OK(cmq_offsets_begin(offsets, &again, 7, (cmq_offset_asker){0}));
    CHECK_OK(cmq_offsets_begin(offsets, &again, 3, (cmq_offset_asker){0}));
    CHECK_INT(cmq_offsets_query(offsets, &again), 7);
    cmq_offsets_destroy(offsets);
}

/* Commits of new groups, 64 queues each, until one is refused; returns how many were taken. */
static uint32_t take_all(cmq_offsets *offsets, uint32_t first_group, cmq_offset_asker asker)
{
    char name[32];
    for (uint32_t count = 0;; count++) {
        snprintf(name, sizeof name, "many-%u", first_group + count / 64);
        const cmq_offset_key key = {
            .group = cmq_slice_of_text(name), .topic = cmq_slice_of_text("T"), .queue_id = (int32_t)(count % 64)};
        const cmq_status status = cmq_offsets_commit_of(offsets, &key, 1, asker);
        if (status == CMQ_OK) continue;
        CHECK_STATUS(status, CMQ_ERR_LIMIT);
        return count;
    }
}

/* Groups have shares, and clients make groups: so clients of an address have one, too. */
static void no_client_takes_the_shared_budget(void)
{
    enum { ENTRIES = 400000 };
    cmq_offsets *offsets;
    cmq_offset_asker greedy = {.conn = 3, .network = 0x1234567890ABCDEF, .now_ns = 1},
                     other = {.conn = 4, .network = 0xFEDCBA0987654321, .now_ns = 1};
    const cmq_offset_key key = {.group = cmq_slice_of_text("g"), .topic = cmq_slice_of_text("U")};
    CHECK_OK(cmq_offsets_create(&offsets, ENTRIES));
    cmq_offsets_share_out(offsets);
    CHECK_INT(take_all(offsets, 0, greedy), ENTRIES / 5);   /* a quarter of what is left then */
    greedy.conn = 5;
    CHECK_INT(take_all(offsets, 10000, greedy), 0);
    CHECK_STATUS(cmq_offsets_begin(offsets, &key, 0, greedy), CMQ_ERR_LIMIT);
    CHECK_STATUS(cmq_offsets_pulled(offsets, &key, 0, CMQ_OFFSETS_NONE, greedy), CMQ_ERR_LIMIT);
    CHECK_STATUS(cmq_offsets_reset(offsets, &key, 0, greedy), CMQ_ERR_LIMIT);
    CHECK_OK(cmq_offsets_commit_of(offsets, &key, 1, other));
    CHECK_OK(cmq_offsets_commit_of(offsets, &key, 2, greedy));   /* what is there stays open to all */
    greedy.now_ns += CMQ_OFFSETS_MADE_NS;
    const uint32_t later = take_all(offsets, 20000, greedy);
    CHECK(later > 0 && later < ENTRIES / 10);
    CHECK(take_all(offsets, 30000, other) > ENTRIES / 10);
    cmq_offsets_destroy(offsets);
}

CMQ_TEST_MAIN(CMQ_TEST(no_group_takes_the_shared_room), CMQ_TEST(no_client_takes_the_shared_budget),
              CMQ_TEST(commits_overwrite), CMQ_TEST(an_advance_never_goes_back), CMQ_TEST(names_do_not_run_together),
              CMQ_TEST(wrong_keys_are_refused), CMQ_TEST(a_reset_waits_for_the_next_pull),
              CMQ_TEST(former_owner_does_not_undo_a_reset),
              CMQ_TEST(owner_that_missed_a_reset_gets_it_though_another_took_it),
              CMQ_TEST(reset_is_over_for_a_client_that_chose_to_be_elsewhere),
              CMQ_TEST(resets_beyond_the_fences_end_with_the_first_pull_that_gets_one),
              CMQ_TEST(removal_takes_pending_resets_along), CMQ_TEST(changes_come_once_and_in_order),
              CMQ_TEST(removals_are_listed_before_later_changes), CMQ_TEST(the_version_steps_every_500_commits),
              CMQ_TEST(entries_are_limited), CMQ_TEST(a_hundred_thousand_queues), CMQ_TEST(random_work_as_in_a_model),
              CMQ_TEST(loops_beside_the_control_thread))
