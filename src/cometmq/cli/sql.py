"""``cometmq sql``: SQL over a store's topics, by DuckDB."""

from __future__ import annotations

import json as json_text
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import cometmq
from cometmq._plural import counted
from cometmq.arrow.writing import (
    BytesAs,
    FileFormat,
    FileKind,
    OutputFile,
    file_kind,
    plain_rows,
    text_schema,
    texts,
    writer_of,
)
from cometmq.cli.arguments import BodyFormatOption, Config, Infer, Json, StorePath, decoding_options, parse_time
from cometmq.cli.failures import fail, reported
from cometmq.cli.terminal import interrupting, print_json, safe_text

if TYPE_CHECKING:
    from cometmq.arrow.sql import Answer

__all__ = ["sql"]

_CELL = 60
_TOPIC_NAME = re.compile(r"[%|\w-]+")


@reported()
def sql(
    path: StorePath,
    query: Annotated[str, typer.Argument(help='SQL, such as "select count(*) from orders" (-: stdin).')],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file: .parquet, .arrow, .csv, .jsonl."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Maximum rows to print.")] = 100,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B,…", help="Table columns, such as body,prop:region."),
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", metavar="EXPR", help='Filter tables by tags: "A || B".')] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="EXPR", help="Filter tables by properties: price > 10 (SQL92).")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", metavar="TIME", help="Earliest store time of the tables."),
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", metavar="TIME", help="End of the tables' store time range (exclusive).")
    ] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", metavar="[TOPIC=]SCHEMA", help='Decode bodies: "id bigint, total double"; repeatable.'
        ),
    ] = None,
    infer: Infer = False,
    body_format: BodyFormatOption = "json",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Query topics as DuckDB tables.

    Needs DuckDB: pip install 'duckdb>=2.0' pytz. Queries read the live log, without an export. Each topic is a table;
    `messages` holds all topics. Put names with characters other than letters, digits and _ in double quotes. Columns:
    topic, queue_id, queue_offset, body, tags, keys, born_timestamp, store_timestamp; a body is a blob, decode(body) is
    its text. With --schema or --infer the fields of bodies are columns instead; a field that does not fit is NULL. A
    query reads only the columns it names; --tags, --from-time and --to-time skip messages before reading them, and
    --where after reading their properties; a WHERE of the query filters rows.

    Exit codes: 0 done, 2 usage error, 3 failed (stderr has the reason), 130 stopped by Ctrl-C.

    \b
    Examples:
      cometmq sql data/ "select tags, count(*) from orders group by tags"
      cometmq sql data/ "select sum(octet_length(body)) from messages" --from-time 1d
      cometmq sql data/ 'select * from "%RETRY%mailer"' -o retries.parquet
      cometmq sql data/ "select decode(body) ->> 'city' as city, count(*) from orders group by city" --csv
      cometmq sql data/ "select city, sum(total) from orders group by city" --schema "city text, total double"
      cometmq sql data/ "copy (from orders) to 'orders.parquet'" --infer
    """
    from cometmq.arrow.sql import connect

    if csv + json + (output is not None) > 1:
        raise typer.BadParameter("--csv, --json and --output exclude each other")
    kind = None if output is None else _kind(output, overwrite=overwrite)
    text = sys.stdin.read() if query == "-" else query
    decoding = decoding_options(",".join(schema) if schema else None, infer=infer, body_format=body_format)
    with (
        cometmq.open(path, mode="r", config=config) as store,
        connect(
            store,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            tags=tags,
            where=where,
            start_time=None if from_time is None else parse_time(from_time),
            end_time=None if to_time is None else parse_time(to_time),
            schemas={None: "infer"} if infer else _schemas(schema or [], store.topics(system=True)),
            body_format=decoding.get("body_format", "json"),
        ) as database,
        interrupting(database.interrupt),
        database.run(text) as answer,
    ):
        for note in database.notes:
            fail(f"note: {note}")
        if output is not None and kind is not None:
            _write(output, kind, answer)
        elif csv:
            _print_csv(answer)
        elif json:
            print_json([row for batch in answer for row in _rows(batch)])
        else:
            _print_table(answer, rows)
        if database.bad_bodies:
            bodies = counted(database.bad_bodies, "body")
            fail(f"note: {bodies} did not fit the schema; values that do not fit are NULL")


def _schemas(given: list[str], topics: list[str]) -> dict[str | None, str]:
    """Return schemas by topic; None for the topics that are not named."""
    found: dict[str | None, str] = {}
    for text in given:
        name, sign, rest = text.partition("=")
        topic = name.strip() if sign and _TOPIC_NAME.fullmatch(name.strip()) else None
        if topic is not None and topic not in topics:
            raise typer.BadParameter(
                f"there is no topic {topic}; put a field's name that contains = in double quotes",
                param_hint="--schema",
            )
        if topic in found:
            raise typer.BadParameter(f"two schemas are for {topic or 'all other topics'}", param_hint="--schema")
        found[topic] = text if topic is None else rest
    return found


def _kind(path: Path, *, overwrite: bool) -> FileKind:
    kind = file_kind(path, None, None)
    if kind is None:
        raise typer.BadParameter(f"unsupported suffix of {path}: use .parquet, .arrow, .csv or .jsonl (also .gz, .zst)")
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"{path} already exists: choose another name or pass --overwrite")
    return kind


def _write(path: Path, kind: FileKind, answer: Answer) -> None:
    bytes_as = BytesAs.TEXT if kind.format.is_text else BytesAs.BINARY
    with OutputFile(path, kind, text_schema(answer.schema, bytes_as)) as file:
        for batch in answer:
            file.write(texts(batch, bytes_as))
        file.finish()
    typer.echo(f"wrote {counted(file.rows, 'row')} to {path}")


def _print_csv(answer: Answer) -> None:
    writer = writer_of(FileKind(FileFormat.CSV, "none"), sys.stdout.buffer, text_schema(answer.schema, BytesAs.TEXT))
    for batch in answer:
        writer.write(texts(batch, BytesAs.TEXT))
    writer.close()


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Return rows as JSON and tables show them: bytes and times as text."""
    yield from plain_rows(texts(batch, BytesAs.TEXT))


def _print_table(answer: Answer, most: int) -> None:
    names = list(answer.schema.names)
    if not names:
        typer.echo("done")
        return
    shown: list[list[str]] = []
    total = 0
    for batch in answer:
        if len(shown) < most:
            shown += [[_cell(row[name]) for name in names] for row in _rows(batch.slice(0, most - len(shown)))]
        total += batch.num_rows
    right = [_is_number(field.type) for field in answer.schema]
    widths = [max(map(len, [name, *(row[at] for row in shown)])) for at, name in enumerate(names)]
    for cells in ([safe_text(name) for name in names], ["-" * width for width in widths], *shown):
        line = "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        )
        typer.echo(line.rstrip())
    left_out = f", {len(shown):,} shown; use --rows, --csv, --json or -o for more" if total > len(shown) else ""
    typer.echo(f"({counted(total, 'row')}{left_out})")


def _cell(value: Any) -> str:
    text = "NULL" if value is None else value if isinstance(value, str) else json_text.dumps(value, default=str)
    text = safe_text(text)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
