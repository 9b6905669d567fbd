/* cmq_scan: messages as columns: record batches in Arrow's C data interface, made straight from the mapped log.
 *
 * Owns:      a cmq_reader, or nothing where records are fed to it, and one batch while it is being made. A batch that
 *            was given out owns its buffers and its pins, and nothing of the scan.
 * Invariant: every array is valid Arrow (offsets rise, views lie inside their buffers, strings are UTF-8) whatever the
 *            log holds.
 * Threads:   one at a time per scan; a batch may be released by any thread, at any time, also after the store is
 *            closed.
 * Way:       cmq_reader, cmq_key_places, fed records -> [cmq_scan, cmq_scan_columns] -> ArrowArray ->
 *            bindings/python/_scan.pxi -> Arrow, export, Spark
 * Source:    docs/decisions/0008; Arrow's columnar format; spec spark 1, 2.
 */
#ifndef CMQ_SCAN_H
#define CMQ_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "export/cmq_arrow_abi.h"
#include "store/cmq_store.h"

#define CMQ_SCAN_BATCH_ROWS 8192u
#define CMQ_SCAN_BATCH_BYTES (UINT32_C(4) << 20)
#define CMQ_SCAN_COLUMNS_MAX 256u
#define CMQ_SCAN_BODY_BYTES_MAX (UINT32_C(256) << 20)   /* of a decompressed body */

/* The content of a column. In brackets its forms; CMQ_SCAN_FORM_DEFAULT means the first. */
typedef enum cmq_scan_kind {
    CMQ_SCAN_TOPIC = 0,            /* text [plain, dictionary] */
    CMQ_SCAN_QUEUE_ID,             /* int32 */
    CMQ_SCAN_QUEUE_OFFSET,         /* int64 */
    CMQ_SCAN_BODY,                 /* bytes [view, plain]; decompressed unless raw_bodies */
    CMQ_SCAN_BODY_BYTES,           /* int64: the body's length as stored; the body itself is not touched */
    CMQ_SCAN_TAGS,                 /* text [plain, dictionary]; null when there is none */
    CMQ_SCAN_KEYS,                 /* text [plain], divided by spaces as stored; null when there are none */
    CMQ_SCAN_UNIQUE_ID,            /* text [plain]: UNIQ_KEY; null when there is none */
    CMQ_SCAN_BORN_TIMESTAMP,       /* timestamp, UTC [ms, us] */
    CMQ_SCAN_STORE_TIMESTAMP,      /* timestamp, UTC [ms, us] */
    CMQ_SCAN_PROPERTIES,           /* map<text, text> [plain]: all pairs, the last of equal names, in the order of their
                                    * first */
    CMQ_SCAN_PROPERTY,             /* text [plain, dictionary]: the property `property`; null when there is none */
    CMQ_SCAN_FLAG,                 /* int32 */
    CMQ_SCAN_SYS_FLAG,             /* int32 */
    CMQ_SCAN_RECONSUME_TIMES,      /* int32 */
    CMQ_SCAN_MESSAGE_ID,           /* text [plain]: the offset message id */
    CMQ_SCAN_PHYSICAL_OFFSET,      /* int64 */
    CMQ_SCAN_BORN_HOST,            /* text [plain]: address:port, an IPv6 address in brackets */
    CMQ_SCAN_STORE_HOST,           /* the same */
    CMQ_SCAN_BODY_CRC,             /* int32, the stored 32 bits */
    CMQ_SCAN_PREPARED_OFFSET,      /* int64: prepared transaction offset */
    CMQ_SCAN_CONSTANT,             /* text [plain]: `property` in every row (a broker's name) */
    CMQ_SCAN_KIND_COUNT
} cmq_scan_kind;

typedef enum cmq_scan_form {
    CMQ_SCAN_FORM_DEFAULT = 0,
    CMQ_SCAN_FORM_VIEW,            /* binary_view into the map */
    CMQ_SCAN_FORM_PLAIN,           /* binary or utf8 with 32-bit offsets, gathered */
    CMQ_SCAN_FORM_DICTIONARY,      /* dictionary<int32, utf8>; codes keep their meaning for the whole scan */
    CMQ_SCAN_FORM_MS,
    CMQ_SCAN_FORM_US
} cmq_scan_form;

typedef struct cmq_scan_column {
    cmq_scan_kind kind;
    cmq_scan_form form;
    const char *name;              /* the field's name: UTF-8, unique among the columns */
    const char *property;          /* of CMQ_SCAN_PROPERTY and CMQ_SCAN_CONSTANT */
} cmq_scan_column;

/* Where a decompressed body goes: the hook asks for room once, then fills it. */
typedef struct cmq_scan_room cmq_scan_room;
uint8_t *cmq_scan_room_take(cmq_scan_room *room, size_t bytes);   /* NULL: no memory, or above
                                                                   * CMQ_SCAN_BODY_BYTES_MAX */

