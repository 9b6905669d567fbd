/* Tests csrc/wire/cmq_frame.c: where frames end, every strict prefix of one, and lengths that lie. */
#include "wire/cmq_frame.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_frame_kit.h"
#include "support/cmq_test.h"

static cmq_status next(const uint8_t *data, size_t bytes, cmq_frame *frame_out, size_t *needed_out)
{
    return cmq_frame_next((cmq_slice){.data = data, .bytes = bytes}, CMQ_FRAME_BYTES_MAX, frame_out, needed_out);
}

static void frame_is_stepped(const char *name, cmq_slice whole)
{
    (void)name;
    cmq_frame frame;
    size_t needed;
    for (size_t bytes = 0; bytes < whole.bytes; bytes++) {
        uint8_t *part = malloc(bytes > 0 ? bytes : 1);   /* of its exact size, for the address sanitizer */
        memcpy(part, whole.data, bytes);
        CHECK_STATUS(next(part, bytes, &frame, &needed), CMQ_AGAIN);
        CHECK_INT(needed, bytes < 4 ? CMQ_FRAME_PREFIX_BYTES : whole.bytes);
        CHECK(frame.bytes == 0 && frame.header.data == NULL);
        free(part);
    }
    CHECK_OK(next(whole.data, whole.bytes, &frame, &needed));
    CHECK_INT(frame.bytes, whole.bytes);
    CHECK(frame.header.data == whole.data + CMQ_FRAME_PREFIX_BYTES);
    CHECK(frame.body.data == frame.header.data + frame.header.bytes);
    CHECK(frame.body.data + frame.body.bytes == whole.data + whole.bytes);

    uint8_t prefix[CMQ_FRAME_PREFIX_BYTES];
    cmq_frame_write_prefix(prefix, frame.format, (uint32_t)frame.header.bytes, (uint32_t)frame.body.bytes);
    CHECK_BYTES(prefix, sizeof prefix, whole.data, sizeof prefix);
}

static void test_captured_frames(void) { CHECK(cmq_kit_golden_frames(frame_is_stepped) >= 100); }

static void test_two_frames_in_one_buffer(void)
{
    size_t bytes;
    uint8_t *both = cmq_kit_hex("00000006 00000002 7b7d  0000000a 01000001 2a 6162636465 00", &bytes);
    cmq_frame frame;
    size_t needed;
    CHECK_OK(next(both, bytes, &frame, &needed));
    CHECK_INT(frame.format, CMQ_HEADER_JSON);
    CHECK_BYTES(frame.header.data, frame.header.bytes, "{}", 2);
    CHECK_INT(frame.body.bytes, 0);
    const size_t first = frame.bytes;
    CHECK_OK(next(both + first, bytes - first, &frame, &needed));
    CHECK_INT(frame.format, CMQ_HEADER_ROCKETMQ);
    CHECK_INT(frame.header.bytes, 1);
    CHECK_BYTES(frame.body.data, frame.body.bytes, "abcde", 5);
    CHECK_INT(frame.bytes, bytes - first - 1);
    CHECK_STATUS(next(both + bytes - 1, 1, &frame, &needed), CMQ_AGAIN);
    free(both);
}

static void check_refused(const char *digits, uint32_t frame_bytes_max, const char *reason)
{
    size_t bytes, needed;
    uint8_t *data = cmq_kit_hex(digits, &bytes);
    cmq_frame frame;
    CHECK_STATUS(cmq_frame_next((cmq_slice){.data = data, .bytes = bytes}, frame_bytes_max, &frame, &needed),
                 CMQ_ERR_CORRUPT);
    if (strstr(cmq_last_error()->text, reason) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "`%s` does not say `%s`", cmq_last_error()->text, reason);
    CHECK(frame.bytes == 0);
    free(data);
}

static void test_lying_lengths(void)
{
    check_refused("00000000 00000000", CMQ_FRAME_BYTES_MAX, "no room");
    check_refused("00000003", CMQ_FRAME_BYTES_MAX, "no room");
    check_refused("00fffffd", CMQ_FRAME_BYTES_MAX, "at most 16777216");
    check_refused("ffffffff 00000000", CMQ_FRAME_BYTES_MAX, "at most");
    check_refused("80000000", CMQ_FRAME_BYTES_MAX, "at most");
    check_refused("16030100", CMQ_FRAME_BYTES_MAX, "at most");   /* a TLS hello */
    check_refused("47455420", CMQ_FRAME_BYTES_MAX, "at most");   /* "GET " */
    check_refused("00000011 00000001", 20, "at most 20");
    check_refused("00000004 00000000", 3, "at most 3");
    check_refused("00000008 02000001", CMQ_FRAME_BYTES_MAX, "header format 2");
    check_refused("00000008 ff000001", CMQ_FRAME_BYTES_MAX, "header format 255");
    check_refused("00000008 00000005", CMQ_FRAME_BYTES_MAX, "header of 5 bytes in 4");
    check_refused("00000004 00ffffff", CMQ_FRAME_BYTES_MAX, "header of 16777215 bytes in 0");
}

static void test_limits_are_included(void)
{
    size_t bytes, needed;
    cmq_frame frame;
    uint8_t *data = cmq_kit_hex("00fffffc 00000001", &bytes);   /* 16 MiB in all */
    CHECK_STATUS(next(data, bytes, &frame, &needed), CMQ_AGAIN);
    CHECK_INT(needed, CMQ_FRAME_BYTES_MAX);
    free(data);
    data = cmq_kit_hex("00000004 00000000", &bytes);
    CHECK_OK(cmq_frame_next((cmq_slice){.data = data, .bytes = bytes}, 8, &frame, &needed));
    CHECK_INT(frame.bytes, 8);
    CHECK_INT(frame.header.bytes + frame.body.bytes, 0);
    free(data);
}

CMQ_TEST_MAIN(CMQ_TEST(test_captured_frames), CMQ_TEST(test_two_frames_in_one_buffer), CMQ_TEST(test_lying_lengths),
              CMQ_TEST(test_limits_are_included))
