/* cmq_scan_fed: records that somebody brings, as those of pulls' answers, instead of a store's.
 *
 * Invariant: fed bytes are untrusted: every record's head is checked against its piece, and its inner lengths as
 *            everywhere (cmq_scan_rows.c).
 * Lifetime:  pieces are borrowed until cmq_scan_next has given all of their rows. Nothing that a batch holds points
 *            into them, as bodies are gathered.
 */
#include <stdlib.h>
#include <string.h>

#include "export/cmq_scan_internal.h"
#include "store/record/cmq_property.h"

void cmq_scan_fed_free(cmq_scan *scan)
{
    if (scan->fed == NULL) return;
    free(scan->fed->pieces);
    free(scan->fed);
}

cmq_status cmq_scan_fed_make(cmq_scan *scan)
{
    if (scan->views)
        return cmq_fail(CMQ_ERR_ARGUMENT, "bodies of records that are fed are gathered: ask for the plain form");
    scan->fed = calloc(1, sizeof *scan->fed);
    return scan->fed != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory for a scan");
}

cmq_status cmq_scan_feed(cmq_scan *scan, const cmq_scan_piece *pieces, uint32_t count)
{
    struct cmq_scan_fed *fed = scan->fed;
    if (fed == NULL) return cmq_fail(CMQ_ERR_ARGUMENT, "this scan reads a store; nothing can be fed to it");
    if (fed->at < fed->count)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the records fed before have not been read to their end");
    cmq_scan_piece *copy = malloc((count > 0 ? count : 1) * sizeof *copy);
    if (copy == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u pieces", count);
    if (count > 0) memcpy(copy, pieces, count * sizeof *copy);
    free(fed->pieces);
    fed->pieces = copy;
    fed->count = count;
    fed->at = 0;
    return CMQ_OK;
}

/* Whether one of the record's messages lies in the piece's range; if so, what of it. `count` is only set as far as
 * `behind` needs it. */
static bool lies_within(const cmq_scan_piece *piece, const cmq_record_head *head, cmq_found *found)
{
    const int64_t first = found->queue_offset;
    if (first >= piece->end) return false;
    if ((head->sys_flag & CMQ_SYS_INNER_BATCH) == 0) return first >= piece->start;
    const int64_t skip = piece->start - first, most = piece->end - first;
    if (skip > INT32_MAX) return false;
    if (skip > 0) found->skip = (int32_t)skip;
    if (most < INT32_MAX) {
        found->count = (int32_t)most + 1;
        found->behind = 1;
    }
    return true;
}

/* The rest of the piece cannot be read. */
static cmq_status give_piece_up(cmq_scan_piece *piece, cmq_status status)
{
    const size_t left = piece->bytes;
    piece->bytes = 0;
    return cmq_fail_at(CMQ_ERR_CORRUPT, -1,
                       status == CMQ_AGAIN ? "the last %zu bytes of an answer are an incomplete message"
                                           : "the last %zu bytes of an answer are not messages",
                       left);
}

static cmq_status take_record(cmq_scan *scan, cmq_scan_piece *piece)
{
    cmq_record_head head;
    const cmq_status status = cmq_record_peek(piece->data, piece->bytes, &head);
    if (status != CMQ_OK) return give_piece_up(piece, status);
    /* Added as unsigned numbers: both come from outside. */
    const int64_t offset = (int64_t)((uint64_t)head.queue_offset + (uint64_t)piece->offset_delta);
    cmq_found found = {.record = piece->data,
                       .physical_offset = head.physical_offset,
                       .queue_offset = offset,
                       .record_bytes = head.record_bytes,
                       .count = 1};
    piece->data += head.record_bytes;
    piece->bytes -= head.record_bytes;
    if (offset >= 0 && lies_within(piece, &head, &found)) scan->found.items[scan->found.count++] = found;
    return CMQ_OK;
}

cmq_status cmq_scan_fed_next(cmq_scan *scan)
{
    struct cmq_scan_fed *fed = scan->fed;
    while (scan->found.count < scan->found.capacity && fed->at < fed->count) {
        cmq_scan_piece *piece = &fed->pieces[fed->at];
        if (piece->bytes == 0) {
            fed->at++;
            continue;
        }
        if (scan->found.count > 0) {   /* damage behind them waits until they are out */
            cmq_record_head head;
            if (cmq_record_peek(piece->data, piece->bytes, &head) != CMQ_OK) return CMQ_OK;
        }
        const cmq_status status = take_record(scan, piece);
        if (status != CMQ_OK) return status;
    }
    return scan->found.count > 0 ? CMQ_OK : CMQ_AGAIN;
}

bool cmq_scan_has_tag(const cmq_scan *scan, const cmq_scan_row *row)
{
    const cmq_slice properties = {.data = row->properties, .bytes = row->property_bytes};
    cmq_slice tags;
    if (!cmq_property_find(properties, cmq_slice_of_text("TAGS"), &tags)) return false;
    for (uint32_t i = 0; i < scan->tag_count; i++)
        if (cmq_slice_equal(scan->tags[i], tags)) return true;
    return false;
}
