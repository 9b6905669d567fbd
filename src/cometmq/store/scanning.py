"""The call that gives messages as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from cometmq.errors import InvalidArgument
from cometmq.store.options import (
    INT64_MAX,
    Time,
    a_flag,
    a_list,
    a_text,
    in_range,
    optional_time_ms,
    parse_tags,
    several,
    timeout_ms,
)
from cometmq.store.reading import Reading

if TYPE_CHECKING:
    import pyarrow

    from cometmq._types import ArrowSchemaLike
    from cometmq.arrow import Scan
    from cometmq.arrow.bodies import BodyDecoder

__all__ = ["Scanning"]

_BATCH_BYTES_MAX = 1 << 30
_BATCH_ROWS_MAX = 1 << 24


class Scanning(Reading):
    """The call that gives messages as Arrow columns."""

    def scan(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        columns: Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        keys: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        start: int | None = None,
        end: int | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int | None = None,
        follow: bool = False,
        timeout_s: float | None = None,
        body: Literal["view", "binary"] = "view",
        compressed: Literal["decompress", "raw"] = "decompress",
        schema: pyarrow.Schema | ArrowSchemaLike | Mapping[str, object] | str | None = None,
        body_format: Literal["json", "csv"] = "json",
        on_bad_body: Literal["null", "fail"] | None = None,
        strict: bool = False,
        error_column: str | None = None,
        on_corrupt: Literal["fail", "skip"] = "fail",
        check_crc: bool = False,
        batch_rows: int = 8192,
        batch_bytes: int = 4 << 20,
    ) -> Scan:
        """Return messages as Arrow columns: ``duckdb.sql("select … from scan")``, ``scan.to_polars()``, …

        Nothing is read yet: each use of the scan is a pass of its own. Messages that these filters exclude are never
        read: tags by their hash in the queue, keys through the index, offsets and times by search. See
        ``docs/arrow.md``.

        Args:
            topic: one topic, several, or None for everything.
            columns: names of columns: ``topic``, ``queue_id``, ``queue_offset``, ``body``, ``tags``, ``keys``,
                ``born_timestamp``, ``store_timestamp`` (these by default), ``properties``, ``flag``, ``sys_flag``,
                ``reconsume_times``, ``message_id``, ``unique_id``, ``physical_offset``, ``born_host``, ``store_host``,
                ``body_crc``, ``body_bytes``, ``prepared_transaction_offset``, and ``prop:NAME`` for a property. Other
                columns cost nothing.
            tags: only messages with one of these tags: ``"A || B"``, or a list of tags; None or ``"*"`` for all.
            keys: only messages that have one of these keys; needs a topic.
            queues: only these queues.
            start: queue offset to begin at. Only with one topic; so is ``end``.
            end: queue offset to end before.
            start_time: only messages stored at this time or later (milliseconds or datetime).
            end_time: only messages stored before this time.
            limit: at most so many rows.
            follow: at the end, wait for new messages instead of stopping.
            timeout_s: with ``follow``, stop when nothing has come for so long; None: never.
            body: ``"view"``: bodies over 12 bytes stay where they are, in the mapped log; a reference to them keeps
                the file mapped. ``"binary"``: each batch gathers its bodies, for libraries that do not know views.
            compressed: bodies that a client compressed come decompressed, or ``"raw"``, as stored; inner batches too
                are then a row each.
            schema: decode structured bodies into these columns instead of ``body`` (which comes beside them when
                ``columns`` asks for it): a ``pyarrow.Schema``, or names with types (``{"id": "int64"}``,
                ``"id BIGINT, at timestamp[ms, tz=UTC]"``). A number in a body is a time's count of units since 1970.
            body_format: ``"json"``: a body is one object; ``"csv"``: one line, its fields in the schema's order.
            on_bad_body: ``"null"``: what does not fit is null, and ``scan.report`` counts it; ``"fail"``: it fails the
                scan. None is ``"null"`` with a warning at the first batch that has one.
            strict: the same as ``on_bad_body="fail"``.
            error_column: name of a text column, behind those of the schema, that has the reason where something does
                not fit, and is null otherwise.
            on_corrupt: a damaged record, or a body that inflates to more than 256 MiB, fails the scan, after all rows
                before it, or is passed over and reported.
            check_crc: compare every body with its CRC, which reads all of it.
            batch_rows: most rows of a batch.
            batch_bytes: bytes of bodies at which a batch ends.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidArgument: an argument cannot be used; the text says which.
            MissingLibrary: ``schema`` needs pyarrow.
        """
        from cometmq.arrow import columns as names
        from cometmq.arrow.scan import Query, Scan

        topics = self._checked_topics(topic)
        if (start is not None or end is not None) and len(topics) != 1:
            raise InvalidArgument("start and end are queue offsets: give one topic, or use start_time and end_time")
        for name, offset in (("start", start), ("end", end)):
            if offset is not None:
                in_range(offset, name, 0, INT64_MAX)
        if limit is not None:
            in_range(limit, "limit", 1, INT64_MAX)
        for name, value, allowed in (
            ("body", body, ("view", "binary")),
            ("compressed", compressed, ("decompress", "raw")),
            ("on_bad_body", on_bad_body or "null", ("null", "fail")),
            ("on_corrupt", on_corrupt, ("fail", "skip")),
        ):
            if value not in allowed:
                raise InvalidArgument(f"{name} is {allowed[0]!r} or {allowed[1]!r}, not {value!r}")
        decoder = None
        if a_flag(strict, "strict"):
            if on_bad_body == "null":
                raise InvalidArgument('strict=True fails the scan: it cannot go with on_bad_body="null"')
            on_bad_body = "fail"
        if schema is not None:
            decoder, columns = _decoding(schema, body_format, columns, compressed, error_column)
        elif strict or error_column is not None:
            raise InvalidArgument("strict and error_column are about bodies that a schema decodes: give schema")
        if schema is None and columns is not None:
            columns = columns if isinstance(columns, str) else a_list(columns, "columns", "column names")
            if not columns:
                raise InvalidArgument("no column was asked for; None stands for the usual ones")
        query = Query(
            columns=names.parse_columns(columns, view_bodies=body == "view"),
            topics=topics,
            tags=parse_tags(tags),
            keys=_checked_keys(keys, topics, follow=follow),
            queue_ids=self._checked_queues(topics, queues) or (),
            start=start,
            end=end,
            start_time_ms=optional_time_ms(start_time),
            end_time_ms=optional_time_ms(end_time),
            batch_rows=in_range(batch_rows, "batch_rows", 1, _BATCH_ROWS_MAX),
            batch_bytes=in_range(batch_bytes, "batch_bytes", 1, _BATCH_BYTES_MAX),
            limit_rows=limit,
            raw_bodies=compressed == "raw",
            check_crc=check_crc,
            skip_corrupt=on_corrupt == "skip",
            follow=follow,
            timeout_ms=timeout_ms(timeout_s),
        )
        return Scan(self._handle, query, decoder=decoder, on_bad_body=on_bad_body)


def _decoding(
    schema: object,
    body_format: Literal["json", "csv"],
    columns: Iterable[str] | None,
    compressed: str,
    error_column: str | None,
) -> tuple[BodyDecoder, tuple[str, ...]]:
    """Return the decoder, and the columns that stand beside what it makes."""
    from cometmq.arrow.bodies import BodyDecoder, body_schema
    from cometmq.arrow.columns import DEFAULT_COLUMNS

    if compressed == "raw":
        raise InvalidArgument('a schema decodes bodies: compressed="raw" leaves them as they are; give one of the two')
    decoder = BodyDecoder(body_schema(schema), body_format, error_column=error_column)
    fields = decoder.schema.names
    if columns is None:
        return decoder, tuple(name for name in DEFAULT_COLUMNS if name != "body" and name not in fields)
    chosen = (columns,) if isinstance(columns, str) else a_list(columns, "columns", "column names")
    for name in chosen:
        if name in fields:
            raise InvalidArgument(f"schema and columns both have {name!r}: leave one of them out")
    return decoder, chosen


def _checked_keys(keys: str | Iterable[str] | None, topics: tuple[str, ...], *, follow: bool) -> tuple[str, ...]:
    if keys is None:
        return ()
    chosen = (keys,) if isinstance(keys, str) else several(keys, "keys", "keys")
    for key in chosen:
        a_text(key, "an element of keys")
    if not chosen or not all(chosen):
        raise InvalidArgument("keys are one key or several, none of them empty; None stands for all messages")
    if not topics:
        raise InvalidArgument("keys are looked up in a topic: give one")
    if follow:
        raise InvalidArgument("follow waits for new messages: it cannot go with keys")
    return chosen
