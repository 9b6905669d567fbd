"""``cometmq message``: messages of a cluster, sent and found."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq._plural import counted
from cometmq.cli.arguments import FromTime, Json, ToTime, parse_time
from cometmq.cli.failures import ExitCode, fail, reported, usage
from cometmq.cli.making import (
    Body,
    DelayLevel,
    Header,
    InputKind,
    KeyColumn,
    Keys,
    Null,
    Properties,
    QueueId,
    ShardColumn,
    ShardingKey,
    Skip,
    TagColumn,
    Tags,
    Texts,
    columns_of,
    delay_text,
    made_messages,
)
from cometmq.cli.records import RecordOptions
from cometmq.cli.remote import BrokerAddress, BrokerName, Namesrv, connected, group_of, pairs_of
from cometmq.cli.terminal import (
    Bar,
    bytes_text,
    count_progress,
    interruptible,
    print_json,
    safe_text,
    time_text,
)
from cometmq.errors import ConnectionLost, CorruptRecord, InvalidArgument, NotFound

if TYPE_CHECKING:
    import cometmq
    from cometmq.admin import OutgoingMessage, Sender, SendReport, TraceRecord

__all__ = ["message_commands"]

message_commands = group_of("message", "Messages of a cluster: send, get, find, trace, peek.")

_Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]


# --- Sending ----------------------------------------------------------------------------------------------------------


@message_commands.command("send")
@reported()
def send(
    topic: Annotated[str, typer.Argument(help="Topic; created if the broker allows it.", show_default=False)],
    texts: Texts = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="FILE", help="Input file (default or -: stdin); repeatable."),
    ] = None,
    input_format: InputKind = None,
    body: Body = "line",
    tags: Tags = None,
    tag_column: TagColumn = None,
    keys: Keys = None,
    key_column: KeyColumn = None,
    sharding_key: ShardingKey = None,
    shard_column: ShardColumn = None,
    null: Null = "",
    header: Header = None,
    skip: Skip = 0,
    properties: Properties = None,
    delay_level: DelayLevel = 0,
    queue: QueueId = None,
    broker_name: BrokerName = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=4096, metavar="N", help="Maximum messages per request.")
    ] = 1000,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=1024, metavar="N", help="Maximum requests in flight.")
    ] = 8,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Send messages from texts, lines, CSV rows, JSON lines or whole files.

    Slow input is sent as it arrives. Only acknowledged messages are counted; the broker's flush mode says how durable
    they are. A failed request is retried up to twice, on another broker where its messages allow it; the summary names
    messages that may be stored twice.

    Exit codes: 0 all acknowledged, 2 usage error, 3 failed (stderr has the reason and the number acknowledged),
    130 stopped by Ctrl-C; the counted messages are acknowledged.

    \b
    Examples:
      cometmq message send orders --text hello --tags paid --keys "o-17 c-3"
      seq 1000 | cometmq message send numbers
      cometmq message send flights --file flights.csv --tag-column carrier --key-column tailnum --shard-column tailnum
      cometmq message send events --file events.jsonl --body payload --broker 127.0.0.1:10911 --json
    """
    options = RecordOptions(
        body=body,
        tags=tags,
        keys=keys,
        sharding_key=sharding_key,
        tag_column=tag_column,
        key_column=key_column,
        shard_column=shard_column,
        null=null,
        header=columns_of(header),
        properties=dict(pairs_of(properties, "--property")) or None,
        delay_level=delay_level,
        queue_id=queue,
    )
    import cometmq.admin
    from cometmq.store_config.names import validate_topic

    with usage():
        validate_topic(topic)
    limits = cometmq.admin.SendLimits(batch_messages=batch, in_flight=in_flight)
    with interruptible() as interruption:
        made = made_messages(texts, files, input_format, options, interruption, skip=skip)
        with connected(namesrv, broker) as admin, count_progress("sent", "messages") as bar:
            sender = admin.messages.sender(topic, broker_name=broker_name, limits=limits)
            with _reporting(sender, json=json, bar=bar, delay_level=delay_level) as counter:
                for messages in made:
                    counter.put(messages)


class _Counter:
    """Puts messages into a sender, and counts what was put."""

    def __init__(self, sender: Sender, bar: Bar) -> None:
        self._sender = sender
        self._bar = bar
        self.put_messages = 0

    def put(self, messages: list[OutgoingMessage]) -> None:
        self.put_messages += len(messages)
        self._sender.put(messages)
        self._bar(self._sender.messages)


