"""Consumer groups of a store: their progress (``consumerOffset.json`` and its journal), their entries
(``subscriptionGroup.json``), and which consumers are open in this process.

Progress is a queue's next offset to consume, as upstream keeps it, so that a broker started later on the directory goes
on from there. A commit is in the journal when it returns, and under synchronous flush on disk. A reader without the
writer's lock follows both files, and sees commits that still lie in the hand-off folder as made.

Threads: any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cometmq.errors import GroupBusy
from cometmq.store.handoff_files import CommitWork
from cometmq.store.progress_bounds import QueueEnd, bound_progress
from cometmq.store.progress_journal import Place, ProgressFollower, ProgressJournal
from cometmq.store_config.consumer_offsets import ConsumerOffsets, LightQueueOffsets
from cometmq.store_config.names import validate_group
from cometmq.store_config.subscription_groups import SubscriptionGroups

__all__ = ["Commit", "GroupBook", "GroupListener"]


class GroupListener(Protocol):
    """Another keeper of progress in memory: a broker that shares the files. Called from any thread."""

    def committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A queue's next offset to consume was set here."""

    def group_changed(self, group: str) -> None:
        """A group's entry was made or removed here."""

    def forgotten(self, group: str | None, topic: str | None) -> None:
        """The progress of a group, or in a topic, was dropped here."""


class Commit:
    """Progress being stored: set in memory, then written."""

    def __init__(self, offsets: ConsumerOffsets, journal: ProgressJournal, listener: GroupListener | None) -> None:
        """Made by :meth:`GroupBook.committing`."""
        self._offsets = offsets
        self._journal = journal
        self._listener = listener
        self._places: dict[str, list[Place]] = {}

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a queue's next offset to consume."""
        self._offsets.commit(group, topic, queue_id, offset)
        self._places.setdefault(group, []).append((topic, queue_id, offset))
        if self._listener is not None:
            self._listener.committed(group, topic, queue_id, offset)

    def store(self) -> list[Callable[[], None]]:
        """Store what was set; returns what waits until it is as durable as the flush mode promises."""
        places, self._places = self._places, {}
        return [self._journal.commit(group, of_group) for group, of_group in places.items()]

    def persist(self) -> None:
        """Store what was set, durably in either flush mode: the files that asked for it are removed next."""
        if self._journal.durable:
            for wait in self.store():
                wait()
        elif self._places:
            self._places = {}
            self._journal.persist()


