/* Tests csrc/broker/pop/cmq_pop_poll_count.c: how many pops are held is asked for on one loop, and counted on all. */
#include <unistd.h>

#include "support/cmq_pop_kit.h"

static int64_t held(int client, int32_t opaque, asked what)
{
    look(client, POLLING_INFO, opaque, what);
    return kit_number(expect(client, opaque, OK), "pollingNum");
}

static void held_pops_are_counted_on(uint32_t loops)
{
    enum { CLIENTS = 7 };
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, loops);
    const int client = kit_client(&kit);
    int clients[CLIENTS];
    asked one_queue = waiting(15000), strangers = waiting(15000);
    one_queue.queue_id = 2;
    kit_broker_subscribe(&kit, "H", "T", "*", 1);
    strangers.group = "H";
    CHECK_INT(held(client, 1, all), 0);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = kit_client(&kit);
        pop(clients[i], i, i == 0 ? strangers : i < 3 ? one_queue : waiting(15000));
        CHECK(kit_is_silent(&kit, clients[i]));
    }
    CHECK_INT(held(client, 2, all), 4);
    CHECK_INT(held(client, 3, one_queue), 2);
    CHECK_INT(held(client, 4, strangers), 1);
    CHECK_INT(held(clients[6], 5, all), 4);   /* of another loop than the first client's, where there are more */
    look(client, NOTIFICATION, 6, waiting(15000));   /* no pop */
    CHECK(kit_is_silent(&kit, client));
    close(clients[3]);
    CHECK(kit_is_silent(&kit, client));
    CHECK_INT(held(clients[6], 7, all), 3);
    for (int i = 0; i < CLIENTS; i++)
        if (i != 3) close(clients[i]);
    close(client);
    kit_broker_stop(&kit);
}

static void on_one_loop(void) { held_pops_are_counted_on(1); }
static void on_three_loops(void) { held_pops_are_counted_on(3); }

static void an_asking_client_may_close_meanwhile(void)
{
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, 2);
    const int first = kit_client(&kit), second = kit_client(&kit);
    look(first, POLLING_INFO, 1, all);
    close(first);
    CHECK_INT(held(second, 2, all), 0);
    CHECK(kit_is_silent(&kit, second));
    CHECK(cmq_net_is_idle(kit.net));
    /* Asked, and the broker ends before the others have counted. */
    look(second, POLLING_INFO, 3, all);
    kit_broker_turn(&kit);
    close(second);
    kit_broker_stop(&kit);
}

static void forbidden_questions_are_refused(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    asked what = all;
    what.topic = "unknown";
    look(client, POLLING_INFO, 1, what);
    expect(client, 1, 17);
    what = all;
    what.queue_id = 4;
    look(client, POLLING_INFO, 2, what);
    expect(client, 2, 29);
    kit_request(client, POLLING_INFO, 3, 0, CMQ_HEADER_JSON, (const kit_field[]){{"topic", "T"}, {NULL, NULL}}, NULL,
                0);
    expect(client, 3, 1);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(on_one_loop), CMQ_TEST(on_three_loops), CMQ_TEST(an_asking_client_may_close_meanwhile),
              CMQ_TEST(forbidden_questions_are_refused))
