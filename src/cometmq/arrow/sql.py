"""Topics as tables of DuckDB.

Only topics that a query names become tables, so that a store may have any number of them. A table is a pyarrow dataset
that knows its own way of being scanned: DuckDB says which columns it needs, and no others are read or decoded. DuckDB
applies the WHERE clause.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cometmq._extras import install_command
from cometmq.arrow.libraries import library
from cometmq.arrow.pushdown import dataset_of
from cometmq.arrow.scan import Scan
from cometmq.errors import InvalidArgument, MissingLibrary

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ALL_MESSAGES", "Answer", "Database", "TopicSource", "connect"]

ALL_MESSAGES = "messages"
"""The table of everything."""

_DUCKDB_MIN = 2
_NAMES_SHOWN = 10
_BATCH_ROWS = 16_384


class TopicSource(Protocol):
    """The source of the tables: a :class:`cometmq.Store`."""

    def topics(self, *, system: bool = False) -> list[str]:
        """Return the topics; with ``system`` those of the broker, too."""
        ...

    def scan(
        self,
        topic: str | None = None,
        *,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
        where: str | None = None,
        start_time: int | datetime | None = None,
        end_time: int | datetime | None = None,
        schema: Any = None,
        body_format: Literal["json", "csv"] = "json",
        on_bad_body: Literal["null", "fail"] | None = None,
        batch_rows: int = 8192,
    ) -> Scan:
        """Return messages of one topic, or of all."""
        ...


class Answer:
    """The rows of a query, batch by batch; once. Of columns with one name, later ones get a number: ``a``, ``a_1``."""

    def __init__(self, reader: pyarrow.RecordBatchReader | None, failing: Callable[[Exception], BaseException]) -> None:
        """``failing`` turns an error of the reader into the one to raise."""
        self._reader = reader
        self._failing = failing
        schema = library("pyarrow").schema([]) if reader is None else reader.schema
        self._names = _distinct(schema.names)
        self._schema = library("pyarrow").schema(
            [field.with_name(name) for field, name in zip(schema, self._names, strict=True)]
        )

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns; none for a statement without rows."""
        return self._schema

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """Iterate over the batches."""
        pa = library("pyarrow")
        if self._reader is None:
            return
        while True:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return
            except (OSError, ValueError, RuntimeError, pa.ArrowException, library("duckdb").Error) as error:
                raise self._failing(error) from error
            yield batch.rename_columns(self._names)


def _distinct(names: list[str]) -> list[str]:
    """Return names of which none is there twice; rows as JSON would lose a value otherwise."""
    taken = set(names)
    found: list[str] = []
    for name in names:
        chosen = name
        if name in found:
            chosen = next(numbered for at in count(1) if (numbered := f"{name}_{at}") not in taken)
            taken.add(chosen)
        found.append(chosen)
    return found


class Database:
    """DuckDB with a store's topics for tables. Use :func:`connect`."""

    def __init__(self, connection: Any, store: TopicSource, scan_of: Callable[..., Scan], *, has_schemas: bool) -> None:
        """``scan_of`` makes the scan of a topic, or of None for all; ``has_schemas`` where bodies are columns."""
        self._connection = connection
        self._store = store
        self._scan_of = scan_of
        self._has_schemas = has_schemas
        self._scans: list[Scan] = []
        self._tables: dict[str, str] = {}
        self.notes: list[str] = []

    @property
    def bad_bodies(self) -> int:
        """Bodies that did not fit a schema, in all passes of the statement."""
        return sum(scan.report.bad_bodies for scan in self._scans)

    @contextmanager
    def run(self, query: str) -> Generator[Answer]:
        """Run a statement.

        Raises:
            InvalidArgument: DuckDB refuses it; the text says why, and which topics there are.
            CorruptRecord: (while iterating) a damaged record.
        """
        duckdb = library("duckdb")
        try:
            for name in self._names_in(query):
                self._make_table(name)
            relation = self._connection.sql(query)
            reader = None if relation is None else library("pyarrow").RecordBatchReader.from_stream(relation)
        except duckdb.CatalogException as error:
            text = str(error).splitlines()[0].rstrip(".!")
            raise InvalidArgument(f"{text}. {self._topics_text(query)}") from error
        except duckdb.BinderException as error:
            failure = self._failure(error)
            if "Referenced column" in str(error) and not self._has_schemas:
                failure = InvalidArgument(f"{failure}. --infer makes the fields of JSON bodies columns")
            raise failure from error
        except (duckdb.Error, RuntimeError) as error:
            raise self._failure(error) from error
        yield Answer(reader, self._failure)

    def interrupt(self) -> None:
        """End the statement that runs, from another thread; it raises KeyboardInterrupt."""
        self._connection.interrupt()

    def _failure(self, error: Exception) -> BaseException:
        """Return what the engine said, where DuckDB only passed it on; else DuckDB's words."""
        if "interrupted" in str(error).casefold():
            return KeyboardInterrupt()
        for scan in self._scans:
            if scan.failure is not None:
                return scan.failure
        lines = [line.strip() for line in str(error).splitlines()]
        return InvalidArgument("; ".join(line for line in lines if line.strip("^~ ")))

    def _names_in(self, query: str) -> list[str]:
        """Return the names of tables in a query; of a statement that DuckDB does not parse, all that may be one."""
        duckdb = library("duckdb")
        try:
            return sorted(self._connection.get_table_names(query))
        except duckdb.Error:
            text = query.casefold()
            return [name for name in (ALL_MESSAGES, *self._store.topics(system=True)) if name.casefold() in text]

    def _make_table(self, name: str) -> None:
        """Make a topic's table; any other name is DuckDB's: a file, a name in the query itself."""
        topic = self._topic_of(name)
        if topic is None and name.casefold() != ALL_MESSAGES:
            return
        known = self._tables.setdefault(name.casefold(), topic or "")
        if known != (topic or ""):
            raise InvalidArgument(f"DuckDB cannot tell the topics {known!r} and {topic!r} apart in one query")
        if topic == ALL_MESSAGES:
            self.notes.append(f"{ALL_MESSAGES} is this store's topic of that name, not all of them")

        def scan_of(columns: list[str] | None) -> Scan:
            scan = self._scan_of(topic, columns)
            self._scans.append(scan)
            return scan

        self._connection.register(name, dataset_of(scan_of(None).schema, lambda names, terms: scan_of(names)))

    def _topic_of(self, name: str) -> str | None:
        """Return the topic that a table's name means; DuckDB's names are the same in capitals."""
        names = self._store.topics(system=True)
        if name in names:
            return name
        same = [topic for topic in names if topic.casefold() == name.casefold()]
        if len(same) > 1:
            raise InvalidArgument(f"{name!r} may be any of the topics {', '.join(same)}: write it as one of them")
        return same[0] if same else None

    def _topics_text(self, query: str) -> str:
        names = self._store.topics()
        near = [
            near
            for word in self._names_in(query)
            if self._topic_of(word) is None
            for near in difflib.get_close_matches(word, names, n=1)
        ]
        if near:
            return f"Did you mean the topic {' or '.join(map(repr, near))}?"
        shown = ", ".join(map(repr, names[:_NAMES_SHOWN])) or "none"
        return f"Tables are {ALL_MESSAGES} and the topics: {shown}{', …' if len(names) > _NAMES_SHOWN else ''}."


