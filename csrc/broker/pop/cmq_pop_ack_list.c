/* cmq_pop_ack_list: lists of acknowledgements (200151), some entries a turn.
 *
 *     request -> copied, with the place of its list -> a few entries: at once; more: cmq_pop_ack_lists_go_on, each turn
 *     CMQ_POP_LIST_STEP entries of one of the waiting lists -> the answer, when the last entry is through
 *
 * An entry is of one checkpoint, and costs some 6 us where it has to be stored, so a list of the most would keep the
 * loop from everybody for 13 ms.
 *
 * Owns:      the lists that wait, each with a copy of its body. A list whose connection closes is processed to its end,
 *            without an answer.
 * Source:    consumption specification 4.7; upstream's AckMessageProcessor, BatchAckMessageRequestBody.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_bitmap.h"
#include "wire/cmq_json.h"

#define DAMAGED "the body of code 200151 is not a list of acks: %s is missing at byte %zu"
#define BUSY "[OVERLOAD]system busy: lists of acks wait already, %u of all clients and %u of this one"

typedef cmq_pop_acked acked;

/* ---- an entry ---- */

/* One entry of the body, as it is written there. */
typedef struct entry {
    cmq_slice group, topic, kind, bits;
    cmq_slice start, queue, revive, pop, invisible;
} entry;

static cmq_slice *member_of(entry *into, cmq_slice name)
{
#define IS(short_name, long_name, field) \
    if (CMQ_JSON_IS(name, short_name) || CMQ_JSON_IS(name, long_name)) return &into->field
    IS("c", "consumerGroup", group);
    IS("t", "topic", topic);
    IS("r", "retry", kind);
    IS("so", "startOffset", start);
    IS("q", "queueId", queue);
    IS("rq", "reviveQueueId", revive);
    IS("pt", "popTime", pop);
    IS("it", "invisibleTime", invisible);
    IS("b", "bitSet", bits);
#undef IS
    return NULL;
}

static bool read_entry(cmq_json *json, entry *out)
{
    *out = (entry){0};
    if (!cmq_json_take(json, '{')) return cmq_json_wrong(json, "an ack");
    bool more = !cmq_json_take(json, '}');
    while (more) {
        cmq_slice name, *into;
        if (!cmq_json_name(json, &name)) return false;
        into = member_of(out, name);
        if (into != NULL ? !cmq_json_text(json, into) : !cmq_json_skip(json, 1)) return false;
        if (!cmq_json_separator(json, '}', &more)) return false;
    }
    return true;
}

/* Read what an entry says; false: it says nothing that could be. `topic_room` takes a retry topic's name. */
static bool take_entry(cmq_broker_loop *l, const entry *from, cmq_slice broker,
                       uint8_t topic_room[CMQ_POP_TOPIC_BYTES_MAX], acked *out)
{
    int32_t kind = CMQ_POP_NORMAL;
    cmq_pop_handle *handle = &out->handle;
    *out = (acked){.group = from->group};
    if (cmq_field_i64(from->start, &handle->start_offset) != CMQ_OK ||
        cmq_field_i64(from->pop, &handle->pop_ms) != CMQ_OK ||
        cmq_field_i64(from->invisible, &handle->invisible_ms) != CMQ_OK ||
        cmq_field_i32(from->queue, &out->queue_id) != CMQ_OK ||
        cmq_field_i32(from->revive, &handle->revive_queue) != CMQ_OK ||
        (from->kind.bytes > 0 && cmq_field_i32(from->kind, &kind) != CMQ_OK))
        return false;
    if (handle->start_offset < 0 || handle->start_offset > CMQ_POP_OFFSET_MAX || handle->pop_ms < 0 ||
        handle->pop_ms > CMQ_POP_MS_MAX || handle->invisible_ms < 0 || handle->invisible_ms > CMQ_POP_MS_MAX ||
        out->queue_id < 0 || kind < CMQ_POP_NORMAL || kind > CMQ_POP_RETRY_V2)
        return false;
    handle->broker = broker;
    if (from->group.bytes == 0 ||
        cmq_pop_retry_topic(from->group, from->topic, (cmq_pop_retry)kind, topic_room, &out->topic) != CMQ_OK)
        return false;
    return cmq_pop_ack_check_handle(l, out) == CMQ_OK;
}

