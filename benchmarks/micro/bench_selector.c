/* bench_selector: nanoseconds per record of an SQL92 expression over a record's properties.
 *
 * Checked: every sixteenth record matches, and no other.
 */
#include "cmq_bench.h"
#include "filter/cmq_selector.h"

#define RECORDS 4096u
#define MATCH_EACH 16u
#define PROPERTIES_BYTES 256u

static uint8_t (*properties)[PROPERTIES_BYTES];
static size_t lengths[RECORDS];

/* The properties of a message as a client sends it through a broker. */
static void make_records(void)
{
    properties = bench_alloc((size_t)RECORDS * PROPERTIES_BYTES);
    for (uint32_t i = 0; i < RECORDS; i++) {
        const int used = snprintf((char *)properties[i], PROPERTIES_BYTES,
                                  "UNIQ_KEY\0017F0000010A2B18B4AAC27F1C8D7A%04X\002WAIT\001true\002TAGS\001paid\002"
                                  "price\001%u\002region\001%s\002kind\001fast\002MSG_REGION\001DefaultRegion\002"
                                  "TRACE_ON\001true\002",
                                  i & 0xFFFFu, i % MATCH_EACH == 0 ? 15u : 5u, i % 2 == 0 ? "eu" : "us");
        BENCH_CHECK(used > 0 && used < (int)PROPERTIES_BYTES);
        lengths[i] = (size_t)used;
    }
}

static void measure(const char *name, const char *expression, uint32_t rounds)
{
    cmq_selector *selector;
    double seconds[BENCH_REPEATS];
    BENCH_CHECK(cmq_selector_compile(cmq_slice_of_text(expression), &selector, NULL) == CMQ_OK);
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        for (uint32_t round = 0; round < rounds; round++) {
            uint32_t matched = 0;
            for (uint32_t i = 0; i < RECORDS; i++)
                matched += cmq_selector_evaluate(
                               selector, (cmq_slice){.data = properties[i], .bytes = lengths[i]}) == CMQ_SELECTOR_TRUE;
            BENCH_CHECK(matched == RECORDS / MATCH_EACH);
        }
        seconds[repeat] = bench_cpu_s() - begin;
    }
    bench_print(name, seconds, (double)rounds * RECORDS, 0);
    cmq_selector_free(selector);
}

int main(int argc, char **argv)
{
    const uint32_t rounds = bench_is_quick(argc, argv) ? 1 : 500;
    make_records();
    measure("selector/one comparison", "price > 10", rounds);
    measure("selector/three comparisons", "price > 10 AND region = 'eu' AND kind <> 'slow'", rounds);
    measure("selector/a range, a list and a search",
            "price BETWEEN 10 AND 20 AND region IN ('eu', 'uk', 'no') AND UNIQ_KEY STARTSWITH '7F'", rounds);
    free(properties);
    return 0;
}
