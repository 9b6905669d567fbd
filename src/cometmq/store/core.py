"""The base of every part of a store: the engine's handle, the books of topics and groups, the hand-off, open and close.

The calls of a :class:`~cometmq.store.store.Store` come in families, one module each: appending, reading,
administration.
"""

from __future__ import annotations

import difflib
import logging
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cometmq._engine import StoreHandle, lock_holder
from cometmq._plural import counted
from cometmq.errors import (
    HandoffWaiting,
    NotAStore,
    NotFound,
    ReadOnlyStore,
    StorageError,
    StoreClosed,
    StoreFenced,
    StoreLocked,
    TopicNotFound,
)
from cometmq.store.group_book import GroupBook
from cometmq.store.handoff import HandoffApplier, HandoffWatcher
from cometmq.store.handoff_client import HandoffClient
from cometmq.store.handoff_door import NOT_NOW, Answer, DoorServer
from cometmq.store.handoff_files import HandoffFolder
from cometmq.store.opening import Plan
from cometmq.store.options import FlushMode, Retention
from cometmq.store.progress_bounds import bound_broker_files
from cometmq.store.retention_log import RetentionLog
from cometmq.store.staged_files import StagedFolder
from cometmq.store.topic_book import TopicBook, WriteTarget, not_a_topic
from cometmq.store.writer_role import RoleKeeper, WriterRole
from cometmq.store_config.names import is_system_topic

if TYPE_CHECKING:
    from cometmq.store.store import Store

__all__ = ["StoreCore", "log_overwrites"]

S = TypeVar("S", bound="StoreCore")
T = TypeVar("T")

_NAMES_SHOWN = 10
_log = logging.getLogger("cometmq.store")
_KEEP_PROGRESS_S = 5.0
"""Between two writes of ``consumerOffset.json``; upstream's ``flushConsumerOffsetInterval``."""
_MAKING_S = 30.0
"""Longest wait for another process that is making the store."""
_LOOK_FOR_MADE_S = 0.01


def log_overwrites(opening: Mapping[str, Any]) -> None:
    """Warn where a full disk ends the process instead of failing an append."""
    path = opening["overwritten"]
    if opening["overwrites"] == "copied":
        _log.warning(
            "the file system of %s writes changed blocks elsewhere (btrfs, ZFS): when it is full, SIGBUS ends this "
            "process instead of DiskFull. On btrfs run `chattr +C` on the empty directory before the store is made; "
            "on ZFS use a volume with ext4 or XFS; or keep space free",
            path,
        )
    elif opening["overwrites"] == "shared":
        _log.warning(
            "%s shares blocks with a copy of it (a reflink): when the disk is full, SIGBUS ends this process instead "
            "of DiskFull. Copy the store with `cp --reflink=never`",
            path,
        )


