"""``cometmq export``: messages into Parquet, Arrow, CSV or JSON lines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import cometmq
from cometmq._plural import counted
from cometmq.arrow.writing import BytesAs, FileFormat, FileKind, file_kind
from cometmq.cli.arguments import (
    BodyFormatOption,
    Config,
    End,
    FromTime,
    Infer,
    Json,
    KeyFilter,
    QueueFilter,
    Schema,
    Start,
    StorePath,
    TagFilter,
    ToTime,
    WhereFilter,
    decoding_options,
    parse_bound,
    parse_bytes,
)
from cometmq.cli.failures import ExitCode, fail, reported
from cometmq.cli.terminal import bytes_text, interruptible, print_json, row_progress

if TYPE_CHECKING:
    from cometmq.arrow.bodies import BodyDecoder
    from cometmq.arrow.exporting import ExportReport, PartitionBy
    from cometmq.arrow.scan import Query

__all__ = ["export"]

_OTHER_FORMATS = frozenset(
    (
        ".avro",
        ".bz2",
        ".db",
        ".duckdb",
        ".gz",
        ".json",
        ".lz4",
        ".orc",
        ".sqlite",
        ".tar",
        ".tsv",
        ".txt",
        ".xls",
        ".xlsx",
        ".xml",
        ".xz",
        ".zip",
        ".zst",
    )
)
"""Suffixes of files, of formats that cannot be written; any other name is a folder's, such as ``orders.daily``."""


