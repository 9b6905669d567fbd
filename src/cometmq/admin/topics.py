"""Topics of a cluster: created, changed, listed, described, deleted.

Source: remoting specification 2.9, 2.10, 2.12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from cometmq.admin.operation import Operation
from cometmq.admin.results import BrokerRef, QueueEnds, TopicDescription
from cometmq.admin.servers import Servers, no_topic, request
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.config_tables import GroupList, TopicList
from cometmq.remoting.bodies.stats import TopicStatsTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic, validate_topic
from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = ["ORDER_NAMESPACE", "TopicOperations", "check_one_cluster", "parse_perm"]

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Where name servers keep the order of topics."""

QUEUES_DEFAULT = 8
_TEMPLATE_TOPIC = "TBW102"
_REPLY_SUFFIX = "_REPLY_TOPIC"


def parse_perm(text: str) -> Perm:
    """Return a permission: ``r``, ``w``, ``rw`` or upstream's number (2 write, 4 read, 6 both, 0 neither).

    Raises:
        InvalidArgument: it is none.
    """
    named = {
        "r": Perm.READ,
        "w": Perm.WRITE,
        "rw": Perm.READ | Perm.WRITE,
        "wr": Perm.READ | Perm.WRITE,
        "none": Perm(0),
    }
    numbered = {str(int(perm)): perm for perm in named.values()}
    perm = {**named, **numbered}.get(text.strip().lower())
    if perm is None:
        raise InvalidArgument(f"{text!r} is not a permission: use r, w, rw or none, or 4, 2, 6, 0")
    return perm


