/* flip_matrix: every byte of small stores is damaged in turn, and every message is read in every way afterwards: it
 * comes whole, or an error names the damage. Never silence, never foreign bytes, never a crash or a hang.
 *
 * The kinds of damage: a bit flips; a sector of 512 bytes reads as zeros, or a page of 4 KiB; a sector repeats the one
 * before; a sector was written to this file that belongs to another of its kind; the file ends there; the file is
 * missing. Each damage is read by a read-only opening and then by a writer, on a copy of the store: the log, each
 * queue, tag, offset, key, time, and place in the log; as Arrow, by key through the index and without it; and, beside
 * the writer, by the view that was there before it.
 *
 * The stores lie in memory; one damage in sixteen is done to the system's files.
 *
 * A result that is neither whole nor an error must match a line of `known`, which says why it is undetectable or names
 * the defect; `cometmq verify` runs before, and damage that it names counts as reported, in a column of its own, but
 * for damage of queue files, which openings have to mend and readers to report. In the long form a line of `known` that
 * nothing matched fails.
 *
 * CMQ_FLIPS: how many damages are drawn; without it some hundred, and with CMQ_LONG every one. CMQ_SEED repeats a draw.
 * Missing files are always tried.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "export/cmq_scan.h"
#include "store/check/cmq_verify.h"
#include "store/cmq_store_internal.h"
#include "support/cmq_memory_fs.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 100
#define MESSAGES_SUMMED 3300   /* in one queue: the first 3,276 have a sum */
#define BASES 5
#define FILES_MAX 100
#define SECTOR 512
#define PAGE_BYTES 4096
#define RESULTS_MAX 5000
#define CPU_SECONDS_MAX 30   /* of one damage */
#define SECONDS_MAX 3600     /* the same by the clock, which also counts time in which other programs run */
#define REAL_ONE_IN 16       /* damages that are done to the system's files */
#define SUMMED_STEP 41       /* of the bytes of a queue file with sums, one in so many */
#define TIME_BEGIN_MS INT64_C(1800000000000)

/* ---- the stores ---- */

typedef struct message {
    const char *topic;
    const char *tag;      /* NULL: none */
    char key[16];
    int32_t queue_id;
    int64_t queue_offset, phy, store_ms;
    uint8_t *record;
    uint32_t bytes;
    cmq_slice body;       /* in record */
} message;

typedef struct base {
    const char *name;
    char path[CMQ_PATH_BYTES];
    cmq_store_options options;
    bool closed, summed;       /* summed: one long queue, whose sums and units alone are damaged */
    int64_t keys_missing[2];   /* that verify counts without damage, read-only and as a writer */
    message messages[MESSAGES_SUMMED];
    int count;
} base;

static base bases[BASES] = {{.name = "plain, closed", .closed = true}, {.name = "plain, killed"},
                            {.name = "crc, closed", .closed = true}, {.name = "crc, killed"},
                            {.name = "sums, closed", .closed = true, .summed = true}};
static cmq_fs *memory, *trial_fs;   /* where the stores are, and the copy that is damaged */
static const char *const tags[] = {"AaAa", "BBBB", "red"};   /* the first two have one hash */
static char trial_path[CMQ_PATH_BYTES];

static void append_message(base *of, cmq_store *store, int i)
{
    char body[2000], properties[100];
    message *kept = &of->messages[i];
    const bool batch = !of->summed && i % 8 == 5;
    const int bytes = of->summed ? 8 : i % 40 == 7 ? 1500 : 20 + i * 37 % 150;
    for (int j = 0; j < bytes; j++) body[j] = (char)('a' + (i * 31 + j * 7) % 26);
    snprintf(properties, sizeof properties, "colour\001c%d\002%s", i, batch ? "INNER_NUM\0013\002" : "");
    snprintf(kept->key, sizeof kept->key, "k%d", i);
    kept->topic = batch ? "Batch" : of->summed || i % 3 == 0 ? "A" : "B";
    kept->tag = i % 4 == 3 ? NULL : tags[i % 4];
    kept->queue_id = batch || of->summed ? 0 : i / 3 % 2;
    const cmq_append append = {
        .common = {.topic = kit_slice(kept->topic),
                   .queue_id = kept->queue_id,
                   .sys_flag = batch ? CMQ_SYS_INNER_BATCH : 0},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = (const uint8_t *)body, .bytes = (size_t)bytes}},
        .tags = {.kind = kept->tag != NULL ? CMQ_COLUMN_ONE : CMQ_COLUMN_NONE,
                 .one = kit_slice(kept->tag != NULL ? kept->tag : "")},
        .keys = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(kept->key)},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(properties)},
    };
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    kept->phy = appended.first_physical_offset;
    kept->queue_offset = appended.first_queue_offset;
    kept->store_ms = appended.store_timestamp_ms;
    atomic_fetch_add(&kit_now_ms, 700);
}

