/* Tests csrc/base/cmq_map_guard.c: lost pages of guarded mappings read as zeros and are known; every other fault goes
 * where it went before.
 *
 * Threads: yes
 * A page is lost by cutting its file. Faults that end a process are tried in a child.
 */
#include "base/cmq_map_guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cmq_file.h"
#include "support/cmq_test.h"

#define PAGES 8u
#define READERS 4

static size_t page;
static cmq_fs *fs;

typedef struct mapping {
    cmq_file *file;
    uint8_t *data;
} mapping;

static char path[CMQ_PATH_BYTES];

static cmq_file *make(const char *name)
{
    cmq_file *file;
    page = (size_t)sysconf(_SC_PAGESIZE);
    fs = cmq_fs_posix();
    CHECK_OK(cmq_path_join(path, cmq_test_directory(), name));
    CHECK_OK(cmq_file_open(fs, path, CMQ_OPEN_CREATE, &file));
    uint8_t *ones = malloc(PAGES * page);
    CHECK(ones != NULL);
    memset(ones, 1, PAGES * page);
    CHECK_OK(cmq_file_write(file, 0, ones, PAGES * page));
    free(ones);
    return file;
}

static mapping map(const char *name, bool writable)
{
    mapping of = {.file = make(name)};
    CHECK_OK(cmq_file_map(of.file, 0, PAGES * page, writable, &of.data));
    return of;
}

static void unmap(mapping *of)
{
    cmq_file_unmap(of->file, of->data, PAGES * page);
    cmq_file_close(of->file);
}

/* The handler of another thread may map lost pages meanwhile: to ThreadSanitizer, a write beside these reads. */
__attribute__((no_sanitize("thread"))) static uint32_t ones_of(const mapping *of, size_t from_page, size_t end_page)
{
    uint32_t sum = 0;
    for (size_t i = from_page * page; i < end_page * page; i++) sum += ((const volatile uint8_t *)of->data)[i];
    return sum;
}

