"""The writer's role of a store that several processes share (``mode="auto"``).

Every process has a view of the store, as ``mode="r"`` gives it; its readers and consumers belong to that view. One of
the processes holds the store's lock as well: it has a writer beside its view. So the role is one more open store, and
moving it touches no reader.

Owns: the writer, while it is here. One keeper thread looks for the role and lets a fenced writer go.
Invariant: two writers are impossible, as only the holder of the lock opens one.
Cost: a look at the lock every 250 ms, one at the view every second: retention ends a view that nobody refreshes. The
append path reads one attribute.
Why: docs/decisions/0030.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq._engine import lock_holder
from cometmq.errors import StoreClosed, StoreFenced, StoreLocked

if TYPE_CHECKING:
    from cometmq.store.store import Store

__all__ = ["RoleKeeper", "WriterRole"]

_log = logging.getLogger("cometmq.store")

LOOK_EVERY_S = 0.25
LOOKS_FOR_VIEW = 4
"""Looks at the role for one at the view."""


class WriterRole:
    """Takes the writer's role where nobody has it. Threads: any."""

    def __init__(self, path: Path, open_writer: Callable[[], Store]) -> None:
        """Nothing is taken yet. ``open_writer`` opens the store for writing."""
        self._path = path
        self._open_writer = open_writer
        self._moving = threading.Lock()
        self._closed = False
        self._failing = ""
        self._failed_unflushed = False
        self._writer: Store | None = None

    @property
    def writer(self) -> Store | None:
        """The store to write to; None where another process, or none, has the role."""
        return self._writer

    @property
    def closed(self) -> bool:
        """True once :meth:`close` has begun."""
        return self._closed

    def take(self) -> Store:
        """Return the writer, opening it where nobody holds the store's lock.

        Raises:
            StoreLocked: another process has the role.
            StoreClosed: the store is being closed.
            Error: the store cannot be opened for writing.
        """
        with self._moving:
            if self._closed:
                raise StoreClosed(f"{self._path} is closed")
            if self._writer is None:
                self._writer = self._open_writer()
                _log.info("this process is the writer of %s", self._path)
            return self._writer

    def look(self) -> None:
        """Take the role where it is free, and let it go where the writer is fenced. Failures are logged once."""
        writer = self._writer
        failing = ""
        try:
            if writer is not None:
                if writer.handle.info()["fenced"]:
                    self.step_down(writer)
            elif lock_holder(self._path) == 0:
                self.take()
        except (StoreLocked, StoreClosed):
            pass  # another process was faster, or this store is being closed
        except Exception as error:  # noqa: BLE001 - a keeper that ends takes no role any more
            failing = f"cannot become the writer of {self._path}: {error}"
            if failing != self._failing:
                _log.error("%s; tried again every %g s", failing, LOOK_EVERY_S)
        self._failing = failing

    def step_down(self, writer: Store) -> None:
        """Close a writer that can write no more; the next one recovers the store."""
        with self._moving:
            if self._writer is not writer:
                return
            self._writer = None
            self._failed_unflushed = True
            _log.warning("this process is no longer the writer of %s, as a write failed", self._path)
            try:
                writer.close()
            except Exception as error:  # noqa: BLE001 - as in look()
                _log.error("%s was not closed in order, and is recovered: %s", self._path, error)

    def check_flush(self) -> None:
        """Raise StoreFenced, once, where a writer here failed since the last flush: its appends may be lost."""
        with self._moving:
            failed, self._failed_unflushed = self._failed_unflushed, False
        if failed:
            raise StoreFenced(
                f"a write to {self._path} failed: messages that were appended since the last flush may be lost; those "
                "that can be read are kept from now on"
            )

    def check_close(self) -> None:
        """Raise StoreBusy where :meth:`close` would wait for the caller's own call."""
        writer = self._writer
        if writer is not None:
            writer.handle.check_close()

    def close(self) -> None:
        """Close the writer and leave the role to others.

        Raises:
            StorageError: something could not be written. The role is free all the same.
        """
        with self._moving:
            self._closed = True
            writer = self._writer
            try:
                if writer is not None:
                    writer.close()
            finally:
                self._writer = None


class RoleKeeper(threading.Thread):
    """Looks after the role and the view. Ends with :meth:`stop`, or when the store is gone."""

    def __init__(self, role: WriterRole, keep_view: Callable[[], None]) -> None:
        """Started with ``start()``. ``keep_view`` is a method of the store."""
        super().__init__(name="cometmq-role", daemon=True)
        self._role = weakref.ref(role)
        self._keep_view = weakref.WeakMethod(keep_view)
        self._failing = ""
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look, wait."""
        for number in itertools.count(1):
            if self._stopping.wait(LOOK_EVERY_S):
                return
            role = self._role()
            if role is None or role.closed:
                return
            role.look()
            del role
            if number % LOOKS_FOR_VIEW == 0:
                self._look_at_view()

    def _look_at_view(self) -> None:
        keep_view = self._keep_view()
        if keep_view is None:
            return
        failing = ""
        try:
            keep_view()
        except StoreClosed:
            pass  # the store is being closed
        except Exception as error:  # noqa: BLE001 - as in WriterRole.look
            failing = f"the view cannot be kept: {error}"
            if failing != self._failing:
                _log.error("%s; tried again every second", failing)
        self._failing = failing

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopping.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
