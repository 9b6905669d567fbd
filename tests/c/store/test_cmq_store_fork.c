/* Tests of cmq_store's life: the calls that a forked child may make, and another process. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
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

static int exit_code_of(pid_t child)
{
    int status;
    CHECK(child >= 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The status with which another process opens the store for writing. */
static int opened_elsewhere(const char *root)
{
    const pid_t child = fork();
    if (child == 0) {
        cmq_store *second = NULL;
        const cmq_store_options options = kit_options(root);
        const cmq_status status = cmq_store_open(&second, &options);
        _exit(-status);
    }
    return -exit_code_of(child);
}

static bool broker_would_get_the_lock(const char *root)
{
    const pid_t child = fork();
    if (child == 0) {
        struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        _exit(fcntl(open(kit_path(root, "lock"), O_RDWR), F_SETLK, &wanted) == 0);
    }
    return exit_code_of(child) == 1;
}

/* Every file of the store opened and closed, as shutil.copytree does. */
static void copy_in_this_process(const char *root)
{
    DIR *directory = opendir(root);
    CHECK(directory != NULL);
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (entry->d_type != DT_REG) continue;
        const int descriptor = open(kit_path(root, entry->d_name), O_RDONLY);
        CHECK(descriptor >= 0);
        close(descriptor);
    }
    closedir(directory);
}

static void test_a_copy_in_the_writers_process_lets_no_second_writer_in(void)
{
    const char *root = kit_directory();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "m", 3);
    copy_in_this_process(root);
    CHECK(broker_would_get_the_lock(root));   /* it is lost */
    CHECK_INT(opened_elsewhere(root), CMQ_ERR_LOCKED);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK(!broker_would_get_the_lock(root));
    kit_append_many(store, "T", "n", 2);
    CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1 m2 n0 n1");
    kit_close(store);
    CHECK_INT(opened_elsewhere(root), CMQ_OK);
}

static void test_a_writer_that_lost_its_lock_to_a_broker_is_fenced(void)
{
    const char *root = kit_directory();
    int told[2];
    CHECK(pipe(told) == 0);
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "m", 3);
    copy_in_this_process(root);
    const pid_t broker = fork();
    if (broker == 0) {
        struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        const bool got = fcntl(open(kit_path(root, "lock"), O_RDWR), F_SETLK, &wanted) == 0;
        if (!got || write(told[1], "b", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    CHECK(read(told[0], &byte, 1) == 1);
    CHECK_STATUS(cmq_store_maintain(store, false), CMQ_ERR_FENCED);
    CHECK(cmq_store_is_fenced(store));
    CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1 m2");
    CHECK(kill(broker, SIGKILL) == 0 && waitpid(broker, NULL, 0) == broker);
    cmq_store_abandon(store);
    close(told[0]);
    close(told[1]);
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_copy_in_the_writers_process_lets_no_second_writer_in),
              CMQ_TEST(test_a_writer_that_lost_its_lock_to_a_broker_is_fenced), CMQ_TEST(test_a_forked_child_abandons),
              CMQ_TEST(test_a_forked_child_removes_nothing))
