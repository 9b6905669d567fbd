"""The exceptions of CometMQ: one family rooted at :class:`Error`.

Every exception says in its text what happened and, where something can be done, what to do. ``status`` is the
engine's own code, ``retriable`` says whether the same call can succeed later without anything else being changed.
Classes also derive from the built-in exception that fits, so that ``except OSError`` finds a full disk.

"Nothing there yet" is never an exception: calls that wait return an empty result.
"""

from __future__ import annotations

import enum
import io
from typing import Any

__all__ = [
    "BodyMismatch",
    "BrokerError",
    "BrokerNotFound",
    "CannotListen",
    "ClientStateError",
    "ConnectionLost",
    "CorruptRecord",
    "DecompressionError",
    "DiskFull",
    "Error",
    "ForkedClient",
    "GroupBusy",
    "GroupTaken",
    "HandoffRejected",
    "HandoffWaiting",
    "HookFailed",
    "InvalidArgument",
    "InvalidTopic",
    "LimitReached",
    "MalformedBody",
    "MalformedCommand",
    "MessageTooLarge",
    "MissingLibrary",
    "NotAStore",
    "NotConnected",
    "NotEntered",
    "NotFound",
    "OffsetOutOfRange",
    "OutOfMemory",
    "PermissionDenied",
    "ReadOnlyStore",
    "ReplyTimeout",
    "RequestTimeout",
    "RouteNotFound",
    "SendFailed",
    "SettingConflict",
    "SettingNeeded",
    "Status",
    "StaleCursor",
    "StaleHandle",
    "StorageError",
    "StoreBusy",
    "StoreClosed",
    "StoreFenced",
    "StoreLocked",
    "TopicNotFound",
    "WrongType",
]


class Status(enum.IntEnum):
    """The C engine's status codes (``csrc/base/cmq_status.h``); a test holds the two lists together."""

    OK = 0
    AGAIN = -1
    END = -2
    ERR_ARGUMENT = -10
    ERR_TOPIC = -11
    ERR_TOO_LARGE = -12
    ERR_NOT_FOUND = -13
    ERR_OFFSET = -14
    ERR_CORRUPT = -15
    ERR_NOT_STORE = -16
    ERR_AMBIGUOUS = -17
    ERR_SETTING = -18
    ERR_IO = -30
    ERR_DISK_FULL = -31
    ERR_LOCKED = -32
    ERR_CLOSED = -33
    ERR_FENCED = -34
    ERR_READ_ONLY = -35
    ERR_MEMORY = -36
    ERR_PERMISSION = -37
    ERR_LIMIT = -38