@contextlib.contextmanager
def _reporting(sender: Sender, *, json: bool, bar: Bar, delay_level: int) -> Iterator[_Counter]:
    """Run a sender; print what was acknowledged, however it ends."""
    counter = _Counter(sender, bar)
    entered = False
    try:
        with sender:
            entered = True
            yield counter
        bar(sender.messages)
    finally:
        if entered:
            report = sender.report()
            is_whole = sys.exc_info()[0] is None
            if json:
                print_json(report)
            elif report.messages or is_whole or sys.exc_info()[0] is KeyboardInterrupt:
                _print_report(report, delay_level=delay_level)
            if counter.put_messages > report.messages:
                missing = counter.put_messages - report.messages
                fail(f"{missing:,} of the messages read {'was' if missing == 1 else 'were'} not acknowledged")


def _print_report(report: SendReport, *, delay_level: int) -> None:
    rate = (
        f", {report.messages / report.elapsed_s:,.0f} per second" if report.messages and report.elapsed_s >= 1 else ""
    )
    size = bytes_text(report.body_bytes)
    requests = counted(report.requests, "request")
    typer.echo(f"sent {counted(report.messages, 'message')} ({size}) to {safe_text(report.topic)} in {requests}{rate}")
    for one in report.queues:
        offsets = f"offsets {one.first:,} to {one.last:,}" if one.last > one.first else f"offset {one.first:,}"
        where = f"{safe_text(one.broker_name)} queue {one.queue_id}"
        typer.echo(f"  {where}: {counted(one.messages, 'message')}, queue {offsets}")
    if report.delayed:
        typer.echo(f"  {counted(report.delayed, 'message')}: delayed{delay_text(delay_level)}")
    if report.maybe_twice:
        twice = counted(report.maybe_twice, "message")
        typer.echo(f"  {twice} may be stored twice: the first attempt got no response")
    if report.not_durable:
        typer.echo(f"  {counted(report.not_durable, 'message')} stored, but not flushed or replicated in time")


# --- Finding ----------------------------------------------------------------------------------------------------------


def _document(message: cometmq.Message) -> dict[str, object]:
    """A message as ``cometmq cat`` shows it, and who stored it."""
    body = message.body_bytes
    try:
        text, encoding = body.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode("ascii"), "base64"
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "message_id": message.message_id,
        "unique_id": message.unique_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": message.properties,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_host": ":".join(map(str, message.store_host)),
        "born_host": ":".join(map(str, message.born_host)),
        "reconsume_times": message.reconsume_times,
        "body_bytes": len(body),
        "body_encoding": encoding,
        "body": text,
    }


def _line(message: cometmq.Message) -> str:
    place = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
    tags = f" [{message.tags}]" if message.tags else ""
    keys = f" ({' '.join(message.keys)})" if message.keys else ""
    body = _document(message)["body"]
    return safe_text(f"{time_text(message.store_timestamp_ms)} {place}{tags}{keys} {body}")


def _print_messages(messages: Iterable[cometmq.Message], *, json: bool, raw: bool) -> None:
    found = list(messages)
    if json:
        print_json([_document(message) for message in found])
    elif raw:
        for message in found:
            sys.stdout.buffer.write(message.body_bytes + b"\n")
        sys.stdout.buffer.flush()
    else:
        for message in found:
            typer.echo(_line(message))


_Raw = Annotated[bool, typer.Option("--raw", help="Print only the body and a line end.")]


@message_commands.command("get")
@reported()
def get(
    message_id: Annotated[
        str | None, typer.Argument(help="Offset message id, or a unique id with --topic.", show_default=False)
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Topic of the message.")] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", min=0, metavar="N", help="Queue id, with --offset.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, metavar="N", help="Queue offset, with --queue.")
    ] = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
    raw: _Raw = False,
) -> None:
    """Print a message by id, or by queue and offset.

    Exit codes: 0 found, 2 usage error, 3 not found, or the look-up failed, 4 damaged.

    \b
    Examples:
      cometmq message get 7F00000100002A9F0000000000001000
      cometmq message get 7F0000011A2B18B4AAC24E1F3C9D0000 --topic orders
      cometmq message get --topic orders --queue 3 --offset 1200
    """
    with connected(namesrv, broker) as admin, _naming_damage() as damaged:
        found: tuple[cometmq.Message, ...]
        if message_id is not None and queue is None and offset is None:
            messages = admin.messages
            if topic is None:
                try:
                    found = (messages.by_id(message_id),)
                except (InvalidArgument, NotFound, ConnectionLost) as error:
                    # An address and an offset are in an offset message id, and any 32 digits look like both.
                    fail(f"{error}; for a unique id pass --topic: get {message_id} --topic T")
                    raise typer.Exit(ExitCode.FAILED) from None
            else:
                found = messages.by_unique_id(topic, message_id, damaged=damaged)
        elif message_id is None and topic is not None and queue is not None and offset is not None:
            found = (admin.messages.at(topic, queue, offset, broker_name=broker_name),)
        else:
            raise typer.BadParameter("give an id, or --topic, --queue and --offset")
        what = f"id {message_id}"
        if message_id is not None and topic is not None:
            what = f"unique id {message_id} in topic {topic}; an offset message id is looked up without --topic"
        _print_found(found, damaged, json=json, raw=raw, what=what)


