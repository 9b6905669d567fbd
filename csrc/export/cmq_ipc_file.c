/* cmq_ipc_file: see cmq_ipc_file.h.
 *
 * Metadata are flatbuffers, written front to back: a table's fields that name a place further on are filled in when
 * that place is known.
 */
#include "export/cmq_ipc_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"

#define MAGIC "ARROW1"
#define MAGIC_BYTES 6u
#define CONTINUATION UINT32_C(0xFFFFFFFF)
#define VERSION_5 4
#define HEADER_SCHEMA 1
#define HEADER_RECORD_BATCH 3
#define TYPE_INT 2
#define TYPE_BINARY 4
#define TYPE_UTF8 5
#define FIELDS_MAX 16u /* of a table */

typedef struct block {
    int64_t offset;
    int32_t metadata_bytes;
    int32_t unused;
    int64_t body_bytes;
} block;

typedef struct buffer_place {
    int64_t offset, bytes;
} buffer_place;

typedef struct node {
    int64_t rows, nulls;
} node;

struct cmq_ipc_file {
    cmq_file *file;
    uint64_t bytes;
    uint32_t crc;
    block *blocks;
    uint32_t block_count, block_room;
    uint32_t field_count;
    cmq_ipc_field fields[];
};

/* ---- a flatbuffer ---- */

typedef struct flat {
    uint8_t *at;
    size_t used, room;
    bool failed; /* no memory: later writes do nothing */
} flat;

static bool make_room(flat *into, size_t bytes)
{
    if (into->failed) return false;
    if (bytes <= into->room - into->used) return true;
    const size_t room = 2 * (into->used + bytes) + 256;
    uint8_t *grown = realloc(into->at, room);
    into->failed = grown == NULL;
    if (into->failed) return false;
    into->at = grown;
    into->room = room;
    return true;
}

/* Append bytes, or zeros where `data` is NULL; returns their place. */
static size_t put(flat *into, const void *data, size_t bytes)
{
    const size_t place = into->used;
    if (!make_room(into, bytes)) return 0;
    if (data == NULL)
        memset(into->at + place, 0, bytes);
    else if (bytes > 0)
        memcpy(into->at + place, data, bytes);
    into->used += bytes;
    return place;
}

/* Zeros until the next place has this remainder. */
static void align(flat *into, size_t multiple, size_t remainder)
{
    while (into->used % multiple != remainder && !into->failed) put(into, NULL, 1);
}

static void set(flat *into, size_t place, const void *value, size_t bytes)
{
    if (!into->failed) memcpy(into->at + place, value, bytes);
}

static void set_u8(flat *into, size_t place, uint8_t value) { set(into, place, &value, sizeof value); }
static void set_u16(flat *into, size_t place, uint16_t value) { set(into, place, &value, sizeof value); }
static void set_u32(flat *into, size_t place, uint32_t value) { set(into, place, &value, sizeof value); }
static void set_i64(flat *into, size_t place, int64_t value) { set(into, place, &value, sizeof value); }

/* The field at `place` names what lies at `target`, further on. */
static void set_link(flat *into, size_t place, size_t target) { set_u32(into, place, (uint32_t)(target - place)); }

/* A table with fields of these sizes (0: left out), all zero yet; their places go to `places`. Returns the table's. */
static size_t put_table(flat *into, const uint8_t *sizes, size_t count, size_t *places)
{
    for (size_t i = 0; i < count; i++) places[i] = 0;
    align(into, 2, 0);
    const size_t vtable = put(into, NULL, 4 + 2 * count);
    align(into, 8, 4);
    const size_t table = put(into, NULL, 4);
    for (size_t size = 8; size > 0; size /= 2) /* largest first: each is aligned then */
        for (size_t i = 0; i < count; i++)
            if (sizes[i] == size) places[i] = put(into, NULL, size);
    set_u32(into, table, (uint32_t)(table - vtable));
    set_u16(into, vtable, (uint16_t)(4 + 2 * count));
    set_u16(into, vtable + 2, (uint16_t)(into->used - table));
    for (size_t i = 0; i < count; i++)
        if (sizes[i] != 0) set_u16(into, vtable + 4 + 2 * i, (uint16_t)(places[i] - table));
    return table;
}

/* A vector of structs with 64-bit members, or of links with `bytes` 4. Returns its place, 4 before the elements. */
static size_t put_vector(flat *into, const void *elements, uint32_t count, size_t bytes)
{
    align(into, 8, 4);
    const size_t vector = put(into, &count, sizeof count);
    put(into, elements, count * bytes);
    return vector;
}

static size_t put_text(flat *into, const char *text)
{
    align(into, 4, 0);
    const uint32_t bytes = (uint32_t)strlen(text);
    const size_t place = put(into, &bytes, sizeof bytes);
    put(into, text, bytes + 1);
    return place;
}

/* ---- Arrow's tables; numbers of fields are those of its schema files ---- */

