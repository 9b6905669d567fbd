/* cmq_tables: see cmq_tables.h.
 *
 * Three tables of one kind: open addressing over atomic pointers. A slot goes from empty to an entry to another entry
 * of that name or a tombstone, and never back to empty; a table that is full of either is copied into a new array.
 *
 * Why nothing is freed too early: all of what follows is sequentially consistent. A reader stores the epoch into
 * `entered`, then loads slots. The writer stores the new pointer, notes the present epoch with the old one, moves the
 * epoch on, then loads every `entered`. Where a reader's load of the slot still gave the old pointer, it came before
 * the writer's store, so the reader's `entered` came before the writer's look at it, which finds an epoch not after the
 * one that was noted, and keeps the old pointer for later.
 */
#include "broker/tables/cmq_tables.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"

#define SLOTS_FIRST 64u

/* Begins everything that readers may see and that goes. */
typedef struct retiree {
    struct retiree *next;
    uint64_t epoch;                       /* a reader that entered with this one or an earlier one may see it */
    void (*release)(struct retiree *retiree);
} retiree;

/* Begins every entry. */
typedef struct node {
    retiree retiring;
    uint64_t hash;
    cmq_slice name;
} node;

typedef struct slots {
    retiree retiring;
    uint32_t mask;
    _Atomic(node *) at[];
} slots;

typedef struct table {
    _Atomic(slots *) slots;
    uint32_t live, used;                  /* entries; with tombstones. Writer */
} table;

typedef struct topic_node {
    node head;
    cmq_topic_entry entry;
    uint8_t name[];
} topic_node;

typedef struct group_node {
    node head;
    cmq_group_entry entry;
    uint8_t name[];
} group_node;

typedef struct consumer_node {
    node head;
    cmq_consumer_entry entry;
    cmq_subscription subscriptions[];     /* and the names behind them */
} consumer_node;

struct cmq_tables_reader {
    _Alignas(64) _Atomic uint64_t entered;   /* the epoch; 0: outside */
    cmq_tables *tables;
    bool taken;                              /* mutex */
};

struct cmq_tables {
    cmq_tables_reader readers[CMQ_TABLES_READERS_MAX];
    _Alignas(64) _Atomic uint64_t epoch;
    table topics, groups, consumers;
    _Atomic int32_t perm;
    pthread_mutex_t mutex;                /* of whoever writes */
    retiree *retired, **retired_end;      /* oldest first. mutex */
    uint64_t serial;                      /* given last. mutex */
};

static node tombstone;

/* ---- removal ---- */

static void free_plain(retiree *what) { free(what); }

static void free_consumer(retiree *what)
{
    consumer_node *gone = (consumer_node *)what;
    for (uint32_t i = 0; i < gone->entry.subscription_count; i++) cmq_filter_release(gone->subscriptions[i].filter);
    free(gone);
}

/* The oldest epoch that some reader is in; UINT64_MAX: nobody is inside. */
static uint64_t oldest_entered(const cmq_tables *tables)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < CMQ_TABLES_READERS_MAX; i++) {
        const uint64_t entered = atomic_load(&tables->readers[i].entered);
        if (entered != 0 && entered < oldest) oldest = entered;
    }
    return oldest;
}

static void reclaim(cmq_tables *tables)
{
    if (tables->retired == NULL) return;
    const uint64_t oldest = oldest_entered(tables);
    while (tables->retired != NULL && tables->retired->epoch < oldest) {
        retiree *what = tables->retired;
        tables->retired = what->next;
        what->release(what);
    }
    if (tables->retired == NULL) tables->retired_end = &tables->retired;
}

/* It was just made unreachable. NULL is fine. */
static void retire(cmq_tables *tables, retiree *what)
{
    if (what == NULL) return;
    what->epoch = atomic_load(&tables->epoch);
    what->next = NULL;
    *tables->retired_end = what;
    tables->retired_end = &what->next;
    atomic_store(&tables->epoch, what->epoch + 1);
}

