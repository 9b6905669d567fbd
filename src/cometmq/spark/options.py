"""Options of ``format("cometmq")``: their names, aliases, defaults and values.

Spark hands options over as texts under names without case. They are read once, here, into frozen dataclasses, which
are what travels to the executors. (A plain ``dict`` of Spark's own mapping has lower-case names: a later look-up by
``maxOffsetsPerTrigger`` would find nothing, and the limit would be gone.)
"""

from __future__ import annotations

import difflib
import enum
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from cometmq.errors import InvalidArgument, LimitReached
from cometmq.remoting.addresses import parse_addresses
from cometmq.spark.errors import OptionError
from cometmq.store.options import optional_selector, parse_tags
from cometmq.store_config.names import validate_group, validate_topic

__all__ = ["DeliveryGuarantee", "OptionMap", "ReadOptions", "Subscription", "WriteOptions"]

T = TypeVar("T")

_SUBSCRIPTION = ("topic", "subscribePattern", "assign")
_BOTH = ("path", "nameServer", "config", "engine")
_READ = (
    *_SUBSCRIPTION,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "tags",
    "where",
    "keys",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxPartitionBytes",
    "failOnDataLoss",
    "columns",
    "includeProperties",
    "schema",
    "brokerName",
    "pushdown",
    "batchRows",
    "batchBytes",
    "onCorrupt",
    "groupId",
    "commitOffsets",
    "pullTimeoutMs",
)
_WRITE_ONLY = ("topicQueues", "jobId", "commitTimeoutMs", "deliveryGuarantee")
_WRITE = ("topic", "brokerName", "pullTimeoutMs", *_WRITE_ONLY)
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "groupId",
    "commitOffsets",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_ALIASES = {"subscribe": "topic", "subExpression": "tags", "includeHeaders": "includeProperties"}
_SPARKS_OWN = ("checkpointLocation", "queryName", "outputMode", "mergeSchema", "pathOptionBeforeLoad")
"""Options that Spark adds for itself."""

_NAMES = tuple(dict.fromkeys((*_BOTH, *_READ, *_WRITE)))
_SPELLING = {name.lower(): name for name in (*_NAMES, *_ALIASES, *_SPARKS_OWN)}

_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION = re.compile(r"\s*(\d+)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?)\s*", re.IGNORECASE)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class OptionMap:
    """Options under their documented names. Refuses unknown ones, and one given under two names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Take over what Spark gives.

        Raises:
            OptionError: an option is unknown; the nearest known name is suggested.
        """
        self._values: dict[str, str] = {}
        for name, value in given.items():
            spelled = _SPELLING.get(name.lower())
            if spelled is None:
                raise OptionError(name, f"there is no such option{_suggestion(name)}")
            if spelled in _SPARKS_OWN:
                continue
            target = _ALIASES.get(spelled, spelled)
            if target in self._values and self._values[target] != value:
                raise OptionError(target, f"given twice: {spelled} is another name of it")
            self._values[target] = value

        self._check_engine()

    def _check_engine(self) -> None:
        """Refuse the engine in the JVM: where it is there, its own source has taken the query before."""
        if self.choice("engine", "auto", ("auto", "jvm", "python")) == "jvm":
            raise OptionError(
                "engine",
                "the engine for the JVM is not in this Spark session: make the session with cometmq.spark.session(), "
                "or set spark.jars to cometmq.spark.jars()",
            )

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Refuse options that have no meaning where they were given."""
        for name in names:
            if name in self._values:
                raise OptionError(name, why)

    def text(self, name: str) -> str | None:
        """Return a value without blanks around it, or None where it was not given."""
        value = self._values.get(name)
        return None if value is None else value.strip()

    def parsed(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return a value through ``parse``, which raises ValueError for what it cannot take."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            raise OptionError(name, f"{value!r} {error}") from None

    def integer(self, name: str, default: int | None, *, minimum: int = 1) -> int | None:
        """Return a whole number."""
        return self.parsed(name, lambda value: _integer(value, minimum), default)

    def size(self, name: str, default: int, *, maximum: int = (1 << 63) - 1) -> int:
        """Return a number of bytes: ``256m``."""
        return self.parsed(name, lambda value: _size(value, maximum), default)

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        return self.parsed(name, _flag, default)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Return one of a few words."""

        def parse(value: str) -> str:
            if value.lower() not in choices:
                raise ValueError(f"is not one of {', '.join(choices)}")
            return value.lower()

        return self.parsed(name, parse, default)


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), [one.lower() for one in (*_NAMES, *_ALIASES)], n=1, cutoff=0.6)
    return f"; did you mean {_SPELLING[close[0]]}?" if close else f"; known are {', '.join(sorted(_NAMES))}"


