/* cmq_scan_schema: the columns of a scan: checked, kept, and exported as an ArrowSchema.
 *
 * Threads: one at a time per scan; a schema may be released by any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_utf8.h"
#include "export/cmq_scan_internal.h"

/* ---- the columns ---- */

typedef struct kind_facts {
    cmq_scan_shape shape;         /* in its first form */
    bool nullable;
    bool tail;                    /* lies behind the body */
    bool timestamp;
    bool dictionary;              /* may have that form */
} kind_facts;

static const kind_facts facts_of[CMQ_SCAN_KIND_COUNT] = {
    [CMQ_SCAN_TOPIC] = {.shape = CMQ_SCAN_SHAPE_TEXT, .dictionary = true},
    [CMQ_SCAN_QUEUE_ID] = {.shape = CMQ_SCAN_SHAPE_INT32},
    [CMQ_SCAN_QUEUE_OFFSET] = {.shape = CMQ_SCAN_SHAPE_INT64},
    [CMQ_SCAN_BODY] = {.shape = CMQ_SCAN_SHAPE_VIEW},
    [CMQ_SCAN_BODY_BYTES] = {.shape = CMQ_SCAN_SHAPE_INT64},
    [CMQ_SCAN_TAGS] = {.shape = CMQ_SCAN_SHAPE_TEXT, .nullable = true, .tail = true, .dictionary = true},
    [CMQ_SCAN_KEYS] = {.shape = CMQ_SCAN_SHAPE_TEXT, .nullable = true, .tail = true},
    [CMQ_SCAN_UNIQUE_ID] = {.shape = CMQ_SCAN_SHAPE_TEXT, .nullable = true, .tail = true},
    [CMQ_SCAN_BORN_TIMESTAMP] = {.shape = CMQ_SCAN_SHAPE_INT64, .timestamp = true},
    [CMQ_SCAN_STORE_TIMESTAMP] = {.shape = CMQ_SCAN_SHAPE_INT64, .timestamp = true},
    [CMQ_SCAN_PROPERTIES] = {.shape = CMQ_SCAN_SHAPE_MAP, .tail = true},
    [CMQ_SCAN_PROPERTY] = {.shape = CMQ_SCAN_SHAPE_TEXT, .nullable = true, .tail = true, .dictionary = true},
    [CMQ_SCAN_FLAG] = {.shape = CMQ_SCAN_SHAPE_INT32},
    [CMQ_SCAN_SYS_FLAG] = {.shape = CMQ_SCAN_SHAPE_INT32},
    [CMQ_SCAN_RECONSUME_TIMES] = {.shape = CMQ_SCAN_SHAPE_INT32},
    [CMQ_SCAN_MESSAGE_ID] = {.shape = CMQ_SCAN_SHAPE_TEXT},
    [CMQ_SCAN_PHYSICAL_OFFSET] = {.shape = CMQ_SCAN_SHAPE_INT64},
    [CMQ_SCAN_BORN_HOST] = {.shape = CMQ_SCAN_SHAPE_TEXT},
    [CMQ_SCAN_STORE_HOST] = {.shape = CMQ_SCAN_SHAPE_TEXT},
    [CMQ_SCAN_BODY_CRC] = {.shape = CMQ_SCAN_SHAPE_INT32},
    [CMQ_SCAN_PREPARED_OFFSET] = {.shape = CMQ_SCAN_SHAPE_INT64},
    [CMQ_SCAN_CONSTANT] = {.shape = CMQ_SCAN_SHAPE_TEXT},
};

static cmq_status set_form(cmq_scan_builder *builder, const cmq_scan_column *column)
{
    const kind_facts *facts = &facts_of[column->kind];
    builder->shape = facts->shape;
    switch (column->form) {
    case CMQ_SCAN_FORM_DEFAULT: return CMQ_OK;
    case CMQ_SCAN_FORM_VIEW:
        if (column->kind == CMQ_SCAN_BODY) return CMQ_OK;
        break;
    case CMQ_SCAN_FORM_PLAIN:
        if (column->kind == CMQ_SCAN_BODY) builder->shape = CMQ_SCAN_SHAPE_BYTES;
        if (!facts->timestamp) return CMQ_OK;
        break;
    case CMQ_SCAN_FORM_DICTIONARY:
        if (!facts->dictionary) break;
        builder->shape = CMQ_SCAN_SHAPE_DICTIONARY;
        return cmq_scan_dictionary_make(&builder->dictionary);
    case CMQ_SCAN_FORM_MS:
    case CMQ_SCAN_FORM_US:
        builder->micros = column->form == CMQ_SCAN_FORM_US;
        if (facts->timestamp) return CMQ_OK;
        break;
    }
    return cmq_fail(CMQ_ERR_ARGUMENT, "column %s cannot have form %d", column->name, (int)column->form);
}