/* ---- one table ---- */

static slots *make_slots(uint32_t count)
{
    slots *made = calloc(1, sizeof *made + count * sizeof made->at[0]);
    if (made == NULL) return NULL;
    made->mask = count - 1;
    made->retiring.release = free_plain;
    return made;
}

static node *find(const table *in, cmq_slice name)
{
    const uint64_t hash = cmq_name_hash(name);
    const slots *slots_now = atomic_load(&in->slots);
    for (uint64_t at = hash;; at++) {
        node *there = atomic_load(&slots_now->at[at & slots_now->mask]);
        if (there == NULL) return NULL;
        if (there != &tombstone && there->hash == hash && cmq_slice_equal(there->name, name)) return there;
    }
}

/* Writer: the slot of that name, or the empty one that ends the search. */
static _Atomic(node *) *slot_of(slots *in, uint64_t hash, cmq_slice name)
{
    for (uint64_t at = hash;; at++) {
        _Atomic(node *) *slot = &in->at[at & in->mask];
        const node *there = atomic_load_explicit(slot, memory_order_relaxed);
        if (there == NULL || (there != &tombstone && there->hash == hash && cmq_slice_equal(there->name, name)))
            return slot;
    }
}

/* Writer: room for one more; a new array when tombstones and entries take three quarters of this one. */
static cmq_status CMQ_MUST_CHECK make_room(cmq_tables *tables, table *in)
{
    slots *old = atomic_load_explicit(&in->slots, memory_order_relaxed);
    if (in->used < (old->mask + 1) / 4 * 3) return CMQ_OK;
    uint32_t count = SLOTS_FIRST;
    while (count < in->live * 2 + 2) count *= 2;
    slots *made = make_slots(count);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a table of %u names", count);
    for (uint32_t i = 0; i <= old->mask; i++) {
        node *there = atomic_load_explicit(&old->at[i], memory_order_relaxed);
        if (there != NULL && there != &tombstone)
            atomic_store_explicit(slot_of(made, there->hash, there->name), there, memory_order_relaxed);
    }
    in->used = in->live;
    atomic_store(&in->slots, made);
    retire(tables, &old->retiring);
    return CMQ_OK;
}

/* Writer: insert or replace; there is room. */
static void put(cmq_tables *tables, table *in, node *made)
{
    _Atomic(node *) *slot = slot_of(atomic_load_explicit(&in->slots, memory_order_relaxed), made->hash, made->name);
    node *old = atomic_load_explicit(slot, memory_order_relaxed);
    atomic_store(slot, made);
    if (old == NULL) {
        in->live++;
        in->used++;
    } else {
        retire(tables, &old->retiring);
    }
}

static bool take_out(cmq_tables *tables, table *in, cmq_slice name)
{
    pthread_mutex_lock(&tables->mutex);
    _Atomic(node *) *slot = slot_of(atomic_load_explicit(&in->slots, memory_order_relaxed), cmq_name_hash(name), name);
    node *old = atomic_load_explicit(slot, memory_order_relaxed);
    if (old != NULL) {
        atomic_store(slot, &tombstone);
        in->live--;
        retire(tables, &old->retiring);
    }
    reclaim(tables);
    pthread_mutex_unlock(&tables->mutex);
    return old != NULL;
}

static void free_table(table *in)
{
    slots *all = atomic_load(&in->slots);
    for (uint32_t i = 0; all != NULL && i <= all->mask; i++) {
        node *there = atomic_load_explicit(&all->at[i], memory_order_relaxed);
        if (there != NULL && there != &tombstone) there->retiring.release(&there->retiring);
    }
    free(all);
}

/* ---- life ---- */

