/* cmq_repair_kit: see cmq_repair_kit.h. */
#include "support/cmq_repair_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cmq_appended kit_placed[MESSAGES];
cmq_repair_report kit_report;

void kit_body_of(int i, char into[160]) { snprintf(into, 160, "body-%d-%0*d", i, 20 + i % 90, i); }

void kit_fill(cmq_store *store)
{
    for (int i = 0; i < MESSAGES; i++) {
        char body[160], keys[40];
        kit_body_of(i, body);
        snprintf(keys, sizeof keys, "k%d common%d", i, i % 5);
        kit_placed[i] = kit_append(store, "a", 0, body, i % 3 == 0 ? "red" : "blue", keys);
        if (i % 4 == 0) kit_append(store, "b", i % 8 == 0 ? 0 : 3, body, NULL, NULL);
        atomic_fetch_add(&kit_now_ms, 7);
    }
}

const char *kit_new_root(void)
{
    static char kept[CMQ_PATH_BYTES];
    strcpy(kept, kit_path(kit_directory(), "store"));
    return kept;
}

const char *kit_make_store(void)
{
    const char *root = kit_new_root();
    cmq_store *store = kit_open_at(root);
    kit_fill(store);
    kit_close(store);
    return root;
}

const char *kit_segment_of(const char *root, int64_t phy)
{
    char name[64];
    snprintf(name, sizeof name, "commitlog/%020" PRId64, phy / KIT_SEGMENT_BYTES * KIT_SEGMENT_BYTES);
    return kit_path(root, name);
}

void kit_damage_record(const char *root, int64_t phy)
{
    kit_flip(kit_segment_of(root, phy), phy % KIT_SEGMENT_BYTES + CMQ_RECORD_BYTES_MIN, 0x40);
}

cmq_status kit_try_repair(const char *root, cmq_repair_options options)
{
    const cmq_store_options store = kit_options(root);
    if (options.store == NULL) options.store = &store;
    return cmq_store_repair(&options, &kit_report);
}

void kit_repair(const char *root)
{
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){0}));
    CHECK(kit_report.complete);
}

static bool keep_problem(void *context, const cmq_problem *problem)
{
    int *counts = context;
    counts[problem->kind]++;
    if (getenv("CMQ_SHOW") != NULL)
        printf("%s at %" PRId64 ", %s/%d@%" PRId64 ": %s\n", cmq_problem_name(problem->kind), problem->physical_offset,
               problem->topic == NULL ? "-" : problem->topic, problem->queue_id, problem->queue_offset, problem->text);
    return true;
}

const int *kit_verify(const char *root, cmq_verified *verified_out)
{
    static int counts[CMQ_PROBLEM_TIME + 1];
    memset(counts, 0, sizeof counts);
    const cmq_store_options options = {.path = root, .read_only = true, .clock = kit_clock()};
    cmq_store *store = kit_open(&options);
    const cmq_verify_options verify_options = {.problem = keep_problem, .context = counts};
    CHECK_OK(cmq_store_verify(store, &verify_options, verified_out));
    CHECK(verified_out->complete);
    kit_close(store);
    return counts;
}

void kit_check_healthy(const char *root)
{
    cmq_verified verified;
    const int *counts = kit_verify(root, &verified);
    for (int kind = 0; kind <= CMQ_PROBLEM_TIME; kind++)
        if (counts[kind] != 0)
            cmq_test_fail(__FILE__, __LINE__, "%d times %s", counts[kind], cmq_problem_name((cmq_problem_kind)kind));
    CHECK_INT(verified.keys_missing, 0);
    CHECK_INT(verified.index_entries, verified.keys);
}
