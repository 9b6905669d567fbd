/* cmq_host: which boot of which machine this is, and who a process id means. What a file that outlives its writer is judged by.
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

/* The namespace in which this process's ids mean what they mean; 0: not known. */
uint64_t cmq_host_pid_namespace(void);

/* When a process of this namespace began, in ticks since the boot; 0 where there is none, or it is not known. With its id it names a process for good. */
uint64_t cmq_host_process_start(int64_t pid);

#endif
