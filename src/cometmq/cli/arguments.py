"""Arguments and options that several commands have, and the values behind them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

__all__ = [
    "BodyFormatOption",
    "Config",
    "End",
    "FromTime",
    "Infer",
    "Json",
    "KeyFilter",
    "QueueFilter",
    "Schema",
    "Start",
    "StorePath",
    "TagFilter",
    "ToTime",
    "decoding_options",
    "parse_bound",
    "parse_bytes",
    "parse_time",
]

StorePath: TypeAlias = Annotated[
    Path,
    # Whether it can be read is said by the store, with the exit code of a store that cannot be used.
    typer.Argument(help="Store directory (the one that contains commitlog).", show_default=False, readable=False),
]
Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="broker.properties or cometmq.toml with the store's file sizes.",
        show_default=False,
    ),
]
TagFilter: TypeAlias = Annotated[str | None, typer.Option("--tags", metavar="EXPR", help='Filter by tags: "A || B".')]
WhereFilter: TypeAlias = Annotated[
    str | None, typer.Option("--where", metavar="EXPR", help="SQL92 filter over properties: price > 10.")
]
KeyFilter: TypeAlias = Annotated[
    list[str] | None, typer.Option("--key", "--keys", metavar="KEY", help="Filter by key; repeatable.")
]
QueueFilter: TypeAlias = Annotated[
    list[int] | None, typer.Option("--queue", "-q", metavar="N", help="Read only this queue; repeatable.")
]
Start: TypeAlias = Annotated[
    str | None, typer.Option("--start", metavar="OFFSET|TIME", help="First queue offset or store time.")
]
End: TypeAlias = Annotated[
    str | None, typer.Option("--end", metavar="OFFSET|TIME", help="End (exclusive): queue offset or store time.")
]
FromTime: TypeAlias = Annotated[
    str | None,
    typer.Option("--from-time", metavar="TIME", help="Earliest store time: 2026-11-21T14:00, or an age (10m)."),
]
ToTime: TypeAlias = Annotated[
    str | None, typer.Option("--to-time", metavar="TIME", help="End of the store time range (exclusive).")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

Schema: TypeAlias = Annotated[
    str | None, typer.Option("--schema", metavar="SCHEMA", help='Decode bodies: "id bigint, total double".')
]
Infer: TypeAlias = Annotated[
    bool, typer.Option("--infer", help="Decode JSON bodies by a schema inferred from a sample.")
]
BodyFormatOption: TypeAlias = Annotated[
    str, typer.Option("--body-format", metavar="FORMAT", help="Format of bodies: json, csv (default json).")
]

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_AGO = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str) -> int:
    """Return a time in milliseconds since 1970.

    Args:
        text: ISO 8601 (``2026-11-21``, ``2026-11-21T14:00``, with ``Z`` or an offset; else local time), milliseconds
            since 1970, or how long ago (``90s``, ``10m``, ``2h``, ``1d``).

    Raises:
        typer.BadParameter: none of these.
    """
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return int(time.time() * 1000) - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is not a time: use 2026-11-21T14:00, milliseconds since 1970, or an age such as 10m"
        ) from None


def decoding_options(schema: str | None, *, infer: bool, body_format: str) -> dict[str, Any]:
    """Return the arguments of ``Store.scan`` for decoded bodies; none where they are not decoded.

    Raises:
        typer.BadParameter: the options exclude each other.
    """
    if infer and schema is not None:
        raise typer.BadParameter("--schema and --infer exclude each other")
    if infer and body_format != "json":
        raise typer.BadParameter("--infer is for JSON: CSV lines have no names; give --schema")
    if schema is None and not infer:
        if body_format != "json":
            raise typer.BadParameter("--body-format is about decoded bodies: give --schema")
        return {}
    return {"schema": "infer" if schema is None else schema, "body_format": body_format, "on_bad_body": "null"}


def parse_bound(place: str | None, moment: str | None) -> tuple[int | None, int | None]:
    """Return what ``--start`` and ``--from-time`` (or the ends) say: a queue offset, a time in milliseconds.

    Args:
        place: an offset, or a time.
        moment: a time.

    Raises:
        typer.BadParameter: two times.
    """
    is_offset = place is not None and place.isdecimal()
    if place is not None and not is_offset and moment is not None:
        raise typer.BadParameter("--start and --end with times duplicate --from-time and --to-time: give one")
    time = moment if moment is not None else None if is_offset else place
    return int(place) if place is not None and is_offset else None, None if time is None else parse_time(time)


def parse_bytes(text: str) -> int:
    """Return a number of bytes: ``268435456``, ``256M``, ``256MiB``, ``1.5G``.

    Raises:
        typer.BadParameter: it is not a number, or less than one.
    """
    found = _BYTES.fullmatch(text.strip())
    size = 0 if found is None else int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
    if size < 1:
        raise typer.BadParameter(f"{text!r} is not a size: use bytes, or 256M, 1.5G")
    return size
