/* cmq_send_batch: see cmq_send_batch.h. */
#include "broker/send/cmq_send_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_wire_batch.h"
#include "wire/cmq_command.h"

/* ---- inner batches ---- */

/* Nobody may bring a handle of a pop, which consumers would acknowledge instead of the broker's. The store drops it
 * from a record's own properties, and does not look into a batch. Most elements, and their ids, are without this
 * letter. */
static bool brings_handle(cmq_slice properties)
{
    cmq_slice value;
    return properties.bytes > 0 && memchr(properties.data, 'P', properties.bytes) != NULL &&
           cmq_property_find(properties, CMQ_NAME("POP_CK"), &value);
}

static bool has_handles(cmq_slice body)
{
    cmq_wire_batch_element element;
    while (cmq_wire_batch_next(&body, &element) == CMQ_OK)
        if (brings_handle(element.properties)) return true;
    return false;
}

/* Write the elements again without handles; `into` has as much room as the body. */
static cmq_slice without_handles(cmq_slice body, uint8_t *into)
{
    uint8_t properties[CMQ_PROPERTY_BYTES_MAX];
    uint8_t *at = into;
    cmq_wire_batch_element element;
    while (cmq_wire_batch_next(&body, &element) == CMQ_OK) {
        const size_t kept = cmq_property_copy_without(properties, element.properties, CMQ_NAME("POP_CK"));
        element.properties = (cmq_slice){.data = properties, .bytes = kept};
        at = cmq_wire_batch_write(at, &element);
    }
    return (cmq_slice){.data = into, .bytes = (size_t)(at - into)};
}

cmq_status cmq_send_batch_check_inner(int32_t sys_flag, cmq_slice properties, cmq_slice body)
{
    cmq_slice text;
    int32_t number = 0;
    uint32_t count = 0;
    if ((sys_flag & CMQ_SYS_INNER_BATCH) == 0) return CMQ_OK;
    if ((sys_flag & CMQ_SYS_COMPRESSED) != 0 || !cmq_property_find(properties, CMQ_NAME("INNER_NUM"), &text) ||
        cmq_field_i32(text, &number) != CMQ_OK || cmq_wire_batch_count(body, &count) != CMQ_OK || number <= 0 ||
        count != (uint32_t)number)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the body is not a batch of INNER_NUM messages, contrary to its sysFlag");
    return has_handles(body) ? cmq_fail(CMQ_ERR_ARGUMENT, "a message of the batch has the property POP_CK; remove it")
                             : CMQ_OK;
}

/* ---- appending ---- */

void cmq_send_batch_free(cmq_send_batch *batch)
{
    free(batch->bodies);
    free(batch->properties);
    free(batch->flags);
    free(batch->physical_offsets);
    *batch = (cmq_send_batch){0};
}

static cmq_status require_batch(cmq_send_batch *batch, uint32_t count)
{
    if (count <= batch->capacity) return CMQ_OK;
    cmq_send_batch_free(batch);
    batch->bodies = malloc(count * sizeof *batch->bodies);
    batch->properties = malloc(count * sizeof *batch->properties);
    batch->flags = malloc(count * sizeof *batch->flags);
    batch->physical_offsets = malloc(count * sizeof *batch->physical_offsets);
    if (batch->bodies == NULL || batch->properties == NULL || batch->flags == NULL || batch->physical_offsets == NULL) {
        cmq_send_batch_free(batch);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory to take a batch apart");
    }
    batch->capacity = count;
    return CMQ_OK;
}

cmq_status cmq_send_batch_append(cmq_broker_loop *l, cmq_append *append, cmq_slice body, cmq_appended *appended_out)
{
    cmq_send_batch *batch = &l->batch;
    cmq_slice rest = body;
    cmq_wire_batch_element element;
    cmq_status status =
        body.bytes > 0 ? cmq_wire_batch_count(body, &append->count) : cmq_fail(CMQ_ERR_ARGUMENT, "the batch is empty");
    if (status == CMQ_OK && append->count > CMQ_ONE_SEGMENT_MAX)
        status = cmq_fail(CMQ_ERR_TOO_LARGE, "the batch has %u messages; at most %u are taken", append->count,
                          CMQ_ONE_SEGMENT_MAX);
    if (status == CMQ_OK) status = require_batch(batch, append->count);
    if (status != CMQ_OK) return status;
    for (uint32_t i = 0; i < append->count; i++) {
        status = cmq_wire_batch_next(&rest, &element);
        CMQ_ASSERT(status == CMQ_OK);   /* they were just counted */
        batch->bodies[i] = element.body;
        batch->properties[i] = element.properties;
        batch->flags[i] = element.flag;
    }
    append->bodies = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = batch->bodies};
    append->properties = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = batch->properties};
    append->flags = batch->flags;
    append->physical_offsets_out = batch->physical_offsets;
    append->one_segment = true;
    return cmq_store_append(l->broker->store, append, appended_out);
}

cmq_status cmq_send_batch_append_inner(cmq_broker_loop *l, cmq_append *append, cmq_slice body,
                                       int64_t *physical_offset_out, cmq_appended *appended_out)
{
    uint32_t count;
    /* Nobody compresses batches: readers would take one with this flag for compressed. */
    if ((append->common.sys_flag & CMQ_SYS_COMPRESSED) != 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a batch cannot be compressed");
    cmq_status status = cmq_wire_batch_count(body, &count);
    if (status != CMQ_OK) return status;
    char number[16];
    const int digits = snprintf(number, sizeof number, "%u", count);
    uint8_t more[64];
    size_t used = 0;
    status = cmq_property_append(more, sizeof more, &used, CMQ_NAME("INNER_NUM"),
                                 (cmq_slice){.data = (uint8_t *)number, .bytes = (size_t)digits});
    if (status != CMQ_OK) return status;
    append->common.sys_flag |= CMQ_SYS_NEED_UNWRAP | CMQ_SYS_INNER_BATCH;
    append->properties = append->properties_more;
    append->count = 1;
    uint8_t *cleaned = has_handles(body) ? malloc(body.bytes) : NULL;
    if (cleaned != NULL) body = without_handles(body, cleaned);
    else if (has_handles(body)) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the properties of a batch");
    append->bodies = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = body};
    append->properties_more.one = (cmq_slice){.data = more, .bytes = used};
    append->physical_offsets_out = physical_offset_out;
    status = cmq_store_append(l->broker->store, append, appended_out);
    free(cleaned);
    return status;
}
