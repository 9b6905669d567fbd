"""``cometmq produce``: messages into a topic, by the client's producer.

``cometmq message send`` is the other way in: large requests, and the order of the input kept even when some fail. Here
each message goes as an application would send it: compressed, one way, traced, with the producer's retries and batches.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq._compression import CompressionType
from cometmq._plural import counted
from cometmq.cli.arguments import Json, parse_bytes, parse_time
from cometmq.cli.credentials import hooks_of_environment
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
from cometmq.cli.producing import ProduceReport, SendPlan, SendWindow, made_up, send_all
from cometmq.cli.records import RecordOptions
from cometmq.cli.remote import Namesrv, connected, pairs_of
from cometmq.cli.terminal import bytes_text, count_progress, interruptible, print_json, safe_text

if TYPE_CHECKING:
    from cometmq.client import Producer
    from cometmq.client.send.producer_settings import ProducerOptions

__all__ = ["produce"]

_GROUP = "cometmq-produce"
_IN_FLIGHT = 1_000
_IN_FLIGHT_ACCUMULATED = 10_000
_INT32_MAX = (1 << 31) - 1


class Compression(enum.Enum):
    """How long bodies are compressed."""

    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"
    NONE = "none"


@reported()
def produce(
    topic: Annotated[str, typer.Argument(help="Topic; created if the broker allows it.", show_default=False)],
    files: Annotated[
        list[str] | None, typer.Argument(help="Input files (default or -: stdin).", show_default=False)
    ] = None,
    texts: Texts = None,
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
    delay_ms: Annotated[
        int | None, typer.Option("--delay-ms", min=0, metavar="N", help="Deliver after this many milliseconds.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help="Deliver at this time, or from now (10m).")
    ] = None,
    queue: QueueId = None,
    size: Annotated[
        str | None, typer.Option("--size", metavar="BYTES", help="Generate messages of this size: 128, 1K.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=0, metavar="N", help="Maximum number of messages.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="Messages per second (default: unlimited).")
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight", min=1, max=1_000_000, metavar="N", help="Maximum requests in flight (1 = sequential)."
        ),
    ] = None,
    accumulate: Annotated[
        bool, typer.Option("--accumulate", help="Batch sends that follow each other closely.")
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=4096, metavar="N", help="Messages per request; stored atomically.")
    ] = 1,
    one_way: Annotated[bool, typer.Option("--one-way", help="Send one-way, without acknowledgement.")] = False,
    compress: Annotated[Compression, typer.Option("--compress", help="Compression of bodies.")] = Compression.ZLIB,
    compress_over: Annotated[
        str, typer.Option("--compress-over", metavar="BYTES", help="Smallest body to compress.")
    ] = "4K",
    max_failures: Annotated[
        int, typer.Option("--max-failures", min=0, metavar="N", help="Stop after this many failures (0 = never).")
    ] = 1_000,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Timeout for all attempts of one message.")
    ] = 3,
    group: Annotated[str, typer.Option("--group", "-g", help="Producer group.")] = _GROUP,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Namespace prefix of topic and group.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Record sends in RocketMQ's message trace.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send messages through the producer: texts, lines, CSV or JSON rows, whole messages, or generated.

    Slow input is sent as it arrives. Only acknowledged messages are counted; failed ones are counted and named, and the
    rest continue. With several requests in flight a retried message may land behind later ones: --in-flight 1, or
    `cometmq message send`, keeps the order.

    Exit codes: 0 all acknowledged, 1 some not acknowledged (stderr has number and reason), 2 usage error, 3 failed,
    130 stopped by Ctrl-C; every message read is acknowledged or counted as failed.

    \b
    Examples:
      echo hello | cometmq produce orders --tags paid --keys "o-17 c-3"
      cometmq produce flights flights.csv --tag-column carrier --key-column tailnum --shard-column tailnum
      cometmq produce events events.jsonl --body payload --rate 500
      cometmq consume orders --format json | cometmq produce copies --format messages
      cometmq produce load --size 1K --count 100000 --accumulate --json
    """
    body_bytes = None if size is None else parse_bytes(size)
    if body_bytes is not None and (files or texts):
        raise typer.BadParameter("--size generates messages: give no files and no --text")
    is_held_back = bool(delay_level) or delay_ms is not None or deliver_at is not None
    if (bool(delay_level), delay_ms is not None, deliver_at is not None).count(True) > 1:
        raise typer.BadParameter("give one of --delay-level, --delay-ms and --deliver-at")
    if batch > 1 and (accumulate or one_way or sharding_key or shard_column or queue is not None or is_held_back):
        raise typer.BadParameter(
            "--batch sends to one queue that the producer picks, immediately: remove --accumulate, "
            "--one-way, --queue, sharding keys, --delay-level, --delay-ms and --deliver-at"
        )
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
        topic=topic,
        delay_ms=delay_ms,
        deliver_at_ms=None if deliver_at is None else parse_time(deliver_at),
    )
    if body_bytes is not None and (options.columns or options.header or body != "line" or input_format is not None):
        raise typer.BadParameter("generated messages have no columns and no format")
    settings: ProducerOptions = {
        "send_msg_timeout_ms": max(1, round(timeout * 1000)),
        "accumulate": accumulate,
        "namespace": namespace,
        "enable_trace": trace,
        "compress_msg_body_over_bytes": _INT32_MAX if compress is Compression.NONE else parse_bytes(compress_over),
    }
    if compress is not Compression.NONE:
        settings["compress_type"] = CompressionType[compress.name]
    if in_flight is None:
        in_flight = _IN_FLIGHT_ACCUMULATED if accumulate else _IN_FLIGHT
    report = ProduceReport(topic=topic, one_way=one_way)
    plan = SendPlan(count=count, failures_max=max_failures, rate=rate)
    with interruptible() as interruption:
        if body_bytes is None:
            made = made_messages(texts, files, input_format, options, interruption, skip=skip)
        else:
            made = made_up(body_bytes, options)
        producer = _producer(topic, namesrv, group, settings)
        with (
            producer,
            _reporting(report, json=json, delay_level=delay_level),
            count_progress("sent", "messages") as bar,
        ):
            sending = SendWindow(producer, report, in_flight=in_flight, batch=batch)
            try:
                send_all(made, sending, plan, interruption, bar)
            finally:
                sending.finish()
                producer.flush()
    if 0 < max_failures <= report.failed:
        fail(f"stopped after {counted(report.failed, 'failure')}; raise --max-failures to continue")
    if report.failed:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _producer(topic: str, namesrv: str | None, group: str, settings: ProducerOptions) -> Producer:
    """Make the producer when it is known that there is somebody to send to."""
    from cometmq.admin.addresses import namesrv_of_environment
    from cometmq.client import Producer
    from cometmq.client.send.outgoing import check_topic

    with usage():
        check_topic(topic)
        settings = {**settings, "rpc_hooks": hooks_of_environment()}
        producer = Producer(
            group, name_servers=namesrv if namesrv is not None else namesrv_of_environment(), **settings
        )
        producer.settings.check()
    with connected(namesrv, None) as admin:
        admin.cluster.brokers()
    return producer


