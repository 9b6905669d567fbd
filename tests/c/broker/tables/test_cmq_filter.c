/* Tests csrc/broker/tables/cmq_filter.c: expressions as Java reads them, what passes, references. */
#include "broker/tables/cmq_filter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_hash.h"
#include "support/cmq_filter_kit.h"
#include "support/cmq_test.h"

static int64_t code(const char *tag) { return (int32_t)cmq_jhash(cmq_slice_of_text(tag)); }

static cmq_filter *parse(const char *expression)
{
    cmq_filter *filter;
    CHECK_OK(cmq_filter_parse(cmq_slice_of_text(expression), &filter));
    return filter;
}

static void all_is_a_star_or_nothing(void)
{
    cmq_filter *filter;
    CHECK_OK(cmq_filter_parse(CMQ_SLICE_NONE, &filter));
    CHECK(cmq_filter_is_all(filter));
    CHECK(filter == parse("*"));
    CHECK(cmq_filter_kit_passes(filter, code("any")) && cmq_filter_kit_passes(filter, 0));
    cmq_filter_release(cmq_filter_keep(filter));
    cmq_filter_release(filter);
    cmq_filter_release(filter);   /* static: its references are not counted */
    CHECK(cmq_filter_is_all(cmq_filter_all()));
}

static void tags_are_trimmed_and_hashed_as_java_does(void)
{
    cmq_filter *filter = parse(" paid ||\tshipped||  || caf\xc3\xa9 || * || paid");
    uint32_t count;
    const uint32_t *hashes = cmq_filter_hashes(filter, &count);
    CHECK_INT(count, 4);
    for (uint32_t i = 1; i < count; i++) CHECK(hashes[i - 1] < hashes[i]);
    CHECK(!cmq_filter_is_all(filter));
    CHECK(cmq_filter_kit_passes(filter, code("paid")) && cmq_filter_kit_passes(filter, code("shipped")) &&
          cmq_filter_kit_passes(filter, code("*")));
    CHECK(cmq_filter_kit_passes(filter, 3045921));   /* "café".hashCode() */
    CHECK(!cmq_filter_kit_passes(filter, code(" paid ")) && !cmq_filter_kit_passes(filter, 0) &&
          !cmq_filter_kit_passes(filter, code("open")));
    cmq_filter_release(filter);

    filter = parse("a|||b");   /* the first two of three bars divide */
    CHECK(cmq_filter_kit_passes(filter, code("a")) && cmq_filter_kit_passes(filter, code("|b")) &&
          !cmq_filter_kit_passes(filter, code("b")));
    cmq_filter_release(filter);
}

/* Upstream takes a blank expression, and nothing matches it; one of bars alone it refuses. */
static void nothing_passes_a_blank(void)
{
    cmq_filter *filter = parse("  ");
    uint32_t count;
    cmq_filter_hashes(filter, &count);
    CHECK_INT(count, 0);
    CHECK(!cmq_filter_is_all(filter) && !cmq_filter_kit_passes(filter, 0) && !cmq_filter_kit_passes(filter, code("a")));
    CHECK(!cmq_filter_equal(filter, cmq_filter_all()));
    cmq_filter_release(filter);
    CHECK_STATUS(cmq_filter_parse(cmq_slice_of_text("||"), &filter), CMQ_ERR_ARGUMENT);
    CHECK(filter == NULL);
    CHECK_STATUS(cmq_filter_parse(cmq_slice_of_text("||||"), &filter), CMQ_ERR_ARGUMENT);
}

static void many_tags_up_to_the_limit(void)
{
    enum { PIECE_BYTES = 9 };
    const uint32_t most = CMQ_FILTER_TAGS_MAX;
    char *text = malloc((size_t)(most + 1) * PIECE_BYTES + 1);
    cmq_filter *filter;
    CHECK(text != NULL);
    for (uint32_t i = 0; i <= most; i++) snprintf(text + (size_t)i * PIECE_BYTES, PIECE_BYTES + 1, "tag%04x||", i);
    CHECK_OK(cmq_filter_parse((cmq_slice){.data = (uint8_t *)text, .bytes = (size_t)most * PIECE_BYTES}, &filter));
    uint32_t count;
    cmq_filter_hashes(filter, &count);
    CHECK_INT(count, most);
    CHECK(cmq_filter_kit_passes(filter, code("tag0000")) && cmq_filter_kit_passes(filter, code("tag0fff")) &&
          !cmq_filter_kit_passes(filter, code("tag1000")));
    cmq_filter_release(filter);
    CHECK_STATUS(cmq_filter_parse(cmq_slice_of_text(text), &filter), CMQ_ERR_LIMIT);
    memset(text, '|', (size_t)most * PIECE_BYTES);
    CHECK_STATUS(cmq_filter_parse((cmq_slice){.data = (uint8_t *)text, .bytes = (size_t)most * PIECE_BYTES}, &filter),
                 CMQ_ERR_LIMIT);
    free(text);
}

static void equal_filters(void)
{
    cmq_filter *a = parse("x || y"), *b = parse("y||x||x"), *c = parse("x");
    CHECK(cmq_filter_equal(a, b) && cmq_filter_equal(a, a) && !cmq_filter_equal(a, c));
    const uint32_t hashes[] = {(uint32_t)code("y"), (uint32_t)code("x")};
    cmq_filter *d;
    CHECK_OK(cmq_filter_of_hashes(hashes, 2, &d));
    CHECK(cmq_filter_equal(a, d));
    cmq_filter *kept = cmq_filter_keep(d);
    cmq_filter_release(d);
    CHECK(kept == d && cmq_filter_kit_passes(kept, code("x")));
    cmq_filter_release(kept);
    cmq_filter_release(a);
    cmq_filter_release(b);
    cmq_filter_release(c);
    cmq_filter_release(NULL);
}

CMQ_TEST_MAIN(CMQ_TEST(all_is_a_star_or_nothing), CMQ_TEST(tags_are_trimmed_and_hashed_as_java_does),
              CMQ_TEST(nothing_passes_a_blank), CMQ_TEST(many_tags_up_to_the_limit), CMQ_TEST(equal_filters))
