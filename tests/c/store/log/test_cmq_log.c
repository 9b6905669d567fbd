/* Tests csrc/store/log/cmq_log.c and cmq_log_write.c: claims, rolls, staging, the cut, retention, pins. */
#include "store/log/cmq_log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/record/cmq_record.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define SEGMENT 4096

static const char *root;
static cmq_fs *fs;
static bool staged;

static cmq_log *make_log(int64_t segment_bytes, bool read_only)
{
    const char *paths[] = {root};
    const cmq_log_options options = {.fs = fs,
                                     .paths = paths,
                                     .path_count = 1,
                                     .segment_bytes = segment_bytes,
                                     .read_only = read_only,
                                     .staged = staged && !read_only,
                                     .record_bytes_max = 1 << 20};
    cmq_log *log;
    CHECK_OK(cmq_log_create(&log, &options));
    return log;
}

static cmq_log *open_log(int64_t end)
{
    cmq_log *log = make_log(SEGMENT, false);
    CHECK_OK(cmq_log_load(log));
    CHECK_OK(cmq_log_set_end(log, end));
    return log;
}

static void start(bool with_staging)
{
    root = kit_path(kit_directory(), "commitlog");
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    fs = cmq_fs_posix();
    staged = with_staging;
}

/* Claim `bytes`, fill them with `letter`, commit; where they lie. */
static int64_t put(cmq_log *log, uint32_t bytes, char letter)
{
    uint8_t *into;
    int64_t phy;
    CHECK_OK(cmq_log_claim(log, bytes, &into, &phy));
    memset(into, letter, bytes);
    cmq_log_commit(log, bytes);
    return phy;
}

static void write_out(cmq_log *log)
{
    if (!staged) {
        CHECK_OK(cmq_log_sync(log, cmq_log_end(log)));
    } else {
        cmq_staged *taken = cmq_log_take_staged(log);
        if (taken != NULL) CHECK_OK(cmq_log_write_staged(log, taken));
    }
    cmq_log_confirm(log, cmq_log_end(log));
}

static char byte_at(cmq_log *log, int64_t phy)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    CHECK_OK(cmq_log_pin(log, phy, &segment, &data, &available));
    const char byte = (char)data[0];
    CHECK_INT(available, SEGMENT - phy % SEGMENT);
    cmq_segment_unpin(segment);
    return byte;
}

static const char *file_of(int64_t first)
{
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, first);
    return kit_path(root, name);
}

static void claims_and_rolls(bool with_staging)
{
    start(with_staging);
    cmq_log *log = open_log(0);
    CHECK_INT(cmq_log_last_file_end(log), 0);   /* nothing is made before the first claim */
    CHECK_INT(put(log, 1000, 'a'), 0);
    CHECK_INT(put(log, 3000, 'b'), 1000);       /* up to 4000: 96 are left */
    CHECK_INT(put(log, 88, 'c'), 4000);         /* and 8 must stay for a blank */
    CHECK_INT(put(log, 100, 'd'), SEGMENT);
    CHECK_INT(put(log, SEGMENT - 100 - 8, 'e'), SEGMENT + 100);
    CHECK_INT(put(log, SEGMENT - 8, 'f'), 2 * SEGMENT);   /* the most that fits */
    CHECK_INT(cmq_log_end(log), 3 * SEGMENT - 8);
    write_out(log);
    CHECK_INT(cmq_log_flushed(log), 3 * SEGMENT - 8);
    CHECK_INT(byte_at(log, 4087), 'c');
    CHECK_INT(byte_at(log, SEGMENT + 100), 'e');
    uint8_t blank[8];
    kit_read_bytes(file_of(0), 4088, blank, 8);
    CHECK_INT(cmq_load_u32(blank), 8);
    CHECK_INT(cmq_load_u32(blank + 4), CMQ_RECORD_MAGIC_BLANK);
    uint8_t *into;
    int64_t phy;
    CHECK_STATUS(cmq_log_claim(log, SEGMENT - 7, &into, &phy), CMQ_ERR_TOO_LARGE);
    cmq_log_close(log, true);
}
static void claims_and_rolls_mapped(void) { claims_and_rolls(false); }
static void claims_and_rolls_staged(void) { claims_and_rolls(true); }

