/* cmq_observed_fs: the system's files, with a look after each call that changes one: what do others see meanwhile?
 *
 * Owns:    one file system for the process.
 * Threads: the one that uses the file system.
 */
#ifndef CMQ_OBSERVED_FS_H
#define CMQ_OBSERVED_FS_H

#include "base/cmq_file.h"

/* `look` is called after each write, punch and removal, and with `opens` after each open. NULL: no more. */
cmq_fs *cmq_observed_fs(void (*look)(void), bool opens);

#endif