static cmq_status make_builder(cmq_scan *scan, const cmq_scan_column *column, cmq_scan_builder *builder)
{
    if (column->name == NULL || !cmq_utf8_is_valid(cmq_slice_of_text(column->name)))
        return cmq_fail(CMQ_ERR_ARGUMENT, "a column needs a name of UTF-8");
    if ((unsigned)column->kind >= CMQ_SCAN_KIND_COUNT)
        return cmq_fail(CMQ_ERR_ARGUMENT, "column %s is of unknown kind %d", column->name, (int)column->kind);
    for (const cmq_scan_builder *before = scan->builders; before < builder; before++)
        if (strcmp(before->name, column->name) == 0)
            return cmq_fail(CMQ_ERR_ARGUMENT, "two columns have the name %s", column->name);
    const bool needs_property = column->kind == CMQ_SCAN_PROPERTY || column->kind == CMQ_SCAN_CONSTANT;
    if (needs_property &&
        (column->property == NULL || (column->kind == CMQ_SCAN_PROPERTY && column->property[0] == '\0')))
        return cmq_fail(CMQ_ERR_ARGUMENT, "column %s does not say of which property", column->name);
    if (column->kind == CMQ_SCAN_CONSTANT && !cmq_utf8_is_valid(cmq_slice_of_text(column->property)))
        return cmq_fail(CMQ_ERR_ARGUMENT, "the value of column %s is not UTF-8", column->name);
    builder->kind = column->kind;
    builder->validity.pool = builder->values.pool = builder->strings.offsets.pool = builder->strings.data.pool =
        scan->pool;
    builder->map_values.offsets.pool = builder->map_values.data.pool = scan->pool;
    builder->nullable = facts_of[column->kind].nullable;
    builder->name = strdup(column->name);
    builder->property = needs_property ? strdup(column->property) : NULL;
    if (builder->name == NULL || (needs_property && builder->property == NULL))
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for a column");
    if (needs_property) builder->property_bytes = (uint32_t)strlen(builder->property);
    if (column->kind == CMQ_SCAN_CONSTANT) scan->constant_bytes += builder->property_bytes;
    if (facts_of[column->kind].tail) scan->reads_tails = true;
    return set_form(builder, column);
}