/* The blank of a roll says how much of the segment it takes. */
static void blank_takes_the_rest(void)
{
    start(false);
    cmq_log *log = open_log(0);
    put(log, 500, 'a');
    CHECK_INT(put(log, 3900, 'b'), SEGMENT);
    uint8_t blank[8];
    kit_read_bytes(file_of(0), 500, blank, 8);
    CHECK_INT(cmq_load_u32(blank), SEGMENT - 500);
    CHECK_INT(cmq_load_u32(blank + 4), CMQ_RECORD_MAGIC_BLANK);
    write_out(log);
    cmq_log_close(log, true);
}

/* Several segments in one staging buffer, and a second buffer filled while the first is written. */
static void staging_over_segments(void)
{
    start(true);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 10; i++) put(log, 1500, (char)('a' + i));
    CHECK_INT(kit_file_bytes(file_of(0)), SEGMENT);
    uint8_t byte;
    kit_read_bytes(file_of(0), 0, &byte, 1);
    CHECK_INT(byte, 0);   /* nothing is written yet */
    cmq_staged *taken = cmq_log_take_staged(log);
    CHECK_INT(cmq_staged_end(taken), cmq_log_end(log));
    const int64_t later = put(log, 100, 'z');
    CHECK_OK(cmq_log_write_staged(log, taken));
    CHECK_INT(cmq_log_flushed(log), later);
    kit_read_bytes(file_of(4 * SEGMENT), 1500, &byte, 1);
    CHECK_INT(byte, 'j');
    CHECK_INT(byte_at(log, 3 * SEGMENT), 'g');
    CHECK_INT(byte_at(log, later), 0);
    write_out(log);
    CHECK_INT(byte_at(log, later), 'z');
    CHECK(cmq_log_take_staged(log) == NULL);
    cmq_log_close(log, true);
}

/* A buffer takes 32 runs: then the caller commits first. A batch that was claimed at once never gets this half way. */
static void full_staging_says_so(void)
{
    uint8_t *into;
    int64_t phy;
    start(true);
    cmq_log *log = open_log(0);
    for (uint32_t i = 0; i < CMQ_STAGED_RUNS_MAX; i++) put(log, 4000, 'a');
    CHECK_STATUS(cmq_log_claim(log, 4000, &into, &phy), CMQ_AGAIN);
    write_out(log);
    CHECK_OK(cmq_log_claim(log, 4000, &into, &phy));
    cmq_log_close(log, false);
}

static void batch_is_claimed_at_once(void)
{
    uint8_t *into;
    int64_t phy, before = -1;
    start(true);
    cmq_log *log = make_log(64 << 20, false);
    CHECK_OK(cmq_log_load(log));
    CHECK_OK(cmq_log_set_end(log, 0));
    put(log, 1000, 'a');
    CHECK_STATUS(cmq_log_claim_together(log, 20 << 20), CMQ_AGAIN);   /* behind staged bytes it is too much */
    write_out(log);
    CHECK_OK(cmq_log_claim_together(log, 20 << 20));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(cmq_log_claim(log, 1 << 20, &into, &phy));
        CHECK(before < 0 || phy == before + (1 << 20));
        before = phy;
        memset(into, 'b', 1 << 20);
        cmq_log_commit(log, 1 << 20);
    }
    CHECK_STATUS(cmq_log_claim(log, 1 << 20, &into, &phy), CMQ_AGAIN);
    write_out(log);
    cmq_log_close(log, true);
}

/* ---- load and cut ---- */

static void loads_existing_files(void)
{
    start(false);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 5; i++) put(log, 3000, (char)('a' + i));
    write_out(log);
    const int64_t end = cmq_log_end(log);
    cmq_log_close(log, true);
    log = make_log(SEGMENT, true);
    CHECK_OK(cmq_log_load(log));
    CHECK_INT(cmq_log_min(log), 0);
    CHECK_INT(cmq_log_last_file_end(log), 5 * SEGMENT);
    CHECK_INT(byte_at(log, 4 * SEGMENT), 'e');
    cmq_log_close(log, false);
    log = open_log(end);
    CHECK_INT(put(log, 1000, 'x'), end);
    write_out(log);
    cmq_log_close(log, true);
}

