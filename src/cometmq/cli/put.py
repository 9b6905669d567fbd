"""``cometmq put``: messages into a store."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

import cometmq
from cometmq._plural import counted
from cometmq.cli.arguments import Config, Json, StorePath
from cometmq.cli.failures import fail, reported
from cometmq.cli.lines import check_file, read_bodies
from cometmq.cli.terminal import bytes_text, count_progress, interruptible, print_json
from cometmq.errors import Error, StoreLocked

__all__ = ["PutReport", "QueueRange", "put"]


@dataclass(slots=True, kw_only=True)
class QueueRange:
    """Where messages went in one queue.

    Attributes:
        queue_id: number of the queue.
        first: queue offset of the first.
        last: queue offset of the last; between the two may be other writers' messages.
        messages: how many.
    """

    queue_id: int
    first: int
    last: int
    messages: int


@dataclass(slots=True, kw_only=True)
class PutReport:
    """The appended messages.

    Attributes:
        topic: topic.
        messages: number of messages.
        body_bytes: bytes of their bodies.
        queues: where they are, by queue.
        flush: "sync" or "async"; "writer" where another process appended them.
        elapsed_s: seconds that it took.
    """

    topic: str
    messages: int = 0
    body_bytes: int = 0
    queues: list[QueueRange] = field(default_factory=list)
    flush: str = "sync"
    elapsed_s: float = 0.0

    def take(self, result: cometmq.AppendManyResult, bodies: list[bytes]) -> None:
        """Count a batch in."""
        self.messages += len(bodies)
        self.body_bytes += sum(map(len, bodies))
        ranges = {one.queue_id: one for one in self.queues}
        for queue_id, offset in zip(result.queue_ids.tolist(), result.queue_offsets.tolist(), strict=True):
            known = ranges.get(queue_id)
            if known is None:
                known = ranges[queue_id] = QueueRange(queue_id=queue_id, first=offset, last=offset, messages=0)
                self.queues.append(known)
            known.last = offset
            known.messages += 1


@reported()
def put(
    path: StorePath,
    topic: Annotated[str, typer.Argument(help="Topic; created if it does not exist.", show_default=False)],
    files: Annotated[
        list[str] | None, typer.Argument(help="Input files (default or -: stdin).", show_default=False)
    ] = None,
    whole_file: Annotated[bool, typer.Option("--whole-file", help="One message per file instead of per line.")] = False,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAG", help="Tag of all messages.")] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar="KEYS", help="Keys of all messages, separated by spaces.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of all messages; repeatable."),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option("--queue", "-q", min=0, metavar="N", help="Append all to this queue (default: round-robin)."),
    ] = None,
    topic_queues: Annotated[
        int, typer.Option("--topic-queues", min=1, metavar="N", help="Number of queues of a new topic.")
    ] = 1,
    flush: Annotated[
        cometmq.FlushMode,
        typer.Option("--flush", help="sync: each batch on disk before the next; async: faster, lost in a power loss."),
    ] = cometmq.FlushMode.SYNC,
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Maximum messages per append.")] = 1024,
    json: Json = False,
    config: Config = None,
) -> None:
    """Append lines or whole files as messages.

    Each line is a message, without its line end. Slow input is appended as it arrives. If another CometMQ process has
    the store open, that process appends the messages; a store held by a RocketMQ broker is refused.

    Exit codes: 0 all appended, 2 usage error, 3 failed (stderr has the reason and the number appended),
    130 stopped by Ctrl-C; the counted messages are appended.

    \b
    Examples:
      seq 1000 | cometmq put data/ numbers
      cometmq put data/ orders --tags paid --keys "o-17 c-3" order.json --whole-file
      tail -F app.log | cometmq put data/ logs --flush async
    """
    pairs = _properties(properties or [])
    for name in files or []:
        check_file(name)
    report = PutReport(topic=topic)
    began = time.monotonic()
    try:
        with (
            interruptible() as interruption,
            _opened(path, config, flush, topic_queues, report) as store,
            count_progress("appended", "messages") as bar,
        ):
            for bodies in read_bodies(files or ["-"], interruption, whole_file=whole_file, batch=batch):
                _append(store, report, bodies, tags=tags, keys=keys, properties=pairs, queue=queue)
                bar(report.messages)
    finally:
        report.elapsed_s = round(time.monotonic() - began, 3)
        report.queues.sort(key=lambda one: one.queue_id)
        if json:
            print_json(report)
        elif report.messages or sys.exc_info()[0] in (None, KeyboardInterrupt):
            _print_text(report)


def _print_text(report: PutReport) -> None:
    rate = (
        f", {report.messages / report.elapsed_s:,.0f} per second" if report.messages and report.elapsed_s >= 1 else ""
    )
    how = "by the store's writer" if report.flush == "writer" else f"flush {report.flush}"
    size = bytes_text(report.body_bytes)
    typer.echo(f"appended {counted(report.messages, 'message')} ({size}) to {report.topic}, {how}{rate}")
    for one in report.queues:
        offsets = f"offsets {one.first:,} to {one.last:,}" if one.last > one.first else f"offset {one.first:,}"
        typer.echo(f"  queue {one.queue_id}: {counted(one.messages, 'message')}, queue {offsets}")


def _properties(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--property {text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def _opened(
    path: Path, config: Path | None, flush: cometmq.FlushMode, topic_queues: int, report: PutReport
) -> cometmq.Store:
    """Open the store for writing or, where CometMQ holds it in another process, to leave the messages to that one."""
    try:
        store = cometmq.open(path, config=config, flush=flush, default_queues=topic_queues)
    except StoreLocked:
        store = cometmq.open(path, mode="r", config=config)
        if not store.info().writer_is_ours:
            store.close()
            raise
        report.flush = "writer"
        return store
    report.flush = flush.value
    if store.opening().created:
        fail(f"created a new store in {path}")
    return store


def _append(
    store: cometmq.Store,
    report: PutReport,
    bodies: list[bytes],
    *,
    tags: str | None,
    keys: str | None,
    properties: dict[str, str],
    queue: int | None,
) -> None:
    try:
        result = store.append_many(
            report.topic, bodies, tags=tags, keys=keys, properties=properties or None, queue=queue
        )
    except Error as error:
        done = error.appended or 0
        report.messages += done
        report.body_bytes += sum(map(len, bodies[:done]))
        fail(f"message {report.messages + 1} was not appended")
        raise
    report.take(result, bodies)
