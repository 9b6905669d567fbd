/* Tests csrc/load: runs against a broker in memory: every way of sending and consuming is verified, and every way of
 * erring is found.
 *
 * Threads: yes: the broker's own.
 */
#include "load/cmq_load.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_fake_broker.h"
#include "support/cmq_test.h"
#include "wire/cmq_command.h"

enum { QUEUES = 3 };

static const cmq_load_queue queues[QUEUES] = {{.queue_id = 0}, {.queue_id = 1}, {.queue_id = 2}};

typedef struct ran {
    cmq_status status;
    char text[CMQ_ERROR_TEXT_BYTES];
    cmq_load_result result;
} ran;

static cmq_load_options options_of(const cmq_load_endpoint *endpoint)
{
    return (cmq_load_options){
        .endpoints = endpoint,
        .endpoint_count = 1,
        .queues = queues,
        .queue_count = QUEUES,
        .topic = CMQ_NAME("LoadTest"),
        .producers = 2,
        .count = 600,
        .timeout_ms = 60000,
        .run = 0xC0FFEE,
    };
}

/* One run against a fresh broker; free() what comes back. */
static ran *run_with(const cmq_load_options *like, cmq_fake_fault fault)
{
    ran *done = calloc(1, sizeof *done);
    CHECK(done != NULL);
    cmq_fake_broker *broker = cmq_fake_broker_start(QUEUES, fault);
    const cmq_load_endpoint endpoint = {
        .host = "127.0.0.1", .port = cmq_fake_broker_port(broker), .broker = "broker-f"};
    cmq_load_options options = *like;
    cmq_load *load;
    options.endpoints = &endpoint;
    CHECK_OK(cmq_load_create(&load, &options));
    done->status = cmq_load_run(load);
    if (done->status != CMQ_OK) strcpy(done->text, cmq_last_error()->text);
    done->result = *cmq_load_result_of(load);
    cmq_load_progress progress;
    cmq_load_look(load, &progress);
    CHECK_INT(progress.phase, CMQ_LOAD_DONE);
    CHECK(progress.sent == done->result.sent && progress.consumed == done->result.consumed);
    cmq_load_destroy(load);
    cmq_fake_broker_stop(broker);
    return done;
}

/* The same with a time-out that is also how long a missing message is waited for: short, and longer where the broker's
 * thread did not get to answer within it. */
static ran *run_impatient(const cmq_load_options *like, cmq_fake_fault fault)
{
    cmq_load_options options = *like;
    for (options.timeout_ms = 300;; options.timeout_ms *= 2) {
        ran *done = run_with(&options, fault);
        if (done->status != CMQ_ERR_IO) return done;
        free(done);
    }
}

static void check_verified(const cmq_load_options *options)
{
    ran *done = run_with(options, CMQ_FAKE_SOUND);
    const cmq_load_result *r = &done->result;
    if (done->status != CMQ_OK) cmq_test_fail(__FILE__, __LINE__, "the run failed: %s", done->text);
    if (!r->verified) cmq_test_fail(__FILE__, __LINE__, "not verified: %s", r->problem);
    CHECK(!r->stopped && r->problem[0] == 0);
    CHECK(r->sent == r->accepted && r->refused == 0 && r->not_on_disk == 0);
    CHECK(options->count == 0 || r->sent == options->count);
    CHECK(r->sends * (options->batch > 1 ? options->batch : 1) == r->sent);
    CHECK(r->consumed == (options->consumers > 0 ? r->sent : 0));
    CHECK(r->duplicates + r->broken + r->bad_offsets + r->holes + r->missing == 0);
    CHECK(r->send_latency.count == (options->oneway ? 0 : r->sends));
    CHECK(r->end_to_end.count == (options->consumers > 0 && !options->consume_after ? r->sent : 0));
    CHECK(r->send_ns > 0 && r->send_cpu_ns > 0);
    CHECK((r->consume_ns > 0) == (options->consumers > 0));
    free(done);
}