static void keep_records(base *of, cmq_store *store)
{
    kit_found *found = kit_found_make(1);
    for (int i = 0; i < of->count; i++) {
        message *kept = &of->messages[i];
        cmq_record_view view;
        CHECK_OK(cmq_store_read_physical(store, kept->phy, &found->batch));
        kept->bytes = found->items[0].record_bytes;
        kept->record = malloc(kept->bytes);
        CHECK(kept->record != NULL);
        memcpy(kept->record, found->items[0].record, kept->bytes);
        CHECK_OK(cmq_record_parse(kept->record, kept->bytes, kept->phy, 0, &view));
        kept->body = view.body;
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
}

static void make_bases(const char *directory)
{
    static const char *const batch_topics[] = {"Batch"};
    for (int b = 0; b < BASES; b++) {
        base *of = &bases[b];
        atomic_store(&kit_now_ms, TIME_BEGIN_MS);
        snprintf(of->path, sizeof of->path, "%.3000s/base-%d", directory, b);
        of->count = of->summed ? MESSAGES_SUMMED : MESSAGES;
        of->options = kit_options(of->path);
        of->options.fs = memory;
        of->options.batch_topics = batch_topics;
        of->options.batch_topic_count = 1;
        of->options.queue_file_bytes = (of->summed ? MESSAGES_SUMMED : 26) * CMQ_UNIT_BYTES;   /* more than a sector */
        of->options.segment_bytes = of->summed ? 1 << 20 : 8192;
        if (of->summed) of->options.index_entries = 2 * MESSAGES_SUMMED;
        of->options.ext_enabled = b == 1 || b == 2;
        of->options.property_crc = of->options.check_property_crc = b >= 2 && !of->summed;
        cmq_store *store = kit_open(&of->options);
        for (int i = 0; i < of->count; i++) {
            append_message(of, store, i);
            if (i == of->count * 2 / 3) CHECK_OK(cmq_store_maintain(store, true));
        }
        keep_records(of, store);
        if (of->closed) kit_close(store);
        else cmq_store_abandon(store);
    }
}

/* ---- damage ---- */

typedef enum kind { FLIP, ZERO, PAGE, REPEAT, MISDIRECT, CUT, REMOVE, KINDS } kind;
static const char *const kind_names[KINDS] = {"flip", "zero", "page", "repeat", "misdirect", "cut", "remove"};

typedef enum area { LOG, QUEUE, BATCH, EXT, INDEX, CHECKPOINT, SUMS, OURS, OTHER, AREAS } area;
static const char *const area_names[AREAS] = {"commitlog",        "consumequeue", "batchconsumequeue",
                                              "consumequeue_ext", "index",        "checkpoint",
                                              "cometmq/sums",     "cometmq",      "other"};

/* The field that a byte of the log belongs to. */
typedef enum field {
    LENGTHS,
    CRC,
    QUEUE_ID,
    FLAG,
    QUEUE_OFFSET,
    PHYSICAL,
    SYS_FLAG,
    BORN,
    STORED,
    HOSTS,
    RECONSUME,
    PREPARED,
    BODY,
    TOPIC,
    PROPERTIES,
    PROOF,
    NONE,
    FIELDS
} field;
static const char *const field_names[FIELDS] = {"lengths and magic",
                                                "body CRC",
                                                "queue id",
                                                "flag",
                                                "queue offset",
                                                "physical offset",
                                                "system flag",
                                                "born time",
                                                "store time",
                                                "hosts",
                                                "reconsume times",
                                                "prepared offset",
                                                "body",
                                                "topic",
                                                "properties",
                                                "property CRC",
                                                "-"};

static struct {
    char paths[FILES_MAX][CMQ_PATH_BYTES];
    int64_t bytes[FILES_MAX];
    size_t count;
} files;

typedef struct damage {
    const base *of;
    const char *name;      /* of the file, below the store */
    area area;
    field field;
    kind kind;
    bool first, last;      /* of the files in its folder */
    int64_t at;
} damage;

static damage now;
static char now_text[300];

static void take_file(void *context, const char *path, int64_t bytes)
{
    const base *of = context;
    const char *root = of->path;
    if (strcmp(strrchr(path, '/'), "/lock") == 0 ||
        (of->summed && strstr(path, "/consumequeue/") == NULL && strstr(path, "/sums/") == NULL))
        return;
    CHECK(files.count < FILES_MAX);
    snprintf(files.paths[files.count], sizeof files.paths[0], "%s", path + strlen(root) + 1);
    files.bytes[files.count++] = bytes;
}

static area area_of(const char *name)
{
    if (strncmp(name, "commitlog/", 10) == 0) return LOG;
    if (strncmp(name, "consumequeue/Batch/", 19) == 0) return BATCH;
    if (strncmp(name, "batchconsumequeue/", 18) == 0) return BATCH;
    if (strncmp(name, "consumequeue/", 13) == 0) return QUEUE;
    if (strncmp(name, "consumequeue_ext/", 17) == 0) return EXT;
    if (strncmp(name, "index/", 6) == 0) return INDEX;
    if (strcmp(name, "checkpoint") == 0) return CHECKPOINT;
    if (strncmp(name, "cometmq/sums/", 13) == 0) return SUMS;
    return strncmp(name, "cometmq/", 8) == 0 ? OURS : OTHER;
}

static field field_in(const message *kept, int64_t at)
{
    cmq_record_view view;
    static const struct {
        int64_t end;
        field field;
    } places[] = {{8, LENGTHS},   {12, CRC},       {16, QUEUE_ID}, {20, FLAG},   {28, QUEUE_OFFSET},
                  {36, PHYSICAL}, {40, SYS_FLAG},  {48, BORN},     {56, HOSTS},  {64, STORED},
                  {72, HOSTS},    {76, RECONSUME}, {84, PREPARED}, {88, LENGTHS}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (at < places[i].end) return places[i].field;
    CHECK_OK(cmq_record_parse(kept->record, kept->bytes, kept->phy, 0, &view));
    const int64_t topic = view.topic.data - kept->record, properties = view.properties.data - kept->record;
    if (at < 88 + (int64_t)view.body.bytes) return BODY;
    if (at < topic) return LENGTHS;
    if (at < topic + (int64_t)view.topic.bytes) return TOPIC;
    if (at < properties) return LENGTHS;
    return now.of->options.property_crc && at >= (int64_t)kept->bytes - CMQ_RECORD_PROPERTY_CRC_BYTES - 1 ? PROOF
                                                                                                          : PROPERTIES;
}

static field field_of(const base *of, const char *name, int64_t at)
{
    const int64_t phy = strtoll(strrchr(name, '/') + 1, NULL, 10) + at;
    for (int i = 0; i < of->count; i++) {
        const message *kept = &of->messages[i];
        if (phy >= kept->phy && phy < kept->phy + kept->bytes) return field_in(kept, phy - kept->phy);
    }
    return NONE;
}

static bool same_folder(size_t a, size_t b)
{
    const char *end = strrchr(files.paths[a], '/'), *other = strrchr(files.paths[b], '/');
    if (end == NULL || other == NULL || end - files.paths[a] != other - files.paths[b]) return false;
    return memcmp(files.paths[a], files.paths[b], (size_t)(end - files.paths[a])) == 0;
}

static void aim(const base *of, size_t file, kind how, int64_t at)
{
    const char *name = files.paths[file];
    now = (damage){.of = of, .name = name, .area = area_of(name), .field = NONE, .kind = how, .at = at};
    now.first = file == 0 || !same_folder(file, file - 1);
    now.last = file + 1 == files.count || !same_folder(file, file + 1);
    if (now.area == LOG && how == FLIP) now.field = field_of(of, name, at);
    snprintf(now_text, sizeof now_text, "%s: %s of %.150s at %" PRId64, of->name, kind_names[how], name, at);
}

static bool aligned(kind how, int64_t at)
{
    if (how == FLIP || how == CUT) return true;
    return at % (how == PAGE ? PAGE_BYTES : SECTOR) == 0 && (how != REPEAT || at > 0);
}

/* The next file of the same kind that has something at this place; NULL: none. */
static const char *neighbour(size_t file, int64_t end)
{
    for (size_t i = 1; i < files.count; i++) {
        const size_t other = (file + i) % files.count;
        if (area_of(files.paths[other]) == now.area && files.bytes[other] >= end) return files.paths[other];
    }
    return NULL;
}

static cmq_file *open_copy(const char *name, cmq_open_mode mode)
{
    cmq_file *file;
    CHECK_OK(cmq_file_open(trial_fs, kit_path(trial_path, name), mode, &file));
    return file;
}

/* The bytes that the damage puts in the place of `sector`; false where there are none. */
static bool damaged_bytes(size_t file, cmq_file *copy, const uint8_t *sector, size_t length, unsigned bit,
                          uint8_t *into)
{
    memset(into, 0, length);
    if (now.kind == FLIP) into[0] = (uint8_t)(sector[0] ^ 1u << bit);
    if (now.kind == REPEAT) CHECK_OK(cmq_file_read(copy, (uint64_t)(now.at - SECTOR), into, length));
    if (now.kind != MISDIRECT) return true;
    const char *other = neighbour(file, now.at + (int64_t)length);
    if (other == NULL) return false;
    cmq_file *from = open_copy(other, CMQ_OPEN_READ);
    CHECK_OK(cmq_file_read(from, (uint64_t)now.at, into, length));
    cmq_file_close(from);
    return true;
}

/* Damage the file of the copy; false where nothing changes. */
static bool strike(size_t file, unsigned bit)
{
    static uint8_t after[PAGE_BYTES], sector[PAGE_BYTES];
    if (now.kind == REMOVE) return cmq_fs_remove(trial_fs, kit_path(trial_path, now.name)) == CMQ_OK;
    cmq_file *copy = open_copy(now.name, CMQ_OPEN_WRITE);
    bool changes = true;
    if (now.kind == CUT) {
        CHECK_OK(cmq_file_resize(copy, (uint64_t)now.at));
    } else {
        const int64_t unit = now.kind == FLIP   ? 1
                             : now.kind == PAGE ? PAGE_BYTES
                                                : SECTOR,
                      left = files.bytes[file] - now.at;
        const size_t length = (size_t)(left < unit ? left : unit);
        CHECK_OK(cmq_file_read(copy, (uint64_t)now.at, sector, length));
        changes = damaged_bytes(file, copy, sector, length, bit, after) && memcmp(after, sector, length) != 0;
        if (changes) CHECK_OK(cmq_file_write(copy, (uint64_t)now.at, after, length));
    }
    cmq_file_close(copy);
    return changes;
}

/* ---- reading ---- */

typedef enum way {
    WHOLE_LOG,
    BY_QUEUE,
    BY_TAG,
    BY_TIME,
    BY_OFFSET,
    BY_KEY,
    BY_PLACE,
    ARROW,
    KEY_QUERY,
    NO_INDEX,
    FOLLOWER,
    WAYS
} way;
static const char *const way_names[WAYS] = {"log",   "queue", "tag",   "time",     "offset",  "key",
                                            "place", "arrow", "query", "no index", "follower"};

enum { READ_ONLY = 1, WRITER = 2 };

typedef struct answers {
    bool seen[WAYS][MESSAGES_SUMMED];
    bool reported[WAYS];           /* the reader reported damage */
    uint32_t missing[WAYS];        /* messages that did not come, and the way reported no damage */
    uint32_t changed[WAYS];        /* that came with other bytes, which no CRC covers */
    uint32_t unchecked[WAYS];      /* that came although their CRC is wrong, for this way computes none */
    uint32_t foreign[WAYS];        /* that were never appended there */
} answers;

static answers got;

static bool is_typed(cmq_status status)
{
    return status == CMQ_ERR_CORRUPT || status == CMQ_ERR_NOT_STORE || status == CMQ_ERR_AMBIGUOUS ||
           status == CMQ_ERR_SETTING || status == CMQ_ERR_NOT_FOUND || status == CMQ_ERR_OFFSET ||
           status == CMQ_ERR_IO || status == CMQ_ERR_CLOSED;
}

static void must_be_typed(const char *what, cmq_status status)
{
    if (status != CMQ_OK && !is_typed(status))
        cmq_test_fail(__FILE__, __LINE__, "%s: %s gave %s (%s)", now_text, what, cmq_status_name(status),
                      cmq_last_error()->text);
}

static void hear(way by, const char *what, cmq_status status)
{
    must_be_typed(what, status);
    if (status == CMQ_ERR_CORRUPT || status == CMQ_ERR_IO || status == CMQ_ERR_CLOSED) got.reported[by] = true;
}

/* The number of the message that was appended at a place, or -1. */
static int message_at(int64_t phy)
{
    int low = 0, high = now.of->count - 1;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (now.of->messages[middle].phy < phy) low = middle + 1;
        else high = middle;
    }
    return now.of->messages[low].phy == phy ? low : -1;
}

/* `asked`: the message that a look-up named, or -1. */
static void look_at(way by, const cmq_found *item, int asked)
{
    cmq_record_view view;
    /* parsing its head shows it */
    if (cmq_record_parse(item->record, item->record_bytes, item->physical_offset, 0, &view) != CMQ_OK) {
        got.reported[by] = true;
        return;
    }
    const unsigned checks = CMQ_RECORD_CHECK_BODY_CRC | CMQ_RECORD_CHECK_IF_PROPERTY_CRC;
    if (cmq_record_parse(item->record, item->record_bytes, item->physical_offset, checks, &view) != CMQ_OK) {
        got.unchecked[by]++;
        return;
    }
    const int i = message_at(item->physical_offset);
    if (i < 0 || (asked >= 0 && asked != i)) {
        got.foreign[by]++;
        return;
    }
    const message *kept = &now.of->messages[i];
    const bool same = kept->bytes == item->record_bytes && memcmp(kept->record, item->record, kept->bytes) == 0 &&
                      kept->queue_offset == item->queue_offset;
    if (same) got.seen[by][i] = true;
    else got.changed[by]++;
}

static void look_at_all(way by, cmq_found_batch *batch, int asked)
{
    for (uint32_t i = 0; i < batch->count; i++) look_at(by, &batch->items[i], asked);
    cmq_found_batch_release(batch);
}

static void read_with(way by, cmq_store *store, const cmq_read_options *options, kit_found *found)
{
    cmq_reader *reader;
    bool end = false;
    cmq_read_options checked = *options;
    checked.check_crc = true;
    cmq_status status = cmq_reader_open(store, &checked, &reader);
    hear(by, "opening a reader", status);
    if (status != CMQ_OK) return;
    for (int results = 0, idle = 0; !end && idle < 2; results++) {
        status = cmq_reader_next(reader, &found->batch, &end);
        hear(by, "reading", status);
        if (status != CMQ_OK && status != CMQ_ERR_CORRUPT) break;
        idle = status == CMQ_OK && found->batch.count == 0 ? idle + 1 : 0;
        look_at_all(by, &found->batch, -1);
        if (results > RESULTS_MAX) cmq_test_fail(__FILE__, __LINE__, "%s: reading does not end", now_text);
    }
    cmq_reader_close(reader);
}

static const char *const topics[] = {"A", "B", "Batch"};

static void read_queues(way by, cmq_store *store, kit_found *found)
{
    for (int t = 0; t < 3; t++) {
        const cmq_slice topic = kit_slice(topics[t]);
        for (int32_t queue = 0; queue < (t < 2 ? 2 : 1); queue++) {
            const cmq_read_options one = {
                .topics = &topic, .topic_count = 1, .may_be_missing = true, .queue_ids = &queue, .queue_id_count = 1};
            read_with(by, store, &one, found);
        }
    }
}

static void read_topics(cmq_store *store, kit_found *found)
{
    for (int t = 0; t < 3; t++) {
        const cmq_slice topic = kit_slice(topics[t]);
        const cmq_read_options later = {.topics = &topic,
                                        .topic_count = 1,
                                        .may_be_missing = true,
                                        .has_start_time = true,
                                        .start_time_ms = now.of->messages[now.of->count / 2].store_ms};
        read_with(BY_TIME, store, &later, found);
        for (int i = 0; i < 3; i++) {
            const cmq_slice tag = kit_slice(tags[i]);
            const cmq_read_options tagged = {
                .topics = &topic, .topic_count = 1, .may_be_missing = true, .tags = &tag, .tag_count = 1};
            read_with(BY_TAG, store, &tagged, found);
        }
    }
}

/* ---- Arrow ---- */

static cmq_slice text_at(const struct ArrowArray *column, int64_t row)
{
    const uint8_t *bits = column->buffers[0];
    const int32_t *offsets = column->buffers[1];
    if (bits != NULL && (bits[row / 8] >> row % 8 & 1) == 0) return CMQ_SLICE_NONE;
    return (cmq_slice){.data = (const uint8_t *)column->buffers[2] + offsets[row],
                       .bytes = (size_t)(offsets[row + 1] - offsets[row])};
}

static void look_at_rows(way by, const struct ArrowArray *batch)
{
    const int64_t *places = batch->children[0]->buffers[1], *offsets = batch->children[1]->buffers[1];
    for (int64_t row = 0; row < batch->length; row++) {
        const int i = message_at(places[row]);
        if (i < 0) {
            got.foreign[by]++;
            continue;
        }
        const message *kept = &now.of->messages[i];
        const bool same =
            offsets[row] == kept->queue_offset && cmq_slice_equal(text_at(batch->children[2], row), kept->body) &&
            cmq_slice_equal(text_at(batch->children[3], row), kit_slice(kept->tag != NULL ? kept->tag : "")) &&
            cmq_slice_equal(text_at(batch->children[4], row), kit_slice(kept->key));
        if (same) got.seen[by][i] = true;
        else got.changed[by]++;
    }
}

static void scan_with(way by, cmq_store *store, const cmq_slice *keys, uint32_t key_count)
{
    static const cmq_scan_column columns[] = {{.kind = CMQ_SCAN_PHYSICAL_OFFSET, .name = "place"},
                                              {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "offset"},
                                              {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "body"},
                                              {.kind = CMQ_SCAN_TAGS, .name = "tags"},
                                              {.kind = CMQ_SCAN_KEYS, .name = "keys"}};
    const cmq_slice names[] = {kit_slice(topics[0]), kit_slice(topics[1]), kit_slice(topics[2])};
    const cmq_scan_options options = {.read = {.topics = names, .topic_count = 3, .may_be_missing = true},
                                      .keys = keys,
                                      .key_count = key_count,
                                      .columns = columns,
                                      .column_count = 5,
                                      .raw_bodies = true,
                                      .check_crc = true};
    cmq_scan *scan;
    cmq_status status = cmq_scan_open(store, &options, &scan);
    hear(by, "opening a scan", status);
    if (status != CMQ_OK) return;
    bool end = false;
    for (int results = 0; !end; results++) {
        struct ArrowArray batch = {0};
        status = cmq_scan_next(scan, &batch, &end);
        hear(by, "scanning", status);
        if (status == CMQ_ERR_CORRUPT && results < RESULTS_MAX) continue;
        if (status != CMQ_OK || batch.release == NULL) break;
        look_at_rows(by, &batch);
        batch.release(&batch);
    }
    cmq_scan_close(scan);
}

static void scan_by_key(way by, cmq_store *store)
{
    static cmq_slice keys[MESSAGES];
    if (now.of->summed) return;
    for (int i = 0; i < MESSAGES; i++) keys[i] = kit_slice(now.of->messages[i].key);
    scan_with(by, store, keys, MESSAGES);
}

/* ---- in every way ---- */

static bool is_expected(way by, unsigned mode, int i)
{
    if (by == BY_TAG) return now.of->messages[i].tag != NULL;
    if (by == BY_TIME) return i >= now.of->count / 2;
    if (by == FOLLOWER) return mode == WRITER;
    return !now.of->summed || (by != KEY_QUERY && by != NO_INDEX && by != BY_KEY && by != BY_PLACE);
}

static cmq_status open_trial(unsigned mode, bool index_disabled, cmq_store **store_out)
{
    cmq_store_options options = now.of->options;
    options.fs = trial_fs;
    options.path = trial_path;
    options.create = false;
    options.read_only = mode == READ_ONLY;
    options.index_disabled = index_disabled;
    return cmq_store_open(store_out, &options);
}

/* Through a view that keeps no index. */
static void scan_without_index(void)
{
    cmq_store *view;
    const cmq_status status = open_trial(READ_ONLY, true, &view);
    hear(NO_INDEX, "opening without the index", status);
    if (status != CMQ_OK) {
        got.reported[NO_INDEX] = true;
        return;
    }
    scan_by_key(NO_INDEX, view);
    must_be_typed("closing", cmq_store_close(view));
}

/* By the view that was opened before the writer, or by a new one where that says that it cannot go on, or there was
 * none. */
static void read_as_follower(cmq_store **view, kit_found *found)
{
    if (*view != NULL) read_queues(FOLLOWER, *view, found);
    if (*view != NULL && cmq_store_check_view(*view) == CMQ_OK) return;
    if (*view != NULL) must_be_typed("closing", cmq_store_close(*view));
    *view = NULL;
    const cmq_status status = open_trial(READ_ONLY, false, view);
    must_be_typed("opening beside the writer", status);
    got.reported[FOLLOWER] = status != CMQ_OK;
    if (status == CMQ_OK) read_queues(FOLLOWER, *view, found);
}

static void look_each_up(cmq_store *store, kit_found *found)
{
    for (int i = 0; i < now.of->count; i++) {
        const message *kept = &now.of->messages[i];
        hear(BY_OFFSET, "reading an offset",
             cmq_store_read_offset(store, kit_slice(kept->topic), kept->queue_id, kept->queue_offset, &found->batch));
        look_at_all(BY_OFFSET, &found->batch, i);
        if (now.of->summed) continue;   /* neither log nor index is damaged */
        hear(BY_PLACE, "reading a place", cmq_store_read_physical(store, kept->phy, &found->batch));
        look_at_all(BY_PLACE, &found->batch, i);
        hear(BY_KEY, "finding a key",
             cmq_store_find_key(store, kit_slice(kept->topic), kit_slice(kept->key), 0, INT64_MAX, &found->batch));
        look_at_all(BY_KEY, &found->batch, i);
    }
}

/* `view`: the one that was opened before the writer, if any. */
static void read_in_every_way(cmq_store *store, unsigned mode, cmq_store **view)
{
    static kit_found *found;
    if (found == NULL) found = kit_found_make(64);
    memset(&got, 0, sizeof got);
    if (mode == WRITER) read_as_follower(view, found);
    read_with(WHOLE_LOG, store, &(cmq_read_options){0}, found);
    read_queues(BY_QUEUE, store, found);
    read_topics(store, found);
    look_each_up(store, found);
    scan_with(ARROW, store, NULL, 0);
    scan_by_key(KEY_QUERY, store);
    scan_without_index();
    for (way by = 0; by < WAYS; by++)
        for (int i = 0; i < now.of->count; i++)
            if (!got.reported[by] && is_expected(by, mode, i) && !got.seen[by][i]) got.missing[by]++;
    for (way by = 0; by < WAYS; by++) {   /* those came, though not whole */
        const uint32_t other = got.changed[by] + got.unchecked[by];
        got.missing[by] -= other < got.missing[by] ? other : got.missing[by];
    }
}

/* ---- judging ---- */

typedef enum outcome { INTACT, REFUSED, OPENING_REPORTS, READER_REPORTS, VERIFY_REPORTS, KNOWN, OUTCOMES } outcome;
static const char *const outcome_names[OUTCOMES] = {"all whole", "refused", "opening",
                                                    "reader",    "verify",  "unreported"};
static uint64_t counts[AREAS][KINDS][OUTCOMES], damages, silent;
static uint64_t left_to_verify[AREAS][WAYS];   /* openings in which the way left messages out, and only the opening or
                                                * verify says so */

#define ANY 0xFFFFFFFFu
#define BIT(of) (1u << (of))
/* the store, and the file in its folder */
enum { PLAIN = 1, WITH_CRC = 2, CLOSED = 4, KILLED = 8, FIRST = 16, LAST = 32, NOT_LAST = 64 };
typedef enum fault { MISSING = 1, CHANGED = 2, UNCHECKED = 4, FOREIGN = 8 } fault;

/* Undetectable damage, and damage that nothing detects yet. The first line that matches takes the case. */
static struct known {
    const char *what, *why;
    uint32_t wrongs, areas, kinds, fields, ways, modes, stores;   /* sets of bits; stores: all of those named */
    uint64_t count;
} known[] = {
    {"record, but its body",
     "RocketMQ's CRC covers the body alone; `enabledAppendPropCRC` adds one over the whole record", CHANGED, BIT(LOG),
     ANY, ~(BIT(LENGTHS) | BIT(PHYSICAL) | BIT(CRC) | BIT(BODY)), ANY, ANY, PLAIN, 0},
    {"tag, key, queue or time of a record, read by it",
     "the same; behind the durable point recovery takes queue and tag from the record", MISSING, BIT(LOG), BIT(FLIP),
     BIT(PROPERTIES) | BIT(QUEUE_ID) | BIT(QUEUE_OFFSET) | BIT(STORED) | BIT(TOPIC) | BIT(SYS_FLAG), ANY, ANY, PLAIN,
     0},
    {"queue or offset of a record of a killed store, read by offset",
     "the same: recovery gives the record the offset that it names, a batch that of its INNER_BASE", FOREIGN, BIT(LOG),
     BIT(FLIP), BIT(QUEUE_ID) | BIT(QUEUE_OFFSET) | BIT(TOPIC) | BIT(PROPERTIES), BIT(BY_OFFSET), ANY, PLAIN | KILLED,
     0},
    {"key of a record of a killed store, read by key",
     "the same: where the index may be torn, keys are taken from the record", FOREIGN, BIT(LOG), BIT(FLIP),
     BIT(PROPERTIES) | BIT(TOPIC), BIT(BY_KEY), ANY, PLAIN | KILLED, 0},
    {"first segment, missing", "a store whose oldest messages have expired looks the same", MISSING, BIT(LOG),
     BIT(REMOVE), ANY, ANY, ANY, FIRST, 0},
    {"last segment of a killed store, missing or empty",
     "all of it lay behind the durable point, and a copy's follow page proves nothing; the writer tells", MISSING,
     BIT(LOG), BIT(REMOVE) | BIT(CUT), ANY, ANY, READ_ONLY, LAST | KILLED, 0},
    {"last segment of a killed store, all zeros",
     "the same: a power loss before the first flush leaves it so, and a copy's follow page proves nothing", MISSING,
     BIT(LOG), BIT(PAGE), ANY, ANY, ANY, LAST | KILLED, 0},
};

static bool is_known(unsigned mode, way by, fault what)
{
    const unsigned stores = (now.of->options.property_crc ? WITH_CRC : PLAIN) | (now.of->closed ? CLOSED : KILLED) |
                            (now.first ? FIRST : 0) | (now.last ? LAST : NOT_LAST);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct known *line = &known[i];
        if ((line->wrongs & what) == 0 || (line->areas & BIT(now.area)) == 0 || (line->kinds & BIT(now.kind)) == 0)
            continue;
        if ((line->fields & BIT(now.field)) == 0) continue;
        if ((line->ways & BIT(by)) == 0 || (line->modes & mode) == 0 || (line->stores & stores) != line->stores)
            continue;
        line->count++;
        return true;
    }
    return false;
}

