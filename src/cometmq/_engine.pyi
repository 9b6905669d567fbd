"""Types of the compiled module; tests/unit/test_stubs.py compares them with it."""

import os
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypedDict, final, overload, type_check_only

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, Self, disjoint_base

from cometmq._types import Bodies, Body, CommandParts, Host, Numbers, Values
from cometmq.broker.plane_options import PlaneOptions, TransactionOptions
from cometmq.client.group.process_queue import HeldMessage
from cometmq.client.send.outgoing import SendStatus
from cometmq.client.send.sending import SendPolicy
from cometmq.errors import CorruptRecord, Error
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.command import Command

__version__: str

STATUS_CODES: dict[str, int]

def status_name(status: int) -> str: ...
def java_hash(text: str) -> int: ...
def crc31(data: Buffer) -> int: ...
def crc_variant() -> str: ...
def join_keys(keys: str | bytes | Iterable[str | bytes] | None) -> str | bytes | None: ...
def check_tag(tag: str) -> None: ...
def encode_properties(properties: Mapping[str, str | bytes] | None) -> bytes: ...
def decode_properties(encoded: Buffer) -> dict[str, str]: ...
def parse_message_id(message_id: str) -> tuple[Host, int]: ...
def lock_holder(path: str | os.PathLike[str]) -> int: ...
def lock_writer(path: str | os.PathLike[str]) -> tuple[int, bool]: ...
def forget_offset_log(path: str | os.PathLike[str]) -> None: ...
def read_offset_log(
    path: str | os.PathLike[str], basis: tuple[int, int], cursor: tuple[int, int, int] | None
) -> tuple[Literal["none", "other", "read"], tuple[int, int, int], list[tuple[str, str, int, int]]]: ...
def column_values(bodies: Bodies, tags: Values, keys: Values, properties: object) -> Rows: ...
def decode_messages(data: bytes, damaged: list[CorruptRecord] | None = None) -> list[Message]: ...
def append_result_of(message: Message) -> AppendResult: ...
def record_of(message: Message) -> bytes: ...
def append_many_result_of(topic: str, messages: list[Message]) -> AppendManyResult: ...

@final
class OffsetLog:
    def __init__(self, path: str | os.PathLike[str], basis: tuple[int, int], durable: bool) -> None: ...
    def append(self, group: str, places: list[tuple[str, int, int]]) -> int: ...
    def wait(self, end: int) -> None: ...
    def restart(self, basis: tuple[int, int]) -> None: ...
    def remove(self) -> None: ...

def bloom_positions(entry: str, error_percent: int, entries: int) -> tuple[int, tuple[int, ...]]: ...

@final
class Selector:
    @property
    def text(self) -> str: ...
    @property
    def tail(self) -> str: ...
    def __init__(self, text: str) -> None: ...
    def matches(self, message: Message) -> bool: ...
    def answer(self, properties: bytes) -> bool | Literal["error"] | None: ...

@final
class Rows:
    @property
    def bodies(self) -> list[bytes]: ...
    @property
    def tags(self) -> list[str | None] | None: ...
    @property
    def keys(self) -> list[str | None] | None: ...
    @property
    def properties(self) -> list[bytes] | None: ...

