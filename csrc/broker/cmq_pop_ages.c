/* cmq_pop_ages: see cmq_pop_ages.h. */
#include "broker/cmq_pop_ages.h"

#include <stdbool.h>
#include <string.h>

/* The last span that begins at pop_ms or before; -1: none does. */
static int32_t find_span(const cmq_pop_ages *ages, int64_t pop_ms)
{
    int32_t i = (int32_t)ages->spans - 1;
    while (i >= 0 && ages->first_ms[i] > pop_ms) i--;
    return i;
}

/* Move the spans from `from` on to `to`. */
static void shift(cmq_pop_ages *ages, uint32_t to, uint32_t from)
{
    const size_t left = ages->spans - from;
    memmove(&ages->first_ms[to], &ages->first_ms[from], left * sizeof ages->first_ms[0]);
    memmove(&ages->last_ms[to], &ages->last_ms[from], left * sizeof ages->last_ms[0]);
    memmove(&ages->due_ms[to], &ages->due_ms[from], left * sizeof ages->due_ms[0]);
    memmove(&ages->counts[to], &ages->counts[from], left * sizeof ages->counts[0]);
    ages->spans = (uint32_t)(to + left);
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* Make one span of the two neighbours that lie closest. */
static void join_closest(cmq_pop_ages *ages)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i + 1 < ages->spans; i++)
        if (ages->last_ms[i + 1] - ages->first_ms[i] < ages->last_ms[best + 1] - ages->first_ms[best]) best = i;
    ages->last_ms[best] = ages->last_ms[best + 1];
    ages->due_ms[best] = earlier(ages->due_ms[best], ages->due_ms[best + 1]);
    ages->counts[best] += ages->counts[best + 1];
    shift(ages, best + 1, best + 2);
}

/* Count in a span that has the time already; false: there is none. */
static bool add_to(cmq_pop_ages *ages, int32_t at, uint32_t count, int64_t pop_ms, int64_t due_ms)
{
    if (at < 0 || pop_ms > ages->last_ms[at]) return false;
    ages->counts[at] += count;
    ages->due_ms[at] = earlier(ages->due_ms[at], due_ms);
    return true;
}

void cmq_pop_ages_add(cmq_pop_ages *ages, uint32_t count, int64_t pop_ms, int64_t due_ms)
{
    int32_t at = find_span(ages, pop_ms);
    ages->in_flight += count;
    if (add_to(ages, at, count, pop_ms, due_ms)) return;
    if (ages->spans == CMQ_POP_AGES) {
        join_closest(ages);
        at = find_span(ages, pop_ms);
        if (add_to(ages, at, count, pop_ms, due_ms)) return;
    }
    const uint32_t place = (uint32_t)(at + 1);
    shift(ages, place + 1, place);
    ages->first_ms[place] = ages->last_ms[place] = pop_ms;
    ages->due_ms[place] = due_ms;
    ages->counts[place] = count;
}

void cmq_pop_ages_take(cmq_pop_ages *ages, uint32_t count, int64_t pop_ms)
{
    const int32_t at = find_span(ages, pop_ms);
    if (at < 0 || pop_ms > ages->last_ms[at]) return;
    const uint32_t taken = count < ages->counts[at] ? count : ages->counts[at];
    ages->in_flight -= taken;
    ages->counts[at] -= taken;
    if (ages->counts[at] == 0) shift(ages, (uint32_t)at, (uint32_t)at + 1);
}

int64_t cmq_pop_ages_oldest_ms(const cmq_pop_ages *ages) { return ages->spans > 0 ? ages->first_ms[0] : -1; }

int64_t cmq_pop_ages_due_ms(const cmq_pop_ages *ages)
{
    int64_t due_ms = ages->spans > 0 ? ages->due_ms[0] : -1;
    for (uint32_t i = 1; i < ages->spans; i++) due_ms = earlier(due_ms, ages->due_ms[i]);
    return due_ms;
}
