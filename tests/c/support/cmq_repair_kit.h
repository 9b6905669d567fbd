/* cmq_repair_kit: for the tests of the repair: a store of two topics over a few segments, damage to its log, a repair,
 * and what a verification says.
 *
 * Threads: one.
 */
#ifndef CMQ_REPAIR_KIT_H
#define CMQ_REPAIR_KIT_H

#include "store/check/cmq_repair.h"
#include "store/check/cmq_verify.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 210

extern cmq_appended kit_placed[MESSAGES];   /* where the messages of the last kit_fill are */
extern cmq_repair_report kit_report;        /* of the last repair */

/* Body number i; every length is there several times. */
void kit_body_of(int i, char into[160]);

/* MESSAGES to a/0, all with keys, and every fourth to b as well; 7 ms apart. */
void kit_fill(cmq_store *store);

/* A new path, and a filled and closed store at one; valid until the next. */
const char *kit_new_root(void);
const char *kit_make_store(void);

/* The log file that has this offset. */
const char *kit_segment_of(const char *root, int64_t phy);
void kit_damage_record(const char *root, int64_t phy);

/* options.store NULL: the kit's. */
cmq_status CMQ_MUST_CHECK kit_try_repair(const char *root, cmq_repair_options options);
void kit_repair(const char *root);

/* Verify as a reader, nothing given but the path; how often each kind of problem came. CMQ_SHOW=1 prints them. */
const int *kit_verify(const char *root, cmq_verified *verified_out);
void kit_check_healthy(const char *root);

#endif
