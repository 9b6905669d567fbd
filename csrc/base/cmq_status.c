/* cmq_status: see cmq_status.h. */
#include "base/cmq_status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local cmq_error last_error = {.status = CMQ_OK, .offset = -1};

static void set_text(const char *format, va_list args)
{
    vsnprintf(last_error.text, sizeof last_error.text, format, args);
}

static void append_text(const char *separator, const char *format, va_list args)
{
    size_t used = strlen(last_error.text);
    const size_t room = sizeof last_error.text;
    used += (size_t)snprintf(last_error.text + used, room - used, "%s", separator);
    if (used < room) vsnprintf(last_error.text + used, room - used, format, args);
}

cmq_status cmq_fail(cmq_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    last_error.status = status;
    last_error.sys_errno = 0;
    last_error.offset = -1;
    return status;
}

cmq_status cmq_fail_at(cmq_status status, int64_t offset, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    last_error.status = status;
    last_error.sys_errno = 0;
    last_error.offset = offset;
    return status;
}

static cmq_status status_of_errno(int sys_errno)
{
    switch (sys_errno) {
    case ENOSPC:
    case EDQUOT: return CMQ_ERR_DISK_FULL;
    case EACCES:
    case EPERM:
    case EROFS: return CMQ_ERR_PERMISSION;
    case ENOENT: return CMQ_ERR_NOT_FOUND;
    case ENOMEM: return CMQ_ERR_MEMORY;
    default: return CMQ_ERR_IO;
    }
}

cmq_status cmq_fail_errno(int sys_errno, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    const size_t used = strlen(last_error.text);
    char reason[128];
    snprintf(last_error.text + used, sizeof last_error.text - used, ": %s",
             strerror_r(sys_errno, reason, sizeof reason));
    last_error.status = status_of_errno(sys_errno);
    last_error.sys_errno = sys_errno;
    last_error.offset = -1;
    return last_error.status;
}

cmq_status cmq_fail_context(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append_text("\n  ", format, args);
    va_end(args);
    return last_error.status;
}

const cmq_error *cmq_last_error(void) { return &last_error; }

cmq_status cmq_fail_again(const cmq_error *error)
{
    last_error = *error;
    return error->status;
}

bool cmq_is_exhausted(cmq_status status)
{
    return status == CMQ_ERR_IO && last_error.status == status &&
           (last_error.sys_errno == EMFILE || last_error.sys_errno == ENFILE);
}

const char *cmq_status_name(cmq_status status)
{
    switch (status) {
    case CMQ_OK: return "CMQ_OK";
    case CMQ_AGAIN: return "CMQ_AGAIN";
    case CMQ_END: return "CMQ_END";
    case CMQ_ERR_ARGUMENT: return "CMQ_ERR_ARGUMENT";
    case CMQ_ERR_TOPIC: return "CMQ_ERR_TOPIC";
    case CMQ_ERR_TOO_LARGE: return "CMQ_ERR_TOO_LARGE";
    case CMQ_ERR_NOT_FOUND: return "CMQ_ERR_NOT_FOUND";
    case CMQ_ERR_OFFSET: return "CMQ_ERR_OFFSET";
    case CMQ_ERR_CORRUPT: return "CMQ_ERR_CORRUPT";
    case CMQ_ERR_NOT_STORE: return "CMQ_ERR_NOT_STORE";
    case CMQ_ERR_AMBIGUOUS: return "CMQ_ERR_AMBIGUOUS";
    case CMQ_ERR_SETTING: return "CMQ_ERR_SETTING";
    case CMQ_ERR_IO: return "CMQ_ERR_IO";
    case CMQ_ERR_DISK_FULL: return "CMQ_ERR_DISK_FULL";
    case CMQ_ERR_LOCKED: return "CMQ_ERR_LOCKED";
    case CMQ_ERR_CLOSED: return "CMQ_ERR_CLOSED";
    case CMQ_ERR_FENCED: return "CMQ_ERR_FENCED";
    case CMQ_ERR_READ_ONLY: return "CMQ_ERR_READ_ONLY";
    case CMQ_ERR_MEMORY: return "CMQ_ERR_MEMORY";
    case CMQ_ERR_PERMISSION: return "CMQ_ERR_PERMISSION";
    case CMQ_ERR_LIMIT: return "CMQ_ERR_LIMIT";
    }
    return "CMQ_UNKNOWN";
}
