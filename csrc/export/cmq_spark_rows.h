/* cmq_spark_rows: rows of Spark, as its tasks hold them, into a staged file.
 *
 * A row is Spark's UnsafeRow: a bit set of the nulls, a word for each column, and the values that the words name by
 * offset and length. Its columns become those of a staged file, as cometmq.spark.staging makes them for Python; each
 * value that the store's writer would refuse later is refused here, in the same words.
 *
 * Owns:      the columns of one batch, and the file until it is finished.
 * Invariant: nothing in a row is followed before it was compared with the row's length: a JVM gives any bytes.
 *            After a failure every call but the close fails; the close removes the file.
 * Cost:      two copies of a value: into the batch, and by the write. No allocation for a row.
 * Threads:   one at a time per file.
 * Way:       bindings/jvm -> [cmq_spark_rows] -> cmq_ipc_file
 */
#ifndef CMQ_SPARK_ROWS_H
#define CMQ_SPARK_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_file.h"
#include "base/cmq_status.h"

/* A column of the rows. */
typedef enum cmq_spark_kind {
    CMQ_SPARK_BODY = 0,         /* binary or string */
    CMQ_SPARK_TOPIC = 1,        /* string */
    CMQ_SPARK_TAGS = 2,         /* string */
    CMQ_SPARK_KEYS = 3,         /* string */
    CMQ_SPARK_KEY_LIST = 4,     /* array<string> */
    CMQ_SPARK_PROPERTIES = 5,   /* map<string,string> */
    CMQ_SPARK_QUEUE_8 = 6,      /* tinyint */
    CMQ_SPARK_QUEUE_16 = 7,
    CMQ_SPARK_QUEUE_32 = 8,
    CMQ_SPARK_QUEUE_64 = 9,
    CMQ_SPARK_SHARD_KEY = 10,   /* string */
    CMQ_SPARK_KIND_COUNT
} cmq_spark_kind;

#define CMQ_SPARK_COLUMNS_MAX 7u

typedef struct cmq_spark_options {
    cmq_fs *fs;
    const char *path;         /* of the file, which must not be there */
    const uint8_t *kinds;     /* of the rows' columns: a body, and each other column at most once */
    uint32_t count;
    uint32_t body_bytes_max;
    bool has_topic;           /* rows without a topic have a default one */
} cmq_spark_options;

typedef struct cmq_spark_rows cmq_spark_rows;

/* Make the file. *rows_out: cmq_spark_rows_close. */
cmq_status CMQ_MUST_CHECK cmq_spark_rows_create(const cmq_spark_options *options, cmq_spark_rows **rows_out);

/* Take rows, each behind a word of 8 bytes that is its length, until all are taken or the batch is full. Writes nothing
 * and takes no lock. *taken_out: bytes of the rows taken. */
cmq_status CMQ_MUST_CHECK cmq_spark_rows_take(cmq_spark_rows *rows, cmq_slice packed, size_t *taken_out);

/* Write the batch, if it has rows. */
cmq_status CMQ_MUST_CHECK cmq_spark_rows_flush(cmq_spark_rows *rows);

/* A commit's figures of a file. */
typedef struct cmq_spark_file {
    int64_t rows;
    uint64_t bytes;
    uint32_t crc32;
} cmq_spark_file;

/* Write the rest and wait for the disk. Without rows there is no file; else it stays when `rows` is closed. */
cmq_status CMQ_MUST_CHECK cmq_spark_rows_finish(cmq_spark_rows *rows, cmq_spark_file *file_out);

/* NULL: nothing. A file that was not finished is removed. */
void cmq_spark_rows_close(cmq_spark_rows *rows);

#endif
