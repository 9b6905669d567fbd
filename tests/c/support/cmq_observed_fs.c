/* cmq_observed_fs: see cmq_observed_fs.h. */
#include "support/cmq_observed_fs.h"

static cmq_fs_ops ops;
static cmq_fs fs = {.ops = &ops};
static void (*observe)(void);

/* The look has errors of its own. */
static cmq_status after(cmq_status status)
{
    const cmq_error error = *cmq_last_error();
    observe();
    return status == CMQ_OK ? status : cmq_fail_again(&error);
}

static cmq_status observed_open(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    return after(cmq_fs_posix()->ops->open(self, path, mode, file_out));
}

static cmq_status observed_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    return after(cmq_fs_posix()->ops->write(file, offset, from, bytes));
}

static cmq_status observed_punch(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    return after(cmq_fs_posix()->ops->punch(file, offset, bytes));
}

static cmq_status observed_remove(cmq_fs *self, const char *path)
{
    return after(cmq_fs_posix()->ops->remove(self, path));
}

cmq_fs *cmq_observed_fs(void (*look)(void), bool opens)
{
    ops = *cmq_fs_posix()->ops;
    observe = look;
    if (look == NULL) return &fs;
    ops.write = observed_write;
    ops.punch = observed_punch;
    ops.remove = observed_remove;
    if (opens) ops.open = observed_open;
    return &fs;
}
