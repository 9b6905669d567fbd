"""``cometmq group``: consumer groups of a cluster."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cometmq._plural import counted
from cometmq.cli.arguments import Json
from cometmq.cli.failures import reported
from cometmq.cli.remote import (
    BrokerAddress,
    BrokerName,
    ClusterName,
    Namesrv,
    Yes,
    confirmed,
    connected,
    group_of,
    report_lost,
)
from cometmq.cli.tables import print_pairs, print_table
from cometmq.cli.terminal import print_json, safe_text, time_text
from cometmq.store_config.fields import INT32_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.admin import ConsumeMode, GroupDescription, GroupInFlight, GroupProgress
    from cometmq.remoting.bodies.message_queue import MessageQueue
    from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
    from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig

__all__ = ["group_commands", "print_progress", "progress_json"]

group_commands = group_of("group", "Consumer groups of a cluster: list, create, describe, update, delete.")

T = TypeVar("T")


class _Mode(str, enum.Enum):
    PULL = "pull"
    POP = "pop"


def _named(group: str) -> str:
    if not group.strip():
        raise typer.BadParameter("the group name is empty; `cometmq group list` shows the groups")
    return group


_Group = Annotated[str, typer.Argument(help="Consumer group.", show_default=False, callback=_named)]


def _config_json(config: SubscriptionGroupConfig) -> dict[str, object]:
    return {
        "consume_enable": config.consume_enable,
        "broadcast_enable": config.consume_broadcast_enable,
        "orderly": config.consume_message_orderly,
        "from_min_enable": config.consume_from_min_enable,
        "retry_max_times": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
        "consume_timeout_minutes": config.consume_timeout_minutes,
        "attributes": dict(config.attributes),
    }


def _print_configs(configs: Mapping[str, SubscriptionGroupConfig]) -> None:
    print_table(
        ["broker", "consumes", "broadcast", "orderly", "redeliveries", "retry queues"],
        (
            [
                at,
                config.consume_enable,
                config.consume_broadcast_enable,
                config.consume_message_orderly,
                config.retry_max_times,
                config.retry_queue_nums,
            ]
            for at, config in configs.items()
        ),
    )


def print_progress(progress: GroupProgress) -> None:
    """Print where a group is, a line for each queue."""
    print_table(
        ["topic", "broker", "queue", "committed", "end", "lag", "committed message stored"],
        (
            [
                one.topic,
                one.broker_name,
                one.queue_id,
                one.consumer_offset if one.consumer_offset >= 0 else None,
                one.broker_offset,
                one.lag,
                time_text(one.last_timestamp_ms or None),
            ]
            for one in progress.queues
        ),
    )


@group_commands.command("list")
@reported()
def list_groups(
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    system: Annotated[bool, typer.Option("--system", help="Include RocketMQ's own groups.")] = False,
    json: Json = False,
) -> None:
    """List consumer groups with their lag and dead letters; exits with 3 if a broker could not be asked.

    \b
    Examples:
      cometmq group list
      cometmq group list --broker 127.0.0.1:10911 --json
    """
    with connected(namesrv, broker) as admin:
        found = admin.groups.lags(cluster=cluster, system=system)
        dead = admin.groups.dead_letters([one.group for one in found], cluster=cluster)
        lost = admin.cluster.lost(cluster=cluster)
    if json:
        print_json([{**dataclasses.asdict(one), "dead_letters": dead.get(one.group, 0)} for one in found])
    else:
        print_table(
            ["group", "topics", "lag", "dead letters", "per second"],
            (
                [one.group, " ".join(one.topics), one.lag, dead.get(one.group, 0), one.consumed_messages_per_s]
                for one in found
            ),
            wrapping={"topics"},
        )
    report_lost(lost)


@group_commands.command("create")
@reported()
def create_group(
    group: _Group,
    retry_max_times: Annotated[
        int, typer.Option("--retry-max-times", metavar="N", help="Redeliveries before a message becomes a dead letter.")
    ] = 16,
    retry_queues: Annotated[int, typer.Option("--retry-queues", metavar="N", help="Queues of the retry topic.")] = 1,
    broadcast: Annotated[bool, typer.Option("--broadcast/--no-broadcast", help="Allow broadcasting.")] = True,
    orderly: Annotated[bool, typer.Option("--orderly/--no-orderly", help="Consume in order by POP.")] = False,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="If it exists, update it.")] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Create a consumer group on every master of the cluster.

    \b
    Example:
      cometmq group create billing --retry-max-times 3
    """
    with connected(namesrv, broker) as admin:
        made = admin.groups.create(
            group,
            retry_max_times=retry_max_times,
            retry_queues=retry_queues,
            broadcast_enable=broadcast,
            orderly=orderly,
            cluster=cluster,
            broker_name=broker_name,
            exist_ok=exist_ok,
        )
    if json:
        print_json({"group": group, "brokers": list(made)})
        return
    typer.echo(f"group {group} on {safe_text(', '.join(one.broker_name for one in made))}")


