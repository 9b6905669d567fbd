"""Exports: messages into files, in parts that a later run goes on behind.

An export into a folder is pinned when it begins: which queues, from which offset to which. A part is a whole file under
its name; after each the folder's state says how far every queue has come, so that a run that was ended (Ctrl-C, a
crash, a full disk) is gone on with behind its last part, each row exactly once. A part that the state does not know
of yet is written again under the same name. An export of the messages since last time moves the pinned ends to those of
now, and goes on in the same way.

With partitions a part is a file in each partition's folder that has rows of it, all of them known to the state at once.
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from cometmq.arrow.columns import Column
from cometmq.arrow.count import offsets_of
from cometmq.arrow.cursor import Place
from cometmq.arrow.libraries import library
from cometmq.arrow.scan import Query, ScanPass
from cometmq.arrow.type_names import fields_text
from cometmq.arrow.writing import (
    PARTIAL,
    BytesAs,
    FileFormat,
    FileKind,
    OutputFile,
    make_folder,
    sync_folder,
    text_schema,
    texts,
)
from cometmq.errors import CorruptRecord, Error, InvalidArgument
from cometmq.store_config.names import is_light_queue

if TYPE_CHECKING:
    from cometmq._engine import StoreHandle
    from cometmq.arrow.bodies import BodyDecoder

__all__ = ["STATE_NAME", "ExportReport", "Exporter", "Part", "PartitionBy", "stored_schema"]

STATE_NAME = "_cometmq_export.json"
"""The state's file in an export's folder. Readers of whole folders pass names with an underscore over."""

_LOCK_NAME = "_cometmq_export.lock"
"""Locked by the run that writes into the folder; it stays when the run has ended."""

_VERSION = 1
_OF_PARTITION = "__cometmq_partition_"
_NAME_BYTES_MAX = 255
_OPEN_FILES = 64
"""Files of partitions that are written at the same time."""
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
        was_complete: True when an earlier run had completed it and this one exported nothing: with ``--resume`` however
            much is newer, with ``--since-last`` since nothing is.
        messages: rows.
        added: rows of this run.
        bytes: bytes of files.
        parts: the files.
        skipped: damaged records that were passed over by this run.
        expired: messages that were deleted by age before this run came to them; they are in no file.
        clamped_times: times of this run that no calendar has; the nearest that one has is in the files.
        bad_bodies: bodies of this run that do not fit the schema; values that do not fit are null.
        elapsed_s: seconds that this run took.
    """

    output: Path
    format: str
    complete: bool = False
    resumed: bool = False
    was_complete: bool = False
    messages: int = 0
    added: int = 0
    bytes: int = 0
    parts: list[Part] = field(default_factory=list)
    skipped: int = 0
    expired: int = 0
    clamped_times: int = 0
    bad_bodies: int = 0
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
        sync_folder(folder)

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
                f"{path} cannot be read ({error}): the export's position is lost; remove the folder and start again"
            ) from error


def stored_schema(folder: Path) -> str | None:
    """Return the schema of the export in a folder, as text; None where it has none, or none was begun."""
    state = _State.load(folder) if folder.exists() else None
    return None if state is None else state.options.get("schema")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder: two would write parts under the same names.

    Raises:
        InvalidArgument: another run writes into it.
    """
    with (folder / _LOCK_NAME).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(
                f"another run is exporting into {folder}: wait until it has ended, or give another folder"
            ) from None
        yield


class PartitionBy(enum.Enum):
    """The key in the names of an export's folders, as ``day=2026-11-27``."""

    DAY = "day"
    """The day of storing, UTC."""
    TOPIC = "topic"
    QUEUE = "queue_id"

    @property
    def column(self) -> Column:
        """The hidden column that it is read from."""
        name = _OF_PARTITION + self.value
        if self is PartitionBy.DAY:
            return Column("store_timestamp", "default", name)
        return Column(self.value, "plain" if self is PartitionBy.TOPIC else "default", name)


