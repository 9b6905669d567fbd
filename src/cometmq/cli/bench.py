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
        str | None, typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Name servers, separated by ';'.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", "-b", metavar="HOST:PORT", help="Broker to load, without a name server.")
    ] = None,
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Topic; must have no other writer during the run.")
    ] = _TOPIC,
    create: Annotated[bool, typer.Option("--create", help="Create the topic, or add its missing queues.")] = False,
    queues: Annotated[
        int | None, typer.Option("--queues", min=1, metavar="N", help="Queues per broker (default: all).")
    ] = None,
    producers: Annotated[int, typer.Option("--producers", "-p", min=1, metavar="N", help="Producer connections.")] = 1,
    consumers: Annotated[int, typer.Option("--consumers", "-c", min=0, metavar="N", help="Consumer connections.")] = 0,
    depth: Annotated[
        int, typer.Option("--depth", "-d", min=1, metavar="N", help="Sends in flight per connection.")
    ] = 1,
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Messages per send.")] = 1,
    size: Annotated[str, typer.Option("--size", "-s", metavar="BYTES", help="Body size: 128, 1K (at least 40).")] = (
        "128"
    ),
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Messages to send (overrides --duration).")
    ] = None,
    duration: Annotated[float, typer.Option("--duration", min=0.001, metavar="SECONDS", help="Seconds to send.")] = 10,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, metavar="N", help="Messages per second (default: unlimited).")
    ] = None,
    oneway: Annotated[bool, typer.Option("--oneway", help="Send one-way, without responses.")] = False,
    transactions: Annotated[bool, typer.Option("--transactions", help="Send half messages and commit each.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Acknowledge before the flush (WAIT=false).")] = False,
    consume_after: Annotated[
        bool, typer.Option("--consume-after", help="Consume after sending, to measure each alone.")
    ] = False,
    headers: Annotated[_Headers, typer.Option("--headers", help="Header format of requests.")] = _Headers.JSON,
    pop: Annotated[
        _Acks | None, typer.Option("--pop", help="Pop instead of pull; ack none, each, or many at once.")
    ] = None,
    pops: Annotated[int, typer.Option("--pops", min=1, metavar="N", help="Pops in flight per consumer.")] = 1,
    invisible: Annotated[
        float, typer.Option("--invisible", min=0.001, metavar="SECONDS", help="Invisible time of popped messages.")
    ] = 60,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Consumer group (default: a new one).")] = None,
    pull_messages: Annotated[
        int, typer.Option("--pull-messages", min=1, metavar="N", help="Messages per pull or pop.")
    ] = 32,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Response timeout; exceeding it ends the run."),
    ] = 10,
    broker_pid: Annotated[
        int | None, typer.Option("--broker-pid", metavar="PID", help="Local broker process whose CPU time to measure.")
    ] = None,
    json: Json = False,
) -> None:
    """Load a CometMQ or Java RocketMQ broker and verify every message.

    One thread sends and pulls, or pops, over many connections. Each accepted message must have its own offset and no
    queue may have a gap; with --consumers each message must arrive once and unchanged; with acknowledged pops the group
    must reach the end of every queue. A run that breaks one of these rules prints no figures.

    \b
    Exit codes:
      0   measured and verified
      2   usage error
      3   failed; stderr has the reason
      4   verification failed: consumed messages differ from those sent; stderr names the difference
      130 stopped by Ctrl-C; prints the figures so far, unverified

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
        raise typer.BadParameter("give a name server's address (--namesrv) or a broker's (--broker)")
    body_bytes = parse_bytes(size)
    if body_bytes < BODY_BYTES_MIN:
        raise typer.BadParameter(f"--size is {body_bytes}; the smallest body has {BODY_BYTES_MIN} bytes")
    if transactions and (oneway or batch > 1):
        raise typer.BadParameter("--transactions excludes --batch and --oneway")
    if pop is not None and pull_messages > _POPPED_MAX:
        raise typer.BadParameter(f"--pull-messages is {pull_messages}; a pop returns at most {_POPPED_MAX} messages")
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
        transactions=transactions,
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
    """Raise this process's limit of descriptors as far as allowed; the run reports what is still missing."""
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
        fail(f"{report.refused:,} messages were rejected; first error: {report.refusal}")
    if not report.verified and not report.stopped:
        fail(f"verification failed: {report.problem}")
        raise typer.Exit(ExitCode.DAMAGED)
    if json:
        print_json({"topic": target.topic, "brokers": target.addresses, "options": options, "report": report})
    else:
        _print_text(target, options, report)
    if report.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _print_text(target: Target, options: LoadOptions, report: LoadReport) -> None:
    sends = "one-way" if options.oneway else f"{options.depth} in flight per connection"
    if options.transactions:
        sends += ", in transactions"
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
    typer.echo("stopped: not verified" if report.stopped else "verified    every offset and every consumed message")


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
        typer.echo(f"CPU         {report.own_send_cpu_s / report.accepted * 1e6:.2f} µs per message, this process")
    if report.broker_send_cpu_s is not None and report.accepted:
        what = "sent and consumed" if options.consumers and not options.consume_after else "sent"
        typer.echo(f"broker CPU  {report.broker_send_cpu_s / report.accepted * 1e6:.2f} µs per message {what}")
    if report.broker_consume_cpu_s is not None and report.consumed:
        typer.echo(f"broker CPU  {report.broker_consume_cpu_s / report.consumed * 1e6:.2f} µs per consumed message")
