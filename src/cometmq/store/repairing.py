"""Repair: files derived from a store's log, rebuilt and swapped in; see ``csrc/store/check/cmq_repair.h``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cometmq._engine import repair_store
from cometmq.errors import Error
from cometmq.store.core import StoreCore
from cometmq.store.opening import Plan, plan_opening
from cometmq.store.verification import KnownTopics

__all__ = ["RepairReport", "repair"]

_log = logging.getLogger("cometmq.repair")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result of a repair, or with ``dry_run`` its plan.

    Attributes:
        dry_run: nothing was written.
        complete: False when it was stopped; the store is then as it was.
        finished_earlier: an earlier repair had been interrupted while it swapped files; that was completed first.
        was_unclean: the last writer had not closed the store.
        segment_bytes: size of a commit log file.
        queue_file_bytes: size of the consume queue files that were built.
        batch_file_bytes: … of batch consume queue files.
        ext_file_bytes: … of consume queue extension files.
        index_slots: hash slots of the index files that were built.
        index_entries: their entries.
        log_min: physical offset at which the log begins.
        log_end: physical offset at which it ends after the repair.
        records: whole records in between.
        messages: messages in them: inner batches hold several.
        keys: keys in the index.
        queues: queues that were built; not counted by a dry run.
        queues_kept: queues without a message that go on at their offset; not counted by a dry run.
        gaps: queue offsets without a message, because their record is damaged; not counted by a dry run.
        unwanted: records of deleted topics, for which no queue was built.
        damaged_places: places in the log that are not whole records, with flushed records behind.
        damaged_bytes: bytes of them.
        filled_bytes: of these, those in whose place records without a message were put.
        first_damage: physical offset of the first, or None.
        tail_at: physical offset of the tail.
        tail_bytes: bytes there that are not a whole record; 0: none.
        cut_at: physical offset at which the log was cut, or None.
        cut_messages: whole messages that were cut off.
        cut_bytes: bytes kept of the segment that was cut …
        cut_files: … and segments behind it that were put aside.
        kept: the folder that has what was removed or overwritten, or None.
    """

    dry_run: bool
    complete: bool
    finished_earlier: bool
    was_unclean: bool
    segment_bytes: int
    queue_file_bytes: int
    batch_file_bytes: int
    ext_file_bytes: int
    index_slots: int
    index_entries: int
    log_min: int
    log_end: int
    records: int
    messages: int
    keys: int
    queues: int
    queues_kept: int
    gaps: int
    unwanted: int
    damaged_places: int
    damaged_bytes: int
    filled_bytes: int
    first_damage: int | None
    tail_at: int
    tail_bytes: int
    cut_at: int | None
    cut_messages: int
    cut_bytes: int
    cut_files: int
    kept: str | None


def repair(
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    cut_tail: bool = False,
    cut_damage: bool = False,
    fill_damage: bool = False,
    dry_run: bool = False,
    on_progress: Callable[[int, int], bool] | None = None,
    on_damage: Callable[[int, int, str], object] | None = None,
) -> RepairReport:
    """Rebuild queues, extensions and index of a store, and put the previous files aside.

    The commit log is only touched by a cut, or where damage is filled. Otherwise damage is passed over: every whole
    message stays.

    Args:
        path: a store that nobody has open.
        config: as :func:`cometmq.open`.
        settings: as :func:`cometmq.open`.
        cut_tail: keep a torn tail aside and blank it. Without, the next opening for writing blanks it.
        cut_damage: end the log at the first damage, and put what lies behind aside: those messages are lost to readers.
        fill_damage: put records without a message in the place of damage, and keep the damaged bytes aside. Every whole
            message stays, and all readers of the log, RocketMQ brokers included, get past the place. Not together with
            ``cut_damage``.
        dry_run: read the log and say what would be done.
        on_progress: called every few MiB with bytes of the log done and in all; False stops and leaves the store alone.
        on_damage: called with physical offset, bytes and reason of each damaged place.

    Raises:
        StoreLocked: a process has the store open; ``holder_pid`` says which.
        NotFound, NotAStore: the path is not a store.
        SettingNeeded: the directory does not determine one of its sizes; the text names the setting.
        StorageError: the system refused something. The store is as it was, or the next repair or opening completes it.

    An exception of a callback ends the repair and is raised again.
    """
    plan = plan_opening(
        path,
        flush=None,
        config=config,
        settings=settings,
        named={},
        retention=None,
        default_queues=1,
        create=False,
        background=False,
    )
    known = KnownTopics(Path(path) / "config")
    report = repair_store(
        plan.path,
        dry_run=dry_run,
        cut_tail=cut_tail,
        cut_damage=cut_damage,
        fill_damage=fill_damage,
        wants=known.has,
        on_progress=on_progress,
        on_damage=on_damage,
        **plan.layout_options(),
    )
    if report["cut_at"] is not None and not dry_run:
        _bound_progress(plan)
    return RepairReport(dry_run=dry_run, **report)


def _bound_progress(plan: Plan) -> None:
    """Set back offsets past the new end, so that the next program that opens the store, also Java's, skips nothing."""
    try:
        StoreCore(plan, read_only=False).close()
    except Error as error:
        _log.warning("progress was not held against the cut log; the next opening for writing does it: %s", error)
