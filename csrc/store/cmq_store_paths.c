/* cmq_store_paths: see cmq_store_paths.h. */
#include "store/cmq_store_paths.h"

#include <stdlib.h>
#include <string.h>

cmq_status cmq_store_paths_resolve(cmq_store_paths *paths, cmq_fs *fs, cmq_store_options *options)
{
    paths->count = 0;
    if (options->path == NULL || options->path[0] == '\0')
        return cmq_fail(CMQ_ERR_ARGUMENT, "the path of the store is empty");
    if (strlen(options->path) >= CMQ_PATH_BYTES)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the path of the store has more than %d bytes", CMQ_PATH_BYTES - 1);
    cmq_status status = cmq_fs_resolve(fs, options->path, paths->root);
    if (status == CMQ_OK && options->commitlog_path_count > CMQ_LOG_PATHS_MAX)
        status = cmq_fail(CMQ_ERR_SETTING, "storePathCommitLog names %u directories, must be 1 to %d",
                          options->commitlog_path_count, CMQ_LOG_PATHS_MAX);
    for (uint32_t i = 0; i < options->commitlog_path_count && status == CMQ_OK; i++) {
        char resolved[CMQ_PATH_BYTES];
        status = cmq_fs_resolve(fs, options->commitlog_paths[i], resolved);
        const char *copy = status == CMQ_OK ? strdup(resolved) : NULL;
        if (status == CMQ_OK && copy == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for the paths of the log");
        if (copy != NULL) paths->log[paths->count++] = copy;
    }
    if (status != CMQ_OK) return status;
    options->path = paths->root;
    if (paths->count > 0) options->commitlog_paths = paths->log;
    return CMQ_OK;
}

void cmq_store_paths_free(cmq_store_paths *paths)
{
    for (uint32_t i = 0; i < paths->count; i++) free((char *)paths->log[i]);
    paths->count = 0;
}
