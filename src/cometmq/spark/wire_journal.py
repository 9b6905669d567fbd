"""Staged writes through a broker: find one that takes them, begin a job, bring its files, commit it once, or give up.

Does with requests what :mod:`cometmq.spark.journal` and :mod:`cometmq.spark.staging` do in a directory. A broker of
ours serves them where ``stagedWritesEnable`` is set. Each is idempotent, so a lost answer, or a broker that restarts,
costs a pause and no more.

Source: decision 0017.
"""

from __future__ import annotations

import logging
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.errors import BrokerError, ConnectionLost, HandoffRejected, HandoffWaiting, RequestTimeout
from cometmq.remoting.bodies.staged_writes import CommitStagedJobRequestBody, StagedFileEntry
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.members import Members, request
from cometmq.spark.errors import OptionError
from cometmq.spark.options import DeliveryGuarantee, WriteOptions
from cometmq.spark.staging import RowEncoder, write_rows
from cometmq.spark.wire import Wire
from cometmq.store.handoff_files import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Door", "abandon", "abandon_all", "begin", "commit", "find_door", "stage"]

_log = logging.getLogger("cometmq.spark")

_TRY_MS = 20_000
_LOOK_AGAIN_S = 0.05
_PIECE_BYTES_MAX = 8 << 20
_NO_DOOR = (ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_AGAIN = (
    "do not run the job again before it is known whether it was done, it would write twice, unless it has a jobId or "
    "is a stream"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A broker that takes staged writes.

    Attributes:
        broker: its name.
        body_bytes_max: the largest body that it takes.
        piece_bytes_max: most bytes of a file that it takes at once.
    """

    broker: str
    body_bytes_max: int
    piece_bytes_max: int


def _wire(options: WriteOptions, *, timeout_ms: int | None = None) -> closing[Wire]:
    return closing(Wire(options.name_servers, timeout_ms=timeout_ms or options.pull_timeout_ms))


def find_door(options: WriteOptions, *, rows_name_topics: bool) -> Door | None:
    """Return the broker that all rows can be written to exactly once; None where they are sent, at least once.

    Args:
        options: of the write.
        rows_name_topics: rows have topics of their own, which may be anywhere.

    Raises:
        OptionError: exactly once was asked for, and is not available; the text says why and what would help.
        ConnectionLost, RequestTimeout, NotFound: nobody answered.
        BrokerError: the broker may not be written to, or failed.
    """
    if options.guarantee is DeliveryGuarantee.AT_LEAST_ONCE:
        return None
    with _wire(options) as wire:
        found = _look(wire, options, None if rows_name_topics else options.topic)
    if isinstance(found, Door):
        return found
    if options.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
        raise OptionError("deliveryGuarantee", f"exactly-once cannot be had: {found}, or give at-least-once")
    if found not in _warned:
        _warned.add(found)
        _log.warning("rows are written at least once (option deliveryGuarantee): %s", found)
    return None


_warned: set[str] = set()
"""Reasons that this process has logged: a stream would log its own with each micro-batch."""


def _look(wire: Wire, options: WriteOptions, topic: str | None) -> Door | str:
    """Return the door, or the reason for not having one."""
    broker = options.broker_name
    if broker is None:
        brokers = wire.writable_brokers(topic)
        if len(brokers) != 1:
            where = ", ".join(brokers) or "none"
            what = "the cluster's brokers" if topic is None else f"the brokers of topic {topic}"
            return f"it goes to one broker, and {what} are {where}: name one with option brokerName"
        (broker,) = brokers
    answer = wire.request(broker, request(RequestCode.BEGIN_STAGED_JOB), codes=_NO_DOOR)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return f"broker {broker} is not CometMQ's, or an older one: write to one that takes it"
    if answer.code == ResponseCode.NO_PERMISSION:
        return f"broker {broker} says: {answer.remark}"
    members = Members(answer.fields)
    return Door(
        broker=broker,
        body_bytes_max=members.required_int32("bodyBytesMax"),
        piece_bytes_max=min(max(members.required_int32("pieceBytesMax"), 1), _PIECE_BYTES_MAX),
    )


def begin(options: WriteOptions, door: Door, scope: str, *, alone: bool = False) -> str:
    """Begin a job; return its name, which begins with ``scope``.

    Args:
        options, door: of the write.
        scope: its owner.
        alone: a scope has one job at a time; an earlier one, whose driver died, is abandoned.

    Raises:
        BrokerError, ConnectionLost, RequestTimeout: the broker refused, or did not answer.
    """
    job = f"{scope}-{uuid.uuid4().hex}"
    with _wire(options) as wire:
        if alone:
            wire.request(door.broker, request(RequestCode.ABANDON_STAGED_JOB, scope=scope))
        wire.request(door.broker, request(RequestCode.BEGIN_STAGED_JOB, job=job))
    return job


class _Pieces:
    """A file that is brought to a broker piece by piece, one after the other."""

    def __init__(self, wire: Wire, door: Door, job: str, file: str) -> None:
        self._wire = wire
        self._door = door
        self._job = job
        self._file = file
        self._position = 0
        self._held = bytearray()

    def write(self, data: memoryview) -> None:
        """Take all of it; whole pieces are sent, and durable on return."""
        while data:
            room = self._door.piece_bytes_max - len(self._held)
            self._held += data[:room]
            data = data[room:]
            if len(self._held) == self._door.piece_bytes_max:
                self.flush()

    def flush(self) -> None:
        """Send what is held."""
        piece = bytes(self._held)
        if piece:
            self._wire.request(
                self._door.broker,
                request(
                    RequestCode.PUT_STAGED_PIECE,
                    body=piece,
                    job=self._job,
                    file=self._file,
                    position=self._position,
                    crc=zlib.crc32(piece),
                ),
                timeout_ms=_TRY_MS,
            )
            self._position += len(piece)
            self._held.clear()


def stage(
    options: WriteOptions, door: Door, job: str, batches: Iterator[pa.RecordBatch], encoder: RowEncoder, prefix: str
) -> Sequence[StagedFile]:
    """Bring a task's rows as a file of its own, durably. A task without rows brings none.

    Args:
        options, door, job: of the write.
        batches: the rows.
        encoder: brings them into form.
        prefix: begin of the file's name; it is completed so that no other attempt has it.

    Raises:
        InvalidArgument: a row cannot be written.
        BrokerError: the broker refused: the job was given up meanwhile, or a limit is reached.
        ConnectionLost, RequestTimeout: it did not answer in time.
    """
    name = f"{prefix}-{uuid.uuid4().hex}.arrow"
    with _wire(options) as wire:
        pieces = _Pieces(wire, door, job, name)
        staged = write_rows(batches, encoder, pieces, name)
        if staged is not None:
            pieces.flush()
    return () if staged is None else (staged,)


def commit(
    options: WriteOptions, broker: str, job: str, files: Sequence[StagedFile], *, done_key: str | None, done_number: int
) -> bool:
    """Have a job's files appended, once, and wait for it. Returns False where it had been done before.

    Args:
        options, broker, job: of the write.
        files: the tasks' files, in the order in which they are appended.
        done_key, done_number: the work that may be done once; None: this job.

    Raises:
        HandoffWaiting: the store's writer has not taken the work in time. It is durable and will be appended.
        HandoffRejected: the writer cannot append it; nothing of it stays.
        ConnectionLost, RequestTimeout: the broker did not answer in time: whether the job was committed is not known.
        BrokerError: it refused.
    """
    if not files:
        abandon(options, broker, job)
        return True
    body = CommitStagedJobRequestBody(
        job=job,
        files=tuple(
            StagedFileEntry(name=file.name, rows=file.rows, size_bytes=file.size_bytes, crc32=file.crc32)
            for file in files
        ),
        topic=options.topic,
        topic_queues=options.topic_queues,
        done_key=f"once-{job}" if done_key is None else done_key,
        done_number=done_number,
        born_timestamp_ms=time.time_ns() // 1_000_000,
    )
    command = request(RequestCode.COMMIT_STAGED_JOB, body=body.to_json())
    deadline = time.monotonic() + options.commit_timeout_ms / 1000
    with _wire(options, timeout_ms=options.commit_timeout_ms) as wire:
        while True:
            try:
                answer = wire.request(broker, command, timeout_ms=_TRY_MS)
            except (ConnectionLost, RequestTimeout) as error:
                raise type(error)(f"{error} (option commitTimeoutMs; {_AGAIN})") from error
            except BrokerError as error:
                if error.retriable:
                    why = f"{error.remark} (option commitTimeoutMs; {_AGAIN})"
                    raise BrokerError(why, code=error.code, address=error.address) from error
                if error.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                reason = f"broker {broker} cannot append the rows: {error.remark}"
                raise HandoffRejected(f"{reason} (columns topic and queue, options topic and topicQueues)") from None
            outcome = Members(answer.fields).required("outcome")
            if outcome != "waiting":
                return outcome == "done"
            if time.monotonic() >= deadline:
                raise HandoffWaiting(
                    f"broker {broker} has not appended the rows yet; they are on its disk and will be (option "
                    f"commitTimeoutMs; {_AGAIN})"
                )
            time.sleep(_LOOK_AGAIN_S)


def abandon(options: WriteOptions, broker: str, job: str) -> None:
    """Give up a job; one whose commit still waits stays.

    Raises:
        BrokerError, ConnectionLost, RequestTimeout: the broker refused, or did not answer.
    """
    with _wire(options) as wire:
        wire.request(broker, request(RequestCode.ABANDON_STAGED_JOB, job=job))


def abandon_all(options: WriteOptions, broker: str, scope: str) -> None:
    """Give up every job of a scope, as :func:`abandon` does."""
    with _wire(options) as wire:
        wire.request(broker, request(RequestCode.ABANDON_STAGED_JOB, scope=scope))
