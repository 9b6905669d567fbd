"""The call that gives messages as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cometmq.errors import InvalidArgument, WrongType
from cometmq.store.administration import Administration
from cometmq.store.options import (
    INT32_MAX,
    INT64_MAX,
    Time,
    a_flag,
    a_list,
    a_text,
    in_range,
    optional_selector,
    optional_time_ms,
    parse_tags,
    several,
    timeout_ms,
)
from cometmq.store_config.names import is_light_queue, validate_group

if TYPE_CHECKING:
    import pyarrow

    from cometmq._types import ArrowSchemaLike
    from cometmq.arrow import Cursor, Scan
    from cometmq.arrow.bodies import BodyDecoder
    from cometmq.arrow.cursor import Delta
    from cometmq.arrow.scan import Query

__all__ = ["Scanning"]

_BATCH_BYTES_MAX = 1 << 30
_BATCH_ROWS_MAX = 1 << 24


class Scanning(Administration):
    """The call that gives messages as Arrow columns."""

    def scan(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        columns: Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        where: str | None = None,
        keys: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        group: str | None = None,
        start: int | Cursor | Mapping[int, int] | Mapping[tuple[str, int], int] | None = None,
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
        on_loss: Literal["fail", "skip"] = "fail",
        check_crc: bool = False,
        batch_rows: int = 8192,
        batch_bytes: int = 4 << 20,
    ) -> Scan:
        """Return messages as Arrow columns: ``duckdb.sql("select … from scan")``, ``scan.to_polars()``, …

        Nothing is read yet: each use of the scan is a pass of its own. Messages that these filters exclude are never
        read: tags by their hash in the queue, keys through the index, offsets and times by search. Of messages that
        ``where`` excludes only the properties are read. See ``docs/arrow.md``.

        Args:
            topic: one topic, several, or None for everything.
            columns: names of columns: ``topic``, ``queue_id``, ``queue_offset``, ``body``, ``tags``, ``keys``,
                ``born_timestamp``, ``store_timestamp`` (these by default), ``properties``, ``flag``, ``sys_flag``,
                ``reconsume_times``, ``message_id``, ``unique_id``, ``physical_offset``, ``born_host``, ``store_host``,
                ``body_crc``, ``body_bytes``, ``prepared_transaction_offset``, and ``prop:NAME`` for a property. Other
                columns cost nothing.
            tags: only messages with one of these tags: ``"A || B"``, or a list of tags; None or ``"*"`` for all.
            where: only messages whose properties match this SQL92 expression, as :meth:`read`:
                ``"price > 10 AND region = 'eu'"``. It may go with all other filters.
            keys: only messages that have one of these keys; needs a topic.
            queues: only these queues.
            group: only messages behind the progress of this consumer group, up to the ends of the queues at this
                moment; :meth:`Scan.commit` stores the progress. Queues without progress begin at their first message.
            start: the queue offset to begin at, of one topic; or where to begin in each queue, up to the ends of the
                queues at this moment: a :class:`cometmq.Cursor` (``scan.cursor`` of the scan before; ``Cursor()`` is
                the beginning), or next offsets by queue (``{0: 17, 1: 20}``) or by (topic, queue). Queues that it
                lacks begin at their first message.
            end: queue offset to end before. Only with one topic.
            start_time: only messages stored at this time or later (milliseconds or datetime).
            end_time: only messages stored before this time.
            limit: at most so many rows.
            follow: at the end, wait for new messages instead of stopping.
            timeout_s: with ``follow``, stop when nothing has come for so long; None: never.
            body: ``"view"``: bodies over 12 bytes stay where they are, in the mapped log; a reference to them keeps
                the file mapped. ``"binary"``: each batch gathers its bodies, for libraries that do not know views.
            compressed: bodies that a client compressed come decompressed, or ``"raw"``, as stored; inner batches too
                are then a row each, which ``where`` selects if one of its messages matches.
            schema: decode structured bodies into these columns instead of ``body`` (which comes beside them when
                ``columns`` asks for it): a ``pyarrow.Schema``, or names with types (``{"id": "int64"}``,
                ``"id BIGINT, at timestamp[ms, tz=UTC]"``), or ``"infer"`` for the types of the oldest and newest
                JSON bodies of each queue. A number in a body is a time's count of units since 1970.
            body_format: ``"json"``: a body is one object; ``"csv"``: one line, its fields in the schema's order.
            on_bad_body: ``"null"``: values that do not fit are null, and ``scan.report`` counts the bodies;
                ``"fail"``: a body that does not fit fails the scan. None is ``"null"`` with a warning at the first
                batch that has one.
            strict: the same as ``on_bad_body="fail"``.
            error_column: name of a text column, behind those of the schema, that has the reason where something does
                not fit, and is null otherwise.
            on_corrupt: a damaged record, or a body that inflates to more than 256 MiB, fails the scan, after all rows
                before it, or is passed over and reported.
            on_loss: with ``group``, a cursor or offsets by queue: messages that expired unread, and topics that were
                deleted and made again, raise; ``"skip"`` continues with the messages that are there, and
                ``scan.report.expired`` counts expired ones.
            check_crc: compare every body with its CRC, which reads all of it.
            batch_rows: most rows of a batch.
            batch_bytes: bytes of bodies at which a batch ends.

        Raises:
            TopicNotFound: there is no such topic.
            StaleCursor: with ``on_loss="fail"``, the messages behind the group's progress, cursor or offsets expired or
                are others.
            InvalidArgument: an argument cannot be used; the text says which. Of ``where`` it has the place and the
                reason.
            LimitReached: ``where`` is too long or too deep.
            MissingLibrary: ``schema`` needs pyarrow.
        """
        from cometmq.arrow import columns as names
        from cometmq.arrow.scan import Query, Scan

        topics = self._checked_topics(topic)
        first, begin = self._start_of(start, topics, skip_lost=on_loss == "skip")
        if end is not None:
            in_range(end, "end", 0, INT64_MAX)
        if (first is not None or end is not None) and len(topics) != 1:
            raise InvalidArgument("start and end are queue offsets: give one topic, or use start_time and end_time")
        if first is not None and end is not None and first > end:
            raise InvalidArgument(f"start {first} lies behind end {end}")  # as read() does; count() reads nothing
        if limit is not None:
            in_range(limit, "limit", 1, INT64_MAX)
        for name, value, allowed in (
            ("body", body, ("view", "binary")),
            ("compressed", compressed, ("decompress", "raw")),
            ("on_bad_body", on_bad_body or "null", ("null", "fail")),
            ("on_corrupt", on_corrupt, ("fail", "skip")),
            ("on_loss", on_loss, ("fail", "skip")),
        ):
            if value not in allowed:
                raise InvalidArgument(f"{name} is {allowed[0]!r} or {allowed[1]!r}, not {value!r}")
        decoder = None
        if a_flag(strict, "strict"):
            if on_bad_body == "null":
                raise InvalidArgument('strict=True fails the scan: it cannot go with on_bad_body="null"')
            on_bad_body = "fail"
        if isinstance(schema, str) and schema == "infer":
            from cometmq.arrow.inferring import infer_schema

            if body_format == "csv":
                raise InvalidArgument('schema="infer" is for JSON: CSV lines have no names; give the schema')
            schema = infer_schema(self._handle, topics, self._checked_queues(topics, queues) or ())
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
            where=optional_selector(where),
            keys=_checked_keys(keys, topics, follow=follow),
            queue_ids=self._checked_queues(topics, queues) or (),
            start=first,
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
        delta = None
        if group is not None or begin is not None:
            if group is not None and start is not None:
                raise InvalidArgument("group and start both say where to begin: leave one of them out")
            delta = self._delta_of(query, group, begin, skip_lost=on_loss == "skip")
            query = replace(query, ranges=delta.ranges, topics=(), queue_ids=(), end=None)
        return Scan(self._handle, query, decoder=decoder, on_bad_body=on_bad_body, delta=delta)

    def _start_of(self, start: Any, topics: tuple[str, ...], *, skip_lost: bool) -> tuple[int | None, Cursor | None]:
        """Return the first offset of one queue, or a cursor."""
        from cometmq.arrow.cursor import Cursor

        if start is None or isinstance(start, Cursor):
            return None, start
        if not isinstance(start, Mapping):
            if isinstance(start, str):
                raise WrongType(
                    f"start must be an offset, not str ({start!r:.60}); Cursor.from_json reads a cursor's JSON"
                )
            return in_range(start, "start", 0, INT64_MAX), None
        offsets: dict[tuple[str, int], int] = {}
        for key, offset in start.items():
            if isinstance(key, tuple):
                topic, queue = key if len(key) == 2 else (None, 0)
            else:
                if len(topics) != 1:
                    raise InvalidArgument(
                        "start has offsets by queue, which is for one topic: give one, or {(topic, queue): offset}"
                    )
                topic, queue = topics[0], key
            if not isinstance(topic, str) or (topics and topic not in topics):
                raise InvalidArgument(f"start contains {key!r:.60}: give queues of the topics that are scanned")
            in_range(queue, "a queue of start", 0, INT32_MAX)
            if skip_lost:  # a topic that was made again may have fewer messages, and queues
                in_range(offset, "an offset of start", 0, INT64_MAX)
            else:
                self._check_offset(topic, queue, offset)
            offsets[topic, queue] = offset
        return None, Cursor(offsets)

    def _delta_of(self, query: Query, group: str | None, begin: Cursor | None, *, skip_lost: bool) -> Delta:
        """Pin the messages behind a cursor, or behind a group's progress."""
        from cometmq.arrow.cursor import Cursor, plan_delta

        what = "start= a cursor" if group is None else "group"
        if query.keys or any(map(is_light_queue, query.topics)):
            raise InvalidArgument(
                f"keys and light queues (%LMQ%…) have no order of offsets: they cannot go with {what}"
            )
        if query.raw_bodies:
            raise InvalidArgument(f'compressed="raw" gives inner batches as one row each: it cannot go with {what}')
        if query.follow:
            raise InvalidArgument(
                f"follow has no end, and {what} reads up to the end of this moment: make scan after scan, with "
                "store.wait between them"
            )
        if group is None:
            return plan_delta(
                self._handle,
                query,
                begin or Cursor(),
                called="the cursor",
                skip_lost=skip_lost,
                is_topic=lambda name: name in self._topic_names(),
            )
        validate_group(group)
        if not query.topics:
            raise InvalidArgument("scan(group=) needs a topic, or several: a group's progress is kept by topic")
        progress = {
            (topic, queue_id): offset
            for topic in query.topics
            for queue_id, offset in self._group_book.progress(group, topic).items()
        }

        def commit(offsets: Mapping[tuple[str, int], int], before: Mapping[tuple[str, int], int]) -> None:
            self._handle.refresh()
            for (topic, queue_id), offset in offsets.items():
                self._check_offset(topic, queue_id, offset)
            self._commit_progress(group, offsets, expected=before)

        return plan_delta(
            self._handle,
            query,
            Cursor(progress),
            called=f"the group {group!r}",
            skip_lost=skip_lost,
            is_topic=lambda name: name in self._topic_names(),
            commit=commit,
        )


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
