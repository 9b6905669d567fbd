"""``cometmq cluster``: brokers and name servers, their state and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

import typer

from cometmq.cli.arguments import Json
from cometmq.cli.failures import ExitCode, fail, reported
from cometmq.cli.remote import (
    BrokerAddress,
    BrokerName,
    ClusterName,
    Namesrv,
    connected,
    group_of,
    pairs_of,
    report_lost,
)
from cometmq.cli.tables import print_pairs, print_table
from cometmq.cli.terminal import print_json, safe_text, time_text

__all__ = ["cluster_commands"]

cluster_commands = group_of("cluster", "Brokers and name servers: members, runtime state, settings.")


@cluster_commands.command("show")
@reported()
def show_cluster(
    namesrv: Namesrv = None, broker: BrokerAddress = None, cluster: ClusterName = None, json: Json = False
) -> None:
    """Show the registered brokers; exits with 3 if one is lost.

    \b
    Example:
      cometmq cluster show -n 10.0.0.5:9876
    """
    with connected(namesrv, broker) as admin:
        found = admin.cluster.brokers(cluster=cluster)
        lost = admin.cluster.lost(cluster=cluster)
        read_only = admin.cluster.read_only(found)
    if json:
        print_json([{**dataclasses.asdict(one), "writable": one.broker_name not in read_only} for one in found])
    else:
        print_table(
            ["cluster", "broker", "role", "address", "permission"],
            (
                [
                    one.cluster,
                    one.broker_name,
                    _role(one.broker_id),
                    one.address,
                    "read only" if one.broker_name in read_only else "read, write",
                ]
                for one in found
            ),
        )
    report_lost(lost)


def _role(broker_id: int) -> str:
    return "master" if broker_id == 0 else f"slave {broker_id}"


@cluster_commands.command("status")
@reported()
def show_status(
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every runtime value under RocketMQ's names.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the runtime state of all brokers; exits with 3 if one does not answer or is lost.

    \b
    Examples:
      cometmq cluster status
      cometmq cluster status --broker 127.0.0.1:10911 --all
    """
    with connected(namesrv, broker) as admin:
        found = admin.cluster.status(cluster=cluster)
    silent = [one for one in found if isinstance(one, tuple)]
    reports = [one for one in found if not isinstance(one, tuple)]
    if json:
        print_json({"brokers": reports, "silent": [{"broker": one, "error": str(error)} for one, error in silent]})
    elif everything:
        for status in reports:
            typer.echo(f"{safe_text(status.broker.broker_name)} {status.broker.address}")
            print_pairs(status.table.items())
            typer.echo()
    else:
        print_table(
            ["broker", "role", "address", "version", "in/s", "out/s", "in today", "out today", "oldest", "disk"],
            (
                [
                    status.broker.broker_name,
                    _role(status.broker.broker_id),
                    status.broker.address,
                    status.version if status.cometmq_version is None else f"CometMQ {status.cometmq_version}",
                    status.put_messages_per_s,
                    status.get_messages_per_s,
                    status.messages_put_today,
                    status.messages_got_today,
                    time_text(
                        status.earliest_timestamp_ms if status.earliest_timestamp_ms > 0 else None, to_the_minute=True
                    ),
                    None if status.disk_used_ratio is None else f"{status.disk_used_ratio:.0%}",
                ]
                for status in reports
            ),
        )
    for one, error in silent:
        fail(f"{one.broker_name}: {error}")
    if silent:
        raise typer.Exit(ExitCode.FAILED)


