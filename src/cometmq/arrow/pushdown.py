"""A library's conditions on a scan beyond its columns: they narrow the messages read.

A library's filter is a conjunction of terms. Terms that the engine has (offsets, queues, topics, tags, store times)
narrow the scan, others are passed over: the library, or the caller, filters the rows again, so that a term that is not
understood costs time and never a row.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.arrow.libraries import library
from cometmq.store_config.names import is_light_queue

if TYPE_CHECKING:
    from cometmq.arrow.scan import Query

__all__ = ["Term", "dataset_of", "lazy_frame_of", "narrow", "polars_frame", "terms_of_arrow", "terms_of_polars"]

_FLIPPED = {"==": "==", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_TIME_MS_MAX = 250_000_000_000_000
"""Times near the ends of the calendar stand for those outside: a condition on them narrows nothing."""


class Term(NamedTuple):
    """A condition on a column: ``column op value``; ``in`` has a list of values."""

    column: str
    op: str
    value: Any


# --- Conditions of libraries


def terms_of_arrow(filter: Any, columns: list[str]) -> list[Term]:
    """Return the terms of a ``pyarrow.compute.Expression`` over these columns that are understood."""
    if not all(re.fullmatch(r"[\w:.-]+", name) for name in columns):
        return []  # a name may look like a part of an expression
    return [term for text in _conjuncts(str(filter)) if (term := _arrow_term(text)) is not None]


def _conjuncts(text: str) -> Iterator[str]:
    """Divide ``((a and b) and c)`` into its terms; quotes and brackets inside terms stay whole."""
    text = text.strip()
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else None
    if inner is not None:
        depth, quoted, at = 0, False, 0
        while at < len(inner) and depth >= 0:
            sign = inner[at]
            if quoted:
                at += sign == "\\"
                quoted = sign != '"'
            elif sign == '"':
                quoted = True
            elif sign in "([{":
                depth += 1
            elif sign in ")]}":
                depth -= 1
            elif depth == 0 and inner.startswith(" and ", at):
                yield from _conjuncts(inner[:at])
                yield from _conjuncts(inner[at + 5 :])
                return
            at += 1
    yield text


_ARROW_TERM = re.compile(r"\((\w+) (==|>=|<=|>|<) (.+)\)", re.DOTALL)
_ARROW_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")


def _arrow_term(text: str) -> Term | None:
    found = _ARROW_TERM.fullmatch(text)
    if found is None:
        return None
    column, op, literal = found.groups()
    if re.fullmatch(r"-?\d+", literal):
        return Term(column, op, int(literal))
    if re.fullmatch(r'"[^"\\]*"', literal):
        return Term(column, op, literal[1:-1])
    if time := _ARROW_TIME.fullmatch(literal):
        moment = datetime.fromisoformat(f"{time[1]}T{time[2]}+00:00")
        return Term(column, op, moment.timestamp() * 1000 + int((time[3] or "0").ljust(9, "0")) / 1e6)
    return None


def terms_of_polars(predicate: Any) -> list[Term]:
    """Return the terms of a ``polars.Expr`` that are understood; none where Polars' form of it is unknown."""
    pl = library("polars")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(_polars_terms(json.loads(predicate.meta.serialize(format="json"))))
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration, pl.exceptions.PolarsError):
        return []  # its form is not promised, and without terms the rows are the same


_POLARS_OPS = {"Eq": "==", "Gt": ">", "GtEq": ">=", "Lt": "<", "LtEq": "<="}


