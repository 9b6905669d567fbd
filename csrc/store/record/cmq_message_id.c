/* cmq_message_id: writing and reading offset message ids.
 *
 * Threads: any; pure functions.
 * Source:  see cmq_message_id.h.
 */
#include "store/record/cmq_message_id.h"

#include <string.h>

enum { ID_BYTES_IPV4 = 2 * (4 + 4 + 8), ID_BYTES_IPV6 = 2 * (16 + 4 + 8) };
_Static_assert(ID_BYTES_IPV6 == CMQ_MESSAGE_ID_BYTES_MAX, "the longest id names an IPv6 host");

size_t cmq_message_id_format(const cmq_record_host *store_host, int64_t physical_offset,
                             char id_out[CMQ_MESSAGE_ID_BYTES_MAX])
{
    static const char digits[] = "0123456789ABCDEF";
    uint8_t raw[CMQ_MESSAGE_ID_BYTES_MAX / 2];
    const size_t address_bytes = store_host->ipv6 ? 16 : 4;
    memcpy(raw, store_host->address, address_bytes);
    cmq_store_i32(raw + address_bytes, store_host->port);
    cmq_store_i64(raw + address_bytes + 4, physical_offset);
    const size_t raw_bytes = address_bytes + 4 + 8;
    for (size_t i = 0; i < raw_bytes; i++) {
        id_out[2 * i] = digits[raw[i] >> 4];
        id_out[2 * i + 1] = digits[raw[i] & 0xF];
    }
    return 2 * raw_bytes;
}

/* The value of a hexadecimal digit, or -1. */
static int digit_value(uint8_t digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
}

cmq_status cmq_message_id_parse(cmq_slice id, cmq_record_host *store_host_out, int64_t *physical_offset_out)
{
    *store_host_out = (cmq_record_host){0};
    *physical_offset_out = 0;
    if (id.bytes != ID_BYTES_IPV4 && id.bytes != ID_BYTES_IPV6)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an offset message id has %d or %d hexadecimal digits, not %zu",
                        ID_BYTES_IPV4, ID_BYTES_IPV6, id.bytes);
    uint8_t raw[CMQ_MESSAGE_ID_BYTES_MAX / 2];
    for (size_t i = 0; i < id.bytes / 2; i++) {
        const int high = digit_value(id.data[2 * i]), low = digit_value(id.data[2 * i + 1]);
        if (high < 0 || low < 0)
            return cmq_fail(CMQ_ERR_ARGUMENT, "an offset message id holds something else than hexadecimal digits");
        raw[i] = (uint8_t)(high << 4 | low);
    }
    const size_t address_bytes = id.bytes == ID_BYTES_IPV6 ? 16 : 4;
    memcpy(store_host_out->address, raw, address_bytes);
    store_host_out->ipv6 = address_bytes == 16;
    store_host_out->port = cmq_load_i32(raw + address_bytes);
    *physical_offset_out = cmq_load_i64(raw + address_bytes + 4);
    return CMQ_OK;
}
