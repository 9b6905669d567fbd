/* Ids for messages without one: their shape, and that no two are alike. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/send/cmq_unique_id.h"
#include "support/cmq_test.h"

static const cmq_record_host ipv4 = {.address = {10, 0, 0, 9}, .port = 10911};

static void has_the_clients_shape(void)
{
    char id[CMQ_UNIQUE_ID_BYTES_MAX];
    CHECK_INT(cmq_unique_id_make(&ipv4, id), 32);
    CHECK(memcmp(id, "0A000009", 8) == 0);
    for (int i = 0; i < 32; i++) CHECK((id[i] >= '0' && id[i] <= '9') || (id[i] >= 'A' && id[i] <= 'F'));
    char process[5] = {0};
    memcpy(process, id + 8, 4);
    CHECK_INT(strtol(process, NULL, 16), getpid() & 0xFFFF);
    char since[9] = {0};
    memcpy(since, id + 20, 8);
    const long ms = strtol(since, NULL, 16);
    CHECK(ms >= 0 && ms < 31L * 24 * 3600 * 1000 + 3600 * 1000);
    const cmq_record_host ipv6 = {.address = {0x20, 0x01}, .ipv6 = true};
    CHECK_INT(cmq_unique_id_make(&ipv6, id), 56);
    CHECK(memcmp(id, "2001", 4) == 0);
}

static int compare(const void *a, const void *b) { return memcmp(a, b, 32); }

static void no_two_are_alike(void)
{
    enum { COUNT = 60000 };
    static char ids[COUNT][32];
    for (int i = 0; i < COUNT; i++) {
        char id[CMQ_UNIQUE_ID_BYTES_MAX];
        CHECK_INT(cmq_unique_id_make(&ipv4, id), 32);
        memcpy(ids[i], id, 32);
    }
    qsort(ids, COUNT, 32, compare);
    for (int i = 1; i < COUNT; i++) CHECK(memcmp(ids[i - 1], ids[i], 32) != 0);
}

CMQ_TEST_MAIN(CMQ_TEST(has_the_clients_shape), CMQ_TEST(no_two_are_alike))
