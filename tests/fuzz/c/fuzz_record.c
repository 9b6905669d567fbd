/* fuzz_record: one input read as a record, a property string, a batch body, an offset id and a list of delay levels.
 *
 * Checks: accepted parts lie inside the input and tile it; an accepted record written again gives the same bytes; the
 *         fast property searches agree with the plain iteration.
 * Run:    by replay_main.c over corpus/record and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "store/record/cmq_message_id.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_tags_code.h"
#include "store/record/cmq_wire_batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_properties(cmq_slice properties)
{
    cmq_property_known known;
    cmq_property_find_known(properties, &known);
    cmq_slice rest = properties, name, value, found;
    cmq_slice tags = CMQ_SLICE_NONE;
    while (cmq_property_next(&rest, &name, &value)) {
        CMQ_ASSERT(name.bytes > 0 && value.bytes > 0);
        CMQ_ASSERT(value.data == name.data + name.bytes + 1);
        CMQ_ASSERT(cmq_property_find(properties, name, &found));
        CMQ_ASSERT(found.data >= value.data);   /* this pair or a later one of the same name */
        if (cmq_slice_equal(name, cmq_slice_of_text("TAGS"))) tags = value;
    }
    CMQ_ASSERT(known.value[CMQ_PROPERTY_TAGS].bytes == tags.bytes);
    CMQ_ASSERT(tags.bytes == 0 || known.value[CMQ_PROPERTY_TAGS].data == tags.data);
}

static cmq_record_fields fields_of(const cmq_record_view *view)
{
    return (cmq_record_fields){
        .topic = view->topic,
        .body = view->body,
        .properties = view->properties,
        .queue_offset = view->queue_offset,
        .physical_offset = view->physical_offset,
        .born_timestamp_ms = view->born_timestamp_ms,
        .store_timestamp_ms = view->store_timestamp_ms,
        .prepared_transaction_offset = view->prepared_transaction_offset,
        .queue_id = view->queue_id,
        .flag = view->flag,
        .sys_flag = view->sys_flag,
        .reconsume_times = view->reconsume_times,
        .born_host = view->born_host,
        .store_host = view->store_host,
        .version = view->magic == CMQ_RECORD_MAGIC_V2 ? CMQ_RECORD_VERSION_2 : CMQ_RECORD_VERSION_1,
        .has_body_crc = true,
        .body_crc = view->body_crc,
    };
}

static void check_written_again(const uint8_t *data, const cmq_record_view *view)
{
    /* A negative length counts as none; it is not written like that. */
    if (cmq_load_i32(view->body.data - 4) < 0 || cmq_load_i16(view->properties.data - 2) < 0) return;
    const cmq_record_fields fields = fields_of(view);
    cmq_record_sizes sizes;
    if (cmq_record_measure(&fields, &sizes) != CMQ_OK) {
        CMQ_ASSERT(view->topic.bytes == 0);
        return;
    }
    CMQ_ASSERT(sizes.record_bytes == view->record_bytes);
    uint8_t *again = malloc(sizes.record_bytes);
    CMQ_ASSERT(again != NULL);
    cmq_record_encode(again, &fields, &sizes);
    CMQ_ASSERT(memcmp(again, data, sizes.record_bytes) == 0);
    free(again);
}

static void check_record(const uint8_t *data, size_t size)
{
    cmq_record_view view;
    cmq_record_head head;
    const unsigned checks = CMQ_RECORD_CHECK_BODY_CRC | CMQ_RECORD_CHECK_PROPERTY_CRC;
    const cmq_status strict = cmq_record_parse(data, size, 74565, checks, &view);
    const cmq_status status = cmq_record_parse(data, size, -1, 0, &view);
    CMQ_ASSERT(strict != CMQ_OK || status == CMQ_OK);
    const cmq_status peeked = cmq_record_peek(data, size, &head);
    CMQ_ASSERT(head.record_bytes == view.record_bytes);
    if (status != CMQ_OK) {
        CMQ_ASSERT(peeked == status || (peeked == CMQ_OK && view.reason == CMQ_RECORD_BAD_SIZE));
        CMQ_ASSERT(view.body.data == NULL);
        return;
    }
    CMQ_ASSERT(peeked == CMQ_OK);
    CMQ_ASSERT(view.record_bytes <= size);
    CMQ_ASSERT(head.store_timestamp_ms == view.store_timestamp_ms);
    CMQ_ASSERT(view.properties.data + view.properties.bytes == data + view.record_bytes);
    check_written_again(data, &view);
    check_properties(view.properties);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const cmq_slice input = {.data = data, .bytes = size};
    check_record(data, size);
    check_properties(input);

    cmq_slice rest = input;
    cmq_wire_batch_element element;
    while (cmq_wire_batch_next(&rest, &element) == CMQ_OK)
        CMQ_ASSERT(element.properties.data + element.properties.bytes == rest.data);

    cmq_record_host host;
    int64_t offset;
    cmq_delay_levels levels;
    if (cmq_message_id_parse(input, &host, &offset) == CMQ_OK) {
        char id[CMQ_MESSAGE_ID_BYTES_MAX];
        CMQ_ASSERT(cmq_message_id_format(&host, offset, id) == size);
    }
    if (cmq_delay_levels_parse(input, &levels) == CMQ_OK) CMQ_ASSERT(levels.level_max <= CMQ_DELAY_LEVELS_MAX);
    (void)cmq_jhash(input);
    return 0;
}