def _integer(value: str, minimum: int) -> int:
    number = int(value) if re.fullmatch(r"[+-]?\d+", value) else None
    if number is None or number < minimum:
        raise ValueError(f"is not a whole number from {minimum} up")
    return number


def _size(value: str, maximum: int) -> int:
    match = _SIZE.fullmatch(value)
    size = int(match[1]) << _SHIFT[match[2].lower()] if match else 0
    if not 0 < size <= maximum:
        raise ValueError(f"is not a size such as 4m or 256m, from 1 to {maximum} bytes")
    return size


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return value.lower() == "true"


def _duration_ms(value: str) -> int:
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError("is not a time such as 30s or 15m")
    unit = match[2].lower()
    return int(match[1]) * _UNIT_MS["ms" if unit == "ms" else unit[0]]


def _optional_time_ms(value: str) -> int | None:
    if re.fullmatch(r"-?\d+", value):
        return int(value)
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value))
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError("is neither milliseconds since 1970 nor a time (2026-11-21, 2026-11-21T10:00:00+00:00)")
    # Without an offset it is the driver's local time, as the command line takes it.
    return (moment.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)) // _MILLISECOND


def _selecting(value: str) -> str | None:
    """Return an SQL92 expression that compiles; executors compile it again."""
    try:
        optional_selector(value)
    except (InvalidArgument, LimitReached) as error:
        raise ValueError(f"cannot be used: {error}") from None
    return value


_MILLISECOND = datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1)


_NO_NAMES: tuple[str, ...] = ()


def _names(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))
    if not names:
        raise ValueError("names nothing")
    return names


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def _store_path(options: OptionMap) -> str | None:
    """Return the store's directory, or None where brokers are asked."""
    value = options.text("path")
    if options.text("nameServer") is not None:
        if value:
            raise OptionError("nameServer", "cannot be given together with path: read the files, or ask the brokers")
        options.refuse(("config",), "belongs to path: brokers have read their own settings")
        return None
    options.refuse(("pullTimeoutMs",), "belongs to nameServer: files are not waited for")
    if not value:
        raise OptionError(
            "path",
            "is missing; it is the store's directory, the one that holds commitlog; or give nameServer, host:port, to "
            "go through brokers",
        )
    return options.parsed("path", _local_path, "")


def _name_servers(value: str) -> tuple[str, ...]:
    try:
        return parse_addresses(value)
    except InvalidArgument as error:
        raise ValueError(f"cannot be used: {error}") from None


