/* Tests csrc/broker/timer/cmq_timer_log.c: units as upstream's, files and their ends, recovery, reading both ways,
 * expiry. */
#include "broker/timer/cmq_timer_log.h"

#include <string.h>

#include "base/cmq_hash.h"
#include "support/cmq_store_kit.h"

enum { UNITS = 10, FILE_BYTES = 16 + UNITS * CMQ_TIMER_UNIT_BYTES + 7 };

static cmq_timer_unit unit_of(int64_t previous, int64_t phy)
{
    return (cmq_timer_unit){.previous = previous,
                            .magic = CMQ_TIMER_UNIT_DEFAULT,
                            .write_ms = 1700000000000,
                            .delay_ms = 5000,
                            .phy = phy,
                            .bytes = 182,
                            .topic_hash = 7};
}

/* By fields: padding between them holds anything. */
static bool same_unit(const cmq_timer_unit *a, const cmq_timer_unit *b)
{
    return a->previous == b->previous && a->magic == b->magic && a->write_ms == b->write_ms &&
           a->delay_ms == b->delay_ms && a->phy == b->phy && a->bytes == b->bytes && a->topic_hash == b->topic_hash;
}

/* The sample of specification 14.4. */
static void units_are_upstream_s(void)
{
    static const uint8_t expected[] = {0x00, 0x00, 0x00, 0x34, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00,
                                       0x00, 0x00, 0x01, 0x00, 0x00, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x00, 0x00, 0x00,
                                       0x13, 0x88, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x23, 0x45, 0x00, 0x00, 0x00,
                                       0xb6, 0x8e, 0x98, 0x76, 0x41, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
    cmq_timer_unit unit = unit_of(-1, 0x12345), read;
    uint8_t bytes[CMQ_TIMER_UNIT_BYTES];
    unit.topic_hash = (int32_t)0x8e987641;
    cmq_timer_unit_encode(&unit, bytes);
    CHECK_BYTES(bytes, sizeof bytes, expected, sizeof expected);
    CHECK(cmq_timer_unit_decode(bytes, 0, &read));
    CHECK(same_unit(&unit, &read));
    unit.previous = 52;   /* not before it */
    cmq_timer_unit_encode(&unit, bytes);
    CHECK(!cmq_timer_unit_decode(bytes, 52, &read));
    CHECK(cmq_timer_unit_decode(bytes, 104, &read));
    bytes[12] = 1;        /* magic of other bits */
    CHECK(!cmq_timer_unit_decode(bytes, 104, &read));
}

static cmq_timer_log *open_log(const char *root)
{
    cmq_timer_log *log;
    CHECK_OK(cmq_timer_log_open(&log, cmq_fs_posix(), root, FILE_BYTES));
    CHECK_OK(cmq_timer_log_recover(log, INT64_MAX));
    return log;
}

static int64_t add(cmq_timer_log *log, int64_t previous, int64_t phy)
{
    const cmq_timer_unit unit = unit_of(previous, phy);
    int64_t position;
    CHECK_OK(cmq_timer_log_append(log, &unit, &position));
    return position;
}

static int64_t position_of(int unit)
{
    return (int64_t)(unit / UNITS) * FILE_BYTES + unit % UNITS * CMQ_TIMER_UNIT_BYTES;
}

static cmq_timer_log *filled(const char *root, int units)
{
    cmq_timer_log *log = open_log(root);
    for (int i = 0; i < units; i++)
        CHECK_INT(add(log, i > 0 ? position_of(i - 1) : -1, 1000 + i * 200), position_of(i));
    return log;
}

/* From both ends, and each by its place. */
static void check_units(const cmq_timer_log *log, int first, int end)
{
    cmq_timer_unit unit;
    int64_t at = cmq_timer_log_next(log, 0);
    for (int i = first; i < end; i++, at = cmq_timer_log_next(log, at + CMQ_TIMER_UNIT_BYTES)) {
        CHECK_INT(at, position_of(i));
        CHECK(cmq_timer_log_read(log, at, &unit));
        CHECK_INT(unit.phy, 1000 + i * 200);
        CHECK(!cmq_timer_log_read(log, at + 1, &unit));
    }
    CHECK_INT(at, -1);
    at = cmq_timer_log_previous(log, cmq_timer_log_end(log));
    for (int i = end; i-- > first; at = cmq_timer_log_previous(log, at)) CHECK_INT(at, position_of(i));
    CHECK_INT(at, -1);
}

static void units_run_over_files(void)
{
    const char *root = kit_directory();
    for (int units = 0; units < 35; units++) {
        cmq_timer_log *log = filled(root, units);
        check_units(log, 0, units);
        CHECK_OK(cmq_timer_log_flush(log));
        cmq_timer_log_close(log);
        log = open_log(root);
        check_units(log, 0, units);
        CHECK_INT(add(log, -1, 1000 + units * 200), position_of(units));
        check_units(log, 0, units + 1);
        cmq_timer_log_close(log);
        kit_remove_tree(kit_path(root, "timerlog"));
    }
}

static void a_file_ends_with_a_blank(void)
{
    const char *root = kit_directory();
    uint8_t blank[16];
    cmq_timer_log_close(filled(root, UNITS + 1));
    kit_read_bytes(kit_path(root, "timerlog/00000000000000000000"), UNITS * CMQ_TIMER_UNIT_BYTES, blank, sizeof blank);
    static const uint8_t expected[] = {0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0xcb, 0xd4, 0x31, 0x94};
    CHECK_BYTES(blank, sizeof blank, expected, sizeof expected);
}

static void an_invalid_log_is_cut(void)
{
    const char *root = kit_directory();
    const char *second = kit_path(root, "timerlog/00000000000000000543");
    const uint8_t none[4] = {0};
    cmq_timer_log *log = filled(root, 25);
    CHECK_OK(cmq_timer_log_flush(log));
    cmq_timer_log_close(log);
    kit_write_bytes(second, 3 * CMQ_TIMER_UNIT_BYTES, none, sizeof none);
    log = open_log(root);
    check_units(log, 0, 13);
    CHECK(!kit_exists(kit_path(root, "timerlog/00000000000000001086")));
    /* Units behind the cut do not come back when the end passes them. */
    CHECK_INT(add(log, -1, 1000 + 13 * 200), position_of(13));
    CHECK_OK(cmq_timer_log_flush(log));
    cmq_timer_log_close(log);
    log = open_log(root);
    check_units(log, 0, 14);
    cmq_timer_log_close(log);
    /* Records that the store's log does not have. */
    CHECK_OK(cmq_timer_log_open(&log, cmq_fs_posix(), root, FILE_BYTES));
    CHECK_OK(cmq_timer_log_recover(log, 1000 + 5 * 200 + 182));
    check_units(log, 0, 6);
    cmq_timer_log_close(log);
}

static void files_that_do_not_fit_are_refused(void)
{
    const char *root = kit_directory();
    cmq_timer_log *log = filled(root, 25);
    CHECK_OK(cmq_timer_log_flush(log));
    cmq_timer_log_close(log);
    CHECK_OK(cmq_timer_log_open(&log, cmq_fs_posix(), root, 4096));   /* the files' own size counts */
    CHECK_INT(cmq_timer_log_file_bytes(log), FILE_BYTES);
    cmq_timer_log_close(log);
    kit_resize(kit_path(root, "timerlog/00000000000000001086"), 0);   /* killed while it was made */
    CHECK_OK(cmq_timer_log_open(&log, cmq_fs_posix(), root, FILE_BYTES));
    CHECK_OK(cmq_timer_log_recover(log, INT64_MAX));
    check_units(log, 0, 20);
    CHECK_INT(add(log, -1, 1000 + 20 * 200), position_of(20));
    cmq_timer_log_close(log);
    kit_resize(kit_path(root, "timerlog/00000000000000000543"), 100);
    CHECK_STATUS(cmq_timer_log_open(&log, cmq_fs_posix(), root, FILE_BYTES), CMQ_ERR_SETTING);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), kit_path(root, "timerlog/00000000000000000543")));
    CHECK_STATUS(cmq_timer_log_open(&log, cmq_fs_posix(), root, FILE_BYTES), CMQ_ERR_SETTING);
    CHECK_STATUS(cmq_timer_log_open(&log, cmq_fs_posix(), kit_directory(), 60), CMQ_ERR_ARGUMENT);
}

