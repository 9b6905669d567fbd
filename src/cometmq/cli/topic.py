"""``cometmq topic``: topics of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    pairs_of,
)
from cometmq.cli.tables import print_table
from cometmq.cli.terminal import print_json, safe_text, time_text
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.admin import TopicDescription
    from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = ["topic_commands"]

topic_commands = group_of("topic", "Topics of a cluster: list, create, describe, update, delete.")

_Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]
_PERM_NAMES = {0: "none", 2: "w", 4: "r", 6: "rw"}


def _perm_text(perm: int) -> str:
    return _PERM_NAMES.get(perm & 6, str(perm))


def _perm(text: str) -> Perm:
    from cometmq.admin.topics import parse_perm

    try:
        return parse_perm(text)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from None


def _config_json(config: TopicConfig) -> dict[str, object]:
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": _perm_text(config.perm),
        "order": config.order,
        "attributes": dict(config.attributes),
    }


@topic_commands.command("list")
@reported()
def list_topics(
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    system: Annotated[bool, typer.Option("--system", help="Include system, retry and dead-letter topics.")] = False,
    json: Json = False,
) -> None:
    """List topics with queues and permissions on each broker.

    \b
    Examples:
      cometmq topic list
      cometmq topic list -n 10.0.0.5:9876 --system --json
    """
    with connected(namesrv, broker) as admin:
        found = admin.topics.configs(cluster=cluster, system=system)
    if json:
        print_json(
            [
                {"topic": name, "brokers": {at: _config_json(config) for at, config in configs.items()}}
                for name, configs in found.items()
            ]
        )
        return
    print_table(
        ["topic", "broker", "read", "write", "perm", "attributes"],
        (
            [
                name,
                at,
                config.read_queue_nums,
                config.write_queue_nums,
                _perm_text(config.perm),
                " ".join(f"{key}={value}" for key, value in config.attributes.items()),
            ]
            for name, configs in found.items()
            for at, config in configs.items()
        ),
        wrapping={"attributes"},
    )


@topic_commands.command("create")
@reported()
def create_topic(
    topic: _Topic,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, metavar="N", help="Queues per broker.")] = 8,
    perm: Annotated[str, typer.Option("--perm", metavar="PERM", help="Permission: r, w, rw or none.")] = "rw",
    order: Annotated[bool, typer.Option("--order", help="Ordered across queues (kept by name servers).")] = False,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute", "-a", metavar="NAME=VALUE", help="Attribute, such as message.type=FIFO; repeatable."
        ),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="If it exists, update it.")] = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Create a topic on every master of the cluster.

    \b
    Examples:
      cometmq topic create orders --queues 4
      cometmq topic create audit --broker 127.0.0.1:10911 -a message.type=FIFO --exist-ok
    """
    with connected(namesrv, broker) as admin:
        made = admin.topics.create(
            topic,
            queues=queues,
            perm=_perm(perm),
            order=order,
            attributes=pairs_of(attributes, "--attribute"),
            cluster=cluster,
            broker_name=broker_name,
            exist_ok=exist_ok,
        )
    if json:
        print_json({"topic": topic, "brokers": list(made)})
        return
    names = ", ".join(one.broker_name for one in made)
    typer.echo(f"topic {topic}: {counted(queues, 'queue')} on {safe_text(names)}")


