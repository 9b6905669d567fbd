/* cmq_member: the fields of a command become the members of a struct, in one pass.
 *
 * A header type has a table of members and a function that guesses, from length and first letter of a name, which one
 * it can only be; one comparison says whether it is. Fields that nobody guesses are skipped: clients send more than any
 * one broker knows.
 *
 * Invariant: a member is set by its last field; null sets it to zero and counts as absent (1.4). A required one that is
 *            absent, and a number that is none, gives CMQ_ERR_ARGUMENT with a text that names the member as upstream
 *            does.
 * Way:       cmq_command_parse -> [cmq_member] -> cmq_send_header, cmq_pull_header, cmq_offset_header
 * Threads:   any; pure functions.
 * Source:    remoting specification 1.5.
 */
#ifndef CMQ_MEMBER_H
#define CMQ_MEMBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "wire/cmq_command.h"
#include "wire/cmq_command_internal.h"

typedef enum cmq_member_kind { CMQ_MEMBER_TEXT, CMQ_MEMBER_I32, CMQ_MEMBER_I64, CMQ_MEMBER_BOOL } cmq_member_kind;

typedef struct cmq_member {
    const char *name;      /* on the wire */
    const char *meaning;   /* upstream's long name, where the one on the wire is a letter; else NULL */
    uint8_t name_bytes;
    uint8_t kind;
    uint16_t offset;       /* in the struct */
} cmq_member;

#define CMQ_MEMBER(type, field, member_kind, text, long_text)                                                          \
    {.name = (text),                                                                                                   \
     .meaning = (long_text),                                                                                           \
     .name_bytes = sizeof(text) - 1,                                                                                   \
     .kind = (member_kind),                                                                                            \
     .offset = offsetof(type, field)}

/* The failure texts of the two mistakes. */
CMQ_MUST_CHECK cmq_status cmq_member_is_missing(const cmq_command *command, const cmq_member *members,
                                                uint32_t missing);
CMQ_MUST_CHECK cmq_status cmq_member_is_wrong(const cmq_command *command, const cmq_member *member, cmq_slice value);

/* Set a member; false when the value is no number of its kind. */
static inline bool cmq_member_set(const cmq_member *member, cmq_slice value, void *header)
{
    CMQ_ASSERT(value.data != NULL || value.bytes == 0);
    uint8_t *at = (uint8_t *)header + member->offset;
    int64_t number = 0;
    switch (member->kind) {
    case CMQ_MEMBER_TEXT:
        memcpy(at, &value, sizeof value);
        return true;
    case CMQ_MEMBER_BOOL: {
        const bool yes = cmq_field_bool(value);
        memcpy(at, &yes, sizeof yes);
        return true;
    }
    case CMQ_MEMBER_I32: {
        if (value.data != NULL && (!cmq_number_parse(value, &number) || number < INT32_MIN || number > INT32_MAX))
            return false;
        const int32_t small = (int32_t)number;
        memcpy(at, &small, sizeof small);
        return true;
    }
    default:
        CMQ_ASSERT(member->kind == CMQ_MEMBER_I64);
        if (value.data != NULL && !cmq_number_parse(value, &number)) return false;
        memcpy(at, &number, sizeof number);
        return true;
    }
}

/* Read the fields of `command` into `header`, which is zeroed. `guess` gives the index of the member that a name can
 * only be, or -1. Bit i of *seen_out: members[i] is there. `required` has the bits that must be. Inlined, so that a
 * header type's guess is, too. */
static inline cmq_status cmq_members_read(const cmq_command *command, const cmq_member *members,
                                          int (*guess)(cmq_slice name), uint32_t required, void *header,
                                          uint32_t *seen_out)
{
    uint32_t seen = 0;
    CMQ_ASSERT(command->field_count <= CMQ_COMMAND_FIELDS_MAX);
    for (uint32_t i = 0; i < command->field_count; i++) {
        const cmq_field *field = &command->fields[i];
        const int index = guess(field->name);
        if (index < 0) continue;
        CMQ_ASSERT(index < 32);   /* bits of `seen` */
        const cmq_member *member = &members[index];
        if (field->name.bytes != member->name_bytes || memcmp(field->name.data, member->name, member->name_bytes) != 0)
            continue;
        if (!cmq_member_set(member, field->value, header)) return cmq_member_is_wrong(command, member, field->value);
        const uint32_t bit = UINT32_C(1) << index;
        seen = field->value.data != NULL ? seen | bit : seen & ~bit;
    }
    *seen_out = seen;
    return (required & ~seen) == 0 ? CMQ_OK : cmq_member_is_missing(command, members, required & ~seen);
}

#endif