/* The value of a base64 digit; -1: none. */
static int digit_of(uint8_t byte)
{
    if (byte >= 'A' && byte <= 'Z') return byte - 'A';
    if (byte >= 'a' && byte <= 'z') return byte - 'a' + 26;
    if (byte >= '0' && byte <= '9') return byte - '0' + 52;
    return byte == '+' ? 62 : byte == '/' ? 63 : -1;
}

/* The messages that an entry names. */
typedef struct named {
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    uint32_t count;
} named;

static bool is_base64(cmq_slice text)
{
    size_t digits = 0;
    while (digits < text.bytes && digit_of(text.data[digits]) >= 0) digits++;
    for (size_t i = digits; i < text.bytes; i++)
        if (text.data[i] != '=') return false;
    return text.bytes - digits <= 2;
}

/* The messages whose bits are set, but those that the queue does not have. False: they are not of one checkpoint, or it
 * is no base64. */
static bool read_bits(cmq_slice bits, int64_t start, int64_t min, int64_t end, named *out)
{
    int64_t offset = start;
    uint32_t word = 0, word_bits = 0;
    out->count = 0;
    if (!is_base64(bits)) return false;
    for (size_t i = 0; i < bits.bytes && bits.data[i] != '=' && offset < end; i++) {
        word = word << 6 | (uint32_t)digit_of(bits.data[i]);
        word_bits += 6;
        if (word_bits < 8) continue;
        word_bits -= 8;
        uint32_t byte = word >> word_bits & 0xFF;
        while (byte != 0) {
            const int64_t at = offset + cmq_bits_take(&byte);
            if (at < min || at >= end) continue;
            if (out->count == CMQ_POP_MESSAGES_MAX) return false;
            out->offsets[out->count++] = at;
        }
        offset += 8;
    }
    return true;
}

static cmq_status CMQ_MUST_CHECK ack_named(cmq_broker_loop *l, const acked *what, const named *of)
{
    cmq_status status = CMQ_OK;
    if (of->count > 0 && !cmq_pop_ack_is_ordered(what)) return cmq_pop_ack_offsets(l, what, of->offsets, of->count);
    for (uint32_t i = 0; i < of->count && status == CMQ_OK; i++) {
        status = cmq_pop_ack_ordered(l, what, of->offsets[i]);
        if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;   /* the others count */
    }
    return status;
}

/* Entries that cannot be of messages popped here are passed over. */
static cmq_status CMQ_MUST_CHECK ack_entry(cmq_broker_loop *l, const entry *from, cmq_slice broker)
{
    uint8_t topic_room[CMQ_POP_TOPIC_BYTES_MAX];
    acked what;
    named of;
    int64_t min, max;
    if (take_entry(l, from, broker, topic_room, &what) && cmq_pop_ack_bounds(l, &what, &min, &max) &&
        read_bits(from->bits, what.handle.start_offset, min, cmq_pop_ack_end(&what, max), &of))
        return ack_named(l, &what, &of);
    cmq_bump(&l->counters.pop_acks_refused, 1);
    return CMQ_OK;
}

/* ---- a list ---- */

struct cmq_pop_ack_list {
    struct cmq_pop_ack_list *next;
    cmq_conn_id conn;
    cmq_command request;               /* without its fields */
    cmq_json json;                     /* at the next entry */
    cmq_slice broker;                  /* of whose handles it is */
    bool has_list;
    uint32_t entries;
    cmq_status failed;                 /* of an entry; CMQ_OK: none did */
    char failure[CMQ_ERROR_TEXT_BYTES];
    size_t bytes;
    uint8_t body[];                    /* and behind it room to unescape it, once for each time that it is read */
};

