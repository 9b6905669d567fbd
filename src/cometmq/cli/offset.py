"""``cometmq offset``: where consumer groups are, and moving them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cometmq._plural import counted
from cometmq.cli.arguments import Json, parse_time
from cometmq.cli.failures import reported
from cometmq.cli.group import print_progress, progress_json
from cometmq.cli.remote import BrokerAddress, BrokerName, Namesrv, Yes, confirmed, connected, group_of, report_lost
from cometmq.cli.tables import print_table
from cometmq.cli.terminal import print_json, safe_text

if TYPE_CHECKING:
    from cometmq.admin import Admin, QueueOffset

__all__ = ["offset_commands"]

offset_commands = group_of("offset", "Offsets of consumer groups: show, reset, clone.")

_Group = Annotated[str, typer.Argument(help="Consumer group.", show_default=False)]
_Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]
_Queue = Annotated[int | None, typer.Option("--queue", "-q", min=0, metavar="N", help="Limit to this queue.")]


@offset_commands.command("show")
@reported()
def show_offsets(
    group: _Group,
    topic: Annotated[str | None, typer.Argument(help="Limit to this topic.", show_default=False)] = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Show a group's offset and lag in each queue; exits with 3 for an unknown topic or if a broker could not be asked.

    \b
    Examples:
      cometmq offset show billing
      cometmq offset show billing orders --json
    """
    with connected(namesrv, broker) as admin:
        progress = admin.offsets.progress(group, topic=topic)
        if topic is not None and not any(queue.broker_offset or queue.consumer_offset for queue in progress.queues):
            # Brokers answer with nothing for a topic that is not there. Raises.
            admin.topics.queues(topic)
        if not progress.queues and not (topic is not None and admin.offsets.progress(group).queues):
            # Raises where there is no such group.
            admin.groups.describe(group)
    if json:
        queues = progress_json(progress)
        print_json({"group": group, "lag": progress.lag, "queues": queues, "lost_brokers": list(progress.lost)})
    elif not progress.queues:
        typer.echo(f"{safe_text(group)} has no offsets{'' if topic is None else f' in {safe_text(topic)}'}")
    else:
        print_progress(progress)
        lag = ("at least " if progress.lost else "") + counted(progress.lag, "message")
        typer.echo(f"\nlag {lag}, {progress.consumed_messages_per_s:,.1f} consumed per second")
    report_lost(progress.lost)


@offset_commands.command("reset")
@reported()
def reset_offsets(
    group: _Group,
    topic: _Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, a time, an age (10m), or offset=N with --queue.",
        ),
    ],
    queue: _Queue = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the new offsets without setting them.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Reset a group's offsets in a topic: back to consume again, forward to skip.

    Connected members continue from there. Needs --yes without a terminal or with --json.

    \b
    Examples:
      cometmq offset reset billing orders --to latest --yes
      cometmq offset reset billing orders --to 2026-11-21T14:00 --dry-run
      cometmq offset reset billing orders --to offset=1200 --queue 3
    """
    timestamp_ms, offset = _place(to)
    if offset is not None and queue is None:
        raise typer.BadParameter("--to offset=N needs --queue")
    with connected(namesrv, broker) as admin:
        if dry_run:
            moved = _plan(admin, topic, timestamp_ms, offset, queue, broker_name)
        else:
            confirmed(f"Reset group {group} in topic {topic} to {to}?", yes=yes, json=json)
            moved = admin.offsets.reset(
                group, topic, timestamp_ms=timestamp_ms, offset=offset, queue_id=queue, broker_name=broker_name
            )
    if json:
        print_json({"group": group, "topic": topic, "dry_run": dry_run, "queues": list(moved)})
        return
    print_table(["broker", "queue", "offset"], ([one.broker_name, one.queue_id, one.offset] for one in moved))


def _place(to: str) -> tuple[int | None, int | None]:
    """Return a time or an offset."""
    import cometmq.admin

    known = {"earliest": cometmq.admin.EARLIEST_MS, "latest": cometmq.admin.LATEST_MS}
    if to in known:
        return known[to], None
    name, equals, number = to.partition("=")
    if name == "offset" and equals:
        if not (number.isascii() and number.isdigit() and len(number) <= 18):
            raise typer.BadParameter(f"--to offset=N: {number!r} is not an offset")
        return None, int(number)
    return parse_time(to), None


def _plan(
    admin: Admin, topic: str, timestamp_ms: int | None, offset: int | None, queue: int | None, broker_name: str | None
) -> tuple[QueueOffset, ...]:
    if timestamp_ms is not None:
        return admin.offsets.at_time(topic, timestamp_ms, broker_name=broker_name, queue_id=queue)
    import dataclasses

    places = admin.offsets.at_time(topic, 0, broker_name=broker_name, queue_id=queue)
    return tuple(dataclasses.replace(one, offset=offset or 0) for one in places)


@offset_commands.command("clone")
@reported()
def clone_offsets(
    source: Annotated[str, typer.Argument(help="Source group.", show_default=False)],
    destination: Annotated[str, typer.Argument(help="Target group.", show_default=False)],
    topic: Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Limit to this topic.")] = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Copy the offsets of one group to another.

    Needs --yes without a terminal or with --json.

    \b
    Example:
      cometmq offset clone billing billing-new --topic orders --yes
    """
    with connected(namesrv, broker) as admin:
        confirmed(f"Copy the offsets of {source} to {destination}?", yes=yes, json=json)
        places = admin.offsets.clone(source, destination, topic=topic)
    if json:
        print_json({"source": source, "destination": destination, "queues": list(places)})
        return
    print_table(
        ["topic", "broker", "queue", "offset"],
        ([one.topic, one.broker_name, one.queue_id, one.consumer_offset] for one in places),
    )
