/* Tests csrc/store/follow/cmq_view_end.c: a view of a store whose writer was killed, and whose log is damaged in the
 * middle: each way of reading that comes to the end of the view reports the damage with its place; reads of what lies
 * before it do not. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "export/cmq_scan.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 30
#define SOUND 12   /* m12 is damaged */

typedef enum damage {
    DAMAGED_HEAD,
    DAMAGED_TOPIC,
    ZEROED_SECTOR,
    DAMAGES
} damage;

static char root[CMQ_PATH_BYTES], sound[512];
static cmq_appended placed[MESSAGES];

static cmq_store *view_of(void)
{
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

/* A writer with "m<i>", tagged A, with key k<i>, the last of another topic too; nothing behind its first durable point
 * is in the queues' files. */
static cmq_store *make_writer(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store *writer = kit_open_at(root);
    sound[0] = '\0';
    for (int i = 0; i < MESSAGES; i++) {
        char body[16], key[16];
        snprintf(body, sizeof body, "m%d", i);
        snprintf(key, sizeof key, "k%d", i);
        placed[i] = kit_append(writer, "T", 0, body, "A", key);
        if (i < SOUND) snprintf(sound + strlen(sound), sizeof sound - strlen(sound), "%s%s", i > 0 ? " " : "", body);
        atomic_fetch_add(&kit_now_ms, 10);
    }
    kit_append(writer, "U", 0, "u", NULL, NULL);
    return writer;
}

static void do_damage(damage kind)
{
    static const uint8_t zeros[512] = {0};
    const char *segment = kit_path(root, "commitlog/00000000000000000000");
    const int64_t at = placed[SOUND].first_physical_offset;
    uint8_t record[512];
    const size_t bytes = (size_t)(placed[SOUND].end - at);
    CHECK(bytes <= sizeof record);
    if (kind == ZEROED_SECTOR) {
        kit_write_bytes(segment, at, zeros, sizeof zeros);
    } else if (kind == DAMAGED_HEAD) {
        kit_flip(segment, at + CMQ_RECORD_AT_MAGIC, 0x10);
    } else {
        kit_read_bytes(segment, at, record, bytes);
        const uint8_t *topic = memmem(record, bytes, "\x01T", 2);
        CHECK(topic != NULL);
        kit_flip(segment, at + (topic - record) + 1, 'T' ^ '/');
    }
}

static void check_reported(cmq_status status)
{
    CHECK_STATUS(status, CMQ_ERR_CORRUPT);
    CHECK_INT(cmq_last_error()->offset, placed[SOUND].first_physical_offset);
    CHECK(strstr(cmq_last_error()->text, "cometmq verify") != NULL);
}

static const char *with_end(void)
{
    static char text[sizeof sound + 4];
    snprintf(text, sizeof text, "%s !", sound);
    return text;
}

/* ---- readers ---- */

static void check_readers(cmq_store *view)
{
    const cmq_slice topic = kit_slice("T"), behind = kit_slice("U"), tag = kit_slice("A"), none = kit_slice("none");
    const int64_t last_ms = atomic_load(&kit_now_ms) - 10 * (MESSAGES - SOUND + 1);
    cmq_read_options options = {.topics = &topic, .topic_count = 1};
    cmq_reader *reader;
    CHECK_TEXT(kit_read_all(view), with_end());
    CHECK_TEXT(kit_read_with(view, &options), with_end());
    options.check_crc = true;
    CHECK_TEXT(kit_read_with(view, &options), with_end());
    options.tags = &tag;
    options.tag_count = 1;
    CHECK_TEXT(kit_read_with(view, &options), with_end());
    options.tags = &none;
    CHECK_TEXT(kit_read_with(view, &options), "!");
    options.tag_count = 0;
    /* the newest messages are the ones that are missing */
    options.backwards = true;
    CHECK(strncmp(kit_read_with(view, &options), "! m11 m10 ", 10) == 0);
    options.backwards = false;

    /* ranges: before the damage, over it, and from behind it on */
    options.has_start = options.has_end = true;
    options.end = SOUND;
    const int32_t id = 0;
    options.queue_ids = &id;
    options.queue_id_count = 1;
    CHECK_TEXT(kit_read_with(view, &options), sound);
    options.end = SOUND + 1;
    CHECK_TEXT(kit_read_with(view, &options), with_end());
    options.start = SOUND + 5;
    options.end = SOUND + 6;
    CHECK_TEXT(kit_read_with(view, &options), "!");

    const cmq_read_start starts[2] = {{.topic = topic, .offset = 2, .has_end = true, .end = 4},
                                      {.topic = behind, .has_end = true, .end = 1}};
    cmq_read_options ranges = {.starts = starts, .start_count = 1, .only_starts = true};
    CHECK_TEXT(kit_read_with(view, &ranges), "m2 m3");
    ranges.start_count = 2;
    check_reported(cmq_reader_open(view, &ranges, &reader));
    ranges.may_be_missing = true;
    CHECK_TEXT(kit_read_with(view, &ranges), "m2 m3 !");

    /* a topic that begins behind the damage */
    check_reported(cmq_reader_open(view, &(cmq_read_options){.topics = &behind, .topic_count = 1}, &reader));
    CHECK_TEXT(kit_read_with(view, &(cmq_read_options){.topics = &behind, .topic_count = 1, .may_be_missing = true}),
               "!");

    /* times */
    cmq_read_options times = {.topics = &topic, .topic_count = 1, .has_end_time = true, .end_time_ms = last_ms};
    CHECK(strchr(kit_read_with(view, &times), '!') == NULL);
    times.end_time_ms = last_ms + 100;
    CHECK_TEXT(kit_read_with(view, &times), with_end());
}

/* ---- look-ups ---- */

static void check_look_ups(cmq_store *view)
{
    const cmq_slice topic = kit_slice("T"), key = kit_slice("k20");
    const int64_t now_ms = atomic_load(&kit_now_ms);
    int64_t offset;
    cmq_key_search *search;
    kit_found *found = kit_found_make(4);
    CHECK_OK(cmq_store_read_offset(view, topic, 0, SOUND - 1, &found->batch));
    cmq_found_batch_release(&found->batch);
    check_reported(cmq_store_read_offset(view, topic, 0, SOUND, &found->batch));
    check_reported(cmq_store_read_offset(view, topic, 0, SOUND + 7, &found->batch));
    check_reported(cmq_store_read_offset(view, kit_slice("U"), 0, 0, &found->batch));
    check_reported(cmq_store_read_physical(view, placed[SOUND].first_physical_offset, &found->batch));
    check_reported(cmq_store_read_physical(view, placed[SOUND + 1].first_physical_offset, &found->batch));
    check_reported(cmq_store_offset_at(view, topic, 0, now_ms - 10, CMQ_BOUNDARY_LOWER, &offset));
    check_reported(cmq_store_find_key(view, topic, key, 0, INT64_MAX, &found->batch));
    CHECK_INT(found->batch.count, 0);
    check_reported(cmq_store_find_key(view, topic, kit_slice("k3"), 0, INT64_MAX, &found->batch));
    CHECK_INT(found->batch.count, 1);
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_key_search_open(
        view, &(cmq_key_search_options){.topic = topic, .key = kit_slice("k3"), .end_ms = INT64_MAX}, &search));
    CHECK_OK(cmq_key_search_next(search, &found->batch));
    CHECK_INT(found->batch.count, 1);
    cmq_found_batch_release(&found->batch);
    check_reported(cmq_key_search_next(search, &found->batch));
    CHECK_OK(cmq_key_search_next(search, &found->batch));
    CHECK_INT(found->batch.count, 0);
    cmq_key_search_close(search);
    check_reported(cmq_store_check_end(view));
    kit_found_free(found);
}

