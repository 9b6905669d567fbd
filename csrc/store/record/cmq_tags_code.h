/* cmq_tags_code: the 64-bit tagsCode of a consume queue unit, and the table of delay levels it may depend on.
 *
 * Invariant: a tagsCode is a tag hash (fits int32), a deliver timestamp (positive, schedule topic only) or an ext
 *            address (<= INT32_MIN - 1); never two of them.
 * Threads:   any; the table is read-only once parsed.
 * Source:    store specification 3.2, 3.5, 9.1.
 */
#ifndef CMQ_TAGS_CODE_H
#define CMQ_TAGS_CODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "store/record/cmq_property.h"

#define CMQ_DELAY_LEVELS_MAX 128
#define CMQ_DELAY_LEVELS_DEFAULT "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
#define CMQ_TOPIC_SCHEDULE "SCHEDULE_TOPIC_XXXX"
/* Of messages whose transaction is open, and of those that nobody ended. */
#define CMQ_TOPIC_HALF "RMQ_SYS_TRANS_HALF_TOPIC"
#define CMQ_TOPIC_DISCARDED "TRANS_CHECK_MAX_TIME_TOPIC"

typedef struct cmq_delay_levels {
    int32_t level_max;                             /* levels are 1 to level_max */
    int64_t delay_ms[CMQ_DELAY_LEVELS_MAX + 1];    /* by level; [0] is not used */
} cmq_delay_levels;

/* Parse `messageDelayLevel`: numbers with s, m, h or d, separated by single spaces. CMQ_ERR_SETTING names the first
 * bad word; CMQ_ERR_LIMIT beyond CMQ_DELAY_LEVELS_MAX. */
CMQ_MUST_CHECK cmq_status cmq_delay_levels_parse(cmq_slice text, cmq_delay_levels *levels_out);

/* The level of a DELAY value, clamped to level_max; 0 when absent, not a number, or not above 0. */
int32_t cmq_delay_level(const cmq_delay_levels *levels, cmq_slice delay);

/* When a message stored at `store_timestamp_ms` with `level` is delivered. A level without an entry: 1000 ms. */
int64_t cmq_delay_deliver_ms(const cmq_delay_levels *levels, int32_t level, int64_t store_timestamp_ms);

/* The tagsCode of a unit. `tags` and `delay` are the record's TAGS and DELAY values, empty where absent; `levels` may
 * be NULL for a store that has no schedule topic. */
int64_t cmq_tags_code(cmq_slice topic, cmq_slice tags, cmq_slice delay, int64_t store_timestamp_ms,
                      const cmq_delay_levels *levels);

/* Whether a tagsCode is the address of a consumequeue_ext unit. */
static inline bool cmq_tags_code_is_ext(int64_t tags_code) { return tags_code < (int64_t)INT32_MIN; }

#endif