/* Does `cometmq verify` name what an undamaged store does not have? */
static bool verify_names_damage(cmq_store *store, unsigned mode)
{
    cmq_verified verified;
    const cmq_status status = cmq_store_verify(store, &(cmq_verify_options){0}, &verified);
    must_be_typed("verifying", status);
    if (status != CMQ_OK) return true;
    return verified.verdict != CMQ_SEVERITY_NOTE || verified.keys_missing > now.of->keys_missing[mode == WRITER];
}

static void complain(unsigned mode, way by, const char *what, uint32_t many)
{
    silent++;
    fprintf(stderr, "%s; %s; %s, by %s: %u %s\n", now_text, field_names[now.field],
            mode == WRITER ? "writer" : "read-only", way_names[by], many, what);
}

/* Damaged units are for readers to report, which meet them, and missing files for the opening, which makes them again,
 * whether or not `cometmq verify` runs. */
static bool is_for_readers(void) { return now.area == QUEUE || now.area == BATCH; }

static outcome judge(cmq_store *store, unsigned mode, bool opening_reports)
{
    bool lost = false, reported = false, wrong = false;
    for (way by = 0; by < WAYS; by++) {
        reported = reported || got.reported[by];
        lost = lost || got.missing[by] > 0;
        if (got.foreign[by] > 0 && !is_known(mode, by, FOREIGN)) complain(mode, by, "foreign", got.foreign[by]);
        if (got.changed[by] > 0 && !is_known(mode, by, CHANGED)) complain(mode, by, "changed", got.changed[by]);
        if (got.unchecked[by] > 0 && !is_known(mode, by, UNCHECKED))
            complain(mode, by, "with a wrong CRC", got.unchecked[by]);
        wrong = wrong || got.changed[by] > 0 || got.unchecked[by] > 0 || got.foreign[by] > 0;
    }
    const bool verify_reports = lost && !opening_reports && !is_for_readers() && verify_names_damage(store, mode);
    for (way by = 0; by < WAYS && lost && !opening_reports && !verify_reports; by++) {
        if (got.missing[by] == 0) continue;
        wrong = true;
        if (!is_known(mode, by, MISSING)) complain(mode, by, "missing", got.missing[by]);
    }
    for (way by = 0; by < WAYS; by++)
        if (got.missing[by] > 0 && (opening_reports || verify_reports)) left_to_verify[now.area][by]++;
    if (wrong) return KNOWN;
    if (opening_reports) return OPENING_REPORTS;
    if (verify_reports) return VERIFY_REPORTS;
    return reported ? READER_REPORTS : INTACT;
}

