/* Tests of reading over pages that cannot be read: each message whole, or an error that names the place; never the end
 * of the process, never silence.
 *
 * A page is lost by cutting a file that the store has mapped. Opening checks lengths, so the file is cut afterwards.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/cmq_store.h"
#include "store/queue/cmq_queue.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define MESSAGES 60
#define BODY_BYTES 100
#define PAGE 4096   /* files of a tiny store have a few of them */

static const char *root;
static int64_t starts[MESSAGES];

static const char *body_of(int number)
{
    static char body[BODY_BYTES + 1];
    memset(body, '.', BODY_BYTES);
    body[snprintf(body, sizeof body, "m%d", number)] = '.';
    return body;
}

/* One segment of MESSAGES messages with their own keys, opened by `options`, whose files are those of a closed
 * store. */
static cmq_store *open_closed(cmq_store_options *options)
{
    root = kit_directory();
    *options = kit_options(root);
    options->queue_file_bytes = 1024 * CMQ_UNIT_BYTES;
    options->index_slots = 2048;
    cmq_store *store = kit_open(options);
    for (int i = 0; i < MESSAGES; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        starts[i] = kit_append(store, "T", 0, body_of(i), i % 2 == 0 ? "A" : "B", key).first_physical_offset;
    }
    kit_close(store);
    CHECK(starts[MESSAGES - 1] < KIT_SEGMENT_BYTES && starts[MESSAGES - 1] > 2 * PAGE);
    options->read_only = true;
    options->create = false;
    return kit_open(options);
}

static void cut_log(int64_t bytes) { CHECK(truncate(kit_path(root, "commitlog/00000000000000000000"), bytes) == 0); }

/* Count the messages and the errors that a reader returns. */
static void read_all(cmq_store *store, const cmq_read_options *options, int *messages, int *errors)
{
    cmq_reader *reader;
    bool end = false;
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    *messages = *errors = 0;
    CHECK_OK(cmq_reader_open(store, options, &reader));
    for (int idle = 0; !end && idle < 2;) {
        const cmq_status status = cmq_reader_next(reader, &found->batch, &end);
        if (status != CMQ_OK) CHECK_STATUS(status, CMQ_ERR_CORRUPT);
        *errors += status != CMQ_OK;
        idle = status == CMQ_OK && found->batch.count == 0 ? idle + 1 : 0;
        for (uint32_t i = 0; i < found->batch.count; i++) {
            cmq_record_view view;
            const cmq_found *item = &found->batch.items[i];
            const cmq_status parsed = cmq_record_parse(item->record, item->record_bytes, item->physical_offset,
                                                       CMQ_RECORD_CHECK_BODY_CRC, &view);
            if (parsed != CMQ_OK) CHECK_STATUS(parsed, CMQ_ERR_CORRUPT);
            ++*(parsed == CMQ_OK ? messages : errors);
        }
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
}

/* Of messages whose record lies wholly below `end`. */
static int whole_below(int64_t end)
{
    int count = 0;
    while (count + 1 < MESSAGES && starts[count + 1] <= end) count++;
    return count;
}

static void log_pages_are_errors_of_their_records(void)
{
    cmq_store_options options;
    const cmq_slice topic = kit_slice("T"), tag = kit_slice("A");
    const cmq_read_options ways[] = {
        {.topics = &topic, .topic_count = 1},
        {.topics = &topic, .topic_count = 1, .tags = &tag, .tag_count = 1},
        {.topics = &topic, .topic_count = 1, .backwards = true},
    };
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        cmq_store *store = open_closed(&options);
        int messages, errors;
        cut_log(2 * PAGE);
        read_all(store, &ways[way], &messages, &errors);
        const int whole = whole_below(2 * PAGE), share = ways[way].tag_count > 0 ? 2 : 1;
        CHECK_INT(messages, (whole + share - 1) / share);
        CHECK_INT(messages + errors, MESSAGES / share);
        kit_close(store);
    }
}

