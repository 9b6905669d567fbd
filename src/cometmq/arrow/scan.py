"""Scan: messages as an Arrow stream, and the ways to hand it on.

A scan is a question, not an answer: each use of it (a table, a query of DuckDB, a loop over its batches) is a *pass*
of its own through the log, which sees what is confirmed at that moment.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cometmq._engine import ColumnScan
from cometmq.arrow.columns import PLACE, Column, plain
from cometmq.arrow.cursor import Cursor, Delta, DeltaTracker, Tracker, next_offsets
from cometmq.arrow.libraries import library
from cometmq.arrow.pushdown import Term, dataset_of, lazy_frame_of, narrow, polars_frame
from cometmq.errors import BodyMismatch, Error, InvalidArgument, WrongType

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import pyarrow.dataset

    from cometmq._engine import Selector, StoreHandle
    from cometmq.arrow.bodies import BodyDecoder

__all__ = ["OnBadBody", "Query", "Scan", "ScanPass", "ScanReport"]

OnBadBody: TypeAlias = Literal["null", "fail"]

_BODY = Column("body", "plain", "__cometmq_body")
_BAD_ROWS_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A scan's request to the engine. Offsets are queue offsets, times milliseconds.

    Attributes:
        columns: the columns, in order.
        topics: topics; none: all.
        where: an expression over properties; messages for which it is not true are left out.
        ranges: (topic, queue, start, end) instead of ``queue_ids``, ``start`` and ``end``.
        filtered: True where some messages of the queues and offsets may not be wanted.
    """

    columns: tuple[Column, ...]
    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    where: Selector | None = None
    keys: tuple[str, ...] = ()
    queue_ids: tuple[int, ...] = ()
    start: int | None = None
    end: int | None = None
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    ranges: tuple[tuple[str, int, int, int], ...] | None = None
    batch_rows: int = 0
    batch_bytes: int = 0
    limit_rows: int | None = None
    raw_bodies: bool = False
    check_crc: bool = False
    skip_corrupt: bool = False
    follow: bool = False
    timeout_ms: int = -1

    @property
    def filtered(self) -> bool:
        """True where messages of the chosen queues and offsets may be left out, or selected only by reading them."""
        timed = self.start_time_ms is not None or self.end_time_ms is not None
        selected = self.tags or self.keys or self.where is not None
        return bool(selected or timed or self.raw_bodies or self.check_crc)

    def open(self, handle: StoreHandle) -> ColumnScan:
        """Begin a pass."""
        return ColumnScan(
            handle,
            columns=[column.as_tuple() for column in self.columns],
            topics=self.topics,
            tags=self.tags,
            where=self.where,
            keys=self.keys,
            queue_ids=self.queue_ids,
            start=self.start,
            end=self.end,
            start_time_ms=self.start_time_ms,
            end_time_ms=self.end_time_ms,
            ranges=self.ranges,
            may_be_missing=True,
            batch_rows=self.batch_rows,
            batch_bytes=self.batch_bytes,
            limit_rows=self.limit_rows or 0,
            raw_bodies=self.raw_bodies,
            check_crc=self.check_crc,
            skip_corrupt=self.skip_corrupt,
            follow=self.follow,
            timeout_ms=self.timeout_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """Damage and misfits that the latest pass skipped or replaced.

    Attributes:
        skipped: damaged records, with ``on_corrupt="skip"``.
        skipped_offsets: physical offsets of the first of them.
        mended_texts: tags, keys and the like that were not UTF-8; U+FFFD replaces invalid bytes.
        clamped_times: times outside 0001-01-02 to 9999-12-30 (UTC), which producers may send; the nearest inside
            replaces them. It is a time that every time zone has.
        expired: messages that were to be read and were deleted, by age, before the pass came to them.
        bad_bodies: bodies of which something did not fit ``schema=``; it is null, their other fields are there.
        bad_fields: for each field how many bodies had one that did not fit.
        bad_rows: (topic, queue, queue offset) of the first of them.
    """

    skipped: int = 0
    skipped_offsets: tuple[int, ...] = ()
    mended_texts: int = 0
    clamped_times: int = 0
    expired: int = 0
    bad_bodies: int = 0
    bad_fields: Mapping[str, int] = field(default_factory=dict)
    bad_rows: tuple[tuple[str, int, int], ...] = ()


class _Capsules:
    """A batch of the engine, for ``pyarrow.record_batch``."""

    def __init__(self, capsules: tuple[object, object]) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return self._capsules


class ScanPass:
    """One pass through the log, batch by batch. One thread at a time."""

    def __init__(
        self,
        handle: StoreHandle,
        query: Query,
        *,
        decoder: BodyDecoder | None = None,
        on_bad_body: OnBadBody = "null",
        warn: Callable[[str], object] = lambda text: None,
        tracker: Tracker | None = None,
    ) -> None:
        """Begin. Each batch has the columns of ``query`` first, then those of the decoder.

        Args:
            handle: the store.
            query: the request.
            decoder: makes columns of bodies.
            on_bad_body: the treatment of bodies that do not fit.
            warn: called with a text about such bodies, for each batch that has some.
            tracker: follows how far the pass is.
        """
        self._shown = len(query.columns)
        self._decoder = decoder
        self._on_bad_body = on_bad_body
        self._warn = warn
        self._bad_bodies = 0
        self._bad_fields: dict[str, int] = {}
        self._bad_rows: list[tuple[str, int, int]] = []
        self._final: ScanReport | None = None
        self._failure: BaseException | None = None
        self._tracker = tracker
        self._left = query.limit_rows
        self._uncounted: Callable[[], object] | None = None
        # A decoder and a tracker need hidden columns behind those that were asked for.
        hidden = [*([_BODY] if decoder else []), *(PLACE if decoder or tracker else [])]
        self.engine = replace(query, columns=(*query.columns, *hidden)).open(handle)

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns' names and types."""
        pa = library("pyarrow")
        found = list(pa.schema(self.engine))[: self._shown]
        return pa.schema(found if self._decoder is None else [*found, *self._decoder.schema])

    def next(self) -> pyarrow.RecordBatch | None:
        """Return the next batch, or None: nothing more, or with ``follow`` nothing for so long."""
        batch = self.take()
        self.count()
        return batch

    def take(self) -> pyarrow.RecordBatch | None:
        """As :meth:`next`, but the batch does not count as read before :meth:`count`."""
        self._uncounted = None
        try:
            capsules = self.engine.next_batch()
            if capsules is None:
                if self._tracker is not None:
                    self._uncounted = partial(self._tracker.ended, limited=self._left is not None and self._left <= 0)
                return None
            batch = library("pyarrow").record_batch(_Capsules(capsules))
            shown = self._shown_of(batch) if self._decoder is None else self._decoded(batch, self._decoder)
            if self._left is not None:
                self._left -= batch.num_rows
            if self._tracker is not None:
                self._uncounted = partial(self._tracker.passed, next_offsets(batch))
            return shown
        except Error as error:
            self._failure = error
            raise

    def count(self) -> None:
        """Count the batch that :meth:`take` returned, or the end of the pass, as read."""
        counting, self._uncounted = self._uncounted, None
        if counting is not None:
            counting()

    def _shown_of(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return the batch without hidden columns."""
        return batch if batch.num_columns == self._shown else batch.select(range(self._shown))

    @property
    def failure(self) -> BaseException | None:
        """The error of the last batch, or None."""
        return self._failure or self.engine.failure

    def _decoded(self, batch: pyarrow.RecordBatch, decoder: BodyDecoder) -> pyarrow.RecordBatch:
        """Put the decoded columns in the place of the hidden ones."""
        pa = library("pyarrow")
        failing = self._on_bad_body == "fail"
        decoded = decoder.decode(batch.column(_BODY.name), stop_at_bad=failing)
        if failing and len(decoded.bad):
            row = int(decoded.bad[0])
            topic, queue_id, offset = _place(batch, row)
            raise BodyMismatch(
                f"the body of {topic}/{queue_id} at offset {offset} does not fit the schema ({decoded.reasons[row]}); "
                'on_bad_body="null" gives null for what does not fit and counts it',
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
            )
        if len(decoded.bad):
            row = int(decoded.bad[0])
            topic, queue_id, offset = _place(batch, row)
            self._warn(
                f"{len(decoded.bad):,} of {batch.num_rows:,} bodies do not fit the schema and give nulls, first "
                f"{topic}/{queue_id} at offset {offset} ({decoded.reasons[row]}); scan.report counts them, "
                'error_column="..." gives each reason, strict=True raises, on_bad_body="null" ends this warning'
            )
        self._bad_bodies += len(decoded.bad)
        for name, count in decoded.fields.items():
            self._bad_fields[name] = self._bad_fields.get(name, 0) + count
        room = _BAD_ROWS_KEPT - len(self._bad_rows)
        self._bad_rows += [_place(batch, int(row)) for row in decoded.bad[:room]]
        arrays = [*batch.columns[: self._shown], *decoded.columns]
        fields = [*(batch.schema.field(index) for index in range(self._shown)), *decoder.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def report(self) -> ScanReport:
        """Return what was passed over so far."""
        if self._final is not None or self.engine.closed:
            return self._final or ScanReport()
        found = self.engine.skipped()
        return ScanReport(
            skipped=found["records"],
            skipped_offsets=tuple(found["offsets"]),
            mended_texts=found["invalid_texts"],
            clamped_times=found["clamped_times"],
            expired=found["expired"],
            bad_bodies=self._bad_bodies,
            bad_fields=dict(self._bad_fields),
            bad_rows=tuple(self._bad_rows),
        )

    def close(self) -> None:
        """Let go. Batches stay valid."""
        self._final = self.report()
        self.engine.close()

    def __enter__(self) -> ScanPass:
        """Return the pass itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def _callers_level() -> int:
    """Return the stack level, seen from the function that asks, of the first frame outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cometmq."):
        level, frame = level + 1, frame.f_back
    return level


def _place(batch: pyarrow.RecordBatch, row: int) -> tuple[str, int, int]:
    topic, queue_id, offset = (batch.column(column.name)[row].as_py() for column in PLACE)
    return topic, queue_id, offset


class Scan:
    """Messages as columns. Made by :meth:`cometmq.Store.scan`.

    Anything that takes an Arrow stream takes a scan: ``pyarrow.table(scan)``, ``polars.DataFrame(scan)``,
    ``duckdb.sql("select … from scan")``. Each use is a new pass through the log. Any thread may use it, several at a
    time too. Its batches stay valid after the store is closed, and after its files have expired: they hold the mapped
    files that they point into.
    """

    def __init__(
        self,
        handle: StoreHandle,
        query: Query,
        *,
        decoder: BodyDecoder | None = None,
        on_bad_body: OnBadBody | None = None,
        delta: Delta | None = None,
    ) -> None:
        """Use :meth:`cometmq.Store.scan`."""
        self._handle = handle
        self._query = query
        self._decoder = decoder
        self._on_bad_body = on_bad_body
        self._delta = delta
        self._latest: ScanPass | None = None
        self._origin: Scan | None = None  # the scan that this one was narrowed for, whose report has its passes
        self._warned = False

    def _warn(self, text: str) -> None:
        """Warn of bodies that do not fit, once for all passes, and only where nobody chose what becomes of them."""
        asked = self._origin or self
        if self._on_bad_body is None and not asked._warned and self._decoder and not self._decoder.error_column:
            asked._warned = True
            warnings.warn(text, RuntimeWarning, stacklevel=_callers_level())

    @property
    def query(self) -> Query:
        """The request to the engine, without the columns that a schema adds."""
        return self._query

    @property
    def decoder(self) -> BodyDecoder | None:
        """The decoder that makes the columns of a schema, or None."""
        return self._decoder

    # --- As an Arrow stream

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Begin a pass and return it as an Arrow C stream capsule.

        Damage fails the stream with a text that names the place; :meth:`to_table` raises CorruptRecord instead. The
        pass does not count for :attr:`cursor` and :meth:`commit`.
        """
        uncounted = self._uncounted()
        if self._decoder is not None:
            return uncounted.to_reader().__arrow_c_stream__(requested_schema)
        return uncounted.begin().engine.__arrow_c_stream__(requested_schema)

    def _uncounted(self) -> Scan:
        """Return the same scan for a library, which may read more than its query uses: its passes count as nothing."""
        found = copy(self)
        found._origin = self._origin or self
        found._delta = None
        return found

    def __arrow_c_schema__(self) -> object:
        """Return the schema as an Arrow C schema capsule."""
        if self._decoder is not None:
            return self.schema.__arrow_c_schema__()
        with closing(self._nothing.open(self._handle)) as engine:
            return engine.__arrow_c_schema__()

    @property
    def _nothing(self) -> Query:
        """The columns of no queue: enough for a schema, however many queues there are."""
        return Query(columns=self._query.columns, ranges=())

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns' names and types."""
        with ScanPass(self._handle, self._nothing, decoder=self._decoder) as run:
            return run.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns' names."""
        decoded = () if self._decoder is None else tuple(self._decoder.schema.names)
        return tuple(column.name for column in self._query.columns) + decoded

    # --- As something else

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Iterate over record batches, one pass. With ``follow`` it waits for new messages.

        For :attr:`cursor` and :meth:`commit`, a batch counts as read when it is handed out.

        Raises:
            CorruptRecord: (while iterating) a damaged record, after every row before it.
            BodyMismatch: (while iterating) with ``on_bad_body="fail"``, a body that does not fit ``schema``.
        """
        library("pyarrow")
        return self._batches()

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """Iterate as :meth:`batches`."""
        return self.batches()

    def to_reader(self) -> pyarrow.RecordBatchReader:
        """Return one pass as a ``pyarrow.RecordBatchReader``.

        For :attr:`cursor` and :meth:`commit`, the pass counts when the reader has come to its end: hand it to sinks
        that write all of it.
        """
        pa = library("pyarrow")
        return pa.RecordBatchReader.from_batches(self.schema, self._batches(whole=True))

    def to_table(self) -> pyarrow.Table:
        """Return everything as a ``pyarrow.Table``. Bodies stay where they are, in the mapped log, unless gathered.

        Some of pyarrow's kernels know neither views (``body``) nor dictionaries (``topic``, ``tags``):
        ``scan.to_dataset().to_table()`` gives plain binary and text, on which all of them work.
        """
        self._require_end()
        pa = library("pyarrow")
        schema = self.schema
        return pa.Table.from_batches(list(self._batches(whole=True)), schema=schema)

    def to_pandas(self, *, arrow_types: bool = False, **options: Any) -> pandas.DataFrame:
        """Return everything as a ``pandas.DataFrame``.

        Args:
            arrow_types: keep Arrow's types (``pandas.ArrowDtype``), which copies no body. Without, pandas' usual ones:
                each body becomes a Python ``bytes``.
            options: further ones for ``pyarrow.Table.to_pandas``.
        """
        arrow_dtype = library("pandas").ArrowDtype
        if arrow_types:
            options = {"types_mapper": arrow_dtype, **options}
        frame: pandas.DataFrame = self.to_table().to_pandas(**options)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Return everything as a ``polars.DataFrame``; no body is copied."""
        library("polars")
        frame: polars.DataFrame = polars_frame(self.to_table())
        return frame

    def to_lazy(self) -> polars.LazyFrame:
        """Return a ``polars.LazyFrame``, which reads and decodes only what its query needs.

        Columns that the query does not name are not read. Conditions on ``topic``, ``queue_id``, ``queue_offset``,
        ``tags`` and ``store_timestamp``, and a ``head``, keep messages from being read; Polars applies all conditions
        to the rows. Each ``collect`` is a pass of its own, while the store is open; none counts for :attr:`cursor`.
        """
        self._require_end()
        library("polars")
        frame: polars.LazyFrame = lazy_frame_of(self.schema, self._narrowed)
        return frame

    def to_dataset(self) -> pyarrow.dataset.Dataset:
        """Return a ``pyarrow.dataset.Dataset`` for DuckDB and pyarrow (``to_table(columns=…, filter=…)``, ``scanner``).

        Bodies, topics and tags are plain binary and text, on which all kernels work. Columns that a query does not
        name are not read; filters narrow the messages read as in :meth:`to_lazy`. It has no fragments, and no pass
        counts for :attr:`cursor`.
        """
        self._require_end()
        flat = self._uncounted()
        flat._query = replace(self._query, columns=plain(self._query.columns))
        dataset: pyarrow.dataset.Dataset = dataset_of(flat.schema, flat._narrowed)
        return dataset

    def _narrowed(self, names: list[str] | None, terms: list[Term], limit: int | None = None) -> Scan:
        """Return a scan of at least these columns (None: all), and of all messages that fit the terms."""
        found = self.select(names)
        found._origin, found._delta = self._origin or self, None
        known = {column.name for column in self._query.columns}  # not the fields of a schema
        query = narrow(found._query, [term for term in terms if term.column in known])
        if limit is not None:
            query = replace(query, limit_rows=min(limit, query.limit_rows or limit))
        found._query = query
        return found

    def select(self, names: Iterable[str] | None) -> Scan:
        """Return a scan of the same messages with fewer columns, in the order of this one.

        Args:
            names: names of this scan's columns; None: all.

        Raises:
            InvalidArgument: this scan has no such column.
        """
        found = copy(self)
        found._latest = found._origin = None
        if names is None:
            return found
        if isinstance(names, str):
            raise InvalidArgument(f"names are several names: select([{names!r}])")
        try:
            wanted = list(names)
        except TypeError:
            kind = type(names).__name__
            raise WrongType(f"names must be a list of column names, not {kind}: names=[{names!r:.60}]") from None
        for name in wanted:
            if name not in self.columns:
                raise InvalidArgument(f"this scan has no column {name!r}; it has {', '.join(self.columns)}")
        if not wanted:
            raise InvalidArgument("no column was asked for; None stands for all of this scan's")
        columns = tuple(column for column in self._query.columns if column.name in wanted)
        found._query = replace(self._query, columns=columns)
        if self._decoder is not None:
            found._decoder = self._decoder.only(wanted)
            if self._decoder.error_column is not None and self._on_bad_body is None:
                found._on_bad_body = "null"  # chosen, though this scan has no errors to show
        return found

    def count(self, *, exact: bool = False) -> int:
        """Return the number of rows.

        Without tags, ``where``, keys, times and the like it is arithmetic on queue offsets, however large the store: an
        offset without a message, as a crash or damage may leave, counts too. With filters the messages that remain are
        read.

        Args:
            exact: read in any case, and count only what a pass gives.
        """
        from cometmq.arrow.count import offsets_of

        self._require_end()
        limit = self._query.limit_rows
        if self._query.filtered or exact:
            return self._count_by_reading()
        ranges = list(offsets_of(self._handle, self._query))
        wanted = self._query.end
        if not self._query.skip_corrupt and (wanted is None or any(end < wanted for _, _, _, end in ranges)):
            self._handle.check_end()
        found = sum(max(end - start, 0) for _, _, start, end in ranges)
        return found if limit is None else min(found, limit)

    def _count_by_reading(self) -> int:
        one = Column("queue_offset", "default", "queue_offset")
        narrow = replace(self._query, columns=(one,), batch_rows=65_536)
        total = 0
        with ScanPass(self._handle, narrow) as run:
            self._latest = run
            while (batch := run.next()) is not None:
                total += batch.num_rows
        return total

    @property
    def report(self) -> ScanReport:
        """Counts of the latest pass: damage, texts that were not UTF-8, bodies that did not fit."""
        latest = self._latest
        return ScanReport() if latest is None else latest.report()

    @property
    def failure(self) -> BaseException | None:
        """The error of the latest pass, or None: libraries that read a scan report it in words of their own."""
        return None if self._latest is None else self._latest.failure

    # --- Since last time

    @property
    def cursor(self) -> Cursor:
        """The cursor behind the messages read, for the next ``scan(start=cursor)``; ``to_json()`` makes it a text.

        A loop over batches counts each batch that it was handed. :meth:`to_table`, :meth:`to_pandas`, :meth:`to_polars`
        and the reader of :meth:`to_reader` count when they have come to the end. Queries of libraries (DuckDB,
        :meth:`to_dataset`, :meth:`to_lazy`, ``pyarrow.table(scan)``) do not count: they read ahead of the rows that
        they use. Of several passes the furthest counts; all of them read the same messages.

        Raises:
            InvalidArgument: the scan was made without ``start=`` a cursor or offsets, and without ``group=``; or no
                pass has read anything.
            StaleCursor: a topic was deleted and made again since the scan was made.
        """
        return self._tracked().cursor

    def commit(self) -> None:
        """Store :attr:`cursor` as the progress of ``group``, as durable as :meth:`cometmq.Consumer.commit`.

        Commit the sink first: a crash between the two repeats messages and loses none.

        A view (``mode="r"``) hands the commit on: where another one comes first, the writer puts it aside with a
        warning in its log, and the messages come again.

        Raises:
            InvalidArgument: the scan has no group, or no pass has read anything.
            GroupBusy: the group's progress was changed since the scan was made, by another scan or consumer. Nothing
                is stored.
            StaleCursor: a topic was deleted and made again since the scan was made. Nothing is stored.
            StorageError: it could not be written.
        """
        self._tracked().commit()

    def _tracked(self) -> Delta:
        if self._delta is None:
            raise InvalidArgument(
                "this scan keeps no cursor: give start=cometmq.Cursor() (the beginning), start= a cursor, or group="
            )
        return self._delta

    def __repr__(self) -> str:
        """Say what is asked for."""
        query = self._query
        topics = query.topics or sorted({topic for topic, *_ in query.ranges or ()})
        parts = [", ".join(map(repr, topics)) or "every topic", f"columns {', '.join(self.columns)}"]
        for name, value in (
            ("since", None if self._delta is None else "last time"),
            ("tags", " || ".join(query.tags)),
            ("where", query.where and query.where.text),
            ("keys", ", ".join(query.keys)),
            ("queues", ", ".join(map(str, query.queue_ids))),
            ("start", query.start),
            ("end", query.end),
            ("start_time_ms", query.start_time_ms),
            ("end_time_ms", query.end_time_ms),
            ("limit", query.limit_rows),
            ("follow", query.follow or None),
        ):
            if value not in (None, ""):
                parts.append(f"{name} {value}")
        return f"<Scan of {'; '.join(parts)}>"

    # --- Passes

    def begin(self, *, timeout_ms: int | None = None) -> ScanPass:
        """Begin a pass by hand; close it.

        Args:
            timeout_ms: with ``follow``, instead of what the scan was made with.
        """
        query = self._query if timeout_ms is None else replace(self._query, timeout_ms=timeout_ms)
        return self._begin(query)

    def _begin(self, query: Query, *, whole: bool = False) -> ScanPass:
        found = ScanPass(
            self._handle,
            query,
            decoder=self._decoder,
            on_bad_body=self._on_bad_body or "null",
            warn=self._warn,
            tracker=None if self._delta is None else DeltaTracker(self._delta, whole=whole),
        )
        self._latest = found
        if self._origin is not None:
            self._origin._latest = found
        return found

    def _batches(self, *, whole: bool = False) -> Generator[pyarrow.RecordBatch]:
        """Iterate over a pass; ``whole``: it counts as read when it has ended."""
        with self._begin(self._query, whole=whole) as run:
            while (batch := run.next()) is not None:
                yield batch

    def _require_end(self) -> None:
        if self._query.follow and self._query.timeout_ms < 0:
            raise InvalidArgument(
                "with follow=True and no timeout_s the scan never ends: iterate over its batches, or give timeout_s"
            )
