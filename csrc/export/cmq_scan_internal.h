/* cmq_scan_internal: the struct behind cmq_scan, for the files that together are the scanner:
 *
 *   cmq_scan.c           open, close, one batch after another
 *   cmq_scan_rows.c      from found records to rows: inner batches unfolded, bodies decompressed, what fits into a
 *                        batch
 *   cmq_scan_keys.c      found records by key
 *   cmq_scan_fed.c       records that are brought from elsewhere
 *   cmq_scan_columns.c   numbers and bodies, a column at a time over a block of rows
 *   cmq_scan_texts.c     texts, dictionaries and maps
 *   cmq_scan_memory.c    counted memory and growing buffers
 *   cmq_scan_arrays.c    a finished batch as ArrowArrays
 *   cmq_scan_schema.c    what each column is, and the schema
 */
#ifndef CMQ_SCAN_INTERNAL_H
#define CMQ_SCAN_INTERNAL_H

#include <stdatomic.h>

#include "export/cmq_scan.h"

/* Rows go through the columns in small blocks: while one is written, the heads of the next are on their way. */
#define CMQ_SCAN_BLOCK_ROWS 8u
/* Where long bodies are gathered: the copying is most of it, and goes better at a stretch. */
#define CMQ_SCAN_BLOCK_ROWS_MAX 128u
#define CMQ_SCAN_LONG_BODY_BYTES 400u
#define CMQ_SCAN_HOMES_MAX 64u
#define CMQ_SCAN_INLINE_BYTES 12u    /* a view holds so many bytes itself */
#define CMQ_SCAN_TEXT_BYTES_MAX (UINT32_C(1) << 30)   /* of one batch's texts, as offsets have 31 bits */

/* ---- memory (cmq_scan_memory.c) ---- */

/* Memory that batches gave back, for the next ones. */
typedef struct cmq_scan_pool cmq_scan_pool;
cmq_scan_pool *cmq_scan_pool_make(void);            /* NULL: no memory */
void cmq_scan_pool_close(cmq_scan_pool *pool);      /* memory that is out goes to the system when it comes back */

/* Memory that several may hold: a scan and its batches. On a line of its own, as Arrow recommends. */
typedef struct cmq_scan_memory {
    _Atomic int32_t references;
    cmq_scan_pool *pool;            /* NULL: of none */
    struct cmq_scan_memory *next;   /* in the pool, or in the scan's list of what its block may still point into */
    size_t capacity;
    size_t used;                    /* of decompressed bodies */
    _Alignas(64) uint8_t data[];
} cmq_scan_memory;

/* one reference; NULL: no memory, an error is set */
cmq_scan_memory *cmq_scan_memory_make(cmq_scan_pool *pool, size_t bytes);
cmq_scan_memory *cmq_scan_memory_keep(cmq_scan_memory *memory);
void cmq_scan_memory_drop(cmq_scan_memory *memory);

typedef struct cmq_scan_buffer {
    cmq_scan_memory *memory;  /* NULL: nothing yet */
    size_t used;
    cmq_scan_pool *pool;
} cmq_scan_buffer;

/* Room for `more` bytes behind `used`. Old memory that others hold stays unchanged. */
cmq_status CMQ_MUST_CHECK cmq_scan_buffer_grow(cmq_scan_buffer *buffer, size_t more);
static inline cmq_status CMQ_MUST_CHECK cmq_scan_buffer_reserve(cmq_scan_buffer *buffer, size_t more)
{
    if (buffer->memory != NULL && more <= buffer->memory->capacity - buffer->used) return CMQ_OK;
    return cmq_scan_buffer_grow(buffer, more);
}
static inline uint8_t *cmq_scan_buffer_end(const cmq_scan_buffer *buffer)
{
    return buffer->memory->data + buffer->used;
}
void cmq_scan_buffer_clear(cmq_scan_buffer *buffer);   /* gives the memory back */

/* ---- rows (cmq_scan_rows.c) ---- */

/* One message. Where it lies, and what an element of an inner batch has of its own. */
typedef struct cmq_scan_row {
    const uint8_t *record;
    const uint8_t *body;          /* as it is delivered */
    const uint8_t *topic;         /* NULL, as the properties: not read */
    const uint8_t *properties;
    cmq_scan_memory *memory;      /* that the body lies in; NULL: in the map */
    int64_t queue_offset;
    int64_t physical_offset;
    uint32_t record_bytes;
    uint32_t body_bytes;
    uint32_t stored_bytes;        /* the body's, as stored */
    uint32_t topic_bytes;
    uint32_t property_bytes;
    int32_t flag;
    int32_t sys_flag;
    uint32_t home;
} cmq_scan_row;

