/* cmq_unique_id: ids for messages whose sender gave none, as the official client makes them.
 *
 *     address (4 or 16) | process id, low 16 bits | a number of this process (4) | ms since the month began, local time
 *     (4) | counter (2)
 *
 * in capital hexadecimal: 32 or 56 characters. Unique as long as a process makes fewer than 65,536 in a millisecond.
 *
 * Threads: any. One atomic addition and one clock read each; the calendar once a month.
 * Source:  remoting specification 4.6; upstream's MessageClientIDSetter.
 */
#ifndef CMQ_UNIQUE_ID_H
#define CMQ_UNIQUE_ID_H

#include <stddef.h>

#include "store/record/cmq_record.h"

#define CMQ_UNIQUE_ID_BYTES_MAX 56

/* Write an id, without a NUL; returns 32 or 56. */
size_t cmq_unique_id_make(const cmq_record_host *host, char id_out[CMQ_UNIQUE_ID_BYTES_MAX]);

#endif
