/* cmq_alarm: see cmq_alarm.h. A timer of the wall clock, which also fires when somebody sets the clock, and an
 * eventfd. */
#include "broker/delay/cmq_alarm.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_assert.h"

cmq_status cmq_alarm_open(cmq_alarm *alarm, bool timed)
{
    alarm->timed = timed;
    alarm->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    alarm->timer_fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (alarm->event_fd < 0 || alarm->timer_fd < 0)
        return cmq_fail_errno(errno, "cannot make the timer of a service of the broker");
    return CMQ_OK;
}

void cmq_alarm_close(cmq_alarm *alarm)
{
    if (alarm->event_fd >= 0) close(alarm->event_fd);
    if (alarm->timer_fd >= 0) close(alarm->timer_fd);
    alarm->event_fd = alarm->timer_fd = -1;
}

void cmq_alarm_poke(cmq_alarm *alarm)
{
    const uint64_t one = 1;
    const ssize_t written = write(alarm->event_fd, &one, sizeof one);
    CMQ_ASSERT(written == (ssize_t)sizeof one || errno == EAGAIN);   /* full: somebody has not looked yet, and will */
}

void cmq_alarm_sleep(const cmq_alarm *alarm, int64_t until_ms)
{
    const bool timed = alarm->timed && until_ms != CMQ_ALARM_NEVER;
    const int64_t at_ms = until_ms > 0 ? until_ms : 1;   /* 0 would mean never */
    struct itimerspec until = {0};
    if (timed)
        until.it_value = (struct timespec){.tv_sec = (time_t)(at_ms / 1000), .tv_nsec = (long)(at_ms % 1000) * 1000000};
    const int set = timerfd_settime(alarm->timer_fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &until, NULL);
    CMQ_ASSERT(set == 0 || errno == ECANCELED);
    struct pollfd ready[2] = {{.fd = alarm->event_fd, .events = POLLIN}, {.fd = alarm->timer_fd, .events = POLLIN}};
    uint64_t count;
    while (poll(ready, timed ? 2 : 1, -1) < 0) CMQ_ASSERT(errno == EINTR);
    const ssize_t drained = read(alarm->event_fd, &count, sizeof count);
    CMQ_ASSERT(drained == (ssize_t)sizeof count || errno == EAGAIN);
}
