/* Tests csrc/base/cmq_host.c: this boot, this namespace, and processes by the time of their start. */
#include "base/cmq_host.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cmq_test.h"

static void one_boot(void)
{
    static const uint8_t zeros[CMQ_BOOT_ID_BYTES];
    uint8_t first[CMQ_BOOT_ID_BYTES], second[CMQ_BOOT_ID_BYTES];
    const bool known = cmq_host_boot_id(first);
    CHECK(cmq_host_boot_id(second) == known);
    CHECK_BYTES(first, sizeof first, second, sizeof second);
    CHECK(known == (memcmp(first, zeros, sizeof first) != 0));
}

static void processes(void)
{
    const uint64_t own = cmq_host_process_start(getpid());
    CHECK(own > 0);
    CHECK(own == cmq_host_process_start(getpid()));
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        close(pipes[1]);
        _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(pipes[0]);
    CHECK(cmq_host_process_start(child) >= own);
    close(pipes[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(cmq_host_process_start(child) == 0);
    CHECK(cmq_host_process_start(-1) == 0);
    CHECK(cmq_host_pid_namespace() == cmq_host_pid_namespace());
}

static void releases(void)
{
    CHECK(cmq_host_release_is("5.8.0", 5, 8) && cmq_host_release_is("5.10.0-28-amd64", 5, 8) &&
          cmq_host_release_is("6.1.0+", 5, 8));
    CHECK(!cmq_host_release_is("5.7.19", 5, 8) && !cmq_host_release_is("4.19.0-27-amd64", 5, 8) &&
          !cmq_host_release_is("3.10.0-1160.el7.x86_64", 5, 8));
    CHECK(cmq_host_release_is("unknown", 5, 8));
}

CMQ_TEST_MAIN(CMQ_TEST(releases), CMQ_TEST(one_boot), CMQ_TEST(processes))