@contextlib.contextmanager
def _naming_damage() -> Iterator[list[CorruptRecord]]:
    """Name the messages that are damaged, those in the list and one that is raised, and end with exit code 4."""
    damaged: list[CorruptRecord] = []
    try:
        yield damaged
    except CorruptRecord as error:
        damaged.append(error)
    for one in damaged:
        fail(f"damaged record at physical offset {one.offset}: {one.reason}")
    if damaged:
        raise typer.Exit(ExitCode.DAMAGED)


def _print_found(
    found: tuple[cometmq.Message, ...], damaged: Sequence[CorruptRecord], *, json: bool, raw: bool, what: str
) -> None:
    _print_messages(found, json=json, raw=raw)
    if not found and not damaged:
        fail(f"no message with the {what}")
        raise typer.Exit(ExitCode.FAILED)


def _span_of(from_time: str | None, to_time: str | None) -> tuple[int, int]:
    """Return the first and the last millisecond of a span of store times."""
    from cometmq.store_config.fields import INT64_MAX

    return (
        0 if from_time is None else parse_time(from_time),
        INT64_MAX if to_time is None else parse_time(to_time) - 1,
    )


@message_commands.command("find")
@reported()
def find(
    topic: _Topic,
    key: Annotated[str | None, typer.Argument(help="Message key.", show_default=False)] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Tag instead of a key (RocketMQ since 5.4).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum messages per broker.")] = 64,
    from_time: FromTime = None,
    to_time: ToTime = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
    raw: _Raw = False,
) -> None:
    """Print a topic's messages with a key or a tag, oldest first.

    Exit codes: 0 found, 2 usage error, 3 none found, or the look-up failed, 4 damaged messages were passed over.

    \b
    Examples:
      cometmq message find flights N14228
      cometmq message find orders o-17 --from-time 1d --json
      cometmq message find orders --tag paid
    """
    if (key is None) == (tag is None):
        raise typer.BadParameter("give a key, or --tag")
    begin_ms, end_ms = _span_of(from_time, to_time)
    with connected(namesrv, broker) as admin, _naming_damage() as damaged:
        look_up = admin.messages.by_key if tag is None else admin.messages.by_tag
        wanted = key if tag is None else tag
        found = look_up(topic, wanted or "", limit=limit, begin_ms=begin_ms, end_ms=end_ms, damaged=damaged)
        _print_found(found, damaged, json=json, raw=raw, what=f"{'key' if tag is None else 'tag'} {wanted}")


_CONTEXT_CODES = ("ok", "over the time", "exception", "no answer", "failed")
_STATES = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back", "UNKNOW": "unknown"}


def _trace_line(record: TraceRecord) -> str:
    """One line for a record, as ``2026-11-28 10:00:00.000 sent to orders by shop ...``."""
    from cometmq.admin import EndTransactionTrace, PubTrace, RecallTrace, SubBeforeTrace

    when = "" if record.timestamp_ms is None else f"{time_text(record.timestamp_ms)} "
    outcome = "" if isinstance(record, SubBeforeTrace | EndTransactionTrace) or record.is_success else ", failed"
    if isinstance(record, PubTrace):
        host = f" from {record.client_host}" if record.client_host else ""
        size = bytes_text(record.body_bytes)
        what = f"sent to {record.topic} by {record.group}{host}: {record.store_host}, {size}, {record.cost_ms} ms"
    elif isinstance(record, SubBeforeTrace):
        what = f"given to {record.group}, retry {record.retry_times}"
    elif isinstance(record, EndTransactionTrace):
        why = " after a check" if record.is_from_check else ""
        what = f"transaction {_STATES.get(record.state, record.state)} by {record.group}{why}: {record.store_host}"
    elif isinstance(record, RecallTrace):
        what = f"recalled by {record.group}"
    else:
        known = 0 <= record.context_code < len(_CONTEXT_CODES)
        how = _CONTEXT_CODES[record.context_code] if known else str(record.context_code)
        what, outcome = f"consumed by {record.group or 'a group'}: {how}, {record.cost_ms} ms", ""
    return safe_text(f"{when}{what}{outcome}")