class TopicOperations:
    """Topics. Each method is an operation: the surfaces run it."""

    def __init__(self, servers: Servers) -> None:
        """``servers`` is the way to the cluster."""
        self._servers = servers

    # --- Looking ------------------------------------------------------------------------------------------------------

    def list(self, *, cluster: str | None = None, system: bool = False) -> Operation[tuple[str, ...]]:
        """Return the names of all topics, sorted.

        Args:
            cluster: only those of this cluster.
            system: RocketMQ's own, retry topics and dead letters, too.
        """
        servers = self._servers
        if servers.is_direct:
            (broker,) = yield from servers.brokers(cluster=cluster)
            names: Iterable[str] = yield from servers.topic_configs(broker)
            own = {broker.cluster, broker.broker_name}
        else:
            brokers = yield from servers.brokers(slaves=True)
            own = {name for broker in brokers for name in (broker.cluster, broker.broker_name)}
            command = (
                request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                if cluster is None
                else request(RequestCode.GET_TOPICS_BY_CLUSTER, cluster=cluster)
            )
            names = TopicList.from_json((yield from servers.ask_namesrv(command)).body).topics
        return tuple(sorted(name for name in set(names) if system or not _is_own(name, own)))

    def configs(
        self, *, cluster: str | None = None, system: bool = False
    ) -> Operation[Mapping[str, Mapping[str, TopicConfig]]]:
        """Return the configuration of all topics: by topic, then by broker name. One request to each master.

        Args:
            cluster: only those of this cluster.
            system: RocketMQ's own, retry topics and dead letters, too.
        """
        brokers = yield from self._servers.brokers(cluster=cluster)
        own = {name for broker in brokers for name in (broker.cluster, broker.broker_name)}
        found: dict[str, dict[str, TopicConfig]] = {}
        for broker in brokers:
            for name, config in (yield from self._servers.topic_configs(broker)).items():
                if system or not _is_own(name, own):
                    found.setdefault(name, {})[broker.broker_name] = config
        return dict(sorted(found.items()))

    def describe(self, topic: str) -> Operation[TopicDescription]:
        """Return a topic's configuration, its queues and its consumer groups.

        Raises:
            BrokerError: there is no such topic (code 17).
        """
        route = yield from self._servers.route(topic)
        brokers = [part.broker for part in route.parts]
        configs: dict[str, TopicConfig] = {}
        for broker in brokers:
            config = yield from self._servers.topic_config(broker, topic)
            if config is not None:
                configs[broker.broker_name] = config
        return TopicDescription(
            topic=topic,
            configs=configs,
            queues=(yield from self.queues(topic)),
            groups=(yield from self.groups(topic)),
            order_conf=route.order_conf,
        )

    def queues(self, topic: str) -> Operation[tuple[QueueEnds, ...]]:
        """Return where each queue of a topic begins and ends, in order.

        Raises:
            BrokerError: there is no such topic (code 17).
        """
        route = yield from self._servers.route(topic)
        answers = yield from self._servers.invoke_brokers(
            (part.broker for part in route.parts), request(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
        )
        return tuple(
            sorted(
                QueueEnds(
                    # By whom it was asked: a broker alone need not know its own name.
                    broker_name=broker.broker_name or queue.broker_name,
                    queue_id=queue.queue_id,
                    min_offset=offset.min_offset,
                    max_offset=offset.max_offset,
                    last_store_timestamp_ms=offset.last_update_timestamp_ms,
                )
                for broker, answer in answers
                for queue, offset in TopicStatsTable.from_json(answer.body).offsets.items()
            )
        )

    def groups(self, topic: str) -> Operation[tuple[str, ...]]:
        """Return the groups that consume a topic, or did, sorted.

        Raises:
            BrokerError: there is no such topic (code 17).
        """
        route = yield from self._servers.route(topic)
        answers = yield from self._servers.invoke_brokers(
            (part.broker for part in route.parts), request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
        )
        # Nothing and an empty list are the same here.
        names = {name for _, answer in answers if answer.body for name in GroupList.from_json(answer.body).groups}
        return tuple(sorted(names))

    # --- Changing -----------------------------------------------------------------------------------------------------

    def create(
        self,
        topic: str,
        *,
        queues: int = QUEUES_DEFAULT,
        read_queues: int | None = None,
        perm: Perm = Perm.READ | Perm.WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker_name: str | None = None,
        exist_ok: bool = False,
    ) -> Operation[tuple[BrokerRef, ...]]:
        """Create a topic at every master of the cluster.

        Args:
            topic: its name.
            queues: queues at each broker.
            read_queues: queues that may be read, where that is another number.
            perm: the allowed operations.
            order: True for a topic whose order spans queues.
            attributes: upstream's topic attributes, such as ``{"message.type": "FIFO"}``.
            cluster: only at this cluster; needed where the name servers know several.
            broker_name: only at this broker.
            exist_ok: fine when it is there already; it then becomes as it is asked for here.

        Returns:
            The brokers that have it now.

        Raises:
            InvalidArgument: a name or number that no broker takes; or it is there already.
            BrokerError: a broker refused it.
        """
        validate_topic(topic)
        if queues < 1:
            raise InvalidArgument(f"queues is {queues}, expected at least 1")
        if order and self._servers.is_direct:
            raise InvalidArgument("name servers keep a topic's order: give a name server's address, not a broker's")
        brokers = yield from self._servers.brokers(cluster=cluster, broker_name=broker_name)
        check_one_cluster(brokers, cluster)
        if not exist_ok:
            for broker in brokers:
                if (yield from self._servers.topic_config(broker, topic)) is not None:
                    raise InvalidArgument(
                        f"topic {topic} already exists on {broker.broker_name}; change it with update, "
                        "or allow that with --exist-ok (exist_ok=True)"
                    )
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=perm,
            order=order,
        )
        changes = {f"+{name}": value for name, value in (attributes or {}).items()}
        command = _change(_checked(config), changes)
        yield from self._servers.invoke_brokers(brokers, command)
        if order:
            yield from self.set_order(topic, ";".join(f"{one.broker_name}:{queues}" for one in brokers))
        return brokers

    def update(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: Perm | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker_name: str | None = None,
    ) -> Operation[Mapping[str, TopicConfig]]:
        """Change what is given, at every master that has the topic; the rest stays as it is at each of them.

        Args:
            topic: its name.
            queues: queues to read and to write at each broker.
            read_queues, write_queues: the same, one alone. Take away queues to write first, and those to read once they
                were consumed: nobody reads what lies beyond.
            perm: its permissions.
            attributes: attributes to set, or with None to delete.
            broker_name: only at this broker.

        Returns:
            Its new configuration, by broker name.

        Raises:
            InvalidArgument: a number that no broker takes.
            BrokerError: there is no such topic (code 17), or a broker refused the change.
        """
        found = yield from self._configs_of(topic, broker_name)
        changes = {
            f"-{name}" if value is None else f"+{name}": value or "" for name, value in (attributes or {}).items()
        }
        now: dict[str, TopicConfig] = {}
        for broker, config in found:
            changed = _checked(
                dataclasses.replace(
                    config,
                    read_queue_nums=_first(read_queues, queues, config.read_queue_nums),
                    write_queue_nums=_first(write_queues, queues, config.write_queue_nums),
                    perm=config.perm if perm is None else perm,
                )
            )
            yield from self._servers.invoke_brokers([broker], _change(changed, changes))
            now[broker.broker_name] = (yield from self._servers.topic_config(broker, topic)) or changed
        return now

    def _configs_of(self, topic: str, broker_name: str | None) -> Operation[tuple[tuple[BrokerRef, TopicConfig], ...]]:
        route = yield from self._servers.route(topic)
        found = []
        for part in route.parts if broker_name is None else [route.part_of(broker_name)]:
            config = yield from self._servers.topic_config(part.broker, topic)
            if config is None:
                raise no_topic(topic, part.broker.address)
            found.append((part.broker, config))
        return tuple(found)

    def delete(self, topic: str, *, cluster: str | None = None) -> Operation[tuple[BrokerRef, ...]]:
        """Delete a topic at every master, its messages' queues with it, and at every name server.

        Args:
            topic: its name.
            cluster: only there; the topic stays at the other clusters.

        Returns:
            The brokers that had it.

        Raises:
            BrokerError: there is no such topic (code 17), or a broker refused to delete it.
        """
        route = yield from self._servers.route(topic)
        brokers = tuple(part.broker for part in route.parts if cluster is None or part.broker.cluster == cluster)
        if not brokers:
            raise no_topic(topic, f"cluster {cluster}")
        yield from self._servers.invoke_brokers(brokers, request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic))
        if not self._servers.is_direct:
            yield from self._servers.invoke_namesrv(
                request(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic, clusterName=cluster)
            )
            if route.order_conf and len(brokers) == len(route.parts):
                yield from self.set_order(topic, None)
        return brokers

    # --- Order --------------------------------------------------------------------------------------------------------

    def order(self, topic: str) -> Operation[str | None]:
        """Return a topic's order, ``broker:queues`` joined by ``;``, or None where its order does not span queues."""
        answer = yield from self._servers.ask_namesrv(
            request(RequestCode.GET_KV_CONFIG, namespace=ORDER_NAMESPACE, key=topic), ResponseCode.QUERY_NOT_FOUND
        )
        return answer.fields.get("value") or None

    def set_order(self, topic: str, order_conf: str | None) -> Operation[None]:
        """Set or, with None, take away a topic's order at every name server.

        Raises:
            InvalidArgument: it is not ``broker:queues`` joined by ``;``.
        """
        if order_conf is None:
            command = request(RequestCode.DELETE_KV_CONFIG, namespace=ORDER_NAMESPACE, key=topic)
        else:
            for part in order_conf.split(";"):
                broker_name, _, count = part.rpartition(":")
                if not broker_name or not (count.isascii() and count.isdigit()):
                    raise InvalidArgument(f"invalid part {part!r} of an order: write broker:queues, joined by ';'")
            command = request(RequestCode.PUT_KV_CONFIG, namespace=ORDER_NAMESPACE, key=topic, value=order_conf)
        yield from self._servers.invoke_namesrv(command)


