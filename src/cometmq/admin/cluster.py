"""A cluster's brokers and name servers: their list, state and settings, and the key-value store.

Source: remoting specification 2.10 to 2.12, 5.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cometmq.admin.operation import Answer, Call, Operation, accepted, succeeded
from cometmq.admin.results import BrokerRef, BrokerStatus
from cometmq.admin.servers import Servers, lost_broker, lost_masters, request
from cometmq.errors import Error, InvalidArgument, NotFound
from cometmq.remoting.bodies.config_tables import KVTable
from cometmq.remoting.bodies.routes import ClusterInfo
from cometmq.remoting.bodies.stats import BrokerStatsData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.members import Members
from cometmq.store.options import a_text
from cometmq.store_config.java_properties import parse_properties
from cometmq.store_config.topic_config import Perm

__all__ = ["ClusterOperations"]


class ClusterOperations:
    """The cluster. Each method is an operation: the surfaces run it."""

    def __init__(self, servers: Servers) -> None:
        """``servers`` is the way to the cluster."""
        self._servers = servers

    # --- Looking ------------------------------------------------------------------------------------------------------

    def brokers(self, *, cluster: str | None = None) -> Operation[tuple[BrokerRef, ...]]:
        """Return all brokers, slaves too, by cluster.

        Args:
            cluster: only those of this cluster.

        Raises:
            NotFound: there is none.
        """
        return (yield from self._servers.brokers(cluster=cluster, slaves=True))

    def read_only(self, brokers: Iterable[BrokerRef]) -> Operation[frozenset[str]]:
        """Return the names of those brokers whose write permission was removed at the name server.

        As the name server has it for the topic that each broker makes of its own name; a broker whose topic cannot be
        read either (``brokerTopicEnable=false``) is not among them. None where a broker is asked without a name server.
        """
        found = set()
        for name in sorted({broker.broker_name for broker in brokers}) if not self._servers.is_direct else ():
            route = yield from self._servers.find_route(name)
            own = [part.perm for part in route.parts if part.broker.broker_name == name] if route is not None else []
            if any(perm & (Perm.READ | Perm.WRITE) == Perm.READ for perm in own):
                found.add(name)
        return frozenset(found)

    def status(self, *, cluster: str | None = None) -> Operation[tuple[BrokerStatus | tuple[BrokerRef, Error], ...]]:
        """Ask all brokers how they are; one that does not answer, or is lost, stands there with the error.

        Args:
            cluster: only those of this cluster.
        """
        brokers, lost = yield from self._servers.brokers_and_lost(cluster=cluster, slaves=True)
        answers = yield from self._servers.ask_brokers(brokers, request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return (
            *(_status_or_error(broker, call, answer) for broker, call, answer in answers),
            *((broker, lost_broker(broker)) for broker in lost),
        )

    def lost(self, *, cluster: str | None = None) -> Operation[tuple[BrokerRef, ...]]:
        """Return the masters that went without unregistering: no other answer has their messages.

        A name server of CometMQ remembers them for a day. From any name server: those whose names have slaves alone,
        with an empty address.

        Args:
            cluster: only those of this cluster.
        """
        return (yield from self._servers.brokers_and_lost(cluster=cluster))[1]

    def forget(self, broker_name: str) -> Operation[tuple[BrokerRef, ...]]:
        """Let all name servers forget a lost broker that was removed on purpose, as if it had unregistered.

        Returns:
            The broker as it was known; several where name servers know it of several clusters.

        Raises:
            InvalidArgument: the broker is registered, or slaves of its name are.
            NotFound: no such broker is lost.
        """
        answers = yield from self._servers.invoke_namesrv(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        tables = [ClusterInfo.from_json(answer.body) for answer in answers]
        for table in tables:
            if broker_name in table.brokers:
                addresses = ", ".join(table.brokers[broker_name].broker_addresses.values())
                raise InvalidArgument(
                    f"broker {broker_name} is registered ({addresses}): stop it, which unregisters it"
                )
        lost = sorted(
            {broker for table in tables for broker in lost_masters(table)},
            key=lambda broker: (broker.cluster, broker.broker_name, broker.address),
        )
        found = tuple(broker for broker in lost if broker.broker_name == broker_name)
        if not found:
            known = ", ".join(broker.broker_name for broker in lost)
            raise NotFound(f"no broker {broker_name} is lost; lost are: {known or 'none'}")
        for broker in found:
            command = request(
                RequestCode.UNREGISTER_BROKER,
                clusterName=broker.cluster,
                brokerName=broker.broker_name,
                brokerAddr=broker.address,
                brokerId=0,
            )
            yield from self._servers.invoke_namesrv(command)
        return found

    def statistic(self, name: str, key: str) -> Operation[Mapping[str, BrokerStatsData]]:
        """Return one of the brokers' statistics, by broker name; those that do not have it are left out.

        Args:
            name: such as ``TOPIC_PUT_NUMS``, ``GROUP_GET_NUMS``.
            key: such as ``topic``, ``topic@group``.
        """
        brokers = yield from self._servers.brokers()
        command = request(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        found = {}
        for broker, call, answer in (yield from self._servers.ask_brokers(brokers, command)):
            # Code 1: nothing was counted there.
            reply = accepted(call, answer, ResponseCode.SYSTEM_ERROR)
            if reply.code == ResponseCode.SUCCESS:
                found[broker.broker_name] = BrokerStatsData.from_json(reply.body)
        return found

    # --- Settings -----------------------------------------------------------------------------------------------------

    def broker_config(self, *, broker_name: str | None = None) -> Operation[Mapping[str, Mapping[str, str]]]:
        """Return the settings of all masters, or of one, by broker name; upstream's names and texts.

        Raises:
            NotFound: there is no such broker.
        """
        brokers = yield from self._servers.brokers(broker_name=broker_name)
        answers = yield from self._servers.invoke_brokers(brokers, request(RequestCode.GET_BROKER_CONFIG))
        return {broker.broker_name: dict(sorted(parse_properties(answer.body).items())) for broker, answer in answers}

    def set_broker_config(
        self, settings: Mapping[str, str], *, broker_name: str | None = None
    ) -> Operation[Mapping[str, str | None]]:
        """Change settings of all masters, or of one, while they run. Java brokers pass over names they do not know.

        A broker writes them into its settings file, so that they survive a restart.

        Args:
            settings: upstream's names, and texts.
            broker_name: only this broker.

        Returns:
            By broker name: None, or why the change is lost at the broker's next start, such as a read-only file.

        Raises:
            InvalidArgument: nothing to change, or a text that no settings file can hold.
            BrokerError: a setting that may not be changed so (code 16).
        """
        body = _properties(settings)
        brokers = yield from self._servers.brokers(broker_name=broker_name)
        answers = yield from self._servers.invoke_brokers(brokers, request(RequestCode.UPDATE_BROKER_CONFIG, body=body))
        return {broker.broker_name: answer.remark or None for broker, answer in answers}

    def namesrv_config(self) -> Operation[Mapping[str, str]]:
        """Return the settings of the name server that answers."""
        answer = yield from self._servers.ask_namesrv(request(RequestCode.GET_NAMESRV_CONFIG))
        return dict(sorted(parse_properties(answer.body).items()))

    def set_namesrv_config(self, settings: Mapping[str, str]) -> Operation[None]:
        """Change settings of all name servers while they run.

        Raises:
            InvalidArgument: nothing to change, or a text that no settings file can hold.
            BrokerError: a setting that may not be changed so (code 16).
        """
        yield from self._servers.invoke_namesrv(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=_properties(settings)))

    # --- Write permission ---------------------------------------------------------------------------------------------

    def wipe_write_perm(self, broker_name: str) -> Operation[int]:
        """Remove a broker's write permission at all name servers: it can then be drained and stopped.

        Returns:
            How many topics that concerns, at one of them.
        """
        answers = yield from self._servers.invoke_namesrv(
            request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=broker_name)
        )
        return Members(answers[0].fields).required_int32("wipeTopicCount")

    def add_write_perm(self, broker_name: str) -> Operation[int]:
        """Take :meth:`wipe_write_perm` back.

        Returns:
            How many topics that concerns, at one of the name servers.
        """
        answers = yield from self._servers.invoke_namesrv(
            request(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName=broker_name)
        )
        return Members(answers[0].fields).required_int32("addTopicCount")

    # --- Key-value store ----------------------------------------------------------------------------------------------

    def kv_get(self, namespace: str, key: str) -> Operation[str | None]:
        """Return a value of the name servers' key-value store, or None."""
        answer = yield from self._servers.ask_namesrv(
            request(RequestCode.GET_KV_CONFIG, namespace=namespace, key=key), ResponseCode.QUERY_NOT_FOUND
        )
        return answer.fields.get("value") if answer.code == ResponseCode.SUCCESS else None

    def kv_put(self, namespace: str, key: str, value: str) -> Operation[None]:
        """Set a value at every name server."""
        yield from self._servers.invoke_namesrv(
            request(RequestCode.PUT_KV_CONFIG, namespace=namespace, key=key, value=value)
        )

    def kv_delete(self, namespace: str, key: str) -> Operation[None]:
        """Delete a value at every name server; fine where it is not there."""
        yield from self._servers.invoke_namesrv(request(RequestCode.DELETE_KV_CONFIG, namespace=namespace, key=key))

    def kv_list(self, namespace: str) -> Operation[Mapping[str, str]]:
        """Return all values of a namespace, by key."""
        answer = yield from self._servers.ask_namesrv(
            request(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace=namespace), ResponseCode.QUERY_NOT_FOUND
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        return dict(sorted(KVTable.from_json(answer.body).table.items()))

    # --- Cleaning up --------------------------------------------------------------------------------------------------

    def clean(
        self, *, queues: bool = False, log: bool = False, unused_topics: bool = False, broker_name: str | None = None
    ) -> Operation[tuple[BrokerRef, ...]]:
        """Let brokers delete now what they would delete by and by.

        Args:
            queues: parts of consume queues whose messages have expired.
            log: segments of the log that have expired.
            unused_topics: queues whose topic was deleted.
            broker_name: only this broker.

        Raises:
            InvalidArgument: nothing was asked for.
        """
        codes = [
            code
            for wanted, code in (
                (log, RequestCode.DELETE_EXPIRED_COMMITLOG),
                (queues, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
                (unused_topics, RequestCode.CLEAN_UNUSED_TOPIC),
            )
            if wanted
        ]
        if not codes:
            raise InvalidArgument("specify what to clean: queues, log or unused topics")
        brokers = yield from self._servers.brokers(broker_name=broker_name)
        for code in codes:
            for broker in brokers:
                yield from succeeded(self._servers.call(broker.address, request(code)))
        return brokers


def _properties(settings: Mapping[str, str]) -> bytes:
    if not settings:
        raise InvalidArgument("no settings to change were given")
    for name, value in settings.items():
        a_text(name, "a setting's name")
        a_text(value, f"the value of {name}")
        # The other side reads a properties file: text that it would misread is not sent.
        if not name or any(char in "=:#! \\" or not char.isprintable() for char in name):
            raise InvalidArgument(f"{name!r} is not a setting's name")
        if not value.isprintable() or "\\" in value:
            raise InvalidArgument(f"the value of {name} contains a backslash or a non-printable character")
    return "".join(f"{name}={value.strip()}\n" for name, value in settings.items()).encode()


def _status_or_error(broker: BrokerRef, call: Call, answer: Answer) -> BrokerStatus | tuple[BrokerRef, Error]:
    try:
        return _status(broker, KVTable.from_json(accepted(call, answer).body).table)
    except Error as error:
        return broker, error


def _status(broker: BrokerRef, table: Mapping[str, str]) -> BrokerStatus:
    members = Members(table)
    return BrokerStatus(
        broker=broker,
        version=table.get("brokerVersionDesc", ""),
        cometmq_version=table.get("cometmqVersion"),
        put_messages_per_s=_rate(table.get("putTps")),
        get_messages_per_s=_rate(table.get("getTransferredTps")),
        messages_put_today=_since_midnight(members, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        messages_got_today=_since_midnight(members, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        log_min_offset=members.int64("commitLogMinOffset", 0),
        log_max_offset=members.int64("commitLogMaxOffset", 0),
        earliest_timestamp_ms=members.int64("earliestMessageTimeStamp", -1),
        disk_used_ratio=_number(table.get("commitLogDiskRatio")),
        boot_timestamp_ms=members.int64("bootTimestamp", 0),
        table=dict(sorted(table.items())),
    )


def _since_midnight(members: Members, now: str, midnight: str) -> int:
    return members.int64(now, 0) - members.int64(midnight, 0)


def _rate(windows: str | None) -> float | None:
    """Return the rate of the first of three windows; one that has no sample yet is empty."""
    words = (windows or "").split()
    return _number(words[0]) if words else None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