static void killed_writer(void)
{
    for (int kind = 0; kind < DAMAGES; kind++) {
        cmq_store_abandon(make_writer());
        do_damage((damage)kind);
        cmq_store *view = view_of();
        check_readers(view);
        check_look_ups(view);
        kit_close(view);
        cmq_store_options options = kit_options(root);
        cmq_store *writer;
        CHECK_STATUS(cmq_store_open(&writer, &options), CMQ_ERR_CORRUPT);
        /* the writer's refusal invalidated the page: its acknowledgement stands there still */
        view = view_of();
        check_readers(view);
        kit_close(view);
    }
}

/* Beside a writer that lives, and behind it, once it is gone: the view was open before the damage, and read all. */
static void open_view(void)
{
    for (int kind = 0; kind < DAMAGES; kind++) {
        cmq_store *writer = make_writer();
        do_damage((damage)kind);
        cmq_store *view = view_of();
        check_readers(view);
        check_look_ups(view);
        cmq_store_abandon(writer);
        check_readers(view);
        check_look_ups(view);
        kit_close(view);
    }
}

/* A reader that waits at the end meets damage that lies behind it. */
static void grown_view(void)
{
    bool end = false;
    cmq_reader *reader;
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store *writer = kit_open_at(root), *view;
    kit_append(writer, "T", 0, "first", NULL, NULL);
    view = view_of();
    kit_found *found = kit_found_make(4);
    CHECK_OK(cmq_reader_open(view, &(cmq_read_options){0}, &reader));
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK_INT(found->batch.count, 1);
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK_INT(found->batch.count, 0);
    placed[SOUND] = kit_append(writer, "T", 0, "second", NULL, NULL);
    kit_append(writer, "T", 0, "third", NULL, NULL);
    do_damage(DAMAGED_HEAD);
    check_reported(cmq_reader_next(reader, &found->batch, &end));
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK(found->batch.count == 0 && !end);
    cmq_reader_close(reader);
    kit_found_free(found);
    kit_close(view);
    cmq_store_abandon(writer);
}

