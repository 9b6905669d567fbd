# The structs of the Arrow C data and stream interfaces: the part of csrc/export/cmq_arrow_abi.h that the bindings use.
from libc.stdint cimport int64_t


cdef extern from "export/cmq_arrow_abi.h" nogil:
    ctypedef struct ArrowSchema "struct ArrowSchema":
        const char *format
        ArrowSchema *dictionary
        void (*release)(ArrowSchema *) noexcept

    ctypedef struct ArrowArray "struct ArrowArray":
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        const void **buffers
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept

    ctypedef struct ArrowArrayStream "struct ArrowArrayStream":
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *out) noexcept
        int (*get_next)(ArrowArrayStream *, ArrowArray *out) noexcept
        const char *(*get_last_error)(ArrowArrayStream *) noexcept
        void (*release)(ArrowArrayStream *) noexcept
        void *private_data
