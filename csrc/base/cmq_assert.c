/* cmq_assert: see cmq_assert.h. */
#include "base/cmq_assert.h"

#include <stdio.h>
#include <stdlib.h>

void cmq_assert_fail(const char *expression, const char *file, int line, const char *function)
{
    fprintf(stderr, "cometmq: invariant broken: %s, in %s at %s:%d\n", expression, function, file, line);
    abort();
}