@contextlib.contextmanager
def _reporting(report: ProduceReport, *, json: bool, delay_level: int) -> Iterator[None]:
    """Take the time, and print what was sent, however it ends."""
    began = time.monotonic()
    try:
        yield
    finally:
        elapsed_s = time.monotonic() - began
        report.elapsed_s = round(elapsed_s, 3)
        report.messages_per_s = round(report.messages / max(elapsed_s, 1e-9), 1)
        if json:
            print_json(report)
        elif report.messages or report.failed or sys.exc_info()[0] in (None, KeyboardInterrupt):
            _print_report(report, delay_level=delay_level)
        if report.failed:
            were = "was" if report.failed == 1 else "were"
            fail(f"{counted(report.failed, 'message')} {were} not acknowledged")
            for one in report.failures:
                which = f"{one.error}, {counted(one.messages, 'message')}, first: message {one.first_message:,}"
                fail(f"  {which}: {safe_text(one.first_text)}")


def _print_report(report: ProduceReport, *, delay_level: int) -> None:
    rate = f", {report.messages_per_s:,.0f} per second" if report.messages and report.elapsed_s >= 1 else ""
    how = ", one-way: delivery is not confirmed" if report.one_way else ""
    what = f"{counted(report.messages, 'message')} ({bytes_text(report.body_bytes)})"
    typer.echo(f"sent {what} to {safe_text(report.topic)} in {report.elapsed_s:,.1f} s{rate}{how}")
    if delay_level and report.messages:
        typer.echo(f"  delayed{delay_text(delay_level)}")
    if report.maybe_twice:
        typer.echo(f"  {counted(report.maybe_twice, 'message')} may be stored twice: retried after a failed attempt")
    if report.not_durable:
        typer.echo(f"  {counted(report.not_durable, 'message')} stored, but not flushed or replicated in time")
