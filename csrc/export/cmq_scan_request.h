/* cmq_scan_request: the options of a scan as bytes, for bindings whose language cannot fill a C struct.
 *
 * All integers are little-endian. A text is a u32 length, its bytes, and a NUL byte that the length does not count.
 *
 *   u32 CMQ_SCAN_REQUEST_VERSION
 *   u32 columns; of each: u8 kind, u8 form, text property (empty where the kind has none)
 *   u32 ranges;  of each: text topic, i32 queue id, i64 start, i64 end
 *   u32 tags, of each a text; u32 keys, of each a text; text expression (read where the flags have it)
 *   u8 flags, i64 start time, i64 end time, u32 batch rows, u32 batch bytes, i64 limit rows
 *
 * The columns are named "0", "1" and so on.
 *
 * Owns:      the arrays that the options point into; texts are borrowed from the bytes.
 * Invariant: no length is believed before it is compared with the bytes that are left, and nothing may follow.
 * Threads:   one at a time per request.
 * Way:       bindings/jvm -> [cmq_scan_request] -> cmq_scan_open
 */
#ifndef CMQ_SCAN_REQUEST_H
#define CMQ_SCAN_REQUEST_H

#include "export/cmq_scan.h"

#define CMQ_SCAN_REQUEST_VERSION 2u

#define CMQ_SCAN_REQUEST_SKIP_CORRUPT 1u
#define CMQ_SCAN_REQUEST_START_TIME 2u
#define CMQ_SCAN_REQUEST_END_TIME 4u
#define CMQ_SCAN_REQUEST_WHERE 8u
#define CMQ_SCAN_REQUEST_FLAGS 15u

#define CMQ_SCAN_REQUEST_NAME_BYTES 8u

typedef struct cmq_scan_request {
    cmq_scan_options options;   /* reads the ranges and nothing else */
    cmq_scan_column *columns;
    char (*names)[CMQ_SCAN_REQUEST_NAME_BYTES];
    cmq_read_start *ranges;
    cmq_slice *tags, *keys;
    bool has_where;
    cmq_slice where;   /* the expression: the caller compiles it into options.read.where */
} cmq_scan_request;

/* Read the options. `bytes` outlives the request. End it by cmq_scan_request_free also after an error.
 * CMQ_ERR_ARGUMENT: these bytes are no request. */
cmq_status CMQ_MUST_CHECK cmq_scan_request_read(cmq_slice bytes, cmq_scan_request *request_out);
void cmq_scan_request_free(cmq_scan_request *request);

#endif