static void files_expire_by_their_last_unit(void)
{
    const char *root = kit_directory();
    cmq_timer_log *log = filled(root, 25);
    CHECK_OK(cmq_timer_log_expire(log, 1000 + 9 * 200));
    check_units(log, 0, 25);
    CHECK_OK(cmq_timer_log_expire(log, 1000 + 9 * 200 + 1));
    check_units(log, 10, 25);
    CHECK_INT(cmq_timer_log_min(log), FILE_BYTES);
    CHECK_OK(cmq_timer_log_expire(log, INT64_MAX));
    check_units(log, 20, 25);
    CHECK(!kit_exists(kit_path(root, "timerlog/00000000000000000543")));
    CHECK_OK(cmq_timer_log_flush(log));
    cmq_timer_log_close(log);
    log = open_log(root);
    check_units(log, 20, 25);
    CHECK_INT(add(log, -1, 1000 + 25 * 200), position_of(25));
    cmq_timer_log_close(log);
}

/* Pages that the disk does not give, which a load from the mapping would be SIGBUS for without cmq_map_guard: here of a
 * file that somebody cut. */
static void pages_that_cannot_be_read(void)
{
    enum { MANY = 40000, LARGE = 16 + MANY * CMQ_TIMER_UNIT_BYTES };
    const char *root = kit_directory(), *path = kit_path(root, "timerlog/00000000000000000000");
    cmq_timer_log *log;
    cmq_timer_unit unit;
    CHECK_OK(cmq_timer_log_open(&log, cmq_fs_posix(), root, LARGE));
    for (int i = 0; i < MANY / 2; i++) (void)add(log, -1, 1000 + i * 200);
    CHECK_OK(cmq_timer_log_flush(log));
    cmq_timer_log_close(log);
    CHECK_OK(cmq_timer_log_open(&log, cmq_fs_posix(), root, LARGE));
    kit_resize(path, 4096);
    CHECK(cmq_timer_log_read(log, 0, &unit) && unit.phy == 1000);
    CHECK(!cmq_timer_log_read(log, INT64_C(10000) * CMQ_TIMER_UNIT_BYTES, &unit));
    cmq_timer_log_close(log);
}

CMQ_TEST_MAIN(CMQ_TEST(pages_that_cannot_be_read), CMQ_TEST(units_are_upstream_s), CMQ_TEST(units_run_over_files),
              CMQ_TEST(a_file_ends_with_a_blank), CMQ_TEST(an_invalid_log_is_cut),
              CMQ_TEST(files_that_do_not_fit_are_refused), CMQ_TEST(files_expire_by_their_last_unit))
