/* cmq_pop_handle: the short texts of POP: handles, the info strings of an answer, and the names of retry topics.
 *
 *   POP_CK, extraInfo   start pop invisible revive-queue kind broker queue [offset]
 *                                                                         `100 1700000000000 60000 3 0 broker-a 2 101`
 *   startOffsetInfo     kind queue start;…                                                 `0 0 0;0 1 0`
 *   msgOffsetInfo       kind queue offset,offset,…;…                                       `0 0 0,1,2;0 1 7`
 *   orderCountInfo      kind queue count;… and kind qo<queue>%<offset> count;…             `0 qo0%5 1;0 0 1`
 *
 * Invariant: upstream's client parses every text of a writer; cmq_pop_handle_parse gives back exactly what
 *            cmq_pop_handle_write wrote.
 * Way:       pop -> [cmq_pop_handle] -> answer … ack -> [cmq_pop_handle] -> buffer or record
 * Threads:   any; pure functions over memory of the caller, nothing is allocated.
 * Source:    consumption specification 4.5.2; remoting specification 2.5; upstream's ExtraInfoUtil, KeyBuilder.
 */
#ifndef CMQ_POP_HANDLE_H
#define CMQ_POP_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "wire/cmq_text.h"

#define CMQ_POP_REVIVE_ORDER 999              /* the revive queue of ordered pops, which have none */
#define CMQ_POP_MS_MAX (INT64_C(1) << 53)     /* no time in a handle or record is larger: sums of two never overflow */
#define CMQ_POP_OFFSET_MAX (INT64_MAX - INT32_MAX)   /* nor an offset: with a difference of 32 bits it stays an int64 */
#define CMQ_POP_BROKER_BYTES_MAX 255u

/* Which topic a message was popped from. */
typedef enum cmq_pop_retry {
    CMQ_POP_NORMAL = 0,
    CMQ_POP_RETRY_V1 = 1,                     /* %RETRY%group_topic */
    CMQ_POP_RETRY_V2 = 2                      /* %RETRY%group+topic */
} cmq_pop_retry;

/* ---- handles ---- */

typedef struct cmq_pop_handle {
    int64_t start_offset;                     /* of the checkpoint */
    int64_t pop_ms, invisible_ms;
    int32_t revive_queue;                     /* CMQ_POP_REVIVE_ORDER: ordered */
    cmq_pop_retry retry;
    cmq_slice broker;
    int32_t queue_id;
    int64_t offset;                           /* of the message; -1: field 7 was left out */
} cmq_pop_handle;

#define CMQ_POP_HANDLE_BYTES_MAX 420u         /* seven numbers of up to 20 bytes, the broker, a kind, seven blanks */

/* `broker` is borrowed from the text. CMQ_ERR_ARGUMENT, with a text that names the field, for a malformed handle: fewer
 * than seven or more than eight fields, no number, a negative one (invisible_ms may be), one beyond its maximum, an
 * unknown kind, a broker of over 255 bytes. */
cmq_status CMQ_MUST_CHECK cmq_pop_handle_parse(cmq_slice text, cmq_pop_handle *out);

/* Returns how many bytes it wrote; without the last field where offset is -1. The broker has CMQ_POP_BROKER_BYTES_MAX
 * bytes at most. */
size_t cmq_pop_handle_write(const cmq_pop_handle *handle, uint8_t into[CMQ_POP_HANDLE_BYTES_MAX]);

/* ---- info strings: begin with an empty cmq_text; each call adds an entry. Whether all fitted says cmq_text_fits
 * ---- */

void cmq_pop_info_start(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, int64_t start_offset);
/* `count` is above 0; the offsets in the order of the messages in the body. */
void cmq_pop_info_offsets(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, const int64_t *offsets,
                          uint32_t count);
/* orderCountInfo: of one message, and of a queue as a whole. */
void cmq_pop_info_offset_count(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, int64_t offset, int32_t times);
void cmq_pop_info_queue_count(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, int32_t times);

/* ---- retry topics ---- */

#define CMQ_POP_TOPIC_BYTES_MAX 255u

/* The kind of a topic by its name, as clients decide it: `%RETRY%` and a `+` is v2, `%RETRY%` without one v1. */
cmq_pop_retry cmq_pop_retry_of(cmq_slice topic);

/* The topic that a group's messages of `topic` come from: with CMQ_POP_NORMAL `topic` itself, else its name is written
 * to `into`. CMQ_ERR_TOPIC when group or topic is empty, or the name has more than CMQ_POP_TOPIC_BYTES_MAX bytes. */
cmq_status CMQ_MUST_CHECK cmq_pop_retry_topic(cmq_slice group, cmq_slice topic, cmq_pop_retry retry,
                                              uint8_t into[CMQ_POP_TOPIC_BYTES_MAX], cmq_slice *name_out);

/* Does every kind of retry topic of theirs have a name that is short enough? The group's messages of a retry topic come
 * back to that one. */
/* Of group and topic together: `%RETRY%` and a separator are between them. */
#define CMQ_POP_RETRY_NAMES_BYTES_MAX (CMQ_POP_TOPIC_BYTES_MAX - 8)
bool cmq_pop_has_retry_topic(cmq_slice group, cmq_slice topic);

/* And back: the topic without %RETRY%, group and separator; borrowed. Any other topic, and the group's own
 * %RETRY%group, is what it is. CMQ_ERR_TOPIC for another group's retry topic. */
cmq_status CMQ_MUST_CHECK cmq_pop_normal_topic(cmq_slice name, cmq_slice group, cmq_slice *topic_out);

#endif