/* ---- no damage ---- */

/* A torn tail, of which nothing was acknowledged, is the end; so is a clean end. */
static void torn_tail_is_an_end(void)
{
    for (int way = 0; way < 3; way++) {
        uint8_t half[60];
        cmq_store *writer = make_writer();
        const int64_t end = cmq_store_confirmed(writer);
        const char *segment = kit_path(root, "commitlog/00000000000000000000");
        if (way == 0) kit_close(writer);
        else cmq_store_abandon(writer);
        if (way == 2) {
            kit_read_bytes(segment, 0, half, sizeof half);
            kit_write_bytes(segment, end, half, sizeof half);
        }
        cmq_store *view = view_of();
        CHECK(strchr(kit_read_all(view), '!') == NULL);
        CHECK(strchr(kit_read_topic(view, "T"), '!') == NULL);
        CHECK_TEXT(kit_read_topic(view, "U"), "u");
        CHECK_OK(cmq_store_check_end(view));
        kit_close(view);
    }
}

/* The last segment of a killed writer is gone. */
static void missing_segment(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store *writer = kit_open_at(root);
    char body[4000];
    memset(body, 'x', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    for (int i = 0; i < 6; i++) kit_append(writer, "T", 0, body, NULL, NULL);
    CHECK(cmq_store_confirmed(writer) > KIT_SEGMENT_BYTES);
    cmq_store_abandon(writer);
    CHECK(unlink(kit_path(root, "commitlog/00000000000000016384")) == 0);
    cmq_store *view = view_of();
    CHECK_STATUS(cmq_store_check_end(view), CMQ_ERR_CORRUPT);
    CHECK(strchr(kit_read_topic(view, "T"), '!') != NULL);
    kit_close(view);
}

/* ---- Arrow ---- */

static void scans_report_it(void)
{
    const cmq_slice topic = kit_slice("T"), key = kit_slice("k3");
    cmq_store_abandon(make_writer());
    do_damage(DAMAGED_HEAD);
    cmq_store *view = view_of();
    for (int by_key = 0; by_key < 2; by_key++) {
        for (int skip = 0; skip < 2; skip++) {
            cmq_scan *scan;
            struct ArrowArray array;
            bool end = false;
            int64_t rows = 0;
            cmq_status status = CMQ_OK;
            static const cmq_scan_column column = {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "queue_offset"};
            const cmq_scan_options options = {.read = {.topics = &topic, .topic_count = 1},
                                              .columns = &column,
                                              .column_count = 1,
                                              .keys = &key,
                                              .key_count = (uint32_t)by_key,
                                              .skip_corrupt = skip != 0};
            CHECK_OK(cmq_scan_open(view, &options, &scan));
            for (int calls = 0; calls < 5 && status == CMQ_OK && !end; calls++) {
                status = cmq_scan_next(scan, &array, &end);
                if (status == CMQ_OK && array.release != NULL) {
                    rows += array.length;
                    array.release(&array);
                }
            }
            CHECK_INT(rows, by_key ? 1 : SOUND);
            if (skip == 0) check_reported(status);
            else CHECK_OK(status);
            cmq_scan_close(scan);
        }
    }
    kit_close(view);
}

CMQ_TEST_MAIN(CMQ_TEST(killed_writer), CMQ_TEST(open_view), CMQ_TEST(grown_view), CMQ_TEST(torn_tail_is_an_end),
              CMQ_TEST(missing_segment), CMQ_TEST(scans_report_it))
