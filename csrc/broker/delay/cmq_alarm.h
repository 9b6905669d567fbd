/* cmq_alarm: how a service's thread sleeps: until a time of the wall clock, somebody sets that clock, or it is poked.
 *
 * Threads: poke: any; the rest: the service's.
 */
#ifndef CMQ_ALARM_H
#define CMQ_ALARM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"

#define CMQ_ALARM_NEVER INT64_MAX

typedef struct cmq_alarm {
    int event_fd, timer_fd;      /* -1: none */
    bool timed;                  /* times are the system's; of a clock of the caller's only pokes tell */
} cmq_alarm;

/* Closing is fine whatever it returned. */
cmq_status CMQ_MUST_CHECK cmq_alarm_open(cmq_alarm *alarm, bool timed);
void cmq_alarm_close(cmq_alarm *alarm);

/* Wake it up, or let its next sleep end at once. */
void cmq_alarm_poke(cmq_alarm *alarm);

/* Sleep until then, or CMQ_ALARM_NEVER. May end early. */
void cmq_alarm_sleep(const cmq_alarm *alarm, int64_t until_ms);

#endif