static void test_sends_only(void)
{
    cmq_load_options options = options_of(NULL);
    check_verified(&options);
    options.depth = 16;
    check_verified(&options);
    options.batch = 20;
    check_verified(&options);
    options.body_bytes = 5000;
    check_verified(&options);
    options.no_wait = true;
    options.producers = 7;
    check_verified(&options);
}

static void test_both_header_formats(void)
{
    cmq_load_options options = options_of(NULL);
    options.format = CMQ_HEADER_ROCKETMQ;
    options.consumers = 2;
    options.depth = 8;
    check_verified(&options);
    options.batch = 4;
    check_verified(&options);
}

static void test_consumers_at_once_and_after(void)
{
    cmq_load_options options = options_of(NULL);
    options.depth = 32;
    for (uint32_t consumers = 1; consumers <= 4; consumers++) {   /* the fourth has no queue */
        options.consumers = consumers;
        options.consume_after = false;
        check_verified(&options);
        options.consume_after = true;
        check_verified(&options);
    }
}

static void test_pops(void)
{
    cmq_load_options options = options_of(NULL);
    options.depth = 32;
    options.consume_after = true;
    for (uint32_t consumers = 1; consumers <= 4; consumers++) {
        options.consumers = consumers;
        options.take = CMQ_LOAD_POP;
        options.pops_in_flight = consumers;
        check_verified(&options);
        options.take = CMQ_LOAD_POP_ACK_EACH;
        options.pull_messages = 8 * consumers;
        ran *done = run_with(&options, CMQ_FAKE_SOUND);
        CHECK_OK(done->status);
        if (!done->result.verified) cmq_test_fail(__FILE__, __LINE__, "not verified: %s", done->result.problem);
        CHECK(done->result.acks == 600 && done->result.acked == 600 && done->result.consumed == 600);
        CHECK(done->result.pulls >= 600 / options.pull_messages);
        free(done);
    }
}

static void test_oneway(void)
{
    cmq_load_options options = options_of(NULL);
    options.oneway = true;
    check_verified(&options);
    options.consumers = 1;
    options.depth = 50;
    options.count = 3000;
    check_verified(&options);
    options.consume_after = true;
    options.batch = 10;
    check_verified(&options);
}

static void test_transactions(void)
{
    cmq_load_options options = options_of(NULL);
    options.transactions = true;
    check_verified(&options);
    options.depth = 16;
    options.format = CMQ_HEADER_ROCKETMQ;
    check_verified(&options);
    options.consumers = 2;
    check_verified(&options);
    options.consume_after = true;
    check_verified(&options);
}

/* One transaction at a time: the fault meets the commit of the send that it counts. */
static ran *run_transactions(cmq_fake_fault fault, uint32_t consumers)
{
    cmq_load_options options = options_of(NULL);
    options.transactions = true;
    options.producers = 1;
    options.consumers = consumers;
    return run_impatient(&options, fault);
}

