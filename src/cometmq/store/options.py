"""How a store is opened, its reports on itself, and small conversions that its calls share.

Times go in as milliseconds since 1970 or as ``datetime`` (a naive one is local time), and come out as milliseconds.
"""

from __future__ import annotations

import enum
import math
import numbers
import operator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from cometmq._engine import Selector
from cometmq._seconds import check_milliseconds
from cometmq._sql92 import ignored_tail
from cometmq.errors import InvalidArgument, WrongType
from cometmq.store_config.names import condition_sign, list_sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cometmq.store_config.settings import StoreSettings

__all__ = [
    "FlushMode",
    "GroupProgress",
    "INT32_MAX",
    "INT64_MAX",
    "QueueInfo",
    "Retention",
    "StartFrom",
    "StoreInfo",
    "StoreOpening",
    "Time",
    "TopicInfo",
    "in_range",
    "a_flag",
    "a_list",
    "a_text",
    "optional_time_ms",
    "parse_tags",
    "several",
    "time_ms",
    "timeout_ms",
]

Time: TypeAlias = int | datetime
T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_HOUR_MS = 3_600_000


class FlushMode(enum.Enum):
    """When an append is acknowledged.

    ``SYNC``: when it is on disk (group commit: one write and one fdatasync for all that wait). Survives a power loss.
    ``ASYNC``: when it is in the page cache. Survives the death of the process, not a power loss, which takes up to the
    last half second.
    """

    SYNC = "sync"
    ASYNC = "async"

    @classmethod
    def of(cls, value: FlushMode | str) -> FlushMode:
        """Accept the member or its value."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidArgument(f'flush is "sync" or "async", not {value!r}') from None


class StartFrom(enum.Enum):
    """Where a consumer group without stored progress begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """When old commit log files go, and with them their messages. Without one, nothing is ever deleted.

    The newest file always stays. The names are upstream's (``fileReservedTime``, ``deleteWhen``,
    ``diskMaxUsedSpaceRatio``, …), and so are the defaults.

    Attributes:
        reserved_hours: a file whose last write is older than this is due.
        delete_hours: local hours of the day in which due files are deleted.
        max_used_ratio: share of the disk in use above which due files go at any hour.
        force_ratio: share above which the oldest files go even when they are not due; None: they never do.
        warning_ratio: share above which appends are refused besides.
        files_per_round: most files deleted in one round; a round comes every ten seconds.
    """

    reserved_hours: float = 72
    delete_hours: tuple[int, ...] = (4,)
    max_used_ratio: float = 0.75
    force_ratio: float | None = 0.85
    warning_ratio: float = 0.90
    files_per_round: int = 10

    def __post_init__(self) -> None:
        """Check the types and ranges."""
        for name in ("reserved_hours", "max_used_ratio", "force_ratio", "warning_ratio"):
            value = getattr(self, name)
            if value is None and name == "force_ratio":
                continue
            if not _is_number(value):
                raise WrongType(f"{name} must be a number, not {type(value).__name__} ({value!r:.60})")
        for hour in several(self.delete_hours, "delete_hours", "hours"):
            in_range(hour, "an element of delete_hours", 0, 23)
        in_range(self.files_per_round, "files_per_round", 1, 1_000_000)
        if not (self.reserved_hours >= 0 and math.isfinite(self.reserved_hours)):
            raise InvalidArgument(f"reserved_hours is {self.reserved_hours}; it must be 0 or more")
        force_ratio = self.max_used_ratio if self.force_ratio is None else self.force_ratio
        if not 0 < self.max_used_ratio <= force_ratio <= self.warning_ratio <= 1:
            raise InvalidArgument("the ratios must rise: 0 < max_used_ratio <= force_ratio <= warning_ratio <= 1")

    @property
    def reserved_ms(self) -> int:
        """``reserved_hours`` in milliseconds."""
        return round(float(self.reserved_hours) * _HOUR_MS)

    @classmethod
    def from_settings(cls, settings: StoreSettings) -> Retention:
        """Return what a broker with these settings would do."""
        forced = max(settings.disk_space_clean_forcibly_ratio, settings.disk_max_used_space_ratio)
        return cls(
            reserved_hours=settings.file_reserved_time_hours,
            delete_hours=settings.delete_hours_of_day,
            max_used_ratio=settings.disk_max_used_space_ratio,
            force_ratio=forced if settings.clean_file_forcibly_enable else None,
            warning_ratio=max(
                settings.disk_space_warning_level_ratio,
                settings.disk_space_clean_forcibly_ratio,
                settings.disk_max_used_space_ratio,
            ),
            files_per_round=settings.delete_file_batch_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOpening:
    """The state in which opening found the store.

    Attributes:
        created: there was no store; one was made.
        was_unclean: the last writer did not close it (``abort`` was there).
        trusted_point: recovery could begin at our own durable point.
        scanned_from: physical offset from which the log was read …
        scanned_to: … up to here.
        records: whole records in between.
        cut_bytes: bytes behind the log's end that were cut off.
        removed: the folder under ``cometmq/removed`` that has whole records of them, or None: there was none to keep.
        removed_records: how many whole records it has; :meth:`Store.restore_removed` appends them again.
        gaps: filler units put where a queue missed messages.
        index_missing_from: keys of records behind this physical offset were lost with an index file, at this opening
            or an earlier one (queries by key read that part; ``cometmq repair`` rebuilds the index); 0: none.
        overwrites: how the file system writes a file's bytes again: ``"in_place"``, ``"copied"`` to other blocks
            (btrfs, ZFS), or ``"shared"`` with a copy of the file until then (reflinks). Not asked in mode "r".
        overwritten: the path that is not overwritten in place, or None.
        elapsed_us: how long opening took, in microseconds.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """The state of a store.

    Attributes:
        path: the directory.
        read_only: opened with mode "r".
        flush: when appends are acknowledged; None in a store opened to read: its writer decides.
        fenced: a write failed; no more appends until it is opened again.
        disk_full: appends are refused for now.
        writer_alive: somebody holds the writer lock (this process, for a store opened for writing).
        writer_is_ours: … and it is CometMQ, not a Java broker.
        log_min: physical offset of the oldest record.
        log_end: physical offset behind the newest readable record.
        flushed: physical offset up to which the log is known to be on disk; None in a store opened to read, where only
            the writer knows.
        segment_bytes: size of a commit log file.
        queue_file_bytes: size of a consume queue file.
        batch_file_bytes: size of a batch consume queue file.
        ext_file_bytes: size of a consume queue extension file.
        index_slots: hash slots of an index file.
        index_entries: entries of an index file.
        earliest_timestamp_ms: when the oldest message was stored, or None in an empty store.
        latest_timestamp_ms: when the newest one was, or None where it is not known.
        queue_count: number of queues.
    """

    path: Path
    read_only: bool
    flush: FlushMode | None
    fenced: bool
    disk_full: bool
    writer_alive: bool
    writer_is_ours: bool
    log_min: int
    log_end: int
    flushed: int | None
    segment_bytes: int
    queue_file_bytes: int
    batch_file_bytes: int
    ext_file_bytes: int
    index_slots: int
    index_entries: int
    earliest_timestamp_ms: int | None
    latest_timestamp_ms: int | None
    queue_count: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue of a topic.

    Attributes:
        topic: topic.
        queue_id: number of the queue in its topic.
        min_offset: first queue offset that can be read.
        max_offset: the one that the next message will get; equal to ``min_offset`` when the queue is empty.
        is_batch: True for a queue of inner batches (``queue.type=BatchCQ``).
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    is_batch: bool = False

    @property
    def messages(self) -> int:
        """Number of messages that can be read."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic.

    Attributes:
        name: name.
        write_queues: queues that appends go to.
        read_queues: queues offered to consumers.
        perm: upstream's bits: 4 read, 2 write, 1 inherit.
        is_batch: True for a topic of inner batches.
        is_system: True for one of RocketMQ's own topics.
        is_configured: False for a topic that has queues but no entry in ``topics.json``.
        attributes: upstream's topic attributes.
        queues: the queues that exist.
    """

    name: str
    write_queues: int
    read_queues: int
    perm: int
    is_batch: bool
    is_system: bool
    is_configured: bool
    attributes: Mapping[str, str]
    queues: tuple[QueueInfo, ...]

    @property
    def messages(self) -> int:
        """Number of messages that can be read."""
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """How far a consumer group is in one queue.

    Attributes:
        group: consumer group.
        topic: topic.
        queue_id: queue.
        offset: next queue offset to consume.
        lag: messages from there to the queue's end.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    lag: int


_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""The characters that upstream's clients strip from a tag (``String.trim``): U+00A0 and the like stay."""

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
_TIMEOUT_MS_MAX = 1 << 53


def in_range(value: int, name: str, low: int, high: int) -> int:
    """Return an integer that lies within [low, high].

    Raises:
        WrongType: it is not an integer.
        InvalidArgument: it is outside the range.
    """
    try:
        value = operator.index(value)
    except TypeError:
        raise WrongType(f"{name} must be an int, not {type(value).__name__} ({value!r:.60})") from None
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}; it must be {low} to {high}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def a_text(value: object, name: str, advice: str = "") -> str:
    """Return a text.

    Raises:
        WrongType: it is something else.
    """
    if not isinstance(value, str):
        raise WrongType(f"{name} must be a str, not {type(value).__name__} ({value!r:.60}){advice}")
    return value


