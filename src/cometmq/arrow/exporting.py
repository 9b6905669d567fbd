"""Exports: messages into files, in parts that a later run goes on behind.

An export into a folder is pinned when it begins: which queues, from which offset to which. A part is a whole file under
its name; after each the folder's state says how far every queue has come, so that a run that was ended (Ctrl-C, a
crash, a full disk) is gone on with behind its last part, each row exactly once. A part that the state does not know
of yet is written again under the same name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.arrow.columns import Column
from cometmq.arrow.count import offsets_of
from cometmq.arrow.libraries import library
from cometmq.arrow.scan import Query, ScanPass
from cometmq.arrow.writing import PARTIAL, BytesAs, FileKind, OutputFile, text_schema, texts
from cometmq.errors import CorruptRecord, Error, InvalidArgument
from cometmq.store_config.names import is_light_queue

if TYPE_CHECKING:
    from cometmq._engine import StoreHandle

__all__ = ["STATE_NAME", "ExportReport", "Exporter", "Part"]

STATE_NAME = "_cometmq_export.json"
"""The state's file in an export's folder. Readers of whole folders pass names with an underscore over."""

_VERSION = 1
_PLACE = (
    Column("topic", "dictionary", "__cometmq_topic"),
    Column("queue_id", "default", "__cometmq_queue_id"),
    Column("queue_offset", "default", "__cometmq_queue_offset"),
)
_BATCH_ROWS = 16_384
_BATCH_BYTES = 8 << 20
_BATCH_BYTES_MIN = 64 << 10


@dataclass(frozen=True, slots=True)
class Part:
    """A finished file."""

    name: str
    rows: int
    bytes: int


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """The files and rows that an export has written, in this run and those before it.

    Attributes:
        output: file or folder.
        format: of its files.
        complete: False when it was stopped; a folder can be gone on with.
        resumed: True when an earlier run had begun it.
        was_complete: True when an earlier run had completed it: this one exported nothing, however much is newer.
        messages: rows.
        bytes: bytes of files.
        parts: the files.
        skipped: damaged records that were passed over by this run.
        expired: messages that were deleted by age before this run came to them; they are in no file.
        clamped_times: times of this run that no calendar has; the nearest that one has is in the files.
        elapsed_s: seconds that this run took.
    """

    output: Path
    format: str
    complete: bool = False
    resumed: bool = False
    was_complete: bool = False
    messages: int = 0
    bytes: int = 0
    parts: list[Part] = field(default_factory=list)
    skipped: int = 0
    expired: int = 0
    clamped_times: int = 0
    elapsed_s: float = 0.0


@dataclass(slots=True)
class _Range:
    """The exported range of a queue: [start, end), done up to ``next``.

    ``last_physical`` is where the message before ``end`` lies in the log, or None where it could not be read: another
    number, later, means that the queue was deleted and made again.
    """

    topic: str
    queue_id: int
    start: int
    end: int
    next: int
    last_physical: int | None = None


@dataclass(slots=True)
class _State:
    """How far an export is."""

    options: dict[str, Any]
    ranges: list[_Range]
    parts: list[Part] = field(default_factory=list)
    complete: bool = False

    def save(self, folder: Path) -> None:
        """Write it durably, at once or not at all."""
        document = {"version": _VERSION, **asdict(self)}
        partial = folder / (STATE_NAME + PARTIAL)
        with partial.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / STATE_NAME)

    @classmethod
    def load(cls, folder: Path) -> _State | None:
        """Read it; None where no export was begun."""
        path = folder / STATE_NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["version"] != _VERSION:
                raise InvalidArgument(f"{path} was written by another version of CometMQ; export into another folder")
            return cls(
                options=document["options"],
                ranges=[_Range(**one) for one in document["ranges"]],
                parts=[Part(**one) for one in document["parts"]],
                complete=document["complete"],
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"{path} cannot be read ({error}): how far the export was is lost; remove the folder and begin anew"
            ) from error


class Exporter:
    """Writes what a query selects into a file, or into the parts of a folder."""

    def __init__(
        self,
        handle: StoreHandle,
        query: Query,
        kind: FileKind,
        *,
        bytes_as: BytesAs,
        part_bytes: int,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """``query`` has no views and dictionaries (:func:`~cometmq.arrow.columns.plain`).

        Args:
            handle: the store.
            query: the messages to export; ``ranges`` are made here.
            kind: format and compression of the files.
            bytes_as: the form of bodies.
            part_bytes: size at which a folder's part ends.
            stopped: asked after each batch; True ends the run as early as nothing is lost by it.
            progress: called with the offsets passed, and how many there are.
        """
        if kind.format.is_text and bytes_as is BytesAs.BINARY:
            raise InvalidArgument(f"{kind.format.value} holds text: give text or base64 for bodies, not binary")
        self._handle = handle
        self._query = query
        self._kind = kind
        self._bytes_as = bytes_as
        self._part_bytes = part_bytes
        self._stopped = stopped
        self._progress = progress

    # --- The two kinds of output

    def to_file(self, path: Path, *, overwrite: bool) -> ExportReport:
        """Write one file. Stopped before it is whole, it leaves nothing.

        Raises:
            InvalidArgument: the file is there, and is not to be overwritten.
            CorruptRecord: a damaged record, unless the query passes them over.
        """
        if path.exists() and not overwrite:
            raise InvalidArgument(f"{path} is there already: give another name, or --overwrite")
        began = time.monotonic()
        report = ExportReport(output=path, format=self._kind.format.value)
        state = _State({}, self._ranges())
        with self._pass(state) as run, OutputFile(path, self._kind, self._schema(run)) as file:
            for batch in self._batches(run, state):
                file.write(self._shown(batch))
                if self._stopped():
                    break
            else:
                report.parts.append(Part(path.name, file.rows, file.finish()))
                report.complete = True
            self._note(report, run)
        return self._finished(report, report.parts, began)

    def to_folder(self, folder: Path, *, resume: bool, overwrite: bool) -> ExportReport:
        """Write parts into a folder, or go on behind those that are there.

        Raises:
            InvalidArgument: the folder has something else in it, or an export with other options.
            CorruptRecord: a damaged record; the messages before it are kept.
        """
        began = time.monotonic()
        report = ExportReport(output=folder, format=self._kind.format.value)
        state = self._begin(folder, report, resume=resume, overwrite=overwrite)
        report.was_complete = state.complete
        self._check_ranges(state, report)
        try:
            if not state.complete:
                self._write_parts(folder, state, report)
        finally:
            self._finished(report, state.parts, began)
        report.complete = state.complete
        return report

    @staticmethod
    def _note(report: ExportReport, run: ScanPass) -> None:
        """Take over what the pass did not give."""
        found = run.report()
        report.skipped = found.skipped
        report.expired += found.expired
        report.clamped_times = found.clamped_times

    @staticmethod
    def _finished(report: ExportReport, parts: list[Part], began: float) -> ExportReport:
        report.parts = list(parts)
        report.messages = sum(part.rows for part in parts)
        report.bytes = sum(part.bytes for part in parts)
        report.elapsed_s = round(time.monotonic() - began, 3)
        return report

    # --- A folder's state

    @property
    def _follows_queues(self) -> bool:
        """Return whether rows come in the order of their own queues' offsets, so that these say how far an export is.

        Messages found by keys do not, and those of a light queue have another queue's offset.
        """
        return not self._query.keys and not any(map(is_light_queue, self._query.topics))

    def _options(self) -> dict[str, Any]:
        """The options that must be the same for an export to be resumed, by the names that users give."""
        query = self._query
        return {
            "topics": list(query.topics),
            "columns": [column.name for column in query.columns],
            "tags": list(query.tags),
            "queues": list(query.queue_ids),
            "start": query.start,
            "end": query.end,
            "from-time": query.start_time_ms,
            "to-time": query.end_time_ms,
            "limit": query.limit_rows,
            "raw-bodies": query.raw_bodies,
            "format": self._kind.format.value,
            "compression": self._kind.compression,
            "body": self._bytes_as.value,
        }

    def _begin(self, folder: Path, report: ExportReport, *, resume: bool, overwrite: bool) -> _State:
        if resume and not self._follows_queues:
            raise InvalidArgument(
                "an export by keys, or of light queues (%LMQ%…), is not gone on with: begin anew with --overwrite"
            )
        state = _State.load(folder) if folder.exists() else None
        if resume:
            if state is None:
                raise InvalidArgument(f"no export was begun in {folder}: leave --resume out")
            self._compare(folder, state.options)
            self._sweep(folder, state, parts_too=False)
            report.resumed = True
            return state
        if state is not None and overwrite:
            self._sweep(folder, state, parts_too=True)
        elif state is not None:
            what = "is complete" if state.complete else "can be gone on with: --resume"
            raise InvalidArgument(f"an export in {folder} {what}; --overwrite begins anew")
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidArgument(f"{folder} has something else in it: give a new or an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        state = _State(self._options(), self._ranges())
        state.save(folder)
        return state

    def _compare(self, folder: Path, options: dict[str, Any]) -> None:
        given = self._options()
        for name, value in given.items():
            if options.get(name) != value:
                raise InvalidArgument(
                    f"the export in {folder} was begun with --{name} {options.get(name)!r}, not {value!r}: give the "
                    "same options to go on, or another folder"
                )

    @staticmethod
    def _sweep(folder: Path, state: _State, *, parts_too: bool) -> None:
        """Remove what a run that died left, and with ``parts_too`` the whole export."""
        known = {part.name for part in state.parts}
        if parts_too:
            (folder / STATE_NAME).unlink(missing_ok=True)
        for path in folder.glob("part-*"):
            if parts_too or path.name not in known:
                path.unlink()

    def _ranges(self) -> list[_Range]:
        return [
            _Range(topic, queue_id, start, end, start, self._physical_offset(topic, queue_id, end - 1))
            for topic, queue_id, start, end in offsets_of(self._handle, self._query)
            if start < end
        ]

    def _physical_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        try:
            return self._handle.read_offset(topic, queue_id, offset).physical_offset
        except Error:
            return None  # a gap, damage, or it expired just now

    def _check_ranges(self, state: _State, report: ExportReport) -> None:
        """Count what has expired meanwhile, and refuse another store."""
        for one in state.ranges:
            queue = self._handle.queue(one.topic, one.queue_id)
            if queue is None or queue[2] < one.end:
                raise InvalidArgument(
                    f"{one.topic}/{one.queue_id} has no offset {one.end - 1:,} now: this is not the store that the "
                    "export was begun with, or the topic was deleted; export into another folder"
                )
            found = self._physical_offset(one.topic, one.queue_id, one.end - 1)
            if None not in (one.last_physical, found) and found != one.last_physical:
                raise InvalidArgument(
                    f"{one.topic}/{one.queue_id} has another message at offset {one.end - 1:,} than when the export "
                    "was begun: the topic was deleted and made again; export into another folder"
                )
            if queue[1] > one.next:
                report.expired += min(queue[1], one.end) - one.next
                one.next = min(queue[1], one.end)

    # --- Reading

    def _pass(self, state: _State) -> ScanPass:
        done = sum(part.rows for part in state.parts)
        query = replace(
            self._query,
            columns=(*self._query.columns, *_PLACE),
            limit_rows=None if self._query.limit_rows is None else self._query.limit_rows - done,
            batch_rows=_BATCH_ROWS,
            batch_bytes=min(_BATCH_BYTES, max(self._part_bytes, _BATCH_BYTES_MIN)),
        )
        if self._follows_queues:
            left = tuple((one.topic, one.queue_id, one.next, one.end) for one in state.ranges if one.next < one.end)
            query = replace(query, ranges=left, topics=(), queue_ids=(), start=None, end=None)
        return ScanPass(self._handle, query)

    def _left(self, state: _State) -> bool:
        limit = self._query.limit_rows
        if limit is not None and sum(part.rows for part in state.parts) >= limit:
            return False
        return any(one.next < one.end for one in state.ranges)

    def _batches(self, run: ScanPass, state: _State) -> Iterator[Any]:
        """Yield batches; the ranges' positions are then behind them."""
        if not self._left(state):
            return
        pa = library("pyarrow")
        places = {(one.topic, one.queue_id): one for one in state.ranges}
        total = sum(one.end - one.start for one in state.ranges)
        passed = sum(one.next - one.start for one in state.ranges)
        names = [column.name for column in _PLACE]
        while (batch := run.next()) is not None:
            ends = pa.Table.from_batches([batch]).group_by(names[:2]).aggregate([(names[2], "max")]).to_pydict()
            for topic, queue_id, last in zip(ends[names[0]], ends[names[1]], ends[f"{names[2]}_max"], strict=True):
                one = places.get((topic, queue_id))
                if one is not None and last >= one.next:
                    passed += last + 1 - one.next
                    one.next = last + 1
            yield batch
            self._progress(passed, total)
        if self._follows_queues:
            for one in state.ranges:
                one.next = one.end
        self._progress(total, total)

    def _shown(self, batch: Any) -> Any:
        pa = library("pyarrow")
        count = len(self._query.columns)
        schema = pa.schema([batch.schema.field(index) for index in range(count)])
        return texts(pa.RecordBatch.from_arrays(batch.columns[:count], schema=schema), self._bytes_as)

    def _schema(self, run: ScanPass) -> Any:
        pa = library("pyarrow")
        fields = list(run.schema)[: len(self._query.columns)]
        return text_schema(pa.schema(fields), self._bytes_as)

    # --- Parts

    def _write_parts(self, folder: Path, state: _State, report: ExportReport) -> None:
        """Write part after part. However the run ends, the messages read before are kept."""
        with self._pass(state) as run:
            schema = self._schema(run)
            batches = self._batches(run, state)
            ended = False
            try:
                while not ended and not self._stopped():
                    ended = self._write_part(folder, schema, batches, state)
            finally:
                self._note(report, run)
        if ended:
            state.complete = True
            state.save(folder)

    def _write_part(self, folder: Path, schema: Any, batches: Iterator[Any], state: _State) -> bool:
        """Write one part; True when it is the last. An export without a row still has a file, with the columns."""
        name = f"part-{len(state.parts):05d}{self._kind.suffix}"
        damage: CorruptRecord | None = None
        ended = False
        with OutputFile(folder / name, self._kind, schema) as file:
            while file.bytes_taken < self._part_bytes and not self._stopped():
                try:
                    batch = next(batches, None)
                except CorruptRecord as error:
                    damage = error
                    break
                if batch is None:
                    ended = True
                    break
                file.write(self._shown(batch))
            if file.rows or (ended and not state.parts):
                state.parts.append(Part(name, file.rows, file.finish()))
                state.save(folder)
        if damage is not None:
            raise damage
        return ended
