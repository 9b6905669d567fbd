/* cmq_jvm_handles: see cmq_jvm_handles.h.
 *
 * A number is a slot and the slot's generation. Slots are used again with the next generation.
 */
#include "cmq_jvm_handles.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define SLOT_BITS 24
#define SLOTS_MAX (UINT32_C(1) << SLOT_BITS)
#define SLOTS_MIN 64u

typedef struct slot {
    cmq_handle_kind kind;
    int64_t generation;   /* from 1 on */
    void *object;
    void (*destroy)(void *object);
    int64_t parent;
    uint32_t users;
    bool closing;
    uint32_t next_free;
} slot;

/* Guards the table below; no object is destroyed while it is held. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static slot *slots;
static uint32_t slot_count, used_count;
static uint32_t first_free = UINT32_MAX;
static int64_t object_count;

static bool add_slots(void)
{
    if (slot_count == SLOTS_MAX) return false;
    const uint32_t count = slot_count == 0 ? SLOTS_MIN : 2 * slot_count;
    slot *grown = realloc(slots, count * sizeof *grown);
    if (grown == NULL) return false;
    for (uint32_t i = slot_count; i < count; i++) grown[i] = (slot){.next_free = UINT32_MAX};
    slots = grown;
    slot_count = count;
    return true;
}

static slot *slot_of(int64_t number)
{
    const int64_t index = number & (SLOTS_MAX - 1);
    if (number <= 0 || index >= used_count) return NULL;
    slot *found = &slots[index];
    return found->kind != CMQ_HANDLE_FREE && found->generation == number >> SLOT_BITS ? found : NULL;
}

int64_t cmq_handles_add(cmq_handle_kind kind, void *object, void (*destroy)(void *object), int64_t parent)
{
    int64_t number = 0;
    pthread_mutex_lock(&mutex);
    uint32_t index = first_free;
    if (index != UINT32_MAX) first_free = slots[index].next_free;
    else if (used_count < slot_count || add_slots()) index = used_count++;
    if (index != UINT32_MAX) {
        slot *taken = &slots[index];
        *taken = (slot){.kind = kind,
                        .generation = taken->generation + 1,
                        .object = object,
                        .destroy = destroy,
                        .parent = parent,
                        .next_free = UINT32_MAX};
        number = taken->generation << SLOT_BITS | (int64_t)index;
        object_count++;
    }
    pthread_mutex_unlock(&mutex);
    if (number == 0) {
        const cmq_status failed = cmq_fail(CMQ_ERR_MEMORY, "no memory for one more handle");
        (void)failed;
    }
    return number;
}

cmq_status cmq_handles_enter(int64_t number, cmq_handle_kind kind, void **object_out)
{
    static const char *const names[] = {"handle", "store", "scan", "batch", "staged file"};
    cmq_status status = CMQ_ERR_CLOSED;
    pthread_mutex_lock(&mutex);
    slot *found = slot_of(number);
    if (found != NULL && found->kind == kind && !found->closing) {
        const bool takes_one = kind == CMQ_HANDLE_SCAN || kind == CMQ_HANDLE_ROWS;
        status = takes_one && found->users > 0 ? CMQ_AGAIN : CMQ_OK;
        if (status == CMQ_OK) {
            found->users++;
            *object_out = found->object;
        }
    }
    pthread_mutex_unlock(&mutex);
    return status == CMQ_ERR_CLOSED ? cmq_fail(CMQ_ERR_CLOSED, "the %s is closed", names[kind]) : status;
}

/* Under the mutex: empty the slot. The caller destroys *ended_out outside of it. */
static void end_slot(slot *ending, slot *ended_out)
{
    *ended_out = *ending;
    ending->kind = CMQ_HANDLE_FREE;
    ending->object = NULL;
    ending->next_free = first_free;
    first_free = (uint32_t)(ending - slots);
    object_count--;
}

static void destroy(const slot *ended)
{
    if (ended->kind == CMQ_HANDLE_FREE) return;
    ended->destroy(ended->object);
    if (ended->parent != 0) cmq_handles_leave(ended->parent);
}

void cmq_handles_leave(int64_t number)
{
    slot ended = {.kind = CMQ_HANDLE_FREE};
    pthread_mutex_lock(&mutex);
    slot *found = slot_of(number);
    if (found != NULL && found->users > 0 && --found->users == 0 && found->closing) end_slot(found, &ended);
    pthread_mutex_unlock(&mutex);
    destroy(&ended);
}

void cmq_handles_close(int64_t number, cmq_handle_kind kind)
{
    slot ended = {.kind = CMQ_HANDLE_FREE};
    pthread_mutex_lock(&mutex);
    slot *found = slot_of(number);
    if (found != NULL && found->kind == kind && !found->closing) {
        found->closing = true;
        if (found->users == 0) end_slot(found, &ended);
    }
    pthread_mutex_unlock(&mutex);
    destroy(&ended);
}

int64_t cmq_handles_count(void)
{
    pthread_mutex_lock(&mutex);
    const int64_t count = object_count;
    pthread_mutex_unlock(&mutex);
    return count;
}
