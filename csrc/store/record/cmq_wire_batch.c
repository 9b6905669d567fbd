/* cmq_wire_batch: reading and writing the elements of a batch body.
 *
 * Threads: any; pure functions.
 * Source:  see cmq_wire_batch.h.
 */
#include "store/record/cmq_wire_batch.h"

#include <string.h>

enum {
    AT_SIZE = 0,
    AT_MAGIC = 4,
    AT_BODY_CRC = 8,
    AT_FLAG = 12,
    AT_BODY_LENGTH = 16,
    AT_BODY = 20,
};
_Static_assert(AT_BODY + 2 == CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN, "five i32 and the i16 behind the body");

static cmq_status refuse(const char *what, cmq_slice rest)
{
    return cmq_fail(CMQ_ERR_CORRUPT, "batch body: %s, %zu bytes before its end", what, rest.bytes);
}

cmq_status cmq_wire_batch_next(cmq_slice *rest, cmq_wire_batch_element *element_out)
{
    *element_out = (cmq_wire_batch_element){0};
    if (rest->bytes == 0) return CMQ_END;
    const uint8_t *at = rest->data;
    if (rest->bytes < CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN) return refuse("an element is cut off", *rest);
    const uint32_t bytes = cmq_load_u32(at + AT_SIZE);
    if (bytes < CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN || bytes > rest->bytes)
        return refuse("the size of an element is below the least or leaves the body", *rest);

    const uint32_t left = bytes - CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN;   /* for body and properties */
    const uint32_t body_bytes = cmq_load_u32(at + AT_BODY_LENGTH);
    if (body_bytes > left) return refuse("the body of an element leaves it", *rest);
    const int16_t property_bytes = cmq_load_i16(at + AT_BODY + body_bytes);
    if (property_bytes < 0 || (uint32_t)property_bytes != left - body_bytes)
        return refuse("the lengths of an element do not make its size", *rest);

    *element_out = (cmq_wire_batch_element){
        .flag = cmq_load_i32(at + AT_FLAG),
        .body = {.data = at + AT_BODY, .bytes = body_bytes},
        .properties = {.data = at + AT_BODY + body_bytes + 2, .bytes = (size_t)property_bytes},
    };
    *rest = (cmq_slice){.data = at + bytes, .bytes = rest->bytes - bytes};
    return CMQ_OK;
}

bool cmq_wire_batch_any(cmq_slice body, bool (*matches)(void *context, cmq_slice properties), void *context)
{
    cmq_wire_batch_element element;
    cmq_status status = cmq_wire_batch_next(&body, &element);
    for (; status == CMQ_OK; status = cmq_wire_batch_next(&body, &element))
        if (matches(context, element.properties)) return true;
    return status != CMQ_END;
}

cmq_status cmq_wire_batch_count(cmq_slice body, uint32_t *count_out)
{
    *count_out = 0;
    if (body.bytes == 0) return refuse("no element", body);
    uint32_t count = 0;
    cmq_wire_batch_element element;
    cmq_status status;
    while ((status = cmq_wire_batch_next(&body, &element)) == CMQ_OK) count++;
    if (status != CMQ_END) return status;
    *count_out = count;
    return CMQ_OK;
}

size_t cmq_wire_batch_element_bytes(const cmq_wire_batch_element *element)
{
    return CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN + element->body.bytes + element->properties.bytes;
}

uint8_t *cmq_wire_batch_write(uint8_t *into, const cmq_wire_batch_element *element)
{
    cmq_store_u32(into + AT_SIZE, (uint32_t)cmq_wire_batch_element_bytes(element));
    cmq_store_u32(into + AT_MAGIC, 0);
    cmq_store_u32(into + AT_BODY_CRC, 0);
    cmq_store_i32(into + AT_FLAG, element->flag);
    cmq_store_u32(into + AT_BODY_LENGTH, (uint32_t)element->body.bytes);
    into += AT_BODY;
    if (element->body.bytes > 0) memcpy(into, element->body.data, element->body.bytes);
    into += element->body.bytes;
    cmq_store_u16(into, (uint16_t)element->properties.bytes);
    into += 2;
    if (element->properties.bytes > 0) memcpy(into, element->properties.data, element->properties.bytes);
    return into + element->properties.bytes;
}