static void strange_folders_are_refused(void)
{
    start(false);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 3; i++) put(log, 3000, 'a');
    write_out(log);
    cmq_log_close(log, true);
    log = make_log(2 * SEGMENT, true);
    CHECK_STATUS(cmq_log_load(log), CMQ_ERR_SETTING);
    cmq_log_close(log, false);
    kit_write_bytes(kit_path(root, "notes.txt"), 0, "x", 1);
    log = make_log(SEGMENT, true);
    CHECK_STATUS(cmq_log_load(log), CMQ_ERR_NOT_STORE);
    CHECK(strstr(cmq_last_error()->text, "notes.txt") != NULL);
    cmq_log_close(log, false);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), kit_path(root, "notes.txt")));
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), file_of(SEGMENT)));
    log = make_log(SEGMENT, true);
    CHECK_STATUS(cmq_log_load(log), CMQ_ERR_NOT_STORE);
    CHECK_INT(cmq_last_error()->offset, SEGMENT);
    cmq_log_close(log, false);
}

static void empty_last_file_is_forgiven(void)
{
    start(false);
    cmq_log *log = open_log(0);
    put(log, 3000, 'a');
    write_out(log);
    cmq_log_close(log, true);
    kit_write_bytes(file_of(SEGMENT), 0, "", 0);
    log = make_log(SEGMENT, true);
    CHECK_OK(cmq_log_load(log));
    cmq_log_close(log, false);
    CHECK(kit_exists(file_of(SEGMENT)));     /* a follower changes nothing */
    log = open_log(3000);
    CHECK(!kit_exists(file_of(SEGMENT)));
    cmq_log_close(log, true);
}

static void cut(bool with_staging)
{
    start(with_staging);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 4; i++) put(log, 3000, 'a');
    write_out(log);
    cmq_log_close(log, false);
    log = open_log(SEGMENT + 3000);
    CHECK_INT(cmq_log_last_file_end(log), 2 * SEGMENT);
    CHECK(!kit_exists(file_of(2 * SEGMENT)) && !kit_exists(file_of(3 * SEGMENT)));
    cmq_log_close(log, false);
    log = open_log(SEGMENT + 100);
    uint8_t rest[SEGMENT - 100], zeros[SEGMENT - 100] = {0};
    kit_read_bytes(file_of(SEGMENT), 100, rest, sizeof rest);
    CHECK_BYTES(rest, sizeof rest, zeros, sizeof zeros);
    CHECK_INT(byte_at(log, SEGMENT + 99), 'a');
    CHECK_INT(put(log, 50, 'n'), SEGMENT + 100);
    write_out(log);
    CHECK_INT(byte_at(log, SEGMENT + 149), 'n');
    cmq_log_close(log, true);
    CHECK_INT(kit_file_bytes(file_of(SEGMENT)), SEGMENT);   /* never a length but the full one */
}
static void cut_mapped(void) { cut(false); }
static void cut_staged(void) { cut(true); }

/* A log that begins at a later offset and holds nothing still says where it begins. */
static void first_file_stays(void)
{
    start(false);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 3; i++) put(log, 3000, 'a');
    write_out(log);
    CHECK_OK(cmq_log_delete_first(log));
    CHECK_OK(cmq_log_delete_first(log));
    CHECK_STATUS(cmq_log_delete_first(log), CMQ_END);
    cmq_log_close(log, false);
    log = open_log(2 * SEGMENT);
    CHECK(kit_exists(file_of(2 * SEGMENT)));
    CHECK_INT(put(log, 10, 'b'), 2 * SEGMENT);
    write_out(log);
    cmq_log_close(log, true);
}

/* ---- retention and pins ---- */

static void deletion_under_pins(void)
{
    start(false);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 4; i++) put(log, 3000, (char)('a' + i));
    write_out(log);
    cmq_segment *pinned;
    const uint8_t *data;
    size_t available;
    cmq_file_info info;
    CHECK_OK(cmq_log_first_info(log, &info));
    CHECK_INT(info.bytes, SEGMENT);
    CHECK_OK(cmq_log_pin(log, 10, &pinned, &data, &available));
    CHECK_OK(cmq_log_delete_first(log));
    CHECK(!kit_exists(file_of(0)));
    CHECK_INT(cmq_log_min(log), SEGMENT);
    CHECK_INT(data[0], 'a');
    cmq_segment *again;
    const uint8_t *other;
    CHECK_STATUS(cmq_log_pin(log, 10, &again, &other, &available), CMQ_ERR_OFFSET);
    CHECK_STATUS(cmq_log_pin(log, 4 * SEGMENT, &again, &other, &available), CMQ_ERR_OFFSET);
    CHECK_STATUS(cmq_log_pin(log, -1, &again, &other, &available), CMQ_ERR_OFFSET);
    CHECK_OK(cmq_log_delete_first(log));
    CHECK_OK(cmq_log_delete_first(log));
    CHECK_STATUS(cmq_log_delete_first(log), CMQ_END);
    CHECK_STATUS(cmq_log_first_info(log, &info), CMQ_END);
    cmq_log_close(log, true);
    CHECK_INT(data[2989], 'a');   /* pinned beyond the close */
    cmq_segment_unpin(pinned);
}

