"""The source's content: a store opened to read, its topics, the ends of its queues, and the size of messages."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

import cometmq
from cometmq._engine import java_hash
from cometmq.errors import Error, NotFound, StoreClosed
from cometmq.spark.errors import OptionError, PathMissing
from cometmq.spark.offsets import QueueKey, parse_assigned
from cometmq.spark.options import ReadOptions, Subscription
from cometmq.spark.planning import QueueRange
from cometmq.store_config.names import is_system_topic

__all__ = [
    "Catalog",
    "Ends",
    "OpenCatalog",
    "StoreCatalog",
    "open_catalog",
    "open_store",
    "selected_queues",
    "selected_topics",
]

_log = logging.getLogger("cometmq.spark")

_SAMPLES = 8
_UNITS_PER_SAMPLE = 16
_UNKNOWN_ROW_BYTES = 1024.0
_UNIT_BYTES = 20
_HASHES = range(-(1 << 31), 1 << 31)


class Ends:
    """The bounds of a queue's readable offsets: ``low`` to before ``high``."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        """Keep both."""
        self.low = low
        self.high = high

    def __repr__(self) -> str:
        """Say both."""
        return f"Ends({self.low}, {self.high})"


class Catalog(Protocol):
    """The facts about a source that planning needs: a store, or a cluster over the wire."""

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        ...

    def ends(self, topic: str) -> dict[QueueKey, Ends]:
        """Return each queue of a topic, those without a message too.

        Raises:
            TopicNotFound: there is no such topic.
        """
        ...

    def offset_at(self, key: QueueKey, time_ms: int) -> int:
        """Return the offset of a queue's first message stored at a time or later."""
        ...

    def stored_ms(self, key: QueueKey, offset: int) -> int | None:
        """Return when the message at an offset was stored, or None where none can be read there."""
        ...

    def row_bytes(self, one: QueueRange, tags: Collection[str] = ()) -> float:
        """Return about how many bytes have to be read for a message of a range, if only those with a tag are wanted."""
        ...


