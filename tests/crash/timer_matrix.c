/* timer_matrix: every used byte of the timers' files (the wheel, its log, the check) is damaged in turn, and then time
 * passes: each waiting timer is delivered, not before its time, or an error or a counter reports it. Never silence.
 *
 * Two stores with timers in three log files, some delivered, one recalled: one stopped, one killed, which is opened at
 * once and when all timers are due. The damages are some of flip_matrix.c: a flipped bit, 512 bytes of zeros, a sector
 * that repeats the one before, an end, a missing file. Slots of the wheel and units of the log have no checksum, as in
 * RocketMQ's format; opening compares them with each other and with the queue of parked records.
 *
 * CMQ_LONG: all eight bits of each byte; without it one bit of some bytes, by CMQ_SEED.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/timer/cmq_timer.h"
#include "broker/timer/cmq_timer_log.h"
#include "broker/timer/cmq_timer_wheel.h"
#include "support/cmq_store_kit.h"

#define LOG_FILE_BYTES (16 + 10 * CMQ_TIMER_UNIT_BYTES + 7)
#define SECTOR 512

enum { OPENINGS = 3, TIMERS = 24, RECALLED = 11, DONE = 6, SLOTS_USED = 12, SECONDS = 40 };

typedef enum kind { FLIP, ZERO, REPEAT, CUT, REMOVE, KINDS } kind;
static const char *const kind_names[KINDS] = {"flip", "zero", "repeat", "cut", "remove"};

typedef enum outcome { WHOLE, AGAIN, REFUSED, REPORTED, SILENT, OUTCOMES } outcome;
static const char *const outcome_names[OUTCOMES] = {"all once", "some again", "refused", "reported", "silent"};

static const char *const names[] = {"timerwheel", "timerlog/00000000000000000000", "timerlog/00000000000000000543",
                                    "timerlog/00000000000000001086", "config/timercheck"};
#define FILES (sizeof names / sizeof *names)

static const char *const opening_names[OPENINGS] = {"stopped", "killed", "killed, opened late"};
static char root[CMQ_PATH_BYTES], bases[OPENINGS][CMQ_PATH_BYTES], trial[CMQ_PATH_BYTES];
static int64_t began_ms, due[TIMERS], opened_ms[OPENINGS];
static uint64_t counts[FILES][KINDS][OUTCOMES];

static cmq_status CMQ_MUST_CHECK try_timer(cmq_store *store, cmq_timer **timer_out)
{
    const cmq_timer_options options = {
        .store = store, .clock = kit_clock(), .manual = true, .log_file_bytes = LOG_FILE_BYTES};
    const cmq_status status = cmq_timer_create(timer_out, &options);
    if (status == CMQ_OK) CHECK_OK(cmq_timer_start(*timer_out));
    return status;
}

static void send(cmq_store *store, const char *body, const char *properties, int64_t deliver_ms)
{
    const cmq_timer_options options = {0};
    cmq_timer_parked parked;
    cmq_appended appended;
    CHECK_OK(cmq_timer_park(&options, kit_slice("T"), 0, deliver_ms, atomic_load(&kit_now_ms), &parked));
    const cmq_append append = {.common = {.topic = parked.topic, .queue_id = parked.queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(properties)},
                               .properties_more = {.kind = CMQ_COLUMN_ONE, .one = parked.extra}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

static void step(cmq_timer *timer)
{
    int64_t due_ms;
    CHECK_OK(cmq_timer_step(timer, &due_ms));
}

static void make_bases(void)
{
    char body[16], properties[96];
    const char *directory = kit_directory();
    kit_set_clock();
    began_ms = atomic_load(&kit_now_ms) / 100000 * 100000;
    atomic_store(&kit_now_ms, began_ms);
    CHECK_OK(cmq_path_join(root, directory, "store"));
    CHECK_OK(cmq_path_join(bases[0], directory, "stopped"));
    CHECK_OK(cmq_path_join(bases[1], directory, "killed"));
    CHECK_OK(cmq_path_join(bases[2], directory, "killed"));
    CHECK_OK(cmq_path_join(trial, directory, "trial"));
    cmq_store *store = kit_open_at(root);
    cmq_timer *timer;
    CHECK_OK(try_timer(store, &timer));
    for (int i = 0; i < TIMERS; i++) {
        snprintf(body, sizeof body, "%d", i);
        snprintf(properties, sizeof properties, "UNIQ_KEY\001%s\002", body);
        due[i] = i < DONE ? began_ms + 1000 : began_ms + 4000 + i % 5 * 1500;
        send(store, body, properties, due[i]);
    }
    snprintf(properties, sizeof properties, "UNIQ_KEY\001%d\002TIMER_DEL_UNIQKEY\001T+%d\002", RECALLED, RECALLED);
    send(store, "deletion", properties, due[RECALLED]);
    step(timer);
    atomic_store(&kit_now_ms, began_ms + 3000);
    step(timer);
    kit_copy_tree(root, bases[1]);
    CHECK_OK(cmq_timer_stop(timer));
    cmq_timer_destroy(timer);
    kit_close(store);
    kit_copy_tree(root, bases[0]);
    for (int i = 0; i < OPENINGS; i++) opened_ms[i] = atomic_load(&kit_now_ms);
    opened_ms[2] += 20000;
}

/* The bytes in use: of the wheel its slots from the beginning of time on, of the check its numbers. */
static void used(size_t file, const char *path, int64_t *begin_out, int64_t *end_out)
{
    *begin_out = file == 0 ? began_ms / 1000 % CMQ_TIMER_SLOTS * CMQ_TIMER_SLOT_BYTES : 0;
    *end_out = file == 0           ? *begin_out + SLOTS_USED * CMQ_TIMER_SLOT_BYTES
               : file == FILES - 1 ? CMQ_TIMER_CHECK_WIRE_BYTES
                                   : kit_file_bytes(path);
}

