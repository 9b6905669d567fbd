/* cmq_ipc_file: a file in Arrow's IPC format, written batch by batch.
 *
 * Columns are texts, binary values or 32-bit numbers: those of staged files (cometmq.store.staged_check).
 *
 * Owns:      the open file, and the places of its batches until the footer is written.
 * Invariant: bytes are written in order and once, so that length and checksum are known at the end. A file without
 *            its footer is not whole; the owner removes it.
 * Cost:      two writes a buffer. Nothing of a batch is copied.
 * Threads:   one at a time per file.
 * Source:    Arrow's format, columnar and IPC (format/Message.fbs, Schema.fbs, File.fbs), metadata version 5.
 * Way:       cmq_spark_rows -> [cmq_ipc_file] -> a staged file
 */
#ifndef CMQ_IPC_FILE_H
#define CMQ_IPC_FILE_H

#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

typedef enum cmq_ipc_type {
    CMQ_IPC_BINARY,
    CMQ_IPC_TEXT,
    CMQ_IPC_INT32
} cmq_ipc_type;

typedef struct cmq_ipc_field {
    const char *name;
    cmq_ipc_type type;
} cmq_ipc_field;

/* A column of a batch: rows + 1 offsets and their data, or as many numbers as rows. */
typedef struct cmq_ipc_column {
    int64_t null_count;
    const uint8_t *validity;   /* a bit for each row; not looked at where null_count is 0 */
    const int32_t *numbers;
    const uint8_t *data;
} cmq_ipc_column;

typedef struct cmq_ipc_file cmq_ipc_file;

/* Make a new file and write its schema. *file_out: cmq_ipc_file_close. */
cmq_status CMQ_MUST_CHECK cmq_ipc_file_create(cmq_fs *fs, const char *path, const cmq_ipc_field *fields, uint32_t count,
                                              cmq_ipc_file **file_out);

/* Append a batch with a column for each field. After a failure only cmq_ipc_file_close follows. */
cmq_status CMQ_MUST_CHECK cmq_ipc_file_append(cmq_ipc_file *file, uint32_t rows, const cmq_ipc_column *columns);

/* Write the footer and wait for the disk. *crc_out is zlib's crc32 of all bytes. */
cmq_status CMQ_MUST_CHECK cmq_ipc_file_finish(cmq_ipc_file *file, uint64_t *bytes_out, uint32_t *crc_out);

void cmq_ipc_file_close(cmq_ipc_file *file);   /* NULL: nothing */

#endif
