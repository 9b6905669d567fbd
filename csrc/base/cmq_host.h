/* cmq_host: identifies this boot of this machine, and the process behind a process id, to judge files that outlive
 * their writer.
 *
 * Owns:    nothing. The boot's id and the namespace are read once per process and kept.
 * Threads: any.
 * Source:  /proc/sys/kernel/random/boot_id, /proc/self/ns/pid, /proc/PID/stat.
 */
#ifndef CMQ_HOST_H
#define CMQ_HOST_H

#include <stdbool.h>
#include <stdint.h>

#define CMQ_BOOT_ID_BYTES 16

/* The id of this boot; false, and zeros, where the system does not give it. Containers of one machine share it. */
bool cmq_host_boot_id(uint8_t id_out[CMQ_BOOT_ID_BYTES]);

/* Is a kernel's release, as "5.10.0-28-amd64", at least major.minor? True where it cannot be read. */
bool cmq_host_release_is(const char *release, int major, int minor);

/* Does syncfs report bytes that could not be written? Linux before 5.8 answers success, whatever became of them. */
bool cmq_host_syncfs_reports(void);

/* The namespace in which this process's ids mean what they mean; 0: not known. */
uint64_t cmq_host_pid_namespace(void);

/* Start time of a process of this namespace, in ticks since the boot; 0 when there is no such process, or it cannot be
 * read. Together with the id it identifies a process uniquely. */
uint64_t cmq_host_process_start(int64_t pid);

#endif
