/* cmq_spark_rows: see cmq_spark_rows.h. */
#include "export/cmq_spark_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_hash.h"
#include "base/cmq_utf8.h"
#include "broker/tables/cmq_system_topics.h"
#include "export/cmq_ipc_file.h"
#include "store/record/cmq_property.h"

#define ROWS_MAX 65536u /* of a batch */
#define FULL_BYTES ((size_t)16 << 20) /* a batch with so many bytes of values is written */
#define OWN_PROPERTIES_BYTES 256u /* room for the properties' names and those that the store adds */
#define TOPIC_CHARS_MAX 127u
#define DERIVED_TOPIC_CHARS_MAX 255u
#define QUEUE_MAX 65535
#define SHOWN_BYTES 100u
#define WORD 8u
#define HANDOFF_PROPERTY "CMQ_HANDOFF" /* marks handed-off work; not kept of messages that are copied */

/* A column of the batch. Texts have rows + 1 offsets in `numbers`, numbers one each. */
typedef struct column {
    cmq_spark_kind kind;
    uint8_t validity[ROWS_MAX / 8];
    int64_t nulls;
    int32_t numbers[ROWS_MAX + 1];
    uint8_t *data;
    size_t used, room;
} column;

struct cmq_spark_rows {
    cmq_fs *fs;
    char *path;
    cmq_ipc_file *file; /* NULL: finished */
    uint32_t body_bytes_max;
    bool has_topic;
    bool failed; /* a part of a row may be in the batch: the file is only closed */
    int64_t written; /* rows in the file */
    uint32_t batch; /* rows of the batch */
    uint32_t topic_bytes; /* of the topic that was checked last */
    uint8_t topic[DERIVED_TOPIC_CHARS_MAX];
    uint32_t count;
    column *columns[CMQ_SPARK_COLUMNS_MAX];
};

static bool is_number(cmq_spark_kind kind) { return kind >= CMQ_SPARK_QUEUE_8; }

/* ---- the columns ---- */

static cmq_ipc_field field_of(cmq_spark_kind kind)
{
    static const cmq_ipc_field fields[] = {
        [CMQ_SPARK_BODY] = {"body", CMQ_IPC_BINARY},      [CMQ_SPARK_TOPIC] = {"topic", CMQ_IPC_TEXT},
        [CMQ_SPARK_TAGS] = {"tags", CMQ_IPC_TEXT},        [CMQ_SPARK_KEYS] = {"keys", CMQ_IPC_TEXT},
        [CMQ_SPARK_KEY_LIST] = {"keys", CMQ_IPC_TEXT},    [CMQ_SPARK_PROPERTIES] = {"properties", CMQ_IPC_BINARY},
        [CMQ_SPARK_QUEUE_8] = {"queue", CMQ_IPC_INT32},   [CMQ_SPARK_QUEUE_16] = {"queue", CMQ_IPC_INT32},
        [CMQ_SPARK_QUEUE_32] = {"queue", CMQ_IPC_INT32},  [CMQ_SPARK_QUEUE_64] = {"queue", CMQ_IPC_INT32},
        [CMQ_SPARK_SHARD_KEY] = {"shard", CMQ_IPC_INT32},
    };
    return fields[kind];
}

