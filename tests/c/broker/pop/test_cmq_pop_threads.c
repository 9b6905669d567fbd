/* Pops over loops that run at the same time, asked through several connections at once: each message is given to one,
 * and the group's offset comes to the end, while another thread keeps the buffer's time. Threads: yes. */
#include <stdlib.h>
#include <unistd.h>

#include "support/cmq_pop_kit.h"

enum { LOOPS = 3, MEMBERS = 6, MESSAGES = 1500, MOST = 7 };

static bool given[MESSAGES];

/* Note what an answer gives; returns how many messages, which follow the first one. */
static int note(const kit_answer *answer, int64_t *first_out)
{
    int count = 0;
    const char *at = kit_text(answer, "msgOffsetInfo");
    CHECK(strncmp(at, "0 0 ", 4) == 0);
    at += 4;
    for (char *end; *at != '\0'; count++) {
        const int64_t offset = strtoll(at, &end, 10);
        CHECK(end != at && offset >= 0 && offset < MESSAGES);
        CHECK(!given[offset]);   /* to nobody else */
        given[offset] = true;
        if (count == 0) *first_out = offset;
        CHECK_INT(offset, *first_out + count);
        at = *end == ',' ? end + 1 : end;
    }
    return count;
}

static void each_message_is_given_once(const cmq_pop_service_options *options)
{
    int clients[MEMBERS], left = MESSAGES;
    memset(given, 0, sizeof given);
    kit_broker_start_pops_threads(&kit, cmq_test_directory(), options, LOOPS);
    for (int i = 0; i < MEMBERS; i++) clients[i] = kit_client(&kit);
    asked few = all;
    few.most = MOST;
    for (int sent = 0; left > 0;) {
        /* All ask, and one sends, at once. */
        const int more = sent < MESSAGES ? 25 : 0;
        for (int i = 0; i < more; i++) kit_send_message(clients[0], 1000 + sent + i, "T", "a", "hello");
        for (int i = 0; i < more; i++) expect(clients[0], 1000 + sent + i, OK);
        sent += more;
        for (int i = 0; i < MEMBERS; i++) pop(clients[i], i, few);
        batch batches[MEMBERS];
        int counts[MEMBERS] = {0};
        for (int i = 0; i < MEMBERS; i++) {
            const kit_answer *answer = kit_answer_of(&kit, clients[i]);
            int64_t first = 0;
            CHECK(answer->command.code == OK || answer->command.code == POLLING_TIMEOUT);
            if (answer->command.code == OK) counts[i] = note(answer, &first);
            batches[i] = batch_of(answer, first);
            left -= counts[i];
        }
        /* All members acknowledge at the same time. */
        for (int i = 0; i < MEMBERS; i++)
            for (int n = 0; n < counts[i]; n++) {
                const int64_t offset = batches[i].start_offset + n;
                settle_to(clients[(i + 1) % MEMBERS], 100 + n, ACK, "T", 0, offset, handle_of(&batches[i], offset), 0);
            }
        CHECK_OK(cmq_pop_service_step(kit.pops));
        for (int i = 0; i < MEMBERS; i++)
            for (int n = 0; n < counts[i]; n++) expect(clients[(i + 1) % MEMBERS], 100 + n, OK);
    }
    for (int i = 0; i < MESSAGES; i++) CHECK(given[i]);
    CHECK_OK(cmq_store_flush(kit.store));
    CHECK_OK(cmq_pop_service_step(kit.pops));
    CHECK_INT(committed("T"), MESSAGES);
    for (int i = 0; i < MEMBERS; i++) close(clients[i]);
    kit_broker_stop(&kit);
}

static void when_all_is_stored(void) { each_message_is_given_once(NULL); }
static void when_pops_are_merged(void) { each_message_is_given_once(&(cmq_pop_service_options){.merge = true}); }

/* Held on every loop, each of them wakes for the same arrival; one has it, nobody loses it. */
static void waiting_pops_on_any_loop_get_each_message_once(void)
{
    enum { ROUNDS = 200 };
    int clients[MEMBERS], producer;
    bool waits[MEMBERS] = {false};
    memset(given, 0, sizeof given);
    kit_broker_start_pops_threads(&kit, cmq_test_directory(), NULL, LOOPS);
    for (int i = 0; i < MEMBERS; i++) clients[i] = kit_client(&kit);
    producer = kit_client(&kit);
    for (int sent = 0, taken = 0; taken < ROUNDS;) {
        asked what = waiting(60000);
        what.most = 1;
        for (int i = 0; i < MEMBERS; i++)
            if (!waits[i]) pop(clients[i], i, what);
        memset(waits, true, sizeof waits);
        /* As many as there are members, so that each answer is awaited, whoever is the first. */
        for (int i = 0; i < MEMBERS; i++) kit_send_message(producer, sent + i, "T", "a", "x");
        for (int i = 0; i < MEMBERS; i++) expect(producer, sent++, OK);
        for (int i = 0; i < MEMBERS; i++) {
            int64_t first = 0;
            taken += note(expect(clients[i], i, OK), &first);
            waits[i] = false;
        }
        CHECK_INT(taken, sent);
    }
    close(producer);
    for (int i = 0; i < MEMBERS; i++) close(clients[i]);
    kit_broker_stop(&kit);
}

/* One loop's ack frees the queue while another loop's pop looks at it and is held: either sees the other. */
static void a_pop_that_is_held_while_its_queue_becomes_free_goes_on(void)
{
    enum { ROUNDS = 1000 };
    kit_broker_start_pops_threads(&kit, cmq_test_directory(), NULL, 2);
    int clients[2] = {kit_client(&kit), kit_client(&kit)};   /* one on each loop */
    asked one = waiting(20000);
    one.order = true;
    one.most = 1;
    for (int i = 0; i <= ROUNDS; i++) {
        kit_send_message(clients[0], 1, "T", "a", "x");
        expect(clients[0], 1, OK);
    }
    pop(clients[0], 2, one);
    batch out = batch_of(expect(clients[0], 2, OK), 0);
    for (int64_t i = 0; i < ROUNDS; i++) {
        const int acks = clients[i % 2], pops = clients[1 - i % 2];
        pop(pops, 3, one);
        settle_to(acks, 4, ACK, "T", 0, i, handle_of(&out, i), 0);
        expect(acks, 4, OK);
        const kit_answer *answer = expect(pops, 3, OK);
        out = batch_of(answer, i + 1);
    }
    for (int i = 0; i < 2; i++) close(clients[i]);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(when_all_is_stored), CMQ_TEST(when_pops_are_merged),
              CMQ_TEST(waiting_pops_on_any_loop_get_each_message_once),
              CMQ_TEST(a_pop_that_is_held_while_its_queue_becomes_free_goes_on))