@group_commands.command("update")
@reported()
def update_group(
    group: _Group,
    retry_max_times: Annotated[
        int | None,
        typer.Option("--retry-max-times", metavar="N", help="Redeliveries before a message becomes a dead letter."),
    ] = None,
    retry_queues: Annotated[
        int | None, typer.Option("--retry-queues", metavar="N", help="Queues of the retry topic.")
    ] = None,
    consume: Annotated[bool | None, typer.Option("--consume/--no-consume", help="Allow consumption.")] = None,
    broadcast: Annotated[bool | None, typer.Option("--broadcast/--no-broadcast", help="Allow broadcasting.")] = None,
    orderly: Annotated[bool | None, typer.Option("--orderly/--no-orderly", help="Consume in order by POP.")] = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Change the given settings of a group.

    \b
    Example:
      cometmq group update billing --no-consume
    """
    if retry_max_times is retry_queues is consume is broadcast is orderly is None:
        raise typer.BadParameter(
            "nothing to change: give --retry-max-times, --consume, --broadcast, or another setting"
        )
    with connected(namesrv, broker) as admin:
        now = admin.groups.update(
            group,
            retry_max_times=retry_max_times,
            retry_queues=retry_queues,
            consume_enable=consume,
            broadcast_enable=broadcast,
            orderly=orderly,
            broker_name=broker_name,
        )
    if json:
        print_json({"group": group, "brokers": {at: _config_json(config) for at, config in now.items()}})
        return
    _print_configs(now)


@group_commands.command("set-consume-mode")
@reported()
def set_consume_mode(
    group: _Group,
    topic: Annotated[str, typer.Argument(help="Topic.", show_default=False)],
    mode: Annotated[_Mode, typer.Argument(help="Mode: pull or pop.", case_sensitive=False, show_default=False)],
    share: Annotated[
        int,
        typer.Option("--share", metavar="N", help="With pop: members whose queues one shares (0: all queues)."),
    ] = 0,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Set whether a group pulls or pops a topic, on every master that has it.

    Members whose queues the brokers assign switch at run time; other members keep pulling.

    \b
    Examples:
      cometmq group set-consume-mode billing orders pop
      cometmq group set-consume-mode billing orders pop --share 2
      cometmq group set-consume-mode billing orders pull
    """
    from cometmq.admin import MessageRequestMode

    if not -1 <= share <= INT32_MAX:
        raise typer.BadParameter(
            f"--share is {share}; it must be the number of members whose queues one shares (0: all queues)"
        )
    if share and mode is _Mode.PULL:
        raise typer.BadParameter("--share needs pop: pulling members share no queues")
    with connected(namesrv, broker) as admin:
        changed = admin.groups.set_consume_mode(
            group,
            topic,
            MessageRequestMode[mode.name],
            pop_share_queue_num=share,
            cluster=cluster,
            broker_name=broker_name,
        )
        members = admin.groups.members(group)
    count = 0 if members is None else len(members.connections)
    if json:
        shown = {"group": group, "topic": topic, "mode": mode.name, "share": share, "brokers": list(changed)}
        print_json({**shown, "members": count})
        return
    at = safe_text(", ".join(one.broker_name for one in changed))
    nobody = "" if count else "; no members are connected yet"
    typer.echo(f"group {safe_text(group)} {mode.value}s topic {safe_text(topic)} on {at}{nobody}")


def _print_modes(modes: tuple[ConsumeMode, ...]) -> None:
    print_table(
        ["topic", "broker", "mode", "shares with"],
        ([one.topic, one.broker_name, one.mode.value.lower(), _shared(one)] for one in modes),
    )


def _shared(mode: ConsumeMode) -> str | None:
    if mode.mode.value != _Mode.POP.name:
        return None
    return counted(mode.pop_share_queue_num, "other") if mode.pop_share_queue_num > 0 else "all"


@group_commands.command("describe")
@reported()
def describe_group(group: _Group, namesrv: Namesrv = None, broker: BrokerAddress = None, json: Json = False) -> None:
    """Show a group's configuration, members, subscriptions, popped topics and offsets.

    \b
    Example:
      cometmq group describe billing
    """
    with connected(namesrv, broker) as admin:
        found = admin.groups.describe(group)
    if json:
        print_json(_description_json(found))
    else:
        _print_description(found)
    report_lost(found.progress.lost)


def _print_description(found: GroupDescription) -> None:
    members = found.members
    online = "no members connected" if members is None else f"{counted(len(members.connections), 'member')} connected"
    lag = ("at least " if found.progress.lost else "") + counted(found.progress.lag, "message")
    typer.echo(f"{safe_text(found.group)}: {online}, lag {lag}")
    typer.echo()
    _print_configs(found.configs)
    if members is not None:
        how = (members.consume_type.name, members.message_model.name, members.consume_from_where.name)
        typer.echo(f"\n{', '.join(name.lower().replace('_', ' ') for name in how)}")
        print_table(
            ["client", "address", "language", "version"],
            ([one.client_id, one.client_address, one.language, one.version] for one in members.connections),
        )
        typer.echo()
        print_table(
            ["subscribes to", "type", "expression"],
            (
                [name, one.expression_type or "TAG", one.sub_string]
                for name, one in sorted(members.subscriptions.items())
            ),
        )
    if found.consume_modes:
        typer.echo()
        _print_modes(found.consume_modes)
    typer.echo()
    print_progress(found.progress)


def _description_json(found: GroupDescription) -> dict[str, object]:
    members = found.members
    return {
        "group": found.group,
        "lag": found.progress.lag,
        "consumed_messages_per_s": found.progress.consumed_messages_per_s,
        "brokers": {at: _config_json(config) for at, config in found.configs.items()},
        "members": None
        if members is None
        else {
            "connections": list(members.connections),
            "subscriptions": [
                {"topic": name, "type": one.expression_type or "TAG", "expression": one.sub_string}
                for name, one in sorted(members.subscriptions.items())
            ],
            "consume_type": members.consume_type.name,
            "message_model": members.message_model.name,
            "consume_from_where": members.consume_from_where.name,
        },
        "consume_modes": list(found.consume_modes),
        "queues": progress_json(found.progress),
        "lost_brokers": list(found.progress.lost),
    }


@group_commands.command("show")
@reported()
def show_group(group: _Group, namesrv: Namesrv = None, broker: BrokerAddress = None, json: Json = False) -> None:
    """Show a group's backlog: waiting and popped messages, their age, and overdue checkpoints.

    \b
    Example:
      cometmq group show billing
    """
    with connected(namesrv, broker) as admin:
        found = admin.groups.in_flight(group)
    if json:
        print_json(_in_flight_json(found))
    elif not found.queues:
        typer.echo(f"group {safe_text(group)} has no offsets: it has not consumed yet")
    else:
        _print_in_flight(found)
    report_lost(found.lost)


def _print_in_flight(found: GroupInFlight) -> None:
    oldest = "" if found.oldest_unacked_ms is None else f"; oldest in flight for {_seconds(found.oldest_unacked_ms)}"
    typer.echo(
        f"{safe_text(found.group)}: {counted(found.waiting, 'message')} waiting, {found.in_flight:,} in flight{oldest}"
    )
    for name, revive in found.revives.items():
        if revive.unread or found.revive_lag_ms:
            since = _seconds(revive.lag_ms)
            to_read = counted(revive.unread, "record")
            typer.echo(
                f"{safe_text(name)}: revive backlog {to_read}; its first checkpoint has been due for {since} "
                "(normal: 2 to 5 s)"
            )
    typer.echo()
    print_table(
        ["topic", "broker", "queue", "committed", "end", "waiting", "in flight", "oldest", "overdue"],
        (
            [
                one.topic,
                one.broker_name,
                one.queue_id,
                one.consumer_offset if one.consumer_offset >= 0 else None,
                one.broker_offset,
                one.waiting,
                one.in_flight,
                None if one.oldest_unacked_ms is None else _seconds(one.oldest_unacked_ms),
                _seconds(one.overdue_ms) if one.overdue_ms else None,
            ]
            for one in found.queues
        ),
    )


def _seconds(time_ms: int) -> str:
    return f"{time_ms / 1000:,.1f} s"


def _in_flight_json(found: GroupInFlight) -> dict[str, object]:
    return {
        "group": found.group,
        "waiting": found.waiting,
        "in_flight": found.in_flight,
        "oldest_unacked_ms": found.oldest_unacked_ms,
        "revive_lag_ms": found.revive_lag_ms,
        "revives": dict(found.revives),
        "queues": [{**dataclasses.asdict(one), "waiting": one.waiting} for one in found.queues],
        "lost_brokers": list(found.lost),
    }


def progress_json(progress: GroupProgress) -> list[dict[str, object]]:
    """Return the queues of a group's progress, with how far it is behind in each."""
    return [{**dataclasses.asdict(one), "lag": one.lag} for one in progress.queues]


@group_commands.command("delete")
@reported()
def delete_group(
    group: _Group,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep its offsets for a new group of this name.")
    ] = False,
    keep_topics: Annotated[bool, typer.Option("--keep-topics", help="Keep its retry topic and dead letters.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Delete a group with its offsets, retry topic and dead letters.

    Needs --yes without a terminal or with --json.

    \b
    Example:
      cometmq group delete billing --keep-topics --yes
    """
    with connected(namesrv, broker) as admin:
        what = " with its retry topic and dead letters" if not keep_topics else ""
        confirmed(f"Delete group {group}{what}?", yes=yes, json=json)
        had = admin.groups.delete(group, clean_offsets=not keep_offsets, delete_topics=not keep_topics)
    if json:
        print_json({"group": group, "brokers": list(had)})
        return
    typer.echo(f"deleted group {group} on {safe_text(', '.join(one.broker_name for one in had))}")


@group_commands.command("running")
@reported()
def show_running(
    group: _Group,
    client: Annotated[str, typer.Argument(help="Client id, as `group describe` shows it.", show_default=False)],
    stack: Annotated[bool, typer.Option("--stack", help="Include thread stacks.")] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """Show a connected consumer's queues, cached messages and rates.

    \b
    Example:
      cometmq group running billing 10.0.0.9@4711#123456
    """
    with connected(namesrv, broker) as admin:
        info = admin.groups.running_info(group, client, stack=stack)
    if json:
        print_json(_running_json(info))
        return
    print_pairs(sorted(info.properties.items()))
    typer.echo()
    print_table(
        ["topic", "broker", "queue", "commits", "holds", "locked", "last pull", "last consumed"],
        (
            [
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                held.commit_offset,
                held.cached_msg_count,
                held.locked,
                time_text(held.last_pull_timestamp_ms or None),
                time_text(held.last_consume_timestamp_ms or None),
            ]
            for queue, held in _by_queue(info.queues)
        ),
    )
    if info.pop_queues:
        typer.echo()
        print_table(
            ["topic", "broker", "queue", "popped and held", "oldest since", "last pop"],
            (
                [
                    queue.topic,
                    queue.broker_name,
                    "all" if queue.queue_id < 0 else queue.queue_id,
                    held.wait_ack_count,
                    time_text(held.oldest_pop_timestamp_ms),
                    time_text(held.last_pop_timestamp_ms or None),
                ]
                for queue, held in _by_queue(info.pop_queues)
            ),
        )
    typer.echo()
    print_table(
        ["topic", "pulled/s", "consumed/s", "failed/s", "ms per call", "failed"],
        (
            [
                topic,
                status.pull_tps,
                status.consume_ok_tps,
                status.consume_failed_tps,
                status.consume_rt_ms,
                status.consume_failed_messages,
            ]
            for topic, status in sorted(info.statuses.items())
        ),
    )
    if info.jstack:
        typer.echo(info.jstack)


def _by_queue(queues: Mapping[MessageQueue, T]) -> list[tuple[MessageQueue, T]]:
    return sorted(queues.items(), key=lambda pair: (pair[0].topic, pair[0].broker_name, pair[0].queue_id))


def _running_json(info: ConsumerRunningInfo) -> dict[str, object]:
    return {
        "properties": dict(info.properties),
        "queues": [{**dataclasses.asdict(queue), **dataclasses.asdict(held)} for queue, held in _by_queue(info.queues)],
        "pop_queues": [
            {**dataclasses.asdict(queue), **dataclasses.asdict(held)} for queue, held in _by_queue(info.pop_queues)
        ],
        "topics": [{"topic": topic, **dataclasses.asdict(status)} for topic, status in sorted(info.statuses.items())],
        "stack": info.jstack,
    }


@group_commands.command("producers")
@reported()
def list_producers(
    group: Annotated[
        str | None, typer.Argument(help="Producer group (required by brokers before 5.0).", show_default=False)
    ] = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    json: Json = False,
) -> None:
    """List connected producers.

    \b
    Example:
      cometmq group producers
    """
    with connected(namesrv, broker) as admin:
        found = admin.groups.producers(group)
    if json:
        print_json(found)
        return
    print_table(
        ["group", "client", "language", "version"],
        ([name, one.client_id, one.language, one.version] for name, members in found.items() for one in members),
    )
