/* cmq_relief: where the process has no descriptor left, caches of open files close what nobody uses, and the call is
 * made again.
 *
 * Owns:    nothing; a cache puts its own entry on the list while it lives.
 * Threads: any. Nobody waits: while one thread has caches close files, the call of another fails as it would without.
 * Fork:    the list is whole in a child.
 */
#ifndef CMQ_RELIEF_H
#define CMQ_RELIEF_H

#include <stdbool.h>

typedef struct cmq_relief {
    struct cmq_relief *next;
    bool (*close_some)(void *context);   /* true: some were closed. Opens nothing */
    void *context;
} cmq_relief;

void cmq_relief_join(cmq_relief *cache);
void cmq_relief_leave(cmq_relief *cache);

/* Have all caches close files; true when some were. Keeps errno. */
bool cmq_relief_ask(void);

#endif
