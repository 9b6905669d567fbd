"""Options that say what messages are made of, and the input that they are made from.

Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from cometmq.cli.lines import check_file, read_bodies, skipping
from cometmq.cli.records import InputFormat, RecordOptions, format_of, messages_of

if TYPE_CHECKING:
    from cometmq.admin import OutgoingMessage
    from cometmq.cli.terminal import Interruption

__all__ = [
    "Body",
    "DelayLevel",
    "Header",
    "InputKind",
    "KeyColumn",
    "Keys",
    "Null",
    "Properties",
    "QueueId",
    "ShardColumn",
    "ShardingKey",
    "Skip",
    "TagColumn",
    "Tags",
    "Texts",
    "columns_of",
    "delay_text",
    "made_messages",
]

Texts: TypeAlias = Annotated[
    list[str] | None, typer.Option("--text", "-t", metavar="TEXT", help="Text of a message; repeatable.")
]
InputKind: TypeAlias = Annotated[
    InputFormat | None,
    typer.Option(
        "--format",
        help="lines, csv, jsonl (a message each), messages (whole messages as JSON), file (whole file); "
        "default: by suffix.",
    ),
]
Body: TypeAlias = Annotated[
    str, typer.Option("--body", metavar="line|json|COLUMN", help="Body column; json: the whole row.")
]
Tags: TypeAlias = Annotated[str | None, typer.Option("--tags", metavar="TAG", help="Tag of all messages.")]
TagColumn: TypeAlias = Annotated[
    str | None, typer.Option("--tag-column", metavar="COLUMN", help="Column with the tag.")
]
Keys: TypeAlias = Annotated[
    str | None, typer.Option("--keys", metavar="KEYS", help="Keys of all messages, separated by spaces.")
]
KeyColumn: TypeAlias = Annotated[
    str | None, typer.Option("--key-column", metavar="COLUMN", help="Column with the keys; repeatable.")
]
ShardingKey: TypeAlias = Annotated[
    str | None, typer.Option("--sharding-key", metavar="KEY", help="Sharding key: all messages to one queue.")
]
ShardColumn: TypeAlias = Annotated[
    str | None,
    typer.Option("--shard-column", metavar="COLUMN", help="Column with the sharding key (one queue per value)."),
]
Null: TypeAlias = Annotated[
    str, typer.Option("--null", metavar="TEXT", help="Column value treated as missing, like an empty one.")
]
Header: TypeAlias = Annotated[
    str | None,
    typer.Option("--header", metavar="NAME,NAME", help="Column names of CSV without a header row."),
]
Skip: TypeAlias = Annotated[
    int, typer.Option("--skip", min=0, metavar="N", help="Skip the first N lines of each input.")
]
Properties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of all messages; repeatable."),
]
_DELAY_LEVELS_DEFAULT = 18
_LEVELS = "1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h"
DelayLevel: TypeAlias = Annotated[
    int,
    typer.Option(
        "--delay-level",
        min=0,
        max=_DELAY_LEVELS_DEFAULT,
        metavar="N",
        help=f"Delay level: 1 to {_DELAY_LEVELS_DEFAULT} are {_LEVELS} by default; further levels of a broker: "
        "-p DELAY=N. Or use --delay-ms.",
    ),
]
QueueId: TypeAlias = Annotated[
    int | None, typer.Option("--queue", "-q", min=0, metavar="N", help="Send all messages to this queue.")
]

_READ_LINES = 4096


def columns_of(header: str | None) -> tuple[str, ...] | None:
    """Return what ``--header`` says: names with commas between them.

    Raises:
        typer.BadParameter: a name is empty, or there twice.
    """
    if header is None:
        return None
    names = tuple(name.strip() for name in header.split(","))
    if not all(names) or len({*names}) < len(names):
        raise typer.BadParameter(f"--header {header!r} is not a list of distinct names separated by commas")
    return names


def delay_text(level: int) -> str:
    """Return the text that names a delay level; empty for 0, which means none or several."""
    return f", level {level}" if level else ""


def made_messages(
    texts: list[str] | None,
    files: list[str] | None,
    kind: InputFormat | None,
    options: RecordOptions,
    interruption: Interruption,
    *,
    skip: int = 0,
) -> Iterator[list[OutgoingMessage]]:
    """Make messages of texts and files, or of standard input if neither is given.

    Invalid options fail at once; only errors of reading come from the iterator.

    Args:
        texts: a message each.
        files: names; ``-`` is standard input.
        kind: the files' format; None to go by their names.
        options: how messages are made from a row.
        interruption: Ctrl-C interrupts waiting for input.
        skip: how many lines of each file are left out.

    Raises:
        typer.BadParameter: a text has columns; in the iterator: a column is named that is not there.
        OSError: a file cannot be read.
        InvalidArgument: in the iterator: a broken line; those before it came.
    """
    if texts and (options.columns or options.body != "line"):
        raise typer.BadParameter("--text has no columns: give a file")
    sources = [(name, kind or format_of(name)) for name in files or ([] if texts else ["-"])]
    if skip and any(one is InputFormat.FILE for _, one in sources):
        raise typer.BadParameter("--skip needs lines; --format file has none")
    for name, _ in sources:
        check_file(name)
    return _made(texts or [], sources, options, interruption, skip)


def _made(
    texts: list[str],
    sources: list[tuple[str, InputFormat]],
    options: RecordOptions,
    interruption: Interruption,
    skip: int,
) -> Iterator[list[OutgoingMessage]]:
    if texts:
        lines = [text.encode() for text in texts]
        yield from messages_of(iter([lines]), InputFormat.LINES, options, source="--text")
    for name, kind in sources:
        whole_file = kind is InputFormat.FILE
        batches = skipping(read_bodies([name], interruption, whole_file=whole_file, batch=_READ_LINES), skip)
        source = "standard input" if name == "-" else name
        yield from messages_of(batches, kind, options, source=f"{source} behind {skip:,} lines" if skip else source)