/* Memory that views of a batch point into: a segment's map, or decompressed bodies. */
typedef struct cmq_scan_home {
    const uint8_t *data;
    size_t bytes;
    const uint8_t *low, *high;    /* the part that the batch uses */
    cmq_segment *segment;         /* pinned, or … */
    cmq_scan_memory *memory;      /* … held */
} cmq_scan_home;

struct cmq_scan_room {
    struct cmq_scan *scan;
    uint8_t *data;
    size_t bytes;
};

/* An inner batch that is being unfolded. */
typedef struct cmq_scan_unfolding {
    bool active;
    cmq_scan_row record;          /* the fields that its messages share */
    cmq_slice rest;
    int32_t at, end;              /* numbers of messages in it; those below `skip` are passed over */
    int32_t skip;
} cmq_scan_unfolding;

/* ---- columns ---- */

typedef enum cmq_scan_shape {
    CMQ_SCAN_SHAPE_INT32,
    CMQ_SCAN_SHAPE_INT64,
    CMQ_SCAN_SHAPE_BYTES,         /* gathered bodies */
    CMQ_SCAN_SHAPE_VIEW,
    CMQ_SCAN_SHAPE_TEXT,
    CMQ_SCAN_SHAPE_DICTIONARY,
    CMQ_SCAN_SHAPE_MAP
} cmq_scan_shape;

typedef struct cmq_scan_strings {
    cmq_scan_buffer offsets;      /* int32, one more than there are strings */
    cmq_scan_buffer data;
} cmq_scan_strings;

typedef struct cmq_scan_dictionary cmq_scan_dictionary;

/* A column while a batch is being made. */
typedef struct cmq_scan_builder {
    cmq_scan_kind kind;
    cmq_scan_shape shape;
    bool micros;                  /* timestamps in microseconds */
    bool nullable;                /* nulls can occur */
    char *name;
    char *property;
    uint32_t property_bytes;
    int64_t null_count;
    cmq_scan_buffer validity;     /* bits */
    cmq_scan_buffer values;       /* numbers, views, codes; a map's offsets */
    cmq_scan_strings strings;     /* bytes and texts; a map's keys */
    cmq_scan_strings map_values;
    int64_t entries;              /* of the map */
    cmq_scan_dictionary *dictionary;
    size_t expected_values;       /* bytes of the batch before: the next is made in one piece */
    size_t expected_data;
} cmq_scan_builder;

/* Fed records that are not read yet. */
struct cmq_scan_fed {
    cmq_scan_piece *pieces;       /* a copy, whose `data` and `bytes` go on */
    uint32_t count, at;
};

struct cmq_scan {
    cmq_store *store;             /* NULL where records are fed */
    cmq_reader *reader;           /* NULL: by key, or fed */
    struct cmq_scan_places *places;
    struct cmq_scan_fed *fed;     /* NULL: of a store */
    cmq_slice *tags;              /* copied into tag_bytes; none: all. A reader looks at those of records, so here only
                                   * those inside of batches count */
    uint8_t *tag_bytes;
    uint32_t tag_count;
    cmq_slice *keys;              /* copied into key_bytes; rows without any of them are passed over */
    uint8_t *key_bytes;
    uint32_t key_count;
    const cmq_selector *where;    /* borrowed; NULL: none */

    cmq_scan_pool *pool;
    cmq_scan_builder *builders;
    uint32_t builder_count;
    bool reads_tails;             /* topic, properties or keys are wanted, or compared */
    bool reads_bodies;
    bool gathers, views;          /* bodies in plain form, as views */
    cmq_scan_builder *gatherer;   /* the first column of plain bodies: copied as rows are taken, while the memory's
                                   * stream of lines runs */
    uint32_t batch_rows, batch_bytes;
    uint32_t constant_bytes;      /* of all constants */
    uint32_t view_span_max;       /* of a variadic buffer; less in tests */
    uint32_t passed, passed_max;  /* rows that the filters and the search for keys passed over in this call, and the
                                   * work on `where` in such rows; a call pauses at passed_max */
    bool paused;                  /* … so many that the caller is let in between */
    int64_t rows_left;            /* of limit_rows */
    bool raw_bodies, check_crc, skip_corrupt;
    cmq_scan_decompress decompress;
    void *decompress_context;

    /* Found records that are being made rows. */
    cmq_found found_items[CMQ_SCAN_BLOCK_ROWS_MAX];
    cmq_found_batch found;
    uint32_t found_at;
    cmq_scan_unfolding unfolding;
    cmq_scan_memory *decompressed;   /* filled by the hook */
    cmq_scan_memory *full;           /* filled before, in the same block */
    cmq_scan_row held;               /* did not fit into the batch before */
    bool has_held;
    bool ended;

