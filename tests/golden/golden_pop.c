/* golden_pop STORE: read every checkpoint and ack that a real RocketMQ stored there, write it anew, and compare: bodies
 * byte for byte, keys, deliver times, and of timer messages the properties byte for byte. Prints how many there were,
 * timer messages and delivered ones together: "checkpoints N acks M".
 *
 * golden_pop: the same for texts of frames, one a line on the standard input: "handle TEXT", "start TEXT", "offsets
 * TEXT". Prints "texts N".
 *
 * Exit 0: equal; 1: not, with the first difference.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/pop/record/cmq_pop_record.h"
#include "store/cmq_store.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

#define FOUND_MAX 256
#define OFFSETS_MAX 64

static uint8_t bytes[8192];

static _Noreturn void fail(const char *what, int64_t at)
{
    fprintf(stderr, "golden_pop: %s at %" PRId64 ": %s\n", what, at, cmq_last_error()->text);
    exit(1);
}

static void must(cmq_status status, const char *what, int64_t at)
{
    if (status != CMQ_OK) fail(what, at);
}

static void must_equal(cmq_text *out, cmq_slice expected, const char *what, int64_t at)
{
    if (!cmq_text_fits(out) || !cmq_slice_equal((cmq_slice){.data = out->begin, .bytes = out->used}, expected)) {
        fprintf(stderr, "%.*s\n%.*s\n", (int)expected.bytes, (const char *)expected.data, (int)out->used,
                (const char *)out->begin);
        fail(what, at);
    }
    out->used = 0;
}

/* ---- records ---- */

static void must_deliver_at(const cmq_record_view *view, int64_t deliver_ms)
{
    cmq_slice text;
    int64_t number;
    if (!cmq_property_find(view->properties, CMQ_NAME("TIMER_DELIVER_MS"), &text))
        fail("no deliver time", view->physical_offset);
    must(cmq_field_i64(text, &number), "the deliver time is no number", view->physical_offset);
    if (number != deliver_ms) fail("another deliver time", view->physical_offset);
}

/* The invisible time that an ack's deliver time comes from, which its body does not have. */
static int64_t invisible_of(const cmq_record_view *view, int64_t pop_ms)
{
    cmq_slice text;
    int64_t number;
    if (!cmq_property_find(view->properties, CMQ_NAME("TIMER_DELIVER_MS"), &text))
        fail("no deliver time", view->physical_offset);
    must(cmq_field_i64(text, &number), "the deliver time is no number", view->physical_offset);
    return number - pop_ms;
}

static cmq_slice must_have(const cmq_record_view *view, const char *name)
{
    cmq_slice value;
    if (!cmq_property_find(view->properties, cmq_slice_of_text(name), &value)) fail(name, view->physical_offset);
    return value;
}

/* The record as a timer message: of one of the two. */
static void check_timer(const cmq_record_view *view, const cmq_pop_checkpoint *checkpoint, const cmq_pop_ack *ack)
{
    static cmq_pop_record_room room;
    static const cmq_timer_options timer;
    cmq_append append;
    int32_t queue_id;
    if (!cmq_slice_equal(view->topic, CMQ_NAME(CMQ_TOPIC_TIMER))) return;
    const cmq_pop_log log = {.revive_topic = must_have(view, "REAL_TOPIC"), .host = view->store_host, .timer = &timer};
    must(cmq_field_i32(must_have(view, "REAL_QID"), &queue_id), "no revive queue", view->physical_offset);
    const int64_t now_ms = view->born_timestamp_ms;
    if (checkpoint != NULL)
        must(cmq_pop_checkpoint_append(&log, queue_id, checkpoint, now_ms, &room, &append), "no append",
             view->physical_offset);
    else must(cmq_pop_ack_append(&log, queue_id, ack, now_ms, &room, &append), "no append", view->physical_offset);
    const cmq_slice properties = append.properties.one;
    cmq_text out = {.begin = (uint8_t *)properties.data, .capacity = properties.bytes, .used = properties.bytes};
    must_equal(&out, view->properties, "other properties", view->physical_offset);
    if (!cmq_slice_equal(append.common.topic, view->topic) || append.common.queue_id != view->queue_id)
        fail("another queue", view->physical_offset);
}