/* Read the members, and move to the list. False: it is no object. */
static bool find_list(struct cmq_pop_ack_list *of)
{
    cmq_json *json = &of->json, list = {0};
    if (!cmq_json_take(json, '{')) return cmq_json_wrong(json, "an object");
    bool more = !cmq_json_take(json, '}');
    while (more) {
        cmq_slice name;
        if (!cmq_json_name(json, &name)) return false;
        if (CMQ_JSON_IS(name, "acks")) {
            cmq_json_skip_space(json);
            list = *json;
        }
        if (CMQ_JSON_IS(name, "brokerName") ? !cmq_json_text(json, &of->broker) : !cmq_json_skip(json, 0)) return false;
        if (!cmq_json_separator(json, '}', &more)) return false;
    }
    if (list.at != NULL) {
        *json = list;
        json->scratch = of->body + 2 * of->bytes;
    }
    of->has_list = list.at != NULL;
    return true;
}

/* False: there is no entry, or no list. */
static bool begin_list(struct cmq_pop_ack_list *of)
{
    if (!of->has_list) return false;
    if (!cmq_json_take(&of->json, '[')) return cmq_json_wrong(&of->json, "a list of acks");
    return !cmq_json_take(&of->json, ']');
}

/* The next entries, at most so many. False: there is no more, or it is damaged (json.wrong). */
static bool take_entries(cmq_broker_loop *l, struct cmq_pop_ack_list *of, uint32_t most)
{
    bool more = true;
    for (uint32_t i = 0; more && i < most; i++) {
        entry from;
        if (!read_entry(&of->json, &from)) return false;
        of->entries++;
        const cmq_status status = ack_entry(l, &from, of->broker);
        if (status != CMQ_OK) {
            of->failed = status;
            snprintf(of->failure, sizeof of->failure, "%s", cmq_last_error()->text);
        }
        if (!cmq_json_separator(&of->json, ']', &more)) return false;
    }
    return more;
}

static void answer_list(cmq_conn *conn, const struct cmq_pop_ack_list *of)
{
    if (of->json.wrong != NULL)
        cmq_broker_answer(conn, &of->request, CMQ_RESPONSE_SYSTEM_ERROR, DAMAGED, of->json.wrong,
                          (size_t)(of->json.at - of->body));
    else if (of->entries == 0)
        cmq_conn_answer(conn, &of->request, CMQ_RESPONSE_NO_MESSAGE, CMQ_SLICE_NONE);
    else if (of->failed != CMQ_OK)
        cmq_pop_ack_refuse(conn, &of->request, of->failed, of->failure);
    else
        cmq_conn_answer(conn, &of->request, CMQ_RESPONSE_SUCCESS, CMQ_SLICE_NONE);
}

/* ---- those that wait ---- */

static void put_last(cmq_pop_ack_lists *lists, struct cmq_pop_ack_list *of)
{
    of->next = NULL;
    *(lists->last != NULL ? &lists->last->next : &lists->first) = of;
    lists->last = of;
    lists->count++;
    lists->bytes += of->bytes;
}

static struct cmq_pop_ack_list *take_first(cmq_pop_ack_lists *lists)
{
    struct cmq_pop_ack_list *of = lists->first;
    if (of == NULL) return NULL;
    lists->first = of->next;
    if (lists->first == NULL) lists->last = NULL;
    lists->count--;
    lists->bytes -= of->bytes;
    return of;
}

static uint32_t waiting_of(const cmq_pop_ack_lists *lists, cmq_conn_id conn)
{
    uint32_t count = 0;
    for (const struct cmq_pop_ack_list *of = lists->first; of != NULL; of = of->next) count += of->conn == conn;
    return count;
}

