/* cmq_file_tree: looks at, copies, moves and removes files and folders, over cmq_file.
 *
 * Threads: any; nothing is kept.
 */
#ifndef CMQ_FILE_TREE_H
#define CMQ_FILE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

cmq_status CMQ_MUST_CHECK cmq_file_tree_exists(cmq_fs *fs, const char *path, bool *exists_out);

/* Copy [offset, offset + bytes) of a file into a new one, holes left out, durably but for its name; *copied_out: the
 * bytes that were no hole. */
cmq_status CMQ_MUST_CHECK cmq_file_tree_copy(cmq_fs *fs, const char *from, int64_t offset, int64_t bytes,
                                             const char *to, int64_t *copied_out);

/* Rename, or copy and remove where the two are on different file systems; durable but for the names. */
cmq_status CMQ_MUST_CHECK cmq_file_tree_move(cmq_fs *fs, const char *from, const char *to);

/* Remove a folder with its content; no error when it is missing. */
cmq_status CMQ_MUST_CHECK cmq_file_tree_remove(cmq_fs *fs, const char *path);

#endif
