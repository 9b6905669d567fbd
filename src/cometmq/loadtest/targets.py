"""Where a topic's queues are, asked from a name server or from one broker; and the topic itself, where it is new.

Source: remoting specification 2.9 (17), 2.10 (202), 2.11 (105, 106), 5.2, 5.3.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cometmq.errors import BrokerError, ConnectionLost, InvalidArgument, TopicNotFound
from cometmq.remoting.addresses import host_port, parse_address, parse_addresses
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from cometmq.remoting.bodies.stats import TopicStatsTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel

__all__ = ["Target", "broker_names", "find_target"]

_PERM_READ_WRITE = 6
_PERM_WRITE = 2
_MASTER = 0
_QUEUES_USUAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The queues that a run uses.

    Attributes:
        topic: the topic.
        endpoints: numeric host and port of each broker.
        queues: (index into ``endpoints``, queue id) of each queue.
    """

    topic: str
    endpoints: tuple[tuple[str, int], ...]
    queues: tuple[tuple[int, int], ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The brokers as text, ``host:port``."""
        return tuple(host_port(host, port) for host, port in self.endpoints)


def find_target(
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    topic: str,
    queues: int | None = None,
    create: bool = False,
    timeout_ms: int = 5_000,
) -> Target:
    """Return the queues of a topic that can be written to and read.

    Args:
        namesrv: addresses of name servers, ``host:port``, several with ``;`` between them; the first that answers.
        broker: address of one broker, instead of a name server.
        topic: the topic's name.
        queues: use so many queues of each broker; None: all there are, and 4 where the topic is made.
        create: make the topic where it is missing, and give it more queues where it has too few: at the broker, or at
            every master that the name server knows.
        timeout_ms: for each answer.

    Raises:
        InvalidArgument: not one of ``namesrv`` and ``broker``; or more queues than there are.
        TopicNotFound: there is no such topic, or no broker has a queue of it that is both written and read.
        BrokerError: a server refused.
        ConnectionLost, RequestTimeout: a server does not answer.
    """
    if (namesrv is None) == (broker is None):
        raise InvalidArgument("give a name server's or a broker's address")
    if broker is not None:
        counts = {broker: _queues_of_broker(broker, topic, queues, create=create, timeout_ms=timeout_ms)}
    else:
        counts = _queues_by_name_server(namesrv or "", topic, queues, create=create, timeout_ms=timeout_ms)
    used = {address: count if queues is None else min(count, queues) for address, count in counts.items() if count > 0}
    if not used:
        raise TopicNotFound(f"topic {topic} has no queue that is written and read", topic=topic)
    for address, count in used.items():
        if queues is not None and count < queues:
            raise InvalidArgument(f"topic {topic} has {count} queues on {address}, expected {queues}")
    places = [(index, queue) for index, count in enumerate(used.values()) for queue in range(count)]
    return Target(topic=topic, endpoints=tuple(_numeric(address) for address in used), queues=tuple(places))


def broker_names(target: Target, *, timeout_ms: int) -> list[str]:
    """Return each endpoint's brokerName, as its configuration has it: handles of popped messages name it.

    Raises:
        BrokerError: a broker refused, or its configuration names none.
        ConnectionLost, RequestTimeout: a broker does not answer.
    """
    return [_broker_name(address, timeout_ms=timeout_ms) for address in target.addresses]


def _broker_name(address: str, *, timeout_ms: int) -> str:
    with Channel(address) as channel:
        answer = _ask(channel, RequestCode.GET_BROKER_CONFIG, {}, timeout_ms=timeout_ms)
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == "brokerName":
            return value.strip()
    raise BrokerError("the broker's configuration has no brokerName", code=answer.code, address=address)


def _numeric(address: str) -> tuple[str, int]:
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost(f"cannot resolve host {host}: {error.strerror or error}") from error
    # IPv4 first where a name has both: brokers listen there.
    family_first = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(family_first[0][4][0]), port


def _ask(channel: Channel, code: RequestCode, fields: Mapping[str, str], *, timeout_ms: int) -> Command:
    answer = channel.invoke(Command(code=code, fields=fields), timeout_ms=timeout_ms)
    if answer.code == ResponseCode.SUCCESS:
        return answer
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise TopicNotFound(
            f"there is no topic {fields['topic']} at {channel.address}: create it with --create (create=True)",
            topic=fields["topic"],
        )
    raise BrokerError(answer.remark, code=answer.code, address=channel.address)


def _create(channel: Channel, topic: str, queues: int, *, timeout_ms: int) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(_PERM_READ_WRITE),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    _ask(channel, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, timeout_ms=timeout_ms)


def _is_name_server(channel: Channel, timeout_ms: int) -> bool:
    request = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
    return channel.invoke(request, timeout_ms=timeout_ms).code == ResponseCode.SUCCESS


def _queues_of_broker(address: str, topic: str, queues: int | None, *, create: bool, timeout_ms: int) -> int:
    with Channel(address) as channel:
        try:
            answer = _ask(channel, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, timeout_ms=timeout_ms)
        except TopicNotFound:
            if not create:
                raise
            there = 0
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and _is_name_server(channel, timeout_ms):
                raise InvalidArgument(
                    f"{address} is a name server, not a broker: pass it as --namesrv (namesrv=…)"
                ) from error
            raise
        else:
            there = len({queue.queue_id for queue in TopicStatsTable.from_json(answer.body).offsets})
        wanted = queues or there or _QUEUES_USUAL
        if create and there < wanted:
            _create(channel, topic, wanted, timeout_ms=timeout_ms)
            return wanted
        return there


def _queues_by_name_server(
    namesrv: str, topic: str, queues: int | None, *, create: bool, timeout_ms: int
) -> dict[str, int]:
    with _first_that_answers(parse_addresses(namesrv)) as channel:
        if not create:
            answer = _ask(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, timeout_ms=timeout_ms)
            return _route_counts(TopicRouteData.from_json(answer.body))
        answer = _ask(channel, RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_ms=timeout_ms)
    brokers = ClusterInfo.from_json(answer.body).brokers
    masters = _masters(brokers.values())
    if not masters:
        raise TopicNotFound(f"no broker is registered at {namesrv}: topic {topic} cannot be made", topic=topic)
    return {
        address: _queues_of_broker(address, topic, queues, create=True, timeout_ms=timeout_ms)
        for address in masters.values()
    }


def _masters(brokers: Iterable[BrokerData]) -> dict[str, str]:
    found = {broker.broker_name: broker.broker_addresses.get(_MASTER) for broker in brokers}
    return {name: address for name, address in found.items() if address is not None}


def _route_counts(route: TopicRouteData) -> dict[str, int]:
    masters = _masters(route.broker_datas)
    return {
        masters[data.broker_name]: min(data.read_queue_nums, data.write_queue_nums)
        for data in route.queue_datas
        if data.broker_name in masters and data.perm & _PERM_WRITE
    }


def _first_that_answers(addresses: Sequence[str]) -> Channel:
    failed: list[str] = []
    for address in addresses:
        channel = Channel(address)
        try:
            channel.connect()
        except ConnectionLost as error:
            channel.close()
            failed.append(error.message)
        else:
            return channel
    raise ConnectionLost("; ".join(failed))
