/* cmq_own_files: see cmq_own_files.h. */
#include "store/marks/cmq_own_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/cmq_file_tree.h"

#define STAMP_ATTEMPTS 1000

cmq_status cmq_own_files_make_removed(cmq_fs *fs, const char *root, int64_t now_ms,
                                      char stamp_out[CMQ_REMOVED_STAMP_BYTES], char path_out[CMQ_PATH_BYTES])
{
    const time_t seconds = (time_t)(now_ms / 1000);
    struct tm utc;
    char base[24];
    if (gmtime_r(&seconds, &utc) == NULL || strftime(base, sizeof base, "%Y%m%dT%H%M%SZ", &utc) == 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the clock says %" PRId64 " ms, which is not a valid time", now_ms);
    bool taken = true;
    for (int attempt = 1; attempt <= STAMP_ATTEMPTS && taken; attempt++) {
        if (attempt == 1) snprintf(stamp_out, CMQ_REMOVED_STAMP_BYTES, "%s", base);
        else snprintf(stamp_out, CMQ_REMOVED_STAMP_BYTES, "%s-%d", base, attempt);
        cmq_status status = cmq_path_join(path_out, root, CMQ_REMOVED_FOLDER);
        if (status == CMQ_OK) status = cmq_path_join(path_out, path_out, stamp_out);
        if (status == CMQ_OK) status = cmq_file_tree_exists(fs, path_out, &taken);
        if (status != CMQ_OK) return status;
    }
    if (taken)
        return cmq_fail(CMQ_ERR_LIMIT, "%d folders of this second are in " CMQ_REMOVED_FOLDER " already",
                        STAMP_ATTEMPTS);
    return cmq_fs_make_directory(fs, path_out);
}