cmq_status cmq_tables_create(cmq_tables **tables_out)
{
    *tables_out = NULL;
    cmq_tables *tables = aligned_alloc(_Alignof(cmq_tables), sizeof *tables);
    if (tables == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the tables of topics and groups");
    memset(tables, 0, sizeof *tables);
    for (uint32_t i = 0; i < CMQ_TABLES_READERS_MAX; i++) tables->readers[i].tables = tables;
    tables->retired_end = &tables->retired;
    atomic_init(&tables->epoch, 1);
    atomic_init(&tables->perm, CMQ_PERM_READ | CMQ_PERM_WRITE);
    pthread_mutex_init(&tables->mutex, NULL);
    table *const all[] = {&tables->topics, &tables->groups, &tables->consumers};
    bool whole = true;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        slots *made = make_slots(SLOTS_FIRST);
        atomic_init(&all[i]->slots, made);
        whole &= made != NULL;
    }
    if (!whole) {
        cmq_tables_destroy(tables);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for the tables of topics and groups");
    }
    *tables_out = tables;
    return CMQ_OK;
}

void cmq_tables_destroy(cmq_tables *tables)
{
    if (tables == NULL) return;
    CMQ_ASSERT(oldest_entered(tables) == UINT64_MAX);
    reclaim(tables);
    free_table(&tables->topics);
    free_table(&tables->groups);
    free_table(&tables->consumers);
    pthread_mutex_destroy(&tables->mutex);
    free(tables);
}

/* ---- writing ---- */

static cmq_status CMQ_MUST_CHECK check_name(cmq_slice name, const char *of)
{
    if (name.bytes > 0 && name.bytes <= CMQ_TABLES_NAME_BYTES_MAX) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT, "the name of a %s has 1 to %u bytes, not %zu", of, CMQ_TABLES_NAME_BYTES_MAX,
                    name.bytes);
}

/* Begin an entry; its name is copied to `at`. */
static void begin_node(node *made, cmq_slice name, uint8_t *at, void (*release)(retiree *what))
{
    memcpy(at, name.data, name.bytes);
    made->name = (cmq_slice){.data = at, .bytes = name.bytes};
    made->hash = cmq_name_hash(name);
    made->retiring.release = release;
}

/* Put it, or free it. */
static cmq_status CMQ_MUST_CHECK put_node(cmq_tables *tables, table *in, node *made)
{
    pthread_mutex_lock(&tables->mutex);
    const cmq_status status = make_room(tables, in);
    if (status == CMQ_OK) put(tables, in, made);
    reclaim(tables);
    pthread_mutex_unlock(&tables->mutex);
    if (status != CMQ_OK) made->retiring.release(&made->retiring);
    return status;
}

cmq_status cmq_tables_put_topic(cmq_tables *tables, const cmq_topic_entry *topic)
{
    const cmq_status status = check_name(topic->name, "topic");
    if (status != CMQ_OK) return status;
    topic_node *made = calloc(1, sizeof *made + topic->name.bytes);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a topic");
    made->entry = *topic;
    begin_node(&made->head, topic->name, made->name, free_plain);
    made->entry.name = made->head.name;
    return put_node(tables, &tables->topics, &made->head);
}

cmq_status cmq_tables_put_group(cmq_tables *tables, const cmq_group_entry *group)
{
    const cmq_status status = check_name(group->name, "group");
    if (status != CMQ_OK) return status;
    group_node *made = calloc(1, sizeof *made + group->name.bytes);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a group");
    made->entry = *group;
    begin_node(&made->head, group->name, made->name, free_plain);
    made->entry.name = made->head.name;
    return put_node(tables, &tables->groups, &made->head);
}

bool cmq_tables_remove_topic(cmq_tables *tables, cmq_slice topic) { return take_out(tables, &tables->topics, topic); }
bool cmq_tables_remove_group(cmq_tables *tables, cmq_slice group) { return take_out(tables, &tables->groups, group); }
bool cmq_tables_remove_consumer(cmq_tables *tables, cmq_slice group)
{
    return take_out(tables, &tables->consumers, group);
}

void cmq_tables_set_perm(cmq_tables *tables, int32_t perm)
{
    atomic_store_explicit(&tables->perm, perm, memory_order_relaxed);
}

/* ---- consumers ---- */

