/* cmq_hold: the holds of one loop, in lists by queue, group and connection, and in a heap by deadline. See cmq_hold.h.
 *
 * Holds and the names that they wait at ("anchors") lie in chunks and are named by number, so that links take four
 * bytes and nothing moves when there are more. A list's first member has `previous` NONE; its head is the anchor's, or
 * the connection's.
 *
 * Holds of a queue have rising offsets, since each begins at the queue's end. When a queue is reset to a lower end, its
 * older holds have higher offsets than the new ones (`epoch`): until the last of them ends, a search reads the whole
 * list.
 */
#include "broker/loop/cmq_hold_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"

#define NONE CMQ_HOLD_NONE
#define SHARE_MIN 64u
#define GROUP_ID INT32_MIN   /* an anchor's id when it is a group's: no queue has it */

cmq_status cmq_holds_create(cmq_holds **holds_out, uint32_t count_max)
{
    *holds_out = NULL;
    cmq_holds *holds = calloc(1, sizeof *holds);
    if (holds == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the table of held requests");
    holds->count_max = count_max < NONE ? count_max : NONE - 1;
    holds->free_hold = holds->free_anchor = NONE;
    cmq_hold_tags_begin(&holds->tags);
    cmq_hold_tags_begin(&holds->selecting);
    cmq_hold_programs_begin(&holds->programs);
    *holds_out = holds;
    return CMQ_OK;
}

void cmq_holds_destroy(cmq_holds *holds)
{
    if (holds == NULL) return;
    for (uint32_t i = 0; i < holds->count; i++) {
        const cmq_hold_kept *held = cmq_hold_at(holds, holds->heap[i]);
        cmq_filter_release(held->filter);
    }
    for (uint32_t i = 0; i < holds->chunk_count; i++) free(holds->chunks[i]);
    for (uint32_t i = 0; i < holds->anchor_count; i++) free(holds->anchors[i].name);
    free(holds->chunks);
    free(holds->heap);
    free(holds->conns);
    cmq_hold_tags_end(&holds->tags);
    cmq_hold_tags_end(&holds->selecting);
    cmq_hold_programs_end(&holds->programs);
    free(holds->anchors);
    free(holds->table);
    free(holds);
}

/* ---- anchors ---- */

static uint32_t anchor_hash(cmq_slice name, int32_t id)
{
    const uint64_t mixed = (cmq_name_hash(name) ^ (uint32_t)id) * CMQ_NAMEHASH_MULTIPLIER;
    return (uint32_t)(mixed >> 32);
}

static uint32_t *find_place(const cmq_holds *holds, cmq_slice name, int32_t id, uint32_t hash)
{
    for (uint32_t i = hash;; i++) {
        uint32_t *place = &holds->table[i & (holds->table_slots - 1)];
        if (*place == 0) return place;
        const cmq_hold_anchor *a = &holds->anchors[*place - 1];
        if (a->hash == hash && a->id == id && a->name_bytes == name.bytes &&
            memcmp(a->name, name.data, name.bytes) == 0)
            return place;
    }
}

static uint32_t find_anchor(const cmq_holds *holds, cmq_slice name, int32_t id)
{
    if (holds->table_slots == 0) return NONE;
    const uint32_t found = *find_place(holds, name, id, anchor_hash(name, id));
    return found == 0 ? NONE : found - 1;
}

/* Room in `*array` for one more than `count` members. */
static cmq_status grow(void **array, uint32_t *slots, uint32_t count, size_t member_bytes)
{
    if (count < *slots) return CMQ_OK;
    const uint32_t more = *slots == 0 ? 64 : *slots * 2;
    void *larger = realloc(*array, more * member_bytes);
    if (larger == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more held request");
    *array = larger;
    *slots = more;
    return CMQ_OK;
}

static cmq_status grow_table(cmq_holds *holds)
{
    if ((holds->anchors_live + 1) * 2 <= holds->table_slots) return CMQ_OK;
    const uint32_t slots = holds->table_slots == 0 ? 64 : holds->table_slots * 2;
    uint32_t *table = calloc(slots, sizeof *table);
    if (table == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more held request");
    for (uint32_t i = 0; i < holds->table_slots; i++) {
        const uint32_t number = holds->table[i];
        if (number == 0) continue;
        uint32_t to = holds->anchors[number - 1].hash;
        while (table[to & (slots - 1)] != 0) to++;
        table[to & (slots - 1)] = number;
    }
    free(holds->table);
    holds->table = table;
    holds->table_slots = slots;
    return CMQ_OK;
}

static cmq_status require_anchor(cmq_holds *holds, cmq_slice name, int32_t id, uint32_t *number_out)
{
    *number_out = find_anchor(holds, name, id);
    if (*number_out != NONE) return CMQ_OK;
    CMQ_ASSERT(name.bytes <= UINT16_MAX);
    cmq_status status = grow_table(holds);
    if (status == CMQ_OK && holds->free_anchor == NONE)
        status = grow((void **)&holds->anchors, &holds->anchor_slots, holds->anchor_count, sizeof *holds->anchors);
    char *copy = status == CMQ_OK ? malloc(name.bytes + 1) : NULL;
    if (status != CMQ_OK) return status;
    if (copy == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more held request");
    memcpy(copy, name.data, name.bytes);
    const uint32_t number = holds->free_anchor != NONE ? holds->free_anchor : holds->anchor_count++;
    cmq_hold_anchor *a = &holds->anchors[number];
    if (number == holds->free_anchor) holds->free_anchor = a->first;
    *a = (cmq_hold_anchor){.name = copy,
                  .hash = anchor_hash(name, id),
                  .first = NONE,
                  .id = id,
                  .name_bytes = (uint16_t)name.bytes,
                  .any_first = NONE,
                  .any_last = NONE,
                  .last_from = INT64_MIN};
    *find_place(holds, name, id, a->hash) = number + 1;
    holds->anchors_live++;
    holds->name_bytes += name.bytes + 1;
    *number_out = number;
    return CMQ_OK;
}

/* Take the entry out, and move those behind it that could not be found any more. */
static void clear_place(cmq_holds *holds, uint32_t *place)
{
    const uint32_t mask = holds->table_slots - 1;
    uint32_t hole = (uint32_t)(place - holds->table);
    for (uint32_t i = (hole + 1) & mask; holds->table[i] != 0; i = (i + 1) & mask) {
        const uint32_t home = holds->anchors[holds->table[i] - 1].hash & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        holds->table[hole] = holds->table[i];
        hole = i;
    }
    holds->table[hole] = 0;
}

/* Nobody waits there any more. */
static void drop_anchor(cmq_holds *holds, uint32_t number)
{
    cmq_hold_anchor *a = &holds->anchors[number];
    CMQ_ASSERT(a->first == NONE);
    const cmq_slice name = {.data = (const uint8_t *)a->name, .bytes = a->name_bytes};
    clear_place(holds, find_place(holds, name, a->id, a->hash));
    holds->name_bytes -= a->name_bytes + 1u;
    free(a->name);
    a->name = NULL;
    a->first = holds->free_anchor;
    holds->free_anchor = number;
    holds->anchors_live--;
}

/* ---- lists ---- */

static cmq_hold_link *link_of(cmq_hold_kept *of, int list)
{
    return list == CMQ_HOLD_ANY ? &of->more.any : &of->links[list];
}

static void link_first(cmq_holds *holds, int list, uint32_t number, uint32_t first)
{
    cmq_hold_at(holds, number)->links[list] = (cmq_hold_link){.next = first, .previous = NONE};
    if (first != NONE) cmq_hold_at(holds, first)->links[list].previous = number;
}

/* Out of the list; the new first member when it was the first. */
static bool unlink_hold(cmq_holds *holds, int list, uint32_t number, uint32_t *first_out)
{
    const cmq_hold_link old = *link_of(cmq_hold_at(holds, number), list);
    if (old.next != NONE) link_of(cmq_hold_at(holds, old.next), list)->previous = old.previous;
    if (old.previous != NONE) link_of(cmq_hold_at(holds, old.previous), list)->next = old.next;
    *first_out = old.next;
    return old.previous == NONE;
}

/* The queue's holds that any message ends. */
static void link_any(cmq_holds *holds, cmq_hold_anchor *a, uint32_t number)
{
    cmq_hold_at(holds, number)->more.any = (cmq_hold_link){.next = NONE, .previous = a->any_last};
    if (a->any_last != NONE) cmq_hold_at(holds, a->any_last)->more.any.next = number;
    else a->any_first = number;
    a->any_last = number;
}

static void unlink_any(cmq_holds *holds, cmq_hold_anchor *a, uint32_t number)
{
    const cmq_hold_link old = cmq_hold_at(holds, number)->more.any;
    uint32_t first;
    if (unlink_hold(holds, CMQ_HOLD_ANY, number, &first)) a->any_first = first;
    if (old.next == NONE) a->any_last = old.previous;
}

static uint32_t tags_of(const cmq_hold_kept *held) { return held->kind == CMQ_HOLD_FOR_TAGS ? held->of.tags.count : 0; }
static bool is_selective(const cmq_hold_kept *held) { return held->kind == CMQ_HOLD_FOR_SELECTOR || tags_of(held) > 0; }

/* ---- heap ---- */

static void heap_put(cmq_holds *holds, uint32_t place, uint32_t number)
{
    holds->heap[place] = number;
    cmq_hold_at(holds, number)->heap_at = place;
}

static void sift_up(cmq_holds *holds, uint32_t place, uint32_t number)
{
    const int64_t deadline = cmq_hold_at(holds, number)->deadline_ns;
    while (place > 0) {
        const uint32_t parent = (place - 1) / 2;
        if (cmq_hold_at(holds, holds->heap[parent])->deadline_ns <= deadline) break;
        heap_put(holds, place, holds->heap[parent]);
        place = parent;
    }
    heap_put(holds, place, number);
}

static void sift_down(cmq_holds *holds, uint32_t place, uint32_t number)
{
    const int64_t deadline = cmq_hold_at(holds, number)->deadline_ns;
    for (;;) {
        uint32_t child = place * 2 + 1;
        if (child >= holds->count) break;
        if (child + 1 < holds->count &&
            cmq_hold_at(holds, holds->heap[child + 1])->deadline_ns <
                cmq_hold_at(holds, holds->heap[child])->deadline_ns)
            child++;
        if (cmq_hold_at(holds, holds->heap[child])->deadline_ns >= deadline) break;
        heap_put(holds, place, holds->heap[child]);
        place = child;
    }
    heap_put(holds, place, number);
}

static void heap_remove(cmq_holds *holds, uint32_t place)
{
    const uint32_t last = holds->heap[--holds->count];
    if (place == holds->count) return;
    if (place > 0 &&
        cmq_hold_at(holds, last)->deadline_ns < cmq_hold_at(holds, holds->heap[(place - 1) / 2])->deadline_ns)
        sift_up(holds, place, last);
    else
        sift_down(holds, place, last);
}

/* ---- the table ---- */

/* A free hold; it stays free until it is filled in. */
static cmq_status require_free(cmq_holds *holds)
{
    cmq_status status = grow((void **)&holds->heap, &holds->heap_slots, holds->count, sizeof *holds->heap);
    if (status != CMQ_OK || holds->free_hold != NONE) return status;
    status = grow((void **)&holds->chunks, &holds->chunk_slots, holds->chunk_count, sizeof *holds->chunks);
    if (status != CMQ_OK) return status;
    cmq_hold_kept *chunk = malloc(CMQ_HOLD_CHUNK * sizeof *chunk);
    if (chunk == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more held request");
    const uint32_t base = holds->chunk_count << CMQ_HOLD_CHUNK_BITS;
    for (uint32_t i = 0; i < CMQ_HOLD_CHUNK; i++) {
        chunk[i].heap_at = NONE;
        chunk[i].links[0].next = i + 1 < CMQ_HOLD_CHUNK ? base + i + 1 : NONE;
    }
    holds->chunks[holds->chunk_count++] = chunk;
    holds->free_hold = base;
    return CMQ_OK;
}

/* A head for the list of that connection. */
static cmq_status require_conn(cmq_holds *holds, uint32_t conn_slot)
{
    if (conn_slot < holds->conn_slots) return CMQ_OK;
    uint32_t slots = holds->conn_slots == 0 ? 64 : holds->conn_slots;
    while (slots <= conn_slot) slots *= 2;
    cmq_hold_conn *conns = realloc(holds->conns, slots * sizeof *conns);
    if (conns == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more held request");
    for (uint32_t i = holds->conn_slots; i < slots; i++) conns[i] = (cmq_hold_conn){.first = NONE};
    holds->conns = conns;
    holds->conn_slots = slots;
    return CMQ_OK;
}

/* Is there room for one more of the connection? Where half is taken, only for those below their share. */
static cmq_status check_limits(const cmq_holds *holds, const cmq_hold_conn *conn, uint32_t tags)
{
    const uint32_t used = holds->tags.links_used;
    if (holds->count == holds->count_max)
        return cmq_fail(CMQ_ERR_LIMIT, "%u requests are held already", holds->count_max);
    if (tags > CMQ_HOLDS_TAGS_MAX - used)
        return cmq_fail(CMQ_ERR_LIMIT, "held requests wait for %u tags already", used);
    const uint32_t share =
        holds->count_max / CMQ_HOLDS_SHARE < SHARE_MIN ? SHARE_MIN : holds->count_max / CMQ_HOLDS_SHARE;
    const bool many = holds->count >= holds->count_max / 2 && conn->count > share;
    const bool long_ones =
        tags > 0 && used >= CMQ_HOLDS_TAGS_MAX / 2 && conn->tags > CMQ_HOLDS_TAGS_MAX / CMQ_HOLDS_SHARE;
    if (many || long_ones)
        return cmq_fail(CMQ_ERR_LIMIT, "%u requests of the connection are held, for %u tags", conn->count, conn->tags);
    return CMQ_OK;
}

/* Messages are seen from where the first hold begins; from an earlier one where the queue restarted. */
static void note_from(cmq_hold_anchor *a, int64_t from)
{
    if (a->first == NONE || from < a->seen) a->seen = from;
    if (from < a->last_from) {
        a->epoch++;
        a->earlier = a->count;
    }
    a->last_from = from;
}

cmq_status cmq_holds_add(cmq_holds *holds, const cmq_held_pull *pull, const cmq_filter *wakes, int64_t deadline_ns,
                         uint32_t conn_slot, cmq_hold *hold_out)
{
    *hold_out = NONE;
    uint32_t anchors[2], tag_count, first_tag = CMQ_HOLD_TAG_NONE;
    const uint32_t *hashes = cmq_filter_hashes(wakes, &tag_count);
    cmq_status status = require_conn(holds, conn_slot);
    if (status == CMQ_OK) status = check_limits(holds, &holds->conns[conn_slot], tag_count);
    if (status == CMQ_OK) status = require_free(holds);
    if (status == CMQ_OK) status = require_anchor(holds, pull->topic, pull->queue_id, &anchors[CMQ_HOLD_BY_QUEUE]);
    if (status != CMQ_OK) return status;
    status = require_anchor(holds, pull->group, GROUP_ID, &anchors[CMQ_HOLD_BY_GROUP]);
    const uint32_t number = holds->free_hold;
    const bool is_selecting = cmq_filter_selector(wakes) != NULL;
    cmq_hold_selects of = {0};
    cmq_hold_first_one first = {0};
    if (status == CMQ_OK) {
        const uint32_t at_queue = anchors[CMQ_HOLD_BY_QUEUE], at_group = anchors[CMQ_HOLD_BY_GROUP];
        status = is_selecting
                     ? cmq_hold_selects_add(holds, at_queue, wakes, number, conn_slot, &of, &first)
                     : cmq_hold_tags_add(&holds->tags, at_queue, hashes, tag_count, number, &first_tag);
        if (status != CMQ_OK && holds->anchors[at_group].first == NONE) drop_anchor(holds, at_group);
    }
    if (status != CMQ_OK) {
        if (holds->anchors[anchors[CMQ_HOLD_BY_QUEUE]].first == NONE) drop_anchor(holds, anchors[CMQ_HOLD_BY_QUEUE]);
        return status;
    }
    cmq_hold_kept *held = cmq_hold_at(holds, number);
    holds->free_hold = held->links[0].next;
    *held = (cmq_hold_kept){
        .deadline_ns = deadline_ns,
        .from = pull->from,
        .sub_version = pull->sub_version,
        .filter = pull->filter,
        .conn = pull->conn,
        .conn_slot = conn_slot,
        .of.tags = {.first = first_tag, .count = tag_count},
        .kind = cmq_filter_is_all(wakes) ? CMQ_HOLD_FOR_ANY : is_selecting ? CMQ_HOLD_FOR_SELECTOR : CMQ_HOLD_FOR_TAGS,
        .anchors = {anchors[CMQ_HOLD_BY_QUEUE], anchors[CMQ_HOLD_BY_GROUP]},
        .opaque = pull->opaque,
        .max_messages = pull->max_messages,
        .max_bytes = pull->max_bytes,
        .code = (uint16_t)pull->code,
        .format = (uint8_t)pull->format,
    };
    if (is_selecting) {
        held->of.selects = of;
        held->more.first = first;
        if (pull->filter != NULL) {   /* the same expression, once */
            held->filter = cmq_filter_keep(cmq_hold_programs_filter(&holds->programs, of.program));
            cmq_filter_release(pull->filter);
        }
    }
    cmq_hold_anchor *queue = &holds->anchors[anchors[CMQ_HOLD_BY_QUEUE]];
    note_from(queue, pull->from);
    held->epoch = queue->epoch;
    queue->count++;
    queue->tagged += is_selective(held);
    if (held->kind == CMQ_HOLD_FOR_ANY) link_any(holds, queue, number);
    for (int list = CMQ_HOLD_BY_QUEUE; list <= CMQ_HOLD_BY_GROUP; list++) {
        cmq_hold_anchor *a = &holds->anchors[anchors[list]];
        link_first(holds, list, number, a->first);
        a->first = number;
    }
    cmq_hold_conn *conn = &holds->conns[conn_slot];
    link_first(holds, CMQ_HOLD_BY_CONN, number, conn->first);
    conn->first = number;
    conn->count++;
    conn->tags += tag_count;
    sift_up(holds, holds->count++, number);
    *hold_out = number;
    return CMQ_OK;
}

static cmq_slice anchor_name(const cmq_holds *holds, uint32_t number)
{
    const cmq_hold_anchor *a = &holds->anchors[number];
    return (cmq_slice){.data = (const uint8_t *)a->name, .bytes = a->name_bytes};
}

void cmq_holds_get(const cmq_holds *holds, cmq_hold number, cmq_held_pull *pull_out)
{
    const cmq_hold_kept *held = cmq_hold_at(holds, number);
    CMQ_ASSERT(held->heap_at != NONE);
    const int64_t seen = holds->anchors[held->anchors[CMQ_HOLD_BY_QUEUE]].seen;
    *pull_out = (cmq_held_pull){
        .group = anchor_name(holds, held->anchors[CMQ_HOLD_BY_GROUP]),
        .topic = anchor_name(holds, held->anchors[CMQ_HOLD_BY_QUEUE]),
        .queue_id = holds->anchors[held->anchors[CMQ_HOLD_BY_QUEUE]].id,
        .from = held->from < seen ? seen : held->from,
        .sub_version = held->sub_version,
        .filter = held->filter,
        .conn = held->conn,
        .opaque = held->opaque,
        .max_messages = held->max_messages,
        .max_bytes = held->max_bytes,
        .code = held->code,
        .format = (cmq_header_format)held->format,
        .moved = held->from < seen,
    };
}

void cmq_holds_remove(cmq_holds *holds, cmq_hold number)
{
    cmq_hold_kept *held = cmq_hold_at(holds, number);
    CMQ_ASSERT(held->heap_at != NONE);
    heap_remove(holds, held->heap_at);
    uint32_t first;
    cmq_hold_anchor *queue = &holds->anchors[held->anchors[CMQ_HOLD_BY_QUEUE]];
    const uint32_t tags = tags_of(held);
    if (held->kind == CMQ_HOLD_FOR_ANY) unlink_any(holds, queue, number);
    queue->tagged -= is_selective(held);
    queue->count--;
    queue->earlier -= held->epoch != queue->epoch;
    if (held->kind == CMQ_HOLD_FOR_SELECTOR)
        cmq_hold_selects_remove(holds, held);
    else
        cmq_hold_tags_remove(&holds->tags, held->of.tags.first);
    for (int list = CMQ_HOLD_BY_QUEUE; list <= CMQ_HOLD_BY_GROUP; list++) {
        const uint32_t a = held->anchors[list];
        if (unlink_hold(holds, list, number, &first)) holds->anchors[a].first = first;
        if (holds->anchors[a].first == NONE) drop_anchor(holds, a);
    }
    cmq_hold_conn *conn = &holds->conns[held->conn_slot];
    if (unlink_hold(holds, CMQ_HOLD_BY_CONN, number, &first)) conn->first = first;
    conn->count--;
    conn->tags -= tags;
    held->heap_at = NONE;
    held->links[0].next = holds->free_hold;
    holds->free_hold = number;
}

static cmq_hold first_at(const cmq_holds *holds, cmq_slice name, int32_t id)
{
    const uint32_t number = find_anchor(holds, name, id);
    return number == NONE ? NONE : holds->anchors[number].first;
}

cmq_hold_queue cmq_holds_find_queue(const cmq_holds *holds, cmq_slice topic, int32_t queue_id)
{
    return find_anchor(holds, topic, queue_id);
}
int64_t cmq_holds_seen(const cmq_holds *holds, cmq_hold_queue queue) { return holds->anchors[queue].seen; }
void cmq_holds_set_seen(cmq_holds *holds, cmq_hold_queue queue, int64_t offset) { holds->anchors[queue].seen = offset; }
bool cmq_holds_has_tags(const cmq_holds *holds, cmq_hold_queue queue) { return holds->anchors[queue].tagged > 0; }

cmq_hold cmq_holds_of_any(const cmq_holds *holds, cmq_hold_queue queue, int64_t offset)
{
    const cmq_hold_anchor *a = &holds->anchors[queue];
    for (uint32_t number = a->any_first; number != NONE; number = cmq_hold_at(holds, number)->more.any.next) {
        const cmq_hold_kept *held = cmq_hold_at(holds, number);
        if (held->from <= offset) return number;
        if (a->earlier == 0) break;
    }
    return NONE;
}

cmq_hold cmq_holds_of_queue(const cmq_holds *holds, cmq_slice topic, int32_t queue_id)
{
    return first_at(holds, topic, queue_id);
}
cmq_hold cmq_holds_next_of_queue(const cmq_holds *holds, cmq_hold number)
{
    return cmq_hold_at(holds, number)->links[CMQ_HOLD_BY_QUEUE].next;
}
cmq_hold cmq_holds_of_group(const cmq_holds *holds, cmq_slice group) { return first_at(holds, group, GROUP_ID); }
cmq_hold cmq_holds_next_of_group(const cmq_holds *holds, cmq_hold number)
{
    return cmq_hold_at(holds, number)->links[CMQ_HOLD_BY_GROUP].next;
}

uint32_t cmq_holds_list_group(const cmq_holds *holds, cmq_slice group, cmq_hold **holds_out)
{
    uint32_t count = 0;
    *holds_out = NULL;
    const cmq_hold first = cmq_holds_of_group(holds, group);
    for (cmq_hold number = first; number != NONE; number = cmq_holds_next_of_group(holds, number)) count++;
    if (count > 0) *holds_out = malloc(count * sizeof **holds_out);
    if (*holds_out == NULL) return 0;
    uint32_t listed = 0;
    for (cmq_hold number = first; number != NONE; number = cmq_holds_next_of_group(holds, number))
        (*holds_out)[listed++] = number;
    return count;
}

bool cmq_holds_is_of_group(const cmq_holds *holds, cmq_hold number, cmq_slice group)
{
    const cmq_hold_kept *held = cmq_hold_at(holds, number);
    return held->heap_at != NONE && held->anchors[CMQ_HOLD_BY_GROUP] == find_anchor(holds, group, GROUP_ID);
}

cmq_hold cmq_holds_of_conn(const cmq_holds *holds, uint32_t conn_slot)
{
    return conn_slot < holds->conn_slots ? holds->conns[conn_slot].first : NONE;
}

int64_t cmq_holds_due_ns(const cmq_holds *holds)
{
    return holds->count == 0 ? INT64_MAX : cmq_hold_at(holds, holds->heap[0])->deadline_ns;
}

cmq_hold cmq_holds_due(const cmq_holds *holds, int64_t now_ns)
{
    return holds->count > 0 && cmq_hold_at(holds, holds->heap[0])->deadline_ns <= now_ns ? holds->heap[0] : NONE;
}

uint32_t cmq_holds_count(const cmq_holds *holds) { return holds->count; }

size_t cmq_holds_bytes(const cmq_holds *holds)
{
    return sizeof *holds + holds->chunk_count * CMQ_HOLD_CHUNK * sizeof(cmq_hold_kept) +
           holds->chunk_slots * sizeof(cmq_hold_kept *) +
           (holds->heap_slots + holds->table_slots) * sizeof(uint32_t) + holds->conn_slots * sizeof(cmq_hold_conn) +
           holds->anchor_slots * sizeof(cmq_hold_anchor) + holds->name_bytes + cmq_hold_tags_bytes(&holds->tags) +
           cmq_hold_tags_bytes(&holds->selecting) + cmq_hold_programs_bytes(&holds->programs);
}