class Error(Exception):
    """Base of everything that CometMQ raises on purpose. Catch it to catch them all.

    Attributes:
        message: the text, which is also ``str(error)``.
        status: the engine's status, or None when the error did not come from the engine.
        retriable: True when the same call can succeed later without a change on the caller's side.
        appended: for a call that appends several messages, how many were appended before the one at fault; else None.
    """

    status: Status | None = None
    retriable: bool = False
    appended: int | None = None

    def __init__(self, message: str, *, status: Status | None = None) -> None:
        """Keep the text; ``status`` overrides the class's own."""
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status

    def __str__(self) -> str:
        """Return the text alone, also for classes that derive from OSError."""
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by attributes, since the constructors of subclasses take keyword-only arguments."""
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[Error], args: tuple[Any, ...], attributes: dict[str, Any]) -> Error:
    # Not kind.__new__: of a class that derives from MemoryError that is one which refuses to make it.
    error = (OSError if issubclass(kind, OSError) else Exception).__new__(kind, *args)
    error.args = args
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


# --- Your input -------------------------------------------------------------------------------------------------------


class InvalidArgument(Error, ValueError):
    """A value is outside its documented range. Correct the call; the text names the argument and its range."""

    status = Status.ERR_ARGUMENT


class WrongType(InvalidArgument, TypeError):
    """An argument is of a type that the call does not take. The text names the argument and the types it takes."""


class NotEntered(Error, RuntimeError):
    """An object of ``cometmq.aio`` was used before it was entered or awaited. The text has the line to write."""


class InvalidTopic(InvalidArgument):
    """RocketMQ would refuse this topic name.

    Use letters, digits, ``%``, ``|``, ``-`` and ``_``, up to 127 characters, and none of the reserved names.
    """

    status = Status.ERR_TOPIC


class MessageTooLarge(InvalidArgument):
    """Body, properties or record are over their limit. Nothing was written. Split the message or raise the limit."""

    status = Status.ERR_TOO_LARGE


class NotFound(Error, LookupError):
    """There is no such queue, message, group or file. List what is there, or check the name."""

    status = Status.ERR_NOT_FOUND


class TopicNotFound(NotFound):
    """The store has no such topic. Check the spelling; an append to it would create it."""

    def __init__(self, message: str, *, topic: str | None = None, status: Status | None = None) -> None:
        """``topic`` is the name that was asked for."""
        super().__init__(message, status=status)
        self.topic = topic


class OffsetOutOfRange(Error, IndexError):
    """The offset lies outside the queue or log. Ask for the queue's minimum and maximum and start inside them.

    Attributes:
        offset: the offset that was asked for, or None.
    """

    status = Status.ERR_OFFSET

    def __init__(self, message: str, *, offset: int | None = None, status: Status | None = None) -> None:
        """``offset`` is the requested one."""
        super().__init__(message, status=status)
        self.offset = offset


class StaleCursor(Error, LookupError):
    """The messages behind a cursor are not there any more, or are others.

    Retention deleted them unread, or the topic was deleted and made again. ``on_loss="skip"`` continues with the
    messages that are there.

    Attributes:
        topic: the topic, or None.
        queue_id: the queue, or None.
    """

    def __init__(self, message: str, *, topic: str | None = None, queue_id: int | None = None) -> None:
        """``topic`` and ``queue_id`` are of the queue at fault."""
        super().__init__(message)
        self.topic = topic
        self.queue_id = queue_id


class CorruptRecord(Error):
    """Bytes in the store that are not a valid record, queue unit or file header.

    Run ``cometmq verify`` to see all of the damage and ``cometmq repair`` to rebuild what can be rebuilt.

    Attributes:
        offset: byte offset of the damage in its file or in the commit log, or None where it has none.
        reason: the damage there.
    """

    status = Status.ERR_CORRUPT

    def __init__(self, reason: str, *, offset: int | None = None, status: Status | None = None) -> None:
        """``reason`` is the text; ``offset`` is where the damage lies."""
        super().__init__(reason, status=status)
        self.offset = offset
        self.reason = reason


class DecompressionError(Error, ValueError):
    """A body is flagged as compressed, but its bytes are not in the format that the flags name.

    The stored bytes can still be read: ask for the raw body.
    """


class BodyMismatch(Error, ValueError):
    """A body does not fit the schema that it was to be decoded by.

    Correct the schema, or ask for nulls instead: ``on_bad_body="null"`` counts them, ``error_column`` has the reasons.

    Attributes:
        topic: the message's topic, or None.
        queue_id: its queue, or None.
        queue_offset: its queue offset, or None.
    """

    def __init__(
        self, message: str, *, topic: str | None = None, queue_id: int | None = None, queue_offset: int | None = None
    ) -> None:
        """Keep where the message is."""
        super().__init__(message)
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset


class NotAStore(Error, ValueError):
    """The directory is not a RocketMQ store, or has foreign or newer files where the store's should be.

    Check the path: it is the folder that holds ``commitlog``. An empty or missing folder becomes a new store.
    """

    status = Status.ERR_NOT_STORE


class SettingNeeded(Error, ValueError):
    """The directory does not name one of its own sizes. Give the setting that the text names.

    The broker's ``broker.properties``, passed as ``config``, has it.
    """

    status = Status.ERR_AMBIGUOUS


class SettingConflict(InvalidArgument):
    """A setting contradicts the files that are there. Leave it out or give the value that the text names."""

    status = Status.ERR_SETTING


# --- The world --------------------------------------------------------------------------------------------------------


class StorageError(Error, OSError):
    """A system call on one of the store's files failed. ``errno`` has the system's code; the text names the file."""

    status = Status.ERR_IO

    def __init__(self, message: str, *, errno: int | None = None, status: Status | None = None) -> None:
        """``errno`` is the failing system call's code, or None."""
        super().__init__(message, status=status)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with ``errno``, which OSError keeps outside the instance's dictionary."""
        return _restore, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class CannotListen(Error, OSError):
    """A server could not take one of its addresses.

    ``errno`` is the system's code: ``EADDRINUSE`` where another process listens there, ``EADDRNOTAVAIL`` where the
    machine has no such address, ``EACCES`` where the port is reserved.
    """

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        """``errno`` is the failing system call's code, or None."""
        super().__init__(message)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with ``errno``, which OSError keeps outside the instance's dictionary."""
        return _restore, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class DiskFull(StorageError):
    """The disk is full. Nothing was lost; reads go on, and the same append works again once there is space."""

    status = Status.ERR_DISK_FULL
    retriable = True


