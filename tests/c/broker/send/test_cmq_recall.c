/* Tests csrc/broker/send/cmq_recall.c: the handle of a real broker's answer, and every length within the room that is
 * asked for. */
#include "broker/send/cmq_recall.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

static const char *handle_of(const char *topic, const char *broker, int64_t out_ms, const char *unique)
{
    static char text[4096];
    const cmq_slice slices[] = {cmq_slice_of_text(topic), cmq_slice_of_text(broker), cmq_slice_of_text(unique)};
    const size_t room = cmq_recall_handle_room(slices[0], slices[1], slices[2]);
    uint8_t *into = malloc(room);
    CHECK(into != NULL && room < sizeof text);
    const size_t bytes = cmq_recall_handle_write(slices[0], slices[1], out_ms, slices[2], into);
    CHECK(bytes <= room && bytes % 4 == 0);
    memcpy(text, into, bytes);
    text[bytes] = '\0';
    free(into);
    return text;
}

static void handles_are_upstream_s(void)
{
    /* v1 TimerT broker-a 1795260282001 FD00000000000000000000000000000230835FFD2B276972099009D7, of the golden run */
    CHECK(strcmp(handle_of("TimerT", "broker-a", 1795260282000,
                           "FD00000000000000000000000000000230835FFD2B276972099009D7"),
                 "djEgVGltZXJUIGJyb2tlci1hIDE3OTUyNjAyODIwMDEgRkQwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDIzMDgzNUZGRDJCM"
                 "jc2OTcyMDk5MDA5RDc=") == 0);
    CHECK(strcmp(handle_of("a", "b", 0, ""), "djEgYSBiIDEg") == 0);
    CHECK(strcmp(handle_of("a", "b", 0, "?"), "djEgYSBiIDEgPw==") == 0);
    CHECK(strcmp(handle_of("a", "b", 0, "?>"), "djEgYSBiIDEgPz4=") == 0);
    CHECK(strcmp(handle_of("a", "b", 0, "~~?"), "djEgYSBiIDEgfn4_") == 0);
}

static void every_length_has_room(void)
{
    char unique[600];
    memset(unique, 'u', sizeof unique);
    for (size_t bytes = 0; bytes < sizeof unique; bytes++) {
        unique[bytes] = '\0';
        CHECK_INT(strlen(handle_of("topic", "broker", INT64_MAX - 1, unique)), (3 + 6 + 7 + 20 + bytes + 2) / 3 * 4);
        unique[bytes] = 'u';
    }
}

CMQ_TEST_MAIN(CMQ_TEST(handles_are_upstream_s), CMQ_TEST(every_length_has_room))
