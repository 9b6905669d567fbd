/* golden_timer STORE NOW_MS: let the timers of this store, which a real RocketMQ left, go on at that time, and stop
 * cleanly.
 *
 * Prints how many were entered, delivered, skipped and are pending. tests/golden/test_golden_timer.py compares what it
 * left with what the broker had. The store is changed: give it a copy. Exit 0: done.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "broker/timer/cmq_timer.h"

static _Atomic int64_t now_ms;

static void must(cmq_status status, const char *what)
{
    if (status == CMQ_OK) return;
    fprintf(stderr, "golden_timer: %s: %s\n", what, cmq_last_error()->text);
    exit(1);
}

int main(int argc, char **argv)
{
    cmq_store *store;
    cmq_timer *timer;
    cmq_timer_counters counters;
    int64_t next_due;
    if (argc != 3) {
        fprintf(stderr, "usage: golden_timer STORE NOW_MS\n");
        return 2;
    }
    atomic_store(&now_ms, strtoll(argv[2], NULL, 10));
    const cmq_store_options options = {.path = argv[1], .clock = cmq_clock_manual(&now_ms), .flush = CMQ_FLUSH_ASYNC};
    must(cmq_store_open(&store, &options), "cannot open");
    const cmq_timer_options timers = {.store = store, .clock = cmq_clock_manual(&now_ms), .manual = true};
    must(cmq_timer_create(&timer, &timers), "cannot take the timers over");
    must(cmq_timer_start(timer), "cannot start");
    must(cmq_timer_step(timer, &next_due), "cannot deliver");
    cmq_timer_count(timer, &counters);
    must(cmq_timer_stop(timer), "cannot stop");
    cmq_timer_destroy(timer);
    must(cmq_store_close(store), "cannot close");
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 "\n", counters.entered, counters.delivered, counters.skipped,
           counters.pending);
    return 0;
}
