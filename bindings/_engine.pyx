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


def status_name(int status):
    """Return the C name of a status code, for example ``CMQ_ERR_IO``."""
    return cmq_status_name(<cmq_status>status).decode()