static void table_grows_and_forgets(void)
{
    start(false);
    cmq_log *log = open_log(0);
    for (int i = 0; i < 200; i++) {
        put(log, 4000, (char)('a' + i % 26));
        write_out(log);
        if (i % 3 == 2) CHECK_OK(cmq_log_delete_first(log));
    }
    CHECK_INT(cmq_log_min(log), 66 * SEGMENT);
    for (int i = 66; i < 200; i++) CHECK_INT(byte_at(log, (int64_t)i * SEGMENT), 'a' + i % 26);
    cmq_log_close(log, true);
}

static void made_ahead_and_given_back(void)
{
    start(false);
    cmq_log *log = open_log(0);
    put(log, 100, 'a');
    write_out(log);
    CHECK_STATUS(cmq_log_prewarm_step(log), CMQ_END);   /* a store of a few bytes stays at one segment */
    CHECK_INT(cmq_log_last_file_end(log), SEGMENT);
    put(log, 2500, 'a');
    write_out(log);
    cmq_status status = CMQ_OK;
    for (int i = 0; i < 10 && status == CMQ_OK; i++) status = cmq_log_prewarm_step(log);
    CHECK_STATUS(status, CMQ_END);
    CHECK_INT(cmq_log_last_file_end(log), 2 * SEGMENT);
    CHECK_INT(kit_file_bytes(file_of(SEGMENT)), SEGMENT);
    CHECK_INT(put(log, 4000, 'b'), SEGMENT);   /* uses it */
    write_out(log);
    CHECK_OK(cmq_log_prewarm_step(log));
    cmq_log_close(log, true);
    CHECK(kit_exists(file_of(SEGMENT)) && !kit_exists(file_of(2 * SEGMENT)));
}

static void a_follower_sees_files_come_and_go(void)
{
    start(false);
    cmq_log *log = open_log(0);
    put(log, 3000, 'a');
    write_out(log);
    cmq_log *follower = make_log(SEGMENT, true);
    CHECK_OK(cmq_log_load(follower));
    for (int i = 1; i < 4; i++) put(log, 3000, (char)('a' + i));
    write_out(log);
    CHECK_INT(cmq_log_last_file_end(follower), SEGMENT);
    CHECK_OK(cmq_log_refresh(follower));
    CHECK_INT(cmq_log_last_file_end(follower), 4 * SEGMENT);
    CHECK_INT(byte_at(follower, 3 * SEGMENT), 'd');
    CHECK_OK(cmq_log_delete_first(log));
    CHECK_OK(cmq_log_refresh(follower));
    CHECK_INT(cmq_log_min(follower), SEGMENT);
    cmq_log_close(follower, false);
    cmq_log_close(log, true);
}

/* ---- failures ---- */

/* No blocks: nothing moved, and the next claim works. */
static void full_disk(void)
{
    uint8_t *into;
    int64_t phy;
    for (int mode = 0; mode < 2; mode++) {
        start(mode == 1);
        cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
        fs = cmq_file_twin_fs(twin);
        cmq_log *log = open_log(0);
        put(log, 3000, 'a');
        write_out(log);
        const int64_t end = cmq_log_end(log);
        cmq_file_twin_fail(twin,
                           &(cmq_twin_fault){.kind = CMQ_TWIN_RESERVE, .nth = 1, .times = 2, .sys_errno = ENOSPC});
        for (int i = 0; i < 2; i++) CHECK_STATUS(cmq_log_claim(log, 3000, &into, &phy), CMQ_ERR_DISK_FULL);
        CHECK(cmq_log_end(log) == end || cmq_log_end(log) == SEGMENT);   /* the roll itself may be done */
        CHECK_INT(put(log, 3000, 'b'), SEGMENT);
        write_out(log);
        CHECK_INT(byte_at(log, SEGMENT), 'b');
        CHECK_INT(byte_at(log, 0), 'a');
        cmq_log_close(log, true);
        cmq_file_twin_close(twin);
    }
}

