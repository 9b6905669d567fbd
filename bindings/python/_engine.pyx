# cython: language_level=3, embedsignature=False, binding=True, cdivision=True, auto_pickle=False, autotestdict=False
"""cometmq._engine: the compiled half of the package. Handles of the C engine as classes, statuses as exceptions.

No policy here: defaults, retries and names are Python's (src/cometmq), messages are C's (csrc). One module, because
cmq_core is linked statically and must be in the process once.

    _values.pxi    strings, hosts, properties and message ids between Python and C
    _columns.pxi   lists, numpy and Arrow arrays as the engine's columns
    _messages.pxi  Message: one stored message, over the mapped log
    _selector.pxi  Selector: an SQL92 expression
    _results.pxi   AppendResult, AppendManyResult: the places of stored messages
    _together.pxi  messages that are appended at once or not at all
    _store.pxi     StoreHandle: life, append, look-ups
    _reader.pxi    Reader: iteration
    _scan.pxi      ColumnScan: messages as Arrow columns
    _fed.pxi       RecordColumns: pulled records as Arrow columns
    _verify.pxi    verification and repair
    _offsetlog.pxi OffsetLog: the journal of committed offsets
    _wire.pxi      remoting commands
    _received.pxi  ReceivedMessage: a message that a consumer pulled
    _popped.pxi    the fields that a POP adds: queues, offsets, handles
    _message_table.pxi  MessageTable: a consumer's messages of one queue
    _client.pxi    sends and pulls of a client, and their answers
    _sending.pxi   SendFuture: sends in flight, and their waiters
    _producing.pxi messages on their way out: ids, properties, requests, batches
    _link.pxi      Link: one connection of a client
    _net.pxi       NetServer: sockets, and the queue from their loops to Python
    _broker.pxi    BrokerPlane: a broker's loops, and the tables that the control plane fills for them
    _load.pxi      LoadRun: the load generator

Every call into the engine holds its handle (StoreHandle.enter, leave), so that close() never frees it under a call.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from _arrow_abi cimport *
from _cmq cimport *
from _cmq_net cimport *
from _cmq_broker cimport *
from _cmq_load cimport *
from _cmq_client cimport *

import operator as _operator
import threading as _threading
import time as _time

from cometmq import errors as _errors
from cometmq._plural import counted as _counted

cdef extern from *:
    const char *CMQ_PACKAGE_VERSION
    void __builtin_prefetch(const void *address)

__version__ = CMQ_PACKAGE_VERSION.decode()

cdef extern from "Python.h":
    # On borrowed pointers: no reference is counted in the loops over a million messages.
    int PyBytes_CheckExact(PyObject *item)
    char *PyBytes_AS_STRING(PyObject *item)
    Py_ssize_t PyBytes_GET_SIZE(PyObject *item)
    PyObject *PyTuple_GET_ITEM(PyObject *items, Py_ssize_t index)
    void PyTuple_SET_ITEM(PyObject *items, Py_ssize_t index, PyObject *item)
    tuple PyTuple_New(Py_ssize_t size)
    void PyObject_GC_UnTrack(object item)
    PyObject *PyList_GET_ITEM(PyObject *items, Py_ssize_t index)
    Py_ssize_t PyList_GET_SIZE(PyObject *items)
    void Py_INCREF_BORROWED "Py_INCREF"(PyObject *item)
    void Py_DECREF_BORROWED "Py_DECREF"(PyObject *item)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size)   # the caller looks for NULL
    object PyMemoryView_FromObject(object exporter)
    object PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags)
    int PyBuffer_FillInfo(Py_buffer *view, object exporter, void *data, Py_ssize_t size, int read_only,
                          int flags) except -1
    int PyObject_GetBuffer(object exporter, Py_buffer *view, int flags) except -1
    void PyBuffer_Release(Py_buffer *view)
    int PyObject_CheckBuffer(object item)
    int PyBuffer_IsContiguous(const Py_buffer *view, char order)
    void *PyCapsule_GetPointer(object capsule, const char *name) except NULL
    object PyCapsule_New(void *pointer, const char *name, void (*destructor)(object) noexcept)
    int PyErr_ResourceWarning(object source, Py_ssize_t stack_level, const char *format, ...) except -1
    int PyBUF_SIMPLE
    int PyBUF_RECORDS_RO
    int PyBUF_READ

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)


# ---- forks -----------------------------------------------------------------------------------------------------------

# How often this process came out of a fork. A handle remembers it: in a child every handle of the parent is dead.
cdef unsigned long _forks = 0


cdef void _forked() noexcept nogil:
    global _forks
    _forks += 1


if pthread_atfork(NULL, NULL, _forked) != 0:
    raise MemoryError("the fork handler could not be registered")


# ---- statuses --------------------------------------------------------------------------------------------------------

cdef object _failure(cmq_status status, int64_t holder_pid=0):
    """The exception for a status. Call it on the thread that made the call, with the GIL held, before the next call."""
    cdef const cmq_error *error = cmq_last_error()
    if error.status != status:
        return _errors.from_engine(<int>status, cmq_status_name(status).decode())
    cdef bytes text = error.text
    return _errors.from_engine(<int>status, text.decode("utf-8", "replace"), sys_errno=error.sys_errno,
                               offset=error.offset, holder_pid=holder_pid)


cdef int _check(cmq_status status) except -1:
    """The one way from a status to an exception; see _failure."""
    if status == CMQ_OK:
        return 0
    raise _failure(status)


cdef int _check_topic(cmq_status status, str topic) except -1:
    """The same for a call that looks a topic up."""
    if status == CMQ_OK:
        return 0
    error = _failure(status)
    if status == CMQ_ERR_NOT_FOUND:
        raise _errors.TopicNotFound(error.message, topic=topic)
    raise error


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


def status_name(int status):
    """Return the C name of a status code, for example ``CMQ_ERR_IO``."""
    return cmq_status_name(<cmq_status>status).decode()


cdef int64_t _monotonic_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


include "_values.pxi"
include "_columns.pxi"
include "_messages.pxi"
include "_selector.pxi"
include "_results.pxi"
include "_together.pxi"
include "_store.pxi"
include "_reader.pxi"
include "_scan.pxi"
include "_fed.pxi"
include "_verify.pxi"
include "_offsetlog.pxi"
include "_wire.pxi"
include "_received.pxi"
include "_popped.pxi"
include "_message_table.pxi"
include "_client.pxi"
include "_link.pxi"
include "_sending.pxi"
include "_producing.pxi"
include "_net.pxi"
include "_broker.pxi"
include "_load.pxi"