static int compare_names(cmq_slice a, cmq_slice b)
{
    if (a.bytes != b.bytes) return a.bytes < b.bytes ? -1 : 1;
    return memcmp(a.data, b.data, a.bytes);
}

static int by_topic(const void *a, const void *b)
{
    return compare_names(((const cmq_subscription *)a)->topic, ((const cmq_subscription *)b)->topic);
}

static cmq_status CMQ_MUST_CHECK check_consumer(const cmq_consumer_entry *consumer, size_t *name_bytes_out)
{
    cmq_status status = check_name(consumer->group, "group");
    *name_bytes_out = consumer->group.bytes;
    if (status == CMQ_OK && consumer->subscription_count > CMQ_TABLES_SUBSCRIPTIONS_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "%u subscriptions in one group; at most %u", consumer->subscription_count,
                        CMQ_TABLES_SUBSCRIPTIONS_MAX);
    for (uint32_t i = 0; i < consumer->subscription_count && status == CMQ_OK; i++) {
        status = check_name(consumer->subscriptions[i].topic, "subscription's topic");
        *name_bytes_out += consumer->subscriptions[i].topic.bytes;
    }
    return status;
}

/* A copy with names, references and order of its own; serials come later. */
static cmq_status CMQ_MUST_CHECK copy_consumer(const cmq_consumer_entry *consumer, size_t name_bytes,
                                               consumer_node **made_out)
{
    const uint32_t count = consumer->subscription_count;
    *made_out = NULL;
    consumer_node *made = calloc(1, sizeof *made + count * sizeof made->subscriptions[0] + name_bytes);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a group of %u subscriptions", count);
    uint8_t *names = (uint8_t *)(made->subscriptions + count);
    begin_node(&made->head, consumer->group, names, free_consumer);
    names += consumer->group.bytes;
    made->entry = *consumer;
    made->entry.group = made->head.name;
    made->entry.subscriptions = made->subscriptions;
    for (uint32_t i = 0; i < count; i++) {
        cmq_subscription *to = &made->subscriptions[i];
        *to = consumer->subscriptions[i];
        memcpy(names, to->topic.data, to->topic.bytes);
        to->topic.data = names;
        names += to->topic.bytes;
        to->filter = cmq_filter_keep(to->filter == NULL ? cmq_filter_all() : to->filter);
    }
    if (count > 1) qsort(made->subscriptions, count, sizeof made->subscriptions[0], by_topic);
    for (uint32_t i = 1; i < count; i++) {
        const cmq_slice topic = made->subscriptions[i].topic;
        if (compare_names(topic, made->subscriptions[i - 1].topic) != 0) continue;
        const cmq_status status = cmq_fail(CMQ_ERR_ARGUMENT, "the group subscribes twice to topic %.*s",
                                           (int)topic.bytes, (const char *)topic.data);
        free_consumer(&made->head.retiring);
        return status;
    }
    *made_out = made;
    return CMQ_OK;
}

/* A subscription that filters as before keeps its serial, and the filter itself. */
static void number_filters(cmq_tables *tables, consumer_node *made, const consumer_node *before)
{
    for (uint32_t i = 0; i < made->entry.subscription_count; i++) {
        cmq_subscription *now = &made->subscriptions[i];
        const cmq_subscription *old = before != NULL ? cmq_consumer_subscription(&before->entry, now->topic) : NULL;
        if (old == NULL || old->type != now->type || !cmq_filter_equal(old->filter, now->filter)) {
            now->serial = ++tables->serial;
            continue;
        }
        cmq_filter *same = cmq_filter_keep(old->filter);
        cmq_filter_release(now->filter);
        now->filter = same;
        now->serial = old->serial;
    }
}

