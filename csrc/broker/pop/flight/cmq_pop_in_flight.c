/* cmq_pop_in_flight: see cmq_pop_in_flight.h. */
#include "broker/pop/flight/cmq_pop_in_flight.h"

#include <stdbool.h>
#include <string.h>

static bool has(const cmq_pop_age *span, int64_t pop_ms) { return span->first_ms <= pop_ms && pop_ms <= span->last_ms; }

static cmq_pop_age *find_any(cmq_pop_in_flight *ages, int64_t pop_ms)
{
    for (uint32_t i = 0; i < ages->span_count; i++)
        if (has(&ages->spans[i], pop_ms)) return &ages->spans[i];
    return NULL;
}

/* The span of this invisible time that has the pop time; NULL. */
static cmq_pop_age *find(cmq_pop_in_flight *ages, int64_t pop_ms, int64_t invisible_ms)
{
    for (uint32_t i = ages->span_count; i-- > 0;)   /* mostly the last */
        if (ages->spans[i].invisible_ms == invisible_ms && has(&ages->spans[i], pop_ms)) return &ages->spans[i];
    return NULL;
}

static void remove_at(cmq_pop_in_flight *ages, uint32_t at)
{
    memmove(&ages->spans[at], &ages->spans[at + 1], (ages->span_count - at - 1) * sizeof ages->spans[0]);
    ages->span_count--;
}

/* Take the later span into the earlier one. */
static void join(cmq_pop_in_flight *ages, uint32_t earlier, uint32_t later)
{
    cmq_pop_age *into = &ages->spans[earlier];
    const cmq_pop_age *from = &ages->spans[later];
    if (into->invisible_ms != from->invisible_ms) into->invisible_ms = CMQ_POP_AGES_MIXED;
    if (into->last_ms < from->last_ms) into->last_ms = from->last_ms;
    if (into->due_ms < from->due_ms) into->due_ms = from->due_ms;
    into->count += from->count;
    remove_at(ages, later);
}

/* The span that is mixed, or else the first. */
static uint32_t mixed_of(const cmq_pop_in_flight *ages)
{
    uint32_t at = 0;
    while (at < ages->span_count && ages->spans[at].invisible_ms != CMQ_POP_AGES_MIXED) at++;
    return at < ages->span_count ? at : 0;
}

/* Make two spans one. */
static void make_room(cmq_pop_in_flight *ages)
{
    uint32_t first = 0, second = 0;
    int64_t least_ms = INT64_MAX;
    for (uint32_t i = 0; i < ages->span_count; i++) {
        uint32_t next = i + 1;
        while (next < ages->span_count && ages->spans[next].invisible_ms != ages->spans[i].invisible_ms) next++;
        if (next == ages->span_count || ages->spans[next].last_ms - ages->spans[i].first_ms >= least_ms) continue;
        least_ms = ages->spans[next].last_ms - ages->spans[i].first_ms;
        first = i;
        second = next;
    }
    if (second == 0) {
        const uint32_t mixed = mixed_of(ages);
        first = mixed > 0 ? 0 : mixed;
        second = mixed > 0 ? mixed : 1;
    }
    join(ages, first, second);
}

/* The span that a pop's messages go into; NULL: one of their own. Never into one when others of that moment and
 * invisible time are in another. */
static cmq_pop_age *span_for(cmq_pop_in_flight *ages, int64_t pop_ms, int64_t invisible_ms)
{
    cmq_pop_age *span = find(ages, pop_ms, invisible_ms), *mixed = find(ages, pop_ms, CMQ_POP_AGES_MIXED);
    if (span != NULL || mixed == NULL) return span;
    for (uint32_t i = ages->span_count; i-- > 0;) {
        span = &ages->spans[i];
        if (span->invisible_ms != invisible_ms || span->last_ms > pop_ms) continue;
        span->last_ms = pop_ms;   /* later ones, with which it may be joined, lie behind this moment */
        span->due_ms = pop_ms + invisible_ms;
        return span;
    }
    return mixed;
}

void cmq_pop_in_flight_add(cmq_pop_in_flight *ages, uint32_t count, int64_t pop_ms, int64_t invisible_ms)
{
    ages->in_flight += count;
    cmq_pop_age *span = span_for(ages, pop_ms, invisible_ms);
    if (span == NULL && ages->span_count == CMQ_POP_AGES) {
        make_room(ages);
        span = span_for(ages, pop_ms, invisible_ms);
    }
    if (span != NULL) {
        span->count += count;
        if (span->due_ms < pop_ms + invisible_ms) span->due_ms = pop_ms + invisible_ms;
        return;
    }
    uint32_t at = ages->span_count;
    while (at > 0 && ages->spans[at - 1].first_ms > pop_ms) at--;
    memmove(&ages->spans[at + 1], &ages->spans[at], (ages->span_count - at) * sizeof ages->spans[0]);
    ages->spans[at] = (cmq_pop_age){.first_ms = pop_ms,
                                    .last_ms = pop_ms,
                                    .invisible_ms = invisible_ms,
                                    .due_ms = pop_ms + invisible_ms,
                                    .count = count};
    ages->span_count++;
}

void cmq_pop_in_flight_take(cmq_pop_in_flight *ages, uint32_t count, int64_t pop_ms, int64_t invisible_ms)
{
    cmq_pop_age *span = find(ages, pop_ms, invisible_ms);
    if (span == NULL) span = find(ages, pop_ms, CMQ_POP_AGES_MIXED);
    if (span == NULL) span = find_any(ages, pop_ms);   /* a checkpoint that was put again has another invisible time */
    if (span == NULL) return;
    const uint32_t taken = count < span->count ? count : span->count;
    ages->in_flight -= taken;
    span->count -= taken;
    if (span->count == 0) remove_at(ages, (uint32_t)(span - ages->spans));
}

int64_t cmq_pop_in_flight_oldest_ms(const cmq_pop_in_flight *ages)
{
    return ages->span_count > 0 ? ages->spans[0].first_ms : -1;
}

int64_t cmq_pop_in_flight_due_ms(const cmq_pop_in_flight *ages)
{
    int64_t due_ms = ages->span_count > 0 ? ages->spans[0].due_ms : -1;
    for (uint32_t i = 1; i < ages->span_count; i++)
        if (ages->spans[i].due_ms < due_ms) due_ms = ages->spans[i].due_ms;
    return due_ms;
}
