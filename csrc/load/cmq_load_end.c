/* cmq_load_end: the end of a transaction: request 37, made from the answer to its half message.
 *
 * Official clients send it one-way; here it is answered, so that a transaction has an end and a refusal is found.
 */
#include "load/cmq_load_internal.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_end_header.h"

enum { REQUEST_BYTES = 4096, OFFSET_DIGITS = 16 };

/* The last digits of a message id are the message's place in the log. */
static bool read_place(cmq_slice id, int64_t *place_out)
{
    uint64_t place = 0;
    if (id.bytes < OFFSET_DIGITS) return false;
    for (const uint8_t *at = id.data + id.bytes - OFFSET_DIGITS; at < id.data + id.bytes; at++) {
        const unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
                               : *at >= 'A' && *at <= 'F' ? (unsigned)(*at - 'A') + 10
                                                          : 16;
        if (digit > 15) return false;
        place = place << 4 | digit;
    }
    *place_out = (int64_t)place;
    return place <= INT64_MAX;
}

cmq_status cmq_load_commit(cmq_load *load, load_conn *conn, const load_queue *queue, const cmq_command *command)
{
    cmq_slice id, offset_text;
    int64_t place = 0, offset = 0;
    if (!cmq_command_find(command, "msgId", &id) || !read_place(id, &place) ||
        !cmq_command_find(command, "queueOffset", &offset_text) || cmq_field_i64(offset_text, &offset) != CMQ_OK)
        return cmq_fail(CMQ_ERR_CORRUPT, "queue %d: the answer to a half message does not name its place in the log",
                        queue->queue_id);
    uint8_t *into = cmq_load_conn_reserve(conn, REQUEST_BYTES);
    if (into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the end of a transaction");
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, REQUEST_BYTES, load->options.format, CMQ_REQUEST_END_TRANSACTION, command->opaque,
                      0, CMQ_SLICE_NONE);
    cmq_command_add_text(&writer, CMQ_NAME("topic"), cmq_slice_of_text(load->topic));
    cmq_command_add_text(&writer, CMQ_NAME("producerGroup"), cmq_slice_of_text(load->producer_group));
    cmq_command_add_i64(&writer, CMQ_NAME("tranStateTableOffset"), offset);
    cmq_command_add_i64(&writer, CMQ_NAME("commitLogOffset"), place);
    cmq_command_add_i64(&writer, CMQ_NAME("commitOrRollback"), CMQ_END_COMMIT);
    cmq_command_add_bool(&writer, CMQ_NAME("fromTransactionCheck"), false);
    cmq_command_add_text(&writer, CMQ_NAME("msgId"), id);
    const size_t bytes = cmq_command_end(&writer, 0);
    if (bytes == 0 || bytes > REQUEST_BYTES)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "the end of a transaction of %zu bytes: topic or group are too long", bytes);
    conn->out_used += bytes;
    cmq_load_conn_asked(load, conn);
    return CMQ_OK;
}