/* *view: as READ_ONLY the store that stays open; as WRITER that one, if it could be opened. */
static outcome try_mode(unsigned mode, cmq_store **view)
{
    cmq_store *store;
    cmq_store_opening opening;
    const cmq_status status = open_trial(mode, false, &store);
    must_be_typed("opening", status);
    if (status != CMQ_OK) return REFUSED;
    cmq_store_opening_of(store, &opening);
    const bool opening_reports =
        opening.cut_bytes > 0 || opening.removed_records > 0 || opening.gaps > 0 || opening.index_missing_end > 0;
    read_in_every_way(store, mode, view);
    const outcome result = judge(store, mode, opening_reports);
    if (mode == READ_ONLY) *view = store;
    else must_be_typed("closing", cmq_store_close(store));
    return result;
}

static void try_modes(outcome results_out[2])
{
    cmq_store *view = NULL;
    results_out[0] = try_mode(READ_ONLY, &view);
    results_out[1] = try_mode(WRITER, &view);
    if (view != NULL) must_be_typed("closing", cmq_store_close(view));
}

static void copy_base(const base *of)
{
    kit_remove_tree_in(trial_fs, trial_path);
    kit_copy_tree_to(memory, of->path, trial_fs, trial_path);
    atomic_store(&kit_now_ms, TIME_BEGIN_MS + 700 * (int64_t)of->count);
}

