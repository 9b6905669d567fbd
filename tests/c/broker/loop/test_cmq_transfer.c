/* Tests of the way from the log into answers: pulls and pops return the records that the queue's units were made for,
 * and never another record's bytes or zeros that stand for a page that cannot be read. Each way of an answer is tried:
 * copied, lent from the map, popped, peeked.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"

enum { OK = 0, ERROR = 1, MESSAGES = 5, DAMAGED = 2, SEGMENT_BYTES = 65536, LENT = 9000, COPIED = 2000 };

static kit_broker kit;
static char root[256];
static int64_t starts[MESSAGES];

/* MESSAGES messages of T and one each of U and V; the last of all begins the second segment. Time is the kit's. */
static void serve(size_t body_bytes)
{
    static char body[LENT + 1], last[SEGMENT_BYTES / 2 + 1];
    snprintf(root, sizeof root, "%s", kit_directory());
    cmq_store_options options = kit_options(root);
    options.segment_bytes = SEGMENT_BYTES;
    cmq_store *store = kit_open(&options);
    memset(body, 'b', body_bytes);
    memset(last, 'l', sizeof last - 1);
    body[body_bytes] = '\0';
    for (int i = 0; i < MESSAGES; i++) starts[i] = kit_append(store, "T", 0, body, "A", NULL).first_physical_offset;
    (void)kit_append(store, "U", 0, last, NULL, NULL);
    CHECK(kit_append(store, "U", 0, last, NULL, NULL).first_physical_offset >= SEGMENT_BYTES);
    kit_broker_serve_pops(&kit, store, KIT_BROKER_MS, NULL);
}

static void overwrite(int64_t at, const void *bytes, size_t count)
{
    const int fd = open(kit_path(root, "commitlog/00000000000000000000"), O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_INT(pwrite(fd, bytes, count, at), (ssize_t)count);
    close(fd);
}

/* ---- the ways ---- */

/* Asks from `offset` on for all there is. Returns the code. */
typedef const kit_answer *(*way)(int client, int64_t offset);

static const kit_answer *pulled(int client, int64_t offset)
{
    kit_pull(client, 7, "T", offset, 4, 0, "*");
    return kit_answer_of(&kit, client);
}

/* Pops begin where the group is: it is moved. */
static void commit(int client, int64_t offset)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)offset);
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"}, {"queueId", "0"}, {"commitOffset", text}, {NULL, NULL}};
    kit_request(client, 15, 8, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
}

