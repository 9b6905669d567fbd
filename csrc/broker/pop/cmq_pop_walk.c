/* cmq_pop_walk: a request's way through the queues of its topic and of its group's retry topics, in parts.
 *
 * A topic may have 65,536 queues, and a look at one takes a microsecond, more where its progress begins. A part looks
 * at so many that it takes some milliseconds. A request that found nothing yet goes on in the loop's next turns: it is
 * held until then, whatever its poll time, but no longer than some time behind it.
 *
 *     walk: [retry topics] -> queues of the topic, from any one on -> [retry topics] -> the other kind's retry topics
 *
 * Invariant: a queue of the topic that a held request's walk has passed is watched, or its arrivals are looked at:
 *            cmq_pop_hold watches those of the first part, later parts watch before they look.
 */
#include "broker/pop/cmq_pop_internal.h"

#define PART_COST (CMQ_POP_LOOKS_PER_TURN * CMQ_POP_COST_LOOK)
#define LATE_MS 400              /* so long behind its poll time a request goes on looking */
#define TURN_COST (4 * PART_COST)   /* of new requests that take large parts */

enum { RETRIES_FIRST = 1, RETRIES_V2 = 2, BOTH_RETRIES = 4 };

typedef enum section {
    SECTION_TOPIC,
    SECTION_RETRIES,
    SECTION_OTHER_RETRIES,
    SECTION_NONE                 /* it is over */
} section;

/* A linear congruential generator is random enough for shares. */
static uint32_t draw_of(cmq_broker_loop *l)
{
    l->draw = l->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(l->draw >> 33);
}

static void begin(cmq_broker_loop *l, cmq_pop_asked *a)
{
    const cmq_pop_service_options *o = cmq_pop_service_options_of(a->pops);
    const uint32_t draw = draw_of(l) % 100;
    const bool both = o->retry_v2 && !o->retry_v1_off, v2 = o->retry_v2 && !(both && draw % 2 == 0);
    a->wait.place = (cmq_pop_place){
        .free_ms = INT64_MAX,
        .section = 1,
        .plan = (uint8_t)(((int32_t)draw < o->retry_percent ? RETRIES_FIRST : 0) | (v2 ? RETRIES_V2 : 0) |
                          (both ? BOTH_RETRIES : 0)),
    };
}

static section section_of(const cmq_pop_asked *a)
{
    const cmq_pop_place *place = &a->wait.place;
    const bool first = (place->plan & RETRIES_FIRST) != 0;
    if (a->wait.order) return place->section == 1 ? SECTION_TOPIC : SECTION_NONE;
    switch (place->section) {
    case 1: return first ? SECTION_RETRIES : SECTION_TOPIC;
    case 2: return first ? SECTION_TOPIC : SECTION_RETRIES;
    case 3: return (place->plan & BOTH_RETRIES) != 0 ? SECTION_OTHER_RETRIES : SECTION_NONE;
    default: return SECTION_NONE;
    }
}

/* An answer has messages of one kind of retry topic only, as some clients tell them from others by their queue. Nobody
 * waits beside the other kind's. */
static bool is_wanted(const cmq_pop_asked *a, const cmq_pop_result *popped, section what)
{
    if (what == SECTION_OTHER_RETRIES) return popped->count == 0;
    return what == SECTION_TOPIC || a->wait.place.section == 1 || popped->count < popped->capacity;
}

/* NULL: there is no such topic. */
static const cmq_topic_entry *topic_of(cmq_broker_loop *l, const cmq_pop_asked *a, section what,
                                       cmq_pop_retry *retry_out, uint8_t room[CMQ_POP_TOPIC_BYTES_MAX])
{
    cmq_slice name;
    *retry_out = CMQ_POP_NORMAL;
    if (what == SECTION_TOPIC) return a->topic;
    const bool v2 = ((a->wait.place.plan & RETRIES_V2) != 0) != (what == SECTION_OTHER_RETRIES);
    *retry_out = v2 ? CMQ_POP_RETRY_V2 : CMQ_POP_RETRY_V1;
    /* a name that is too long is no topic's */
    if (cmq_pop_retry_topic(a->group->name, a->topic->name, *retry_out, room, &name) != CMQ_OK) return NULL;
    return cmq_tables_topic(l->reader, name);
}

static bool is_spent(const cmq_pop_result *popped) { return popped->cost >= PART_COST || popped->stopped; }

/* The rest of a section. False: the part is over. `watches`: queues that are looked at for the first time since the
 * request is held. */