/* A hang is named by say_hang. */
static void limit_time(void)
{
    const struct itimerval cpu = {.it_value.tv_sec = CPU_SECONDS_MAX};
    CHECK(setitimer(ITIMER_PROF, &cpu, NULL) == 0);
    alarm(SECONDS_MAX);
}

static void try_damage(const base *of, size_t file, kind how, int64_t at)
{
    outcome results[2];
    aim(of, file, how, at);
    trial_fs = damages % REAL_ONE_IN == 0 ? cmq_fs_posix() : memory;
    copy_base(of);
    if (!strike(file, (unsigned)cmq_test_random_below(8))) return;
    limit_time();
    damages++;
    try_modes(results);
    for (int i = 0; i < 2; i++) counts[now.area][how][results[i]]++;
}

/* ---- the rounds ---- */

static void say_hang(int number)
{
    (void)number;
    static const char text[] = "hangs: ";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 || write(STDERR_FILENO, now_text, strlen(now_text)) < 0)
        _exit(2);
    _exit(1);
}

static void check_undamaged(base *of)
{
    now = (damage){.of = of, .name = "", .area = OTHER, .field = NONE};
    snprintf(now_text, sizeof now_text, "%s: no damage", of->name);
    copy_base(of);
    for (unsigned mode = READ_ONLY; mode <= WRITER; mode++) {
        cmq_verified verified;
        cmq_store *store;
        CHECK_OK(open_trial(mode, false, &store));
        CHECK_OK(cmq_store_verify(store, &(cmq_verify_options){0}, &verified));
        CHECK_INT(verified.verdict, CMQ_SEVERITY_NOTE);
        of->keys_missing[mode == WRITER] = verified.keys_missing;
        kit_close(store);
    }
    copy_base(of);
    outcome results[2];
    try_modes(results);
    for (int i = 0; i < 2; i++) CHECK_INT(results[i], INTACT);
}