@disjoint_base
class Message:
    """One stored message. Immutable; any thread may use it; stays valid after the store is closed.

    It keeps the mapped file of its record in memory. Where messages are kept for long, keep ``bytes(message)`` instead.

    Two messages are equal when they are the same stored message: the same place in the log, and the same bytes there;
    whichever call, handle or process found them. The same body appended twice makes two messages, which differ.
    """

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def message_id(self) -> str: ...
    @property
    def raw_body(self) -> memoryview: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def body_bytes(self) -> bytes: ...
    @property
    def is_compressed(self) -> bool: ...
    @property
    def is_inner_batch(self) -> bool: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def unique_id(self) -> str | None: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def body_crc(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> Host: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def store_host(self) -> Host: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ReceivedMessage(Message):
    """A message as a consumer received it. Immutable; any thread may use it; can be pickled.

    It keeps the whole answer that it came in, up to some hundred KiB. Where messages are kept for long, keep
    ``bytes(message)`` instead.

    Two are equal when they are the same stored message of the same broker.
    """

    @property
    def broker_name(self) -> str: ...
    @property
    def stored_topic(self) -> str: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def body_size(self) -> int: ...
    @property
    def original_message_id(self) -> str: ...
    @property
    def pop_handle(self) -> str | None: ...

@final
class PulledMessages:
    """One answer's content: the wanted messages, the bytes of their bodies, and how many there were with the others."""

    @property
    def messages(self) -> list[ReceivedMessage]: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def decoded(self) -> int: ...
    @property
    def unreadable(self) -> list[tuple[int, str]]: ...
    @property
    def unnamed(self) -> int: ...

def decode_pulled(
    body: bytes,
    *,
    broker_name: str,
    topic: str,
    queue_id: int,
    tags: frozenset[str] | None = None,
    offset_delta: int = 0,
    min_offset: int = 0,
    max_offset: int = 0,
    namespace: str | None = None,
) -> PulledMessages: ...
def set_reconsume_times(message: ReceivedMessage, times: int) -> None: ...
def popped_places(messages: list[ReceivedMessage]) -> list[tuple[int, int, str | None]]: ...
def set_popped(messages: list[ReceivedMessage], head: str, queue_id: int, offsets: list[int]) -> None: ...

@disjoint_base
class MessageTable:
    """Messages by their offsets: those that wait, and those that were taken and are not finished. For one thread."""

    @property
    def count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def waiting_bounds(self) -> tuple[int, int] | None: ...
    @property
    def taken_bounds(self) -> tuple[int, int] | None: ...
    @property
    def max_span(self) -> int: ...
    def put_all(self, messages: Iterable[HeldMessage]) -> None: ...
    def contains(self, message: HeldMessage) -> bool: ...
    def first(self) -> HeldMessage | None: ...
    def remove_all(self, messages: Iterable[HeldMessage]) -> int: ...
    def take_first(self, most: int) -> list[HeldMessage]: ...
    def finish(self, messages: Iterable[HeldMessage] | None = None) -> int: ...
    def put_back(self, messages: Iterable[HeldMessage] | None = None) -> None: ...
    def clear(self) -> None: ...

def _received_again(
    record: bytes,
    broker_name: str,
    topic: str,
    queue_id: int,
    namespace: str | None,
    min_offset: int,
    max_offset: int,
    queue_offset: int,
    is_element: bool,
    reconsume_raised: int,
    pop_head: str | None = None,
) -> ReceivedMessage: ...

@final
class SendRequest:
    """A send of one message, or of a batch's bytes. Immutable."""

    def __init__(
        self,
        *,
        code: int,
        producer_group: str,
        topic: str,
        queue_id: int,
        properties: bytes,
        body: bytes,
        born_timestamp_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        max_reconsume_times: int = -1,
        unit_mode: bool = False,
        batch: bool = False,
        default_topic: str = "TBW102",
        default_topic_queues: int = 4,
        broker_name: str | None = None,
    ) -> None: ...
    def to_queue(self, broker_name: str | None, queue_id: int) -> SendRequest: ...
    def message(
        self,
        broker_name: str | None,
        queue_id: int,
        properties: bytes,
        body: bytes,
        born_timestamp_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
    ) -> SendRequest: ...
    @property
    def code(self) -> int: ...
    @property
    def producer_group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def default_topic(self) -> str: ...
    @property
    def broker_name(self) -> str | None: ...
    @property
    def properties(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def default_topic_queues(self) -> int: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def max_reconsume_times(self) -> int: ...
    @property
    def unit_mode(self) -> bool: ...
    @property
    def batch(self) -> bool: ...

@final
class PullRequest:
    """A pull of one queue. Immutable."""

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        sys_flag: int,
        commit_offset: int,
        suspend_timeout_ms: int,
        sub_version: int,
        max_bytes: int,
        subscription: str | None = None,
        expression_type: str | None = None,
        broker_name: str | None = None,
        lite: bool = False,
    ) -> None: ...
    def again(self, queue_offset: int, commit_offset: int, sys_flag: int) -> PullRequest: ...
    @property
    def code(self) -> int: ...
    @property
    def lite(self) -> bool: ...
    @property
    def group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def subscription(self) -> str | None: ...
    @property
    def expression_type(self) -> str | None: ...
    @property
    def broker_name(self) -> str | None: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def commit_offset(self) -> int: ...
    @property
    def suspend_timeout_ms(self) -> int: ...
    @property
    def sub_version(self) -> int: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def max_messages(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...

@final
class SendAnswer:
    """A broker's answer to a send. Immutable.

    After a code that does not say "stored" the place is unknown: -1 and None.
    """

    def __init__(
        self,
        *,
        code: int,
        remark: str | None = None,
        message_id: str | None = None,
        queue_id: int = -1,
        queue_offset: int = -1,
        transaction_id: str | None = None,
        region_id: str | None = None,
        trace_on: bool = True,
        batch_unique_id: str | None = None,
        recall_handle: str | None = None,
    ) -> None: ...
    @property
    def code(self) -> int: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def message_id(self) -> str | None: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def transaction_id(self) -> str | None: ...
    @property
    def region_id(self) -> str | None: ...
    @property
    def trace_on(self) -> bool: ...
    @property
    def batch_unique_id(self) -> str | None: ...
    @property
    def recall_handle(self) -> str | None: ...

@final
class PullAnswer:
    """A broker's answer to a pull. Immutable. The messages are in ``body``: see :func:`decode_pulled`."""

    def __init__(
        self,
        *,
        code: int,
        remark: str | None = None,
        suggested_broker_id: int = 0,
        next_begin_offset: int = 0,
        min_offset: int = 0,
        max_offset: int = 0,
        offset_delta: int | None = None,
        body: bytes = b"",
    ) -> None: ...
    @property
    def code(self) -> int: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def suggested_broker_id(self) -> int: ...
    @property
    def next_begin_offset(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def offset_delta(self) -> int | None: ...
    @property
    def body(self) -> bytes: ...

def encode_request(
    request: SendRequest | PullRequest | Command, *, format: int, opaque: int = 0, is_oneway: bool = False
) -> bytes: ...
@overload
def read_answer(request: SendRequest, frame: Buffer) -> SendAnswer: ...
@overload
def read_answer(request: PullRequest, frame: Buffer) -> PullAnswer: ...

@final
class Link:
    """One connection of a client, without the event loop; :mod:`cometmq.remoting.hub` drives it."""

    def __init__(
        self,
        fd: int,
        *,
        format: int,
        wake: Callable[[], object],
        on_request: Callable[[CommandParts], object],
        on_go_away: Callable[
            [SendRequest | PullRequest | Command, Callable[[Any], object], int, int],
            object,
        ],
        on_failure: Callable[[Exception], object],
    ) -> None: ...
    @property
    def waiting(self) -> int: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def dropped_answers(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def earliest_ms(self) -> int: ...
    @property
    def active_ms(self) -> int: ...
    @property
    def is_blocked(self) -> bool: ...
    @property
    def write_errno(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def begin(
        self,
        request: SendRequest | PullRequest | Command,
        on_answer: Callable[[Any], object] | None,
        timeout_ms: int,
        deadline_ms: int = -1,
        is_again: bool = False,
    ) -> bool: ...
    def reply(self, frame: bytes) -> bool: ...
    def flush(self) -> None: ...
    def turn(self) -> None: ...
    def receive(self) -> bool: ...
    def expire(self, now_ms: int) -> list[tuple[Callable[[Any], object], int, int, bool]]: ...
    def close(self) -> list[Callable[[Any], object]]: ...

DEFAULT_REGION: str

@final
class SendResult:
    """Where a message was stored. Immutable."""

    def __init__(
        self, answer: SendAnswer, asked: MessageQueue, unique_id: str, attempts: int = 1, index: int | None = None
    ) -> None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def status(self) -> SendStatus: ...
    @property
    def unique_id(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def offset_message_id(self) -> str: ...
    @property
    def queue(self) -> MessageQueue: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def transaction_id(self) -> str | None: ...
    @property
    def region_id(self) -> str: ...
    @property
    def trace_on(self) -> bool: ...
    @property
    def recall_handle(self) -> str | None: ...
    def part(self, index: int, unique_id: str) -> SendResult: ...

@disjoint_base
class SendFuture:
    """A result to come. Light: a send makes one, and nobody need ever look at it."""

    def set_result(self, value: object) -> None: ...
    def set_error(self, error: BaseException) -> None: ...
    def done(self) -> bool: ...
    def result(self, timeout_s: float | None = None, *, timeout: float | None = None) -> SendResult: ...
    def exception(self, timeout_s: float | None = None, *, timeout: float | None = None) -> BaseException | None: ...
    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, SendResult]: ...

@final
class PendingSend(SendFuture):
    """One message, or batch, on its way: the future that its sender holds, and what further attempts need."""

    request: SendRequest | None
    policy: Any
    queue: Any
    chooser: Any
    context: Any
    stored: Any
    brokers: list[str]
    began_s: float
    deadline_s: float
    attempts: int
    pressure_bytes: int
    is_fixed: bool
    is_uncertain: bool
    asked_route: bool

    def __init__(
        self,
        engine: object,
        request: SendRequest,
        unique_id: str,
        policy: SendPolicy,
        *,
        began_s: float,
        timeout_ms: int,
    ) -> None: ...
    def begin(
        self, request: SendRequest, unique_id: str | None, policy: SendPolicy, *, began_s: float, timeout_ms: int
    ) -> None: ...
    def take_fast_path(self, under_way: set[PendingSend]) -> None: ...
    @property
    def engine(self) -> Any: ...
    @property
    def unique_id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    def __call__(self, answer: SendAnswer | Error) -> None: ...

@final
class Gathered(SendFuture):
    """One message of a batch; the batch's outcome is its own."""

    @property
    def unique_id(self) -> str: ...

@disjoint_base
@dataclass(frozen=True)
class OutgoingMessage:
    """A message to be sent. Immutable.

    Attributes:
        body: its bytes.
        tags: its tag, or None.
        keys: its keys, several with blanks between, or None.
        properties: further names and values.
        delay_level: 1 for the broker's first delay (1 second by default) and so on; 0 for none.
        sharding_key: messages with the same one go to the same queue, in order.
        queue_id: the queue, where neither the sharding key nor the sender shall choose.
        topic: where to, or None where the sender knows.
        flag: a number of the sender's own, int32.
        wait_stored: False where the broker shall answer before its flush or its slave is done.
        delay_ms: hold the message back for so long (a broker of 5.0 or newer); None for not.
        deliver_at_ms: hold it back until then, milliseconds since 1970; None for not.
    """

    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    sharding_key: str | None = None
    queue_id: int | None = None
    topic: str | None = None
    flag: int = 0
    wait_stored: bool = True
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None: ...

@disjoint_base
class UniqueIdCounter:
    """Makes unique ids: a head of 20 digits, the time in the month, and a counter. Any thread."""

    def __init__(self, head: str, month_of: Callable[[int], tuple[int, int]]) -> None: ...
    def next(self, now_ms: int) -> str: ...

@final
class FastPath:
    """The fast path of plain messages to one topic, one request each. Any thread."""

    def __init__(
        self,
        engine: object,
        template: SendRequest,
        ids: UniqueIdCounter,
        *,
        next_queue: Callable[[], MessageQueue],
        queue_of: Callable[[str], MessageQueue],
        masters: dict[str, str],
        under_way: set[PendingSend],
        transmit: Callable[..., object],
        links: dict[str, Link] | None,
        clock: Callable[[], float],
        now_ms: Callable[[], int] | None,
        blocking: SendPolicy,
        asynchronous: SendPolicy,
        once: SendPolicy,
        special: frozenset[str],
        body_bytes_max: int,
        timeout_ms: int,
    ) -> None: ...
    def send(
        self, body: object, tags: object, keys: object, sharding_key: object, properties: object, is_awaited: bool
    ) -> PendingSend | None: ...
    def send_oneway(
        self, body: object, tags: object, keys: object, sharding_key: object, properties: object
    ) -> bool: ...

@final
class PendingBatch:
    """Messages that will be one batch: the batch's bytes, written as they come."""

    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> MessageQueue | None: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def wait_stored(self) -> bool: ...
    @property
    def future(self) -> PendingSend: ...
    @property
    def messages(self) -> list[Any] | None: ...
    @property
    def is_awaited(self) -> bool: ...
    @property
    def due_s(self) -> float: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def unique_ids(self) -> list[str]: ...
    def take_records(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class Accumulator:
    """The batches that grow: one per topic, queue, tags, and whether the broker is to wait. Any thread."""

    def __init__(
        self,
        engine: object,
        ids: UniqueIdCounter,
        *,
        batch_max_bytes: int,
        total_max_bytes: int,
        message_max_bytes: int,
        delay_ms: int,
        on_fresh: Callable[[PendingBatch], object],
        on_ready: Callable[[PendingBatch], object],
        clock: Callable[[], float],
        now_ms: Callable[[], int] | None = None,
        keeps_messages: bool = False,
    ) -> None: ...
    def add(
        self,
        topic: str,
        queue: MessageQueue | None,
        tags: str | None,
        body: bytes,
        stored: bytes,
        *,
        flag: int = 0,
        wait_stored: bool = True,
        is_awaited: bool = False,
        message: object = None,
    ) -> Gathered | None: ...
    def take_due(self, now_s: float) -> list[PendingBatch]: ...
    def take_all(self) -> list[PendingBatch]: ...
    @property
    def first_due_s(self) -> float | None: ...
    @property
    def held_bytes(self) -> int: ...

@final
class BatchFastPath:
    """The fast path of plain messages to one topic into batches. Any thread."""

    def __init__(
        self, accumulator: Accumulator, topic: str, *, special: frozenset[str], body_bytes_max: int
    ) -> None: ...
    def send(
        self, body: object, tags: object, keys: object, sharding_key: object, properties: object, is_awaited: bool
    ) -> Gathered | None: ...
    def send_oneway(
        self, body: object, tags: object, keys: object, sharding_key: object, properties: object
    ) -> bool: ...

@final
class AppendResult:
    """Where a message was stored."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def message_id(self) -> str: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class AppendManyResult:
    """Where a batch was stored."""

    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def queue_id(self) -> int | None: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def queue_ids(self) -> npt.NDArray[np.int32]: ...
    @property
    def queue_offsets(self) -> npt.NDArray[np.int64]: ...
    @property
    def physical_offsets(self) -> npt.NDArray[np.int64]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> AppendResult: ...

@type_check_only
class _Opening(TypedDict):
    created: bool
    was_unclean: bool
    trusted_point: bool
    scanned_from: int
    scanned_to: int
    records: int
    cut_bytes: int
    removed: str | None
    removed_records: int
    gaps: int
    index_missing_from: int
    overwrites: Literal["in_place", "copied", "shared"]
    overwritten: str | None
    elapsed_us: int

@type_check_only
class _Info(TypedDict):
    read_only: bool
    fenced: bool
    disk_full: bool
    writer_alive: bool
    writer_is_ours: bool
    log_min: int
    log_end: int
    flushed: int
    segment_bytes: int
    queue_file_bytes: int
    batch_file_bytes: int
    ext_file_bytes: int
    index_slots: int
    index_entries: int
    store_timestamp_ms: int
    queue_count: int
    sync_flush: bool

@final
class Hold:
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class StoreHandle:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        background: bool = True,
        sync_flush: bool = True,
        segment_bytes: int = 0,
        queue_file_bytes: int = 0,
        batch_file_bytes: int = 0,
        ext_file_bytes: int = 0,
        index_slots: int = 0,
        index_entries: int = 0,
        commitlog_paths: Iterable[str | os.PathLike[str]] = (),
        body_bytes_max: int = 0,
        delay_levels: str | None = None,
        batch_topics: Iterable[str] = (),
        index_enabled: bool = True,
        index_tags: bool | None = None,
        ext_enabled: bool = False,
        lmq_enabled: bool = False,
        light_queues_max: int = 0,
        property_crc: bool = False,
        check_property_crc: bool = False,
        durable_point_bytes: int = 0,
        durable_point_ms: int = 0,
        retention: object = None,
        store_address: bytes = b"\x7f\x00\x00\x01",
        store_port: int = 10911,
    ) -> None: ...
    def hold(self) -> Hold: ...
    def check_close(self) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def append(
        self,
        topic: str,
        body: Body,
        tags: str | bytes | None = None,
        keys: str | bytes | None = None,
        properties: bytes | None = None,
        queue_id: int = 0,
        flag: int = 0,
        born_timestamp_ms: int = 0,
        wait: bool = True,
    ) -> AppendResult: ...
    def append_together(
        self,
        messages: list[tuple[str, bytes, str | bytes | None, str | bytes | None, bytes | None, int, int, int]],
        only_check: bool = False,
    ) -> list[AppendResult]: ...
    def append_many(
        self,
        topic: str,
        bodies: Bodies,
        tags: Values = None,
        keys: Values = None,
        properties: object = None,
        queue: int | Numbers = 0,
        queue_count: int = 1,
        spread_from: int = -1,
        flag: int = 0,
        born_timestamps_ms: int | Numbers | None = None,
        wait: bool = True,
        one_segment: bool = False,
        only_check: bool = False,
    ) -> AppendManyResult: ...
    def wait_durable(self, end: int) -> None: ...
    def flush(self) -> None: ...
    @property
    def confirmed_end(self) -> int: ...
    def refresh(self) -> None: ...
    def wait_more(self, seen_end: int, timeout_ms: int) -> bool: ...
    def opening(self) -> _Opening: ...
    def upkeep_error(self) -> str | None: ...
    def set_retention(self, retention: object) -> None: ...
    def take_retention_report(self) -> tuple[float, int, bool, list[tuple[int, int, bool]], int]: ...
    def info(self) -> _Info: ...
    def queues(self, topic: str | None = None) -> list[tuple[str, int, bool, int, int]]: ...
    def queue(self, topic: str, queue_id: int) -> tuple[bool, int, int] | None: ...
    def queue_units(
        self, topic: str, queue_id: int, start: int, limit: int
    ) -> tuple[list[tuple[int, int, int, int, int]], int]: ...
    def read_physical(self, physical_offset: int) -> Message: ...
    def read_offset(self, topic: str, queue_id: int, offset: int) -> Message: ...
    def offset_at(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int: ...
    def check_end(self) -> None: ...
    def earliest_ms(self) -> int | None: ...
    def delete_topic(self, topic: str) -> None: ...
    def delete_expired_queues(self) -> int: ...
    def set_batch_topic(self, topic: str) -> None: ...
    def maintain(self, force_durable_point: bool = False) -> None: ...
    def expire(self, manual: bool = True) -> int: ...

@final
class Reader:
    """An iterator over stored messages. One thread at a time."""

    def __init__(
        self,
        handle: StoreHandle,
        *,
        topics: Iterable[str] = (),
        queue_ids: Iterable[int] = (),
        tags: Iterable[str] = (),
        where: Selector | None = None,
        backwards: bool = False,
        start: int | None = None,
        end: int | None = None,
        start_time_ms: int | None = None,
        end_time_ms: int | None = None,
        start_physical: int | None = None,
        only_queued: bool = False,
        starts: dict[tuple[str, int], int] | None = None,
        may_be_missing: bool = False,
        follow: bool = False,
        timeout_ms: int = -1,
        unwrap: bool = True,
        batch_messages: int = 512,
        called: str = "reader",
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def seen_end(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __iter__(self) -> Iterator[Message]: ...
    def __next__(self) -> Message: ...
    def fetch(self, max_messages: int = 512, timeout_ms: int = 0) -> list[Message]: ...
    def positions(self) -> dict[tuple[str, int], int]: ...

@final
class KeySearch:
    """An iterator over the messages of a topic that have a key, or that unique id, newest first."""

    def __init__(
        self,
        handle: StoreHandle,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = ...,
        limit: int = 0,
        misses_max: int = 0,
        only_queued: bool = False,
    ) -> None: ...
    def __iter__(self) -> Iterator[Message]: ...
    def __next__(self) -> Message: ...

SCAN_KINDS: tuple[str, ...]
SCAN_FORMS: tuple[str, ...]

@final
class ColumnScan:
    """Messages as Arrow columns. One thread at a time; its batches may go to any thread."""

    def __init__(
        self,
        handle: StoreHandle,
        *,
        columns: Iterable[tuple[str, str | None, str, str | None]],
        topics: Iterable[str] = (),
        tags: Iterable[str] = (),
        where: Selector | None = None,
        keys: Iterable[str] = (),
        queue_ids: Iterable[int] = (),
        start: int | None = None,
        end: int | None = None,
        start_time_ms: int | None = None,
        end_time_ms: int | None = None,
        ranges: Iterable[tuple[str, int, int, int | None]] | None = None,
        only_queued: bool = True,
        may_be_missing: bool = False,
        batch_rows: int = 0,
        batch_bytes: int = 0,
        limit_rows: int = 0,
        raw_bodies: bool = False,
        check_crc: bool = False,
        skip_corrupt: bool = False,
        follow: bool = False,
        timeout_ms: int = -1,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def failure(self) -> BaseException | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def next_batch(self) -> tuple[object, object] | None: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def skipped(self) -> _Skipped: ...

@final
class RecordColumns:
    """Records as they came in pulls' answers, as Arrow columns. One thread at a time."""

    def __init__(
        self,
        *,
        columns: Iterable[tuple[str, str | None, str, str | None]],
        tags: Iterable[str] = (),
        keys: Iterable[str] = (),
        where: Selector | None = None,
        batch_rows: int = 0,
        batch_bytes: int = 0,
        check_crc: bool = False,
        skip_corrupt: bool = False,
    ) -> None: ...
    def feed(self, pieces: list[tuple[bytes, int, int, int]]) -> None: ...
    def next_batch(self) -> tuple[object, object] | None: ...
    def skipped(self) -> _Skipped: ...
    def close(self) -> None: ...

@type_check_only
class _Skipped(TypedDict):
    records: int
    offsets: list[int]
    invalid_texts: int
    clamped_times: int
    expired: int

@type_check_only
class _Problem(TypedDict):
    kind: str
    severity: Literal["note", "repairable", "damaged"]
    physical_offset: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    count: int
    text: str

@type_check_only
class _Verified(TypedDict):
    verdict: Literal["note", "repairable", "damaged"]
    complete: bool
    log_min: int
    log_end: int
    records: int
    body_bytes: int
    units: int
    queues: int
    keys: int
    index_entries: int
    keys_missing: int
    notes: int
    repairable: int
    damaged: int

@type_check_only
class _Restored(TypedDict):
    records: int
    doubtful: int
    unfinished: int
    refused: int
    refusal: str | None
    already: bool

@type_check_only
class _Repaired(TypedDict):
    complete: bool
    finished_earlier: bool
    was_unclean: bool
    segment_bytes: int
    queue_file_bytes: int
    batch_file_bytes: int
    ext_file_bytes: int
    index_slots: int
    index_entries: int
    log_min: int
    log_end: int
    records: int
    messages: int
    keys: int
    queues: int
    queues_kept: int
    gaps: int
    unwanted: int
    damaged_places: int
    damaged_bytes: int
    filled_bytes: int
    first_damage: int | None
    tail_at: int
    tail_bytes: int
    cut_at: int | None
    cut_messages: int
    cut_bytes: int
    cut_files: int
    kept: str | None

def restore_removed(
    handle: StoreHandle, name: str, wants: Callable[[str, int], bool], *, again: bool = False
) -> _Restored: ...
def verify_store(
    handle: StoreHandle,
    on_problem: Callable[[_Problem], object] | None = None,
    on_progress: Callable[[int, int], bool] | None = None,
) -> _Verified: ...
def repair_store(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    cut_tail: bool = False,
    cut_damage: bool = False,
    fill_damage: bool = False,
    wants: Callable[[str], bool] | None = None,
    on_progress: Callable[[int, int], bool] | None = None,
    on_damage: Callable[[int, int, str], object] | None = None,
    segment_bytes: int = 0,
    queue_file_bytes: int = 0,
    batch_file_bytes: int = 0,
    ext_file_bytes: int = 0,
    index_slots: int = 0,
    index_entries: int = 0,
    commitlog_paths: Iterable[str | os.PathLike[str]] = (),
    delay_levels: str | None = None,
    batch_topics: Iterable[str] = (),
    index_enabled: bool = True,
    index_tags: bool | None = None,
    ext_enabled: bool = False,
    lmq_enabled: bool = False,
    check_property_crc: bool = False,
) -> _Repaired: ...
def decode_command(
    frame: Buffer,
) -> CommandParts: ...
def encode_command(
    code: int,
    language: int,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: Mapping[str, str],
    body: Buffer,
    format: int,
) -> bytes: ...

@disjoint_base
class RequestHandler: ...

@final
class ControlItem:
    @property
    def kind(self) -> int: ...
    @property
    def conn(self) -> int: ...
    @property
    def local_port(self) -> int: ...
    @property
    def arrived_ns(self) -> int: ...
    @property
    def host(self) -> Host: ...
    @property
    def peer(self) -> str: ...
    @property
    def frame(self) -> bytes | None: ...

@final
class NetServer:
    REQUEST: int
    RESPONSE: int
    CLOSED: int
    def __init__(
        self,
        addresses: Iterable[str],
        *,
        loops: int = 1,
        handler: RequestHandler | None = None,
        connections_max: int = 0,
        frame_bytes_max: int = 0,
        unsent_bytes_max: int = 0,
        unsent_bytes_pause: int = 0,
        buffered_bytes_max: int = 0,
        control_count_max: int = 0,
        control_bytes_max: int = 0,
        control_conn_max: int = 0,
        address_conns_max: int = 0,
        idle_ms: int = 0,
        frame_ms: int = 0,
    ) -> None: ...
    def start(self) -> None: ...
    def drain(self) -> None: ...
    def is_idle(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def ports(self) -> list[int]: ...
    @property
    def control_fd(self) -> int: ...
    def take(self, max_items: int = 256) -> list[ControlItem]: ...
    def answer(self, item: ControlItem, frame: Buffer | None = None) -> None: ...
    def again(self, item: ControlItem) -> None: ...
    def send(self, conn: int, frame: Buffer) -> bool: ...
    def offer(self, conn: int, frame: Buffer) -> bool: ...
    def close_conn(self, conn: int) -> None: ...
    def counters(self) -> dict[str, int]: ...

@final
class BrokerPlane(RequestHandler):
    def __init__(self, handle: StoreHandle, settings: PlaneOptions) -> None: ...
    def close(self) -> None: ...
    def put_topic(
        self,
        name: str,
        *,
        read_queues: int,
        write_queues: int,
        perm: int,
        sys_flag: int = 0,
        order: bool = False,
        batch: bool = False,
    ) -> None: ...
    def remove_topic(self, name: str) -> None: ...
    def put_group(
        self,
        name: str,
        *,
        consume_enable: bool,
        consume_broadcast_enable: bool,
        consume_from_min: bool,
        order: bool,
        notify: bool,
        retry_queues: int,
        retry_max: int,
        sys_flag: int,
        broker_id: int,
        which_broker_when_slow: int,
    ) -> None: ...
    def remove_group(self, name: str) -> None: ...
    def put_consumer(
        self,
        group: str,
        *,
        broadcasting: bool,
        consume_type: int,
        subscriptions: Iterable[tuple[str, str | None, int, bool, tuple[str, int] | None]],
        end_holds: bool = True,
    ) -> None: ...
    def remove_consumer(self, group: str) -> None: ...
    def release_holds(self) -> None: ...
    def set_broker_perm(self, perm: int) -> None: ...
    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None
    ) -> None: ...
    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def pull_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def reset_offset(
        self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None
    ) -> None: ...
    def remove_offsets(self, *, group: str | None = None, topic: str | None = None) -> int: ...
    def take_offset_changes(self) -> list[tuple[str, str, int, int]]: ...
    def offset_version(self) -> int: ...
    def ordered_batches(
        self,
    ) -> list[
        tuple[str, str, int, str | None, int, int, int, int, bool, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    ]: ...
    def restore_ordered(
        self,
        group: str,
        topic: str,
        queue_id: int,
        *,
        attempt: str | None,
        pop_ms: int,
        invisible_ms: int,
        used_ms: int,
        acked: int,
        counted: bool,
        offsets: tuple[int, ...],
        visible_ms: tuple[int, ...],
        times: tuple[int, ...],
    ) -> None: ...
    def clear_ordered(self, group: str, topic: str, queue_id: int) -> bool: ...
    def ordered_version(self) -> int: ...
    def set_delay_progress(self, level: int, offset: int) -> None: ...
    def recover_delay(self, log_end: int) -> int: ...
    def start_delay(self) -> None: ...
    def stop_delay(self) -> None: ...
    def delay_mark(self) -> tuple[int, dict[int, int]]: ...
    def delay_progress(self) -> dict[int, int]: ...
    def delay_version(self) -> int: ...
    def start_timers(self) -> None: ...
    def stop_timers(self) -> None: ...
    def start_transactions(self) -> None: ...
    def stop_transactions(self) -> None: ...
    def set_transaction_rules(self, rules: TransactionOptions) -> None: ...
    def step_transactions(
        self, producers: Container[str]
    ) -> tuple[bool, list[tuple[str, str, int, int, str, bytes]]]: ...
    def resume_half(self, physical_offset: int) -> None: ...
    def half_counts(self) -> dict[str, tuple[int, int]]: ...
    def start_pops(self) -> None: ...
    def stop_pops(self) -> None: ...
    def take_wanted_topics(self) -> list[str]: ...
    def wanted_topics_made(self) -> None: ...
    def pop_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def pops_in_flight(self, group: str) -> list[tuple[str, int, int, int, int]]: ...
    def flush(self) -> None: ...
    def timer_check(self) -> bytes | None: ...
    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: Mapping[str, str | bytes] | bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_address: bytes,
        born_port: int,
        reconsume_times: int,
    ) -> tuple[int, int, str]: ...
    def counters(self) -> dict[str, int]: ...
    def traffic(self) -> dict[tuple[str, str], tuple[int, int]]: ...

_LoadPhase = Literal["connecting", "sending", "consuming", "counting", "done"]

@type_check_only
class _LoadLatency(TypedDict):
    count: int
    mean_ns: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int

@type_check_only
class _LoadResult(TypedDict):
    stopped: bool
    verified: bool
    problem: str | None
    sent: int
    accepted: int
    not_on_disk: int
    refused: int
    refusal: str | None
    sends: int
    consumed: int
    pulls: int
    pulls_empty: int
    acks: int
    acked: int
    duplicates: int
    broken: int
    bad_offsets: int
    holes: int
    missing: int
    send_ns: int
    consume_ns: int
    send_cpu_ns: int
    consume_cpu_ns: int
    send_latency: _LoadLatency
    end_to_end: _LoadLatency

@final
class LoadRun:
    def __init__(
        self,
        endpoints: Iterable[tuple[str, int]],
        queues: Iterable[tuple[int, int]],
        topic: str,
        *,
        format: int,
        producers: int,
        consumers: int,
        depth: int,
        batch: int,
        body_bytes: int,
        count: int,
        duration_ms: int,
        rate_per_s: int,
        oneway: bool,
        no_wait: bool,
        consume_after: bool,
        transactions: bool,
        pull_messages: int,
        timeout_ms: int,
        run: int,
        take: int = 0,
        pops_in_flight: int = 1,
        invisible_ms: int = 60000,
        brokers: Sequence[str] = (),
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def progress(self) -> tuple[_LoadPhase, int, int, int]: ...
    def result(self) -> _LoadResult: ...