def a_flag(value: object, name: str) -> bool:
    """Return True or False.

    Raises:
        WrongType: it is something else, such as "no", which Python takes for True.
    """
    if not isinstance(value, bool):
        raise WrongType(f"{name} must be True or False, not {type(value).__name__} ({value!r:.60})")
    return value


def a_list(values: Iterable[T], name: str, of: str) -> tuple[T, ...]:
    """Return the elements of a list.

    Raises:
        WrongType: it is not a list, tuple or the like.
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise WrongType(f"{name} must be a list of {of}, not {type(values).__name__}: {name}=[{values!r:.60}]")
    return tuple(values)


def several(values: Iterable[T], name: str, of: str) -> tuple[T, ...]:
    """Return the elements of a list without repeats.

    Raises:
        WrongType: it is not a list, tuple or the like.
    """
    found = a_list(values, name, of)
    try:
        return tuple(dict.fromkeys(found))
    except TypeError:
        raise WrongType(f"{name} must be a list of {of}, not of {type(found[0]).__name__} ({found!r:.60})") from None


def time_ms(value: Time) -> int:
    """Return a time as milliseconds since 1970."""
    if isinstance(value, datetime):
        return (value.astimezone(timezone.utc) - _EPOCH) // _MILLISECOND
    if hasattr(value, "__index__") and not isinstance(value, bool):
        found = in_range(value, "a time in milliseconds", -INT64_MAX, INT64_MAX)
        return check_milliseconds("a time", found)
    raise WrongType(
        f"a time must be a datetime or milliseconds since 1970 as int, not {type(value).__name__} ({value!r:.60}); "
        "for text use datetime.fromisoformat(...), for seconds int(seconds * 1000)"
    )


def optional_time_ms(value: Time | None) -> int | None:
    """Return :func:`time_ms`, or None for None."""
    return None if value is None else time_ms(value)


def optional_selector(where: str | None) -> Selector | None:
    """Return an SQL92 expression, compiled; None for None.

    Raises:
        InvalidArgument: it is not an expression, or has text after one; the error has the place and the reason.
        LimitReached: it is too long or too deep.
    """
    if where is None:
        return None
    selector = Selector(a_text(where, "where"))
    if selector.tail:  # a broker ignores it and logs a warning; here, no one would notice
        raise InvalidArgument(ignored_tail(where, selector.tail))
    return selector


def timeout_ms(timeout_s: float | None) -> int:
    """Return a time-out in whole milliseconds, at least as long; None is for ever (-1)."""
    if timeout_s is None:
        return -1
    if not _is_number(timeout_s):
        raise WrongType(f"timeout_s must be a number of seconds or None, not {type(timeout_s).__name__}")
    if not timeout_s >= 0:
        raise InvalidArgument(f"timeout_s is {timeout_s}; it must be 0 or more, or None for no limit")
    return _TIMEOUT_MS_MAX if timeout_s >= _TIMEOUT_MS_MAX // 1000 else math.ceil(float(timeout_s) * 1000)


def parse_tags(expression: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the tags of a subscription: ``"A || B"``; nothing (every tag) for None, an empty one or ``"*"``.

    Args:
        expression: tags with ``||`` between them, or a list of tags, each taken as it is, but ``"*"``.

    Raises:
        WrongType: it is neither.
        InvalidArgument: it is a condition, or divides tags otherwise than by ``||``: it would match nothing.
    """
    if expression is None:
        return ()
    if not isinstance(expression, str):
        return _listed_tags(expression)
    if not expression.strip(_JAVA_BLANKS):
        return ()
    trimmed = (part.strip(_JAVA_BLANKS) for part in expression.split("||"))
    parts = [part for part in trimmed if part]
    if not parts:
        raise InvalidArgument(f'tags is {expression!r}: it names no tag; write tags="a || b"')
    for part in parts:
        if sign := condition_sign(part) or list_sign(part):
            raise InvalidArgument(
                f"tags is {expression!r}: {sign!r} has no meaning there, only || divides tags "
                '(tags="a || b"); for a condition over properties use where="price > 10", or cometmq sql; '
                f"for a tag of this name pass a list: tags=[{part!r}]"
            )
    return () if "*" in parts else tuple(dict.fromkeys(parts))


def _listed_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, (bytes, dict)) or not hasattr(tags, "__iter__"):
        raise WrongType(f'tags must be text ("a || b") or a list of tags, not {type(tags).__name__} ({tags!r:.60})')
    found = tuple(dict.fromkeys(tags))
    for at, tag in enumerate(found):
        if not isinstance(tag, str):
            raise WrongType(f"tags[{at}] must be a str, not {type(tag).__name__} ({tag!r:.60})")
        if not tag or "||" in tag:
            raise InvalidArgument(f"tags[{at}] is {tag!r}: each element of a list is one tag")
    if not found:
        raise InvalidArgument("tags is an empty list: it would match nothing; None stands for all messages")
    return () if "*" in found else found
