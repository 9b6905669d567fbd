/* cmq_clock: see cmq_clock.h. */
#include "base/cmq_clock.h"

#include <stdatomic.h>
#include <time.h>

static int64_t system_now_ms(void *context)
{
    (void)context;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

cmq_clock cmq_clock_system(void) { return (cmq_clock){.now_ms = system_now_ms, .context = NULL}; }

static int64_t manual_now_ms(void *context)
{
    return atomic_load_explicit((const _Atomic int64_t *)context, memory_order_relaxed);
}

cmq_clock cmq_clock_manual(const _Atomic int64_t *now_ms)
{
    return (cmq_clock){.now_ms = manual_now_ms, .context = (void *)(uintptr_t)now_ms};
}
