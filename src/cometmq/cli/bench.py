"""``cometmq bench``: load on a broker, measured and checked."""

from __future__ import annotations

import enum
import resource
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq._plural import counted
from cometmq.cli.arguments import Json, parse_bytes
from cometmq.cli.failures import ExitCode, fail, reported, usage
from cometmq.cli.terminal import Bar, Interruption, bytes_text, interruptible, print_json, row_progress

if TYPE_CHECKING:
    from cometmq.loadtest import Latency, LoadOptions, LoadReport, LoadWatch, Target

__all__ = ["bench"]

_TOPIC = "cometmq_bench"
_DESCRIPTORS_BESIDE = 64
_POPPED_MAX = 32


class _Headers(enum.Enum):
    """Header format of requests."""

    JSON = "json"
    ROCKETMQ = "rocketmq"


class _Acks(enum.Enum):
    """How popped messages are acknowledged."""

    NONE = "none"
    EACH = "each"
    MANY = "many"

    @property
    def take(self) -> str:
        """The name of the load generator's way of taking messages."""
        return "POP" if self is _Acks.NONE else f"POP_ACK_{self.name}"


@reported()
def bench(
    namesrv: Annotated[
        str | None, typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Name servers, ';' between several.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", "-b", metavar="HOST:PORT", help="One broker, instead of a name server.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Nobody else may write to it meanwhile.")] = _TOPIC,
    create: Annotated[
        bool, typer.Option("--create", help="Make the topic where it is not, or has too few queues.")
    ] = False,
    queues: Annotated[
        int | None, typer.Option("--queues", min=1, metavar="N", help="Queues per broker; all of them without.")
    ] = None,
    producers: Annotated[int, typer.Option("--producers", "-p", min=1, metavar="N", help="Sending connections.")] = 1,
    consumers: Annotated[int, typer.Option("--consumers", "-c", min=0, metavar="N", help="Pulling connections.")] = 0,
    depth: Annotated[int, typer.Option("--depth", "-d", min=1, metavar="N", help="Sends in flight on each.")] = 1,
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Messages of one send.")] = 1,
    size: Annotated[str, typer.Option("--size", "-s", metavar="BYTES", help="Body of a message: 128, 1K; from 40.")] = (
        "128"
    ),
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Messages to send, instead of a time.")
    ] = None,
    duration: Annotated[float, typer.Option("--duration", min=0.001, metavar="SECONDS", help="How long to send.")] = 10,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, metavar="N", help="Messages a second; else as fast as they go.")
    ] = None,
    oneway: Annotated[bool, typer.Option("--oneway", help="Send without answers.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Let answers come before the disk (WAIT=false).")] = False,
    consume_after: Annotated[
        bool, typer.Option("--consume-after", help="Consume when all was sent, for figures of each.")
    ] = False,
    headers: Annotated[_Headers, typer.Option("--headers", help="Header format of requests.")] = _Headers.JSON,
    pop: Annotated[
        _Acks | None, typer.Option("--pop", help="Pop instead of pulling; acknowledge none, each, or many at once.")
    ] = None,
    pops: Annotated[int, typer.Option("--pops", min=1, metavar="N", help="Pops in flight on each consumer.")] = 1,
    invisible: Annotated[
        float, typer.Option("--invisible", min=0.001, metavar="SECONDS", help="Invisible time of what is popped.")
    ] = 60,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Consumer group; else one of its own.")] = None,
    pull_messages: Annotated[
        int, typer.Option("--pull-messages", min=1, metavar="N", help="At most so many in a pull or pop.")
    ] = 32,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="An answer that takes longer ends the run.")
    ] = 10,
    broker_pid: Annotated[
        int | None, typer.Option("--broker-pid", metavar="PID", help="The broker's process here, for its CPU time.")
    ] = None,
    json: Json = False,
) -> None:
    """Put load on a RocketMQ broker, ours or Java's, and check all that comes back.

    One thread sends and pulls, or pops, over many connections. Every accepted message must have an offset of its own,
    no queue a hole, and with --consumers every message must come once, with the bytes it was sent with. Where popped
    messages are acknowledged, the group must have reached the end of every queue. A run where that is not so prints no
    figure.

    \b
    Exit codes:
      0   measured, and everything was right
      2   the command line cannot be used
      3   it could not be done; stderr says why
      4   what came back is not what was sent; stderr says what
      130 stopped by Ctrl-C; what was measured until then is printed, unverified

    \b
    Examples:
      cometmq bench --broker 127.0.0.1:10911 --create --producers 16 --duration 5
      cometmq bench --namesrv 127.0.0.1:9876 --create -p 4 -d 32 -c 4 --size 1K --count 1000000
      cometmq bench --broker 127.0.0.1:10911 --create -d 64 -c 16 --pop many --consume-after
      cometmq bench --broker 127.0.0.1:10911 --create --rate 1000 -c 1 --duration 5     produce to consume
    """
    from cometmq.loadtest import BODY_BYTES_MIN, LoadOptions, Take, find_target, run_load
    from cometmq.remoting.addresses import parse_address, parse_addresses
    from cometmq.remoting.command import HeaderFormat

    if (namesrv is None) == (broker is None):
        raise typer.BadParameter("give --namesrv, the address of a name server, or --broker, that of a broker")
    body_bytes = parse_bytes(size)
    if body_bytes < BODY_BYTES_MIN:
        raise typer.BadParameter(f"--size is {body_bytes}; a message has at least {BODY_BYTES_MIN} bytes")
    if pop is not None and pull_messages > _POPPED_MAX:
        raise typer.BadParameter(f"--pull-messages is {pull_messages}; a pop gives {_POPPED_MAX} messages at most")
    with usage():
        if broker is not None:
            parse_address(broker)
        else:
            parse_addresses(namesrv or "")
    timeout_ms = int(timeout * 1000)
    target = find_target(
        namesrv=namesrv, broker=broker, topic=topic, queues=queues, create=create, timeout_ms=timeout_ms
    )
    brokers = len(target.endpoints)
    options = LoadOptions(
        producers=max(producers, brokers),
        consumers=max(consumers, brokers) if consumers else 0,
        depth=depth,
        batch=batch,
        body_bytes=body_bytes,
        count=count,
        duration_s=duration,
        rate_per_s=rate,
        oneway=oneway,
        wait_for_disk=not no_wait,
        consume_after=consume_after,
        take=Take.PULL if pop is None else Take[pop.take],
        pull_messages=pull_messages,
        pops_in_flight=pops,
        invisible_ms=int(invisible * 1000),
        consumer_group=group,
        headers=HeaderFormat[headers.name],
        timeout_ms=timeout_ms,
    )
    _allow_connections(options.producers + options.consumers)
    with interruptible() as interrupted, row_progress("sending") as bar:
        report = run_load(target, options, watch=_watch(options, bar, interrupted), broker_pid=broker_pid)
    _end(target, options, report, json=json)


