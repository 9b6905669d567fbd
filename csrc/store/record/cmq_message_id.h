/* cmq_message_id: the offset message id, upper-case hexadecimal of store host, port and physical offset.
 *
 * Threads: any; pure functions.
 * Source:  store specification 2.12, last line.
 */
#ifndef CMQ_MESSAGE_ID_H
#define CMQ_MESSAGE_ID_H

#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "store/record/cmq_record.h"

#define CMQ_MESSAGE_ID_BYTES_MAX 56   /* 32 with an IPv4 store host */

/* Write the id, without a NUL; returns 32 or 56. */
size_t cmq_message_id_format(const cmq_record_host *store_host, int64_t physical_offset,
                             char id_out[CMQ_MESSAGE_ID_BYTES_MAX]);

/* Read an id; lower case is taken too. CMQ_ERR_ARGUMENT when it has not 32 or 56 hexadecimal digits. */
CMQ_MUST_CHECK cmq_status cmq_message_id_parse(cmq_slice id, cmq_record_host *store_host_out,
                                               int64_t *physical_offset_out);

#endif