class PermissionDenied(StorageError, PermissionError):
    """The file system refuses access. Check owner and mode of the directory, or open the store read-only."""

    status = Status.ERR_PERMISSION


class StoreFenced(StorageError):
    """A write or an fsync failed earlier, so nothing more can be promised and the store takes no more appends.

    Messages acknowledged before are safe. Close the store, check the disk, and open it again: opening recovers.
    """

    status = Status.ERR_FENCED


class StoreLocked(Error):
    """Another process, or another handle in this one, is this store's writer.

    Open the store read-only to follow it live, wait until the holder has closed it, or, where a broker holds it,
    send through the broker.

    Attributes:
        holder_pid: process id of the writer, or None when it is not known.
    """

    status = Status.ERR_LOCKED
    retriable = True

    def __init__(self, message: str, *, holder_pid: int | None = None, status: Status | None = None) -> None:
        """``holder_pid`` is the writer's process id where the system reports it."""
        super().__init__(message, status=status)
        self.holder_pid = holder_pid


class StoreBusy(Error, RuntimeError):
    """Another thread or task is inside this reader. Give each one of its own; the store may be shared.

    Also close() inside a callback of the same store: it would wait for itself.
    """

    retriable = True


class GroupBusy(Error):
    """Another consumer of the group is open on the same queue in this process.

    Close it, or give each consumer queues of its own.
    """

    retriable = True


class HandoffRejected(InvalidArgument):
    """The store's writer cannot apply the work handed off to it. The text says why; the work was put aside."""


class HandoffWaiting(Error, TimeoutError):
    """The store's writer did not take the handed-off work in time. The work is on disk and will be applied.

    Do not hand it off again.
    """


class StoreClosed(Error, ValueError):
    """The store, or the reader or consumer made from it, was closed. Open it again."""

    status = Status.ERR_CLOSED


class ReadOnlyStore(Error, io.UnsupportedOperation):
    """The store was opened read-only. Open it for writing to append, commit or repair."""

    status = Status.ERR_READ_ONLY


class MissingLibrary(Error, ImportError):
    """A library that this call needs is not installed. The text has the command that installs it."""


class OutOfMemory(Error, MemoryError):
    """The engine could not get memory. Free some, or lower the sizes in the settings."""

    status = Status.ERR_MEMORY


class LimitReached(Error):
    """A named limit of CometMQ was reached. The text names it and how to raise it."""

    status = Status.ERR_LIMIT


# --- The other side of a connection ----------------------------------------------------------------------------------