static size_t put_type(flat *into, cmq_ipc_type type)
{
    size_t places[2];
    if (type != CMQ_IPC_INT32) return put_table(into, NULL, 0, places);
    const size_t table = put_table(into, (const uint8_t[]){4, 1}, 2, places);
    set_u32(into, places[0], 32);
    set_u8(into, places[1], 1); /* signed */
    return table;
}

static size_t put_field(flat *into, const cmq_ipc_field *field)
{
    /* name, nullable, kind of type, type, dictionary, children */
    static const uint8_t sizes[] = {4, 1, 1, 4, 0, 4};
    static const uint8_t types[] = {
        [CMQ_IPC_BINARY] = TYPE_BINARY, [CMQ_IPC_TEXT] = TYPE_UTF8, [CMQ_IPC_INT32] = TYPE_INT};
    size_t places[6];
    const size_t table = put_table(into, sizes, 6, places);
    set_u8(into, places[1], 1);
    set_u8(into, places[2], types[field->type]);
    set_link(into, places[0], put_text(into, field->name));
    set_link(into, places[3], put_type(into, field->type));
    set_link(into, places[5], put_vector(into, NULL, 0, 4));
    return table;
}

static size_t put_schema(flat *into, const cmq_ipc_file *file)
{
    size_t places[2];
    const size_t table = put_table(into, (const uint8_t[]){2, 4}, 2, places); /* endianness (0: little), fields */
    const size_t vector = put_vector(into, NULL, file->field_count, 4);
    set_link(into, places[1], vector);
    for (uint32_t i = 0; i < file->field_count; i++)
        set_link(into, vector + 4 + 4 * (size_t)i, put_field(into, &file->fields[i]));
    return table;
}

/* A message around a header, which the caller puts and links to the place returned. */
static size_t begin_message(flat *into, uint8_t header, int64_t body_bytes)
{
    static const uint8_t sizes[] = {2, 1, 4, 8}; /* version, kind of header, header, bytes of the body */
    size_t places[4];
    const size_t root = put(into, NULL, 4);
    set_link(into, root, put_table(into, sizes, 4, places));
    set_u16(into, places[0], VERSION_5);
    set_u8(into, places[1], header);
    set_i64(into, places[3], body_bytes);
    return places[2];
}

static void put_footer(flat *into, const cmq_ipc_file *file)
{
    static const uint8_t sizes[] = {2, 4, 4, 4}; /* version, schema, dictionaries, record batches */
    size_t places[4];
    const size_t root = put(into, NULL, 4);
    set_link(into, root, put_table(into, sizes, 4, places));
    set_u16(into, places[0], VERSION_5);
    set_link(into, places[1], put_schema(into, file));
    set_link(into, places[2], put_vector(into, NULL, 0, sizeof(block)));
    set_link(into, places[3], put_vector(into, file->blocks, file->block_count, sizeof(block)));
}

/* ---- the file ---- */

static cmq_status write_bytes(cmq_ipc_file *file, const void *data, size_t bytes)
{
    if (bytes == 0) return CMQ_OK;
    const cmq_status status = cmq_file_write(file->file, file->bytes, data, bytes);
    file->bytes += bytes;
    file->crc = cmq_crc32_extend(file->crc, data, bytes);
    return status;
}

static size_t padding_of(size_t bytes) { return (8 - bytes % 8) % 8; }

static cmq_status write_padded(cmq_ipc_file *file, const void *data, size_t bytes)
{
    static const uint8_t zeros[8];
    const cmq_status status = write_bytes(file, data, bytes);
    return status != CMQ_OK ? status : write_bytes(file, zeros, padding_of(bytes));
}

/* Write the metadata of a message, whose body may follow, and free them. */
static cmq_status write_message(cmq_ipc_file *file, flat *metadata)
{
    align(metadata, 8, 0);
    cmq_status status =
        metadata->failed ? cmq_fail(CMQ_ERR_MEMORY, "no memory for the head of an Arrow batch") : CMQ_OK;
    const uint32_t prefix[2] = {CONTINUATION, (uint32_t)metadata->used};
    if (status == CMQ_OK) status = write_bytes(file, prefix, sizeof prefix);
    if (status == CMQ_OK) status = write_bytes(file, metadata->at, metadata->used);
    free(metadata->at);
    return status;
}

static cmq_status write_schema(cmq_ipc_file *file)
{
    flat metadata = {0};
    const size_t header = begin_message(&metadata, HEADER_SCHEMA, 0);
    set_link(&metadata, header, put_schema(&metadata, file));
    const cmq_status status = write_padded(file, MAGIC, MAGIC_BYTES);
    if (status == CMQ_OK) return write_message(file, &metadata);
    free(metadata.at);
    return status;
}