def _polars_terms(node: Any) -> Iterator[Term]:
    kind, content = next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else ("", {})
    if kind == "BinaryExpr" and content["op"] in ("And", "LogicalAnd"):
        yield from _polars_terms(content["left"])
        yield from _polars_terms(content["right"])
    elif kind == "BinaryExpr" and content["op"] in _POLARS_OPS:
        op, left, right = _POLARS_OPS[content["op"]], content["left"], content["right"]
        if "Column" in right:
            op, left, right = _FLIPPED[op], right, left
        if "Column" in left and "Literal" in right:
            yield Term(left["Column"], op, _polars_value(right))
    elif kind == "Function" and "IsBetween" in content["function"].get("Boolean", {}):
        column, low, high = content["input"]
        if "Column" in column and "Literal" in low and "Literal" in high:
            yield Term(column["Column"], ">=", _polars_value(low))
            yield Term(column["Column"], "<=", _polars_value(high))
    elif kind == "Function" and "IsIn" in content["function"].get("Boolean", {}):
        column, values = content["input"]
        if "Column" in column and "Literal" in values:
            yield Term(column["Column"], "in", _polars_value(values))


def _polars_value(node: Any) -> Any:
    """Let Polars read its own literal."""
    pl = library("polars")
    value = pl.select(pl.Expr.deserialize(StringIO(json.dumps(node)), format="json")).item()
    if isinstance(value, pl.Series):
        return value.to_list()
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds() * 1000
    return value


# --- Conditions of a scan


def narrow(query: Query, terms: list[Term]) -> Query:
    """Return the query with the terms that it can have: it reads fewer messages, and all that fit the terms."""
    for term in terms:
        if query.limit_rows is None:  # else other rows would be among the first ones
            query = _narrowed(query, term)
    return query


def _narrowed(query: Query, term: Term) -> Query:
    values = term.value if term.op == "in" else [term.value]
    if term.column == "store_timestamp" and term.op != "in":
        return _timed(query, term)
    if term.column in ("topic", "tags") and term.op in ("==", "in") and _all_are(values, str):
        if any(not value or "\ufffd" in value for value in values):
            return query
        if term.column == "topic":
            return _of_topics(query, values)
        # An inner batch as one row is found by the tags of its messages, and shows its own.
        return query if query.raw_bodies else _tagged(query, values)
    if query.keys or any(map(is_light_queue, query.topics)) or not _all_are(values, int):
        return query
    if term.column == "queue_id" and term.op in ("==", "in"):
        return _of_queues(query, values)
    if term.column == "queue_offset" and term.op != "in":
        return _of_offsets(query, term)
    return query


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(one, kind) and not isinstance(one, bool) for one in values)


def _nothing(query: Query) -> Query:
    return replace(query, topics=(), queue_ids=(), keys=(), start=None, end=None, ranges=())


def _timed(query: Query, term: Term) -> Query:
    value = term.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _TIME_MS_MAX:
        return query
    start, end = query.start_time_ms, query.end_time_ms
    # A float of milliseconds may be off by a fraction: a millisecond more on either side loses nothing.
    if term.op in ("==", ">", ">="):
        first = math.floor(value) - 1
        start = first if start is None else max(start, first)
    if term.op in ("==", "<", "<="):
        behind = math.ceil(value) + 2
        end = behind if end is None else min(end, behind)
    return replace(query, start_time_ms=start, end_time_ms=end)


def _tagged(query: Query, values: list[str]) -> Query:
    tags = tuple(dict.fromkeys(value for value in values if not query.tags or value in query.tags))
    return replace(query, tags=tags) if tags else _nothing(query)


def _of_topics(query: Query, values: list[str]) -> Query:
    if query.ranges is not None:
        return replace(query, ranges=tuple(one for one in query.ranges if one[0] in values))
    if any(map(is_light_queue, (*values, *query.topics))):
        return query
    topics = tuple(dict.fromkeys(value for value in values if not query.topics or value in query.topics))
    return replace(query, topics=topics) if topics else _nothing(query)


def _of_queues(query: Query, values: list[int]) -> Query:
    if query.ranges is not None:
        return replace(query, ranges=tuple(one for one in query.ranges if one[1] in values))
    if not query.topics:
        return query
    queue_ids = tuple(dict.fromkeys(one for one in values if not query.queue_ids or one in query.queue_ids))
    queue_ids = tuple(one for one in queue_ids if 0 <= one < 1 << 31)
    return replace(query, queue_ids=queue_ids) if queue_ids else _nothing(query)