cmq_status cmq_tables_put_consumer(cmq_tables *tables, const cmq_consumer_entry *consumer)
{
    size_t name_bytes;
    consumer_node *made = NULL;
    cmq_status status = check_consumer(consumer, &name_bytes);
    if (status == CMQ_OK) status = copy_consumer(consumer, name_bytes, &made);
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&tables->mutex);
    status = make_room(tables, &tables->consumers);
    if (status == CMQ_OK) {
        number_filters(tables, made, (const consumer_node *)find(&tables->consumers, made->head.name));
        put(tables, &tables->consumers, &made->head);
    }
    reclaim(tables);
    pthread_mutex_unlock(&tables->mutex);
    if (status != CMQ_OK) free_consumer(&made->head.retiring);
    return status;
}

void cmq_tables_count(cmq_tables *tables, cmq_tables_counts *counts_out)
{
    pthread_mutex_lock(&tables->mutex);
    reclaim(tables);
    *counts_out = (cmq_tables_counts){
        .topics = tables->topics.live, .groups = tables->groups.live, .consumers = tables->consumers.live};
    for (const retiree *what = tables->retired; what != NULL; what = what->next) counts_out->retired++;
    pthread_mutex_unlock(&tables->mutex);
}

/* ---- reading ---- */

cmq_status cmq_tables_reader_create(cmq_tables *tables, cmq_tables_reader **reader_out)
{
    *reader_out = NULL;
    pthread_mutex_lock(&tables->mutex);
    for (uint32_t i = 0; i < CMQ_TABLES_READERS_MAX && *reader_out == NULL; i++)
        if (!tables->readers[i].taken) *reader_out = &tables->readers[i];
    if (*reader_out != NULL) (*reader_out)->taken = true;
    pthread_mutex_unlock(&tables->mutex);
    return *reader_out != NULL ? CMQ_OK
                               : cmq_fail(CMQ_ERR_LIMIT, "the tables have %u readers already", CMQ_TABLES_READERS_MAX);
}

void cmq_tables_reader_destroy(cmq_tables_reader *reader)
{
    if (reader == NULL) return;
    CMQ_ASSERT(atomic_load(&reader->entered) == 0);
    pthread_mutex_lock(&reader->tables->mutex);
    reader->taken = false;
    pthread_mutex_unlock(&reader->tables->mutex);
}

static bool is_inside(const cmq_tables_reader *reader)
{
    return atomic_load_explicit(&reader->entered, memory_order_relaxed) != 0;
}

void cmq_tables_enter(cmq_tables_reader *reader)
{
    CMQ_ASSERT(!is_inside(reader));
    atomic_store(&reader->entered, atomic_load(&reader->tables->epoch));
}

void cmq_tables_leave(cmq_tables_reader *reader)
{
    CMQ_ASSERT(is_inside(reader));
    atomic_store_explicit(&reader->entered, 0, memory_order_release);
}

const cmq_topic_entry *cmq_tables_topic(cmq_tables_reader *reader, cmq_slice topic)
{
    CMQ_ASSERT(is_inside(reader));
    const node *found = find(&reader->tables->topics, topic);
    return found == NULL ? NULL : &((const topic_node *)found)->entry;
}

const cmq_group_entry *cmq_tables_group(cmq_tables_reader *reader, cmq_slice group)
{
    CMQ_ASSERT(is_inside(reader));
    const node *found = find(&reader->tables->groups, group);
    return found == NULL ? NULL : &((const group_node *)found)->entry;
}

const cmq_consumer_entry *cmq_tables_consumer(cmq_tables_reader *reader, cmq_slice group)
{
    CMQ_ASSERT(is_inside(reader));
    const node *found = find(&reader->tables->consumers, group);
    return found == NULL ? NULL : &((const consumer_node *)found)->entry;
}

const cmq_subscription *cmq_consumer_subscription(const cmq_consumer_entry *consumer, cmq_slice topic)
{
    const cmq_subscription key = {.topic = topic};
    if (consumer->subscription_count == 0) return NULL;
    return bsearch(&key, consumer->subscriptions, consumer->subscription_count, sizeof key, by_topic);
}

int32_t cmq_tables_perm(const cmq_tables_reader *reader)
{
    return atomic_load_explicit(&reader->tables->perm, memory_order_relaxed);
}
