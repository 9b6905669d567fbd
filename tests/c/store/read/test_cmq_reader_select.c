/* Tests csrc/store/read/cmq_reader_select.c: an expression that takes long lets the caller in, and skips nothing. */
#include <stdio.h>

#include "filter/cmq_selector.h"
#include "store/read/cmq_reader_internal.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 60

static void a_long_expression_lets_the_caller_in(void)
{
    kit_set_clock();
    cmq_store *store = kit_open_at(kit_path(kit_directory(), "store"));
    for (int i = 0; i < MESSAGES; i++) kit_append(store, "T", i % 2, "m", i % 20 == 19 ? "last" : "other", NULL);
    cmq_selector *where;
    CHECK_OK(cmq_selector_compile(cmq_slice_of_text("TAGS = 'last'"), &where, NULL));
    kit_found *found = kit_found_make(MESSAGES);
    const cmq_slice topic = kit_slice("T");
    for (int way = 0; way < 4; way++) {
        const cmq_read_options options = {
            .topics = &topic, .topic_count = way < 2 ? 1 : 0, .backwards = way % 2 == 1, .where = where};
        cmq_reader *reader;
        bool end = false;
        uint32_t matched = 0, pauses = 0;
        CHECK_OK(cmq_reader_open(store, &options, &reader));
        reader->steps_max = 1;
        for (;;) {
            const cmq_status status = cmq_reader_next(reader, &found->batch, &end);
            CHECK(status == CMQ_OK || status == CMQ_AGAIN);
            if (status == CMQ_AGAIN) CHECK_INT(found->batch.count, 0);
            pauses += status == CMQ_AGAIN;
            if (status == CMQ_OK && found->batch.count == 0) break;
            matched += found->batch.count;
            cmq_found_batch_release(&found->batch);
        }
        CHECK_INT(matched, MESSAGES / 20);
        CHECK_INT(pauses, MESSAGES - MESSAGES / 20);
        cmq_reader_close(reader);
    }
    kit_found_free(found);
    cmq_selector_free(where);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(a_long_expression_lets_the_caller_in))
