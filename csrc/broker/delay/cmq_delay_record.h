/* cmq_delay_record: the delivery target of a parked record, and whether a record is its delivery.
 *
 * A delivery has everything of the parked record but its topic, queue, offsets and store time: body and body CRC as
 * stored, properties (DELAY, REAL_TOPIC and REAL_QID among them) in their order, flags, hosts, born time, reconsume
 * times.
 *
 * Threads: any; pure functions over borrowed bytes.
 * Source:  specification store 9.3; upstream's ScheduleMessageService.messageTimeUp. Held against records that brokers
 *          4.9.7 and 5.3.3 wrote.
 */
#ifndef CMQ_DELAY_RECORD_H
#define CMQ_DELAY_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"
#include "store/cmq_store.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_tags_code.h"

/* The delivery target of a parked record; CMQ_ERR_CORRUPT when it has none, or names a topic that takes no
 * deliveries. */
cmq_status CMQ_MUST_CHECK cmq_delay_target(const cmq_record_view *parked, cmq_slice *topic_out, int32_t *queue_id_out);

/* Fill the append of its delivery, which does not wait for the disk. `scratch` takes the properties if they must be
 * rewritten; it, the record and the target outlive the append. */
#define CMQ_DELAY_SCRATCH_BYTES (CMQ_PROPERTY_BYTES_MAX + 1)
cmq_status CMQ_MUST_CHECK cmq_delay_make_append(const cmq_record_view *parked, cmq_slice topic, int32_t queue_id,
                                                uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES], cmq_append *append_out);

/* The level from which a record was delivered; 0: it is no delivery. */
int32_t cmq_delay_delivered_level(const cmq_delay_levels *levels, const cmq_record_view *record);

/* Is `record`, a delivery by its looks, the one of `parked`? */
bool cmq_delay_is_delivery(const cmq_record_view *parked, const cmq_record_view *record);

#endif
