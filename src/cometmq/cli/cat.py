"""``cometmq cat``: messages out of a store."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, BinaryIO

import typer

import cometmq
from cometmq._plural import counted
from cometmq.cli.arguments import (
    Config,
    End,
    FromTime,
    KeyFilter,
    QueueFilter,
    Start,
    StorePath,
    TagFilter,
    ToTime,
    WhereFilter,
    parse_time,
)
from cometmq.cli.failures import ExitCode, fail, reported
from cometmq.cli.formats import Encoder, Format, delimiter_of, encoder_of
from cometmq.errors import CorruptRecord, InvalidArgument, NotFound, OffsetOutOfRange

__all__ = ["cat"]

_WRITE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """The messages to read. Offsets are queue offsets, times milliseconds."""

    topic: str | None
    tags: str | None
    where: str | None
    queues: tuple[int, ...]
    start: int | None
    end: int | None
    start_time_ms: int | None
    end_time_ms: int | None

    def read(self, store: cometmq.Store, *, backwards: bool = False, follow: bool = False) -> cometmq.Reader:
        """Open a reader; with ``follow`` it says that it is at its end, and can be read on later."""
        return store.read(
            self.topic,
            tags=self.tags,
            where=self.where,
            queues=self.queues or None,
            start=self.start,
            end=self.end,
            start_time=self.start_time_ms,
            end_time=self.end_time_ms,
            backwards=backwards,
            follow=follow,
            timeout_s=0 if follow else None,
        )


@reported()
def cat(
    path: StorePath,
    topic: Annotated[str | None, typer.Argument(help="Topic (default: all topics).", show_default=False)] = None,
    output: Annotated[
        Format, typer.Option("--format", "-f", help="text: a line per message; json: JSON lines; raw: bodies.")
    ] = Format.TEXT,
    tags: TagFilter = None,
    where: WhereFilter = None,
    keys: KeyFilter = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Message by offset id or unique id; repeatable."),
    ] = None,
    queues: QueueFilter = None,
    start: Start = None,
    end: End = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="Maximum number of messages.")
    ] = None,
    backwards: Annotated[bool, typer.Option("--backwards", help="Print the newest message first.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, metavar="N", help="Print the newest N messages, in order.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for new messages until Ctrl-C.")] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", metavar="TEXT", help=r"Separator after each raw body; accepts \n, \t, \0.")
    ] = r"\n",
    config: Config = None,
) -> None:
    """Print messages as text, JSON lines or raw.

    Messages come in store order, oldest first.

    Text shows store time, queue, offset, tags, keys and the body with control characters escaped. JSON lines have every
    field; a body that is not UTF-8 is base64 (see body_encoding).

    Exit codes: 0 done, 2 usage error, 3 failed (stderr has the reason), 4 skipped damaged records,
    130 stopped by Ctrl-C, 141 output closed by its reader.

    \b
    Examples:
      cometmq cat data/ orders --tags "paid || shipped" --tail 20 --follow
      cometmq cat data/ orders --key o-17 --format json
      cometmq cat data/ orders --where "price > 10 AND region = 'eu'"
      cometmq cat data/ --from-time 10m
      cometmq cat data/ orders --format raw > bodies.txt
    """
    if keys and not all(keys):
        raise typer.BadParameter("--key must not be empty")
    if topic is None and (keys or queues):
        raise typer.BadParameter("--key and --queue need a TOPIC")
    if follow and backwards:
        raise typer.BadParameter("--follow and --backwards exclude each other")
    if where is not None and (keys or ids):
        raise typer.BadParameter("--where excludes --key and --id")
    query = _query(topic, (tags, where), queues, (start, end), (from_time, to_time))
    if topic is None and (query.start is not None or query.end is not None):
        raise typer.BadParameter("--start and --end with offsets need a TOPIC")
    out = _Output(sys.stdout.buffer, encoder_of(output, delimiter=delimiter_of(delimiter)), limit)
    with cometmq.open(path, mode="r", config=config) as store:
        if ids:
            out.write_all(_by_id(store, topic, one) for one in ids)
        elif keys:
            out.write_all(message for key in keys for message in _by_key(store, query, key, out, backwards=backwards))
        else:
            _print_read(store, query, out, backwards=backwards, tail=tail, follow=follow)
        out.flush()
    if out.damaged:
        fail(f"skipped {counted(out.damaged, 'damaged place')}; run `cometmq verify` to list them")
        raise typer.Exit(ExitCode.DAMAGED)


# --- The range to read


def _query(
    topic: str | None,
    filters: tuple[str | None, str | None],
    queues: list[int] | None,
    offsets: tuple[str | None, str | None],
    times: tuple[str | None, str | None],
) -> _Query:
    """Combine the options: a value of --start or --end that is not a number is a time."""
    bounds: list[int | None] = []
    moments: list[int | None] = []
    for place, time in zip(offsets, times, strict=True):
        is_offset = place is not None and place.isdecimal()
        if place is not None and not is_offset and time is not None:
            raise typer.BadParameter("--start and --end with times duplicate --from-time and --to-time: give one")
        bounds.append(int(place) if place is not None and is_offset else None)
        text = time if time is not None else None if is_offset else place
        moments.append(None if text is None else parse_time(text))
    return _Query(
        topic=topic,
        tags=filters[0],
        where=filters[1],
        queues=tuple(queues or ()),
        start=bounds[0],
        end=bounds[1],
        start_time_ms=moments[0],
        end_time_ms=moments[1],
    )


def _by_id(store: cometmq.Store, topic: str | None, message_id: str) -> cometmq.Message:
    """Find a message by either kind of id; the two look alike."""
    try:
        return store.get_by_id(message_id)
    except (NotFound, InvalidArgument, OffsetOutOfRange, CorruptRecord):
        pass  # then it may be a unique id, which producers make
    for name in store.topics(system=True) if topic is None else [topic]:
        found = store.find_unique(name, message_id)
        if found is not None:
            return found
    raise NotFound(f"no message with id {message_id}; a unique id can be found only while the index holds it")


def _by_key(
    store: cometmq.Store, query: _Query, key: str, out: _Output, *, backwards: bool
) -> Iterable[cometmq.Message]:
    """Find the messages with a key that fit the other filters, oldest first."""
    from cometmq._engine import KeySearch
    from cometmq.store.options import INT64_MAX, parse_tags

    assert query.topic is not None
    store.topic(query.topic)  # that there is such a topic
    wanted = frozenset(parse_tags(query.tags))
    begin = query.start_time_ms or 0
    until = INT64_MAX if query.end_time_ms is None else query.end_time_ms - 1
    found = KeySearch(store.handle, query.topic, key, begin_ms=begin, end_ms=until, only_queued=True)
    matching = (message for message in _sound(found, out) if _fits(query, wanted, message))
    return matching if backwards else reversed(list(matching))


def _fits(query: _Query, tags: frozenset[str], message: cometmq.Message) -> bool:
    return (
        (not tags or message.tags in tags)
        and (not query.queues or message.queue_id in query.queues)
        and (query.start is None or message.queue_offset >= query.start)
        and (query.end is None or message.queue_offset < query.end)
        and (query.start_time_ms is None or message.store_timestamp_ms >= query.start_time_ms)
        and (query.end_time_ms is None or message.store_timestamp_ms < query.end_time_ms)
    )


# --- Writing


class _Output:
    """Messages to bytes, in large writes; counts and stops at the limit."""

    def __init__(self, stream: BinaryIO, encode: Encoder, limit: int | None) -> None:
        self._stream = stream
        self._encode = encode
        self._left = limit
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.damaged = 0
        self.last_physical_offset = -1

    @property
    def full(self) -> bool:
        """True when no more was asked for."""
        return self._left is not None and self._left <= 0

    def write(self, message: cometmq.Message) -> None:
        """Write a message, unless the limit is reached."""
        if self.full:
            return
        data = self._encode(message)
        self._pending.append(data)
        self._pending_bytes += len(data)
        self.last_physical_offset = max(self.last_physical_offset, message.physical_offset)
        if self._left is not None:
            self._left -= 1
        if self._pending_bytes >= _WRITE_BYTES:
            self.flush()

    def write_all(self, messages: Iterable[cometmq.Message]) -> None:
        """Write messages up to the limit."""
        for message in messages:
            self.write(message)
            if self.full:
                break

    @contextmanager
    def passing_damage(self) -> Iterator[None]:
        """Name a damaged record on stderr and count it."""
        try:
            yield
        except CorruptRecord as error:
            self.damaged += 1
            place = "" if error.offset is None else f" at physical offset {error.offset}"
            fail(f"damaged record{place}: {error.reason}")

    def flush(self) -> None:
        """Write everything to the stream."""
        self._stream.write(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        self._stream.flush()


def _sound(reader: Iterable[cometmq.Message], out: _Output) -> Iterator[cometmq.Message]:
    """Iterate past damaged records, naming each. The reader goes on behind a failure."""
    while True:
        with out.passing_damage():
            yield from reader
            return


def _print_read(
    store: cometmq.Store, query: _Query, out: _Output, *, backwards: bool, tail: int | None, follow: bool
) -> None:
    if tail is not None:
        newest: list[cometmq.Message] = []
        if tail > 0:
            with query.read(store, backwards=True) as reader:
                for message in _sound(reader, out):
                    newest.append(message)
                    if len(newest) == tail:
                        break
        out.write_all(newest if backwards else reversed(newest))
        if follow and not out.full:
            _follow(store, query, out, skip_to_end=tail == 0)
    elif follow:
        _follow(store, query, out)
    else:
        with query.read(store, backwards=backwards) as reader:
            out.write_all(_sound(reader, out))


def _follow(store: cometmq.Store, query: _Query, out: _Output, *, skip_to_end: bool = False) -> None:
    """Print what is there beyond what was printed, and then what comes."""
    printed = store.handle.confirmed_end - 1 if skip_to_end else out.last_physical_offset
    with query.read(store, follow=True) as reader:
        while not out.full and not reader.ended:
            out.write_all(message for message in _sound(reader, out) if message.physical_offset > printed)
            out.flush()
            if not out.full and not reader.ended:
                store.wait(reader.seen_end)
