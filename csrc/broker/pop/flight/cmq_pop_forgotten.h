/* cmq_pop_forgotten: when topics were deleted last, so that a handle of a pop before that is not taken for one of the
 * topic of the same name that was created since: their offsets are the same.
 *
 * Owns:    the names and times of the last CMQ_POP_FORGOTTEN_MAX deletions. In memory: after a restart such a handle is
 *          taken for the new topic's, and at most makes a message come later, or twice.
 * Threads: any; a mutex of its own.
 * Way:     the control plane's deletion -> [cmq_pop_forgotten] -> change of an invisible time
 */
#ifndef CMQ_POP_FORGOTTEN_H
#define CMQ_POP_FORGOTTEN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"

#define CMQ_POP_FORGOTTEN_MAX 256u
#define CMQ_POP_FORGOTTEN_NAME_MAX 255u

typedef struct cmq_pop_forgotten_topic {
    int64_t at_ms;
    uint8_t name_bytes;            /* 0: none */
    uint8_t name[CMQ_POP_FORGOTTEN_NAME_MAX];
} cmq_pop_forgotten_topic;

typedef struct cmq_pop_forgotten {
    pthread_mutex_t mutex;
    uint32_t next;                 /* the oldest, which the next deletion takes */
    cmq_pop_forgotten_topic topics[CMQ_POP_FORGOTTEN_MAX];
} cmq_pop_forgotten;

void cmq_pop_forgotten_begin(cmq_pop_forgotten *forgotten);
void cmq_pop_forgotten_end(cmq_pop_forgotten *forgotten);

/* The topic was deleted at this time. */
void cmq_pop_forgotten_add(cmq_pop_forgotten *forgotten, cmq_slice topic, int64_t at_ms);

/* Was a pop of this time before the topic's last deletion? */
bool cmq_pop_forgotten_has(cmq_pop_forgotten *forgotten, cmq_slice topic, int64_t pop_ms);

#endif
