"""Progress of groups on its way to ``consumerOffset.json``: the journal ``cometmq/progress``, and waiting for it.

A commit is a record in the journal, which ``csrc/store/marks/cmq_offset_journal.h`` describes. The JSON is written
every few seconds, when the journal is full, and at close; each write restarts the journal. Opening reads the JSON
and, where the journal continues that very file, the commits behind it. A JSON that another program wrote since
overrules the journal. See docs/decisions/0018-a-journal-of-commits.md.

Before progress becomes durable here, the log is durable up to the messages that it covers.

Threads: :meth:`ProgressJournal.wait` any; everything else under the lock of :class:`GroupBook`'s commits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from cometmq._engine import OffsetLog, forget_offset_log, read_offset_log
from cometmq.errors import Error, StorageError, StoreClosed
from cometmq.store.file_stamp import FileStamp
from cometmq.store_config.consumer_offsets import ConsumerOffsets

__all__ = ["ProgressFollower", "ProgressJournal"]

_log = logging.getLogger("cometmq.progress")

_READ_TRIES = 5

Place = tuple[str, int, int]
"""Topic, queue id and offset."""


def _take(offsets: ConsumerOffsets, commits: Iterable[tuple[str, str, int, int]]) -> int:
    """Apply a journal's commits; returns their number. A name or number that cannot be is passed over."""
    taken = 0
    for group, topic, queue_id, offset in commits:
        try:
            offsets.commit(group, topic, queue_id, offset)
        except Error as error:
            _log.warning("commit in the journal passed over: %s", error)
            continue
        taken += 1
    return taken


class ProgressJournal:
    """The writer's side."""

    def __init__(self, root: Path, offsets: ConsumerOffsets, *, durable: bool, cover: Callable[[], None]) -> None:
        """Nothing is read yet.

        Args:
            root: the store's directory.
            offsets: the table, loaded.
            durable: a commit waits for the disk.
            cover: makes the log durable.
        """
        self._root = root
        self._offsets = offsets
        self.durable = durable
        self._cover = cover
        self._log: OffsetLog | None = None
        # The first durable commit writes the JSON: a process that commits once pays for no journal.
        self._wants_json = durable
        self._closed = False

    def recover(self) -> None:
        """Take over what a writer that died left. :meth:`settle` makes it the JSON's."""
        try:
            state, _, commits = read_offset_log(self._root, self._offsets.fingerprint, None)
        except StorageError as error:
            _log.warning("the journal of commits cannot be read, %s is used alone: %s", self._offsets.path, error)
            return
        if state == "other":
            _log.info("the journal of commits is older than %s, and passed over", self._offsets.path)
        elif commits:
            count = _take(self._offsets, commits)
            _log.info("commits taken over from a writer that died", extra={"count": count})

    def settle(self) -> None:
        """Write the JSON where opening changed progress; the journal of the writer before goes."""
        if self._offsets.changed:
            self._offsets.persist(cover=self._cover)
        forget_offset_log(self._root)

    def commit(self, group: str, places: list[Place]) -> Callable[[], None]:
        """Store a commit that the table has; returns what waits until it is durable. Call that without a lock.

        Raises:
            StorageError: it could not be stored.
        """
        if self._closed:
            raise StoreClosed("the store is closed")
        if self._wants_json:
            self.persist()
            return _nothing
        if self._log is None:
            self._log = OffsetLog(self._root, self._offsets.fingerprint, self.durable)
        log = self._log
        try:
            end = log.append(group, places)
        except StorageError:
            self._drop()
            raise
        if end < 0:
            self.persist()
            return _nothing
        return (lambda: self._wait(log, end)) if self.durable else _nothing

    def _wait(self, log: OffsetLog, end: int) -> None:
        try:
            log.wait(end)
        except StorageError:
            self._wants_json = True
            raise

    def persist(self) -> bool:
        """Write the JSON where progress changed, and restart the journal; True when it was written.

        Raises:
            StorageError: it could not be written. Until it can, no commit is stored in the journal, whose JSON may be
                replaced already.
        """
        try:
            written = self._offsets.persist(cover=self._cover)
        except BaseException:
            self._drop()
            raise
        if written and self._log is not None:
            try:
                self._log.restart(self._offsets.fingerprint)
            except StorageError as error:
                _log.warning("the journal of commits cannot be used, and is replaced: %s", error)
                self._log = None
        self._wants_json = False
        return written

    def _drop(self) -> None:
        self._log = None
        self._wants_json = True

    def close(self) -> None:
        """Write the JSON; the journal goes. Nothing is committed any more.

        Raises:
            StorageError: it could not be written. The journal stays, and the next opening reads it.
        """
        if self._closed:
            return
        self._closed = True
        log = self._log
        self.persist()
        if log is not None:
            log.remove()


def _nothing() -> None:
    """Wait for nothing."""


class ProgressFollower:
    """The side of a process that only reads, also beside a writer. Threads: one at a time."""

    def __init__(self, root: Path, offsets: ConsumerOffsets) -> None:
        """Look at the JSON for the first time at :meth:`follow`."""
        self._root = root
        self._offsets = offsets
        self._stamp = FileStamp(offsets.path)
        self._cursor: tuple[int, int, int] | None = None
        self._loaded = False

    def follow(self) -> None:
        """Bring the table to what is committed now."""
        for _ in range(_READ_TRIES):
            if self._stamp.changed() or not self._loaded:
                self._offsets.load()
                self._loaded = True
                self._cursor = None
            before = self._cursor
            state, cursor, commits = read_offset_log(self._root, self._offsets.fingerprint, before)
            if state == "read" and (before is None or cursor[0] == before[0]):
                _take(self._offsets, commits)
                self._cursor = cursor
                return
            # Another journal than before, or none: the JSON was replaced meanwhile, and is read again. A journal that
            # is not of the JSON right after that is another program's leftover.
            if before is None and not self._stamp.changed():
                return
            self._loaded = False
