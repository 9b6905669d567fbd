/* cmq_filter: see cmq_filter.h. */
#include "broker/tables/cmq_filter.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "base/cmq_name_hash.h"

struct cmq_filter {
    _Atomic uint32_t references;
    bool all;
    cmq_selector *selector;   /* NULL: by tags */
    uint64_t text_hash;       /* of the selector's text */
    uint32_t count;
    uint32_t hashes[];
};

static cmq_filter everything = {.references = 1, .all = true};

cmq_filter *cmq_filter_all(void) { return &everything; }

cmq_filter *cmq_filter_keep(const cmq_filter *filter)
{
    cmq_filter *kept = (cmq_filter *)(uintptr_t)filter;   /* only its count changes, which nobody sees */
    if (kept != &everything) atomic_fetch_add_explicit(&kept->references, 1, memory_order_relaxed);
    return kept;
}

void cmq_filter_release(cmq_filter *filter)
{
    if (filter == NULL || filter == &everything) return;
    const uint32_t before = atomic_fetch_sub_explicit(&filter->references, 1, memory_order_acq_rel);
    CMQ_ASSERT(before > 0);
    if (before > 1) return;
    cmq_selector_free(filter->selector);
    free(filter);
}

static int by_value(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

cmq_status cmq_filter_of_hashes(const uint32_t *hashes, uint32_t count, cmq_filter **filter_out)
{
    *filter_out = NULL;
    if (count > CMQ_FILTER_TAGS_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "%u tags in one subscription; at most %u", count, CMQ_FILTER_TAGS_MAX);
    cmq_filter *made = malloc(sizeof *made + count * sizeof made->hashes[0]);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a filter of %u tags", count);
    atomic_init(&made->references, 1);
    made->all = false;
    made->selector = NULL;
    made->text_hash = 0;
    made->count = 0;
    if (count > 0) memcpy(made->hashes, hashes, count * sizeof *hashes);
    if (count > 1) qsort(made->hashes, count, sizeof made->hashes[0], by_value);
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || made->hashes[i] != made->hashes[i - 1]) made->hashes[made->count++] = made->hashes[i];
    *filter_out = made;
    return CMQ_OK;
}

/* Java's trim: drops characters up to a space, on both sides. */
static cmq_slice trim(cmq_slice text)
{
    while (text.bytes > 0 && text.data[0] <= ' ') {
        text.data++;
        text.bytes--;
    }
    while (text.bytes > 0 && text.data[text.bytes - 1] <= ' ') text.bytes--;
    return text;
}

/* The piece up to the next `||`; false at the end. */
static bool next_piece(cmq_slice *rest, cmq_slice *piece_out)
{
    if (rest->data == NULL) return false;
    const uint8_t *at = memmem(rest->data, rest->bytes, "||", 2);
    *piece_out = (cmq_slice){.data = rest->data, .bytes = at == NULL ? rest->bytes : (size_t)(at - rest->data)};
    if (at == NULL) *rest = CMQ_SLICE_NONE;
    else *rest = (cmq_slice){.data = at + 2, .bytes = rest->bytes - piece_out->bytes - 2};
    return true;
}

cmq_status cmq_filter_parse(cmq_slice expression, cmq_filter **filter_out)
{
    uint32_t few[64], *hashes = few, count = 0, pieces = 1;
    bool any = false;
    *filter_out = NULL;
    if (expression.bytes == 0 || (expression.bytes == 1 && expression.data[0] == '*')) {
        *filter_out = cmq_filter_all();
        return CMQ_OK;
    }
    for (size_t i = 0; i + 1 < expression.bytes; i++)
        pieces += expression.data[i] == '|' && expression.data[i + 1] == '|';
    if (pieces > sizeof few / sizeof few[0]) {
        if (pieces > 2 * CMQ_FILTER_TAGS_MAX)
            return cmq_fail(CMQ_ERR_LIMIT, "more than %u tags in one subscription", CMQ_FILTER_TAGS_MAX);
        hashes = malloc(pieces * sizeof *hashes);
        if (hashes == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a filter of %u tags", pieces);
    }
    cmq_slice rest = expression, piece;
    while (next_piece(&rest, &piece)) {
        any |= piece.bytes > 0;
        piece = trim(piece);
        if (piece.bytes > 0) hashes[count++] = cmq_jhash(piece);
    }
    const cmq_status status =
        any ? cmq_filter_of_hashes(hashes, count, filter_out)
            : cmq_fail(CMQ_ERR_ARGUMENT, "the subscription has nothing but ||: a tag, or * for all, is needed");
    if (hashes != few) free(hashes);
    return status;
}

cmq_status cmq_filter_select(cmq_slice expression, cmq_filter **filter_out)
{
    cmq_status status = cmq_filter_of_hashes(NULL, 0, filter_out);
    if (status == CMQ_OK) status = cmq_selector_compile(expression, &(*filter_out)->selector, NULL);
    if (status == CMQ_OK) {
        (*filter_out)->text_hash = cmq_name_hash(expression);
        return CMQ_OK;
    }
    cmq_filter_release(*filter_out);
    *filter_out = NULL;
    return status;
}

const cmq_selector *cmq_filter_selector(const cmq_filter *filter) { return filter->selector; }

uint64_t cmq_filter_text_hash(const cmq_filter *filter) { return filter->text_hash; }

bool cmq_filter_is_all(const cmq_filter *filter) { return filter->all; }

const uint32_t *cmq_filter_hashes(const cmq_filter *filter, uint32_t *count_out)
{
    *count_out = filter->count;
    return filter->hashes;
}

bool cmq_filter_equal(const cmq_filter *a, const cmq_filter *b)
{
    if (a == b) return true;
    if ((a->selector == NULL) != (b->selector == NULL)) return false;
    if (a->selector != NULL) return cmq_slice_equal(cmq_selector_text(a->selector), cmq_selector_text(b->selector));
    return a->all == b->all && a->count == b->count &&
           (a->count == 0 || memcmp(a->hashes, b->hashes, a->count * sizeof a->hashes[0]) == 0);
}