def check_one_cluster(brokers: Iterable[BrokerRef], cluster: str | None) -> None:
    """Refuse several clusters where none was named: a change meant for one must not appear in all of them."""
    clusters = sorted({broker.cluster for broker in brokers})
    if cluster is None and len(clusters) > 1:
        raise InvalidArgument(f"the name servers know several clusters ({', '.join(clusters)}): choose one (--cluster)")


def _is_own(name: str, own: set[str]) -> bool:
    return (
        name in own
        or is_system_topic(name)
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or (name.endswith(_REPLY_SUFFIX) and name.removesuffix(_REPLY_SUFFIX) in own)
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _checked(config: TopicConfig) -> TopicConfig:
    for what, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if not 0 <= count < 1 << 16:
            raise InvalidArgument(f"{count} {what} queues, expected 0 to 65535")
    return config


def _change(config: TopicConfig, changes: Mapping[str, str]) -> Command:
    return request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=config.topic_name,
        defaultTopic=_TEMPLATE_TOPIC,
        readQueueNums=config.read_queue_nums,
        writeQueueNums=config.write_queue_nums,
        perm=int(config.perm),
        topicFilterType=config.topic_filter_type,
        topicSysFlag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(name if name.startswith("-") else f"{name}={value}" for name, value in changes.items()),
        force=False,
    )
