/* cmq_scan_texts: columns of text: topic, tags, keys, properties, hosts and ids; plain, as dictionaries, and as maps.
 *
 * Invariant: texts are written as UTF-8: the log's bytes if they are valid, else mended, and counted. Almost every text
 *            is ASCII, so that is checked first.
 * Way:       a block's texts are found first, then copied, so that room is made once per block.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_utf8.h"
#include "export/cmq_scan_internal.h"
#include "store/record/cmq_message_id.h"
#include "store/record/cmq_property.h"

#define FORMATTED_BYTES 64u           /* a host with its port, or a message id */
_Static_assert(FORMATTED_BYTES >= CMQ_MESSAGE_ID_BYTES_MAX && FORMATTED_BYTES >= INET6_ADDRSTRLEN + 14,
               "room for both");
#define PAIRS_MAX (CMQ_PROPERTY_BYTES_MAX / 4 + 1)   /* the shortest pair is a name, 0x01, a value, 0x02 */
#define PAIR_SLOTS 16384u
#define PAIRS_COMPARED 16u            /* with more pairs equal names are found by hash */

/* ---- mending ---- */

static cmq_status mend(cmq_scan *scan, cmq_slice text, cmq_slice *mended_out)
{
    const size_t most = cmq_utf8_mended_max(text.bytes);
    if (scan->mended_capacity < most) {
        uint8_t *grown = realloc(scan->mended, most);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a text");
        scan->mended = grown;
        scan->mended_capacity = most;
    }
    scan->skipped.invalid_texts++;
    *mended_out = (cmq_slice){.data = scan->mended, .bytes = cmq_utf8_mend(text, scan->mended)};
    return CMQ_OK;
}

/* The text itself, or what it is mended to: valid until the next one. */
static inline cmq_status as_utf8(cmq_scan *scan, cmq_slice *text)
{
    if (cmq_utf8_is_ascii(text->data, text->bytes) || cmq_utf8_is_valid(*text)) return CMQ_OK;
    return mend(scan, *text, text);
}

/* ---- strings ---- */

static cmq_status CMQ_MUST_CHECK begin_strings(cmq_scan_strings *strings, uint32_t more)
{
    const bool first = strings->offsets.used == 0;
    const cmq_status status = cmq_scan_buffer_reserve(&strings->offsets, ((size_t)more + first) * sizeof(int32_t));
    if (status != CMQ_OK || !first) return status;
    memset(cmq_scan_buffer_end(&strings->offsets), 0, sizeof(int32_t));
    strings->offsets.used = sizeof(int32_t);
    return CMQ_OK;
}

/* Room for the offset was made. */
static inline cmq_status add_string(cmq_scan *scan, cmq_scan_strings *strings, cmq_slice text)
{
    cmq_status status = CMQ_OK;
    if (text.bytes > 0) {
        status = as_utf8(scan, &text);
        if (status == CMQ_OK) status = cmq_scan_buffer_reserve(&strings->data, text.bytes);
        if (status != CMQ_OK) return status;
        memcpy(cmq_scan_buffer_end(&strings->data), text.data, text.bytes);
        strings->data.used += text.bytes;
    }
    const int32_t end = (int32_t)strings->data.used;
    memcpy(cmq_scan_buffer_end(&strings->offsets), &end, sizeof end);
    strings->offsets.used += sizeof end;
    return CMQ_OK;
}

/* ---- dictionaries ---- */

/* Texts numbered in the order in which they came. Batches share its memory: it only grows behind what they know. */
struct cmq_scan_dictionary {
    cmq_scan_strings strings;
    uint32_t *slots;              /* code + 1; 0: free */
    uint32_t slot_count;          /* a power of two, above twice the texts */
    uint32_t count;
    int32_t last;                 /* the code that was given last */
};