    cmq_scan_row block[CMQ_SCAN_BLOCK_ROWS_MAX];
    uint32_t block_count;
    uint32_t block_rows;          /* at most, in this batch */

    /* The batch that is being made. */
    uint32_t rows;
    uint64_t body_bytes;          /* gathered or decompressed */
    uint64_t text_bytes;          /* at most, after mending */
    cmq_scan_home homes[CMQ_SCAN_HOMES_MAX];
    uint32_t home_count;

    cmq_error waiting;            /* reported once the rows before it are out; status CMQ_OK: none */
    bool broken;                  /* memory ran out in the middle of a batch: `waiting` for ever */
    cmq_scan_skipped skipped;
    int64_t *skipped_offsets;
    uint32_t skipped_offset_count;

    uint8_t *mended;              /* scratch of cmq_scan_texts.c */
    size_t mended_capacity;
    struct cmq_scan_pairs *pairs; /* the same, for maps */
};

/* Fill the block with the next rows, `most` at most, that fit into the batch. *full_out: one was left for the next
 * batch. CMQ_OK; CMQ_AGAIN: nothing more for now; CMQ_END: for good; else a failure behind the rows. */
cmq_status CMQ_MUST_CHECK cmq_scan_fill_block(cmq_scan *scan, uint32_t most, bool *full_out);
void cmq_scan_release_homes(cmq_scan *scan);
void cmq_scan_release_full(cmq_scan *scan);   /* memory of blocks that are done with */

/* By key (cmq_scan_keys.c): leaves the scan with places, or with a reader where everything has to be read. */
cmq_status CMQ_MUST_CHECK cmq_scan_places_open(cmq_scan *scan, const cmq_scan_options *options);
void cmq_scan_places_close(cmq_scan *scan);
cmq_status CMQ_MUST_CHECK cmq_scan_places_next(cmq_scan *scan);   /* into scan->found; CMQ_END; CMQ_AGAIN as below */

/* CMQ_AGAIN: so many rows were passed over, or evaluated so long, that the caller is let in between. */
cmq_status CMQ_MUST_CHECK cmq_scan_let_in(cmq_scan *scan);
bool cmq_scan_has_key(const cmq_scan *scan, const cmq_scan_row *row);

/* Fed (cmq_scan_fed.c). */
cmq_status CMQ_MUST_CHECK cmq_scan_fed_make(cmq_scan *scan);
void cmq_scan_fed_free(cmq_scan *scan);
cmq_status CMQ_MUST_CHECK cmq_scan_fed_next(cmq_scan *scan);   /* into scan->found; CMQ_AGAIN: nothing is left */
bool cmq_scan_has_tag(const cmq_scan *scan, const cmq_scan_row *row);

/* Columns. */
cmq_status CMQ_MUST_CHECK cmq_scan_append_block(cmq_scan *scan, cmq_scan_builder *builder);
cmq_status CMQ_MUST_CHECK cmq_scan_append_body(cmq_scan_builder *builder, const cmq_scan_row *row);
cmq_status CMQ_MUST_CHECK cmq_scan_append_texts(cmq_scan *scan, cmq_scan_builder *builder);
cmq_status CMQ_MUST_CHECK cmq_scan_append_map(cmq_scan *scan, cmq_scan_builder *builder);
cmq_status CMQ_MUST_CHECK cmq_scan_dictionary_make(cmq_scan_dictionary **dictionary_out);
void cmq_scan_dictionary_free(cmq_scan_dictionary *dictionary);
const cmq_scan_strings *cmq_scan_dictionary_strings(const cmq_scan_dictionary *dictionary, int64_t *count_out);
void cmq_scan_pairs_free(struct cmq_scan_pairs *pairs);

/* cmq_scan_schema.c */
cmq_status CMQ_MUST_CHECK cmq_scan_builders_make(cmq_scan *scan, const cmq_scan_options *options);
void cmq_scan_builders_free(cmq_scan *scan);
void cmq_scan_builder_clear(cmq_scan_builder *builder);   /* of what a batch left */

/* The batch as an array, which owns its buffers and pins from then on; the builders and homes are empty after it
 * (cmq_scan_arrays.c). */
cmq_status CMQ_MUST_CHECK cmq_scan_finish_batch(cmq_scan *scan, struct ArrowArray *array_out);

static inline size_t cmq_scan_born_more(int32_t sys_flag)
{
    return (sys_flag & CMQ_SYS_BORN_HOST_IPV6) != 0 ? CMQ_RECORD_IPV6_MORE : 0;
}
static inline size_t cmq_scan_store_more(int32_t sys_flag)
{
    return (sys_flag & CMQ_SYS_STORE_HOST_IPV6) != 0 ? CMQ_RECORD_IPV6_MORE : 0;
}

#endif