/* Decompress `stored` by the method of sys_flag. CMQ_ERR_CORRUPT when it is not such data, CMQ_ERR_TOO_LARGE above the
 * limit; a text is set. */
typedef cmq_status (*cmq_scan_decompress)(void *context, int32_t sys_flag, cmq_slice stored, cmq_scan_room *room);

typedef struct cmq_scan_options {
    cmq_read_options read;         /* which messages; not backwards. `where` outlives the scan */
    const cmq_slice *keys;         /* none: all; else messages that have one of these keys (KEYS or UNIQ_KEY), found
                                    * through the index where it covers the log, and by reading where it does not */
    uint32_t key_count;
    const cmq_scan_column *columns;   /* at least one */
    uint32_t column_count;
    uint32_t batch_rows;           /* 0: CMQ_SCAN_BATCH_ROWS */
    uint32_t batch_bytes;          /* of bodies that are gathered, or decompressed; 0: CMQ_SCAN_BATCH_BYTES. Viewed
                                    * bodies count nothing */
    int64_t limit_rows;            /* 0: none */
    bool follow;                   /* more will be waited for: with keys, new messages are filtered instead of looked up
                                    * once */
    bool raw_bodies;               /* compressed bodies and inner batches as stored: a row per record */
    bool check_crc;                /* compare every body with its CRC: reads all of it */
    bool skip_corrupt;             /* count damage, and bodies that inflate beyond the limit, and go on */
    cmq_scan_decompress decompress;   /* NULL: a compressed body fails with CMQ_ERR_SETTING */
    void *decompress_context;
} cmq_scan_options;

typedef struct cmq_scan cmq_scan;

/* Open. Options and what they point to are borrowed for the call (but the hook). Statuses as cmq_reader_open, and
 * CMQ_ERR_ARGUMENT naming the column that cannot be. *scan_out owned: cmq_scan_close. */
cmq_status CMQ_MUST_CHECK cmq_scan_open(cmq_store *store, const cmq_scan_options *options, cmq_scan **scan_out);
void cmq_scan_close(cmq_scan *scan);   /* before the store's; batches stay */

/* Records that the caller brings, one whole stored record behind the other, as in a pull's answer. Rows come of
 * messages with start <= queue offset < end; offset_delta is added to the offsets that the records have. */
typedef struct cmq_scan_piece {
    const uint8_t *data;
    size_t bytes;
    int64_t start, end;
    int64_t offset_delta;
} cmq_scan_piece;

/* Open a scan without a store. Of options->read only tags and `where` count, which are compared with each message's
 * properties, also within inner batches; keys are compared likewise, nothing is followed, and bodies have the plain
 * form. Statuses as cmq_scan_open. */
cmq_status CMQ_MUST_CHECK cmq_scan_open_fed(const cmq_scan_options *options, cmq_scan **scan_out);

/* Bring records. Their bytes are borrowed until cmq_scan_next has nothing more for now (it never ends for good); until
 * then nothing else can be fed. Bytes that are not a record fail with CMQ_ERR_CORRUPT in cmq_scan_next, and end their
 * piece. */
cmq_status CMQ_MUST_CHECK cmq_scan_feed(cmq_scan *scan, const cmq_scan_piece *pieces, uint32_t count);

/* The schema: a struct of the columns. *schema_out is the caller's to release. */
cmq_status CMQ_MUST_CHECK cmq_scan_schema(const cmq_scan *scan, struct ArrowSchema *schema_out);

/* The next batch: CMQ_OK with 1 to batch_rows rows in *array_out (the caller's to release), or with array_out->release
 * NULL: nothing more for now (cmq_store_wait_more, then go on), or, when *end_out, for good. CMQ_AGAIN: the
 * filters took tenths of a second, and no row passed them; call again, unless the user wants to stop. CMQ_ERR_CORRUPT
 * names the offset; rows before it came in earlier batches, and the next call continues behind it. */
cmq_status CMQ_MUST_CHECK cmq_scan_next(cmq_scan *scan, struct ArrowArray *array_out, bool *end_out);

/* Data that a scan skipped or changed. `offsets`: physical offsets of the first records that skip_corrupt passed over,
 * in the order of reading, at most CMQ_SCAN_SKIPPED_MAX. */
#define CMQ_SCAN_SKIPPED_MAX 1024u
typedef struct cmq_scan_skipped {
    uint64_t records;
    uint64_t invalid_texts;        /* strings that were no UTF-8 and were mended */
    uint64_t clamped_times;        /* times that calendars do not have in every zone, of which the nearest came: from
                                    * 0001-01-02 to 9999-12-30 */
    uint64_t expired;              /* messages in the scan's range that had expired (cmq_reader_expired) */
} cmq_scan_skipped;
void cmq_scan_skipped_of(const cmq_scan *scan, cmq_scan_skipped *skipped_out, int64_t *offsets, uint32_t capacity,
                         uint32_t *count_out);

#endif
