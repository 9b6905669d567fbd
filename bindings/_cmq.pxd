# Every extern declaration of the C engine that the bindings use, and nothing else. Mirrors csrc/**/*.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "base/cmq_status.h" nogil:
    ctypedef enum cmq_status:
        CMQ_OK
        CMQ_AGAIN
        CMQ_END
        CMQ_ERR_ARGUMENT
        CMQ_ERR_TOPIC
        CMQ_ERR_TOO_LARGE
        CMQ_ERR_NOT_FOUND
        CMQ_ERR_OFFSET
        CMQ_ERR_CORRUPT
        CMQ_ERR_NOT_STORE
        CMQ_ERR_AMBIGUOUS
        CMQ_ERR_SETTING
        CMQ_ERR_IO
        CMQ_ERR_DISK_FULL
        CMQ_ERR_LOCKED
        CMQ_ERR_CLOSED
        CMQ_ERR_FENCED
        CMQ_ERR_READ_ONLY
        CMQ_ERR_MEMORY
        CMQ_ERR_PERMISSION
        CMQ_ERR_LIMIT

    ctypedef struct cmq_error:
        cmq_status status
        int sys_errno
        int64_t offset
        char text[512]

    const cmq_error *cmq_last_error()
    const char *cmq_status_name(cmq_status status)


cdef extern from "base/cmq_bytes.h" nogil:
    ctypedef struct cmq_slice:
        const uint8_t *data
        size_t bytes


cdef extern from "base/cmq_hash.h" nogil:
    uint32_t cmq_jhash_extend(uint32_t hash, const uint8_t *utf8, size_t bytes)


cdef extern from "base/cmq_crc32.h" nogil:
    uint32_t cmq_crc31(const void *data, size_t bytes)
    const char *cmq_crc32_variant_name()
