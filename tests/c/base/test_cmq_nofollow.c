/* Tests csrc/base/cmq_nofollow.c and what cmq_file_posix makes of it: no call follows a link, none waits for a FIFO.
 *
 * Each case runs with openat2 and with the walk of systems without it.
 */
#include "base/cmq_nofollow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cmq_file.h"
#include "support/cmq_test.h"

#define BUFFERS 8

static const char *home;

static const char *at(const char *name)
{
    static char buffers[BUFFERS][CMQ_PATH_BYTES];
    static unsigned next;
    char *into = buffers[next++ % BUFFERS];
    CHECK_OK(cmq_path_join(into, home, name));
    return into;
}

static void write_text(const char *path)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs("kept", file) >= 0 && fclose(file) == 0);
}

/* outside/kept and, in store/, links to it: to the folder, to the file, to nothing, to itself. */
static void make_links(void)
{
    home = cmq_test_directory();
    CHECK(mkdir(at("outside"), 0777) == 0 && mkdir(at("store"), 0777) == 0);
    write_text(at("outside/kept"));
    CHECK(symlink("../outside", at("store/folder")) == 0);
    CHECK(symlink("../outside/kept", at("store/file")) == 0);
    CHECK(symlink("../outside/new", at("store/dangling")) == 0);
    CHECK(symlink("loop", at("store/loop")) == 0);
    CHECK(mkfifo(at("store/fifo"), 0666) == 0);
    write_text(at("store/own"));
}

static void check_outside(void)
{
    struct stat found;
    char text[8] = {0};
    FILE *file = fopen(at("outside/kept"), "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL && fclose(file) == 0);
    CHECK(strcmp(text, "kept") == 0);
    CHECK(stat(at("outside/new"), &found) != 0);
}

static void check_refused(const char *name)
{
    cmq_fs *fs = cmq_fs_posix();
    cmq_file *file = NULL;
    cmq_file_info info;
    cmq_disk_space space;
    char **names;
    size_t count;
    const char *path = at(name);
    for (int mode = CMQ_OPEN_READ; mode <= CMQ_OPEN_CREATE; mode++)
        CHECK_STATUS(cmq_file_open(fs, path, (cmq_open_mode)mode, &file), CMQ_ERR_NOT_STORE);
    CHECK(cmq_file_open(fs, path, CMQ_OPEN_CREATE_NEW, &file) != CMQ_OK);
    CHECK_STATUS(cmq_fs_stat(fs, path, &info), CMQ_ERR_NOT_STORE);
    CHECK(cmq_fs_list(fs, path, &names, &count) != CMQ_OK);
    CHECK(cmq_fs_make_directory(fs, path) != CMQ_OK);
    CHECK(cmq_fs_sync_directory(fs, path) != CMQ_OK);
    CHECK(cmq_fs_sync_all(fs, path) != CMQ_OK);
    if (strcmp(name, "store/fifo") != 0) CHECK_STATUS(cmq_fs_disk_space(fs, path, &space), CMQ_ERR_NOT_STORE);
}

static void check_refused_below(void)
{
    cmq_fs *fs = cmq_fs_posix();
    CHECK_STATUS(cmq_fs_remove(fs, at("store/folder/kept")), CMQ_ERR_NOT_STORE);
    CHECK_STATUS(cmq_fs_rename(fs, at("store/folder/kept"), at("store/mine")), CMQ_ERR_NOT_STORE);
    CHECK_STATUS(cmq_fs_rename(fs, at("store/own"), at("store/folder/new")), CMQ_ERR_NOT_STORE);
    CHECK_STATUS(cmq_fs_make_directory(fs, at("store/folder/new")), CMQ_ERR_NOT_STORE);
    CHECK(cmq_fs_remove_directory(fs, at("store/folder")) != CMQ_OK);
}

static void check_removed_itself(void)
{
    static const char *const names[] = {"store/folder", "store/file", "store/dangling", "store/loop", "store/fifo"};
    struct stat found;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_OK(cmq_fs_remove(cmq_fs_posix(), at(names[i])));
        CHECK(lstat(at(names[i]), &found) != 0);
    }
}

static void nothing_is_followed(void)
{
    for (int walk = 0; walk < 2; walk++) {
        cmq_nofollow_walk_always(walk == 1);
        make_links();
        check_refused("store/folder");
        check_refused("store/file");
        check_refused("store/folder/kept");
        check_refused("store/dangling");
        check_refused("store/loop");
        check_refused("store/fifo");
        check_refused_below();
        check_removed_itself();
        check_outside();
    }
    cmq_nofollow_walk_always(false);
}

static void plain_paths_work(void)
{
    cmq_fs *fs = cmq_fs_posix();
    for (int walk = 0; walk < 2; walk++) {
        cmq_nofollow_walk_always(walk == 1);
        home = cmq_test_directory();
        cmq_file *file;
        cmq_file_info info;
        CHECK_OK(cmq_fs_make_directory(fs, at("a//b/./c/")));
        CHECK_OK(cmq_file_open(fs, at("a/b/../b//c/one"), CMQ_OPEN_CREATE_NEW, &file));
        cmq_file_close(file);
        CHECK_STATUS(cmq_file_open(fs, at("a/b/none"), CMQ_OPEN_READ, &file), CMQ_ERR_NOT_FOUND);
        CHECK_STATUS(cmq_file_open(fs, at("a/none/one"), CMQ_OPEN_CREATE, &file), CMQ_ERR_NOT_FOUND);
        CHECK_STATUS(cmq_file_open(fs, at("a/b/c/one/two"), CMQ_OPEN_READ, &file), CMQ_ERR_IO);
        CHECK_STATUS(cmq_file_open(fs, "", CMQ_OPEN_READ, &file), CMQ_ERR_NOT_FOUND);
        CHECK_OK(cmq_fs_rename(fs, at("a/b/c/one"), at("a/two")));
        CHECK_OK(cmq_fs_stat(fs, at("a/two"), &info));
        CHECK_OK(cmq_fs_stat(fs, "/", &info));
        CHECK(info.is_directory);
        CHECK_OK(cmq_fs_stat(fs, ".", &info));
    }
    cmq_nofollow_walk_always(false);
}

static void check_resolved(const char *path, const char *expected)
{
    char found[CMQ_PATH_BYTES];
    CHECK_OK(cmq_fs_resolve(cmq_fs_posix(), path, found));
    if (strcmp(found, expected) != 0)
        cmq_test_fail(__FILE__, __LINE__, "%s resolves to %s, expected %s", path, found, expected);
}

static void roots_are_resolved(void)
{
    char here[CMQ_PATH_BYTES], expected[CMQ_PATH_BYTES];
    make_links();
    check_resolved(at("store/folder"), at("outside"));
    check_resolved(at("store/folder/new/newer"), at("outside/new/newer"));
    check_resolved(at("store/dangling"), at("store/dangling"));
    check_resolved("/none-of-this/is", "/none-of-this/is");
    CHECK(realpath(".", here) != NULL);
    check_resolved(".", here);
    CHECK_OK(cmq_path_join(expected, here, "none-of-this/is"));
    check_resolved("none-of-this/is", expected);
    check_resolved("./none-of-this/is/", expected);
    CHECK(cmq_fs_resolve(cmq_fs_posix(), at("store/loop"), expected) != CMQ_OK);
    CHECK(cmq_fs_resolve(cmq_fs_posix(), "", expected) != CMQ_OK);
}

CMQ_TEST_MAIN(CMQ_TEST(nothing_is_followed), CMQ_TEST(plain_paths_work), CMQ_TEST(roots_are_resolved))