static void check_record(const cmq_record_view *view, uint64_t *checkpoints, uint64_t *acks)
{
    static cmq_pop_room room;
    cmq_text out = {.begin = bytes, .capacity = sizeof bytes};
    cmq_slice tag, key;
    if (!cmq_property_find(view->properties, CMQ_NAME("TAGS"), &tag) ||
        !cmq_property_find(view->properties, CMQ_NAME("UNIQ_KEY"), &key))
        return;
    if (cmq_slice_equal(tag, CMQ_NAME(CMQ_POP_TAG_CHECKPOINT))) {
        cmq_pop_checkpoint checkpoint;
        must(cmq_pop_checkpoint_parse(view->body, &room, &checkpoint), "no checkpoint", view->physical_offset);
        cmq_pop_checkpoint_write(&out, &checkpoint);
        must_equal(&out, view->body, "another body of a checkpoint", view->physical_offset);
        cmq_pop_checkpoint_key(&out, &checkpoint);
        must_deliver_at(view, cmq_pop_checkpoint_deliver_ms(&checkpoint));
        check_timer(view, &checkpoint, NULL);
        ++*checkpoints;
    } else if (cmq_slice_equal(tag, CMQ_NAME(CMQ_POP_TAG_ACK))) {
        cmq_pop_ack ack;
        must(cmq_pop_ack_parse(view->body, &room, &ack), "no ack", view->physical_offset);
        cmq_pop_ack_write(&out, &ack);
        must_equal(&out, view->body, "another body of an ack", view->physical_offset);
        cmq_pop_ack_key(&out, &ack);
        ack.invisible_ms = invisible_of(view, ack.pop_ms);
        must_deliver_at(view, cmq_pop_ack_deliver_ms(&ack));
        check_timer(view, NULL, &ack);
        ++*acks;
    } else {
        return;
    }
    must_equal(&out, key, "another key", view->physical_offset);
}

static void check_store(const char *path)
{
    cmq_store *store;
    cmq_reader *reader;
    cmq_found items[FOUND_MAX];
    uint64_t checkpoints = 0, acks = 0;
    bool end = false;
    const cmq_store_options options = {.path = path, .read_only = true};
    const cmq_read_options everything = {0};
    must(cmq_store_open(&store, &options), "cannot open", 0);
    must(cmq_reader_open(store, &everything, &reader), "cannot read", 0);
    while (!end) {
        cmq_found_batch batch = {.items = items, .capacity = FOUND_MAX};
        must(cmq_reader_next(reader, &batch, &end), "cannot read on", 0);
        end |= batch.count == 0;
        for (uint32_t i = 0; i < batch.count; i++) {
            cmq_record_view view;
            must(cmq_record_parse(items[i].record, items[i].record_bytes, -1, 0, &view), "no record",
                 items[i].physical_offset);
            check_record(&view, &checkpoints, &acks);
        }
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    must(cmq_store_close(store), "cannot close", 0);
    printf("checkpoints %" PRIu64 " acks %" PRIu64 "\n", checkpoints, acks);
}

/* ---- texts ---- */

static void rewrite_handle(const char *text, cmq_text *out, int64_t line)
{
    cmq_pop_handle handle;
    must(cmq_pop_handle_parse(cmq_slice_of_text(text), &handle), "no handle", line);
    out->used = cmq_pop_handle_write(&handle, out->begin);
}

/* Entries "kind queue numbers", divided by ';'. */
static void rewrite_info(char *text, bool is_start, cmq_text *out, int64_t line)
{
    for (char *rest = text, *entry; (entry = strsep(&rest, ";")) != NULL;) {
        int64_t offsets[OFFSETS_MAX];
        int kind, queue_id, numbers_at;
        uint32_t count = 0;
        if (sscanf(entry, "%d %d %n", &kind, &queue_id, &numbers_at) != 2) fail("no entry of an info string", line);
        for (char *numbers = entry + numbers_at, *number;
             (number = strsep(&numbers, ",")) != NULL && count < OFFSETS_MAX;)
            offsets[count++] = strtoll(number, NULL, 10);
        if (is_start) cmq_pop_info_start(out, (cmq_pop_retry)kind, queue_id, offsets[0]);
        else cmq_pop_info_offsets(out, (cmq_pop_retry)kind, queue_id, offsets, count);
    }
}

static void check_texts(void)
{
    static char line[8192], copy[8192];
    int64_t count = 0;
    for (; fgets(line, sizeof line, stdin) != NULL; count++) {
        cmq_text out = {.begin = bytes, .capacity = sizeof bytes};
        line[strcspn(line, "\n")] = '\0';
        char *text = strchr(line, ' ');
        if (text == NULL) fail("no line of ours", count);
        *text++ = '\0';
        memcpy(copy, text, strlen(text) + 1);
        if (strcmp(line, "handle") == 0) rewrite_handle(text, &out, count);
        else rewrite_info(copy, strcmp(line, "start") == 0, &out, count);
        must_equal(&out, cmq_slice_of_text(text), "another text", count);
    }
    printf("texts %" PRId64 "\n", count);
}

int main(int argc, char **argv)
{
    if (argc > 2) {
        fprintf(stderr, "usage: golden_pop [STORE]\n");
        return 2;
    }
    if (argc == 2) check_store(argv[1]);
    else check_texts();
    return 0;
}