@contextmanager
def connect(
    store: TopicSource,
    *,
    columns: Iterable[str] | None = None,
    tags: str | None = None,
    where: str | None = None,
    start_time: int | datetime | None = None,
    end_time: int | datetime | None = None,
    schemas: Mapping[str | None, Any] | None = None,
    body_format: Literal["json", "csv"] = "json",
) -> Generator[Database]:
    """Open a DuckDB in memory whose tables are a store's topics.

    Args:
        store: the store.
        columns: columns of the tables; None for the usual ones.
        tags: filter of the tables, as :meth:`cometmq.Store.scan`.
        where: the same.
        start_time: the same.
        end_time: the same.
        schemas: schemas of bodies by topic, as ``schema`` of :meth:`cometmq.Store.scan`; None for all other topics.
            Values that do not fit are null.
        body_format: format of the bodies that have a schema.

    Raises:
        MissingLibrary: DuckDB is not installed, or too old.
        InvalidArgument: two of the columns have one name but for capitals, by which DuckDB takes one for the other.
    """
    duckdb = library("duckdb")
    if int(duckdb.__version__.partition(".")[0]) < _DUCKDB_MIN:
        # Before, it had pyarrow filter, which knows no views, and took a stream only once.
        raise MissingLibrary(
            f"this needs DuckDB {_DUCKDB_MIN} or newer, not {duckdb.__version__}: {install_command('duckdb')}"
        )
    chosen = None if columns is None else list(columns)
    _check_apart(chosen or [])

    wholes: dict[str | None, Scan] = {}

    def whole_of(topic: str | None) -> Scan:
        """Return the scan of all columns of a topic; a schema is inferred once."""
        if topic not in wholes:
            schema = (schemas or {}).get(topic, (schemas or {}).get(None))
            scan = store.scan(
                topic,
                columns=chosen,
                tags=tags,
                where=where,
                start_time=start_time,
                end_time=end_time,
                schema=schema,
                body_format=body_format if schema is not None else "json",
                on_bad_body="null",
                batch_rows=_BATCH_ROWS,
            )
            if scan.decoder is not None:
                fields = scan.decoder.schema.names
                taken = {name.casefold() for name in fields}
                if chosen is None:
                    scan = scan.select([name for name in scan.columns if name in fields or name not in taken])
                _check_apart(list(scan.columns))
            wholes[topic] = scan
        return wholes[topic]

    def scan_of(topic: str | None, names: list[str] | None) -> Scan:
        return whole_of(topic).select(names)

    # Invalid options fail at once.
    store.scan(columns=chosen, tags=tags, where=where, start_time=start_time, end_time=end_time)
    with duckdb.connect() as connection:
        # A name is a topic or a table, never a variable of this program.
        connection.execute("SET python_enable_replacements = false; SET TimeZone = 'UTC'")
        yield Database(connection, store, scan_of, has_schemas=bool(schemas))


def _check_apart(columns: list[str]) -> None:
    known: dict[str, str] = {}
    for name in columns:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidArgument(f"DuckDB cannot tell the columns {other!r} and {name!r} apart: ask for one of them")