static void strike(const char *path, kind how, int64_t at, int bit)
{
    uint8_t sector[SECTOR] = {0};
    const int64_t bytes = kit_file_bytes(path), from = at - at % SECTOR;
    const size_t length = (size_t)(bytes - from < SECTOR ? bytes - from : SECTOR);
    if (how == FLIP) kit_flip(path, at, (uint8_t)(1 << bit));
    else if (how == CUT) kit_resize(path, at);
    else if (how == REMOVE) CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
    else {
        if (how == REPEAT && from >= SECTOR) kit_read_bytes(path, from - SECTOR, sector, length);
        kit_write_bytes(path, from, sector, length);
    }
}

static outcome judge(cmq_store *store, const cmq_timer_counters *counters, const char *text)
{
    int seen[TIMERS] = {0};
    bool again = false, lost = false;
    kit_found *found = kit_found_make(256);
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    cmq_reader *reader;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    for (bool end = false; !end;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        end |= found->batch.count == 0;
        for (uint32_t i = 0; i < found->batch.count; i++) {
            const cmq_record_view view = kit_view(&found->items[i]);
            char body[16] = {0};
            CHECK(view.body.bytes < sizeof body);
            memcpy(body, view.body.data, view.body.bytes);
            const unsigned long number = strtoul(body, NULL, 10);
            CHECK(number < TIMERS && body[0] != 'd');
            if (view.store_timestamp_ms < due[number])
                cmq_test_fail(__FILE__, __LINE__, "%s: timer %lu is early", text, number);
            again |= ++seen[number] > 1;
        }
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    cmq_reader_close(reader);
    for (int i = 0; i < TIMERS; i++) {
        if (seen[i] > 0 || i == RECALLED) continue;
        lost = true;
        if (counters->skipped == 0) fprintf(stderr, "%s: timer %d was lost\n", text, i);
    }
    /* A deletion that is read again after its message was delivered as late deletes nothing. */
    const bool recalled = seen[RECALLED] == 0, reported = counters->skipped > 0 || (!lost && counters->remade);
    if (!recalled && !reported) fprintf(stderr, "%s: the recalled timer was delivered\n", text);
    return lost || !recalled ? reported ? REPORTED : SILENT : again ? AGAIN : WHOLE;
}

static void try_damage(int opening, size_t file, kind how, int64_t at, int bit)
{
    char text[160];
    cmq_timer *timer;
    outcome result = REFUSED;
    kit_copy_tree(bases[opening], trial);
    snprintf(text, sizeof text, "%s: %s of %s at %" PRId64 ", bit %d", opening_names[opening], kind_names[how],
             names[file], at, bit);
    strike(kit_path(trial, names[file]), how, at, bit);
    atomic_store(&kit_now_ms, opened_ms[opening]);
    cmq_store *store = kit_open_at(trial);
    if (try_timer(store, &timer) == CMQ_OK) {
        cmq_timer_counters counters;
        for (int second = 0; second < SECONDS; second++) {
            atomic_fetch_add(&kit_now_ms, 500);
            step(timer);
        }
        cmq_timer_count(timer, &counters);
        result = judge(store, &counters, text);
        CHECK_OK(cmq_timer_stop(timer));
        cmq_timer_destroy(timer);
    }
    kit_close(store);
    counts[file][how][result]++;
}

static void damaged_in_turn(void)
{
    const int64_t every = (int64_t)kit_amount("CMQ_TIMER_EVERY", 29, 1);
    uint64_t damages = 0, silent = 0;
    make_bases();
    for (int opening = 0; opening < OPENINGS; opening++)
        for (size_t file = 0; file < FILES; file++) {
            int64_t begin, end;
            used(file, kit_path(bases[opening], names[file]), &begin, &end);
            try_damage(opening, file, REMOVE, 0, 0);
            for (int64_t at = begin; at < end; at++) {
                const bool drawn = every == 1 || cmq_test_random_below((uint64_t)every) == 0;
                for (int bit = 0; bit < 8 && drawn; bit++)
                    if (every == 1 || bit == at % 8) try_damage(opening, file, FLIP, at, bit);
                if (drawn) try_damage(opening, file, CUT, at, 0);
                if (at % SECTOR != 0 && at != begin) continue;
                try_damage(opening, file, ZERO, at, 0);
                try_damage(opening, file, REPEAT, at, 0);
            }
        }
    printf("| file | damage |");
    for (outcome o = 0; o < OUTCOMES; o++) printf(" %s |", outcome_names[o]);
    printf("\n");
    for (size_t file = 0; file < FILES; file++)
        for (kind how = 0; how < KINDS; how++) {
            printf("| %s | %s |", names[file], kind_names[how]);
            for (outcome o = 0; o < OUTCOMES; o++) {
                printf(" %" PRIu64 " |", counts[file][how][o]);
                damages += counts[file][how][o];
            }
            printf("\n");
            silent += counts[file][how][SILENT];
        }
    printf("%" PRIu64 " damages, seed %" PRIu64 "\n", damages, cmq_test_seed());
    if (silent > 0) cmq_test_fail(__FILE__, __LINE__, "%" PRIu64 " damages lost a timer in silence", silent);
}

CMQ_TEST_MAIN(CMQ_TEST(damaged_in_turn))
