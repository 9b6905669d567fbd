/* cmq_scan_arrays: a finished batch as ArrowArrays that own their memory and pins.
 *
 * Owns:      per batch one pack: the arrays' nodes, references to every buffer, and the pins of segments that views
 *            point into.
 * Invariant: a consumer may move children out of the array and release them apart, in any order and thread: every node
 *            that is not released holds the pack, the last one frees it. The pack knows nothing of scan and store,
 *            which may be gone.
 * Threads:   release from any thread.
 * Source:    Arrow's C data interface: "Moving an array", "Release callback semantics"; variadic buffers of binary
 *            views.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "export/cmq_scan_internal.h"

#define MEMORIES_PER_COLUMN 7u
#define NODES_PER_COLUMN 4u
#define BUFFERS_PER_COLUMN 10u   /* of a map with its entries, keys and values; of a view without the variadic ones */

typedef struct pack {
    _Atomic int32_t references;
    uint32_t node_count, pointer_count, buffer_count, memory_count, pin_count;
    struct ArrowArray *nodes;
    struct ArrowArray **pointers;
    const void **buffers;
    cmq_scan_memory **memories;
    cmq_segment *pins[CMQ_SCAN_HOMES_MAX];
    int64_t variadic_bytes[CMQ_SCAN_HOMES_MAX + 1];
} pack;

/* Stands for a buffer of no bytes: some consumers expect an address. */
static const uint64_t nothing[8];

static void drop_pack(pack *held)
{
    if (atomic_fetch_sub_explicit(&held->references, 1, memory_order_acq_rel) != 1) return;
    for (uint32_t i = 0; i < held->memory_count; i++) cmq_scan_memory_drop(held->memories[i]);
    for (uint32_t i = 0; i < held->pin_count; i++) cmq_segment_unpin(held->pins[i]);
    free(held);
}

static void release_array(struct ArrowArray *array)
{
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release != NULL) array->children[i]->release(array->children[i]);
    if (array->dictionary != NULL && array->dictionary->release != NULL) array->dictionary->release(array->dictionary);
    array->release = NULL;
    drop_pack(array->private_data);
}

static pack *make_pack(const cmq_scan *scan)
{
    const size_t columns = scan->builder_count, nodes = columns * NODES_PER_COLUMN, pointers = columns * 4;
    const size_t buffers = 1 + columns * BUFFERS_PER_COLUMN + columns * scan->home_count,
                 memories = columns * MEMORIES_PER_COLUMN + scan->home_count;
    pack *made =
        calloc(1, sizeof *made + nodes * sizeof(struct ArrowArray) + (pointers + buffers + memories) * sizeof(void *));
    if (made == NULL) return NULL;
    made->nodes = (struct ArrowArray *)(made + 1);
    made->pointers = (struct ArrowArray **)(made->nodes + nodes);
    made->buffers = (const void **)(made->pointers + pointers);
    made->memories = (cmq_scan_memory **)(made->buffers + buffers);
    return made;
}

static void set_node(pack *into, struct ArrowArray *node, int64_t length, int64_t nulls, uint32_t buffers,
                     uint32_t children)
{
    *node = (struct ArrowArray){.length = length,
                                .null_count = nulls,
                                .n_buffers = buffers,
                                .n_children = children,
                                .buffers = into->buffers + into->buffer_count,
                                .release = release_array,
                                .private_data = into};
    if (children > 0) node->children = into->pointers + into->pointer_count;
    into->buffer_count += buffers;
    into->pointer_count += children;
    atomic_fetch_add_explicit(&into->references, 1, memory_order_relaxed);
}

static struct ArrowArray *add_node(pack *into, int64_t length, int64_t nulls, uint32_t buffers, uint32_t children)
{
    struct ArrowArray *node = &into->nodes[into->node_count++];
    set_node(into, node, length, nulls, buffers, children);
    return node;
}

/* The buffer's memory is the pack's now. */
static const void *take(pack *into, cmq_scan_buffer *buffer)
{
    if (buffer->memory == NULL) return nothing;
    const void *data = buffer->memory->data;
    into->memories[into->memory_count++] = buffer->memory;
    buffer->memory = NULL;
    buffer->used = 0;
    return data;
}