cmq_status cmq_scan_builders_make(cmq_scan *scan, const cmq_scan_options *options)
{
    if (options->column_count == 0) return cmq_fail(CMQ_ERR_ARGUMENT, "a scan needs at least one column");
    if (options->column_count > CMQ_SCAN_COLUMNS_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "%u columns are more than %u", options->column_count, CMQ_SCAN_COLUMNS_MAX);
    scan->builders = calloc(options->column_count, sizeof *scan->builders);
    if (scan->builders == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for columns");
    for (uint32_t i = 0; i < options->column_count; i++) {
        scan->builder_count = i + 1;
        cmq_scan_builder *builder = &scan->builders[i];
        const cmq_status status = make_builder(scan, &options->columns[i], builder);
        if (status != CMQ_OK) return status;
        if (builder->kind != CMQ_SCAN_BODY) continue;
        scan->reads_bodies = true;
        if (builder->shape == CMQ_SCAN_SHAPE_VIEW) scan->views = true;
        else scan->gathers = true;
        if (builder->shape == CMQ_SCAN_SHAPE_BYTES && scan->gatherer == NULL) scan->gatherer = builder;
    }
    return CMQ_OK;
}

void cmq_scan_builder_clear(cmq_scan_builder *builder)
{
    cmq_scan_buffer_clear(&builder->validity);
    cmq_scan_buffer_clear(&builder->values);
    cmq_scan_buffer_clear(&builder->strings.offsets);
    cmq_scan_buffer_clear(&builder->strings.data);
    cmq_scan_buffer_clear(&builder->map_values.offsets);
    cmq_scan_buffer_clear(&builder->map_values.data);
    builder->null_count = builder->entries = 0;
}

void cmq_scan_builders_free(cmq_scan *scan)
{
    for (uint32_t i = 0; i < scan->builder_count; i++) {
        cmq_scan_builder *builder = &scan->builders[i];
        cmq_scan_builder_clear(builder);
        cmq_scan_dictionary_free(builder->dictionary);
        free(builder->name);
        free(builder->property);
    }
    free(scan->builders);
}

/* ---- the schema ---- */

/* All nodes of one schema. A consumer may move children out of it, so that each node that is not released holds the
 * whole. */
typedef struct schema_pack {
    _Atomic int32_t references;
    char *names;
    size_t names_used;
    struct ArrowSchema *nodes;
    struct ArrowSchema **pointers;
    uint32_t node_count, pointer_count;
} schema_pack;

static void drop_pack(schema_pack *pack)
{
    if (atomic_fetch_sub_explicit(&pack->references, 1, memory_order_acq_rel) == 1) free(pack);
}

static void release_schema(struct ArrowSchema *schema)
{
    for (int64_t i = 0; i < schema->n_children; i++)
        if (schema->children[i]->release != NULL) schema->children[i]->release(schema->children[i]);
    if (schema->dictionary != NULL && schema->dictionary->release != NULL)
        schema->dictionary->release(schema->dictionary);
    schema->release = NULL;
    drop_pack(schema->private_data);
}

static void set_node(schema_pack *pack, struct ArrowSchema *node, const char *format, const char *name, bool nullable,
                     uint32_t children)
{
    *node = (struct ArrowSchema){.format = format,
                                 .name = name,
                                 .flags = nullable ? ARROW_FLAG_NULLABLE : 0,
                                 .n_children = children,
                                 .release = release_schema,
                                 .private_data = pack};
    if (children > 0) node->children = pack->pointers + pack->pointer_count;
    pack->pointer_count += children;
    atomic_fetch_add_explicit(&pack->references, 1, memory_order_relaxed);
}

static struct ArrowSchema *add_node(schema_pack *pack, const char *format, const char *name, bool nullable,
                                    uint32_t children)
{
    struct ArrowSchema *node = &pack->nodes[pack->node_count++];
    set_node(pack, node, format, name, nullable, children);
    return node;
}

static const char *format_of(const cmq_scan_builder *builder)
{
    switch (builder->shape) {
    case CMQ_SCAN_SHAPE_INT32: return "i";
    case CMQ_SCAN_SHAPE_INT64:
        return !facts_of[builder->kind].timestamp ? "l" : builder->micros ? "tsu:UTC" : "tsm:UTC";
    case CMQ_SCAN_SHAPE_BYTES: return "z";
    case CMQ_SCAN_SHAPE_VIEW: return "vz";
    case CMQ_SCAN_SHAPE_TEXT: return "u";
    case CMQ_SCAN_SHAPE_DICTIONARY: return "i";
    case CMQ_SCAN_SHAPE_MAP: return "+m";
    }
    return "n";
}

static struct ArrowSchema *add_column(schema_pack *pack, const cmq_scan_builder *builder)
{
    const size_t name_bytes = strlen(builder->name) + 1;
    char *name = memcpy(pack->names + pack->names_used, builder->name, name_bytes);
    pack->names_used += name_bytes;
    struct ArrowSchema *node =
        add_node(pack, format_of(builder), name, true, builder->shape == CMQ_SCAN_SHAPE_MAP ? 1 : 0);
    if (builder->shape == CMQ_SCAN_SHAPE_DICTIONARY) node->dictionary = add_node(pack, "u", "", true, 0);
    if (builder->shape == CMQ_SCAN_SHAPE_MAP) {
        struct ArrowSchema *entries = add_node(pack, "+s", "entries", false, 2);
        node->children[0] = entries;
        entries->children[0] = add_node(pack, "u", "key", false, 0);
        entries->children[1] = add_node(pack, "u", "value", true, 0);
    }
    return node;
}

cmq_status cmq_scan_schema(const cmq_scan *scan, struct ArrowSchema *schema_out)
{
    *schema_out = (struct ArrowSchema){0};
    const size_t nodes = (size_t)scan->builder_count * 4, pointers = (size_t)scan->builder_count * 4;
    size_t name_bytes = 0;
    for (uint32_t i = 0; i < scan->builder_count; i++) name_bytes += strlen(scan->builders[i].name) + 1;
    schema_pack *pack = calloc(1, sizeof *pack + nodes * sizeof(struct ArrowSchema) +
                                      pointers * sizeof(struct ArrowSchema *) + name_bytes);
    if (pack == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a schema");
    pack->nodes = (struct ArrowSchema *)(pack + 1);
    pack->pointers = (struct ArrowSchema **)(pack->nodes + nodes);
    pack->names = (char *)(pack->pointers + pointers);
    set_node(pack, schema_out, "+s", "", false, scan->builder_count);
    for (uint32_t i = 0; i < scan->builder_count; i++) schema_out->children[i] = add_column(pack, &scan->builders[i]);
    return CMQ_OK;
}
