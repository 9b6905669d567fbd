/* cmq_offset_header: see cmq_offset_header.h. */
#include "wire/cmq_offset_header.h"

#include <strings.h>

#include "base/cmq_assert.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_member.h"

enum { GROUP, TOPIC, QUEUE_ID, COMMIT_OFFSET, TIMESTAMP, BOUNDARY, SET_ZERO, COMMITTED, MEMBER_COUNT };

typedef struct wire_header {
    cmq_offset_header header;
    cmq_slice boundary;
} wire_header;

#define NAME(field, kind, name) CMQ_MEMBER(wire_header, field, kind, name, NULL)

static const cmq_member members[MEMBER_COUNT] = {
    [GROUP] = NAME(header.group, CMQ_MEMBER_TEXT, "consumerGroup"),
    [TOPIC] = NAME(header.topic, CMQ_MEMBER_TEXT, "topic"),
    [QUEUE_ID] = NAME(header.queue_id, CMQ_MEMBER_I32, "queueId"),
    [COMMIT_OFFSET] = NAME(header.commit_offset, CMQ_MEMBER_I64, "commitOffset"),
    [TIMESTAMP] = NAME(header.timestamp_ms, CMQ_MEMBER_I64, "timestamp"),
    [BOUNDARY] = NAME(boundary, CMQ_MEMBER_TEXT, "boundaryType"),
    [SET_ZERO] = NAME(header.zero_if_not_found, CMQ_MEMBER_BOOL, "setZeroIfNotFound"),
    [COMMITTED] = NAME(header.committed, CMQ_MEMBER_BOOL, "committed"),
};
_Static_assert(MEMBER_COUNT <= 32, "members are the bits of a word");

static inline int guess(cmq_slice name)
{
    switch (name.bytes) {
    case 5: return TOPIC;
    case 7: return QUEUE_ID;
    case 9: return name.data[0] == 't' ? TIMESTAMP : COMMITTED;
    case 12: return name.data[0] == 'c' ? COMMIT_OFFSET : BOUNDARY;
    case 13: return GROUP;
    case 17: return SET_ZERO;
    default: return -1;
    }
}

static uint32_t required_by(int32_t code)
{
    const uint32_t queue = 1u << TOPIC | 1u << QUEUE_ID;
    switch (code) {
    case CMQ_REQUEST_QUERY_CONSUMER_OFFSET: return queue | 1u << GROUP;
    case CMQ_REQUEST_UPDATE_CONSUMER_OFFSET: return queue | 1u << GROUP | 1u << COMMIT_OFFSET;
    case CMQ_REQUEST_SEARCH_OFFSET_BY_TIMESTAMP: return queue | 1u << TIMESTAMP;
    default: return queue;
    }
}

cmq_status cmq_offset_header_read(const cmq_command *command, cmq_offset_header *header_out)
{
    wire_header wire = {0};
    uint32_t seen = 0;
    const uint32_t required = required_by(command->code);
    const cmq_status status = cmq_members_read(command, members, guess, required, &wire, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0 && (status != CMQ_OK || (required & ~seen) == 0));
    *header_out = wire.header;
    header_out->upper = wire.boundary.bytes == 5 && strncasecmp((const char *)wire.boundary.data, "UPPER", 5) == 0;
    if ((seen >> SET_ZERO & 1) == 0) header_out->zero_if_not_found = true;
    if ((seen >> COMMITTED & 1) == 0) header_out->committed = true;
    return status;
}
