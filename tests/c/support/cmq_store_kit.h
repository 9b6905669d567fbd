/* cmq_store_kit: shared parts of the tests of the store: tiny stores, single appends, whole reads, files copied and
 * damaged by hand.
 *
 * A tiny store has segments of 16 KiB, queue files of 20 units and index files of 60 keys, so that every border is met
 * within a second. Time is a number that the test moves. Functions end the test when they fail, unless they return a
 * status.
 */
#ifndef CMQ_STORE_KIT_H
#define CMQ_STORE_KIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/cmq_store.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "support/cmq_test.h"

#define KIT_SEGMENT_BYTES 16384
#define KIT_QUEUE_UNITS 20
#define KIT_INDEX_SLOTS 16
#define KIT_INDEX_ENTRIES 61
#define KIT_FOUND_MAX 4096

/* The time of kit_options' clock; begins one hour after the machine's time, so that every file is old enough for any
 * retention. */
extern _Atomic int64_t kit_now_ms;
cmq_clock kit_clock(void);
void kit_set_clock(void);   /* begin again */

/* The amount of work of a random test: the value of the variable `name`, else `usual`, or `many` with CMQ_LONG set. */
uint64_t kit_amount(const char *name, uint64_t usual, uint64_t many);

/* A fresh directory in memory where the machine has one (/dev/shm), as these tests make thousands of files. */
const char *kit_directory(void);

/* root/name; in one of eight buffers that are used in turn. */
const char *kit_path(const char *root, const char *name);

/* Tiny, created when missing, sync, without threads, manual clock. */
cmq_store_options kit_options(const char *root);
cmq_store *kit_open(const cmq_store_options *options);
cmq_store *kit_open_at(const char *root);   /* with kit_options */
void kit_close(cmq_store *store);

static inline cmq_slice kit_slice(const char *text) { return cmq_slice_of_text(text); }

/* One message; NULL leaves tags and keys out. */
cmq_status CMQ_MUST_CHECK kit_try_append(cmq_store *store, const char *topic, int32_t queue_id, const char *body,
                                         const char *tags, const char *keys, cmq_appended *appended_out);
cmq_appended kit_append(cmq_store *store, const char *topic, int32_t queue_id, const char *body, const char *tags,
                        const char *keys);

/* `count` messages "<prefix><i>" one by one, to queue 0, without tags and keys. */
void kit_append_many(cmq_store *store, const char *topic, const char *prefix, int count);

/* A batch with its items; release when done. */
typedef struct kit_found {
    cmq_found_batch batch;
    cmq_found items[KIT_FOUND_MAX];
} kit_found;
kit_found *kit_found_make(uint32_t capacity);
void kit_found_free(kit_found *found);

/* The parsed record; its CRC is checked. */
cmq_record_view kit_view(const cmq_found *found);
bool kit_body_is(const cmq_found *found, const char *text);

/* Read with `options` to the end or to where nothing more comes; the bodies joined by spaces, in static memory. Damage
 * that the reader reports is put in as "!". */
const char *kit_read_with(cmq_store *store, const cmq_read_options *options);
const char *kit_read_topic(cmq_store *store, const char *topic);
const char *kit_read_all(cmq_store *store);
#define CHECK_TEXT(actual, expected) kit_check_text(__FILE__, __LINE__, actual, expected)
void kit_check_text(const char *file, int line, const char *actual, const char *expected);

/* How many messages the topic's queue has, by its units. */
int64_t kit_max(cmq_store *store, const char *topic, int32_t queue_id);
int64_t kit_min(cmq_store *store, const char *topic, int32_t queue_id);

/* ---- files ---- */

void kit_copy_tree(const char *from, const char *to);   /* `to` is made, or emptied first; holes stay holes */
void kit_remove_tree(const char *path);                 /* fine when there is none */
/* the same between file systems; `to` is made */
void kit_copy_tree_to(cmq_fs *from_fs, const char *from, cmq_fs *to_fs, const char *to);
void kit_remove_tree_in(cmq_fs *fs, const char *path);
bool kit_exists(const char *path);
int64_t kit_file_bytes(const char *path);               /* -1: none */
void kit_read_bytes(const char *path, int64_t offset, void *into, size_t bytes);
void kit_write_bytes(const char *path, int64_t offset, const void *from, size_t bytes);
void kit_flip(const char *path, int64_t offset, uint8_t bits);
void kit_resize(const char *path, int64_t bytes);

/* Call `each` for every file below `root`, in order of their paths. */
void kit_each_file(const char *root, void (*each)(void *context, const char *path, int64_t bytes), void *context);
void kit_each_file_in(cmq_fs *fs, const char *root, void (*each)(void *context, const char *path, int64_t bytes),
                      void *context);

#endif