@message_commands.command("trace")
@reported()
def trace(
    unique_id: Annotated[str, typer.Argument(help="Unique id of the message.", show_default=False)],
    trace_topic: Annotated[
        str | None, typer.Option("--trace-topic", metavar="NAME", help="Topic of trace messages.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum trace messages per broker.")] = 64,
    from_time: FromTime = None,
    to_time: ToTime = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Print the trace of a message: its send, each delivery, its transaction and its recall.

    Clients write traces where they are asked to: `enable_trace=True` here, `enableMsgTrace` in Java. The default topic
    is RMQ_SYS_TRACE_TOPIC.

    Exit codes: 0 found, 2 usage error, 3 no trace, or the look-up failed, 4 damaged messages were passed over.

    \b
    Example:
      cometmq message trace 7F0000011A2B18B4AAC24E1F3C9D0000
    """
    from cometmq.client.trace.trace_records import TRACE_TOPIC

    begin_ms, end_ms = _span_of(from_time, to_time)
    with connected(namesrv, broker) as admin, _naming_damage() as damaged:
        found = admin.messages.trace(
            unique_id,
            topic=trace_topic or TRACE_TOPIC,
            limit=limit,
            begin_ms=begin_ms,
            end_ms=end_ms,
            damaged=damaged,
        )
        if json:
            print_json([{"kind": type(one).__name__.removesuffix("Trace"), **asdict(one)} for one in found])
        else:
            for record in found:
                typer.echo(_trace_line(record))
        if not found and not damaged:
            fail(f"no trace of the message {safe_text(unique_id)}: did its clients run with traces enabled?")
            raise typer.Exit(ExitCode.FAILED)


@message_commands.command("peek")
@reported()
def peek(
    topic: _Topic,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum number of messages.")] = 32,
    newest: Annotated[bool, typer.Option("--newest", help="Print the newest messages instead of the oldest.")] = False,
    tags: Annotated[str, typer.Option("--tags", metavar='"A || B"', help="Filter by tags.")] = "*",
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", min=0, metavar="N", help="Read only this queue.")
    ] = None,
    start: Annotated[int | None, typer.Option("--start", min=0, metavar="N", help="First queue offset.")] = None,
    from_time: FromTime = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
    raw: _Raw = False,
) -> None:
    """Print messages as a consumer would receive them, without committing offsets.

    Exit codes: 0 done, 2 usage error, 3 failed, 4 damaged messages were passed over.

    \b
    Examples:
      cometmq message peek orders --newest --limit 5
      cometmq message peek orders --tags "paid || refused" --from-time 10m --json
    """
    parts = [part.strip() for part in tags.split("||")]
    if not any(parts) or any("&&" in part or "|" in part for part in parts):
        raise typer.BadParameter(f"--tags {tags!r} is not * or tags separated by ||")
    with connected(namesrv, broker) as admin, _naming_damage() as damaged:
        found = admin.messages.peek(
            topic,
            limit=limit,
            tags=tags,
            queue_id=queue,
            broker_name=broker_name,
            start=start,
            start_ms=None if from_time is None else parse_time(from_time),
            newest=newest,
            damaged=damaged,
        )
        _print_messages(found, json=json, raw=raw)


@message_commands.command("consume")
@reported()
def consume(
    message_id: Annotated[str, typer.Argument(help="Offset message id.", show_default=False)],
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Consumer group.")],
    client: Annotated[str, typer.Option("--client", metavar="ID", help="Client id, as `group describe` shows it.")],
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Have a connected consumer consume one message again, without committing.

    Exit codes: 0 consumed, 2 usage error, 3 not consumed, or the request failed.

    \b
    Example:
      cometmq message consume 7F00000100002A9F0000000000001000 --group billing --client 10.0.0.9@4711#123456
    """
    from cometmq.remoting.bodies.running_info import ConsumeResult

    with connected(namesrv, broker) as admin:
        result = admin.messages.consume_directly(message_id, group=group, client_id=client)
    is_done = result.consume_result in (ConsumeResult.CR_SUCCESS, ConsumeResult.CR_COMMIT)
    if json:
        print_json({"result": result.consume_result.name, "spent_ms": result.spent_time_ms, "remark": result.remark})
    else:
        remark = f": {safe_text(result.remark)}" if result.remark else ""
        typer.echo(f"{result.consume_result.name} after {result.spent_time_ms:,} ms{remark}")
    if not is_done:
        raise typer.Exit(ExitCode.FAILED)