/* A file: every second time by its bytes, so that the log is met; else each alike, so that small ones are. */
static size_t draw_file(void)
{
    int64_t all = 0;
    if (cmq_test_random_below(2) == 0) return cmq_test_random_below(files.count);
    for (size_t i = 0; i < files.count; i++) all += files.bytes[i];
    int64_t at = (int64_t)cmq_test_random_below((uint64_t)all);
    size_t file = 0;
    while (at >= files.bytes[file]) at -= files.bytes[file++];
    return file;
}

static void draw(const base *of, uint64_t many)
{
    for (uint64_t i = 0; i < many; i++) {
        const size_t file = draw_file();
        const kind how = (kind)cmq_test_random_below(REMOVE);
        const int64_t bytes = files.bytes[file];
        if (bytes == 0) continue;
        int64_t at = (int64_t)cmq_test_random_below((uint64_t)bytes);
        if (how == PAGE) at -= at % PAGE_BYTES;
        else if (how != FLIP && how != CUT) at -= at % SECTOR;
        if (!aligned(how, at)) continue;
        try_damage(of, file, how, at);
    }
}

static void go_through(const base *of)
{
    for (size_t file = 0; file < files.count; file++) {
        fprintf(stderr, "%s: %s, after %" PRIu64 " damages\n", of->name, files.paths[file], damages);
        const int64_t step = of->summed && area_of(files.paths[file]) == QUEUE ? SUMMED_STEP : 1;
        for (int64_t at = 0; at < files.bytes[file]; at += step) {
            for (kind how = FLIP; how < REMOVE; how++)
                if (aligned(how, at)) try_damage(of, file, how, at);
        }
    }
}