/* A roll that found no room for the next segment leaves the end where no file is: the helper must not make the one
 * behind it. */
static void made_ahead_without_a_gap(void)
{
    uint8_t *into;
    int64_t phy;
    start(false);
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    fs = cmq_file_twin_fs(twin);
    cmq_log *log = open_log(0);
    put(log, 3000, 'a');
    write_out(log);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_CREATE, .nth = 1, .times = 1, .sys_errno = ENOSPC});
    CHECK_STATUS(cmq_log_claim(log, 3000, &into, &phy), CMQ_ERR_DISK_FULL);
    write_out(log);
    CHECK_INT(cmq_log_confirmed(log), SEGMENT);
    CHECK_STATUS(cmq_log_prewarm_step(log), CMQ_END);
    CHECK(!kit_exists(file_of(2 * SEGMENT)));
    CHECK_INT(put(log, 3000, 'b'), SEGMENT);
    write_out(log);
    cmq_log_close(log, true);
    cmq_file_twin_close(twin);
}

typedef struct overtaking {
    cmq_log *log;
    pthread_t writer;
    bool begun;
} overtaking;

static void *fill_the_segment_ahead(void *log)
{
    for (int i = 0; i < 3; i++) put(log, 3000, 'b');
    return NULL;
}

/* The writer comes to the segment that the helper is about to make. */
static void overtake(void *context, const cmq_twin_call *call)
{
    overtaking *of = context;
    if (of->begun || call->kind != CMQ_TWIN_RESERVE) return;
    of->begun = true;
    CHECK(pthread_create(&of->writer, NULL, fill_the_segment_ahead, of->log) == 0);
}

/* Tiny segments, and a helper that does not get a core: it still has the file in its hand when the writer wants to
 * enter. */
static void overtaken_while_made_ahead(void)
{
    for (int with_staging = 0; with_staging < 2; with_staging++) {
        start(with_staging);
        cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
        fs = cmq_file_twin_fs(twin);
        cmq_log *log = open_log(0);
        put(log, 3000, 'a');
        write_out(log);
        overtaking of = {.log = log};
        cmq_file_twin_on_call(twin, 0, overtake, &of);
        CHECK_OK(cmq_log_prewarm_step(log));
        CHECK(of.begun && pthread_join(of.writer, NULL) == 0);
        cmq_file_twin_on_call(twin, 0, NULL, NULL);
        write_out(log);
        CHECK_INT(byte_at(log, SEGMENT), 'b');
        cmq_log_close_flushed(log);
        put(log, 3000, 'c');
        write_out(log);
        cmq_log_close_flushed(log);
        cmq_log_close(log, true);
        cmq_file_twin_close(twin);
    }
}

/* Messages that are encoded, but not confirmed yet: the helper goes by the confirmed end. */
static void zeros_keep_off_the_writers_segment(void)
{
    start(false);
    cmq_log *log = open_log(0);
    put(log, 3000, 'a');
    write_out(log);
    CHECK_INT(put(log, 3000, 'b'), SEGMENT);
    CHECK_INT(cmq_log_confirmed(log), 3000);
    CHECK_STATUS(cmq_log_prewarm_step(log), CMQ_END);
    write_out(log);
    CHECK_INT(byte_at(log, SEGMENT), 'b');
    cmq_log_close(log, true);
}

CMQ_TEST_MAIN(CMQ_TEST(claims_and_rolls_mapped), CMQ_TEST(claims_and_rolls_staged), CMQ_TEST(blank_takes_the_rest),
              CMQ_TEST(staging_over_segments), CMQ_TEST(full_staging_says_so), CMQ_TEST(batch_is_claimed_at_once),
              CMQ_TEST(loads_existing_files), CMQ_TEST(strange_folders_are_refused),
              CMQ_TEST(empty_last_file_is_forgiven), CMQ_TEST(cut_mapped), CMQ_TEST(cut_staged),
              CMQ_TEST(first_file_stays), CMQ_TEST(deletion_under_pins), CMQ_TEST(table_grows_and_forgets),
              CMQ_TEST(made_ahead_and_given_back), CMQ_TEST(a_follower_sees_files_come_and_go), CMQ_TEST(full_disk),
              CMQ_TEST(made_ahead_without_a_gap), CMQ_TEST(zeros_keep_off_the_writers_segment),
              CMQ_TEST(overtaken_while_made_ahead))