class GroupBook:
    """All consumer groups of one store."""

    def __init__(
        self,
        root: Path,
        *,
        read_only: bool,
        light_queues: bool,
        durable: bool,
        cover: Callable[[], None],
        waiting_commits: Callable[[], list[CommitWork]] = list,
    ) -> None:
        """Read both files. A writer calls :meth:`recover` next.

        Args:
            root: the store's directory.
            read_only: another process may write the files: they are read again whenever something is asked.
            light_queues: the offsets are in ``lmqConsumerOffset.json``.
            durable: a commit waits for the disk.
            cover: makes the log durable, before progress that rests on it.
            waiting_commits: returns what waits in the hand-off folder.
        """
        folder = root / "config"
        self._waiting_commits = waiting_commits
        self._offsets = (LightQueueOffsets if light_queues else ConsumerOffsets)(folder)
        self._groups = SubscriptionGroups(folder, light_queues=light_queues)
        self._read_only = read_only
        self._durable = durable
        self._follower = ProgressFollower(root, self._offsets) if read_only else None
        self._journal = ProgressJournal(root, self._offsets, durable=durable, cover=cover)
        self._following = threading.Lock()
        self._claims: dict[tuple[str, str, int | None], object] = {}
        self._claiming = threading.Lock()
        self._committing = threading.RLock()
        self.listener: GroupListener | None = None
        self.problems = [problem for file in (self._offsets, self._groups) if (problem := file.load().warning)]

    @property
    def offsets(self) -> ConsumerOffsets:
        """The progress itself, for a broker, which shares it."""
        return self._offsets

    @property
    def table(self) -> SubscriptionGroups:
        """The groups' entries, for a broker, which shares them."""
        return self._groups

    def _follow(self) -> None:
        if self._follower is not None:
            with self._following:
                self._follower.follow()

    # --- Life of the writer's files

    def recover(self, end_of: QueueEnd) -> None:
        """Take over what a writer that died left, and set back what is past a queue's end. Durable on return."""
        with self._committing:
            self._journal.recover()
            bound_progress(self._offsets, end_of)
            self._journal.settle()

    def persist(self) -> bool:
        """Write the files where they changed, ``consumerOffset.json`` behind the log that it covers; True when it was.

        Raises:
            StorageError: it could not be written; the next call tries again.
        """
        with self._committing:
            self._groups.persist()
            return self._journal.persist()

    def close(self) -> None:
        """Write the files where they changed. Nothing is committed any more.

        Raises:
            StorageError: it could not be written. The commits are in the journal, for the next opening.
        """
        if not self._read_only:
            with self._committing:
                try:
                    self._groups.persist()
                finally:
                    self._journal.close()

    # --- Progress

    def progress(self, group: str, topic: str) -> dict[int, int]:
        """Return the next offset to consume of every queue for which the group has one."""
        waiting = self._waiting_commits() if self._read_only else []
        self._follow()
        queues = self._offsets.queues(group, topic)
        for work in waiting:
            if work.group == group:
                queues |= {queue_id: offset for name, queue_id, offset in work.offsets if name == topic}
        return queues

    def all_progress(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return the next offsets to consume of every (group, topic), by queue."""
        waiting = self._waiting_commits() if self._read_only else []
        found = {(group, topic): self._offsets.queues(group, topic) for group, topic in self.pairs()}
        for work in waiting:
            for topic, queue_id, offset in work.offsets:
                found.setdefault((work.group, topic), {})[queue_id] = offset
        return found

    def pairs(self) -> list[tuple[str, str]]:
        """Return every (group, topic) with progress."""
        self._follow()
        found = []
        for key in self._offsets.keys():  # noqa: SIM118 - not a dict
            parts = key.split("@")
            if len(parts) == 2 and all(parts):
                found.append((parts[1], parts[0]))
        return found

    def commit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        expected: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Store progress of (topic, queue) pairs, as durable as the flush mode. Only for the holder of the lock.

        Raises:
            GroupBusy: the progress is not the ``expected`` one, whose pairs may be missing. Nothing is stored.
        """
        with self.committing() as commit:
            if expected is not None:
                self.check_progress(group, offsets, expected)
            for (topic, queue_id), offset in offsets.items():
                commit.set(group, topic, queue_id, offset)
            waits = commit.store()
        # Without the lock: commits of several threads share a sync.
        for wait in waits:
            wait()

    def check_progress(
        self, group: str, places: Iterable[tuple[str, int]], expected: Mapping[tuple[str, int], int]
    ) -> None:
        """Check that a group's progress is the expected one.

        Raises:
            GroupBusy: another scan or consumer of the group committed.
        """
        places = list(places)
        of_topic = {topic: self.progress(group, topic) for topic in {topic for topic, _ in places}}
        for topic, queue_id in places:
            found, before = of_topic[topic].get(queue_id), expected.get((topic, queue_id))
            if found != before:
                was, now = ("none" if offset is None else f"{offset:,}" for offset in (before, found))
                raise GroupBusy(
                    f"the progress of the group {group!r} in {topic}/{queue_id} changed from {was} to {now} since this "
                    "scan was made: another scan or consumer of the group committed. Nothing was stored: scan again"
                )

    @contextmanager
    def committing(self) -> Iterator[Commit]:
        """Hold the lock of commits, so that none lands on one that is being written."""
        with self._committing:
            yield Commit(self._offsets, self._journal, self.listener)

    def forget_topic(self, topic: str) -> None:
        """Drop all progress in a topic, durably."""
        with self._committing:
            self._offsets.remove_topic(topic)
            self._journal.persist()
        if self.listener is not None:
            self.listener.forgotten(None, topic)

    def forget_group(self, group: str) -> bool:
        """Drop a group, durably; False where nothing was known of it."""
        with self._committing:
            known = bool(self._offsets.remove_group(group))
            self._journal.persist()
            known = self._groups.remove(group) is not None or known
            self._groups.persist()
        if self.listener is not None:
            self.listener.forgotten(group, None)
            self.listener.group_changed(group)
        return known

    # --- Groups

    def require(self, group: str) -> None:
        """Make the group's entry where it is missing. Under asynchronous flush :meth:`persist` writes it."""
        if self._groups.get(group) is None:
            validate_group(group)
            self._groups.get_or_create(group)
            if self._durable:
                self._groups.persist()
            if self.listener is not None:
                self.listener.group_changed(group)

    def names(self) -> list[str]:
        """Return every group with an entry or with progress."""
        self._follow()
        if self._read_only:
            self._groups.load()
        names = {group.group_name for group in self._groups.all()} | {group for group, _ in self.pairs()}
        return sorted(names)

    # --- Consumers open in this process

    def claim(self, owner: object, group: str, topics: Iterable[str], queue_ids: Iterable[int] | None) -> None:
        """Reserve queues of topics for a consumer. ``queue_ids`` None: all of them.

        Raises:
            GroupBusy: another consumer of the group has one of them.
        """
        wanted: list[tuple[str, str, int | None]] = [
            (group, topic, queue) for topic in topics for queue in (queue_ids if queue_ids is not None else (None,))
        ]
        with self._claiming:
            for _, topic, queue in wanted:
                for other_group, other_topic, other_queue in self._claims:
                    same_queue = queue is None or other_queue is None or queue == other_queue
                    if (other_group, other_topic) == (group, topic) and same_queue:
                        raise GroupBusy(
                            f"another consumer of the group {group!r} is open on the topic {topic!r}"
                            + ("" if other_queue is None else f", queue {other_queue}")
                            + ". Close it, or give each consumer queues of its own (queues=[...]): an embedded store "
                            "does not share a group's queues out by itself"
                        )
            for claim in wanted:
                self._claims[claim] = owner

    def release(self, owner: object) -> None:
        """Give back what an owner claimed."""
        with self._claiming:
            for claim in [claim for claim, holder in self._claims.items() if holder is owner]:
                del self._claims[claim]
