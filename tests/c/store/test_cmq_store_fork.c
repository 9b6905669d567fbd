/* Tests of cmq_store's life: what a forked child may do. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/cmq_store.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

/* The store's threads slept on their condition when the process forked: in the child nobody ever wakes them. */
static void test_a_forked_child_abandons(void)
{
    cmq_store_options options = kit_options(kit_directory());
    options.background = true;
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "T", "m", 3);
    for (int i = 0; i < 5; i++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            cmq_store_abandon(store);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    kit_append_many(store, "T", "n", 2);
    CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1 m2 n0 n1");
    kit_close(store);
}

/* Files that the parent has made ahead are the parent's. */
static void test_a_forked_child_removes_nothing(void)
{
    const char *root = kit_directory();
    cmq_store *store = kit_open_at(root);
    kit_append(store, "T", 0, "m", NULL, "first");   /* the index has made room for more */
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        cmq_store_abandon(store);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    for (int i = 0; i < 200; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        kit_append(store, "T", 0, "m", NULL, key);
    }
    kit_close(store);
    store = kit_open_at(root);
    kit_found *found = kit_found_make(1);
    for (int i = 0; i < 200; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &found->batch));
        CHECK_INT(found->batch.count, 1);
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_forked_child_abandons), CMQ_TEST(test_a_forked_child_removes_nothing))
