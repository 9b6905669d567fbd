/* Tests of cmq_follower: a view that lies far behind, a clock that stepped back, waits without end. */
#include <stdio.h>
#include <string.h>

#include "store/cmq_store.h"
#include "store/record/cmq_record.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

static cmq_store *open_follower(const char *root)
{
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

/* Retention overtook the follower: it must report that, not stop for ever. */
static void test_a_view_that_retention_overtook(void)
{
    const char *root = kit_directory();
    cmq_store *store = kit_open_at(root);
    kit_append(store, "T", 0, "first", NULL, NULL);
    cmq_store *follower = open_follower(root);
    kit_append_many(store, "T", "message", 600);
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    kit_close(follower);
    follower = open_follower(root);
    CHECK_INT(cmq_store_confirmed(follower), cmq_store_confirmed(store));
    kit_close(follower);
    kit_close(store);
}

/* A Java broker's clock had stepped back: the follower sees messages that our writer confirms behind it all the
 * same. */
static void test_a_clock_that_stepped_back(void)
{
    const char *root = kit_directory();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "a", 2);
    const int64_t middle = cmq_store_confirmed(store);
    kit_append_many(store, "T", "b", 2);
    kit_close(store);
    uint8_t earlier[8];   /* the store time, which no CRC covers; of records with IPv4 hosts */
    cmq_store_i64(earlier, atomic_load(&kit_now_ms) - 60000);
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), middle + 56, earlier, sizeof earlier);
    store = kit_open_at(root);
    kit_remove_tree(kit_path(root, "cometmq/point"));   /* the follower walks from the beginning */
    cmq_store *follower = open_follower(root);
    CHECK_TEXT(kit_read_topic(follower, "T"), "a0 a1 b0 b1");
    kit_append_many(store, "T", "c", 2);
    CHECK_TEXT(kit_read_topic(follower, "T"), "a0 a1 b0 b1 c0 c1");
    kit_close(follower);
    kit_close(store);
}

static void test_a_wait_of_any_length(void)
{
    cmq_store *store = kit_open_at(kit_directory());
    kit_append_many(store, "T", "a", 2);
    CHECK_OK(cmq_store_wait_more(store, 0, INT64_MAX));
    CHECK_STATUS(cmq_store_wait_more(store, cmq_store_confirmed(store), 0), CMQ_AGAIN);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_view_that_retention_overtook), CMQ_TEST(test_a_clock_that_stepped_back),
              CMQ_TEST(test_a_wait_of_any_length))