def _allow_connections(count: int) -> None:
    """Raise this process's own limit of descriptors as far as it may; what is missing then, the run names."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _DESCRIPTORS_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def _watch(options: LoadOptions, show: Bar, interrupted: Interruption) -> LoadWatch:
    def watch(stage: str, sent: int, accepted: int, consumed: int) -> bool:
        if stage == "consuming":
            show(consumed, accepted)
        else:
            show(sent if options.oneway else accepted, options.count)
        return not interrupted.is_set()

    return watch


def _end(target: Target, options: LoadOptions, report: LoadReport, *, json: bool) -> None:
    if report.refused:
        fail(f"{report.refused:,} messages were refused; the first with {report.refusal}")
    if not report.verified and not report.stopped:
        fail(f"what came back is not what was sent: {report.problem}")
        raise typer.Exit(ExitCode.DAMAGED)
    if json:
        print_json({"topic": target.topic, "brokers": target.addresses, "options": options, "report": report})
    else:
        _print_text(target, options, report)
    if report.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _print_text(target: Target, options: LoadOptions, report: LoadReport) -> None:
    sends = "one-way" if options.oneway else f"{options.depth} in flight on each"
    each = f"batches of {options.batch}, " if options.batch > 1 else ""
    typer.echo(
        f"{target.topic} at {', '.join(target.addresses)}: {counted(len(target.queues), 'queue')}, "
        f"{counted(options.producers, 'producer')}, {sends}, {each}{bytes_text(options.body_bytes)}, "
        f"{options.headers.name} headers"
    )
    mib_per_s = report.messages_per_s * options.body_bytes / (1 << 20)
    typer.echo(
        f"sent        {report.accepted:,} messages in {report.send_s:.2f} s: "
        f"{report.messages_per_s:,.0f} messages/s, {mib_per_s:,.1f} MiB/s of bodies"
    )
    _print_latency("send", report.send_latency)
    if options.consumers:
        # A run that was stopped may not have come to measuring this.
        is_measured = report.consumed and report.consume_s
        pace = f" in {report.consume_s:.2f} s: {report.consumed_per_s:,.0f} messages/s" if is_measured else ""
        typer.echo(f"consumed    {counted(report.consumed, 'message')}{pace}")
        _print_latency("end to end", report.end_to_end)
    _print_cpu(options, report)
    typer.echo("stopped: nothing was verified" if report.stopped else "verified    every offset, and all that came")


def _print_latency(name: str, latency: Latency | None) -> None:
    if latency is None:
        return
    quantiles = (
        ("p50", latency.p50_us),
        ("p90", latency.p90_us),
        ("p99", latency.p99_us),
        ("p99.9", latency.p999_us),
        ("max", latency.max_us),
    )
    typer.echo(f"{name:<11} " + "   ".join(f"{quantile} {value:,.0f} µs" for quantile, value in quantiles))


def _print_cpu(options: LoadOptions, report: LoadReport) -> None:
    if report.accepted and not options.consumers:
        typer.echo(f"CPU         {report.own_send_cpu_s / report.accepted * 1e6:.2f} µs a message here")
    if report.broker_send_cpu_s is not None and report.accepted:
        what = "sent and consumed" if options.consumers and not options.consume_after else "sent"
        typer.echo(f"broker CPU  {report.broker_send_cpu_s / report.accepted * 1e6:.2f} µs a message {what}")
    if report.broker_consume_cpu_s is not None and report.consumed:
        typer.echo(f"broker CPU  {report.broker_consume_cpu_s / report.consumed * 1e6:.2f} µs a message consumed")
