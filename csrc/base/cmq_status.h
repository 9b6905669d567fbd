/* cmq_status: the one way in which C code reports how a call went.
 *
 * Owns:      the status codes, and per thread the text of the last failure.
 * Invariant: CMQ_OK is 0, every other status is negative; a function that returns a negative status of the
 *            families "your input" or "the world" has set the thread's last error.
 * Threads:   the last error is thread-local; read it on the thread that got the status, before its next call.
 */
#ifndef CMQ_STATUS_H
#define CMQ_STATUS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum cmq_status {
    CMQ_OK = 0,

    /* Not now: nothing is wrong, no last error is set. */
    CMQ_AGAIN = -1,   /* nothing there yet, or a wait ran out of time */
    CMQ_END = -2,     /* the end of a range, a file or an iteration */

    /* Your input. */
    CMQ_ERR_ARGUMENT = -10,   /* a value outside its documented range */
    CMQ_ERR_TOPIC = -11,      /* a topic name that RocketMQ would refuse */
    CMQ_ERR_TOO_LARGE = -12,  /* body, properties or record over their limit */
    CMQ_ERR_NOT_FOUND = -13,  /* no such topic, queue, message or file */
    CMQ_ERR_OFFSET = -14,     /* an offset outside [min, max] of its queue or log */
    CMQ_ERR_CORRUPT = -15,    /* bytes that no whole record, unit or header can be; see offset */
    CMQ_ERR_NOT_STORE = -16,  /* the directory is not a store, or has foreign or newer files inside */
    CMQ_ERR_AMBIGUOUS = -17,  /* the directory does not name a size; the text names the setting to give */
    CMQ_ERR_SETTING = -18,    /* a setting that contradicts the files */

    /* The world. */
    CMQ_ERR_IO = -30,         /* a system call failed; see sys_errno */
    CMQ_ERR_DISK_FULL = -31,  /* no space; reads go on, appends work again when there is space */
    CMQ_ERR_LOCKED = -32,     /* another process, or this one, is the store's writer */
    CMQ_ERR_CLOSED = -33,     /* the handle was closed */
    CMQ_ERR_FENCED = -34,     /* an fsync or a log write failed; only reads are answered until reopened */
    CMQ_ERR_READ_ONLY = -35,  /* the store was opened read-only */
    CMQ_ERR_MEMORY = -36,     /* no memory */
    CMQ_ERR_PERMISSION = -37, /* the file system refuses access */
    CMQ_ERR_LIMIT = -38       /* a named limit of ours was reached */
} cmq_status;

#define CMQ_ERROR_TEXT_BYTES 512

/* The error of the thread's last failing call. */
typedef struct cmq_error {
    cmq_status status;
    int sys_errno;                    /* errno of the failing system call, or 0 */
    int64_t offset;                   /* byte offset the error is about, or -1 */
    char text[CMQ_ERROR_TEXT_BYTES];  /* UTF-8, NUL-terminated; says what to do where something can be done */
} cmq_error;

#define CMQ_MUST_CHECK __attribute__((warn_unused_result))

/* Set the thread's last error and return `status`, so that a failing place reads `return cmq_fail(...)`. */
cmq_status cmq_fail(cmq_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for an error about byte `offset` of a file or of the log. */
cmq_status cmq_fail_at(cmq_status status, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: picks CMQ_ERR_DISK_FULL, CMQ_ERR_PERMISSION, CMQ_ERR_NOT_FOUND or CMQ_ERR_IO by
 * `sys_errno` and appends its text. */
cmq_status cmq_fail_errno(int sys_errno, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append a line of context ("while opening …") to the thread's last error; returns the status it holds. */
cmq_status cmq_fail_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The thread's last error; static storage of the thread, valid until its next failing call. */
const cmq_error *cmq_last_error(void);

/* Make a saved error the thread's last one again, after calls that may have failed meanwhile; returns its status. */
cmq_status cmq_fail_again(const cmq_error *error);

/* Did the call that just failed with `status` find no descriptor left (EMFILE, ENFILE)? Then it did nothing, and may be
 * made again. */
bool cmq_is_exhausted(cmq_status status);

/* "CMQ_ERR_IO" and so on; static. */
const char *cmq_status_name(cmq_status status);

#endif