static void print_matrix(void)
{
    printf("| file | damage |");
    for (outcome o = 0; o < OUTCOMES; o++) printf(" %s |", outcome_names[o]);
    printf("\n");
    for (area a = 0; a < AREAS; a++) {
        for (kind k = 0; k < KINDS; k++) {
            uint64_t sum = 0;
            for (outcome o = 0; o < OUTCOMES; o++) sum += counts[a][k][o];
            if (sum == 0) continue;
            printf("| %s | %s |", area_names[a], kind_names[k]);
            for (outcome o = 0; o < OUTCOMES; o++) printf(" %" PRIu64 " |", counts[a][k][o]);
            printf("\n");
        }
    }
    printf("| openings in which messages are left out in a way that says nothing; the opening or verify does |");
    for (way by = 0; by < WAYS; by++) printf(" %s |", way_names[by]);
    printf("\n");
    for (area a = 0; a < AREAS; a++) {
        printf("| %s |", area_names[a]);
        for (way by = 0; by < WAYS; by++) printf(" %" PRIu64 " |", left_to_verify[a][by]);
        printf("\n");
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        printf("| %s | %s | %" PRIu64 " |\n", known[i].what, known[i].why, known[i].count);
    printf("%" PRIu64 " damages, seed %" PRIu64 "\n", damages, cmq_test_seed());
}

static void damaged_in_turn(void)
{
    const uint64_t many = kit_amount("CMQ_FLIPS", 1500, 0);
    const char *directory = kit_directory();
    CHECK(signal(SIGALRM, say_hang) != SIG_ERR && signal(SIGPROF, say_hang) != SIG_ERR);
    cmq_memory_fs *files_in_memory = cmq_memory_fs_create();
    memory = trial_fs = cmq_memory_fs_fs(files_in_memory);
    CHECK_OK(cmq_fs_make_directory_unsynced(memory, directory));
    snprintf(trial_path, sizeof trial_path, "%.3000s/trial", directory);
    make_bases(directory);
    for (int b = 0; b < BASES; b++) {
        base *of = &bases[b];
        check_undamaged(of);
        files.count = 0;
        kit_each_file_in(memory, of->path, take_file, of);
        for (size_t file = 0; file < files.count; file++) try_damage(of, file, REMOVE, 0);
        if (many > 0) draw(of, many / BASES);
        else go_through(of);
    }
    print_matrix();
    if (many == 0)
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            if (known[i].count == 0) cmq_test_fail(__FILE__, __LINE__, "known, and never met: %s", known[i].what);
    if (silent > 0) cmq_test_fail(__FILE__, __LINE__, "%" PRIu64 " answers were neither whole nor an error", silent);
    for (int b = 0; b < BASES; b++)
        for (int i = 0; i < bases[b].count; i++) free(bases[b].messages[i].record);
    cmq_memory_fs_destroy(files_in_memory);
}

CMQ_TEST_MAIN(CMQ_TEST(damaged_in_turn))
