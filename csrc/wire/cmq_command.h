/* cmq_command: the header of a remoting frame, in both formats, read and written.
 *
 * A header is code, language, version, opaque, flag, remark and a map of text to text. Reading makes slices: into the
 * frame where the bytes stand there as they are, else (JSON escapes) into a scratch area of the caller. Nothing is
 * allocated and no field is looked at twice.
 *
 * Invariant: reading never leaves the header; cmq_command_parse reads back exactly the command that cmq_command_writer
 *            wrote. A header with more than CMQ_COMMAND_FIELDS_MAX fields is refused.
 * Way:       cmq_frame_next -> [cmq_command_parse] -> processor -> [cmq_command_writer] -> connection
 * Threads:   any; pure functions over memory of the caller.
 * Source:    remoting specification 1.2-1.7.
 */
#ifndef CMQ_COMMAND_H
#define CMQ_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "wire/cmq_frame.h"
#include "wire/cmq_text.h"

#define CMQ_COMMAND_FIELDS_MAX 64u
#define CMQ_COMMAND_VERSION 479          /* MQVersion.V5_3_3: the version that we announce */

enum {
    CMQ_COMMAND_RESPONSE = 1,            /* flag bits */
    CMQ_COMMAND_ONEWAY = 2
};

/* Language codes (1.6). */
enum {
    CMQ_LANGUAGE_JAVA = 0,
    CMQ_LANGUAGE_CPP = 1,
    CMQ_LANGUAGE_PYTHON = 3,
    CMQ_LANGUAGE_OTHER = 7,
    CMQ_LANGUAGE_MAX = 13
};

typedef struct cmq_field {
    cmq_slice name;
    cmq_slice value;         /* data is NULL for null: JSON's word, and every empty value in ROCKETMQ format (1.4) */
} cmq_field;

typedef struct cmq_command {
    cmq_header_format format;
    int32_t code;
    int32_t language;        /* of the codes above; OTHER for one that nobody knows */
    int32_t version;
    int32_t opaque;
    int32_t flag;
    bool has_opaque;         /* JSON may leave it out; such a request cannot be answered */
    bool has_fields;         /* there is a map, be it empty */
    cmq_slice remark;        /* data is NULL for null */
    uint32_t field_count;
    cmq_field fields[CMQ_COMMAND_FIELDS_MAX];   /* in the order of the header; a name may come twice: the last one
                                                 * counts */
} cmq_command;

/* Read a header. `scratch` takes what has to be unescaped: it has header.bytes at least, and command and scratch live
 * as long as each other; without an escape, and in ROCKETMQ format, it is not touched. Lenient where Java is (1.3):
 * members in any order, unknown and null members, numbers, booleans and whole values in braces as ext values (the text
 * as it stands), keys in single or without quotes, numbers in quotes. Half of a surrogate pair in \u escapes becomes
 * `?`, as in Java; bytes that are no UTF-8 are handed on as they are. ROCKETMQ codes of the POP family that Java cut to
 * 16 bits come out whole in requests (1.4); a field without a name is dropped. CMQ_ERR_CORRUPT, with a text that names
 * the place, for a malformed header: close the connection. CMQ_ERR_LIMIT for too many fields: the command is set but
 * for the fields beyond the limit, answer code 1. */
CMQ_MUST_CHECK cmq_status cmq_command_parse(const cmq_frame *frame, uint8_t *scratch, size_t scratch_bytes,
                                            cmq_command *command_out);

/* The value of an ext field, the last one of that name; false when it is absent or null. One linear pass: for a few
 * fields. */
bool cmq_command_find(const cmq_command *command, const char *name, cmq_slice *value_out);

/* ---- values of ext fields ---- */

/* A whole decimal number with an optional sign, nothing around it. CMQ_ERR_ARGUMENT otherwise, or when it does not
 * fit. */
CMQ_MUST_CHECK cmq_status cmq_field_i32(cmq_slice value, int32_t *number_out);
CMQ_MUST_CHECK cmq_status cmq_field_i64(cmq_slice value, int64_t *number_out);
/* Java's Boolean.parseBoolean: "true" in any case is true, all else false. */
bool cmq_field_bool(cmq_slice value);

/* ---- writing ---- */

/* Builds prefix and header of one frame in memory of the caller. When the memory is too small the writer goes on
 * counting, and cmq_command_end says how much it would have been. Text is written as fastjson and Java write it; null
 * values (data NULL) are left out. */
typedef struct cmq_command_writer {
    cmq_text out;
    cmq_header_format format;
    int32_t language;        /* JAVA and CMQ_COMMAND_VERSION from cmq_command_begin; may be set before
                              * cmq_command_end */
    int32_t version;
    int32_t opaque;
    int32_t flag;
    cmq_slice remark;
    bool fields_begun;
    bool failed;             /* something that the format has no room for */
    size_t fields_at;        /* where the map begins: behind its brace, or behind its length */
} cmq_command_writer;

/* Begin. `remark` is borrowed until the end; data NULL leaves it out. In ROCKETMQ format the code goes out as 16 bits,
 * as Java's does. */
void cmq_command_begin(cmq_command_writer *writer, uint8_t *into, size_t capacity, cmq_header_format format,
                       int32_t code, int32_t opaque, int32_t flag, cmq_slice remark);
/* Give the header a map even if nothing will be added: some answers of upstream's have an empty one. Adding does it,
 * too. */
void cmq_command_begin_fields(cmq_command_writer *writer);
/* Name and value may be anything. */
void cmq_command_add_text(cmq_command_writer *writer, cmq_slice name, cmq_slice value);
/* The name holds nothing that JSON escapes: one of ours. */
void cmq_command_add_i64(cmq_command_writer *writer, cmq_slice name, int64_t value);
void cmq_command_add_bool(cmq_command_writer *writer, cmq_slice name, bool value);
/* Close the header and write the frame's prefix for a body of `body_bytes`, which the caller puts behind. Returns the
 * bytes of prefix and header; when that is more than the capacity nothing of it is of use: try again with so much. 0
 * for what no frame can hold: a header of 16 MiB, header and body over CMQ_FRAME_BYTES_MAX, a name over 32,767 bytes in
 * ROCKETMQ format. */
size_t cmq_command_end(cmq_command_writer *writer, size_t body_bytes);

/* "JAVA" and so on; static. "OTHER" for a number that nobody knows. */
cmq_slice cmq_command_language_name(int32_t language);
/* The number of a language's name; CMQ_LANGUAGE_OTHER for one that nobody knows. */
int32_t cmq_command_language_of(cmq_slice name);

/* A name that is known at compile time, as a slice. */
#define CMQ_NAME(text) ((cmq_slice){.data = (const uint8_t *)(text), .bytes = sizeof(text) - 1})

#endif