class BrokerError(Error):
    """A broker or name server refused a request.

    ``code`` says why in upstream's numbers (:class:`cometmq.remoting.codes.ResponseCode` has their names). The request
    was not carried out, except where the code says that it was stored (10, 11, 12).

    Attributes:
        code: the response code, also where it is one that we do not know; 0 where the server gave none.
        remark: the server's own text, or None.
        address: the server, ``host:port``, or None.
        advice: the remedy, which is also the end of the text, or None.
    """

    _RETRIABLE = frozenset({2, 11, 14, 209, 215, 1500})

    def __init__(
        self, remark: str | None, *, code: int = 0, address: str | None = None, advice: str | None = None
    ) -> None:
        """Keep the server's answer; ``code`` is the response's, ``address`` the server's."""
        where = f" from {address}" if address else ""
        hint = f" ({advice})" if advice else ""
        head = f"code {code}{where}: " if code else ""
        super().__init__(f"{head}{(remark or 'no remark').strip()}{hint}")
        self.code = code
        self.advice = advice
        self.remark = remark
        self.address = address
        self.retriable = code in self._RETRIABLE


class ConnectionLost(Error, ConnectionError):
    """The connection could not be made, or ended before the answer came: the request's outcome is unknown.

    Check that the server runs and that its address is right; a later call makes a new connection.
    """

    retriable = True


class NotConnected(ConnectionLost):
    """The connection could not be made, so that the request was not sent: to make it again does nothing twice."""


class RequestTimeout(Error, TimeoutError):
    """No answer came in time: the request's outcome is unknown. Allow more time, or check the server."""

    retriable = True


class ReplyTimeout(RequestTimeout):
    """No reply to a request came in time. Allow more time, or check that a consumer of its topic replies.

    Attributes:
        topic: the request's topic.
        correlation_id: the id that the reply would have had.
        is_stored: True where a broker has stored the request, False where it had not been acknowledged.
    """

    def __init__(
        self, message: str, *, topic: str | None = None, correlation_id: str | None = None, is_stored: bool = False
    ) -> None:
        """Keep the request."""
        super().__init__(message)
        self.topic = topic
        self.correlation_id = correlation_id
        self.is_stored = is_stored


class SendFailed(Error):
    """A message was not acknowledged, after all attempts of its producer. ``__cause__`` is the last one's error.

    Where ``is_uncertain`` is True an attempt ended without an answer: the message may be stored, and sending it again
    may store it twice. The text has the fix where the last error has one.

    Attributes:
        topic: the topic.
        broker_names: the brokers that were tried, in order.
        code: the last broker's response code, or None where none answered.
        is_uncertain: True where the message may be stored all the same.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        broker_names: tuple[str, ...] = (),
        code: int | None = None,
        is_uncertain: bool = False,
    ) -> None:
        """Keep the brokers tried and the outcome."""
        super().__init__(message)
        self.topic = topic
        self.broker_names = broker_names
        self.code = code
        self.is_uncertain = is_uncertain


class MalformedCommand(Error, ValueError):
    """Bytes from a connection that are not a valid command, or fields of one that have the wrong form.

    Attributes:
        member: name of the field at fault, or None where it is not about one.
    """

    def __init__(self, message: str, *, member: str | None = None, status: Status | None = None) -> None:
        """``member`` is the field that is missing or wrong."""
        super().__init__(message, status=status)
        self.member = member


class MalformedBody(Error, ValueError):
    """The body of a command does not have the form that its code requires. The text names the place."""


# --- Producers and consumers ------------------------------------------------------------------------------------------


class ClientStateError(Error, RuntimeError):
    """A producer or consumer is not in the state that the call needs. The text names the state and what to do."""


class ForkedClient(ClientStateError):
    """The client was made in a process of which this one is a fork; its connections belong to that process.

    Make and start producers and consumers in the process that uses them, after the fork.
    """


class GroupTaken(Error):
    """Another producer or consumer of the group runs on the same client instance.

    Close it first, use another group, or give this one an ``instance_name`` of its own.

    Attributes:
        group: the group, or None.
    """

    def __init__(self, message: str, *, group: str | None = None, status: Status | None = None) -> None:
        """``group`` is the group that is taken."""
        super().__init__(message, status=status)
        self.group = group


class HookFailed(Error):
    """A hook of the caller's own (``rpc_hooks``) raised; ``__cause__`` is its exception.

    The text names the hook. After ``before_request`` nothing was sent, after ``after_answer`` the server has answered.
    """


class StaleHandle(Error, LookupError):
    """A popped message's handle is not valid any more: it cannot be acknowledged or hidden for longer by it.

    The message has expired, its topic was re-created or has fewer queues, or the handle is another broker's, or was
    changed on its way. If the message is still stored, it is redelivered. Brokers do not look up whether a message was
    acknowledged: a second or late acknowledgement does not raise StaleHandle.

    Attributes:
        handle: the handle, or None.
        code: the broker's response code, or None.
    """

    def __init__(self, message: str, *, handle: str | None = None, code: int | None = None) -> None:
        """Keep the handle and the broker's answer."""
        super().__init__(message)
        self.handle = handle
        self.code = code


