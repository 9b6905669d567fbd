/* cmq_view_kit: see cmq_view_kit.h. */
#include "support/cmq_view_kit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

char view_root[CMQ_PATH_BYTES], view_other[CMQ_PATH_BYTES];

static pid_t holder;

void view_kit_start(void)
{
    const char *directory = kit_directory();
    CHECK_OK(cmq_path_join(view_root, directory, "store"));
    CHECK_OK(cmq_path_join(view_other, directory, "other"));
    kit_set_clock();
}

cmq_store *view_kit_open(void)
{
    cmq_store_options options = kit_options(view_root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

void view_kit_check(cmq_store *view, const char *expected)
{
    CHECK_OK(cmq_store_refresh(view));
    CHECK_TEXT(kit_read_all(view), expected);
    if (expected[0] != '\0') CHECK_TEXT(kit_read_topic(view, "T"), expected);
}

void view_kit_hold_lock(void)
{
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    holder = fork();
    CHECK(holder >= 0);
    if (holder == 0) {
        const int file = open(kit_path(view_root, "lock"), O_RDWR | O_CREAT, 0644);
        const struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
        if (file < 0 || fcntl(file, F_SETLK, &lock) != 0 || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    close(ends[1]);
}

void view_kit_release_lock(void) { CHECK(kill(holder, SIGKILL) == 0 && waitpid(holder, NULL, 0) == holder); }
