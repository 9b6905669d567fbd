/* cmq_file_overwrites: does the system write blocks of this file, or of those made in this directory, again in their
 * place? By the file system's type, its flag for single files, and the extents that a file shares.
 *
 * Cost:    two or three system calls and 4 KiB of memory for the call; asked when a store is opened for writing.
 * Threads: any.
 */
#ifndef CMQ_FILE_OVERWRITES_H
#define CMQ_FILE_OVERWRITES_H

#include "base/cmq_file.h"

/* Where the system does not say: in place. */
cmq_overwrites cmq_file_overwrites_of(int descriptor);

#endif