static void log_read_through_reports_the_lost_part(void)
{
    cmq_store_options options;
    int messages, errors;
    cmq_store *store = open_closed(&options);
    cut_log(2 * PAGE);
    read_all(store, &(cmq_read_options){0}, &messages, &errors);
    CHECK_INT(messages, whole_below(2 * PAGE));
    CHECK(errors > 0);
    CHECK(strstr(cmq_last_error()->text, "cannot be read") != NULL);
    kit_close(store);
}

static void look_ups_report_lost_records(void)
{
    cmq_store_options options;
    cmq_store *store = open_closed(&options);
    kit_found *found = kit_found_make(4);
    cut_log(2 * PAGE);
    for (int i = 0; i < MESSAGES; i++) {
        const cmq_status expected = i < whole_below(2 * PAGE) ? CMQ_OK : CMQ_ERR_CORRUPT;
        CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, i, &found->batch), expected);
        cmq_found_batch_release(&found->batch);
        CHECK_STATUS(cmq_store_read_physical(store, starts[i], &found->batch), expected);
        if (expected != CMQ_OK) CHECK(strstr(cmq_last_error()->text, "cannot be read") != NULL);
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    kit_close(store);
}

/* The scan maps the file, as it has more units than are worth reading one by one; a filter must not pass units of zeros
 * over. */
static void queue_pages_are_no_silent_skips(void)
{
    enum { UNITS = 6000, CUT = 3000 };
    root = kit_directory();
    cmq_store_options options = kit_options(root);
    options.segment_bytes = 1 << 21;
    options.queue_file_bytes = 8192 * CMQ_UNIT_BYTES;
    options.index_disabled = true;
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "T", "m", UNITS);
    kit_close(store);
    options.read_only = true;
    options.create = false;
    store = kit_open(&options);
    const cmq_slice topic = kit_slice("T"), tag = kit_slice("none");
    int messages, errors;
    read_all(store, &(cmq_read_options){.topics = &topic, .topic_count = 1, .tags = &tag, .tag_count = 1}, &messages,
             &errors);
    CHECK_INT(messages + errors, 0);
    CHECK(truncate(kit_path(root, "consumequeue/T/0/00000000000000000000"), CUT * CMQ_UNIT_BYTES / PAGE * PAGE) == 0);
    read_all(store, &(cmq_read_options){.topics = &topic, .topic_count = 1, .tags = &tag, .tag_count = 1}, &messages,
             &errors);
    CHECK(errors > 0);
    kit_close(store);
}

static void index_pages_are_errors_of_the_search(void)
{
    cmq_store_options options;
    cmq_store *store = open_closed(&options);
    kit_found *found = kit_found_make(4);
    char **names;
    size_t count;
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_fs_list(cmq_fs_posix(), kit_path(root, "index"), &names, &count));
    CHECK_INT(count, 1);
    CHECK_OK(cmq_path_join(path, kit_path(root, "index"), names[0]));
    cmq_fs_free_names(names, count);
    CHECK(truncate(path, 2 * PAGE) == 0);   /* slots stay, entries do not */
    int errors = 0;
    for (int i = 0; i < MESSAGES; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        const cmq_status status =
            cmq_store_find_key(store, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &found->batch);
        if (status != CMQ_OK) CHECK_STATUS(status, CMQ_ERR_CORRUPT);
        else CHECK_INT(found->batch.count, 1);
        errors += status != CMQ_OK;
        cmq_found_batch_release(&found->batch);
    }
    CHECK(errors > MESSAGES / 2);
    kit_found_free(found);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(log_pages_are_errors_of_their_records), CMQ_TEST(log_read_through_reports_the_lost_part),
              CMQ_TEST(look_ups_report_lost_records), CMQ_TEST(queue_pages_are_no_silent_skips),
              CMQ_TEST(index_pages_are_errors_of_the_search))