static void test_errors_of_transactions_are_found(void)
{
    static const struct {
        cmq_fake_fault fault;
        uint32_t consumers;
        cmq_status status;
        const char *text;
    } faults[] = {
        {CMQ_FAKE_LOSES_OFFSET, 0, CMQ_OK, "the queues grew by 599 messages, and 600 were accepted"},
        {CMQ_FAKE_DOUBLES, 0, CMQ_OK, "the queues grew by 601 messages, and 600 were accepted"},
        {CMQ_FAKE_DOUBLES, 1, CMQ_OK, "was redelivered"},
        {CMQ_FAKE_CHANGES, 1, CMQ_OK, "does not have its CRC"},
        {CMQ_FAKE_NO_FIELDS, 0, CMQ_ERR_CORRUPT, "does not name its place in the log"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        ran *done = run_transactions(faults[i].fault, faults[i].consumers);
        CHECK_INT(done->status, faults[i].status);
        CHECK(!done->result.verified);
        if (strstr(done->result.problem, faults[i].text) == NULL)
            cmq_test_fail(__FILE__, __LINE__, "`%s` does not say `%s`", done->result.problem, faults[i].text);
        free(done);
    }
    ran *done = run_transactions(CMQ_FAKE_REFUSES_ENDS, 1);
    CHECK_OK(done->status);
    CHECK(done->result.verified);
    CHECK(done->result.refused == 150 && done->result.accepted == 450 && done->result.consumed == 450);
    free(done);
}

static void test_by_time_and_paced(void)
{
    cmq_load_options options = options_of(NULL);
    options.count = 0;
    options.duration_ms = 50;
    options.consumers = 1;
    check_verified(&options);
    options.rate_per_s = 2000;
    ran *done = run_with(&options, CMQ_FAKE_SOUND);
    CHECK_OK(done->status);
    CHECK(done->result.verified);
    CHECK(done->result.sent >= 1 && done->result.sent <= 101);   /* 2000 a second for 50 ms, and the last that was
                                                                  * due */
    free(done);
    options.count = 60;
    options.oneway = true;
    check_verified(&options);
}

/* ---- faults are found ---- */

static void check_found(cmq_fake_fault fault, bool consume, const char *text)
{
    cmq_load_options options = options_of(NULL);
    options.consumers = consume ? 1 : 0;
    options.depth = 4;
    ran *done = run_impatient(&options, fault);
    CHECK(!done->result.verified);
    if (strstr(done->result.problem, text) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "`%s` does not say `%s`", done->result.problem, text);
    free(done);
}

static void test_errors_of_a_broker_are_found(void)
{
    check_found(CMQ_FAKE_LOSES, true, "came where");
    check_found(CMQ_FAKE_LOSES_OFFSET, false, "was given twice");
    check_found(CMQ_FAKE_LOSES_OFFSET, true, "was given twice");
    check_found(CMQ_FAKE_SKIPS, false, "the queues grew by 601 messages, and 600 were accepted");
    check_found(CMQ_FAKE_DOUBLES, false, "the queues grew by 601");
    check_found(CMQ_FAKE_DOUBLES, true, "was redelivered");
    check_found(CMQ_FAKE_CHANGES, true, "does not have its CRC");
    check_found(CMQ_FAKE_OTHER_QUEUE, false, "was answered for queue");
}

static void check_pops(cmq_fake_fault fault, cmq_status status, const char *text)
{
    cmq_load_options options = options_of(NULL);
    options.take = CMQ_LOAD_POP_ACK_EACH;
    options.consumers = 1;
    options.consume_after = true;
    ran *done = run_impatient(&options, fault);
    CHECK_INT(done->status, status);
    CHECK(!done->result.verified);
    if (strstr(done->result.problem, text) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "`%s` does not say `%s`", done->result.problem, text);
    free(done);
}

static void test_errors_of_pops_are_found(void)
{
    check_pops(CMQ_FAKE_LOSES_OFFSET, CMQ_OK, "was given twice");
    check_pops(CMQ_FAKE_CHANGES, CMQ_OK, "does not have its CRC");
    check_pops(CMQ_FAKE_POPS_TWICE, CMQ_OK, "was redelivered");
    check_pops(CMQ_FAKE_POPS_BARE, CMQ_ERR_CORRUPT, "lacks receipt-handle fields");
    check_pops(CMQ_FAKE_REFUSES_ACKS, CMQ_ERR_ARGUMENT, "an ack was refused with code 4: remark of the fake broker");
    check_pops(CMQ_FAKE_FORGETS_ACK, CMQ_OK, "every message is acknowledged, and the group is 1 messages behind");
}

static void check_fails(cmq_fake_fault fault, cmq_status status, const char *text)
{
    cmq_load_options options = options_of(NULL);
    options.depth = 4;
    options.count = 6000;
    options.consumers = fault == CMQ_FAKE_REFUSES_PULLS ? 1 : 0;
    options.timeout_ms = fault == CMQ_FAKE_FORGETS ? 300 : 60000;
    ran *done = run_with(&options, fault);
    CHECK_INT(done->status, status);
    CHECK(!done->result.verified);
    if (strstr(done->text, text) == NULL) cmq_test_fail(__FILE__, __LINE__, "`%s` does not say `%s`", done->text, text);
    CHECK(strncmp(done->result.problem, done->text, 40) == 0);
    free(done);
}

static void test_runs_that_cannot_go_on(void)
{
    check_fails(CMQ_FAKE_FORGETS, CMQ_ERR_IO, "did not answer within 300 ms");
    check_fails(CMQ_FAKE_BABBLES, CMQ_ERR_CORRUPT, "in the output of 127.0.0.1:");
    check_fails(CMQ_FAKE_NO_FIELDS, CMQ_ERR_CORRUPT, "does not name queue and offset");
    check_fails(CMQ_FAKE_REFUSES_ALL, CMQ_ERR_ARGUMENT,
                "refused 1000 sends in a row, the last with code 2: remark of the fake broker");
    check_fails(CMQ_FAKE_REFUSES_PULLS, CMQ_ERR_ARGUMENT, "refused with code 24: remark of the fake broker");
    cmq_load_options options = options_of(NULL);
    ran *done = run_with(&options, CMQ_FAKE_CLOSES);   /* with what was still to be read, or before the next send: two
                                                        * texts */
    CHECK(done->status == CMQ_ERR_IO && !done->result.verified);
    free(done);
}

static void test_refusals_are_counted(void)
{
    cmq_load_options options = options_of(NULL);
    options.consumers = 1;
    ran *done = run_with(&options, CMQ_FAKE_REFUSES_SOME);
    CHECK_OK(done->status);
    CHECK(done->result.verified);
    CHECK_INT(done->result.refused, 150);
    CHECK_INT(done->result.accepted, 450);
    CHECK_INT(done->result.consumed, 450);
    CHECK(strcmp(done->result.refusal, "code 2: remark of the fake broker") == 0);
    free(done);
}

static void test_nobody_listens(void)
{
    cmq_fake_broker *broker = cmq_fake_broker_start(1, CMQ_FAKE_SOUND);
    const cmq_load_endpoint endpoint = {.host = "127.0.0.1", .port = cmq_fake_broker_port(broker)};
    cmq_fake_broker_stop(broker);
    const cmq_load_options options = options_of(&endpoint);
    cmq_load *load;
    CHECK_OK(cmq_load_create(&load, &options));
    CHECK_STATUS(cmq_load_run(load), CMQ_ERR_IO);
    CHECK(strstr(cmq_last_error()->text, "connecting to 127.0.0.1:") != NULL);
    cmq_load_destroy(load);
}

/* ---- stopping ---- */

static void *run_in_thread(void *load)
{
    CHECK_OK(cmq_load_run(load));
    return NULL;
}

static void test_stop(void)
{
    cmq_fake_broker *broker = cmq_fake_broker_start(QUEUES, CMQ_FAKE_SOUND);
    const cmq_load_endpoint endpoint = {.host = "127.0.0.1", .port = cmq_fake_broker_port(broker)};
    cmq_load_options options = options_of(&endpoint);
    cmq_load *load;
    pthread_t thread;
    options.count = 0;
    options.duration_ms = 3600000;
    options.consumers = 1;
    CHECK_OK(cmq_load_create(&load, &options));
    CHECK(pthread_create(&thread, NULL, run_in_thread, load) == 0);
    cmq_load_progress progress = {0};
    while (progress.consumed < 100) cmq_load_look(load, &progress);
    CHECK_INT(progress.phase, CMQ_LOAD_SENDING);
    cmq_load_stop(load);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(cmq_load_result_of(load)->stopped && !cmq_load_result_of(load)->verified);
    CHECK(cmq_load_result_of(load)->problem[0] == 0);
    CHECK(cmq_load_result_of(load)->consumed >= 100 && cmq_load_result_of(load)->send_ns > 0);
    cmq_load_destroy(load);
    cmq_fake_broker_stop(broker);
}

/* ---- options ---- */

static void check_refused(const cmq_load_options *options, const char *text)
{
    cmq_load *load;
    CHECK_STATUS(cmq_load_create(&load, options), CMQ_ERR_ARGUMENT);
    CHECK(load == NULL);
    if (strstr(cmq_last_error()->text, text) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "`%s` does not say `%s`", cmq_last_error()->text, text);
}

static void test_options(void)
{
    static const cmq_load_endpoint endpoint = {.host = "127.0.0.1", .port = 1},
                                   named = {.host = "localhost", .port = 1};
    static const cmq_load_queue elsewhere = {.endpoint = 1};
    const cmq_load_endpoint two[] = {endpoint, endpoint};
    cmq_load_options options;
#define CHECK_REFUSED(field, value, text)  \
    do {                                   \
        options = options_of(&endpoint);   \
        options.field = value;             \
        check_refused(&options, text);     \
    } while (0)
    CHECK_REFUSED(endpoints, &named, "localhost is not a numeric address");
    CHECK_REFUSED(endpoint_count, 0, "the number of endpoints is 0");
    CHECK_REFUSED(queue_count, 0, "the number of queues is 0");
    CHECK_REFUSED(producers, 0, "the number of producers is 0");
    CHECK_REFUSED(depth, 5000, "depth is 5000; it is between 1 and 4096");
    CHECK_REFUSED(body_bytes, 39, "body_bytes is 39; it is between 40");
    CHECK_REFUSED(body_bytes, 5u << 20, "body_bytes is");
    CHECK_REFUSED(batch, 7, "count is 600, and no multiple of batch, 7");
    CHECK_REFUSED(batch, 5000, "batch is 5000");
    CHECK_REFUSED(duration_ms, -1, "duration_ms");
    CHECK_REFUSED(timeout_ms, -1, "timeout_ms");
    CHECK_REFUSED(topic, CMQ_SLICE_NONE, "the length of the topic's name is 0");
    CHECK_REFUSED(topic, CMQ_NAME("a7777777777777"), "hold a text that marks a place");
    CHECK_REFUSED(take, 4, "take is 4; it is between 0 and 3");
    CHECK_REFUSED(invisible_ms, -1, "invisible_ms");
    CHECK_REFUSED(pops_in_flight, 5000, "pops_in_flight is 5000");
    options = options_of(&endpoint);
    options.take = CMQ_LOAD_POP;
    options.pull_messages = 33;
    check_refused(&options, "pull_messages is 33; it is between 1 and 32");
    options = options_of(&endpoint);
    options.transactions = options.oneway = true;
    check_refused(&options, "transactions go neither with batches nor one-way");
    options.oneway = false;
    options.batch = 2;
    check_refused(&options, "transactions go neither with batches nor one-way");
    options = options_of(two);
    options.endpoint_count = 2;
    check_refused(&options, "endpoint 1 (127.0.0.1) has no queue");
    options = options_of(&endpoint);
    options.queues = &elsewhere;
    options.queue_count = 1;
    check_refused(&options, "of endpoint 1, and there are 1");
}

CMQ_TEST_MAIN(CMQ_TEST(test_sends_only), CMQ_TEST(test_both_header_formats), CMQ_TEST(test_consumers_at_once_and_after),
              CMQ_TEST(test_pops), CMQ_TEST(test_transactions), CMQ_TEST(test_errors_of_transactions_are_found),
              CMQ_TEST(test_oneway), CMQ_TEST(test_by_time_and_paced),
              CMQ_TEST(test_errors_of_a_broker_are_found), CMQ_TEST(test_errors_of_pops_are_found),
              CMQ_TEST(test_runs_that_cannot_go_on), CMQ_TEST(test_refusals_are_counted), CMQ_TEST(test_nobody_listens),
              CMQ_TEST(test_stop), CMQ_TEST(test_options))
