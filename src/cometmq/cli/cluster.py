"""``cometmq cluster``: brokers and name servers, their state and settings."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.cli.arguments import Json
from cometmq.cli.failures import ExitCode, fail, reported
from cometmq.cli.remote import BrokerAddress, BrokerName, ClusterName, Namesrv, connected, group_of, pairs_of
from cometmq.cli.tables import print_pairs, print_table
from cometmq.cli.terminal import print_json, safe_text, time_text

__all__ = ["cluster_commands"]

cluster_commands = group_of("cluster", "Brokers and name servers: who is there, how they are, their settings.")


@cluster_commands.command("show")
@reported()
def show_cluster(
    namesrv: Namesrv = None, broker: BrokerAddress = None, cluster: ClusterName = None, json: Json = False
) -> None:
    """Show the brokers that are registered.

    \b
    Example:
      cometmq cluster show -n 10.0.0.5:9876
    """
    with connected(namesrv, broker) as admin:
        found = admin.cluster.brokers(cluster=cluster)
    if json:
        print_json(list(found))
        return
    print_table(
        ["cluster", "broker", "role", "address"],
        ([one.cluster, one.broker_name, _role(one.broker_id), one.address] for one in found),
    )


def _role(broker_id: int) -> str:
    return "master" if broker_id == 0 else f"slave {broker_id}"


@cluster_commands.command("status")
@reported()
def show_status(
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Everything that the brokers say, by upstream's names.")
    ] = False,
    json: Json = False,
) -> None:
    """Ask all brokers how they are. One that does not answer is named, and the exit code is then 3.

    \b
    Examples:
      cometmq cluster status
      cometmq cluster status --broker 127.0.0.1:10911 --all
    """
    with connected(namesrv, broker) as admin:
        found = admin.cluster.status(cluster=cluster)
    silent = [one for one in found if isinstance(one, tuple)]
    told = [one for one in found if not isinstance(one, tuple)]
    if json:
        print_json({"brokers": told, "silent": [{"broker": one, "error": str(error)} for one, error in silent]})
    elif everything:
        for status in told:
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
                    status.version,
                    status.put_messages_per_s,
                    status.get_messages_per_s,
                    status.messages_put_today,
                    status.messages_got_today,
                    time_text(
                        status.earliest_timestamp_ms if status.earliest_timestamp_ms > 0 else None, to_the_minute=True
                    ),
                    None if status.disk_used_ratio is None else f"{status.disk_used_ratio:.0%}",
                ]
                for status in told
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
        list[str] | None, typer.Argument(help="Only these settings, by upstream's names.", show_default=False)
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="Change one; repeatable.")
    ] = None,
    of_namesrv: Annotated[
        bool, typer.Option("--of-namesrv", help="The name servers' settings, not the brokers'.")
    ] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Show the settings of brokers or name servers, or change some while they run.

    Which can be changed so is up to the server; a Java broker passes over names that it does not know.

    \b
    Examples:
      cometmq cluster config fileReservedTime flushDiskType
      cometmq cluster config --set autoCreateTopicEnable=false --broker-name broker-a
      cometmq cluster config --of-namesrv --json
    """
    wanted = pairs_of(changes, "--set")
    with connected(namesrv, broker) as admin:
        if of_namesrv:
            if wanted:
                admin.cluster.set_namesrv_config(wanted)
            found = {"namesrv": admin.cluster.namesrv_config()}
        else:
            if wanted:
                admin.cluster.set_broker_config(wanted, broker_name=broker_name)
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
    unknown = sorted(name for name in shown if not any(name in settings for settings in found.values()))
    if unknown:
        fail(f"no server has the setting {', '.join(unknown)}")
        raise typer.Exit(ExitCode.FAILED)


@cluster_commands.command("kv")
@reported()
def key_values(
    namespace: Annotated[str, typer.Argument(help="Such as ORDER_TOPIC_CONFIG.", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set one; repeatable.")
    ] = None,
    deletions: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Delete one; repeatable.")
    ] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show what the name servers keep under a namespace, after setting or deleting what is given.

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
        fail(f"nothing to delete: {namespace} has no {' and no '.join(missing)}")
        raise typer.Exit(ExitCode.FAILED)


@cluster_commands.command("write-perm")
@reported()
def write_perm(
    broker_name: Annotated[str, typer.Argument(help="The broker.", show_default=False)],
    wipe: Annotated[bool, typer.Option("--wipe/--add", help="Producers shall leave it, or may come back.")],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Tell the name servers that producers shall leave a broker before it is stopped, or may come back.

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
        fail(f"no broker {broker_name} is registered; known are: {', '.join(known)}")
        raise typer.Exit(ExitCode.FAILED)
    if json:
        print_json({"broker_name": broker_name, "wiped": wipe, "topics": topics})
        return
    typer.echo(
        f"{safe_text(broker_name)}: {topics} topics {'take no more messages' if wipe else 'take messages again'}"
    )


@cluster_commands.command("clean")
@reported()
def clean(
    queues: Annotated[bool, typer.Option("--queues", help="Parts of consume queues whose messages expired.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Segments of the log that have expired.")] = False,
    unused_topics: Annotated[bool, typer.Option("--unused-topics", help="Queues whose topic was deleted.")] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
) -> None:
    """Let brokers delete now what they would delete by and by.

    \b
    Example:
      cometmq cluster clean --queues --unused-topics
    """
    if not (queues or log or unused_topics):
        raise typer.BadParameter("say what shall be cleaned: --queues, --log, --unused-topics")
    with connected(namesrv, broker) as admin:
        told = admin.cluster.clean(queues=queues, log=log, unused_topics=unused_topics, broker_name=broker_name)
    typer.echo(f"cleaned at {safe_text(', '.join(one.broker_name for one in told))}")
