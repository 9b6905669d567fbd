/* cmq_host: see cmq_host.h. */
#include "base/cmq_host.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define START_FIELD 20   /* of /proc/PID/stat, counted from the one behind the name */

static uint8_t boot_id[CMQ_BOOT_ID_BYTES];
static bool boot_known;
static uint64_t pid_namespace;

/* A short file of /proc as text; false when it cannot be read. */
static bool read_text(const char *path, char *into, size_t capacity)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return false;
    const ssize_t bytes = read(descriptor, into, capacity - 1);
    close(descriptor);
    if (bytes <= 0) return false;
    into[bytes] = '\0';
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* 32 hexadecimal digits with dashes between. */
static bool parse_boot_id(const char *text)
{
    int digits = 0;
    for (; *text != '\0' && *text != '\n'; text++) {
        const int digit = hex_digit(*text);
        if (*text == '-') continue;
        if (digit < 0 || digits == 2 * CMQ_BOOT_ID_BYTES) return false;
        boot_id[digits / 2] = (uint8_t)(boot_id[digits / 2] << 4 | digit);
        digits++;
    }
    return digits == 2 * CMQ_BOOT_ID_BYTES;
}

static void learn(void)
{
    char text[64];
    struct stat status;
    boot_known = read_text("/proc/sys/kernel/random/boot_id", text, sizeof text) && parse_boot_id(text);
    if (!boot_known) memset(boot_id, 0, sizeof boot_id);
    if (stat("/proc/self/ns/pid", &status) == 0) pid_namespace = (uint64_t)status.st_ino;
}

static void learn_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, learn);
}

bool cmq_host_boot_id(uint8_t id_out[CMQ_BOOT_ID_BYTES])
{
    learn_once();
    memcpy(id_out, boot_id, sizeof boot_id);
    return boot_known;
}

uint64_t cmq_host_pid_namespace(void)
{
    learn_once();
    return pid_namespace;
}

uint64_t cmq_host_process_start(int64_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    if (!read_text(path, text, sizeof text)) return 0;
    /* The name stands in parentheses, and may hold any others. */
    const char *at = strrchr(text, ')');
    for (int field = 0; at != NULL && field < START_FIELD; field++) at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

bool cmq_host_release_is(const char *release, int major, int minor)
{
    int found_major, found_minor;
    if (sscanf(release, "%d.%d", &found_major, &found_minor) != 2) return true;
    return found_major > major || (found_major == major && found_minor >= minor);
}

bool cmq_host_syncfs_reports(void)
{
    struct utsname system;
    return uname(&system) != 0 || cmq_host_release_is(system.release, 5, 8);
}
