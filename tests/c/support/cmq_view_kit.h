/* cmq_view_kit: views (read-only stores) of a store that a test writes, and a foreign process that holds its lock. */
#ifndef CMQ_VIEW_KIT_H
#define CMQ_VIEW_KIT_H

#include "support/cmq_store_kit.h"

extern char view_root[CMQ_PATH_BYTES];    /* the store */
extern char view_other[CMQ_PATH_BYTES];   /* another one beside it */

/* New paths, nothing at them, and the clock of the kit. */
void view_kit_start(void);

cmq_store *view_kit_open(void);

/* Brought up to date, the view has these messages, by log and by topic ("T"). */
void view_kit_check(cmq_store *view, const char *expected);

/* Another process holds the lock of view_root, as a broker does, until it is killed. */
void view_kit_hold_lock(void);
void view_kit_release_lock(void);

#endif
