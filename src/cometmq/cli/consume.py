"""``cometmq consume``: messages out of topics, by the client's consumers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from cometmq._plural import counted
from cometmq.cli.arguments import parse_time
from cometmq.cli.consuming import Printer, Start, Wanted, be_a_member, look_at, read_queues
from cometmq.cli.failures import fail, reported, usage
from cometmq.cli.formats import Encoder, Format, delimiter_of, encoder_of, template_of
from cometmq.cli.logs import warnings_on_stderr
from cometmq.cli.remote import Namesrv, connected
from cometmq.cli.terminal import Bar, Interruption, bytes_text, count_progress, interruptible

__all__ = ["consume"]


@reported()
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Join this group; otherwise no offsets are committed."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="first|last|TIME|offset=N",
            help="Start for a group without offsets; TIME is 2026-11-21T14:00 or an age (10m).",
        ),
    ] = "first",
    tags: Annotated[str, typer.Option("--tags", metavar='"A || B"', help="Filter by tags.")] = "*",
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPR", help="SQL filter evaluated by the broker: a > 5.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Print only messages with this key; repeatable."),
    ] = None,
    queues: Annotated[
        list[int] | None, typer.Option("--queue", "-q", min=0, metavar="N", help="Read only this queue; repeatable.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Wait for new messages (default with --group).")
    ] = False,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="Stop at the current end (default without --group)."),
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=0, metavar="N", help="Maximum number of messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Stop after this long without a message."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="Messages per second (default: unlimited).")
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="text|json|raw|TEMPLATE",
            help=r"text, json (lines), raw (bodies), or a template: '{queue} {keys} {body}\n'.",
        ),
    ] = "text",
    no_body: Annotated[bool, typer.Option("--no-body", help="Leave bodies out of text and JSON.")] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", metavar="TEXT", help=r"Separator after each raw body; accepts \n, \t, \0.")
    ] = r"\n",
    orderly: Annotated[
        bool, typer.Option("--orderly", help="With --group: lock queues and print each in order.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no summary on stderr.")] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Namespace prefix of topic and group.")
    ] = None,
    namesrv: Namesrv = None,
) -> None:
    """Print the messages of topics: stored ones, new ones, or those of a group's member.

    Without a group it reads all queues, each in order, up to their current ends, and commits nothing. With a group it
    shares the messages with the other members, waits for more, commits printed messages and also receives retries.

    A template's fields: topic, queue, offset, broker, tags, keys, id, time, time_ms, born, born_ms, retries, bytes,
    properties, property.NAME, body.

    Exit codes: 0 done, 2 usage error, 3 failed (stderr has the reason), 130 stopped by Ctrl-C, 141 output closed by its
    reader. In every case exactly the printed messages are committed.

    \b
    Examples:
      cometmq consume orders --from 10m --follow
      cometmq consume orders refunds --group billing --tags "paid || refunded" --format json
      cometmq consume orders --key o-17 --format '{time} {tags} {body}\\n'
      cometmq consume orders --group audit --until-end --format raw > bodies.txt
    """
    if sql is not None and tags != "*":
        raise typer.BadParameter("--tags and --sql exclude each other: give one")
    if follow and until_end:
        raise typer.BadParameter("--follow and --until-end exclude each other: give one")
    if keys and not all(keys):
        raise typer.BadParameter("--key must not be empty")
    if group is None and orderly:
        raise typer.BadParameter("--orderly needs --group; without a group each queue is in order anyway")
    if group is not None and queues:
        raise typer.BadParameter("--queue and --group exclude each other: a group's members share the queues")
    begin = _start_of(start)
    if group is not None and begin.offset is not None:
        raise typer.BadParameter("--from offset=N cannot be used with --group; use `cometmq offset reset`")
    wanted = Wanted(
        topics=tuple(dict.fromkeys(topics)),
        expression=tags if sql is None else sql,
        expression_type="TAG" if sql is None else "SQL92",
        queue_ids=tuple(dict.fromkeys(queues or ())),
        start=begin,
        follow=follow or (group is not None and not until_end),
        idle_s=timeout,
        namespace=namespace,
    )
    encode = _encoder(output, delimiter, with_body=not no_body)
    name_servers = _name_servers(wanted, group, namesrv)
    ended = threading.Event()
    with interruptible() as interruption, warnings_on_stderr() as warnings, connected(namesrv, None) as admin:

        def sleep(seconds: float) -> None:
            if group is not None:  # in the member's thread
                ended.wait(seconds)
                return
            with interruption.waiting():
                time.sleep(seconds)

        printer = Printer(sys.stdout.buffer, encode, keys=keys or (), count=count, rate=rate, sleep=sleep)
        with _summary(printer, interruption, quiet=quiet), _progress() as bar:
            found = look_at(admin, wanted)
            if printer.is_full:
                return
            if group is None:
                read_queues(found, wanted, printer, interruption, bar, name_servers=name_servers, warnings=warnings)
            else:
                be_a_member(
                    group,
                    found,
                    wanted,
                    printer,
                    ended,
                    interruption,
                    bar,
                    orderly=orderly,
                    admin=admin,
                    name_servers=name_servers,
                    warnings=warnings,
                )


def _start_of(text: str) -> Start:
    if text in ("first", "last"):
        return Start(is_last=text == "last")
    name, equals, number = text.partition("=")
    if equals and name == "offset" and number.isdecimal():
        return Start(offset=int(number))
    if equals:
        raise typer.BadParameter(f"--from {text!r} is not first, last, a time or offset=N")
    return Start(timestamp_ms=parse_time(text))


def _encoder(output: str, delimiter: str, *, with_body: bool) -> Encoder:
    if "{" in output:
        return template_of(output)
    known = {one.value: one for one in Format}
    if output not in known:
        raise typer.BadParameter(f"--format {output!r} is not text, json, raw or a template with fields in braces")
    return encoder_of(known[output], delimiter=delimiter_of(delimiter), with_body=with_body)


def _name_servers(wanted: Wanted, group: str | None, namesrv: str | None) -> str:
    """Return where the client finds its brokers, once all names are known to be some."""
    from cometmq.admin.addresses import namesrv_of_environment
    from cometmq.client.group.subscriptions import make_subscription
    from cometmq.remoting.addresses import parse_addresses
    from cometmq.store_config.names import validate_group, validate_topic

    given = namesrv if namesrv is not None else namesrv_of_environment()
    with usage():
        parse_addresses(given)
        for topic in wanted.topics:
            validate_topic(topic)
            make_subscription(topic, wanted.expression, expression_type=wanted.expression_type, now_ms=0)
        if group is not None:
            validate_group(group)
    return given


@contextmanager
def _progress() -> Iterator[Bar]:
    """Show how many were printed, where the messages themselves do not show it."""
    if sys.stdout.isatty():
        yield lambda done, total=None: None
        return
    with count_progress("consumed", "messages") as bar:
        yield bar


@contextmanager
def _summary(printer: Printer, interruption: Interruption, *, quiet: bool) -> Iterator[None]:
    """Say on stderr what was printed, unless nobody reads any more."""
    began = time.monotonic()
    try:
        yield
    except BrokenPipeError:
        quiet = True
        raise
    finally:
        interruption.end()
        elapsed_s = time.monotonic() - began
        if not quiet and (printer.messages or sys.exc_info()[0] in (None, KeyboardInterrupt)):
            rate = f", {printer.messages / elapsed_s:,.0f} per second" if printer.messages and elapsed_s >= 1 else ""
            what = f"{counted(printer.messages, 'message')} ({bytes_text(printer.body_bytes)})"
            fail(f"{what} in {elapsed_s:,.1f} s{rate}")