class _Follower:
    """Moves the ranges of an export on as a pass goes."""

    def __init__(self, ranges: list[_Range]) -> None:
        self._ranges = {(one.topic, one.queue_id): one for one in ranges}
        self.passed_offsets = sum(one.next - one.start for one in ranges)

    def passed(self, offsets: Mapping[Place, int]) -> None:
        """See :class:`~cometmq.arrow.cursor.Tracker`."""
        for place, offset in offsets.items():
            one = self._ranges.get(place)
            if one is not None and offset > one.next:
                self.passed_offsets += offset - one.next
                one.next = offset

    def ended(self, *, limited: bool) -> None:
        """See :class:`~cometmq.arrow.cursor.Tracker`: the exporter asks the ranges itself."""


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
        decoder: BodyDecoder | None = None,
        partition_by: Sequence[PartitionBy] = (),
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
            decoder: makes columns of bodies, behind those of the query.
            partition_by: names of the folders below an export's folder, from the outside in.
            stopped: asked after each batch; True ends the run as early as nothing is lost by it.
            progress: called with the offsets passed, and how many there are.
        """
        if kind.format.is_text and bytes_as is BytesAs.BINARY:
            raise InvalidArgument(f"{kind.format.value} holds text: give text or base64 for bodies, not binary")
        if len(set(partition_by)) != len(partition_by):
            raise InvalidArgument("a partition is named twice: give each of day, topic and queue_id once")
        fields = [] if decoder is None else decoder.schema.names
        names = [*(column.name for column in query.columns), *fields]
        for one in partition_by:
            if one.value in (names if one is PartitionBy.DAY else fields):
                raise InvalidArgument(
                    f"the schema has a column {one.value}, and a partition would have the same name: leave one out"
                )
        self._handle = handle
        self._query = query
        self._kind = kind
        self._bytes_as = bytes_as
        self._part_bytes = part_bytes
        self._decoder = decoder
        self._partition_by = tuple(partition_by)
        # Readers take the columns of partitions from the folders' names.
        partitions = {one.value for one in partition_by}
        self._shown_names = [name for name in names if name not in partitions]
        if not self._shown_names:
            raise InvalidArgument("the files would have no column: ask for more than those that name the partitions")
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
        place = _Follower(state.ranges)
        with self._pass(state, place) as run, OutputFile(path, self._kind, self._schema(run)) as file:
            for batch in self._batches(run, state, place):
                file.write(self._shown(batch))
                if self._stopped():
                    break
            else:
                report.parts.append(Part(path.name, file.rows, file.finish()))
                report.complete = True
            self._note(report, run)
        self._finished(report, report.parts, began)
        report.added = report.messages
        return report

    def to_folder(
        self, folder: Path, *, resume: bool = False, since_last: bool = False, overwrite: bool = False
    ) -> ExportReport:
        """Write parts into a folder, or go on behind those that are there.

        Args:
            folder: the folder.
            resume: go on with an export that was begun, up to where it was to end.
            since_last: the same, and then up to the ends of now; where none was begun, begin one.
            overwrite: replace an export that is there.

        Raises:
            InvalidArgument: the folder has something else in it, or an export with other options.
            CorruptRecord: a damaged record; the messages before it are kept.
        """
        self._check_folder(folder, resume=resume, since_last=since_last)
        make_folder(folder)
        with _locked(folder):
            return self._to_folder(folder, resume=resume, since_last=since_last, overwrite=overwrite)

    def _to_folder(self, folder: Path, *, resume: bool, since_last: bool, overwrite: bool) -> ExportReport:
        began = time.monotonic()
        report = ExportReport(output=folder, format=self._kind.format.value)
        state = self._begin(folder, report, resume=resume, since_last=since_last, overwrite=overwrite)
        self._check_ranges(state, report)
        if since_last and report.resumed:
            self._extend(state)
        report.was_complete = state.complete
        before = sum(part.rows for part in state.parts)
        try:
            if not state.complete:
                self._write_parts(folder, state, report)
        finally:
            self._finished(report, state.parts, began)
            report.added = report.messages - before
        report.complete = state.complete
        return report

    @staticmethod
    def _note(report: ExportReport, run: ScanPass) -> None:
        """Take over what the pass did not give."""
        found = run.report()
        report.skipped = found.skipped
        report.expired += found.expired
        report.clamped_times = found.clamped_times
        report.bad_bodies = found.bad_bodies

    @staticmethod
    def _finished(report: ExportReport, parts: list[Part], began: float) -> None:
        report.parts = list(parts)
        report.messages = sum(part.rows for part in parts)
        report.bytes = sum(part.bytes for part in parts)
        report.elapsed_s = round(time.monotonic() - began, 3)

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
            "schema": None if self._decoder is None else fields_text(self._decoder.schema),
            "columns": [column.name for column in query.columns],
            "tags": list(query.tags),
            "where": None if query.where is None else query.where.text,
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
            "partition-by": [one.value for one in self._partition_by] or None,
        }

    def _check_folder(self, folder: Path, *, resume: bool, since_last: bool) -> None:
        """Refuse, before anything is made in it, a folder that no run with these options can write into."""
        if (resume or since_last) and not self._follows_queues:
            raise InvalidArgument(
                "--resume and --since-last cannot continue an export by keys or of light queues (%LMQ%…); start over "
                "with --overwrite"
            )
        if since_last and self._query.limit_rows is not None:
            raise InvalidArgument("--limit counts the messages of all runs: it cannot go with --since-last")
        if (folder / STATE_NAME).exists():
            return
        if resume:
            raise InvalidArgument(f"no export was begun in {folder}: leave --resume out")
        if folder.exists() and (
            not folder.is_dir() or any(one.name not in (_LOCK_NAME, STATE_NAME + PARTIAL) for one in folder.iterdir())
        ):
            raise InvalidArgument(f"{folder} has something else in it: give a new or an empty folder")

    def _begin(self, folder: Path, report: ExportReport, *, resume: bool, since_last: bool, overwrite: bool) -> _State:
        state = _State.load(folder)
        if (resume or since_last) and state is not None:
            self._compare(folder, state.options)
            self._sweep(folder, state, parts_too=False)
            report.resumed = True
            return state
        if state is not None and overwrite:
            self._sweep(folder, state, parts_too=True)
        elif state is not None:
            kind = "a complete" if state.complete else "an unfinished"
            way = "--since-last to add newer messages" if state.complete else "--resume to continue"
            raise InvalidArgument(f"{folder} already holds {kind} export; use {way}, or --overwrite to start over")
        state = _State(self._options(), self._ranges())
        state.save(folder)
        return state

    def _compare(self, folder: Path, options: dict[str, Any]) -> None:
        given = self._options()
        for name, value in given.items():
            if options.get(name) != value:
                raise InvalidArgument(
                    f"the export in {folder} was begun with {_option_text(name, options.get(name))}; this run has "
                    f"{_option_text(name, value)}: use the same options to continue, or another folder"
                )

    @staticmethod
    def _sweep(folder: Path, state: _State, *, parts_too: bool) -> None:
        """Remove what a run that died left, and with ``parts_too`` the whole export.

        Folders below may hold other exports, and users' files: only names that this export gives are looked at, where
        it puts them.
        """
        known = {part.name for part in state.parts}
        levels = [f"{name}=*" for name in state.options.get("partition-by") or ()]
        suffix = FileKind(FileFormat(state.options["format"]), state.options["compression"]).suffix
        part_name = re.compile(rf"part-\d{{5,}}{re.escape(suffix)}({re.escape(PARTIAL)})?")
        if parts_too:
            (folder / STATE_NAME).unlink(missing_ok=True)
        for path in list(folder.glob("/".join([*levels, "part-*"]))):
            ours = part_name.fullmatch(path.name) is not None and path.is_file()
            if ours and (parts_too or path.relative_to(folder).as_posix() not in known):
                path.unlink()
        for depth in range(len(levels), 0, -1):
            for path in list(folder.glob("/".join(levels[:depth]))):
                if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                    path.rmdir()

    def _extend(self, state: _State) -> None:
        """Move the ends to those of now. The state of the next part, or of the end, has them."""
        known = {(one.topic, one.queue_id): one for one in state.ranges}
        for one in self._ranges():
            there = known.get((one.topic, one.queue_id))
            if there is None:
                state.ranges.append(one)
                state.complete = False
            elif one.end > there.end:
                there.end, there.last_physical = one.end, one.last_physical
                state.complete = False

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

    def _pass(self, state: _State, place: _Follower) -> ScanPass:
        done = sum(part.rows for part in state.parts)
        query = replace(
            self._query,
            columns=(*self._query.columns, *(one.column for one in self._partition_by)),
            limit_rows=None if self._query.limit_rows is None else self._query.limit_rows - done,
            batch_rows=_BATCH_ROWS,
            batch_bytes=min(_BATCH_BYTES, max(self._part_bytes, _BATCH_BYTES_MIN)),
        )
        if self._follows_queues:
            left = tuple((one.topic, one.queue_id, one.next, one.end) for one in state.ranges if one.next < one.end)
            query = replace(query, ranges=left, topics=(), queue_ids=(), start=None, end=None)
        return ScanPass(self._handle, query, decoder=self._decoder, tracker=place)

    def _left(self, state: _State) -> bool:
        limit = self._query.limit_rows
        if limit is not None and sum(part.rows for part in state.parts) >= limit:
            return False
        return any(one.next < one.end for one in state.ranges)

    def _batches(self, run: ScanPass, state: _State, place: _Follower) -> Iterator[Any]:
        """Yield batches; the ranges' positions are then behind them."""
        if not self._left(state):
            return
        total = sum(one.end - one.start for one in state.ranges)
        while (batch := run.next()) is not None:
            yield batch
            self._progress(place.passed_offsets, total)
        if self._follows_queues:
            for one in state.ranges:
                one.next = one.end
        self._progress(total, total)

    def _shown(self, batch: Any) -> Any:
        return texts(batch.select(self._shown_names), self._bytes_as)

    def _schema(self, run: ScanPass) -> Any:
        pa = library("pyarrow")
        return text_schema(pa.schema([run.schema.field(name) for name in self._shown_names]), self._bytes_as)

    # --- Parts

    def _write_parts(self, folder: Path, state: _State, report: ExportReport) -> None:
        """Write part after part. However the run ends, the messages read before are kept."""
        place = _Follower(state.ranges)
        with self._pass(state, place) as run:
            schema = self._schema(run)
            batches = self._batches(run, state, place)
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
        damage: CorruptRecord | None = None
        ended = False
        name = f"part-{_next_number(state.parts):05d}{self._kind.suffix}"
        with _PartFiles(folder, name, self._kind, schema) as files:
            while files.bytes_taken < self._part_bytes and len(files) < _OPEN_FILES and not self._stopped():
                try:
                    batch = next(batches, None)
                except CorruptRecord as error:
                    damage = error
                    break
                if batch is None:
                    ended = True
                    break
                shown = self._shown(batch)
                for partition, rows in self._partitions(batch):
                    files.write(partition, shown if rows is None else shown.take(rows))
            if ended and not state.parts and not self._partition_by:
                files.write("", self._shown(library("pyarrow").RecordBatch.from_pylist([], schema=schema)))
            parts = files.finish()
            if parts:
                state.parts += parts
                state.save(folder)
        if damage is not None:
            raise damage
        return ended

    def _partitions(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Yield the folder of each partition of a batch, and its rows; None for all of them."""
        pa = library("pyarrow")
        if not batch.num_rows:
            return
        codes = np.zeros(batch.num_rows, dtype=np.int64)
        values: list[list[str]] = []
        for one in self._partition_by:
            column = batch.column(one.column.name)
            if one is PartitionBy.DAY:
                column = column.cast(pa.date32())
            encoded = column.dictionary_encode()
            names = [f"{one.value}={quote(str(value), safe='')}" for value in encoded.dictionary.to_pylist()]
            for name in names:
                if len(name) > _NAME_BYTES_MAX:
                    raise InvalidArgument(
                        f"the folder {name[:40]}… would have a name of {len(name)} bytes, more than the "
                        f"{_NAME_BYTES_MAX} that file systems take: leave {one.value} out of --partition-by"
                    )
            codes = codes * len(names) + encoded.indices.to_numpy(zero_copy_only=False)
            values.append(names)
        for code in np.unique(codes):
            folders: list[str] = []
            left = int(code)
            for names in reversed(values):
                left, at = divmod(left, len(names))
                folders.insert(0, names[at])
            rows = np.flatnonzero(codes == code)
            yield "/".join(folders), None if len(rows) == batch.num_rows else pa.array(rows)


def _option_text(name: str, value: object) -> str:
    """Return an option as a user writes it."""
    if value is None or value == [] or value is False:
        return "neither --schema nor --infer" if name == "schema" else f"no --{name}"
    return f"--{name} {','.join(map(str, value)) if isinstance(value, list) else value}"


def _next_number(parts: list[Part]) -> int:
    """Return the number of the next part: the files of one part have the same."""
    return max((int(part.name.rpartition("part-")[2].partition(".")[0]) for part in parts), default=-1) + 1


class _PartFiles:
    """The files of a part: one, or one in each partition's folder. Without :meth:`finish` they go away."""

    def __init__(self, folder: Path, name: str, kind: FileKind, schema: Any) -> None:
        self._folder = folder
        self._name = name
        self._kind = kind
        self._schema = schema
        self._files: dict[str, OutputFile] = {}
        self._parts: list[Part] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._files) + len(self._parts)

    @property
    def bytes_taken(self) -> int:
        """As of :class:`OutputFile`, of all files."""
        return self._bytes + sum(file.bytes_taken for file in self._files.values())

    def write(self, partition: str, batch: Any) -> None:
        """Append a batch to a partition's file; once for each batch that was read."""
        file = self._files.get(partition)
        if file is None:
            folder = self._folder / partition
            make_folder(folder)
            file = OutputFile(folder / self._name, self._kind, self._schema)
            self._files[partition] = file
        file.write(batch)
        if len(self._files) > _OPEN_FILES:  # the part ends with the batch that was read
            self._finish(partition)

    def _finish(self, partition: str) -> None:
        file = self._files[partition]
        size = file.finish()
        self._bytes += size
        del self._files[partition]
        self._parts.append(Part(f"{partition}/{self._name}" if partition else self._name, file.rows, size))

    def finish(self) -> list[Part]:
        """Make all files whole, durably; return them in the order of their names."""
        for partition in list(self._files):
            self._finish(partition)
        return sorted(self._parts, key=lambda part: part.name)

    def __enter__(self) -> _PartFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.abandon()
