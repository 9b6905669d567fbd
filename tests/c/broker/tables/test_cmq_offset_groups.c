/* Tests csrc/broker/tables/cmq_offset_groups.c: references by name, growth, the last release. Threads: no. */
#include "broker/tables/cmq_offset_groups.h"

#include <stdio.h>

#include "support/cmq_test.h"

#define COUNT 1000

static cmq_offset_group *refer(cmq_offset_groups *groups, const char *name)
{
    cmq_offset_group *group;
    CHECK_OK(cmq_offset_groups_refer(groups, cmq_slice_of_text(name), &group));
    return group;
}

static void each_name_has_one_group(void)
{
    cmq_offset_groups groups = {.buckets = NULL};
    CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text("a")) == NULL);
    cmq_offset_group *a = refer(&groups, "a");
    CHECK(refer(&groups, "a") == a);
    CHECK(refer(&groups, "ab") != a);
    CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text("a")) == a);
    CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text("b")) == NULL);
    cmq_offset_groups_release(&groups, a);
    CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text("a")) == a);
    cmq_offset_groups_release(&groups, a);
    CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text("a")) == NULL);
    CHECK_INT(groups.count, 1);
    cmq_offset_groups_free(&groups);
}

static void groups_stay_where_they_are_while_the_table_grows(void)
{
    cmq_offset_groups groups = {.buckets = NULL};
    cmq_offset_group *made[COUNT];
    char name[16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "g%d", i);
        made[i] = refer(&groups, name);
        made[i]->entries = (uint32_t)i;
    }
    CHECK(groups.bucket_count >= COUNT);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "g%d", i);
        CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text(name)) == made[i]);
        CHECK_INT(made[i]->entries, i);
    }
    for (int i = 0; i < COUNT; i += 2) {
        made[i]->entries = 0;
        cmq_offset_groups_release(&groups, made[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "g%d", i);
        CHECK(cmq_offset_groups_find(&groups, cmq_slice_of_text(name)) == (i % 2 == 0 ? NULL : made[i]));
    }
    CHECK_INT(groups.count, COUNT / 2);
    cmq_offset_groups_free(&groups);
}

CMQ_TEST_MAIN(CMQ_TEST(each_name_has_one_group), CMQ_TEST(groups_stay_where_they_are_while_the_table_grows))