/* The memory is the pack's too. */
static const void *share(pack *into, const cmq_scan_buffer *buffer)
{
    if (buffer->memory == NULL) return nothing;
    into->memories[into->memory_count++] = cmq_scan_memory_keep(buffer->memory);
    return buffer->memory->data;
}

static struct ArrowArray *add_strings(pack *into, cmq_scan_strings *strings, int64_t length, int64_t nulls)
{
    struct ArrowArray *node = add_node(into, length, nulls, 3, 0);
    node->buffers[1] = take(into, &strings->offsets);
    node->buffers[2] = take(into, &strings->data);
    return node;
}

static void add_dictionary(pack *into, struct ArrowArray *codes, const cmq_scan_dictionary *dictionary)
{
    int64_t count;
    const cmq_scan_strings *strings = cmq_scan_dictionary_strings(dictionary, &count);
    struct ArrowArray *node = add_node(into, count, 0, 3, 0);
    node->buffers[1] = share(into, &strings->offsets);
    node->buffers[2] = share(into, &strings->data);
    codes->dictionary = node;
}

static struct ArrowArray *add_map(pack *into, cmq_scan_builder *builder, int64_t rows)
{
    struct ArrowArray *map = add_node(into, rows, 0, 2, 1);
    struct ArrowArray *entries = add_node(into, builder->entries, 0, 1, 2);
    map->buffers[1] = take(into, &builder->values);
    map->children[0] = entries;
    entries->children[0] = add_strings(into, &builder->strings, builder->entries, 0);
    entries->children[1] = add_strings(into, &builder->map_values, builder->entries, 0);
    return map;
}

static struct ArrowArray *add_views(pack *into, cmq_scan_builder *builder, const cmq_scan *scan)
{
    struct ArrowArray *node = add_node(into, scan->rows, 0, 3 + scan->home_count, 0);
    node->buffers[1] = take(into, &builder->values);
    for (uint32_t i = 0; i < scan->home_count; i++) node->buffers[2 + i] = scan->homes[i].low;
    node->buffers[2 + scan->home_count] = into->variadic_bytes;
    return node;
}

static struct ArrowArray *add_column(pack *into, cmq_scan_builder *builder, const cmq_scan *scan)
{
    struct ArrowArray *node;
    switch (builder->shape) {
    case CMQ_SCAN_SHAPE_VIEW: return add_views(into, builder, scan);
    case CMQ_SCAN_SHAPE_MAP: return add_map(into, builder, scan->rows);
    case CMQ_SCAN_SHAPE_BYTES:
    case CMQ_SCAN_SHAPE_TEXT: node = add_strings(into, &builder->strings, scan->rows, builder->null_count); break;
    case CMQ_SCAN_SHAPE_INT32:
    case CMQ_SCAN_SHAPE_INT64:
    case CMQ_SCAN_SHAPE_DICTIONARY:
    default:
        node = add_node(into, scan->rows, builder->null_count, 2, 0);
        node->buffers[1] = take(into, &builder->values);
        if (builder->shape == CMQ_SCAN_SHAPE_DICTIONARY) add_dictionary(into, node, builder->dictionary);
        break;
    }
    if (builder->null_count > 0) node->buffers[0] = take(into, &builder->validity);
    return node;
}

cmq_status cmq_scan_finish_batch(cmq_scan *scan, struct ArrowArray *array_out)
{
    pack *made = make_pack(scan);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a batch");
    set_node(made, array_out, scan->rows, 0, 1, scan->builder_count);
    for (uint32_t i = 0; i < scan->builder_count; i++) {
        array_out->children[i] = add_column(made, &scan->builders[i], scan);
        cmq_scan_builder_clear(&scan->builders[i]);
    }
    for (uint32_t i = 0; i < scan->home_count; i++) {
        cmq_scan_home *home = &scan->homes[i];
        made->variadic_bytes[i] = home->high - home->low;
        if (home->segment != NULL) made->pins[made->pin_count++] = home->segment;
        if (home->memory != NULL) made->memories[made->memory_count++] = home->memory;
    }
    scan->home_count = 0;
    return CMQ_OK;
}
