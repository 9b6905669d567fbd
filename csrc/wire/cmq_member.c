/* cmq_member: see cmq_member.h. */
#include "wire/cmq_member.h"

#include <stdio.h>

#include "base/cmq_assert.h"

static const char *long_name(const cmq_member *member)
{
    return member->meaning != NULL ? member->meaning : member->name;
}

static const char *kind_of(const cmq_command *command)
{
    return (command->flag & CMQ_COMMAND_RESPONSE) != 0 ? "answer" : "request";
}

cmq_status cmq_member_is_missing(const cmq_command *command, const cmq_member *members, uint32_t missing)
{
    CMQ_ASSERT(missing != 0);
    char names[256] = "";
    size_t used = 0;
    for (uint32_t left = missing; left != 0; left &= left - 1) {
        const cmq_member *member = &members[__builtin_ctz(left)];
        const int bytes = snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", long_name(member));
        if (bytes < 0 || (size_t)bytes >= sizeof names - used) break;   /* enough are named */
        used += (size_t)bytes;
        CMQ_ASSERT(used < sizeof names);
    }
    return cmq_fail(CMQ_ERR_ARGUMENT, "%s %d: missing required field: %s", kind_of(command), command->code, names);
}

cmq_status cmq_member_is_wrong(const cmq_command *command, const cmq_member *member, cmq_slice value)
{
    enum { SHOWN_BYTES_MAX = 40 };
    /* texts and flags are never wrong */
    CMQ_ASSERT(member->kind == CMQ_MEMBER_I32 || member->kind == CMQ_MEMBER_I64);
    const int shown = value.bytes < SHOWN_BYTES_MAX ? (int)value.bytes : SHOWN_BYTES_MAX;
    return cmq_fail(CMQ_ERR_ARGUMENT, "%s %d: field %s is `%.*s`, expected %s", kind_of(command), command->code,
                    long_name(member), shown, (const char *)value.data,
                    member->kind == CMQ_MEMBER_I32 ? "an int" : "a long");
}
