"""CometMQ: RocketMQ's message engine as a library.

The import is light: the native engine and the exceptions. The store's classes are loaded when they are first named, so
that a client does not pay for them; numpy, pyarrow and the command line's libraries by the calls that need them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

try:
    from cometmq._engine import __version__
except ImportError as error:
    raise ImportError(
        f"cometmq's native engine could not be loaded ({error}). From a checkout, build it with `make build` or "
        "`pip install .` (needs a C compiler and the Python headers); an installed package is for another Python "
        "version or platform: build and install it with this interpreter."
    ) from error

from cometmq._lazy import lazy_names
from cometmq.errors import (
    BodyMismatch,
    BrokerError,
    BrokerNotFound,
    CannotListen,
    ClientStateError,
    ConnectionLost,
    CorruptRecord,
    DecompressionError,
    DiskFull,
    Error,
    ForkedClient,
    GroupBusy,
    GroupTaken,
    HandoffRejected,
    HandoffWaiting,
    HookFailed,
    InvalidArgument,
    InvalidTopic,
    LimitReached,
    MalformedBody,
    MalformedCommand,
    MessageTooLarge,
    MissingLibrary,
    NotAStore,
    NotConnected,
    NotEntered,
    NotFound,
    OffsetOutOfRange,
    OutOfMemory,
    PermissionDenied,
    ReadOnlyStore,
    ReplyTimeout,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    SettingConflict,
    SettingNeeded,
    StaleCursor,
    StaleHandle,
    Status,
    StorageError,
    StoreBusy,
    StoreClosed,
    StoreFenced,
    StoreLocked,
    TopicNotFound,
    WrongType,
)

if TYPE_CHECKING:
    from cometmq.arrow.cursor import Cursor
    from cometmq.store import (
        AppendManyResult,
        AppendResult,
        Consumer,
        FlushMode,
        GroupProgress,
        HandedOff,
        Message,
        QueueInfo,
        Reader,
        Retention,
        StartFrom,
        Store,
        StoreInfo,
        StoreOpening,
        TopicInfo,
        open,
    )

__all__ = [
    "AppendManyResult",
    "AppendResult",
    "BodyMismatch",
    "BrokerError",
    "BrokerNotFound",
    "CannotListen",
    "ClientStateError",
    "ConnectionLost",
    "Consumer",
    "CorruptRecord",
    "Cursor",
    "DecompressionError",
    "DiskFull",
    "Error",
    "FlushMode",
    "ForkedClient",
    "GroupBusy",
    "GroupProgress",
    "GroupTaken",
    "HandedOff",
    "HandoffRejected",
    "HandoffWaiting",
    "HookFailed",
    "InvalidArgument",
    "InvalidTopic",
    "LimitReached",
    "MalformedBody",
    "MalformedCommand",
    "Message",
    "MessageTooLarge",
    "MissingLibrary",
    "NotAStore",
    "NotConnected",
    "NotEntered",
    "NotFound",
    "OffsetOutOfRange",
    "OutOfMemory",
    "PermissionDenied",
    "QueueInfo",
    "ReadOnlyStore",
    "Reader",
    "ReplyTimeout",
    "RequestTimeout",
    "Retention",
    "RouteNotFound",
    "SendFailed",
    "SettingConflict",
    "SettingNeeded",
    "StaleCursor",
    "StaleHandle",
    "StartFrom",
    "Status",
    "StorageError",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreFenced",
    "StoreInfo",
    "StoreLocked",
    "StoreOpening",
    "TopicInfo",
    "TopicNotFound",
    "WrongType",
    "__version__",
    "open",
]

# A library prints nothing unasked: its log goes where the program directs it.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_OF_STORE = frozenset(
    {
        "AppendManyResult",
        "AppendResult",
        "Consumer",
        "FlushMode",
        "GroupProgress",
        "HandedOff",
        "Message",
        "QueueInfo",
        "Reader",
        "Retention",
        "StartFrom",
        "Store",
        "StoreInfo",
        "StoreOpening",
        "TopicInfo",
        "open",
    }
)

__getattr__, __dir__ = lazy_names(
    globals(), {**dict.fromkeys([*_OF_STORE, "store"], "cometmq.store"), "Cursor": "cometmq.arrow.cursor"}
)
