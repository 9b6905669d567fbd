# cython: language_level=3, embedsignature=False, binding=True
"""cometmq._engine: the compiled half of the package. Handles of the C engine as classes, statuses as exceptions.

No policy here: defaults, retries and names are Python's (src/cometmq), messages are C's (csrc). One module, because
cmq_core is linked statically and must be in the process once.
"""
from _cmq cimport *

from cometmq import errors as _errors

cdef extern from *:
    const char *CMQ_PACKAGE_VERSION

__version__ = CMQ_PACKAGE_VERSION.decode()


cdef int _check(cmq_status status) except -1:
    """The one way from a status to an exception. Call it on the thread that made the call, with the GIL held."""
    if status == CMQ_OK:
        return 0
    cdef const cmq_error *error = cmq_last_error()
    cdef bytes text = error.text
    raise _errors.from_engine(<int>status, text.decode("utf-8", "replace"), sys_errno=error.sys_errno,
                              offset=error.offset)


# The C enum's values by name, so that a test can hold errors.Status against them.
STATUS_CODES = {
    "OK": <int>CMQ_OK, "AGAIN": <int>CMQ_AGAIN, "END": <int>CMQ_END,
    "ERR_ARGUMENT": <int>CMQ_ERR_ARGUMENT, "ERR_TOPIC": <int>CMQ_ERR_TOPIC, "ERR_TOO_LARGE": <int>CMQ_ERR_TOO_LARGE,
    "ERR_NOT_FOUND": <int>CMQ_ERR_NOT_FOUND, "ERR_OFFSET": <int>CMQ_ERR_OFFSET, "ERR_CORRUPT": <int>CMQ_ERR_CORRUPT,
    "ERR_NOT_STORE": <int>CMQ_ERR_NOT_STORE, "ERR_AMBIGUOUS": <int>CMQ_ERR_AMBIGUOUS,
    "ERR_SETTING": <int>CMQ_ERR_SETTING, "ERR_IO": <int>CMQ_ERR_IO, "ERR_DISK_FULL": <int>CMQ_ERR_DISK_FULL,
    "ERR_LOCKED": <int>CMQ_ERR_LOCKED, "ERR_CLOSED": <int>CMQ_ERR_CLOSED, "ERR_FENCED": <int>CMQ_ERR_FENCED,
    "ERR_READ_ONLY": <int>CMQ_ERR_READ_ONLY, "ERR_MEMORY": <int>CMQ_ERR_MEMORY,
    "ERR_PERMISSION": <int>CMQ_ERR_PERMISSION, "ERR_LIMIT": <int>CMQ_ERR_LIMIT,
}


def java_hash(str text not None):
    """Return Java's ``String.hashCode`` of the text, as the signed 32-bit number that consume queues hold for a tag."""
    cdef bytes utf8 = text.encode("utf-8")
    cdef const uint8_t *data = utf8
    return <int32_t>cmq_jhash_extend(0, data, <size_t>len(utf8))


def crc31(const uint8_t[::1] data not None):
    """Return the CRC that a record holds of its body: zlib's CRC-32 without the top bit. Releases the GIL."""
    cdef size_t count = <size_t>data.shape[0]
    cdef const uint8_t *start = &data[0] if count else NULL
    cdef uint32_t value
    with nogil:
        value = cmq_crc31(start, count)
    return value


def crc_variant():
    """Return the name of the CRC implementation chosen for this machine, for example ``pclmul``."""
    return cmq_crc32_variant_name().decode()


def status_name(int status):
    """Return the C name of a status code, for example ``CMQ_ERR_IO``."""
    return cmq_status_name(<cmq_status>status).decode()