def _of_offsets(query: Query, term: Term) -> Query:
    low = {"==": term.value, ">=": term.value, ">": term.value + 1}.get(term.op, 0)
    high = {"==": term.value + 1, "<=": term.value + 1, "<": term.value}.get(term.op, (1 << 63) - 1)
    low, high = max(low, 0), min(max(high, 0), (1 << 63) - 1)
    if query.ranges is not None:
        cut = ((topic, queue, max(start, low), min(end, high)) for topic, queue, start, end in query.ranges)
        return replace(query, ranges=tuple(one for one in cut if one[2] < one[3]))
    if len(query.topics) != 1:
        return query
    start = low if query.start is None else max(query.start, low)
    end = high if query.end is None else min(query.end, high)
    return replace(query, start=start, end=end) if start < end else _nothing(query)


# --- Sources of libraries


def dataset_of(schema: Any, scan_of: Callable[[list[str] | None, list[Term]], Any]) -> Any:
    """Return a dataset for DuckDB and pyarrow, which ask it for a scanner of columns and a filter.

    Args:
        schema: all columns.
        scan_of: makes the scan of at least these columns (None: all) and of all messages that fit the terms.
    """
    datasets = library("pyarrow.dataset")

    class Table(datasets.Dataset):  # type: ignore[misc, name-defined]
        """Messages as a pyarrow dataset: all that a scanner does works; there are no fragments."""

        def __init__(self) -> None:
            """Nothing of a dataset's own."""

        @property
        def schema(self) -> Any:
            """All columns."""
            return schema

        def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
            """Return a scanner of columns and of the rows that fit the filter, which may name other columns."""
            names, terms = None, []
            if columns is not None and not isinstance(columns, dict):
                text = str(filter)
                needed = {*columns, *(name for name in schema.names if filter is not None and name in text)}
                names = [name for name in schema.names if name in needed] or schema.names[:1]
            if filter is not None:
                terms = terms_of_arrow(filter, schema.names)
            scan = scan_of(names, terms)
            return datasets.Scanner.from_batches(scan.to_reader(), columns=columns, filter=filter, use_threads=False)

    return Table()


def lazy_frame_of(schema: Any, scan_of: Callable[[list[str] | None, list[Term], int | None], Any]) -> Any:
    """Return a ``polars.LazyFrame``; ``scan_of`` takes the most rows besides."""
    pa = library("pyarrow")
    plugins = library("polars.io.plugins")
    empty = polars_frame(schema.empty_table())

    def source(columns: list[str] | None, predicate: Any, rows: int | None, batch_rows: int | None) -> Iterator[Any]:
        names = None
        if columns is not None:
            needed = {*columns, *([] if predicate is None else predicate.meta.root_names())}
            names = [name for name in schema.names if name in needed] or schema.names[:1]
        terms = [] if predicate is None else terms_of_polars(predicate)
        scan = scan_of(names, terms, rows if predicate is None else None)
        left = rows
        given = False
        for batch in scan.to_reader():
            frame = polars_frame(pa.Table.from_batches([batch]))
            if predicate is not None:
                frame = frame.filter(predicate)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame if columns is None else frame.select(columns)
            given = True
            if left == 0:
                return
        if not given:
            yield empty if columns is None else empty.select(columns)

    return plugins.register_io_source(source, schema=empty.schema, explain_name="cometmq")


class _Exported:
    """A table's stream and nothing else: Polars then imports the buffers as they are."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def polars_frame(table: Any) -> Any:
    """Return a ``polars.DataFrame`` of a ``pyarrow.Table``; no body is copied."""
    return library("polars").DataFrame(_Exported(table))
