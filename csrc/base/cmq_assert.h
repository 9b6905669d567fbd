/* cmq_assert: invariants that stay on in release builds. Bad input never reaches one: it gets a status. */
#ifndef CMQ_ASSERT_H
#define CMQ_ASSERT_H

_Noreturn void cmq_assert_fail(const char *expression, const char *file, int line, const char *function);

/* A programmer's mistake: prints where, and aborts. One fact per assert. */
#define CMQ_ASSERT(condition)                                                         \
    do {                                                                              \
        if (__builtin_expect(!(condition), 0))                                        \
            cmq_assert_fail(#condition, __FILE__, __LINE__, __func__);                \
    } while (0)

#endif