@topic_commands.command("update")
@reported()
def update_topic(
    topic: _Topic,
    queues: Annotated[int | None, typer.Option("--queues", "-q", metavar="N", help="Queues per broker.")] = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", metavar="N", help="Read queues per broker.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", metavar="N", help="Write queues per broker.")
    ] = None,
    perm: Annotated[str | None, typer.Option("--perm", metavar="PERM", help="Permission: r, w, rw or none.")] = None,
    attributes: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="Set an attribute; repeatable.")
    ] = None,
    delete_attributes: Annotated[
        list[str] | None, typer.Option("--delete-attribute", metavar="NAME", help="Delete an attribute; repeatable.")
    ] = None,
    order_conf: Annotated[
        str | None,
        typer.Option(
            "--order-conf", metavar="BROKER:N;…", help="Order configuration at the name servers (empty: delete)."
        ),
    ] = None,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    broker_name: BrokerName = None,
    json: Json = False,
) -> None:
    """Change the given settings of a topic.

    To remove queues, remove write queues first, and read queues once they are consumed.

    \b
    Examples:
      cometmq topic update orders --queues 8
      cometmq topic update orders --perm r --broker-name broker-b
    """
    changes: dict[str, str | None] = {**pairs_of(attributes, "--attribute")}
    changes.update(dict.fromkeys(delete_attributes or []))
    if not changes and all(one is None for one in (order_conf, queues, read_queues, write_queues, perm)):
        raise typer.BadParameter(
            "nothing to change: give --queues, --perm, --attribute, --order-conf, or another setting"
        )
    with connected(namesrv, broker) as admin:
        if order_conf is not None:
            admin.topics.set_order(topic, order_conf or None)
        now = admin.topics.update(
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=None if perm is None else _perm(perm),
            attributes=changes,
            broker_name=broker_name,
        )
    if json:
        print_json({"topic": topic, "brokers": {at: _config_json(config) for at, config in now.items()}})
        return
    _print_configs(now)


def _print_configs(configs: Mapping[str, TopicConfig]) -> None:
    print_table(
        ["broker", "read queues", "write queues", "perm", "order", "attributes"],
        (
            [
                at,
                config.read_queue_nums,
                config.write_queue_nums,
                _perm_text(config.perm),
                config.order,
                " ".join(f"{key}={value}" for key, value in config.attributes.items()),
            ]
            for at, config in configs.items()
        ),
    )


@topic_commands.command("describe")
@reported()
def describe_topic(topic: _Topic, namesrv: Namesrv = None, broker: BrokerAddress = None, json: Json = False) -> None:
    """Show a topic's configuration, queues and consumer groups.

    \b
    Example:
      cometmq topic describe orders
    """
    with connected(namesrv, broker) as admin:
        found = admin.topics.describe(topic)
    if json:
        print_json(_description_json(found))
        return
    typer.echo(f"{safe_text(topic)}: {counted(found.messages, 'message')}")
    if found.order_conf:
        typer.echo(f"order: {safe_text(found.order_conf)}")
    typer.echo(f"groups: {safe_text(', '.join(found.groups)) or 'none'}")
    typer.echo()
    _print_configs(found.configs)
    typer.echo()
    print_table(
        ["broker", "queue", "from", "to", "messages", "newest stored"],
        (
            [
                one.broker_name,
                one.queue_id,
                one.min_offset,
                one.max_offset,
                one.messages,
                time_text(one.last_store_timestamp_ms or None),
            ]
            for one in found.queues
        ),
    )


def _description_json(found: TopicDescription) -> dict[str, object]:
    return {
        "topic": found.topic,
        "messages": found.messages,
        "order_conf": found.order_conf,
        "groups": list(found.groups),
        "brokers": {at: _config_json(config) for at, config in found.configs.items()},
        "queues": list(found.queues),
    }


@topic_commands.command("delete")
@reported()
def delete_topic(
    topic: _Topic,
    yes: Yes = False,
    namesrv: Namesrv = None,
    broker: BrokerAddress = None,
    cluster: ClusterName = None,
    json: Json = False,
) -> None:
    """Delete a topic and its queues.

    Needs --yes without a terminal or with --json.

    \b
    Example:
      cometmq topic delete orders --yes
    """
    with connected(namesrv, broker) as admin:
        messages = sum(one.messages for one in admin.topics.queues(topic))
        confirmed(f"Delete topic {topic} with {counted(messages, 'message')}?", yes=yes, json=json)
        had = admin.topics.delete(topic, cluster=cluster)
    if json:
        print_json({"topic": topic, "messages": messages, "brokers": list(had)})
        return
    typer.echo(
        f"deleted topic {topic} with {counted(messages, 'message')} on {', '.join(one.broker_name for one in had)}"
    )
