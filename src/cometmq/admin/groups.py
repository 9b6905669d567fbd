"""Consumer groups of a cluster, and their connected members: created, changed, listed, described, deleted.

Source: remoting specification 2.9, 2.10, 2.12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from cometmq.admin.offsets import OffsetOperations
from cometmq.admin.operation import Operation, accepted, succeeded
from cometmq.admin.results import (
    BrokerRef,
    ConsumeMode,
    GroupDescription,
    GroupInFlight,
    GroupLag,
    GroupMembers,
    QueueInFlight,
    ReviveState,
)
from cometmq.admin.servers import Servers, request
from cometmq.admin.topics import TopicOperations, check_one_cluster
from cometmq.errors import BrokerError, InvalidArgument, NotFound
from cometmq.remoting.bodies.assignments import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody
from cometmq.remoting.bodies.config_tables import SubscriptionGroupWrapper
from cometmq.remoting.bodies.connections import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from cometmq.remoting.bodies.in_flight import GroupInFlightBody
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.bodies.stats import ConsumeStatsList, TopicStatsTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.members import Members
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.fields import INT32_MAX
from cometmq.store_config.names import SYSTEM_GROUP_PREFIX, dead_letter_topic, retry_topic, validate_group
from cometmq.store_config.request_modes import MessageRequestMode
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.subscription_groups import SYSTEM_GROUPS

__all__ = ["GroupOperations"]

_OWN_GROUPS = frozenset(config.group_name for config in SYSTEM_GROUPS)
_PAGE = 2000
_RUNNING_INFO_TIMEOUT_MS = 15_000
"""The broker itself waits ten seconds for the client."""


class GroupOperations:
    """Groups. Each method is an operation: the surfaces run it."""

    def __init__(self, servers: Servers) -> None:
        """``servers`` is the way to the cluster."""
        self._servers = servers
        self._offsets = OffsetOperations(servers)

    # --- Looking ------------------------------------------------------------------------------------------------------

    def list(self, *, cluster: str | None = None, system: bool = False) -> Operation[tuple[str, ...]]:
        """Return the names of all consumer groups that brokers know, sorted.

        Args:
            cluster: only those of this cluster.
            system: RocketMQ's own, too.
        """
        return tuple((yield from self.configs(cluster=cluster, system=system)))

    def configs(
        self, *, cluster: str | None = None, system: bool = False
    ) -> Operation[Mapping[str, Mapping[str, SubscriptionGroupConfig]]]:
        """Return the configuration of all groups: by group, then by broker name.

        Args:
            cluster: only those of this cluster.
            system: RocketMQ's own, too.
        """
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker in (yield from self._servers.brokers(cluster=cluster)):
            for name, config in (yield from self._configs_at(broker)).items():
                if system or not _is_own(name):
                    found.setdefault(name, {})[broker.broker_name] = config
        return dict(sorted(found.items()))

    def _configs_at(self, broker: BrokerRef) -> Operation[Mapping[str, SubscriptionGroupConfig]]:
        found: dict[str, SubscriptionGroupConfig] = {}
        while True:
            # A broker that gives them in pages says how many there are; others give all, and look at no field.
            command = request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=len(found), maxGroupNum=_PAGE)
            answer = yield from succeeded(self._servers.call(broker.address, command))
            known = len(found)
            found.update(SubscriptionGroupWrapper.from_json(answer.body).groups)
            if len(found) >= Members(answer.fields).int32("totalGroupNum", 0) or len(found) == known:
                return found

    def lags(self, *, cluster: str | None = None, system: bool = False) -> Operation[tuple[GroupLag, ...]]:
        """Return all groups with what they have not consumed yet. One request to each master.

        Args:
            cluster: only those of this cluster.
            system: RocketMQ's own, too.
        """
        brokers = yield from self._servers.brokers(cluster=cluster)
        answers = yield from self._servers.invoke_brokers(
            brokers, request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
        )
        lags: dict[str, GroupLag] = {}
        for _, answer in answers:
            for entry in ConsumeStatsList.from_json(answer.body).groups:
                for group, topics in entry.items():
                    if not system and _is_own(group):
                        continue
                    before = lags.get(group, GroupLag(group=group, topics=(), lag=0, consumed_messages_per_s=0.0))
                    queues = [(queue, place) for stats in topics for queue, place in stats.offsets.items()]
                    lags[group] = GroupLag(
                        group=group,
                        topics=tuple(sorted({*before.topics, *(queue.topic for queue, _ in queues)})),
                        lag=before.lag
                        + sum(place.broker_offset - max(place.consumer_offset, 0) for _, place in queues),
                        consumed_messages_per_s=before.consumed_messages_per_s
                        + sum(stats.consume_tps for stats in topics),
                    )
        return tuple(sorted(lags.values()))

    def dead_letters(self, groups: Iterable[str], *, cluster: str | None = None) -> Operation[Mapping[str, int]]:
        """Return the number of messages in each group's dead letter topic; groups without such a topic are left out.

        Args:
            groups: the groups.
            cluster: only what brokers of this cluster have.
        """
        brokers = yield from self._servers.brokers(cluster=cluster)
        known = set((yield from TopicOperations(self._servers).list(cluster=cluster, system=True)))
        found: dict[str, int] = {}
        for group in groups:
            topic = dead_letter_topic(group)
            if topic not in known:
                continue
            command = request(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
            for _, call, answer in (yield from self._servers.ask_brokers(brokers, command)):
                stats = accepted(call, answer, ResponseCode.TOPIC_NOT_EXIST)
                if stats.code == ResponseCode.SUCCESS:
                    ends = TopicStatsTable.from_json(stats.body).offsets.values()
                    found[group] = found.get(group, 0) + sum(end.max_offset - end.min_offset for end in ends)
        return found

    def describe(self, group: str) -> Operation[GroupDescription]:
        """Return a group's configuration, its members and where it is.

        Raises:
            NotFound: no broker has such a group.
        """
        return GroupDescription(
            group=group,
            configs=(yield from self._configs_of(group)),
            members=(yield from self.members(group)),
            progress=(yield from self._offsets.progress(group)),
            consume_modes=(yield from self.consume_modes(group)),
        )

    def consume_modes(self, group: str) -> Operation[tuple[ConsumeMode, ...]]:
        """Return for which topics it was set whether a group pulls or pops, by topic and broker.

        Brokers older than 5.0 know nothing but pulls.
        """
        brokers = yield from self._servers.brokers()
        found: list[ConsumeMode] = []
        for broker, call, answer in (
            yield from self._servers.ask_brokers(brokers, request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        ):
            reply = accepted(call, answer, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            if reply.code != ResponseCode.SUCCESS:
                continue
            for topic, modes in MessageRequestModeSerializeWrapper.from_json(reply.body).modes.items():
                if group in modes:
                    mode = ConsumeMode(
                        topic=topic,
                        broker_name=broker.broker_name,
                        mode=modes[group].mode,
                        pop_share_queue_num=modes[group].pop_share_queue_num,
                    )
                    found.append(mode)
        return tuple(sorted(found))

    def in_flight(self, group: str) -> Operation[GroupInFlight]:
        """Return a group's unacknowledged popped messages, and those that wait for it, counted by queue.

        Brokers of CometMQ say it; of others it is known where the group is, and nothing is said of what is in flight.
        They count from their start on: messages popped before are redelivered in their time, and are in no count.

        Raises:
            NotFound: no broker has such a group.
        """
        yield from self._configs_of(group)
        brokers = yield from self._servers.brokers()
        command = request(RequestCode.GET_GROUP_IN_FLIGHT, consumerGroup=group)
        queues: list[QueueInFlight] = []
        revives: dict[str, ReviveState] = {}
        for broker, call, answer in (yield from self._servers.ask_brokers(brokers, command)):
            reply = accepted(call, answer, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            if reply.code == ResponseCode.SUCCESS:
                body = GroupInFlightBody.from_json(reply.body)
                queues += _queues_in_flight(broker, body)
                revives[broker.broker_name] = ReviveState(lag_ms=body.revive_lag_ms, unread=body.revive_unread)
        progress = yield from self._offsets.progress(group)
        queues += [
            QueueInFlight(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                broker_offset=queue.broker_offset,
                consumer_offset=queue.consumer_offset,
                next_offset=max(queue.consumer_offset, 0),
                in_flight=None,
                oldest_unacked_ms=None,
                overdue_ms=0,
            )
            for queue in progress.queues
            if queue.broker_name not in revives
        ]
        return GroupInFlight(group=group, queues=tuple(sorted(queues, key=_place)), revives=revives, lost=progress.lost)

    def _configs_of(self, group: str) -> Operation[Mapping[str, SubscriptionGroupConfig]]:
        configs: dict[str, SubscriptionGroupConfig] = {}
        for broker in (yield from self._servers.brokers()):
            config = yield from self._config_at(broker, group)
            if config is not None:
                configs[broker.broker_name] = config
        if not configs:
            raise NotFound(f"no broker has a group {group}: check the name, or create it: cometmq group create {group}")
        return configs

    def _config_at(self, broker: BrokerRef, group: str) -> Operation[SubscriptionGroupConfig | None]:
        # All of them: a broker asked for one group alone (352) creates it.
        return (yield from self._configs_at(broker)).get(group)

    def members(self, group: str) -> Operation[GroupMembers | None]:
        """Return a group's connected members, and its subscriptions; None without members.

        Each member is connected to every broker of its topics, and gets one notification.
        """
        brokers = yield from self._servers.brokers()
        command = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        found: ConsumerConnection | None = None
        connections: dict[str, Connection] = {}
        for _, call, answer in (yield from self._servers.ask_brokers(brokers, command)):
            reply = accepted(call, answer, ResponseCode.CONSUMER_NOT_ONLINE)
            if reply.code == ResponseCode.CONSUMER_NOT_ONLINE:
                continue
            found = ConsumerConnection.from_json(reply.body)
            for connection in found.connections:
                connections.setdefault(connection.client_id, connection)
        if found is None:
            return None
        return GroupMembers(
            connections=tuple(sorted(connections.values(), key=lambda connection: connection.client_id)),
            subscriptions=found.subscriptions,
            consume_type=found.consume_type,
            message_model=found.message_model,
            consume_from_where=found.consume_from_where,
        )

    def running_info(self, group: str, client_id: str, *, stack: bool = False) -> Operation[ConsumerRunningInfo]:
        """Ask a consumer for its state, through a broker that it is connected to.

        Args:
            group: its group.
            client_id: which member, as :meth:`members` names it.
            stack: with its threads' stacks.

        Raises:
            BrokerError: it is connected to no broker, or did not answer within ten seconds (code 207).
        """
        brokers = yield from self._servers.brokers()
        command = request(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup=group, clientId=client_id, jstackEnable=stack
        )
        trouble: BrokerError | None = None
        for broker in brokers:
            call = self._servers.call(broker.address, command, timeout_ms=_RUNNING_INFO_TIMEOUT_MS)
            try:
                answer = yield from succeeded(call)
            except BrokerError as error:
                trouble = error
                continue
            return ConsumerRunningInfo.from_json(answer.body)
        assert trouble is not None
        raise trouble

    def producers(self, group: str | None = None) -> Operation[Mapping[str, tuple[ProducerInfo | Connection, ...]]]:
        """Return connected producers, by producer group.

        Args:
            group: only this one; brokers older than 5.0 must be given one.
        """
        brokers = yield from self._servers.brokers()
        found: dict[str, dict[str, ProducerInfo | Connection]] = {}
        if group is None:
            answers = yield from self._servers.invoke_brokers(brokers, request(RequestCode.GET_ALL_PRODUCER_INFO))
            for _, answer in answers:
                for name, producers in ProducerTableInfo.from_json(answer.body).groups.items():
                    found.setdefault(name, {}).update({producer.client_id: producer for producer in producers})
        else:
            command = request(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=group)
            for _, call, answered in (yield from self._servers.ask_brokers(brokers, command)):
                # Code 1: this broker has no producer of the group.
                one = accepted(call, answered, ResponseCode.SYSTEM_ERROR)
                if one.code == ResponseCode.SUCCESS:
                    connections = ProducerConnection.from_json(one.body).connections
                    found.setdefault(group, {}).update({each.client_id: each for each in connections})
        return {name: tuple(found[name][client] for client in sorted(found[name])) for name in sorted(found)}

    # --- Changing -----------------------------------------------------------------------------------------------------

    def create(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enable: bool = True,
        broadcast_enable: bool = True,
        orderly: bool = False,
        from_min_enable: bool = True,
        cluster: str | None = None,
        broker_name: str | None = None,
        exist_ok: bool = False,
    ) -> Operation[tuple[BrokerRef, ...]]:
        """Create a consumer group at every master of the cluster.

        Args:
            group: its name.
            retry_max_times: redeliveries of a message before it goes to the dead letters.
            retry_queues: queues of its retry topic at each broker.
            consume_enable: False stops it.
            broadcast_enable: whether its members may each get all messages.
            orderly: True for a group that consumes in order by POP.
            from_min_enable: whether it may begin at the oldest message.
            cluster: only at this cluster; needed where the name servers know several.
            broker_name: only at this broker.
            exist_ok: fine when it is there already; it then becomes as it is asked for here.

        Returns:
            The brokers that have it now.

        Raises:
            InvalidArgument: a name or number that no broker takes; or it is there already.
            BrokerError: a broker refused it.
        """
        validate_group(group)
        brokers = yield from self._servers.brokers(cluster=cluster, broker_name=broker_name)
        check_one_cluster(brokers, cluster)
        if not exist_ok:
            for broker in brokers:
                if (yield from self._config_at(broker, group)) is not None:
                    raise InvalidArgument(
                        f"group {group} already exists on {broker.broker_name}; change it with update, "
                        "or allow that with --exist-ok (exist_ok=True)"
                    )
        config = SubscriptionGroupConfig(
            group_name=group,
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queues,
            consume_enable=consume_enable,
            consume_broadcast_enable=broadcast_enable,
            consume_message_orderly=orderly,
            consume_from_min_enable=from_min_enable,
        )
        for broker in brokers:
            yield from self._put(broker, config)
        return brokers

    def update(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
        consume_enable: bool | None = None,
        broadcast_enable: bool | None = None,
        orderly: bool | None = None,
        from_min_enable: bool | None = None,
        broker_name: str | None = None,
    ) -> Operation[Mapping[str, SubscriptionGroupConfig]]:
        """Change what is given, at every master that has the group; the rest stays as it is at each of them.

        Args:
            group: its name.
            retry_max_times, retry_queues, consume_enable, broadcast_enable, orderly, from_min_enable: as for
                :meth:`create`; None leaves it as it is.
            broker_name: only at this broker.

        Returns:
            Its new configuration, by broker name.

        Raises:
            InvalidArgument: a number that no broker takes.
            NotFound: no broker has such a group.
        """
        given = {
            "retry_max_times": retry_max_times,
            "retry_queue_nums": retry_queues,
            "consume_enable": consume_enable,
            "consume_broadcast_enable": broadcast_enable,
            "consume_message_orderly": orderly,
            "consume_from_min_enable": from_min_enable,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        now: dict[str, SubscriptionGroupConfig] = {}
        for broker in (yield from self._servers.brokers(broker_name=broker_name)):
            config = yield from self._config_at(broker, group)
            if config is not None:
                changed = now[broker.broker_name] = dataclasses.replace(config, **changes)  # type: ignore[arg-type]
                yield from self._put(broker, changed)
        if not now:
            raise NotFound(f"no broker has a group {group}: check the name, or create it: cometmq group create {group}")
        return now

    def _put(self, broker: BrokerRef, config: SubscriptionGroupConfig) -> Operation[None]:
        if config.retry_max_times < -1 or not 0 <= config.retry_queue_nums < 1 << 16:
            raise InvalidArgument(
                f"{config.retry_max_times} redeliveries, {config.retry_queue_nums} retry queues: redeliveries must be "
                "at least -1, and retry queues 0 to 65535"
            )
        body = encode(config.encode(), layout=Layout.COMPACT)
        yield from self._servers.invoke_brokers(
            [broker], request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        )

    def set_consume_mode(
        self,
        group: str,
        topic: str,
        mode: MessageRequestMode,
        *,
        pop_share_queue_num: int = 0,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> Operation[tuple[BrokerRef, ...]]:
        """Say whether a group pulls or pops a topic, at every master that has the topic.

        Members that let brokers assign their queues change over within seconds; others go on as they do.

        Args:
            group: its name; a broker that makes groups on their first use makes it.
            topic: of which topic's messages.
            mode: by pulls, or by pops.
            pop_share_queue_num: with POP, whose queues a member pops besides its own: those of so many members behind
                it; 0, a negative number, or one that reaches round: all queues.
            cluster: only at this cluster.
            broker_name: only at this broker.

        Returns:
            The brokers that have it now.

        Raises:
            InvalidArgument: a number that no broker takes.
            NotFound: no such broker has the topic.
            BrokerError: nobody has the topic, or a broker refused it.
        """
        if not -1 <= pop_share_queue_num <= INT32_MAX:
            raise InvalidArgument(f"pop_share_queue_num is {pop_share_queue_num}, expected -1 to {INT32_MAX}")
        route = yield from self._servers.route(topic)
        brokers = tuple(
            part.broker
            for part in route.parts
            if cluster in (None, part.broker.cluster) and broker_name in (None, part.broker.broker_name)
        )
        if not brokers:
            wanted = " ".join(
                f"{kind} {name}" for kind, name in (("broker", broker_name), ("cluster", cluster)) if name is not None
            )
            names = ", ".join(f"{part.broker.broker_name} of {part.broker.cluster}" for part in route.parts)
            raise NotFound(f"topic {topic} is not at {wanted}; it is at {names}")
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=pop_share_queue_num
        )
        yield from self._servers.invoke_brokers(
            brokers, request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.to_json())
        )
        return brokers

    def delete(
        self, group: str, *, clean_offsets: bool = True, delete_topics: bool = True
    ) -> Operation[tuple[BrokerRef, ...]]:
        """Delete a group at every master that has it.

        Args:
            group: its name.
            clean_offsets: its progress, too. Without, a group of that name goes on there.
            delete_topics: its retry topic and its dead letters, too.

        Returns:
            The brokers that had it, or progress of it where it is not there any more.

        Raises:
            NotFound: no broker has such a group, or progress of it that shall go.
            BrokerError: a broker refused to delete it.
        """
        had: list[BrokerRef] = []
        brokers = yield from self._servers.brokers()
        for broker in brokers:
            config = yield from self._config_at(broker, group)
            had += [broker] if config is not None else []
        if not had and clean_offsets:
            # Deleted without its progress earlier: that can be removed yet.
            left = {one.broker_name for one in (yield from self._offsets.progress(group)).queues}
            had = [broker for broker in brokers if broker.broker_name in left]
        if not had:
            raise NotFound(f"no broker has a group {group}: check the name; cometmq group list shows all")
        yield from self._servers.invoke_brokers(
            had, request(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, cleanOffset=clean_offsets)
        )
        for topic in [retry_topic(group), dead_letter_topic(group)] if delete_topics else []:
            yield from self._servers.invoke_brokers(had, request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic))
            if not self._servers.is_direct:
                yield from self._servers.invoke_namesrv(request(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic))
        return tuple(had)


def _queues_in_flight(broker: BrokerRef, body: GroupInFlightBody) -> list[QueueInFlight]:
    return [
        QueueInFlight(
            topic=queue.topic,
            broker_name=broker.broker_name,
            queue_id=queue.queue_id,
            broker_offset=queue.broker_offset,
            consumer_offset=queue.consumer_offset,
            next_offset=queue.next_offset,
            in_flight=queue.in_flight,
            oldest_unacked_ms=None if queue.oldest_ms < 0 else queue.oldest_ms,
            overdue_ms=queue.overdue_ms,
        )
        for queue in body.queues
    ]


def _place(queue: QueueInFlight) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def _is_own(group: str) -> bool:
    return group in _OWN_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
