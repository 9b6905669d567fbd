"""Committing staged files: the other side of ``staged_apply``."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress

from cometmq.errors import CorruptRecord, HandoffRejected, InvalidArgument
from cometmq.store.core import StoreCore
from cometmq.store.handoff_client import HandoffClient
from cometmq.store.handoff_files import HandoffFolder, NewerWork, StagedWork, new_work_id
from cometmq.store.staged_files import StagedFolder

__all__ = ["body_bytes_max", "check_writer", "commit_staged", "leave_once", "work_id_of"]


def work_id_of(done_key: str | None, done_number: int) -> str:
    """Return the id of work: the same for the same key and number, so that leaving it again is noticed."""
    if done_key is None:
        return new_work_id()
    return hashlib.sha256(f"{done_key}\n{done_number}".encode()).hexdigest()[:32]


def check_writer(store: StoreCore) -> None:
    """Refuse where a Java broker holds the store.

    Raises:
        StoreLocked: it does.
    """
    _client(store).check_writer()


def body_bytes_max(store: StoreCore) -> int:
    """Return the largest body that the store takes, as it was opened."""
    return store._plan.settings.max_message_size_bytes


def leave_once(
    folder: StagedFolder, handoff: HandoffFolder, work: StagedWork, leave: Callable[[StagedWork], str]
) -> tuple[str | None, bool]:
    """Leave staged work to the store's writer, unless that was done before under its key and number.

    Args:
        folder: where the files are.
        handoff: where work waits.
        work: the work; where it had been left before, this job's staged files are removed.
        leave: leaves it, durably, and returns its name.

    Returns:
        The name of the work to wait for, None where it was applied before; and True where it was left only now.
    """
    # In this order: the writer notes that work is done before it removes it from what waits. The other way round, work
    # that is applied between the two looks would seem never to have been left.
    waiting = [name for name in handoff.waiting() if name.endswith(f"-s-{work.work_id}")]
    if folder.is_done(work):
        folder.remove(work.folder)
        return None, False
    if waiting:
        # Left before the driver died, or before its answer was lost: that one counts, not this job's files.
        with suppress(CorruptRecord, NewerWork):
            earlier = handoff.read(waiting[0])
            if isinstance(earlier, StagedWork) and earlier.folder != work.folder:
                folder.remove(work.folder)
        return waiting[0], False
    folder.settle(work.folder)
    return leave(work), True


def commit_staged(store: StoreCore, work: StagedWork, *, timeout_s: float) -> bool:
    """From a process that is not the writer: leave staged work, or apply it where nobody writes, and wait for it.

    Args:
        store: opened with mode "r".
        work: the work; where its key and number were applied before, its files are removed and nothing else is done.
        timeout_s: longest wait.

    Returns:
        False where the work had been applied, or left, before.

    Raises:
        HandoffWaiting: the time is over; the work is durable and will be applied.
        HandoffRejected: the writer cannot apply it.
        StoreLocked: a Java broker holds the store.
    """
    client = _client(store)
    folder = StagedFolder(store.path)
    deadline = time.monotonic() + timeout_s
    name, is_new = leave_once(folder, client.folder, work, client.leave_staged)
    if name is not None:
        client.wait_applied(name, deadline)
    if not is_new:
        return False
    if work.done_key is not None and not folder.is_done(work):
        raise HandoffRejected(f"the store's writer did not apply the work {name}; see {client.folder.rejected}")
    return True


def _client(store: StoreCore) -> HandoffClient:
    if store._client is None:
        raise InvalidArgument("this store is the writer: append directly")
    return store._client