static cmq_status add_columns(cmq_spark_rows *rows, const cmq_spark_options *options, cmq_ipc_field *fields)
{
    bool has_body = false;
    if (options->count == 0 || options->count > CMQ_SPARK_COLUMNS_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "rows to stage have 1 to %u columns", CMQ_SPARK_COLUMNS_MAX);
    for (uint32_t i = 0; i < options->count; i++) {
        if (options->kinds[i] >= CMQ_SPARK_KIND_COUNT)
            return cmq_fail(CMQ_ERR_ARGUMENT, "there is no column of kind %u", options->kinds[i]);
        fields[i] = field_of((cmq_spark_kind)options->kinds[i]);
        for (uint32_t before = 0; before < i; before++)
            if (strcmp(fields[before].name, fields[i].name) == 0)
                return cmq_fail(CMQ_ERR_ARGUMENT, "the column %s is there twice", fields[i].name);
        has_body = has_body || options->kinds[i] == CMQ_SPARK_BODY;
        column *added = calloc(1, sizeof *added);
        if (added == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a column of rows to stage");
        added->kind = (cmq_spark_kind)options->kinds[i];
        rows->columns[rows->count++] = added;
    }
    return has_body ? CMQ_OK : cmq_fail(CMQ_ERR_ARGUMENT, "rows to stage have no column body");
}

cmq_status cmq_spark_rows_create(const cmq_spark_options *options, cmq_spark_rows **rows_out)
{
    *rows_out = NULL;
    cmq_ipc_field fields[CMQ_SPARK_COLUMNS_MAX];
    cmq_spark_rows *rows = calloc(1, sizeof *rows);
    if (rows == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for rows to stage");
    rows->fs = options->fs;
    rows->body_bytes_max = options->body_bytes_max;
    rows->has_topic = options->has_topic;
    rows->path = strdup(options->path);
    cmq_status status = rows->path == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory for rows to stage") : CMQ_OK;
    if (status == CMQ_OK) status = add_columns(rows, options, fields);
    if (status == CMQ_OK) status = cmq_ipc_file_create(rows->fs, rows->path, fields, rows->count, &rows->file);
    if (status == CMQ_OK)
        *rows_out = rows;
    else
        cmq_spark_rows_close(rows);
    return status;
}

static cmq_status make_room(column *into, size_t bytes)
{
    if (bytes > INT32_MAX - into->used) return cmq_fail(CMQ_ERR_TOO_LARGE, "values of a batch are over 2 GiB");
    if (bytes <= into->room - into->used) return CMQ_OK;
    const size_t room =
        into->used + bytes > FULL_BYTES / 2 ? into->used + bytes + FULL_BYTES / 4 : 2 * (into->used + bytes);
    uint8_t *grown = realloc(into->data, room);
    if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu bytes of rows to stage", room);
    into->data = grown;
    into->room = room;
    return CMQ_OK;
}

static cmq_status add_bytes(column *into, cmq_slice value)
{
    const cmq_status status = make_room(into, value.bytes);
    if (status != CMQ_OK) return status;
    if (value.bytes > 0) memcpy(into->data + into->used, value.data, value.bytes);
    into->used += value.bytes;
    return CMQ_OK;
}

/* ---- a row ---- */

/* A part of a row: a row itself, or an array in it. */
typedef struct region {
    const uint8_t *at;
    size_t bytes;
} region;

static uint64_t word_at(region in, size_t place)
{
    uint64_t word;
    memcpy(&word, in.at + place, sizeof word);
    return word;
}

static size_t null_bytes(size_t count) { return (count + 63) / 64 * WORD; }

static bool is_null(region in, size_t bits, size_t index)
{
    return (word_at(in, bits + index / 64 * WORD) >> index % 64 & 1) != 0;
}

static cmq_status not_a_row(void)
{
    return cmq_fail(CMQ_ERR_ARGUMENT, "the bytes are not a row of Spark's with these columns");
}

/* The value that a word names, by offset and length within its region. */
static cmq_status value_at(region in, size_t place, cmq_slice *value_out)
{
    const uint64_t word = word_at(in, place);
    *value_out = (cmq_slice){0};
    const size_t offset = (size_t)(word >> 32), bytes = (size_t)(word & UINT32_MAX);
    if (offset > in.bytes || bytes > in.bytes - offset) return not_a_row();
    *value_out = (cmq_slice){.data = in.at + offset, .bytes = bytes};
    return CMQ_OK;
}

/* An array of texts: its count, its null bits, a word for each. */
typedef struct texts {
    region in;
    size_t count;
} texts;

static cmq_status texts_of(region in, texts *texts_out)
{
    *texts_out = (texts){0};
    if (in.bytes < WORD) return not_a_row();
    const uint64_t count = word_at(in, 0);
    if (count > in.bytes / WORD || WORD + null_bytes((size_t)count) + (size_t)count * WORD > in.bytes)
        return not_a_row();
    *texts_out = (texts){in, (size_t)count};
    return CMQ_OK;
}

static bool text_is_null(const texts *of, size_t index) { return is_null(of->in, WORD, index); }

static cmq_status text_at(const texts *of, size_t index, cmq_slice *text_out)
{
    return value_at(of->in, WORD + null_bytes(of->count) + index * WORD, text_out);
}

/* ---- values ---- */

static cmq_status refuse(const char *name, cmq_slice value, const char *why)
{
    char shown[SHOWN_BYTES + 1];
    const size_t bytes = value.bytes < SHOWN_BYTES ? value.bytes : SHOWN_BYTES;
    for (size_t i = 0; i < bytes; i++) shown[i] = (char)(value.data[i] < 0x20 ? '?' : value.data[i]);
    shown[bytes] = '\0';
    return cmq_fail(CMQ_ERR_ARGUMENT, "the column %s has '%s': %s", name, shown, why);
}

static cmq_status check_text(const char *name, cmq_slice text)
{
    return cmq_utf8_is_valid(text) ? CMQ_OK : refuse(name, text, "it is not UTF-8");
}

static bool has_marks(cmq_slice text)
{
    for (size_t i = 0; i < text.bytes; i++)
        if (text.data[i] == CMQ_PROPERTY_NAME_END || text.data[i] == CMQ_PROPERTY_PAIR_END) return true;
    return false;
}

static cmq_status check_body(const cmq_spark_rows *rows, cmq_slice body)
{
    if (body.bytes <= rows->body_bytes_max) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT,
                    "the column body has one of %zu bytes; at most %u are allowed "
                    "(maxMessageSize of the settings file that the option config names)",
                    body.bytes, rows->body_bytes_max);
}

static bool is_topic_byte(uint8_t byte)
{
    const uint8_t letter = byte | 0x20;
    return (letter >= 'a' && letter <= 'z') || (byte >= '0' && byte <= '9') ||
           (byte != 0 && strchr("%|_-", byte) != NULL);
}

static bool begins_with(cmq_slice text, const char *begin)
{
    const size_t bytes = strlen(begin);
    return text.bytes >= bytes && memcmp(text.data, begin, bytes) == 0;
}

/* The rules of cometmq.store_config.names. */
static cmq_status check_topic(cmq_spark_rows *rows, cmq_slice topic)
{
    if (topic.bytes > 0 && topic.bytes == rows->topic_bytes && memcmp(topic.data, rows->topic, topic.bytes) == 0)
        return CMQ_OK;
    const size_t most =
        begins_with(topic, "%RETRY%") || begins_with(topic, "%DLQ%") ? DERIVED_TOPIC_CHARS_MAX : TOPIC_CHARS_MAX;
    if (topic.bytes == 0) return cmq_fail(CMQ_ERR_ARGUMENT, "the column topic: a topic name is empty");
    for (size_t i = 0; i < topic.bytes; i++)
        if (!is_topic_byte(topic.data[i]))
            return refuse("topic: a name", topic, "it has characters other than letters, digits, %, |, - and _");
    if (topic.bytes > most) return refuse("topic: a name", topic, "it is too long");
    if (cmq_topic_is_reserved(topic))
        return refuse("topic: a name", topic, "it is RocketMQ's own; nothing can be sent to it");
    memcpy(rows->topic, topic.data, topic.bytes);
    rows->topic_bytes = (uint32_t)topic.bytes;
    return CMQ_OK;
}

static cmq_status check_tag(cmq_slice tag)
{
    bool bad = tag.bytes > 0 && (tag.data[0] <= 0x20 || tag.data[tag.bytes - 1] <= 0x20 || has_marks(tag));
    for (size_t i = 1; i < tag.bytes && !bad; i++) bad = tag.data[i] == '|' && tag.data[i - 1] == '|';
    if (bad)
        return refuse("tags", tag,
                      "a message has one tag, without blanks around it, without || and control characters");
    return check_text("tags", tag);
}

static cmq_status check_keys(cmq_slice keys)
{
    if (has_marks(keys)) return refuse("keys", keys, "it has a control character 1 or 2, which divide properties");
    return check_text("keys", keys);
}

static bool has_blank(cmq_slice text)
{
    for (size_t i = 0; i < text.bytes; i++)
        if (text.data[i] == ' ' || (text.data[i] >= '\t' && text.data[i] <= '\r' && text.data[i] != '\v')) return true;
    return false;
}

static cmq_status add_key_list(column *into, cmq_slice value)
{
    texts keys;
    cmq_status status = texts_of((region){value.data, value.bytes}, &keys);
    for (size_t i = 0; status == CMQ_OK && i < keys.count; i++) {
        cmq_slice key = cmq_slice_of_text("");
        const bool no_key = text_is_null(&keys, i);
        if (!no_key) status = text_at(&keys, i, &key);
        if (status == CMQ_OK && (no_key || has_blank(key)))
            status = cmq_fail(CMQ_ERR_ARGUMENT,
                              "the column keys: a key of a list is null or has a blank; blanks divide keys");
        if (status == CMQ_OK) status = check_keys(key);
        if (status == CMQ_OK && i > 0) status = add_bytes(into, cmq_slice_of_text(" "));
        if (status == CMQ_OK) status = add_bytes(into, key);
    }
    return status;
}

static bool is_text(cmq_slice value, const char *text)
{
    return value.bytes == strlen(text) && memcmp(value.data, text, value.bytes) == 0;
}

static cmq_status add_pair(uint8_t *buffer, size_t *used, cmq_slice name, cmq_slice value)
{
    for (const char *const *own = (const char *const[]){"TAGS", "KEYS", NULL}; *own != NULL; own++)
        if (is_text(name, *own))
            return cmq_fail(CMQ_ERR_ARGUMENT, "the column properties: %s has a column of its own", *own);
    cmq_status status = check_text("properties: a name", name);
    if (status == CMQ_OK) status = check_text("properties: a value", value);
    if (status != CMQ_OK) return status;
    status = cmq_property_append(buffer, CMQ_PROPERTY_BYTES_MAX, used, name, value);
    return status == CMQ_OK ? status : cmq_fail_context("the column properties");
}

/* Whether a later pair of the map, whose value is not null, has the name: the last of them is kept. */
static bool is_replaced(const texts *names, const texts *values, size_t index, cmq_slice name)
{
    for (size_t later = index + 1; later < names->count; later++) {
        cmq_slice other;
        if (!text_is_null(names, later) && !text_is_null(values, later) && text_at(names, later, &other) == CMQ_OK &&
            other.bytes == name.bytes && memcmp(other.data, name.data, name.bytes) == 0)
            return true;
    }
    return false;
}

static cmq_status add_properties(column *into, cmq_slice value)
{
    uint8_t buffer[CMQ_PROPERTY_BYTES_MAX];
    size_t used = 0;
    texts names, values = {0};
    const region map = {value.data, value.bytes};
    if (map.bytes < WORD || word_at(map, 0) > map.bytes - WORD) return not_a_row();
    const size_t name_bytes = (size_t)word_at(map, 0);
    cmq_status status = texts_of((region){map.at + WORD, name_bytes}, &names);
    if (status == CMQ_OK)
        status = texts_of((region){map.at + WORD + name_bytes, map.bytes - WORD - name_bytes}, &values);
    if (status == CMQ_OK && names.count != values.count) status = not_a_row();
    for (size_t i = 0; status == CMQ_OK && i < names.count; i++) {
        cmq_slice name, text = {0};
        if (text_is_null(&names, i)) return not_a_row();
        if (text_is_null(&values, i)) continue;
        status = text_at(&names, i, &name);
        if (status == CMQ_OK) status = text_at(&values, i, &text);
        if (status == CMQ_OK && !is_text(name, HANDOFF_PROPERTY) && !is_replaced(&names, &values, i, name))
            status = add_pair(buffer, &used, name, text);
    }
    return status == CMQ_OK ? add_bytes(into, (cmq_slice){.data = buffer, .bytes = used}) : status;
}

static cmq_status check_queue(uint64_t word, cmq_spark_kind kind, int32_t *queue_out)
{
    int64_t queue = (int64_t)word;
    if (kind == CMQ_SPARK_QUEUE_8) queue = (int8_t)word;
    if (kind == CMQ_SPARK_QUEUE_16) queue = (int16_t)word;
    if (kind == CMQ_SPARK_QUEUE_32) queue = (int32_t)word;
    if (queue < 0 || queue > QUEUE_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the column queue has %" PRId64 "; queues are 0 to 65,535", queue);
    *queue_out = (int32_t)queue;
    return CMQ_OK;
}

static cmq_status add_text(cmq_spark_rows *rows, column *into, cmq_slice value)
{
    cmq_status status = CMQ_OK;
    switch (into->kind) {
    case CMQ_SPARK_BODY: status = check_body(rows, value); break;
    case CMQ_SPARK_TOPIC: status = check_topic(rows, value); break;
    case CMQ_SPARK_TAGS: status = check_tag(value); break;
    case CMQ_SPARK_KEYS: status = check_keys(value); break;
    case CMQ_SPARK_KEY_LIST: return add_key_list(into, value);
    case CMQ_SPARK_PROPERTIES: return add_properties(into, value);
    default: break;
    }
    return status == CMQ_OK ? add_bytes(into, value) : status;
}

static cmq_status check_null(const cmq_spark_rows *rows, cmq_spark_kind kind)
{
    if (kind == CMQ_SPARK_BODY)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the column body has a null; a message has a body, if an empty one");
    if (kind == CMQ_SPARK_TOPIC && !rows->has_topic)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the column topic has a null, and there is no option topic for such rows");
    return CMQ_OK;
}

static cmq_status add_value(cmq_spark_rows *rows, column *into, region row, size_t place, uint32_t at)
{
    cmq_slice value;
    if (into->kind != CMQ_SPARK_SHARD_KEY && is_number(into->kind))
        return check_queue(word_at(row, place), into->kind, &into->numbers[at]);
    cmq_status status = value_at(row, place, &value);
    if (status != CMQ_OK) return status;
    if (into->kind != CMQ_SPARK_SHARD_KEY) return add_text(rows, into, value);
    status = check_text("shardKey", value);
    if (status == CMQ_OK) into->numbers[at] = (int32_t)cmq_jhash(value);
    return status;
}

/* Tags and keys are properties too, and all of them have 32,767 bytes in a record. */
static cmq_status check_properties(const cmq_spark_rows *rows, size_t bytes)
{
    const size_t most = CMQ_PROPERTY_BYTES_MAX - OWN_PROPERTIES_BYTES;
    if (bytes <= most) return CMQ_OK;
    char names[64] = "";
    for (uint32_t i = 0; i < rows->count; i++) {
        const cmq_spark_kind kind = rows->columns[i]->kind;
        if (kind < CMQ_SPARK_TAGS || kind > CMQ_SPARK_PROPERTIES) continue;
        if (names[0] != '\0') strcat(names, ", ");
        strcat(names, field_of(kind).name);
    }
    return cmq_fail(CMQ_ERR_ARGUMENT, "the columns %s of a row together have %zu bytes; at most %zu are allowed", names,
                    bytes, most);
}

static cmq_status add_row(cmq_spark_rows *rows, region row)
{
    const size_t bits = null_bytes(rows->count);
    const uint32_t at = rows->batch;
    size_t property_bytes = 0;
    if (row.bytes < bits + rows->count * WORD) return not_a_row();
    for (uint32_t i = 0; i < rows->count; i++) {
        column *into = rows->columns[i];
        const size_t before = into->used;
        const bool null = is_null(row, 0, i);
        const cmq_status status = null ? check_null(rows, into->kind) : add_value(rows, into, row, bits + i * WORD, at);
        if (status != CMQ_OK) return status;
        if (null)
            into->nulls++;
        else
            into->validity[at / 8] |= (uint8_t)(1u << at % 8);
        if (!is_number(into->kind)) into->numbers[at + 1] = (int32_t)into->used;
        if (into->kind >= CMQ_SPARK_TAGS && into->kind <= CMQ_SPARK_PROPERTIES) property_bytes += into->used - before;
    }
    rows->batch++;
    return check_properties(rows, property_bytes);
}

static bool is_full(const cmq_spark_rows *rows)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < rows->count; i++) bytes += rows->columns[i]->used;
    return rows->batch == ROWS_MAX || bytes >= FULL_BYTES;
}

