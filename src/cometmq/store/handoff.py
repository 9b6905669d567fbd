"""Applying the work in the hand-off folder: the writer's side. :mod:`cometmq.store.handoff_files` describes the format
and the guarantees.

One thread of the writer's process (:class:`HandoffWatcher`) waits on the folder's FIFO and applies what comes; opening
and closing the store apply what waits as well. It keeps no store open: it holds a weak reference only.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from cometmq._engine import AppendManyResult, Message, Reader, StoreHandle, encode_properties, record_of
from cometmq.errors import (
    CorruptRecord,
    DiskFull,
    Error,
    GroupBusy,
    InvalidArgument,
    NotFound,
    StorageError,
    StoreClosed,
    StoreFenced,
)
from cometmq.store.group_book import Commit, GroupBook
from cometmq.store.handoff_door import NOT_NOW, REJECTED, STORED, Answer
from cometmq.store.handoff_files import (
    HANDOFF_PROPERTY,
    CallWork,
    CommitWork,
    HandoffFolder,
    Journal,
    MessagesWork,
    NewerWork,
    StagedWork,
    Work,
    decode_work,
)
from cometmq.store.progress_bounds import bounded_offset
from cometmq.store.staged_apply import StagedAppend, apply_staged
from cometmq.store.staged_check import Disks
from cometmq.store.staged_files import StagedFolder
from cometmq.store.topic_book import TopicBook
from cometmq.store.topic_calls import CALLS, Books

__all__ = ["HandoffApplier", "HandoffWatcher", "handoff_mark"]

_log = logging.getLogger("cometmq.handoff")

TAKEN_MAX = 10_000
ROUND_MAX = 64
"""Most pieces of work of one round, that is, between two journals."""
_LOOK_EVERY_S = 1.0
_LOOK_EVERY_WITHOUT_FIFO_S = 0.1


_MARK = f"{HANDOFF_PROPERTY}\x01".encode()
_BROKERS = b"MSG_REGION\x01"
"""A broker puts it behind the properties of each message that a client sends; a mark stands behind all others."""


def handoff_mark(message: Message) -> tuple[str, int] | None:
    """Return the id and index of a handed-off message, or None for one that was appended directly."""
    value = message.properties.get(HANDOFF_PROPERTY)
    if value is None:
        return None
    record = record_of(message)
    if record.rfind(_BROKERS) > record.rfind(_MARK):
        return None  # a client sent it
    work_id, _, index = value.partition(":")
    return (work_id, int(index)) if index.isdigit() else None


class HandoffApplier:
    """Applies waiting work to a store opened for writing. Threads: any; one round at a time."""

    def __init__(
        self,
        handle: StoreHandle,
        folder: HandoffFolder,
        topics: TopicBook,
        groups: GroupBook,
        *,
        disks: Disks,
    ) -> None:
        """Nothing is looked at yet. ``disks``: where rows are written to."""
        self.disks = disks
        self._handle = handle
        self._folder = folder
        self._topics = topics
        self._groups = groups
        self._staged = StagedFolder(folder.root)
        self._applying = threading.Lock()
        self._logged: set[str] = set()
        self._unreadable: set[str] = set()
        """Work of other users that this process may not read, as the latest look found it."""
        # Work that still waits, of which the log may hold a part. Guarded by _applying.
        self._begun: Journal | None = None
        # Ids of work that came by the folder after the door gave no answer: the door may still have it. The same.
        self._taken: dict[str, None] = {}

    def append_now(self, requests: Sequence[bytes]) -> list[Answer]:
        """Append work that came through the door, behind everything that waits in the folder; one answer each."""
        with self._applying:
            if self._folder.waiting():
                self._apply_waiting()
            answers = [self._append_one(request) for request in requests]
            end = max((appended[1] for _, appended in answers if appended is not None), default=-1)
            if end >= 0:
                self._handle.wait_durable(end)
        return [answer if appended is None else (STORED, appended[0]) for answer, appended in answers]

    def _append_one(self, request: bytes) -> tuple[Answer, tuple[bytes, int] | None]:
        """Append one request without waiting for the disk; returns an answer, or the messages' places and their end."""
        try:
            work = decode_work(request)
            if not isinstance(work, MessagesWork) or work.work_id in self._taken:
                return (NOT_NOW, b"it goes by the folder"), None
            result = self._append(work, Counter())
            return (STORED, b""), (result.physical_offsets.tobytes(), result.end)
        except (DiskFull, StoreFenced, StoreClosed, NewerWork) as error:
            return (NOT_NOW, str(error).encode()), None
        except (InvalidArgument, CorruptRecord) as error:
            return (REJECTED, str(error).encode()), None
        except Exception as error:  # noqa: BLE001 - one request may not keep the others from being served
            # The folder puts it aside, or shows the reason.
            _log.exception("a request through the door cannot be carried out")
            return (NOT_NOW, str(error).encode()), None

    def apply_all(self) -> int:
        """Apply everything that waits; returns the number of pieces.

        Work of other users that this process may not read is logged and stays; work behind it is applied. Where it
        becomes readable later it is applied then.

        Raises:
            Error: the store or the folder failed; work that is not applied still waits.
        """
        with self._applying:
            return self._apply_waiting()

    def _apply_waiting(self) -> int:
        applied = 0
        done = self._applied_before_a_crash()
        unreadable: set[str] = set()
        while True:
            passed = self._logged | unreadable
            names = [name for name in self._folder.waiting() if name not in passed][:ROUND_MAX]
            if not names:
                self._unreadable = unreadable
                return applied
            applied += self._round(names, done, unreadable)

    def _round(self, names: Sequence[str], done: dict[str, Counter[int]], unreadable: set[str]) -> int:
        works: dict[str, Work] = {}
        for name in names:
            work = self._read(name, unreadable)
            if isinstance(work, StagedWork):
                # Staged work may take long: commits do not wait for it, and it has a round of its own.
                if works:
                    break
                return self._staged_round(name, work, done.get(work.work_id, Counter()), unreadable)
            if work is not None:
                works[name] = work
        if not works:
            return 0
        self._begin_round(tuple(works))
        done = done | self._sought(works.values())
        finished: list[str] = []
        with self._groups.committing() as commit:
            for name, work in works.items():
                if isinstance(work, CallWork):
                    # Earlier commits must not bring back the progress that a call forgets.
                    self._handle.flush()
                    commit.persist()
                if self._apply(name, work, done.get(work.work_id, Counter()), commit):
                    finished.append(name)
            self._handle.flush()
            commit.persist()
            self._end_round(finished)
        return len(finished)

    def _sought(self, works: Iterable[Work]) -> dict[str, Counter[int]]:
        """Return how often each mark of work that the door may have begun stands in the log; it takes no such work."""
        sought = {
            work.work_id: work.sought_from
            for work in works
            if isinstance(work, MessagesWork) and work.sought_from is not None
        }
        for work_id in sought:
            self._take(work_id)
        return self._marks_from(min(sought.values()), sought) if sought else {}

    def _begin_round(self, names: tuple[str, ...]) -> None:
        """Write the journal. It keeps the place where unfinished work of an earlier round began."""
        log_end = self._handle.info()["log_end"]
        if self._begun is not None:
            log_end = min(log_end, self._begun.log_end)
            names += tuple(name for name in self._begun.names if name not in names)
        self._folder.begin_round(Journal(log_end, names))

    def _end_round(self, finished: Sequence[str]) -> None:
        """Remove finished work; the journal stays for work that was begun before and still waits.

        It stays as well for finished work that this process may not remove: nothing else says that it was applied.
        """
        kept = self._folder.remove_work(finished)
        for name in kept:
            self._logged.add(name)
            _log.warning(
                "%s was applied and cannot be removed: its user, or %s, does not let this process",
                name,
                self._folder.path,
            )
        names = kept
        log_end = self._handle.info()["log_end"]
        if self._begun is not None:
            log_end = self._begun.log_end
            names += tuple(name for name in self._begun.names if name not in names and self._folder.is_waiting(name))
        elif kept:
            journal = self._folder.journal()
            log_end = log_end if journal is None else journal.log_end
        self._begun = Journal(log_end, names) if names else None
        self._folder.end_round(self._begun)

    def _read(self, name: str, unreadable: set[str]) -> Work | None:
        try:
            return self._folder.read(name)
        except PermissionError as error:
            self._pass_over(name, error, unreadable)
        except NewerWork as error:
            self._logged.add(name)
            _log.warning("%s: %s; it is left for a writer of that version", name, error)
        except CorruptRecord as error:
            self._reject(name, str(error))
        return None

    def _pass_over(self, name: str, error: OSError, unreadable: set[str]) -> None:
        if name not in self._unreadable:
            _log.warning("handed-off work %s waits, as this process may not read it: %s", name, error)
        unreadable.add(name)

    def _staged_round(self, name: str, work: StagedWork, done: Counter[int], unreadable: set[str]) -> int:
        if not self._staged.is_done(work):
            self._begin_round((name,))
            append = StagedAppend(self._handle, self._topics, self._staged, work, self.disks)
            try:
                try:
                    append.check_files(done)
                except PermissionError as error:
                    self._pass_over(name, error, unreadable)
                    self._end_round(())
                    return 0
                apply_staged(append, done)
            except (InvalidArgument, CorruptRecord) as error:
                # First the files: once the work waits no more, its job's name may be used again.
                self._staged.remove(work.folder)
                self._reject(name, str(error))
                self._end_round(())
                return 0
            self._handle.flush()
            self._staged.set_done(work, self._handle.info()["log_end"])
        # Without a key nothing but the work itself says that it was applied; then no name is used twice.
        if work.done_key is not None:
            self._staged.remove(work.folder)
        self._end_round((name,))
        if work.done_key is None:
            self._staged.remove(work.folder)
        return 1

    def _apply(self, name: str, work: Work, done: Counter[int], commit: Commit) -> bool:
        try:
            if isinstance(work, CommitWork):
                self._commit(work, commit)
            elif isinstance(work, MessagesWork):
                self._append(work, done)
            elif isinstance(work, CallWork):
                self._call(work)
        except GroupBusy as error:
            if self._begun is None or name not in self._begun.names:
                self._reject(name, str(error))
                return False
            # A writer that died had begun it, and commits behind it changed the progress: it was applied.
        except (InvalidArgument, NotFound) as error:
            # It can never be applied; nothing of it was appended.
            self._reject(name, str(error))
            return False
        except Error:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            # Values that no CometMQ writes: work behind them is not to wait for ever.
            self._reject(name, f"it has values that it cannot have: {error!r}")
            return False
        return True

    def _commit(self, work: CommitWork, commit: Commit) -> None:
        """Set a group's progress, unless another commit changed it since the process looked that left this one.

        Raises:
            GroupBusy: another one did.
        """
        self._groups.require(work.group)
        places = [(topic, queue_id) for topic, queue_id, _ in work.offsets]
        if work.expected is not None and not self._is_set(work):
            before = dict(zip(places, work.expected, strict=True))
            there = {place: offset for place, offset in before.items() if offset is not None}
            self._groups.check_progress(work.group, places, there)
        for topic, queue_id, offset in work.offsets:
            commit.set(work.group, topic, queue_id, self._bounded(work.group, topic, queue_id, offset))

    def _is_set(self, work: CommitWork) -> bool:
        """Return whether a writer that died had set the progress already."""
        return all(
            self._groups.progress(work.group, topic).get(queue_id) == offset for topic, queue_id, offset in work.offsets
        )

    def _call(self, work: CallWork) -> None:
        if work.call not in CALLS:
            raise InvalidArgument(f"this CometMQ knows no call {work.call!r:.60}")
        try:
            CALLS[work.call](Books(self._handle, self._topics, self._groups), **work.arguments)
        except Error:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(f"{work.call} has arguments that it cannot have: {error}") from error

    def _bounded(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        """Return the offset, or the queue's end: a power loss may have taken what the commit's process had read."""
        if offset > self._queue_end(topic, queue_id):
            self._handle.flush()  # this round's own messages are in their queues then
        return bounded_offset(group, topic, queue_id, offset, self._queue_end)

    def _queue_end(self, topic: str, queue_id: int) -> int:
        queue = self._handle.queue(topic, queue_id)
        return 0 if queue is None else queue[2]

    def _take(self, work_id: str) -> None:
        """Keep the door from appending this work later."""
        self._taken[work_id] = None
        while len(self._taken) > TAKEN_MAX:
            del self._taken[next(iter(self._taken))]

    def _append(self, work: MessagesWork, done: Counter[int]) -> AppendManyResult:
        target = self._topics.target(work.topic)
        left = [index for index in range(len(work.bodies)) if index not in done]
        own = work.properties
        marks = [
            (b"" if own is None else own[index]) + encode_properties({HANDOFF_PROPERTY: f"{work.work_id}:{index}"})
            for index in left
        ]
        columns = (
            [work.bodies[index] for index in left],
            None if work.tags is None else [work.tags[index] for index in left],
            None if work.keys is None else [work.keys[index] for index in left],
            marks,
            [target.next_queue() for _ in left] if work.queues is None else [work.queues[index] for index in left],
            target.queues,
        )
        born = [work.born_timestamps_ms[index] for index in left]
        append = partial(
            self._handle.append_many,
            work.topic,
            *columns,
            flag=work.flag,
            born_timestamps_ms=born,
            wait=False,
        )
        append(only_check=True)  # a message that cannot be appended leaves those before it out, too
        return append()

    def _reject(self, name: str, reason: str) -> None:
        _log.warning("handed-off work %s is put aside: %s", name, reason)
        self._folder.reject(name, reason)

    def _applied_before_a_crash(self) -> dict[str, Counter[int]]:
        """Return, by work id, how often each mark stands in the log: messages that a dead writer had appended."""
        try:
            journal = self._folder.journal()
        except CorruptRecord as error:
            # The journal is renamed into place whole: damage is the disk's. The whole log says the same, slowly.
            _log.warning("%s; the whole log is searched instead", error)
            journal = Journal(0, tuple(self._folder.waiting()))
        self._begun = None
        if journal is None:
            return {}
        waiting = set(self._folder.waiting())
        left = tuple(name for name in journal.names if name in waiting)
        if not left:
            self._folder.end_round()
            return {}
        self._begun = Journal(journal.log_end, left)
        wanted = {name.rpartition("-")[2] for name in left if name not in self._logged}
        if not wanted:
            return {}
        return self._marks_from(journal.log_end, wanted)

    def _marks_from(self, log_end: int, work_ids: Iterable[str]) -> dict[str, Counter[int]]:
        """Return, by work id, how often each mark stands in the log from a place on."""
        found: dict[str, Counter[int]] = {work_id: Counter() for work_id in work_ids}
        self._handle.flush()  # where this very process failed half-way, it may not have waited for what it appended
        with self._reader_from(log_end) as reader:
            for message in reader:
                mark = handoff_mark(message)
                if mark is not None and mark[0] in found:
                    found[mark[0]][mark[1]] += 1
        return found

    def _reader_from(self, log_end: int) -> Reader:
        """Return a reader that begins at or before ``log_end``, at a record."""
        info = self._handle.info()
        start = min(log_end, info["log_end"])
        if start < info["log_end"]:
            try:
                self._handle.read_physical(start)
            except Error:
                # Recovery cut the log below, and it has grown again: segments begin with a record.
                start -= start % info["segment_bytes"]
        return Reader(self._handle, start_physical=max(start, info["log_min"]))


class AppliesHandoffs(Protocol):
    """The part of a store that the watcher needs."""

    def apply_handoffs(self) -> int:
        """Apply what waits."""
        ...

    def _keep_progress(self) -> None:
        """Write progress down when it is due."""
        ...

    def _watch_upkeep(self) -> None:
        """Log what upkeep failed with."""
        ...

    def _keep_door(self) -> None:
        """Make the door where there is none."""
        ...


class HandoffWatcher(threading.Thread):
    """Waits for work and has the store apply it. Ends with :meth:`stop`, or when the store is gone."""

    def __init__(self, store: AppliesHandoffs, folder: HandoffFolder) -> None:
        """Make the folder's FIFO. Started with ``start()``."""
        super().__init__(name="cometmq-handoff", daemon=True)
        self._store: Callable[[], AppliesHandoffs | None] = weakref.ref(store)
        self._folder = folder
        self._wake = folder.open_wake()
        self._failing = ""
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look, apply, wait."""
        try:
            while not self._stopping.is_set():
                self._wait()
                if self._stopping.is_set() or not self._look():
                    return
        finally:
            if self._wake is not None:
                os.close(self._wake)

    def _wait(self) -> None:
        if self._wake is None:
            self._stopping.wait(_LOOK_EVERY_WITHOUT_FIFO_S)
            return
        try:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.poll(_LOOK_EVERY_S * 1000)
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass  # nobody called
        except OSError as error:
            _log.error("the hand-off's FIFO cannot be read, and is looked for later: %s", error)
            self._stopping.wait(_LOOK_EVERY_S)

    def _look(self) -> bool:
        """Apply waiting work; False when there is no store any more."""
        store = self._store()
        if store is None:
            return False
        failing = ""
        try:
            store._watch_upkeep()
            store._keep_progress()
            store._keep_door()
            if self._folder.waiting():
                store.apply_handoffs()
        except StoreClosed:
            return False
        except DiskFull as error:
            failing = self._logged_once(logging.WARNING, "handed-off work or progress waits: %s", error)
        except StorageError as error:
            failing = self._logged_once(logging.ERROR, "handed-off work or progress cannot be written: %s", error)
        except (Error, OSError) as error:
            failing = self._logged_once(logging.ERROR, "handed-off work or progress cannot be written now: %s", error)
        except Exception:  # noqa: BLE001 - no mistake may keep later work and progress from being written
            _log.exception("handed-off work or progress cannot be written now")
        self._failing = failing
        return True

    def _logged_once(self, level: int, text: str, error: Exception) -> str:
        """Log a failure, unless the look before failed by the same; return its text."""
        failing = text % error
        if failing != self._failing:
            _log.log(level, "%s", failing)
        return failing

    def stop(self) -> None:
        """End the thread and wait for it. Only while the store's lock is held: the FIFO goes, too."""
        self._stopping.set()
        self._folder.wake()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
        self._folder.remove_wake()
