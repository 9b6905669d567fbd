/* cmq_relief: see cmq_relief.h. */
#include "base/cmq_relief.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static cmq_relief *first;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }

/* Without the handlers a child might wait for a thread that only its parent has. */
static void keep_over_forks(void) { (void)pthread_atfork(before_fork, after_fork, after_fork); }

void cmq_relief_join(cmq_relief *cache)
{
    pthread_once(&once, keep_over_forks);
    pthread_mutex_lock(&mutex);
    cache->next = first;
    first = cache;
    pthread_mutex_unlock(&mutex);
}

void cmq_relief_leave(cmq_relief *cache)
{
    pthread_mutex_lock(&mutex);
    cmq_relief **at = &first;
    while (*at != NULL && *at != cache) at = &(*at)->next;
    if (*at != NULL) *at = cache->next;
    pthread_mutex_unlock(&mutex);
}

bool cmq_relief_ask(void)
{
    const int failed = errno;
    bool closed = false;
    /* No waiting: the caller may hold a lock of its own that a fork takes as well. */
    if (pthread_mutex_trylock(&mutex) == 0) {
        for (cmq_relief *cache = first; cache != NULL; cache = cache->next) closed |= cache->close_some(cache->context);
        pthread_mutex_unlock(&mutex);
    }
    errno = failed;
    return closed;
}