static cmq_status take_rows(cmq_spark_rows *rows, cmq_slice packed, size_t *taken_out)
{
    while (*taken_out < packed.bytes && !is_full(rows)) {
        const region left = {packed.data + *taken_out, packed.bytes - *taken_out};
        const uint64_t bytes = left.bytes < WORD ? 0 : word_at(left, 0);
        if (left.bytes < WORD || bytes > left.bytes - WORD) return not_a_row();
        const cmq_status status = add_row(rows, (region){left.at + WORD, (size_t)bytes});
        if (status != CMQ_OK) return status;
        *taken_out += WORD + (size_t)bytes;
    }
    return CMQ_OK;
}

static cmq_status check_usable(const cmq_spark_rows *rows)
{
    if (rows->failed) return cmq_fail(CMQ_ERR_CLOSED, "the staged file has failed");
    return rows->file == NULL ? cmq_fail(CMQ_ERR_CLOSED, "the staged file is finished") : CMQ_OK;
}

cmq_status cmq_spark_rows_take(cmq_spark_rows *rows, cmq_slice packed, size_t *taken_out)
{
    *taken_out = 0;
    cmq_status status = check_usable(rows);
    if (status == CMQ_OK) status = take_rows(rows, packed, taken_out);
    rows->failed = rows->failed || status != CMQ_OK;
    return status;
}

