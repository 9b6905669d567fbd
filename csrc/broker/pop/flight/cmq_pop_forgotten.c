/* cmq_pop_forgotten: see cmq_pop_forgotten.h. */
#include "broker/pop/flight/cmq_pop_forgotten.h"

#include <string.h>

#include "base/cmq_assert.h"

void cmq_pop_forgotten_begin(cmq_pop_forgotten *forgotten)
{
    memset(forgotten, 0, sizeof *forgotten);
    pthread_mutex_init(&forgotten->mutex, NULL);
}

void cmq_pop_forgotten_end(cmq_pop_forgotten *forgotten) { pthread_mutex_destroy(&forgotten->mutex); }

/* The mutex is held. NULL: it was not deleted lately. */
static cmq_pop_forgotten_topic *find(cmq_pop_forgotten *forgotten, cmq_slice topic)
{
    for (uint32_t i = 0; i < CMQ_POP_FORGOTTEN_MAX; i++) {
        cmq_pop_forgotten_topic *of = &forgotten->topics[i];
        if (of->name_bytes == topic.bytes && memcmp(of->name, topic.data, topic.bytes) == 0) return of;
    }
    return NULL;
}

void cmq_pop_forgotten_add(cmq_pop_forgotten *forgotten, cmq_slice topic, int64_t at_ms)
{
    CMQ_ASSERT(topic.bytes > 0);
    if (topic.bytes > CMQ_POP_FORGOTTEN_NAME_MAX) return;   /* no topic has such a name */
    pthread_mutex_lock(&forgotten->mutex);
    cmq_pop_forgotten_topic *of = find(forgotten, topic);
    if (of == NULL) {
        of = &forgotten->topics[forgotten->next];
        forgotten->next = (forgotten->next + 1) % CMQ_POP_FORGOTTEN_MAX;
        of->name_bytes = (uint8_t)topic.bytes;
        memcpy(of->name, topic.data, topic.bytes);
    }
    of->at_ms = at_ms;
    pthread_mutex_unlock(&forgotten->mutex);
}

bool cmq_pop_forgotten_has(cmq_pop_forgotten *forgotten, cmq_slice topic, int64_t pop_ms)
{
    pthread_mutex_lock(&forgotten->mutex);
    const cmq_pop_forgotten_topic *of = topic.bytes > 0 ? find(forgotten, topic) : NULL;
    const bool has = of != NULL && pop_ms <= of->at_ms;
    pthread_mutex_unlock(&forgotten->mutex);
    return has;
}