/* Does a child that runs `what` end in its middle? By a signal, or, under a sanitizer, by its report. */
static bool is_fatal(void (*what)(void))
{
    int status;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        what();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void lost_pages_read_as_zeros_and_are_known(void)
{
    mapping of = map("cut", false);
    CHECK_OK(cmq_file_resize(of.file, 5 * page));
    CHECK_INT(ones_of(&of, 0, 5), 5 * page);
    CHECK(!cmq_map_guard_is_lost(of.data, PAGES * page));
    CHECK_INT(ones_of(&of, 6, 7), 0);
    CHECK_INT(ones_of(&of, 5, 6), 0);
    CHECK_INT(ones_of(&of, 7, 8), 0);
    CHECK(cmq_map_guard_any());
    CHECK(!cmq_map_guard_is_lost(of.data, 5 * page));
    CHECK(cmq_map_guard_is_lost(of.data, 5 * page + 1));
    for (size_t i = 5; i < PAGES; i++) CHECK(cmq_map_guard_is_lost(of.data + i * page + 7, 1));
    unmap(&of);
}

static void unmapped_range_forgets_its_lost_pages(void)
{
    mapping of = map("cut", false);
    uint8_t *const place = of.data;
    CHECK_OK(cmq_file_resize(of.file, page));
    CHECK_INT(ones_of(&of, 3, 5), 0);
    CHECK(cmq_map_guard_is_lost(place, PAGES * page));
    unmap(&of);
    CHECK(!cmq_map_guard_is_lost(place, PAGES * page));
}

static void *read_all(void *context)
{
    return ones_of(context, 0, PAGES) == 2 * page ? NULL : context;
}

static void readers_on_many_threads_lose_the_same_pages(void)
{
    mapping of = map("cut", false);
    pthread_t readers[READERS];
    void *failed;
    CHECK_OK(cmq_file_resize(of.file, 2 * page));
    for (int i = 0; i < READERS; i++) CHECK(pthread_create(&readers[i], NULL, read_all, &of) == 0);
    for (int i = 0; i < READERS; i++) {
        CHECK(pthread_join(readers[i], &failed) == 0);
        CHECK(failed == NULL);
    }
    CHECK(!cmq_map_guard_is_lost(of.data, 2 * page));
    CHECK(cmq_map_guard_is_lost(of.data + 2 * page, 1));
    unmap(&of);
}

static void write_lost(void)
{
    mapping of = map("written", true);
    CHECK_OK(cmq_file_resize(of.file, page));
    *(volatile uint8_t *)(of.data + 3 * page) = 1;
}

static void write_behind_a_read(void)
{
    mapping of = map("read", true);
    CHECK_OK(cmq_file_resize(of.file, page));
    CHECK_INT(ones_of(&of, 3, 4), 0);
    *(volatile uint8_t *)(of.data + 3 * page) = 1;
}

static void stores_into_lost_pages_end_the_process(void)
{
    CHECK(is_fatal(write_lost));
    CHECK(is_fatal(write_behind_a_read));
}

static void touch_foreign(void)
{
    mapping of = map("foreign", false);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    const volatile uint8_t *mapped = mmap(NULL, page, PROT_READ, MAP_SHARED, fileno(file), 0);
    CHECK_OK(cmq_file_resize(of.file, 0));
    (void)*mapped;
}

static void leave_well(int number)
{
    (void)number;
    _exit(0);
}

static void touch_foreign_with_handler(void)
{
    signal(SIGBUS, leave_well);   /* over ours, which the next mapping puts on top again */
    touch_foreign();
    _exit(1);
}

static struct sigaction below;
static int chained;

/* As the handler of a second copy of this file, which puts itself on top and passes on to the one below. */
static void chain(int number, siginfo_t *info, void *context)
{
    if (++chained > 2) _exit(0);
    below.sa_sigaction(number, info, context);
}

static void touch_foreign_in_a_ring(void)
{
    struct sigaction over = {.sa_sigaction = chain, .sa_flags = SA_SIGINFO};
    mapping of = map("before", false);   /* ours is installed, and below */
    CHECK(sigaction(SIGBUS, &over, &below) == 0);
    CHECK((below.sa_flags & SA_SIGINFO) != 0);
    touch_foreign();   /* its mapping puts ours on top again */
    unmap(&of);
}

static void send_to_self(void) { raise(SIGBUS); }

static void foreign_faults_go_to_the_handler_before(void)
{
    CHECK(is_fatal(touch_foreign));
    CHECK(!is_fatal(touch_foreign_with_handler));
    CHECK(is_fatal(send_to_self));
}

static void handlers_that_chain_in_a_ring_end_at_the_first_one(void) { CHECK(is_fatal(touch_foreign_in_a_ring)); }

static void guards_survive_thousands_of_mappings(void)
{
    enum { MAPPINGS = 3000 };
    static uint8_t *at[MAPPINGS];
    mapping of = map("many", false);
    for (int i = 0; i < MAPPINGS; i++) CHECK_OK(cmq_file_map(of.file, 0, PAGES * page, false, &at[i]));
    CHECK_OK(cmq_file_resize(of.file, 7 * page));
    for (int i = 0; i < MAPPINGS; i += 3) {
        CHECK_INT(((const volatile uint8_t *)at[i])[7 * page], 0);
        CHECK(cmq_map_guard_is_lost(at[i], PAGES * page));
        cmq_file_unmap(of.file, at[i], PAGES * page);
    }
    for (int i = 0; i < MAPPINGS; i++) {
        if (i % 3 == 0) continue;
        CHECK(!cmq_map_guard_is_lost(at[i], 7 * page));
        cmq_file_unmap(of.file, at[i], PAGES * page);
    }
    unmap(&of);
}

/* More mappings with lost pages than the table has entries, as on a disk that went away. */
static void thousands_of_mappings_lose_pages(void)
{
    enum { MAPPINGS = 1100 };
    static uint8_t *at[MAPPINGS];
    mapping of = map("gone", false);
    for (int i = 0; i < MAPPINGS; i++) CHECK_OK(cmq_file_map(of.file, 0, PAGES * page, false, &at[i]));
    CHECK_OK(cmq_file_resize(of.file, page));
    for (int i = 0; i < MAPPINGS; i++) {
        CHECK_INT(((const volatile uint8_t *)at[i])[3 * page], 0);
        CHECK_INT(((const volatile uint8_t *)at[i])[5 * page], 0);
    }
    for (int i = 0; i < MAPPINGS; i++) {
        CHECK(cmq_map_guard_is_lost(at[i] + 3 * page, 1));
        CHECK(cmq_map_guard_is_lost(at[i] + 5 * page, page));
        CHECK(!cmq_map_guard_is_lost(at[i], page));
        CHECK(!cmq_map_guard_is_lost(at[i] + 6 * page, page));
    }
    for (int i = 0; i < MAPPINGS; i++) cmq_file_unmap(of.file, at[i], PAGES * page);
    for (int i = 0; i < MAPPINGS; i++) CHECK(!cmq_map_guard_is_lost(at[i], PAGES * page));
    unmap(&of);
}

CMQ_TEST_MAIN(CMQ_TEST(lost_pages_read_as_zeros_and_are_known), CMQ_TEST(unmapped_range_forgets_its_lost_pages),
              CMQ_TEST(readers_on_many_threads_lose_the_same_pages), CMQ_TEST(stores_into_lost_pages_end_the_process),
              CMQ_TEST(foreign_faults_go_to_the_handler_before),
              CMQ_TEST(handlers_that_chain_in_a_ring_end_at_the_first_one),
              CMQ_TEST(guards_survive_thousands_of_mappings), CMQ_TEST(thousands_of_mappings_lose_pages))