/* ---- the file ---- */

cmq_status cmq_spark_rows_flush(cmq_spark_rows *rows)
{
    cmq_ipc_column columns[CMQ_SPARK_COLUMNS_MAX];
    cmq_status status = check_usable(rows);
    if (status != CMQ_OK || rows->batch == 0) return status;
    for (uint32_t i = 0; i < rows->count; i++) {
        const column *from = rows->columns[i];
        columns[i] = (cmq_ipc_column){from->nulls, from->validity, from->numbers, from->data};
    }
    status = cmq_ipc_file_append(rows->file, rows->batch, columns);
    rows->failed = status != CMQ_OK;
    if (status != CMQ_OK) return status;
    for (uint32_t i = 0; i < rows->count; i++) {
        column *emptied = rows->columns[i];
        memset(emptied->validity, 0, (rows->batch + 7) / 8);
        emptied->nulls = 0;
        emptied->used = 0;
        /* a column with nulls keeps no number of the rows before */
        memset(emptied->numbers, 0, (rows->batch + 1) * sizeof *emptied->numbers);
    }
    rows->written += rows->batch;
    rows->batch = 0;
    return CMQ_OK;
}

cmq_status cmq_spark_rows_finish(cmq_spark_rows *rows, cmq_spark_file *file_out)
{
    *file_out = (cmq_spark_file){0};
    cmq_status status = cmq_spark_rows_flush(rows);
    if (status != CMQ_OK || rows->written == 0) return status;
    file_out->rows = rows->written;
    status = cmq_ipc_file_finish(rows->file, &file_out->bytes, &file_out->crc32);
    rows->failed = status != CMQ_OK;
    if (status != CMQ_OK) return status;
    cmq_ipc_file_close(rows->file);
    rows->file = NULL;
    return CMQ_OK;
}

void cmq_spark_rows_close(cmq_spark_rows *rows)
{
    if (rows == NULL) return;
    if (rows->file != NULL) {
        cmq_ipc_file_close(rows->file);
        /* Where it cannot be removed, it goes with the job's folder. */
        const cmq_status removed = cmq_fs_remove(rows->fs, rows->path);
        (void)removed;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        free(rows->columns[i]->data);
        free(rows->columns[i]);
    }
    free(rows->path);
    free(rows);
}
