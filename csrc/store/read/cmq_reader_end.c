/* cmq_reader_end: has a reader come to its end, and is that the end of the messages? In a view of a damaged log it may
 * not be (cmq_view_end).
 */
#include "store/read/cmq_reader_internal.h"

bool cmq_reader_all_ended(const cmq_reader *reader)
{
    if (reader->cursor_count == 0) return reader->options.only_starts;
    if (!(reader->options.backwards || reader->options.has_end || reader->options.only_starts)) return false;
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        const cmq_cursor *cursor = reader->cursors[i];
        if (cursor->at < cursor->count || !(cursor->done || cursor->ends)) return false;
    }
    return true;
}

/* Does all that was asked for lie before the end of the view, whatever may be behind it? */
static bool is_complete(const cmq_reader *reader)
{
    const cmq_read_options *options = &reader->options;
    if (options->has_end_time &&
        atomic_load_explicit(&reader->store->confirmed_ms, memory_order_relaxed) >= options->end_time_ms)
        return true;
    /* Queues of the topics may begin behind the end. */
    const bool all_known = options->only_starts ? !reader->lacks_queues
                                                : options->has_end && options->queue_id_count == reader->cursor_count;
    return reader->of_queues && all_known && !options->backwards && cmq_reader_all_ended(reader);
}

cmq_status cmq_reader_check_end(cmq_reader *reader)
{
    const int64_t confirmed = cmq_log_confirmed(reader->store->log);
    if (!reader->store->options.read_only || reader->damaged_end == confirmed || is_complete(reader)) return CMQ_OK;
    const cmq_status status = cmq_store_check_end(reader->store);
    if (status == CMQ_ERR_CORRUPT) reader->damaged_end = confirmed;
    return status;
}
