/* cmq_test: see cmq_test.h. */
#include "support/cmq_test.h"

#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEST_DIRECTORIES_MAX 64
#define SEED_USUAL 20250919   /* the Python tests have the same */

static uint64_t seed, random_state;
static const char *running;
static char directories[TEST_DIRECTORIES_MAX][256];
static size_t directory_count;

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static void remove_directories(void)
{
    while (directory_count > 0) nftw(directories[--directory_count], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *cmq_test_directory(void)
{
    if (directory_count == TEST_DIRECTORIES_MAX)
        cmq_test_fail(__FILE__, __LINE__, "more than %d directories", TEST_DIRECTORIES_MAX);
    const char *parent = getenv("TMPDIR");
    char *into = directories[directory_count];
    snprintf(into, sizeof directories[0], "%s/cmq-test-XXXXXX", parent != NULL ? parent : "/tmp");
    if (mkdtemp(into) == NULL) cmq_test_fail(__FILE__, __LINE__, "mkdtemp %s failed", into);
    directory_count++;
    return into;
}

void cmq_test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "FAILED %s at %s:%d: ", running, file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n  repeat with CMQ_SEED=%llu\n", (unsigned long long)seed);
    exit(1);
}

void cmq_test_check_bytes(const char *file, int line, const void *actual, size_t actual_bytes, const void *expected,
                          size_t expected_bytes)
{
    if (actual_bytes != expected_bytes)
        cmq_test_fail(file, line, "%zu bytes, expected %zu", actual_bytes, expected_bytes);
    for (size_t i = 0; i < actual_bytes; i++)
        if (((const uint8_t *)actual)[i] != ((const uint8_t *)expected)[i])
            cmq_test_fail(file, line, "byte %zu is %02x, expected %02x", i, ((const uint8_t *)actual)[i],
                          ((const uint8_t *)expected)[i]);
}

uint64_t cmq_test_chosen_seed(void)
{
    const char *given = getenv("CMQ_SEED");
    if (given != NULL) return strtoull(given, NULL, 10);
    return getenv("CMQ_LONG") != NULL ? (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid() : SEED_USUAL;
}

uint64_t cmq_test_seed(void) { return seed; }

uint64_t cmq_test_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

uint64_t cmq_test_random_below(uint64_t bound) { return cmq_test_random() % bound; }

/* Some supervisors ignore SIGCHLD, whose children nobody can wait for, or SIGPIPE, or block signals; programs inherit
 * that. */
static void forget_inherited_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
}

int cmq_test_run(int argc, char **argv, const cmq_test_case *cases, size_t count)
{
    forget_inherited_signals();
    seed = cmq_test_chosen_seed();
    size_t ran = 0;
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strstr(cases[i].name, argv[1]) == NULL) continue;
        running = cases[i].name;
        random_state = seed * 0x9E3779B97F4A7C15u | 1;
        cases[i].run();
        remove_directories();
        printf("ok %s\n", cases[i].name);
        ran++;
    }
    if (ran == 0) {
        fprintf(stderr, "no case matches %s\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    return 0;
}