@reported()
def export(
    path: StorePath,
    topics: Annotated[list[str] | None, typer.Argument(help="Topics (default: all).", show_default=False)] = None,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="Output file (format by suffix) or folder of parts.")
    ],
    format: Annotated[
        FileFormat | None,
        typer.Option("--format", "-f", help="Format (default: by suffix; parquet for a folder).", show_default=False),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B,…", help="Columns, such as queue_offset,body,prop:region."),
    ] = None,
    tags: TagFilter = None,
    where: WhereFilter = None,
    keys: KeyFilter = None,
    queues: QueueFilter = None,
    start: Start = None,
    end: End = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of messages.")
    ] = None,
    body: Annotated[
        BytesAs | None,
        typer.Option("--body", help="Body type (default: text in csv and jsonl, else binary)."),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option("--compression", metavar="NAME", help="Compression: none, zstd, gzip, … (parquet: zstd)."),
    ] = None,
    part_size: Annotated[
        str, typer.Option("--part-size", metavar="BYTES", help="Maximum size of a part in a folder.")
    ] = "256M",
    raw_bodies: Annotated[
        bool, typer.Option("--raw-bodies", help="Keep compressed bodies and inner batches as stored.")
    ] = False,
    check_crc: Annotated[bool, typer.Option("--check-crc", help="Verify each body's CRC.")] = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Skip damaged records instead of stopping.")
    ] = False,
    schema: Schema = None,
    infer: Infer = False,
    body_format: BodyFormatOption = "json",
    partition_by: Annotated[
        str | None,
        typer.Option("--partition-by", metavar="A,B,…", help="Hive folders: day (UTC), topic, queue_id."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted export in this folder.")] = False,
    since_last: Annotated[
        bool, typer.Option("--since-last", help="Add the messages since the last run, or begin the first one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file or export.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Export messages to Parquet, Arrow, CSV or JSON lines.

    A file appears under its name once it is complete. A folder gets complete parts (part-00000.parquet, …); after
    Ctrl-C, a crash or a full disk, --resume continues behind the last part, with each message exactly once. The export
    covers the messages in the store when it begins: --resume of a complete export says so and exports nothing;
    --since-last completes it and adds the messages since then, with the same options each time.

    Exit codes: 0 done, 2 usage error, 3 failed (stderr has the reason), 4 skipped damaged records,
    130 stopped by Ctrl-C.

    \b
    Examples:
      cometmq export data/ orders -o orders.parquet
      cometmq export data/ orders --tags "paid || shipped" --from-time 1d -o orders.csv
      cometmq export data/ orders --where "price > 10 AND region = 'eu'" -o orders.parquet
      cometmq export data/ -o everything/ --part-size 1G
      cometmq export data/ -o everything/ --part-size 1G --resume
      cometmq export data/ orders --columns queue_offset,body,prop:region -o orders.jsonl.gz
      cometmq export data/ orders --schema "id bigint, total double" -o orders.parquet
      cometmq export data/ orders -o lake/ --partition-by day --since-last
    """
    from cometmq.arrow.exporting import STATE_NAME, Exporter, stored_schema

    kind = file_kind(output, format, compression)
    if kind is None and output.suffix.lower() in _OTHER_FORMATS and not output.is_dir():
        raise typer.BadParameter(
            f"unsupported suffix of {output}: use .parquet, .arrow, .csv or .jsonl (also .gz, .zst); for a folder of "
            "this name pass --format",
            param_hint="--output",
        )
    if since_last and (resume or overwrite):
        raise typer.BadParameter(
            "--since-last excludes --resume and --overwrite: it does what --resume does, then more"
        )
    is_folder = output.is_dir() or kind is None or file_kind(output, None, None) is None
    if (since_last or partition_by is not None) and not is_folder:
        name = "--since-last" if since_last else "--partition-by"
        raise typer.BadParameter(f"{output} is a file: {name} needs a folder, with --format for its files")
    to_folder = is_folder or resume
    if kind is None:
        kind = file_kind(output, FileFormat.PARQUET, compression)
        assert kind is not None
    partitions = _partitions(partition_by)
    decoding = decoding_options(schema, infer=infer, body_format=body_format)
    bytes_as = body or (BytesAs.TEXT if kind.format.is_text else BytesAs.BINARY)
    began = time.monotonic()
    with (
        interruptible() as interrupted,
        cometmq.open(path, mode="r", config=config) as store,
        row_progress("exporting") as bar,
    ):
        if infer and (resume or since_last):
            # The folder's files have the schema that was inferred for the first of them.
            decoding["schema"] = stored_schema(output) or decoding["schema"]
        query, decoder = _query(
            store,
            topics,
            bounds=(parse_bound(start, from_time), parse_bound(end, to_time)),
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            tags=tags,
            where=where,
            keys=keys,
            queues=queues,
            limit=limit,
            compressed="raw" if raw_bodies else "decompress",
            on_corrupt="skip" if skip_damaged else "fail",
            check_crc=check_crc,
            **decoding,
        )
        exporter = Exporter(
            store.handle,
            query,
            kind,
            bytes_as=bytes_as,
            part_bytes=parse_bytes(part_size),
            decoder=decoder,
            partition_by=partitions,
            stopped=interrupted.is_set,
            progress=bar,
        )
        try:
            if to_folder:
                report = exporter.to_folder(output, resume=resume, since_last=since_last, overwrite=overwrite)
            else:
                report = exporter.to_file(output, overwrite=overwrite)
        except (cometmq.CorruptRecord, OSError) as error:
            if isinstance(error, cometmq.CorruptRecord):
                fail("use --skip-damaged to skip damaged records")
            if to_folder and (output / STATE_NAME).exists():
                fail("complete parts are kept; use --resume to continue")
            raise
    report.elapsed_s = round(time.monotonic() - began, 3)
    _say(report, kind, as_json=json, to_folder=to_folder, since_last=since_last)


def _partitions(text: str | None) -> list[PartitionBy]:
    from cometmq.arrow.exporting import PartitionBy

    names = [] if text is None else [name.strip() for name in text.split(",")]
    known = [one.value for one in PartitionBy]
    for name in names:
        if name not in known:
            raise typer.BadParameter(
                f"{name!r} is not {', '.join(known[:-1])} or {known[-1]}", param_hint="--partition-by"
            )
    return [PartitionBy(name) for name in names]


def _query(
    store: cometmq.Store,
    topics: list[str] | None,
    *,
    bounds: tuple[tuple[int | None, int | None], tuple[int | None, int | None]],
    **options: Any,
) -> tuple[Query, BodyDecoder | None]:
    """Return the columns in the form for files, and the decoder of bodies."""
    from dataclasses import replace

    from cometmq.arrow.columns import plain

    (start, start_time), (end, end_time) = bounds
    scan = store.scan(
        topics or None, start=start, end=end, start_time=start_time, end_time=end_time, body="binary", **options
    )
    return replace(scan.query, columns=plain(scan.query.columns)), scan.decoder


def _say(report: ExportReport, kind: FileKind, *, as_json: bool, to_folder: bool, since_last: bool) -> None:
    if as_json:
        print_json({**_fields(report), "compression": kind.compression})
    elif report.was_complete:
        there = f"{counted(report.messages, 'message')} in {counted(len(report.parts), 'file')}"
        if since_last:
            typer.echo(f"up to date: no messages were stored since the last run; {report.output} has {there}")
        else:
            typer.echo(
                f"nothing to resume: the export in {report.output} is complete ({there}); --since-last adds the "
                "messages stored since then"
            )
    else:
        what = "exported" if report.complete else "stopped after"
        if since_last and report.resumed and report.complete:
            what = f"added {counted(report.added, 'message')} to"
        files = f" in {counted(len(report.parts), 'file')}" if to_folder else ""
        typer.echo(
            f"{what} {counted(report.messages, 'message')} ({bytes_text(report.bytes)}){files} to {report.output}, "
            f"{kind.format.value}, compression {kind.compression}, in {report.elapsed_s:.1f} s"
        )
    if report.expired:
        fail(f"warning: {counted(report.expired, 'message')} expired before the export reached them and are in no file")
    if report.clamped_times:
        times = counted(report.clamped_times, "time")
        fail(f"warning: {times} outside 0001-01-02 to 9999-12-30 became the nearest inside")
    if report.bad_bodies:
        bodies = counted(report.bad_bodies, "body")
        fail(f"warning: {bodies} of this run did not fit the schema; values that do not fit are null")
    if not report.complete:
        way = (
            "use --resume to continue"
            if to_folder
            else "nothing was written; only an export to a folder can be resumed"
        )
        fail(f"the export is incomplete: {way}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if report.skipped:
        fail(f"skipped {counted(report.skipped, 'damaged record')}; run `cometmq verify` to list them")
        raise typer.Exit(ExitCode.DAMAGED)


def _fields(report: ExportReport) -> dict[str, Any]:
    return {
        "output": str(report.output),
        "format": report.format,
        "complete": report.complete,
        "resumed": report.resumed,
        "was_complete": report.was_complete,
        "messages": report.messages,
        "added": report.added,
        "bytes": report.bytes,
        "parts": [{"name": part.name, "rows": part.rows, "bytes": part.bytes} for part in report.parts],
        "skipped": report.skipped,
        "expired": report.expired,
        "clamped_times": report.clamped_times,
        "bad_bodies": report.bad_bodies,
        "elapsed_s": report.elapsed_s,
    }