class OpenCatalog(Catalog, Protocol):
    """A catalog that is open while a query is planned or a stream runs; a context manager. One thread at a time."""

    def refresh(self) -> None:
        """Include messages written since the last refresh."""
        ...

    def check_end(self) -> None:
        """Check that the ends are the ends of the messages.

        Raises:
            CorruptRecord: the log is damaged there, and messages behind cannot be read.
        """
        ...

    def commit_progress(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Set a consumer group's next offsets."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...

    def __enter__(self) -> OpenCatalog:
        """Return the catalog itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        ...


def open_catalog(options: ReadOptions) -> OpenCatalog:
    """Return the catalog of what the options name: a store, or a cluster.

    Raises:
        PathMissing, OptionError: as :func:`open_store`.
    """
    if options.name_servers:
        from cometmq.spark.wire_catalog import WireCatalog

        return WireCatalog(options.name_servers, timeout_ms=options.pull_timeout_ms)
    assert options.path is not None
    return StoreCatalog(options.path, options.config)


def open_store(path: str, config: str | None, *, on_executor: bool = False) -> cometmq.Store:
    """Open the store to read, also while another process writes.

    Raises:
        PathMissing: the directory is not there; the text names this host.
        OptionError: it is not a store, or it needs its broker's settings.
    """
    if not Path(path).is_dir():
        host = socket.gethostname()
        where = f"on the executor {host}" if on_executor else f"on the driver {host}"
        hint = "every executor must see the store under the same path as the driver"
        raise PathMissing("path", f"{path} is not there {where}; {hint}")
    try:
        return cometmq.open(path, mode="r", config=config, background=False)
    except cometmq.SettingNeeded as error:
        raise OptionError("config", f"give the broker's settings file: {error}") from error
    except (cometmq.NotAStore, NotFound) as error:
        raise OptionError("path", f"{path} cannot be read as a store: {error}") from error


class StoreCatalog:
    """A store as a catalog; a context manager. One thread at a time."""

    def __init__(self, path: str, config: str | None = None) -> None:
        """Open the store. Raises as :func:`open_store`."""
        self._path, self._config = path, config
        self._store = open_store(path, config)

    def refresh(self) -> None:
        """Include messages written since the last refresh.

        A view cannot continue if retention passed it, or if a new writer cut messages that it had seen. Then the store
        is reopened, and the caller notices the missing messages.
        """
        try:
            self._store.handle.refresh()
        except StoreClosed:
            self._store.close()
            self._store = open_store(self._path, self._config)

    def check_end(self) -> None:
        """See :class:`OpenCatalog`."""
        self._store.handle.check_end()

    def topics(self) -> list[str]:
        """See :class:`Catalog`."""
        return self._store.topics(system=True)

    def ends(self, topic: str) -> dict[QueueKey, Ends]:
        """See :class:`Catalog`."""
        found = self._store.topic(topic)
        ends = {QueueKey(topic, queue): Ends(0, 0) for queue in range(max(found.read_queues, found.write_queues))}
        return ends | {
            QueueKey(topic, queue.queue_id): Ends(queue.min_offset, queue.max_offset) for queue in found.queues
        }

    def offset_at(self, key: QueueKey, time_ms: int) -> int:
        """See :class:`Catalog`."""
        return self._store.offset_at(key.topic, key.queue_id, time_ms)

    def stored_ms(self, key: QueueKey, offset: int) -> int | None:
        """See :class:`Catalog`."""
        try:
            return self._store.handle.read_offset(key.topic, key.queue_id, offset).store_timestamp_ms
        except Error:
            return None  # a gap, damage, or it expired just now

    def commit_progress(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """See :class:`OpenCatalog`: the store's writer takes them from the hand-off folder.

        Offsets in queues that are gone, or were made again, are left out and logged.
        """
        self.refresh()
        there = {(key.topic, key.queue_id): offset for key, offset in offsets.items() if self._has(key, offset)}
        gone = sorted(f"{key.topic}/{key.queue_id}" for key in offsets if (key.topic, key.queue_id) not in there)
        if gone:
            _log.warning(
                "the offsets of group %s were not committed in queues that are gone: %s", group, ", ".join(gone)
            )
        if there:
            self._store._commit_progress(group, there)

    def _has(self, key: QueueKey, offset: int) -> bool:
        try:
            return offset <= self._store.max_offset(key.topic, key.queue_id)
        except NotFound:
            return False

    def row_bytes(self, one: QueueRange, tags: Collection[str] = ()) -> float:
        """See :class:`Catalog`: the mean of some units spread over the range, which a queue keeps beside the log.

        With tags every unit is read, and of the log the records with a tag's hash. Few samples cannot prove that no
        message matches.
        """
        hashes = {java_hash(tag) for tag in tags}
        step = max(one.rows // _SAMPLES, 1)
        size = messages = 0
        fitting = 1
        for start in range(one.start, one.end, step)[:_SAMPLES]:
            limit = min(_UNITS_PER_SAMPLE, one.end - start)
            try:
                units, _ = self._store.handle.queue_units(one.topic, one.queue_id, start, limit)
            except Error:
                continue  # a gap, or it expired just now: a sample is missing, no more
            size += sum(unit[2] for unit in units)
            messages += sum(max(unit[4], 1) for unit in units)
            # A value that is not a hash is the address of one; then the tag is not known here.
            fitting += sum(max(unit[4], 1) for unit in units if unit[3] in hashes or unit[3] not in _HASHES)
        if not messages:
            return _UNKNOWN_ROW_BYTES
        mean = size / messages
        return mean if not tags else _UNIT_BYTES + mean * min(fitting / messages, 1.0)

    def close(self) -> None:
        """Let the store go."""
        self._store.close()

    def __enter__(self) -> StoreCatalog:
        """Return the catalog itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def selected_topics(
    catalog: Catalog, subscription: Subscription, *, strict: bool = True
) -> dict[str, frozenset[int] | None]:
    """Return the topics that a subscription chooses, each with the queues it may be read from, or None for all.

    Raises:
        OptionError: with ``strict``, a topic is not there, or the pattern matches none.
    """
    known = catalog.topics()
    found = _selected(known, subscription)
    if not strict:
        return found
    if subscription.pattern is not None and not found:
        raise OptionError(
            "subscribePattern", f"{subscription.pattern!r} matches no topic; known topics: {_listed(known)}"
        )
    if subscription.assigned is not None:
        _require(parse_assigned(subscription.assigned), known, "assign")
    _require(subscription.topics, known, "topic")
    return found


def _selected(known: list[str], subscription: Subscription) -> dict[str, frozenset[int] | None]:
    """Return those of the chosen topics that are there."""
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        return dict.fromkeys(topic for topic in known if not is_system_topic(topic) and pattern.fullmatch(topic))
    if subscription.assigned is not None:
        return {topic: queues for topic, queues in parse_assigned(subscription.assigned).items() if topic in known}
    return dict.fromkeys(topic for topic in subscription.topics if topic in known)


def _require(topics: Iterable[str], known: list[str], option: str) -> None:
    for topic in topics:
        if topic not in known:
            raise OptionError(option, f"there is no topic {topic!r}; known topics: {_listed(known)}")


def _listed(topics: list[str], *, most: int = 10) -> str:
    own = [topic for topic in topics if not is_system_topic(topic)]
    if not own:
        return "none"
    return ", ".join(own[:most]) + (f" and {len(own) - most} more" if len(own) > most else "")


def selected_queues(
    catalog: Catalog, topics: Mapping[str, frozenset[int] | None], *, strict: bool = True
) -> dict[QueueKey, Ends]:
    """Return the queues of chosen topics.

    Raises:
        OptionError: with ``strict``, an assigned queue is not there.
    """
    found: dict[QueueKey, Ends] = {}
    for topic, queues in topics.items():
        try:
            ends = catalog.ends(topic)
        except NotFound:  # deleted since the topics were listed
            if strict:
                raise
            continue
        there = {key.queue_id for key in ends}
        missing = sorted((queues or frozenset()) - there)
        if missing and strict:
            raise OptionError("assign", f"the topic {topic!r} has no queue {missing[0]}; there are {sorted(there)}")
        found |= {key: one for key, one in ends.items() if queues is None or key.queue_id in queues}
    return found