class RouteNotFound(NotFound):
    """No name server knows where the topic is. Check its name, or create it: ``cometmq topic create``.

    Attributes:
        topic: the topic, or None.
    """

    retriable = True

    def __init__(self, message: str, *, topic: str | None = None, status: Status | None = None) -> None:
        """``topic`` is the name that was asked for."""
        super().__init__(message, status=status)
        self.topic = topic


class BrokerNotFound(NotFound):
    """No name server knows an address of the broker. Check that it runs and is registered: ``cometmq cluster show``.

    Attributes:
        broker_name: the broker's name, or None.
    """

    retriable = True

    def __init__(self, message: str, *, broker_name: str | None = None, status: Status | None = None) -> None:
        """``broker_name`` is the name that was asked for."""
        super().__init__(message, status=status)
        self.broker_name = broker_name


# --- From the engine --------------------------------------------------------------------------------------------------

_CLASS_OF: dict[Status, type[Error]] = {
    Status.ERR_ARGUMENT: InvalidArgument,
    Status.ERR_TOPIC: InvalidTopic,
    Status.ERR_TOO_LARGE: MessageTooLarge,
    Status.ERR_NOT_FOUND: NotFound,
    Status.ERR_NOT_STORE: NotAStore,
    Status.ERR_AMBIGUOUS: SettingNeeded,
    Status.ERR_SETTING: SettingConflict,
    Status.ERR_CLOSED: StoreClosed,
    Status.ERR_READ_ONLY: ReadOnlyStore,
    Status.ERR_MEMORY: OutOfMemory,
    Status.ERR_LIMIT: LimitReached,
}


def from_engine(status: int, text: str, *, sys_errno: int = 0, offset: int = -1, holder_pid: int = 0) -> Error:
    """Make the exception for a status of the C engine and its last error. Called by the bindings' one funnel.

    Args:
        status: a negative ``cmq_status``; an unknown one gives a plain :class:`Error`.
        text: the engine's text.
        sys_errno: errno of the failing system call, 0 for none.
        offset: byte offset the error is about, -1 for none.
        holder_pid: process that holds the lock, 0 for unknown.
    """
    try:
        known = Status(status)
    except ValueError:
        return Error(f"the engine answered with the unknown status {status}: {text}")
    place = offset if offset >= 0 else None
    match known:
        case Status.ERR_CORRUPT:
            return CorruptRecord(text, offset=place)
        case Status.ERR_OFFSET:
            return OffsetOutOfRange(text, offset=place)
        case Status.ERR_LOCKED:
            return StoreLocked(text, holder_pid=holder_pid or None)
        case Status.ERR_IO | Status.ERR_DISK_FULL | Status.ERR_PERMISSION | Status.ERR_FENCED:
            return _STORAGE_CLASS_OF[known](text, errno=sys_errno or None)
        case _:
            return _CLASS_OF.get(known, Error)(text, status=known)


_STORAGE_CLASS_OF: dict[Status, type[StorageError]] = {
    Status.ERR_IO: StorageError,
    Status.ERR_DISK_FULL: DiskFull,
    Status.ERR_PERMISSION: PermissionDenied,
    Status.ERR_FENCED: StoreFenced,
}
