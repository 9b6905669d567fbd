/* fuzz_timer_files: a store with timers waiting, one of whose timer files (wheel, log, check) has bytes of the input in
 * it, opened and run until all is due.
 *
 * Input: the file's number (above 127: time passes before the opening), then patches: place (two bytes, of a wheel from
 *        the slots in use on; above 0x7FFF from the file's end), length (one byte), bytes.
 *
 * Properties: no crash, no endless walk; delivered messages were parked, and come at most once unless the timers were
 *             entered again from the queue.
 * Run:        by replay_main.c over corpus/timer_files and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "broker/timer/cmq_timer.h"
#include "broker/timer/cmq_timer_log.h"
#include "broker/timer/cmq_timer_wheel.h"
#include "support/cmq_store_kit.h"

#define LOG_FILE_BYTES (16 + 10 * CMQ_TIMER_UNIT_BYTES + 7)
#define TIMERS 15
#define STEPS_MAX 2000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"timerwheel", "timerlog/00000000000000000000", "timerlog/00000000000000000543",
                                    "config/timercheck"};
#define FILES (sizeof names / sizeof *names)

static char home[512], root[CMQ_PATH_BYTES], trial[CMQ_PATH_BYTES];
static int64_t began_ms;

static void remove_home(void)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    if (system(command) != 0) perror(home);
}

static cmq_timer *make_timer(cmq_store *store, cmq_status *status_out)
{
    cmq_timer *timer = NULL;
    const cmq_timer_options options = {
        .store = store, .clock = kit_clock(), .manual = true, .log_file_bytes = LOG_FILE_BYTES};
    *status_out = cmq_timer_create(&timer, &options);
    if (*status_out == CMQ_OK) CHECK_OK(cmq_timer_start(timer));
    return timer;
}

static void park(cmq_store *store, int number)
{
    const cmq_timer_options options = {0};
    cmq_timer_parked parked;
    cmq_appended appended;
    char body[8], unique[32];
    snprintf(body, sizeof body, "%c", 'a' + number);
    snprintf(unique, sizeof unique, "UNIQ_KEY\001%s\002", body);
    CHECK_OK(cmq_timer_park(&options, kit_slice("T"), 2, began_ms + 3000 + number % 3 * 1000, began_ms, &parked));
    const cmq_append append = {.common = {.topic = parked.topic, .queue_id = parked.queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(unique)},
                               .properties_more = {.kind = CMQ_COLUMN_ONE, .one = parked.extra}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

static void stop(cmq_timer *timer)
{
    (void)!cmq_timer_stop(timer);
    cmq_timer_destroy(timer);
}

static void prepare(void)
{
    cmq_status status;
    int64_t due_ms;
    snprintf(home, sizeof home, "%s/cmq-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CMQ_ASSERT(mkdtemp(home) != NULL);
    atexit(remove_home);
    snprintf(root, sizeof root, "%s/store", home);
    snprintf(trial, sizeof trial, "%s/trial", home);
    kit_set_clock();
    began_ms = atomic_load(&kit_now_ms) / 100000 * 100000;
    atomic_store(&kit_now_ms, began_ms);
    const cmq_store_options options = kit_options(root);
    cmq_store *store = kit_open(&options);
    cmq_timer *timer = make_timer(store, &status);
    CHECK_OK(status);
    for (int i = 0; i < TIMERS; i++) park(store, i);
    CHECK_OK(cmq_timer_step(timer, &due_ms));
    stop(timer);
    kit_close(store);
}

/* Where patches of a wheel begin: its slots in use. */
static int64_t base_of(size_t file) { return file == 0 ? began_ms / 1000 % CMQ_TIMER_SLOTS * 32 : 0; }

static void patch(size_t file, const uint8_t *data, size_t size)
{
    char path[CMQ_PATH_BYTES];
    CMQ_ASSERT(cmq_path_join(path, trial, names[file]) == CMQ_OK);
    const int64_t bytes = kit_file_bytes(path);
    while (size >= 4) {
        const int64_t place = (int64_t)data[0] << 8 | data[1];
        size_t count = data[2];
        data += 3;
        size -= 3;
        if (count > size) count = size;
        const int64_t at = place < 0x8000 ? base_of(file) + place : bytes - (place - 0x8000);
        if (at >= 0 && at + (int64_t)count <= bytes && count > 0) kit_write_bytes(path, at, data, count);
        data += count;
        size -= count;
    }
}

static void check_delivered(cmq_store *store, cmq_timer *timer)
{
    uint32_t seen = 0;
    cmq_timer_counters counters;
    cmq_timer_count(timer, &counters);
    if (cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 2) == NULL) return;
    for (const char *at = kit_read_topic(store, "T"); *at != '\0'; at++) {
        if (*at == ' ') continue;
        CMQ_ASSERT(*at >= 'a' && *at < 'a' + TIMERS && ((seen & 1u << (*at - 'a')) == 0 || counters.remade));
        seen |= 1u << (*at - 'a');
    }
}

static void use(void)
{
    cmq_status status;
    const cmq_store_options options = kit_options(trial);
    cmq_store *store = kit_open(&options);
    cmq_timer *timer = make_timer(store, &status);
    if (status == CMQ_OK) {
        int64_t due_ms = 0;
        for (int i = 0; i < STEPS_MAX && status == CMQ_OK && due_ms != INT64_MAX; i++) {
            atomic_fetch_add(&kit_now_ms, 500);
            status = cmq_timer_step(timer, &due_ms);
            if (i > 20 && due_ms > atomic_load(&kit_now_ms) + 1000000) break;
        }
        check_delivered(store, timer);
        stop(timer);
    }
    (void)!cmq_store_close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    if (home[0] == '\0') prepare();
    atomic_store(&kit_now_ms, began_ms + (data[0] >= 128 ? 60000 : 100));
    kit_remove_tree(trial);
    kit_copy_tree(root, trial);
    patch((data[0] & 127u) % FILES, data + 1, size - 1);
    use();
    return 0;
}
