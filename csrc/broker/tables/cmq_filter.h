/* cmq_filter: the messages that a pull or a subscription lets pass: all, those of some tags, or those that an SQL92
 * expression selects by their properties.
 *
 * Made once from an expression, shared by reference: a hold keeps its filter while the subscription that it came from
 * is replaced.
 *
 * Invariant: a filter never changes; its hashes are sorted, each once.
 * Threads:   any; the number of references is atomic.
 * Way:       TAG expression -> [cmq_filter] -> cmq_queue_scan, arrivals at a hold
 *            SQL92 expression -> [cmq_filter] -> cmq_select, arrivals at a hold
 * Source:    upstream's FilterAPI.buildSubscriptionData, DefaultMessageFilter; specification remoting 4.7, consumption
 *            3.3.
 */
#ifndef CMQ_FILTER_H
#define CMQ_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "filter/cmq_selector.h"

#define CMQ_FILTER_TAGS_MAX 4096u   /* of one expression */

typedef struct cmq_filter cmq_filter;

/* A TAG expression: empty or `*` is all; else names between `||`, trimmed as Java trims, empty ones left out.
 * CMQ_ERR_ARGUMENT for what upstream refuses (nothing but `||`), CMQ_ERR_LIMIT for too many names. One reference, the
 * caller's. */
cmq_status CMQ_MUST_CHECK cmq_filter_parse(cmq_slice expression, cmq_filter **filter_out);
/* any order, copied */
cmq_status CMQ_MUST_CHECK cmq_filter_of_hashes(const uint32_t *hashes, uint32_t count, cmq_filter **filter_out);
/* An SQL92 expression; statuses as cmq_selector_compile. */
cmq_status CMQ_MUST_CHECK cmq_filter_select(cmq_slice expression, cmq_filter **filter_out);
cmq_filter *cmq_filter_all(void);   /* everything passes; static, its references need not be counted but may be */

cmq_filter *cmq_filter_keep(const cmq_filter *filter);   /* one reference more */
void cmq_filter_release(cmq_filter *filter);             /* NULL is fine */

bool cmq_filter_is_all(const cmq_filter *filter);
/* Of a filter by SQL92; else NULL. Such a filter is not all, and has no hashes. */
const cmq_selector *cmq_filter_selector(const cmq_filter *filter);
uint64_t cmq_filter_text_hash(const cmq_filter *filter);   /* of its expression; differs between processes */
/* Sorted, for cmq_queue_scan. None, and not all, without a selector: nothing passes. */
const uint32_t *cmq_filter_hashes(const cmq_filter *filter, uint32_t *count_out);
bool cmq_filter_equal(const cmq_filter *a, const cmq_filter *b);

#endif
