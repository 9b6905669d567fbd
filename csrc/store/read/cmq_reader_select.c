/* cmq_reader_select: which records a reader takes by their tags and properties. See cmq_reader_internal.h.
 *
 * Tags were compared by hash in the queue before, where its units hold hashes; here the texts decide. No allocation.
 */
#include <string.h>

#include "store/read/cmq_reader_internal.h"
#include "store/record/cmq_wire_batch.h"

static bool has_tag(const cmq_reader *reader, cmq_slice properties)
{
    cmq_slice tags;
    if (!cmq_property_find(properties, cmq_slice_of_text("TAGS"), &tags)) return false;
    for (uint32_t i = 0; i < reader->options.tag_count; i++)
        if (cmq_slice_equal(tags, cmq_slice_of_text(reader->tags[i]))) return true;
    return false;
}

static bool properties_match(void *context, cmq_slice properties)
{
    cmq_reader *reader = context;
    if (reader->options.tag_count > 0 && !has_tag(reader, properties)) return false;
    if (reader->options.where == NULL) return true;
    uint64_t steps;
    const cmq_selector_answer answer = cmq_selector_evaluate_counted(reader->options.where, properties, &steps);
    reader->steps += steps;
    return answer == CMQ_SELECTOR_TRUE;
}

/* An inner batch is wanted if one of its messages is; those of a compressed one only its reader sees. */
static bool batch_matches(cmq_reader *reader, const cmq_record_view *view)
{
    return (view->sys_flag & CMQ_SYS_COMPRESSED) != 0 || cmq_wire_batch_any(view->body, properties_match, reader);
}

bool cmq_reader_matches(cmq_reader *reader, const cmq_record_view *view)
{
    if (properties_match(reader, view->properties)) return true;
    return (view->sys_flag & CMQ_SYS_INNER_BATCH) != 0 && batch_matches(reader, view);
}