static const kit_answer *popped_by(int client, int64_t offset, int32_t code)
{
    const kit_field fields[] = {{"consumerGroup", "G"},
                                {"topic", "T"},
                                {"queueId", "0"},
                                {"maxMsgNums", "32"},
                                {"invisibleTime", "60000"},
                                {"pollTime", "0"},
                                {"bornTime", "1700000000000"},
                                {"initMode", "0"},
                                {NULL, NULL}};
    commit(client, offset);
    kit_request(client, code, 9, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    return kit_answer_of(&kit, client);
}

static const kit_answer *popped(int client, int64_t offset) { return popped_by(client, offset, 200050); }
static const kit_answer *peeked(int client, int64_t offset) { return popped_by(client, offset, 200052); }

/* How many records of T with sound bodies the answer has, from queue offset `from` on. */
static int64_t records_in(const kit_answer *answer, int64_t from)
{
    int64_t count = 0;
    for (cmq_slice rest = answer->body; rest.bytes > 0; count++) {
        cmq_record_view view;
        CHECK_OK(cmq_record_parse(rest.data, rest.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
        CHECK(cmq_slice_equal(view.topic, kit_slice("T")));
        CHECK_INT(view.queue_offset, from + count);
        rest.data += view.record_bytes;
        rest.bytes -= view.record_bytes;
    }
    return count;
}

/* Messages before the damaged one are returned, it is an error with a place, and those behind it are returned. */
static void check_around(int client, way ask)
{
    const kit_answer *answer = ask(client, 0);
    CHECK_INT(answer->command.code, OK);
    CHECK_INT(records_in(answer, 0), DAMAGED);
    answer = ask(client, DAMAGED);
    CHECK_INT(answer->command.code, ERROR);
    CHECK(memmem(answer->command.remark.data, answer->command.remark.bytes, "verify", 6) != NULL);
    answer = ask(client, DAMAGED + 1);
    CHECK_INT(answer->command.code, OK);
    CHECK_INT(records_in(answer, DAMAGED + 1), MESSAGES - DAMAGED - 1);
}

typedef struct form {
    way ask;
    size_t body_bytes;
} form;
static const form forms[] = {{pulled, COPIED}, {pulled, LENT}, {popped, COPIED}, {peeked, COPIED}};
#define FORMS (sizeof forms / sizeof forms[0])

/* ---- tests ---- */

static void sound_records_are_returned_each_way(void)
{
    for (size_t i = 0; i < FORMS; i++) {
        serve(forms[i].body_bytes);
        const int client = kit_client(&kit);
        const kit_answer *answer = forms[i].ask(client, 0);
        CHECK_INT(answer->command.code, OK);
        CHECK_INT(records_in(answer, 0), MESSAGES);
        close(client);
        kit_broker_stop(&kit);
    }
}

/* A record that says another place, queue or topic than its unit's queue. */
static void records_of_others_are_errors_with_their_place(void)
{
    static const struct {
        int64_t at;
        const char *bytes;
        size_t count;
    } damages[] = {
        {CMQ_RECORD_AT_SIZE, "\0\0\0\1", 4},
        {CMQ_RECORD_AT_MAGIC, "\0", 1},
        {CMQ_RECORD_AT_QUEUE_ID, "\0\0\0\1", 4},
        {CMQ_RECORD_AT_PHYSICAL_OFFSET, "\0\0\0\0\0\0\0\1", 8},
        {-1, "U", 1},   /* the topic's only byte */
    };
    for (size_t i = 0; i < FORMS; i++) {
        for (size_t j = 0; j < sizeof damages / sizeof damages[0]; j++) {
            serve(forms[i].body_bytes);
            const int64_t topic_at =
                (int64_t)CMQ_RECORD_AT_STORE_HOST + 8 + 4 + 8 + 4 + (int64_t)forms[i].body_bytes + 1;
            overwrite(starts[DAMAGED] + (damages[j].at < 0 ? topic_at : damages[j].at), damages[j].bytes,
                      damages[j].count);
            const int client = kit_client(&kit);
            check_around(client, forms[i].ask);
            close(client);
            kit_broker_stop(&kit);
        }
    }
}

/* The file ends inside the damaged record: records behind it cannot be read either. */
static void pages_that_cannot_be_read_are_errors(void)
{
    for (size_t i = 0; i < FORMS; i++) {
        serve(LENT);
        const int client = kit_client(&kit);
        CHECK(truncate(kit_path(root, "commitlog/00000000000000000000"), starts[DAMAGED] / 4096 * 4096 + 4096) == 0);
        const kit_answer *answer = forms[i].ask(client, 0);
        CHECK_INT(answer->command.code, OK);
        CHECK_INT(records_in(answer, 0), DAMAGED);
        for (int64_t offset = DAMAGED; offset < MESSAGES; offset++) {
            answer = forms[i].ask(client, offset);
            CHECK_INT(answer->command.code, ERROR);
            CHECK(memmem(answer->command.remark.data, answer->command.remark.bytes, "verify", 6) != NULL);
        }
        CHECK(truncate(kit_path(root, "commitlog/00000000000000000000"), SEGMENT_BYTES) == 0);
        close(client);
        kit_broker_stop(&kit);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(sound_records_are_returned_each_way), CMQ_TEST(records_of_others_are_errors_with_their_place),
              CMQ_TEST(pages_that_cannot_be_read_are_errors))