void cmq_pop_ack_lists_go_on(cmq_broker_loop *l)
{
    struct cmq_pop_ack_list *of = take_first(&l->ack_lists);
    if (of == NULL) return;
    if (take_entries(l, of, CMQ_POP_LIST_STEP)) {
        put_last(&l->ack_lists, of);
    } else {
        cmq_conn *conn = cmq_loop_conn(l->loop, of->conn);
        if (conn != NULL) answer_list(conn, of);
        cmq_conn_kept_done(l->loop);
        free(of);
    }
    if (l->ack_lists.count > 0) cmq_loop_wake(l->loop);
}

void cmq_pop_ack_lists_free(cmq_pop_ack_lists *lists)
{
    for (struct cmq_pop_ack_list *of; (of = take_first(lists)) != NULL;) free(of);
}

/* ---- the request ---- */

/* Braces inside of texts count, too; no name has any. */
static uint32_t count_entries(cmq_slice body)
{
    uint32_t braces = 0;
    for (size_t i = 0; i < body.bytes; i++) braces += body.data[i] == '{';
    return braces > 0 ? braces - 1 : 0;   /* one is the list's own */
}

static struct cmq_pop_ack_list *make_list(const cmq_conn *conn, const cmq_command *command, cmq_slice body)
{
    struct cmq_pop_ack_list *of = malloc(sizeof *of + 3 * body.bytes + 1);
    if (of == NULL) return NULL;
    *of = (struct cmq_pop_ack_list){
        .conn = cmq_conn_id_of(conn),
        .request = {.format = command->format,
                    .opaque = command->opaque,
                    .has_opaque = command->has_opaque,
                    .flag = command->flag},
        .failed = CMQ_OK,
        .bytes = body.bytes,
    };
    if (body.bytes > 0) memcpy(of->body, body.data, body.bytes);
    const cmq_slice copy = {.data = of->body, .bytes = body.bytes};
    cmq_json_begin(&of->json, copy, of->body + body.bytes, body.bytes);
    return of;
}

void cmq_pop_ack_list_take(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body)
{
    if (l->broker->options.pops == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR,
                          "there are no popped messages, as timerWheelEnable is false");
        return;
    }
    const uint32_t entries = body.bytes <= CMQ_POP_LIST_BYTES_MAX ? count_entries(body) : UINT32_MAX;
    if (entries > CMQ_POP_LIST_ENTRIES_MAX) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL,
                          "a list of acks has at most %u entries and %u bytes; this one has %zu bytes",
                          CMQ_POP_LIST_ENTRIES_MAX, CMQ_POP_LIST_BYTES_MAX, body.bytes);
        return;
    }
    const bool at_once = entries <= CMQ_POP_LIST_AT_ONCE;
    const uint32_t own = at_once ? 0 : waiting_of(&l->ack_lists, cmq_conn_id_of(conn));
    if (!at_once && (l->ack_lists.count >= CMQ_POP_LISTS_MAX || own >= CMQ_POP_LISTS_CONN_MAX ||
                     l->ack_lists.bytes + body.bytes > CMQ_POP_LISTS_BYTES_MAX)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_BUSY, BUSY, l->ack_lists.count, own);
        return;
    }
    struct cmq_pop_ack_list *of = make_list(conn, command, body);
    if (of == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "no memory for %zu bytes of acks", body.bytes);
        return;
    }
    const bool is_read = body.bytes == 0 || find_list(of);
    if (of->broker.bytes == 0)
        of->broker = cmq_slice_of_text(cmq_pop_service_options_of(l->broker->options.pops)->broker);
    bool more = is_read && body.bytes > 0;
    if (more && of->broker.bytes > CMQ_POP_BROKER_BYTES_MAX) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, "brokerName has %zu bytes; %u is the most",
                          of->broker.bytes, CMQ_POP_BROKER_BYTES_MAX);
        free(of);
        return;
    }
    if (more) more = begin_list(of);
    if (more && !at_once) {
        put_last(&l->ack_lists, of);
        cmq_conn_keep(conn);
        cmq_loop_wake(l->loop);
        return;
    }
    if (more) (void)take_entries(l, of, UINT32_MAX);
    answer_list(conn, of);
    free(of);
}