static bool visit_queues(cmq_broker_loop *l, cmq_pop_asked *a, cmq_pop_result *popped, section what, bool watches,
                         cmq_pop_visit visit)
{
    uint8_t room[CMQ_POP_TOPIC_BYTES_MAX];
    cmq_pop_retry retry;
    cmq_pop_place *place = &a->wait.place;
    const cmq_topic_entry *topic = topic_of(l, a, what, &retry, room);
    const uint32_t queues = topic != NULL && topic->read_queues > 0 ? (uint32_t)topic->read_queues : 0;
    if (place->left == 0) {
        /* Begin anywhere: the first ones alone may have enough for every pop. */
        const bool arrived = what == SECTION_TOPIC && a->arrived >= 0 && (uint32_t)a->arrived < queues;
        place->at = arrived ? a->arrived : queues > 1 ? (int32_t)(draw_of(l) % queues) : 0;
        place->left = queues;
    }
    if (place->left > queues) place->left = queues;   /* it has fewer than it had */
    for (; place->left > 0; place->left--) {
        if (is_spent(popped)) return false;
        const int32_t queue_id = (uint32_t)place->at < queues ? place->at : 0;
        if (watches && what == SECTION_TOPIC) cmq_pop_watch(l, a, queue_id);
        if (what == SECTION_TOPIC && a->seen_count++ == 0) a->seen_first = queue_id;
        visit(l, a, popped, topic->name, retry, queue_id);
        if (popped->failed == CMQ_ERR_CORRUPT && place->damaged_in == 0) {
            place->damaged_in = (uint8_t)(1 + what);
            place->damaged = queue_id;
        }
        place->at = queue_id + 1;
    }
    return true;
}

/* The last part found nothing: the answer has the error of the damage that an earlier one met. */
static void visit_damaged(cmq_broker_loop *l, cmq_pop_asked *a, cmq_pop_result *popped, cmq_pop_visit visit)
{
    uint8_t room[CMQ_POP_TOPIC_BYTES_MAX];
    cmq_pop_retry retry;
    const cmq_pop_place *place = &a->wait.place;
    const cmq_topic_entry *topic = topic_of(l, a, (section)(place->damaged_in - 1), &retry, room);
    if (topic == NULL || place->damaged >= topic->read_queues) return;
    popped->steps = CMQ_STEPS_PER_REQUEST;
    visit(l, a, popped, topic->name, retry, place->damaged);
}

void cmq_pop_walk(cmq_broker_loop *l, cmq_pop_asked *a, cmq_pop_result *popped, cmq_pop_visit visit)
{
    cmq_pop_place *place = &a->wait.place;
    const bool watches = a->held && place->section != 0;
    section what;
    a->confirmed = cmq_store_confirmed(l->broker->store);
    /* Behind it: no message is younger than its pop. */
    a->now_ms = cmq_pop_service_now_ms(a->pops);
    if (place->section == 0) begin(l, a);
    const bool takes_steps = !a->held && a->wait.filter != NULL && cmq_filter_selector(a->wait.filter) != NULL;
    if (takes_steps) popped->steps = cmq_select_new_steps(l);
    const uint32_t steps = popped->steps;
    if (!a->held && (l->new_pops_cost >= TURN_COST || steps == 0)) return;   /* in a later turn */
    for (; (what = section_of(a)) != SECTION_NONE; place->section++) {
        if (!is_wanted(a, popped, what)) continue;
        if (what == SECTION_TOPIC && a->wait.queue_id >= 0 && !is_spent(popped))
            visit(l, a, popped, a->topic->name, CMQ_POP_NORMAL, a->wait.queue_id);
        else if (is_spent(popped) || !visit_queues(l, a, popped, what, watches, visit))
            break;
    }
    if (takes_steps) l->new_steps -= steps - popped->steps;
    if (what == SECTION_NONE) place->section = 0;
    if (place->damaged_in != 0 && !cmq_pop_goes_on(l, a)) {
        if (popped->count == 0 && popped->failed == CMQ_OK) visit_damaged(l, a, popped, visit);
        place->damaged_in = 0;
    }
    if (popped->free_ms < place->free_ms) place->free_ms = popped->free_ms;
    popped->free_ms = place->free_ms;
    a->cost += popped->cost;
    if (!a->held && popped->cost >= PART_COST / 2) l->new_pops_cost += popped->cost;
}

bool cmq_pop_goes_on(const cmq_broker_loop *l, const cmq_pop_asked *a)
{
    return a->wait.place.section != 0 && !a->ends &&
           cmq_loop_now_ns(l->loop) < a->wait.expires_ns + LATE_MS * CMQ_POP_NS_PER_MS;
}