def _local_path(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme == "file":
        return unquote(parts.path)
    if "://" in value:
        raise ValueError("is not a local path; the store must be a directory that this machine and every executor see")
    return os.path.abspath(value)  # noqa: PTH100 - Path.resolve would follow links, which an executor may lack


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which topics and queues are read. One of the three is given.

    Attributes:
        topics: topics by name, or empty.
        pattern: a regular expression that the whole name matches, or None.
        assigned: JSON text of topics and their queues, or None.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: str | None = None

    @classmethod
    def of(cls, options: OptionMap) -> Subscription:
        """Read the three options.

        Raises:
            OptionError: none or several of them are given, or one cannot be used.
        """
        given = [name for name in _SUBSCRIPTION if options.text(name) is not None]
        if len(given) != 1:
            problem = "is missing" if not given else f"cannot be given together with {given[1]}"
            raise OptionError(
                given[0] if given else "topic",
                f"{problem}; give one of topic (a comma list), subscribePattern and assign",
            )
        return cls(
            topics=options.parsed("topic", _names, _NO_NAMES),
            pattern=options.parsed("subscribePattern", _regex, ".*") if given == ["subscribePattern"] else None,
            assigned=options.text("assign"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of reading, batch and stream. Times are milliseconds since 1970; sizes are bytes.

    Either ``path`` is given, or ``name_servers`` are. The attributes are the options of the same names;
    ``starting_offsets`` and the like are still texts, since their meaning depends on the queues that are there.
    """

    path: str | None
    config: str | None
    name_servers: tuple[str, ...]
    pull_timeout_ms: int
    subscription: Subscription
    starting_offsets: str | None
    ending_offsets: str | None
    starting_timestamp_ms: int | None
    ending_timestamp_ms: int | None
    starting_offsets_by_timestamp: str | None
    ending_offsets_by_timestamp: str | None
    tags: tuple[str, ...]
    where: str | None
    keys: tuple[str, ...]
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_partition_bytes: int
    fail_on_data_loss: bool
    columns: tuple[str, ...] | None
    include_properties: bool
    kafka_schema: bool
    broker_name: str | None
    pushdown: bool
    batch_rows: int
    batch_bytes: int
    skip_corrupt: bool
    group_id: str | None
    commit_offsets: bool

    @classmethod
    def of(cls, options: OptionMap) -> ReadOptions:
        """Read the options.

        Raises:
            OptionError: one cannot be used.
        """
        options.refuse(_WRITE_ONLY, "is an option of writing, not of reading")
        found = cls(
            path=_store_path(options),
            config=options.text("config"),
            name_servers=options.parsed("nameServer", _name_servers, _NO_NAMES),
            pull_timeout_ms=options.integer("pullTimeoutMs", 20_000) or 0,
            subscription=Subscription.of(options),
            starting_offsets=options.text("startingOffsets"),
            ending_offsets=options.text("endingOffsets"),
            starting_timestamp_ms=options.parsed("startingTimestamp", _optional_time_ms, None),
            ending_timestamp_ms=options.parsed("endingTimestamp", _optional_time_ms, None),
            starting_offsets_by_timestamp=options.text("startingOffsetsByTimestamp"),
            ending_offsets_by_timestamp=options.text("endingOffsetsByTimestamp"),
            tags=parse_tags(options.text("tags")),
            where=options.parsed("where", _selecting, None),
            keys=options.parsed("keys", _names, _NO_NAMES),
            max_offsets_per_trigger=options.integer("maxOffsetsPerTrigger", None),
            min_offsets_per_trigger=options.integer("minOffsetsPerTrigger", None),
            max_bytes_per_trigger=options.size("maxBytesPerTrigger", 0) or None,
            max_trigger_delay_ms=options.parsed("maxTriggerDelay", _duration_ms, 15 * 60_000),
            min_partitions=options.integer("minPartitions", None),
            max_partition_bytes=options.size("maxPartitionBytes", 256 << 20),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            columns=options.parsed("columns", _names, _NO_NAMES) or None,
            include_properties=options.flag("includeProperties", False),
            kafka_schema=options.choice("schema", "cometmq", ("cometmq", "kafka")) == "kafka",
            broker_name=options.text("brokerName"),
            pushdown=options.flag("pushdown", False),
            batch_rows=options.integer("batchRows", 8192) or 0,
            batch_bytes=options.size("batchBytes", 4 << 20, maximum=1 << 30),
            skip_corrupt=options.choice("onCorrupt", "fail", ("fail", "skip")) == "skip",
            group_id=options.text("groupId"),
            commit_offsets=options.flag("commitOffsets", False),
        )
        found._check(options)
        return found

    def _check(self, options: OptionMap) -> None:
        for side, choices in (("starting", _STARTS), ("ending", _ENDS)):
            given = [name for name in choices if options.text(name) is not None]
            if len(given) > 1:
                raise OptionError(given[1], f"cannot be given together with {given[0]}: both say where the {side} is")
        if self.kafka_schema and self.columns:
            raise OptionError("columns", "cannot be given together with schema=kafka")
        if self.batch_rows > 1 << 20:
            raise OptionError("batchRows", f"{self.batch_rows} is above {1 << 20}")
        if self.name_servers:
            options.refuse(("brokerName",), "is for path, where a store does not know it; brokers have their names")
        if self.keys and self.subscription.pattern is not None:
            raise OptionError("keys", "are looked up topic by topic: give topic, not subscribePattern")
        if self.commit_offsets != (self.group_id is not None):
            raise OptionError("groupId", "belongs to commitOffsets=true: give both or none")
        if self.group_id is not None:
            try:
                validate_group(self.group_id)
            except InvalidArgument as error:
                raise OptionError("groupId", str(error)) from None

    @classmethod
    def for_batch(cls, options: OptionMap) -> ReadOptions:
        """Read the options of ``spark.read``."""
        options.refuse(_STREAM_ONLY, "is an option of readStream; a batch reads what is there once")
        return cls.of(options)

    @classmethod
    def for_stream(cls, options: OptionMap) -> ReadOptions:
        """Read the options of ``spark.readStream``."""
        options.refuse(_BATCH_ONLY, "is an option of read; a stream has no end")
        options.refuse(("keys",), "is an option of read; in a stream filter the column keys")
        options.refuse(("pushdown",), "is an option of read; Spark pushes no filters into Python streams")
        return cls.of(options)


_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


class DeliveryGuarantee(enum.Enum):
    """How often a row is stored that is written through brokers."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def _guarantee(value: str) -> DeliveryGuarantee | None:
    try:
        return DeliveryGuarantee(value.lower())
    except ValueError:
        raise ValueError(f"is not one of {', '.join(one.value for one in DeliveryGuarantee)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of writing.

    Attributes:
        path: the store's directory; None where brokers are sent to.
        config: the broker's settings file, or None.
        name_servers: name servers of the brokers; none where a store is written.
        pull_timeout_ms: how long a server that does not answer is tried again.
        broker_name: only this broker is sent to, or None.
        topic: topic of rows without one, or None: every row names its own.
        topic_queues: queues of a topic that the write makes; 0: as many as the broker gives it.
        job_id: name under which a batch is written once only, or None: every run writes. Through brokers: the base of
            its messages' ids.
        commit_timeout_ms: longest wait for the store's writer.
        guarantee: through brokers: the requested one; None: exactly once where the broker takes it.
    """

    path: str | None
    config: str | None
    name_servers: tuple[str, ...]
    pull_timeout_ms: int
    broker_name: str | None
    topic: str | None
    topic_queues: int
    job_id: str | None
    commit_timeout_ms: int
    guarantee: DeliveryGuarantee | None

    @classmethod
    def of(cls, options: OptionMap, *, streaming: bool) -> WriteOptions:
        """Read the options.

        Raises:
            OptionError: one cannot be used.
        """
        reading = [name for name in _READ if name not in _WRITE]
        options.refuse(reading, "is an option of reading, not of writing")
        if streaming:
            options.refuse(("jobId",), "is an option of a batch write; a stream is known by its checkpoint")
        path = _store_path(options)
        guarantee = options.parsed("deliveryGuarantee", _guarantee, None)
        if path is not None:
            options.refuse(("brokerName",), "belongs to nameServer: a store is one broker's")
            options.refuse(("deliveryGuarantee",), "belongs to nameServer: into a store rows are written exactly once")
        elif guarantee is DeliveryGuarantee.AT_LEAST_ONCE:
            options.refuse(
                ("topicQueues",), "belongs to exactly-once: brokers make topics as they are set (cometmq topic create)"
            )
            options.refuse(("commitTimeoutMs",), "belongs to exactly-once: brokers acknowledge each message")
        return cls(
            path=path,
            config=options.text("config"),
            name_servers=options.parsed("nameServer", _name_servers, _NO_NAMES),
            pull_timeout_ms=options.integer("pullTimeoutMs", 20_000) or 0,
            broker_name=options.text("brokerName"),
            topic=options.parsed("topic", _one_topic, "") or None,
            topic_queues=options.integer("topicQueues", None if path is None else 1) or 0,
            job_id=options.parsed("jobId", _job_id, "") or None,
            commit_timeout_ms=options.integer("commitTimeoutMs", 600_000) or 0,
            guarantee=guarantee,
        )


def _one_topic(value: str) -> str:
    validate_topic(value)
    return value


def _job_id(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,200}", value):
        raise ValueError("is not a name of 1 to 200 letters, digits, and . _ : -")
    return value