cmq_status cmq_ipc_file_create(cmq_fs *fs, const char *path, const cmq_ipc_field *fields, uint32_t count,
                               cmq_ipc_file **file_out)
{
    *file_out = NULL;
    if (count == 0 || count > FIELDS_MAX) return cmq_fail(CMQ_ERR_ARGUMENT, "a file of 1 to %u columns", FIELDS_MAX);
    cmq_ipc_file *file = calloc(1, sizeof *file + count * sizeof *fields);
    if (file == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for an Arrow file");
    file->field_count = count;
    memcpy(file->fields, fields, count * sizeof *fields);
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_CREATE_NEW, &file->file);
    const bool is_made = status == CMQ_OK;
    if (status == CMQ_OK) status = write_schema(file);
    if (status == CMQ_OK) {
        *file_out = file;
        return CMQ_OK;
    }
    cmq_ipc_file_close(file);
    if (is_made) {
        /* Where it cannot be removed, it is the caller's folder that ends it. */
        const cmq_status removed = cmq_fs_remove(fs, path);
        (void)removed;
    }
    return status;
}

static cmq_status note_block(cmq_ipc_file *file, const block *noted)
{
    if (file->block_count == file->block_room) {
        const uint32_t room = 2 * file->block_room + 8;
        block *grown = realloc(file->blocks, room * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the places of Arrow batches");
        file->blocks = grown;
        file->block_room = room;
    }
    file->blocks[file->block_count++] = *noted;
    return CMQ_OK;
}

typedef struct piece {
    const void *data;
    size_t bytes;
} piece;

/* A column's buffers in Arrow's order; returns their number. */
static uint32_t pieces_of(cmq_ipc_type type, uint32_t rows, const cmq_ipc_column *column, piece into[3])
{
    into[0] = (piece){column->validity, column->null_count > 0 ? (rows + 7u) / 8u : 0};
    into[1] = (piece){column->numbers, (rows + (type != CMQ_IPC_INT32)) * sizeof *column->numbers};
    if (type == CMQ_IPC_INT32) return 2;
    into[2] = (piece){column->data, (size_t)column->numbers[rows]};
    return 3;
}

cmq_status cmq_ipc_file_append(cmq_ipc_file *file, uint32_t rows, const cmq_ipc_column *columns)
{
    static const uint8_t sizes[] = {8, 4, 4}; /* rows, nodes, buffers */
    piece pieces[3 * FIELDS_MAX];
    buffer_place buffers[3 * FIELDS_MAX];
    node nodes[FIELDS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < file->field_count; i++) {
        nodes[i] = (node){rows, columns[i].null_count};
        count += pieces_of(file->fields[i].type, rows, &columns[i], pieces + count);
    }
    int64_t body_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        buffers[i] = (buffer_place){body_bytes, (int64_t)pieces[i].bytes};
        body_bytes += (int64_t)(pieces[i].bytes + padding_of(pieces[i].bytes));
    }
    flat metadata = {0};
    size_t places[3];
    const size_t header = begin_message(&metadata, HEADER_RECORD_BATCH, body_bytes);
    set_link(&metadata, header, put_table(&metadata, sizes, 3, places));
    set_i64(&metadata, places[0], rows);
    set_link(&metadata, places[1], put_vector(&metadata, nodes, file->field_count, sizeof *nodes));
    set_link(&metadata, places[2], put_vector(&metadata, buffers, count, sizeof *buffers));

    block noted = {.offset = (int64_t)file->bytes, .body_bytes = body_bytes};
    cmq_status status = write_message(file, &metadata);
    noted.metadata_bytes = (int32_t)((int64_t)file->bytes - noted.offset);
    if (status == CMQ_OK) status = note_block(file, &noted);
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++)
        status = write_padded(file, pieces[i].data, pieces[i].bytes);
    return status;
}

cmq_status cmq_ipc_file_finish(cmq_ipc_file *file, uint64_t *bytes_out, uint32_t *crc_out)
{
    static const uint32_t end_of_stream[2] = {CONTINUATION, 0};
    flat footer = {0};
    put_footer(&footer, file);
    const uint32_t footer_bytes = (uint32_t)footer.used;
    cmq_status status = footer.failed ? cmq_fail(CMQ_ERR_MEMORY, "no memory for the foot of an Arrow file") : CMQ_OK;
    if (status == CMQ_OK) status = write_bytes(file, end_of_stream, sizeof end_of_stream);
    if (status == CMQ_OK) status = write_bytes(file, footer.at, footer.used);
    if (status == CMQ_OK) status = write_bytes(file, &footer_bytes, sizeof footer_bytes);
    if (status == CMQ_OK) status = write_bytes(file, MAGIC, MAGIC_BYTES);
    if (status == CMQ_OK) status = cmq_file_sync(file->file);
    free(footer.at);
    *bytes_out = file->bytes;
    *crc_out = file->crc;
    return status;
}

void cmq_ipc_file_close(cmq_ipc_file *file)
{
    if (file == NULL) return;
    cmq_file_close(file->file);
    free(file->blocks);
    free(file);
}