class StoreCore:
    """A store's parts and its life."""

    def __init__(self, plan: Plan, *, read_only: bool, shared: bool = False) -> None:
        """Use :func:`cometmq.open`. ``shared``: a read-only view, and the writer's role where it is free."""
        self._plan = plan
        self._read_only = read_only
        self._keeper: RoleKeeper | None = None
        self._role: WriterRole | None = None
        if shared:
            self._role = WriterRole(plan.path, partial(cast("type[Store]", type(self)), plan, read_only=False))
        self._viewing = threading.Lock()
        self._pid = os.getpid()
        self._progress_kept_s = time.monotonic()
        self._watcher: HandoffWatcher | None = None
        self._door: DoorServer | None = None
        self._door_missing = False
        self._upkeep_error: str | None = None
        self._retention_log = RetentionLog(plan.path, plan.retention)
        self._waits_because: StorageError | OSError | None = None
        self._handle = plan.open_handle(read_only=read_only) if self._role is None else self._join(self._role)
        try:
            self._log_cut()
            log_overwrites(self._handle.opening())
            self._prepare()
        except BaseException:
            self._handle.close()
            if self._role is not None:
                self._role.close()
            raise

    def _join(self, role: WriterRole) -> StoreHandle:
        """Become the writer if nobody is, and return a view of the store; waits for a process that is making it."""
        deadline = time.monotonic() + _MAKING_S
        while True:
            locked = False
            try:
                role.take()
            except StoreLocked:
                locked = True
            try:
                return self._plan.open_handle(read_only=True)
            except (NotFound, NotAStore):
                if not locked or time.monotonic() > deadline:
                    role.close()
                    raise
            except BaseException:
                role.close()
                raise
            time.sleep(_LOOK_FOR_MADE_S)

    def _prepare(self) -> None:
        self._folder = HandoffFolder(self._plan.path)
        self._open_books()
        # An append looks here first. Empty for a reader, so that it takes the slow path, to the hand-off.
        self._targets: dict[str, WriteTarget] = {} if self._read_only else self._topic_book.targets
        self._applier: HandoffApplier | None = None
        self._client: HandoffClient | None = None
        if self._read_only:
            if self._role is None:
                self._client = HandoffClient(self._handle, self._folder, self._write_for_a_moment, None)
            else:
                self._client = HandoffClient(self._handle, self._folder, self._take_role, self._keep_view)
            if self._role is not None and self._plan.background:
                self._keeper = RoleKeeper(self._role, self._keep_view)
                self._keeper.start()
            return
        for topic in self._topic_book.batch_topics():
            self._handle.set_batch_topic(topic)
        self._applier = HandoffApplier(
            self._handle,
            self._folder,
            self._topic_book,
            self._group_book,
            disks=self._plan.disks,
        )
        self._folder.sweep()
        self._group_book.recover(self._queue_end)
        bound_broker_files(self._plan.config_folder, self._queue_end)
        StagedFolder(self._plan.path).bound_done(self._handle.info()["log_end"])
        self._waits_because = self._apply_what_waits(self._applier)
        with suppress(OSError):
            StagedFolder(self._plan.path).sweep()  # at the next opening, then
        if self._plan.background:
            self._keep_door()
            self._watcher = HandoffWatcher(self, self._folder)
            self._watcher.start()

    def _keep_door(self) -> None:
        """Make the door where there is none; the watcher calls this too."""
        if self._door is not None and self._door.is_alive():
            return
        try:
            self._door = DoorServer(self, self._plan.path)
            self._door.start()
        except (OSError, RuntimeError) as error:  # the name is taken; no thread can be started
            self._door = None
            if not self._door_missing:
                _log.info("%s has no door, and other processes use the hand-off folder: %s", self._plan.path, error)
            self._door_missing = True
        else:
            self._door_missing = False

    def _apply_what_waits(self, applier: HandoffApplier) -> StorageError | OSError | None:
        """Apply what other processes left; return why it still waits, if it does: a store opens all the same."""
        try:
            applier.apply_all()
        except StoreFenced:
            raise
        except (StorageError, OSError) as error:
            _log.warning("handed-off work in %s waits, durably, and is tried again: %s", self._folder.path, error)
            return error
        return None

    def _log_cut(self) -> None:
        opening = self._handle.opening()
        if opening["removed"] is not None:
            _log.warning(
                "recovery cut %s off the log at physical offset %d and kept them in %s; `cometmq repair %s "
                "--restore-removed %s` appends them again",
                counted(opening["removed_records"], "whole record"),
                opening["scanned_to"],
                opening["removed"],
                self._plan.path,
                Path(opening["removed"]).name,
            )

    def _open_books(self) -> None:
        handle, plan = self._handle, self._plan
        self._topic_book = self._open_topic_book(self._handle)
        self._group_book = GroupBook(
            plan.path,
            read_only=self._read_only,
            light_queues=plan.light_queues,
            durable=plan.flush is FlushMode.SYNC,
            cover=handle.flush,
            waiting_commits=self._folder.waiting_commits,
        )
        for problem in (self._topic_book.problem, *self._group_book.problems):
            if problem is not None:
                text = f"damaged file passed over: {problem}"
                _log.error("%s", text)
                if plan.warns:
                    warnings.warn(text, RuntimeWarning, stacklevel=6)

    def _open_topic_book(self, handle: StoreHandle) -> TopicBook:
        plan = self._plan
        return TopicBook(
            plan.config_folder,
            read_only=self._read_only,
            light_queues=plan.light_queues,
            default_queues=plan.default_queues,
            queue_count_of=lambda topic: max((queue[1] + 1 for queue in handle.queues(topic)), default=0),
        )

    def _queue_end(self, topic: str, queue_id: int) -> int:
        """Return a queue's maximum offset; 0 where there is no such queue."""
        queue = self._handle.queue(topic, queue_id)
        return 0 if queue is None else queue[2]

    def _keep_progress(self) -> None:
        """Write ``consumerOffset.json`` when it is due, as a broker does. The background thread calls it too."""
        now_s = time.monotonic()
        if now_s - self._progress_kept_s >= _KEEP_PROGRESS_S:
            self._progress_kept_s = now_s
            with self._handle.hold():
                self._group_book.persist()

    def _watch_upkeep(self) -> None:
        """Log retention's work, and why the background thread's upkeep fails, once per reason, and its recovery."""
        self._retention_log.note(self._handle.take_retention_report())
        error = self._handle.upkeep_error()
        if error == self._upkeep_error:
            return
        self._upkeep_error = error
        if error is None:
            _log.info("upkeep of the store in %s works again", self._plan.path)
        else:
            _log.error("upkeep of the store in %s failed: %s", self._plan.path, error)

    def _change_retention(self, retention: Retention) -> None:
        """Delete by other limits from now on, in a store that was opened with a retention. A round follows at once.

        Raises:
            InvalidArgument: the store was opened without one.
        """
        self._writer(self._handle).set_retention(retention)
        self._plan = replace(self._plan, retention=retention)
        self._retention_log.retention = retention
        if self._applier is not None:
            self._applier.disks = self._plan.disks

    def _keep_view(self) -> None:
        """Refresh the view of a shared store, and reopen one that has ended. The keeper calls this.

        Raises:
            StoreClosed: the store is closed.
        """
        ended = self._handle
        with ended.hold():  # a close waits
            try:
                ended.refresh()
            except StoreClosed:
                if ended.closed:
                    raise
            else:
                return
            handle = self._plan.open_handle(read_only=True)
            try:
                topics = self._open_topic_book(handle)
            except BaseException:
                handle.close()
                raise
            with self._viewing:
                if self._handle is not ended:  # another thread was faster
                    handle.close()
                    return
                if self._client is not None:
                    self._client.follow(handle)
                self._topic_book, self._handle = topics, handle
        # A close waits for calls under way, such as a verify(), which must hold up neither the keeper nor an append.
        threading.Thread(target=ended.close, name="cometmq-ended-view", daemon=True).start()
        _log.warning("the view of %s had ended and was reopened; its readers and consumers end", self._plan.path)

    def _write_for_a_moment(self) -> None:
        """Open the store for writing, which applies handed-off work, and close it."""
        because: StorageError | OSError | None
        try:
            with StoreCore(self._plan.without_background(), read_only=False) as writer:
                because = writer._waits_because
        except (StorageError, OSError) as error:
            because = error  # the store cannot be opened for writing, or not be closed in order
        _raise_waiting(because)

    def _take_role(self) -> None:
        """Become the writer and apply handed-off work."""
        because: StorageError | OSError | None
        try:
            because = cast(WriterRole, self._role).take()._waits_because
        except (StorageError, OSError) as error:
            because = error
        _raise_waiting(because)

    def _appender(self: S) -> S | None:
        """Return the store that appends here: this one, its writer, or None where the hand-off has to do it."""
        if not self._read_only:
            return self
        return None if self._role is None else cast("S | None", self._role.writer)

    def _check_moved(self, error: StoreClosed) -> None:
        """The writer was closed under a call, before it did anything: raise where this store is closed, too."""
        if self.closed or self._role is None or self._role.closed:
            raise error

    def apply_handoffs(self) -> int:
        """Apply work handed off by other processes; returns how many pieces. The background thread calls it too."""
        if self._role is not None:
            writer = self._role.writer
            return 0 if writer is None else writer.apply_handoffs()
        applier = self._writer(self._applier)
        with self._handle.hold():
            return applier.apply_all()

    def _append_from_door(self, requests: Sequence[bytes]) -> list[Answer]:
        """Append what other processes ask for through the door; its thread calls this."""
        try:
            applier = self._writer(self._applier)
            with self._handle.hold():
                return applier.append_now(requests)
        except Exception as error:  # noqa: BLE001 - the door stays open for later requests
            return [(NOT_NOW, str(error).encode())] * len(requests)

    def _writer(self, part: T | None) -> T:
        """Return a part that only a writer has, or may use."""
        if self._role is not None:
            holder = lock_holder(self.path)
            raise ReadOnlyStore(
                f'{self.path} is shared (mode="auto"), and only its writer can do this'
                + (f": process {holder}" if holder > 0 else "")
            )
        if self._read_only or part is None:
            raise ReadOnlyStore(f'{self.path} was opened to read; open it with mode="a" for this')
        return part

    def _require_topic(self, topic: str) -> None:
        if not isinstance(topic, str):
            raise not_a_topic(topic)
        if topic in self._targets or self._handle.queue(topic, 0) is not None:
            return
        if self._topic_book.find(topic) is None and not self._handle.queues(topic):
            raise self._no_topic(topic)

    def _topic_names(self) -> list[str]:
        """Return the names of all topics, RocketMQ's own too."""
        names = {topic.topic_name for topic in self._topic_book.configs()}
        return sorted(names | {queue[0] for queue in self._handle.queues()})

    def _no_topic(self, topic: str) -> TopicNotFound:
        """Return the error that says what there is instead."""
        names = [name for name in self._topic_names() if not is_system_topic(name)]
        near = difflib.get_close_matches(topic, names, n=1)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif names:
            more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
            hint = f"known topics: {', '.join(names[:_NAMES_SHOWN])}{more}"
        else:
            hint = "it has none yet"
        return TopicNotFound(f"there is no topic {topic!r} in {self.path}; {hint}", topic=topic)

    # --- Life

    @property
    def path(self) -> Path:
        """The directory."""
        return self._plan.path

    @property
    def read_only(self) -> bool:
        """True for mode "r"."""
        return self._read_only and self._role is None

    @property
    def is_writer(self) -> bool:
        """True for mode "a", and for mode "auto" while this process is the writer."""
        return not self.closed and self._appender() is not None

    @property
    def flush_mode(self) -> FlushMode:
        """When this handle's appends are acknowledged. The settings of the store's writer decide, in each mode."""
        return self._plan.flush

    @property
    def closed(self) -> bool:
        """True after :meth:`close`, and in a forked child."""
        return self._handle.closed

    def close(self) -> None:
        """Write everything out and let the directory go. Calling it again does nothing.

        Waits for calls under way in other threads; their readers end with StoreClosed. The next opening finds a clean
        store. After StoreFenced it raises again, and the next opening recovers.

        Raises:
            StoreBusy: this thread is inside a call that holds the store open, such as a callback of ``verify``. It
                stays open.
            StorageError: something could not be written. The store is closed all the same.
        """
        self._handle.check_close()
        if os.getpid() != self._pid:
            self._handle.close()
            return
        if self._role is not None:
            self._role.check_close()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()  # it makes doors
        door, self._door = self._door, None
        if door is not None:
            door.stop()
        if self._client is not None:
            self._client.door.forget()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()
        try:
            if self._role is not None:
                self._role.close()
            self._group_book.close()
            if self._applier is not None and not self.closed:  # the watcher that logs the deletions has ended
                self._retention_log.note(self._handle.take_retention_report())
        finally:
            while not self.closed:  # the keeper may replace the view meanwhile
                self._handle.close()

    def __enter__(self: S) -> S:
        """Return the store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Say path and mode."""
        open_state = f"writing, flush {self._plan.flush.value}" if self.is_writer else "reading"
        if self._role is not None:
            open_state = f"shared, {open_state}"
        state = "closed" if self.closed else open_state
        return f"<Store {os.fspath(self.path)!r} {state}>"


def _raise_waiting(because: StorageError | OSError | None) -> None:
    """Raise where work that was left cannot be applied now."""
    if because is not None:
        raise HandoffWaiting(
            f"the work is on disk and waits, as it cannot be applied now: {because}. The next writer applies it; "
            "do not write it again"
        ) from because
