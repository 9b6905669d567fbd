/* cmq_file_twin_state: the twin's state: nodes (files and directories), names, and the changes of names that may be
 * lost.
 *
 * Inside the twin only. All functions are called with the twin's mutex held.
 *
 * Owns:      nodes and their images; two sets of names: `live`, as the real directory is, and `durable`, as the disk
 *            surely is.
 * Invariant: live = durable + all pending changes, in order.
 */
#ifndef CMQ_FILE_TWIN_STATE_H
#define CMQ_FILE_TWIN_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_test.h"

#define TWIN_SECTOR_BYTES 512u
#define TWIN_PAGE_BYTES 4096u
#define TWIN_FILE_BYTES_MAX (UINT64_C(256) << 20)
#define TWIN_FAULTS_MAX 16

/* What the twin itself needs of the file system below; a failure ends the test. */
#define MUST(call)                                                                                              \
    do {                                                                                                        \
        if ((call) != CMQ_OK) cmq_test_fail(__FILE__, __LINE__, "the twin: %s: %s", #call, cmq_last_error()->text); \
    } while (0)

/* A file's content at one moment. Bytes from `bytes` to `room` are zero (but in `middle`), so that images of other
 * lengths compare without care. */
typedef struct twin_bytes {
    uint8_t *data;
    uint64_t bytes;
    uint64_t room;       /* whole pages */
    uint64_t capacity;   /* allocated; at least room */
} twin_bytes;

typedef struct twin_node twin_node;
struct twin_node {
    twin_node *next;
    bool is_directory;
    cmq_file *content;      /* files: the real file, open to read until the node goes. Never closed before: it may be a
                             * lock file */
    twin_bytes synced;      /* certainly on disk */
    twin_bytes middle;      /* some moment between then and now, for sectors that were written back early; empty:
                             * none */
    twin_bytes failed;      /* the content when a sync failed; empty: none did */
    uint8_t *lost;          /* per sector of `failed`: 1 when it was dirty then, and so is not covered by a later
                             * sync */
    bool lost_length;
    bool touched;           /* may differ from synced; files only */
    uint32_t writable_mappings, mappings, handles;
};

typedef struct twin_name {
    twin_node *directory;
    twin_node *node;
    char *text;
} twin_name;

typedef struct twin_names {
    twin_name *items;   /* texts owned */
    size_t count, room;
} twin_names;

/* One change of names. Where a node gets a name: to_directory is set. Where it loses one: from_directory is set.
 * Rename: both. */
typedef struct twin_change {
    twin_node *node;
    twin_node *from_directory, *to_directory;
    char *from, *to;
} twin_change;

typedef struct twin_mapping {
    uint8_t *address;
    size_t bytes;
    uint64_t offset;
    twin_node *node;
    bool writable;
} twin_mapping;

struct cmq_file_twin {
    cmq_fs base;
    cmq_fs *below;                /* where the files really are */
    pthread_mutex_t mutex;        /* guards all below */
    char *root;
    size_t root_bytes;
    uint64_t random_state;
    twin_node *nodes;
    twin_node *root_node;
    twin_names live, durable;
    twin_change *changes;
    size_t change_count, change_room;
    twin_mapping *mappings;
    size_t mapping_count, mapping_room;
    twin_bytes now;               /* scratch: a file as it is */
    twin_bytes image;             /* scratch: a file as it may be */
    uint64_t image_count;
    uint64_t counts[CMQ_TWIN_KINDS + 1];
    uint64_t failure_count;
    cmq_twin_fault faults[TWIN_FAULTS_MAX];   /* nth is absolute here */
    size_t fault_count;
    unsigned ignored_syncs;
    bool has_disk_space;
    cmq_disk_space disk_space;
    uint64_t hook_nth;
    cmq_twin_hook hook;
    void *hook_context;
};

/* Random numbers of the twin's own seed. */
uint64_t twin_random(cmq_file_twin *twin);
uint64_t twin_random_below(cmq_file_twin *twin, uint64_t bound);

void *twin_grow(void *items, size_t *room, size_t count, size_t item_bytes);   /* room for one more */

/* ---- bytes ---- */

/* Room for at least `bytes`; new bytes are zero. */
void twin_bytes_need(twin_bytes *image, uint64_t bytes);
void twin_bytes_set_length(twin_bytes *image, uint64_t bytes);
void twin_bytes_free(twin_bytes *image);

/* ---- nodes and names ---- */

/* Make a node for the real file or directory at `path`; a file's content counts as synced when `is_durable`. */
twin_node *twin_node_make(cmq_file_twin *twin, const char *path, bool is_directory, bool is_durable);

/* Take in all that lies below the real directory `path` as durable. */
void twin_adopt_all(cmq_file_twin *twin, twin_node *directory, const char *path);

void twin_free_all(cmq_file_twin *twin);   /* nodes, names, changes */

/* Free nodes that no name, change, handle or mapping knows. */
void twin_collect(cmq_file_twin *twin);

twin_node *twin_names_get(const twin_names *names, const twin_node *directory, const char *text);
/* node NULL removes */
void twin_names_set(twin_names *names, twin_node *directory, const char *text, twin_node *node);
void twin_names_copy(twin_names *into, const twin_names *from);
void twin_names_free(twin_names *names);

#define TWIN_NAME_BYTES 256

/* Where a path lies: its directory's node and its last name. False when it is not below the root, or its directory is
 * not there. */
bool twin_find_parent(cmq_file_twin *twin, const char *path, twin_node **directory_out, char name_out[TWIN_NAME_BYTES]);

/* The node at `path`; NULL when there is none or it is outside the root. A file that was made behind the twin's back is
 * taken in as durable. */
twin_node *twin_find(cmq_file_twin *twin, const char *path);

bool twin_is_inside(const cmq_file_twin *twin, const char *path);

/* ---- changes of names ---- */

/* Do it in `live` and remember it as pending; NULL directories as in twin_change. */
void twin_change_add(cmq_file_twin *twin, twin_node *node, twin_node *from_directory, const char *from,
                     twin_node *to_directory, const char *to);

void twin_change_apply(twin_names *names, const twin_change *change);

/* Whether both touch one name: then the later one cannot survive without the earlier one. */
bool twin_changes_share_a_name(const twin_change *a, const twin_change *b);

/* Make pending changes in `directory` durable, and what they stand on; NULL: all. */
void twin_changes_commit(cmq_file_twin *twin, const twin_node *directory);

/* ---- content ---- */

/* The file as it is now, into twin->now. */
void twin_read_now(cmq_file_twin *twin, const twin_node *node);

/* Sector `sector` as it is in an image; zeros behind its end. */
const uint8_t *twin_sector(const twin_bytes *image, uint64_t sector);

bool twin_same_bytes(const twin_bytes *a, const twin_bytes *b);

/* Make [offset, end) durable, in whole pages; and the length, when `whole` or when the range needs it. */
void twin_node_sync(cmq_file_twin *twin, twin_node *node, uint64_t offset, uint64_t end, bool whole);

/* A sync of that range failed: a later one will not cover its dirty sectors. */
void twin_node_sync_failed(cmq_file_twin *twin, twin_node *node, uint64_t offset, uint64_t end);

/* [offset, end) was written again, so a later sync covers it. */
void twin_node_written(twin_node *node, uint64_t offset, uint64_t end);

/* Write back some sectors of some file early: the disk may keep them as they are now, whatever comes. */
void twin_write_back_some(cmq_file_twin *twin);

#endif
