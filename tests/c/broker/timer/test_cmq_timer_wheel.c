/* Tests csrc/broker/timer/cmq_timer_wheel.c: slots and their places, what is pending, the file: sparse, whole, of
 * another length, on a full disk. */
#include "broker/timer/cmq_timer_wheel.h"

#include <errno.h>
#include <string.h>

#include "base/cmq_bytes.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define NOW INT64_C(1795260281)

static cmq_timer_wheel *open_wheel(const char *root, bool expect_fresh)
{
    cmq_timer_wheel *wheel;
    bool fresh;
    CHECK_OK(cmq_timer_wheel_open(&wheel, cmq_fs_posix(), root, &fresh));
    CHECK_INT(fresh, expect_fresh);
    return wheel;
}

static void put(cmq_timer_wheel *wheel, int64_t number, int64_t first, int64_t last, int32_t count)
{
    const cmq_timer_slot slot = {.number = number, .first = first, .last = last, .count = count};
    cmq_timer_wheel_put(wheel, &slot);
}

static void slots_are_kept(void)
{
    const char *root = kit_directory();
    cmq_timer_slot slot;
    cmq_timer_wheel *wheel = open_wheel(root, true);
    CHECK(!cmq_timer_wheel_get(wheel, NOW, &slot));
    CHECK_INT(slot.first, -1);
    CHECK_INT(slot.last, -1);
    CHECK_INT(slot.count, 0);
    put(wheel, NOW, 52, 104, 2);
    put(wheel, NOW + CMQ_TIMER_SLOTS - 1, 0, 0, -1);
    CHECK(cmq_timer_wheel_get(wheel, NOW, &slot));
    CHECK(!cmq_timer_wheel_get(wheel, NOW + CMQ_TIMER_SLOTS, &slot));
    CHECK_OK(cmq_timer_wheel_flush(wheel));
    cmq_timer_wheel_close(wheel);
    CHECK_INT(kit_file_bytes(kit_path(root, "timerwheel")), 38707200);
    cmq_file_info info;
    CHECK_OK(cmq_fs_stat(cmq_fs_posix(), kit_path(root, "timerwheel"), &info));
    CHECK(info.allocated_bytes < 100000);
    uint8_t bytes[CMQ_TIMER_SLOT_BYTES];
    kit_read_bytes(kit_path(root, "timerwheel"), NOW % 1209600 * 32, bytes, sizeof bytes);
    CHECK_INT(cmq_load_i64(bytes), NOW);
    CHECK_INT(cmq_load_i64(bytes + 8), 52);
    CHECK_INT(cmq_load_i64(bytes + 16), 104);
    CHECK_INT(cmq_load_i32(bytes + 24), 2);
    CHECK_INT(cmq_load_i32(bytes + 28), 0);
    wheel = open_wheel(root, false);
    CHECK(cmq_timer_wheel_get(wheel, NOW + CMQ_TIMER_SLOTS - 1, &slot));
    CHECK_INT(slot.count, -1);
    cmq_timer_wheel_clear_from(wheel, 0);
    CHECK(!cmq_timer_wheel_get(wheel, NOW, &slot));
    CHECK_OK(cmq_timer_wheel_flush(wheel));
    cmq_timer_wheel_close(wheel);
    cmq_timer_wheel_close(open_wheel(root, true));
}

/* Against a plain search over all slots. */
static void pending_slots_are_found(void)
{
    enum { MANY = 300 };
    cmq_timer_wheel *wheel = open_wheel(kit_directory(), true);
    int64_t numbers[MANY];
    CHECK(cmq_timer_wheel_next_pending(wheel, NOW) == INT64_MAX);
    for (int i = 0; i < MANY; i++) {
        const uint64_t near = i % 3 == 0 ? 200 : CMQ_TIMER_SLOTS;
        numbers[i] = NOW + (int64_t)cmq_test_random_below(near);
        put(wheel, numbers[i], i, i, 1);
        cmq_timer_wheel_set_pending(wheel, numbers[i]);
    }
    CHECK(cmq_timer_wheel_has_room(wheel, numbers[7]));
    CHECK(!cmq_timer_wheel_has_room(wheel, numbers[7] + CMQ_TIMER_SLOTS));
    for (int64_t from = NOW;;) {
        int64_t least = INT64_MAX;
        for (int i = 0; i < MANY; i++)
            if (numbers[i] >= from && numbers[i] < least) least = numbers[i];
        const int64_t found = cmq_timer_wheel_next_pending(wheel, from);
        CHECK_INT(found, least);
        if (found == INT64_MAX) break;
        cmq_timer_wheel_clear_pending(wheel, found);
        from = found + 1;
    }
    /* Behind `from` in the same word, a turn later. */
    put(wheel, NOW + CMQ_TIMER_SLOTS - 1, 0, 0, 1);
    cmq_timer_wheel_set_pending(wheel, NOW + CMQ_TIMER_SLOTS - 1);
    CHECK_INT(cmq_timer_wheel_next_pending(wheel, NOW), NOW + CMQ_TIMER_SLOTS - 1);
    cmq_timer_wheel_close(wheel);
}

static void another_length_is_refused(void)
{
    const char *root = kit_directory();
    bool fresh;
    cmq_timer_wheel *wheel = open_wheel(root, true);
    cmq_timer_wheel_close(wheel);
    kit_resize(kit_path(root, "timerwheel"), 38707199);
    CHECK_STATUS(cmq_timer_wheel_open(&wheel, cmq_fs_posix(), root, &fresh), CMQ_ERR_SETTING);
    kit_resize(kit_path(root, "timerwheel"), 0);   /* killed while it was made */
    cmq_timer_wheel_close(open_wheel(root, true));
}

static void a_flush_that_failed_is_made_up_for(void)
{
    const char *root = kit_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_seed());
    cmq_timer_wheel *wheel;
    bool fresh;
    CHECK_OK(cmq_timer_wheel_open(&wheel, cmq_file_twin_fs(twin), root, &fresh));
    put(wheel, NOW, 0, 52, 2);
    const cmq_twin_fault full = {.kind = CMQ_TWIN_WRITE, .nth = 1, .times = 1, .sys_errno = ENOSPC};
    cmq_file_twin_fail(twin, &full);
    CHECK_STATUS(cmq_timer_wheel_flush(wheel), CMQ_ERR_DISK_FULL);
    CHECK_OK(cmq_timer_wheel_flush(wheel));
    CHECK(cmq_file_twin_all_durable(twin));
    cmq_timer_wheel_close(wheel);
    cmq_file_twin_close(twin);
    cmq_timer_slot slot;
    wheel = open_wheel(root, false);
    CHECK(cmq_timer_wheel_get(wheel, NOW, &slot));
    cmq_timer_wheel_close(wheel);
}

CMQ_TEST_MAIN(CMQ_TEST(slots_are_kept), CMQ_TEST(pending_slots_are_found), CMQ_TEST(another_length_is_refused),
              CMQ_TEST(a_flush_that_failed_is_made_up_for))