cmq_status cmq_scan_dictionary_make(cmq_scan_dictionary **dictionary_out)
{
    cmq_scan_dictionary *made = *dictionary_out = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a dictionary");
    made->slot_count = 64;
    made->slots = calloc(made->slot_count, sizeof *made->slots);
    if (made->slots == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a dictionary");
    return begin_strings(&made->strings, 1);
}

void cmq_scan_dictionary_free(cmq_scan_dictionary *dictionary)
{
    if (dictionary == NULL) return;
    cmq_scan_buffer_clear(&dictionary->strings.offsets);
    cmq_scan_buffer_clear(&dictionary->strings.data);
    free(dictionary->slots);
    free(dictionary);
}

const cmq_scan_strings *cmq_scan_dictionary_strings(const cmq_scan_dictionary *dictionary, int64_t *count_out)
{
    *count_out = dictionary->count;
    return &dictionary->strings;
}

static inline cmq_slice text_at(const cmq_scan_dictionary *dictionary, uint32_t code)
{
    const int32_t *offsets = (const int32_t *)(const void *)dictionary->strings.offsets.memory->data;
    if (offsets[code + 1] == 0) return CMQ_SLICE_NONE;
    return (cmq_slice){.data = dictionary->strings.data.memory->data + offsets[code],
                       .bytes = (size_t)(offsets[code + 1] - offsets[code])};
}

static uint32_t hash_text(cmq_slice text)
{
    uint64_t hash = text.bytes, word;
    size_t at = 0;
    for (; text.bytes - at >= 8; at += 8) {
        memcpy(&word, text.data + at, sizeof word);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    word = 0;
    if (text.bytes > at) memcpy(&word, text.data + at, text.bytes - at);
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(hash >> 32);
}

static uint32_t *slot_of(const cmq_scan_dictionary *dictionary, cmq_slice text)
{
    uint32_t at = hash_text(text) & (dictionary->slot_count - 1);
    while (dictionary->slots[at] != 0 && !cmq_slice_equal(text_at(dictionary, dictionary->slots[at] - 1), text))
        at = (at + 1) & (dictionary->slot_count - 1);
    return &dictionary->slots[at];
}

static cmq_status grow_slots(cmq_scan_dictionary *dictionary)
{
    uint32_t *slots = calloc((size_t)dictionary->slot_count * 4, sizeof *slots);
    if (slots == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a dictionary of %u texts", dictionary->count);
    free(dictionary->slots);
    dictionary->slots = slots;
    dictionary->slot_count *= 4;
    for (uint32_t code = 0; code < dictionary->count; code++)
        *slot_of(dictionary, text_at(dictionary, code)) = code + 1;
    return CMQ_OK;
}

static cmq_status add_text(cmq_scan *scan, cmq_scan_dictionary *dictionary, cmq_slice text, uint32_t *slot)
{
    if (dictionary->count == INT32_MAX / 2 || dictionary->strings.data.used + text.bytes > INT32_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "too many different texts for a dictionary; read the column in plain form");
    *slot = dictionary->count + 1;
    cmq_status status = begin_strings(&dictionary->strings, 1);
    if (status == CMQ_OK) status = add_string(scan, &dictionary->strings, text);
    if (status != CMQ_OK) return status;
    dictionary->count++;
    return dictionary->count > dictionary->slot_count / 2 ? grow_slots(dictionary) : CMQ_OK;
}

static inline cmq_status code_of(cmq_scan *scan, cmq_scan_dictionary *dictionary, cmq_slice text, int32_t *code_out)
{
    if (dictionary->count > 0 && cmq_slice_equal(text_at(dictionary, (uint32_t)dictionary->last), text)) {
        *code_out = dictionary->last;
        return CMQ_OK;
    }
    cmq_status status = as_utf8(scan, &text);
    if (status != CMQ_OK) return status;
    uint32_t *slot = slot_of(dictionary, text);
    const uint32_t code = *slot != 0 ? *slot - 1 : dictionary->count;
    if (*slot == 0) status = add_text(scan, dictionary, text, slot);
    *code_out = dictionary->last = (int32_t)code;
    return status;
}

/* ---- the texts of a block ---- */

static size_t format_host(const uint8_t *at, bool ipv6, char *into)
{
    char address[INET6_ADDRSTRLEN];
    const int32_t port = cmq_load_i32(at + (ipv6 ? 16 : 4));
    if (!ipv6) return (size_t)snprintf(into, FORMATTED_BYTES, "%u.%u.%u.%u:%d", at[0], at[1], at[2], at[3], port);
    if (inet_ntop(AF_INET6, at, address, sizeof address) == NULL) address[0] = '\0';
    return (size_t)snprintf(into, FORMATTED_BYTES, "[%s]:%d", address, port);
}

static size_t format_id(const cmq_scan_row *row, char *into)
{
    cmq_record_host host = {.ipv6 = (row->sys_flag & CMQ_SYS_STORE_HOST_IPV6) != 0};
    const uint8_t *at = row->record + CMQ_RECORD_AT_STORE_HOST + cmq_scan_born_more(row->sys_flag);
    memcpy(host.address, at, host.ipv6 ? 16 : 4);
    host.port = cmq_load_i32(at + (host.ipv6 ? 16 : 4));
    return cmq_message_id_format(&host, row->physical_offset, into);
}

static inline cmq_slice property_of(const cmq_scan_row *row, cmq_slice name)
{
    cmq_slice value;
    const cmq_slice properties = {.data = row->properties, .bytes = row->property_bytes};
    return cmq_property_find(properties, name, &value) ? value : CMQ_SLICE_NONE;
}

/* The block's texts; data NULL: null. */
static void find_texts(const cmq_scan *scan, const cmq_scan_builder *builder, cmq_slice *texts,
                       char (*formatted)[FORMATTED_BYTES])
{
    cmq_slice name = CMQ_SLICE_NONE;
    if (builder->kind == CMQ_SCAN_TAGS) name = cmq_slice_of_text("TAGS");
    if (builder->kind == CMQ_SCAN_KEYS) name = cmq_slice_of_text("KEYS");
    if (builder->kind == CMQ_SCAN_UNIQUE_ID) name = cmq_slice_of_text("UNIQ_KEY");
    if (builder->property != NULL)
        name = (cmq_slice){.data = (const uint8_t *)builder->property, .bytes = builder->property_bytes};
    for (uint32_t i = 0; i < scan->block_count; i++) {
        const cmq_scan_row *row = &scan->block[i];
        const uint8_t *born = row->record + CMQ_RECORD_AT_BORN_HOST,
                      *stored = born + 16 + cmq_scan_born_more(row->sys_flag);
        texts[i].data = (const uint8_t *)formatted[i];
        if (builder->kind == CMQ_SCAN_TOPIC) texts[i] = (cmq_slice){.data = row->topic, .bytes = row->topic_bytes};
        else if (builder->kind == CMQ_SCAN_CONSTANT) texts[i] = name;
        else if (builder->kind == CMQ_SCAN_MESSAGE_ID) texts[i].bytes = format_id(row, formatted[i]);
        else if (builder->kind == CMQ_SCAN_BORN_HOST)
            texts[i].bytes = format_host(born, (row->sys_flag & CMQ_SYS_BORN_HOST_IPV6) != 0, formatted[i]);
        else if (builder->kind == CMQ_SCAN_STORE_HOST)
            texts[i].bytes = format_host(stored, (row->sys_flag & CMQ_SYS_STORE_HOST_IPV6) != 0, formatted[i]);
        else texts[i] = property_of(row, name);
    }
}

static cmq_status append_validity(const cmq_scan *scan, cmq_scan_builder *builder, const cmq_slice *texts)
{
    const size_t end = ((size_t)scan->rows + scan->block_count + 7) / 8;
    if (end > builder->validity.used) {
        const cmq_status status = cmq_scan_buffer_reserve(&builder->validity, end - builder->validity.used);
        if (status != CMQ_OK) return status;
        memset(cmq_scan_buffer_end(&builder->validity), 0, end - builder->validity.used);
        builder->validity.used = end;
    }
    uint8_t *bits = builder->validity.memory->data;
    for (uint32_t i = 0; i < scan->block_count; i++) {
        const bool valid = texts[i].data != NULL;
        const uint32_t at = scan->rows + i;
        bits[at / 8] = (uint8_t)(bits[at / 8] | (valid ? 1u << at % 8 : 0u));
        builder->null_count += !valid;
    }
    return CMQ_OK;
}

static cmq_status append_codes(cmq_scan *scan, cmq_scan_builder *builder, const cmq_slice *texts)
{
    cmq_status status = cmq_scan_buffer_reserve(&builder->values, scan->block_count * sizeof(int32_t));
    if (status != CMQ_OK) return status;
    int32_t *codes = (int32_t *)(void *)cmq_scan_buffer_end(&builder->values);
    for (uint32_t i = 0; i < scan->block_count && status == CMQ_OK; i++) {
        codes[i] = 0;
        if (texts[i].data != NULL) status = code_of(scan, builder->dictionary, texts[i], &codes[i]);
    }
    builder->values.used += scan->block_count * sizeof(int32_t);
    return status;
}

cmq_status cmq_scan_append_texts(cmq_scan *scan, cmq_scan_builder *builder)
{
    cmq_slice texts[CMQ_SCAN_BLOCK_ROWS_MAX];
    char formatted[CMQ_SCAN_BLOCK_ROWS_MAX][FORMATTED_BYTES];
    find_texts(scan, builder, texts, formatted);
    cmq_status status = builder->nullable ? append_validity(scan, builder, texts) : CMQ_OK;
    if (status != CMQ_OK) return status;
    if (builder->shape == CMQ_SCAN_SHAPE_DICTIONARY) return append_codes(scan, builder, texts);
    size_t bytes = 0;
    for (uint32_t i = 0; i < scan->block_count; i++) bytes += texts[i].bytes;
    status = begin_strings(&builder->strings, scan->block_count);
    if (status == CMQ_OK) status = cmq_scan_buffer_reserve(&builder->strings.data, bytes);
    for (uint32_t i = 0; i < scan->block_count && status == CMQ_OK; i++)
        status = add_string(scan, &builder->strings, texts[i]);
    return status;
}

/* ---- maps ---- */

/* The pairs of one message, and a table to find equal names by. */
struct cmq_scan_pairs {
    uint32_t count;
    cmq_slice names[PAIRS_MAX], values[PAIRS_MAX];
    uint16_t slots[PAIR_SLOTS];   /* number + 1; 0: free */
};
_Static_assert(PAIRS_MAX < PAIR_SLOTS && PAIRS_MAX < UINT16_MAX, "the table never fills up");

void cmq_scan_pairs_free(struct cmq_scan_pairs *pairs) { free(pairs); }

/* Which pair has this name already; count when none has. */
static uint32_t find_by_hash(struct cmq_scan_pairs *pairs, cmq_slice name)
{
    uint32_t at = hash_text(name) % PAIR_SLOTS;
    while (pairs->slots[at] != 0) {
        if (cmq_slice_equal(pairs->names[pairs->slots[at] - 1], name)) return pairs->slots[at] - 1u;
        at = (at + 1) % PAIR_SLOTS;
    }
    pairs->slots[at] = (uint16_t)(pairs->count + 1);
    return pairs->count;
}

static uint32_t find_pair(struct cmq_scan_pairs *pairs, cmq_slice name)
{
    if (pairs->count > PAIRS_COMPARED) return find_by_hash(pairs, name);
    for (uint32_t i = 0; i < pairs->count; i++)
        if (cmq_slice_equal(pairs->names[i], name)) return i;
    return pairs->count;
}

/* A later value replaces an earlier one in its place, as in Python's dict. */
static void collect_pairs(struct cmq_scan_pairs *pairs, const cmq_scan_row *row)
{
    cmq_slice rest = {.data = row->properties, .bytes = row->property_bytes}, name, value;
    pairs->count = 0;
    while (cmq_property_next(&rest, &name, &value)) {
        if (cmq_slice_equal(name, cmq_slice_of_text("__CRC32#"))) continue;   /* the store's own */
        const uint32_t at = find_pair(pairs, name);
        if (at == pairs->count && pairs->count == PAIRS_MAX) return;
        pairs->names[at] = name;
        pairs->values[at] = value;
        pairs->count += at == pairs->count;
        if (at != PAIRS_COMPARED || pairs->count != PAIRS_COMPARED + 1) continue;
        /* From here on by hash: the table learns those that are there. */
        memset(pairs->slots, 0, sizeof pairs->slots);
        const uint32_t count = pairs->count;
        for (pairs->count = 0; pairs->count < count; pairs->count++) find_by_hash(pairs, pairs->names[pairs->count]);
    }
}

static cmq_status append_pairs(cmq_scan *scan, cmq_scan_builder *builder, const cmq_scan_row *row)
{
    struct cmq_scan_pairs *pairs = scan->pairs;
    collect_pairs(pairs, row);
    cmq_status status = begin_strings(&builder->strings, pairs->count);
    if (status == CMQ_OK) status = begin_strings(&builder->map_values, pairs->count);
    for (uint32_t i = 0; i < pairs->count && status == CMQ_OK; i++) {
        status = add_string(scan, &builder->strings, pairs->names[i]);
        if (status == CMQ_OK) status = add_string(scan, &builder->map_values, pairs->values[i]);
    }
    builder->entries += pairs->count;
    return status;
}

cmq_status cmq_scan_append_map(cmq_scan *scan, cmq_scan_builder *builder)
{
    if (scan->pairs == NULL && (scan->pairs = malloc(sizeof *scan->pairs)) == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for properties");
    const bool first = builder->values.used == 0;
    cmq_status status = cmq_scan_buffer_reserve(&builder->values, (scan->block_count + 1) * sizeof(int32_t));
    if (status != CMQ_OK) return status;
    int32_t *offsets = (int32_t *)(void *)cmq_scan_buffer_end(&builder->values);
    if (first) *offsets++ = 0;
    for (uint32_t i = 0; i < scan->block_count && status == CMQ_OK; i++) {
        status = append_pairs(scan, builder, &scan->block[i]);
        offsets[i] = (int32_t)builder->entries;
    }
    builder->values.used += (scan->block_count + first) * sizeof(int32_t);
    return status;
}