@cluster_commands.command("config")
@reported()
def show_or_change_config(
    names: Annotated[
        list[str] | None, typer.Argument(help="Print only these settings (RocketMQ's names).", show_default=False)
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="Change a setting; repeatable.")
    ] = None,
    of_namesrv: Annotated[bool, typer.Option("--of-namesrv", help="Use the name servers' settings instead.")] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Show the settings of brokers or name servers, or change some while they run.

    A broker applies a change without a restart and writes it into its settings file. A Java broker ignores unknown
    names.

    \b
    Examples:
      cometmq cluster config fileReservedTime flushDiskType
      cometmq cluster config --set fileReservedTime=48 --broker-name broker-a
      cometmq cluster config --of-namesrv --json
    """
    wanted = pairs_of(changes, "--set")
    if wanted and names:
        one = f"; for one broker: --broker-name {names[0]}" if len(names) == 1 else ""
        raise typer.BadParameter(f"--set changes all brokers, and {names[0]} names a setting to show{one}")
    lost: Mapping[str, str | None] = {}
    with connected(namesrv, broker) as admin:
        if of_namesrv:
            if wanted:
                admin.cluster.set_namesrv_config(wanted)
            found = {"namesrv": admin.cluster.namesrv_config()}
        else:
            if wanted:
                lost = admin.cluster.set_broker_config(wanted, broker_name=broker_name)
            found = dict(admin.cluster.broker_config(broker_name=broker_name))
    shown = {*(names or []), *wanted}
    chosen = {
        server: {name: value for name, value in settings.items() if not shown or name in shown}
        for server, settings in found.items()
    }
    if json:
        print_json(chosen)
    else:
        print_table(
            ["server", "setting", "value"],
            ([server, name, value] for server, settings in chosen.items() for name, value in settings.items()),
        )
    for server, reason in lost.items():
        if reason is not None:
            fail(f"warning: {server}: {reason}")
    unknown = sorted(name for name in shown if not any(name in settings for settings in found.values()))
    if unknown:
        servers = [name for name in unknown if name in found]
        hint = f"; for the settings of {servers[0]}: --broker-name {servers[0]}" if servers else ""
        fail(f"unknown setting: {', '.join(unknown)}{hint}")
        raise typer.Exit(ExitCode.FAILED)


@cluster_commands.command("kv")
@reported()
def key_values(
    namespace: Annotated[str, typer.Argument(help="Namespace, such as ORDER_TOPIC_CONFIG.", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key; repeatable.")
    ] = None,
    deletions: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Delete a key; repeatable.")
    ] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the name servers' keys of a namespace; set or delete keys first.

    \b
    Examples:
      cometmq cluster kv ORDER_TOPIC_CONFIG
      cometmq cluster kv ORDER_TOPIC_CONFIG --set orders=broker-a:4
    """
    wanted = pairs_of(changes, "--set")
    with connected(namesrv, None) as admin:
        for key, value in wanted.items():
            admin.cluster.kv_put(namespace, key, value)
        there = admin.cluster.kv_list(namespace) if deletions else {}
        for key in deletions or []:
            admin.cluster.kv_delete(namespace, key)
        found = admin.cluster.kv_list(namespace)
    if json:
        print_json(dict(found))
    else:
        print_table(["key", "value"], found.items())
    missing = [key for key in deletions or [] if key not in there]
    if missing:
        fail(f"cannot delete from {namespace}: no key {' and no key '.join(missing)}")
        raise typer.Exit(ExitCode.FAILED)


@cluster_commands.command("write-perm")
@reported()
def write_perm(
    broker_name: Annotated[str, typer.Argument(help="Broker name.", show_default=False)],
    wipe: Annotated[bool, typer.Option("--wipe/--add", help="Remove or restore its write permission.")],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Remove a broker's write permission at the name servers before a stop, or restore it.

    \b
    Examples:
      cometmq cluster write-perm broker-a --wipe
      cometmq cluster write-perm broker-a --add
    """
    with connected(namesrv, None) as admin:
        change = admin.cluster.wipe_write_perm if wipe else admin.cluster.add_write_perm
        topics = change(broker_name)
        # A name server that does not know the broker says 0, too.
        known = [] if topics else sorted({one.broker_name for one in admin.cluster.brokers()})
    if topics == 0 and broker_name not in known:
        fail(f"broker {broker_name} is not registered; known brokers: {', '.join(known)}")
        raise typer.Exit(ExitCode.FAILED)
    if json:
        print_json({"broker_name": broker_name, "wiped": wipe, "topics": topics})
        return
    typer.echo(f"{safe_text(broker_name)}: {topics} topics {'are read-only now' if wipe else 'accept messages again'}")


@cluster_commands.command("forget")
@reported()
def forget(
    broker_name: Annotated[str, typer.Argument(help="Broker name.", show_default=False)],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Remove a lost broker from the name servers' memory.

    \b
    Example:
      cometmq cluster forget broker-b
    """
    with connected(namesrv, None) as admin:
        found = admin.cluster.forget(broker_name)
    if json:
        print_json(found)
        return
    for one in found:
        typer.echo(f"{safe_text(one.broker_name)} of cluster {safe_text(one.cluster)} is forgotten")


@cluster_commands.command("clean")
@reported()
def clean(
    queues: Annotated[bool, typer.Option("--queues", help="Delete queue files whose messages have expired.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Delete expired log segments.")] = False,
    unused_topics: Annotated[
        bool, typer.Option("--unused-topics", help="Delete the queues of deleted topics.")
    ] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
) -> None:
    """Run the brokers' retention now.

    \b
    Example:
      cometmq cluster clean --queues --unused-topics
    """
    if not (queues or log or unused_topics):
        raise typer.BadParameter("specify what to clean: --queues, --log, --unused-topics")
    with connected(namesrv, broker) as admin:
        reports = admin.cluster.clean(queues=queues, log=log, unused_topics=unused_topics, broker_name=broker_name)
    typer.echo(f"cleaned on {safe_text(', '.join(one.broker_name for one in reports))}")
