"""Which servers are asked: the name servers and brokers of a cluster, or one broker alone.

Name servers do not know of each other. A question goes to the one that answered last, and to the next where that one
cannot be reached; a change goes to all of them.

Threads: those of its owner, one at a time. Source: remoting specification 7.1, 7.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cometmq.admin.operation import Answer, Call, Operation, accepted, ask, ask_all, succeeded
from cometmq.admin.results import BrokerRef
from cometmq.client.trace.trace_records import TRACE_TOPIC
from cometmq.errors import BrokerError, ConnectionLost, InvalidArgument, NotFound, RequestTimeout
from cometmq.remoting.addresses import parse_address
from cometmq.remoting.bodies.body import decode_body
from cometmq.remoting.bodies.config_tables import TopicConfigAndMappingSerializeWrapper, decode_topic
from cometmq.remoting.bodies.routes import ClusterInfo, QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, request
from cometmq.store_config.java_properties import parse_properties
from cometmq.store_config.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.store_config.topic_config import TopicConfig

__all__ = ["Route", "Servers", "TopicQueues", "lost_broker", "lost_masters", "no_topic", "request"]

_PAGE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueues:
    """A topic's queues at one broker.

    Attributes:
        broker: its master.
        read_queues, write_queues, perm: as the broker registered them.
    """

    broker: BrokerRef
    read_queues: int
    write_queues: int
    perm: int

    @property
    def all_queues(self) -> int:
        """Queues that may hold messages."""
        return max(self.read_queues, self.write_queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a topic is.

    Attributes:
        topic: its name.
        parts: its queues, by broker.
        order_conf: where its order spans queues.
    """

    topic: str
    parts: tuple[TopicQueues, ...]
    order_conf: str | None = None

    def part_of(self, broker_name: str | None) -> TopicQueues:
        """Return the part at a broker; None means the only one.

        Raises:
            InvalidArgument: no name was given and the topic is at several brokers.
            NotFound: the broker does not have the topic.
        """
        if broker_name is None:
            if len(self.parts) == 1:
                return self.parts[0]
            names = ", ".join(part.broker.broker_name for part in self.parts)
            raise InvalidArgument(f"topic {self.topic} is on several brokers ({names}): choose one (--broker-name)")
        for part in self.parts:
            if part.broker.broker_name == broker_name:
                return part
        raise NotFound(f"broker {broker_name} does not have topic {self.topic}")


class Servers:
    """The way to a cluster, without sockets."""

    def __init__(self, *, namesrv: Sequence[str] = (), broker: str | None = None, timeout_ms: int = 5_000) -> None:
        """Ask nobody yet.

        Args:
            namesrv: addresses of name servers; or
            broker: the address of one broker, which is then the whole cluster.
            timeout_ms: longest wait for one answer.

        Raises:
            InvalidArgument: neither or both were given, or an address is invalid.
        """
        if bool(namesrv) == (broker is not None):
            raise InvalidArgument("give name servers' addresses or one broker's address, not both")
        for address in [*namesrv, *([broker] if broker is not None else [])]:
            parse_address(address)
        if timeout_ms < 1:
            raise InvalidArgument(f"timeout_ms is {timeout_ms}, expected at least 1")
        self._namesrv = list(namesrv)
        self._broker = broker
        self._broker_ref: BrokerRef | None = None
        self.timeout_ms = timeout_ms

    @property
    def place(self) -> str:
        """The servers' addresses."""
        return f"broker {self._broker}" if self._broker is not None else ";".join(self._namesrv)

    @property
    def is_direct(self) -> bool:
        """True where one broker is asked, without a name server."""
        return self._broker is not None

    def call(self, address: str, command: Command, *, timeout_ms: int | None = None) -> Call:
        """Return a call of a server."""
        return Call(address, command, self.timeout_ms if timeout_ms is None else timeout_ms)

    # --- Name servers -------------------------------------------------------------------------------------------------

    def _needed_namesrv(self) -> list[str]:
        if not self._namesrv:
            raise InvalidArgument("a broker cannot answer this: give a name server's address instead")
        return list(self._namesrv)

    def ask_namesrv(self, command: Command, *codes: int) -> Operation[Command]:
        """Ask the name server that answered last, or the next one that can be reached.

        Returns:
            An answer that says success or has one of the codes.

        Raises:
            InvalidArgument: there is no name server, only a broker.
            BrokerError: the answer has another code.
            ConnectionLost, RequestTimeout: none of them could be reached; it is the last one's, and names all.
        """
        troubles: list[ConnectionLost | RequestTimeout] = []
        for address in self._needed_namesrv():
            call = self.call(address, command)
            try:
                answer = yield from ask(call)
            except (ConnectionLost, RequestTimeout) as error:
                troubles.append(error)
                continue
            self._namesrv.remove(address)
            self._namesrv.insert(0, address)
            return accepted(call, answer, *codes)
        if len(troubles) == 1:
            raise troubles[0]
        # That the last one was not reached does not say that none was.
        kind = ConnectionLost if isinstance(troubles[-1], ConnectionLost) else RequestTimeout
        raise kind("; ".join(error.message for error in troubles)) from troubles[-1].__cause__

    def invoke_namesrv(self, command: Command, *codes: int) -> Operation[list[Command]]:
        """Change something at every name server; all get the request before the first refusal is raised.

        Raises:
            InvalidArgument, BrokerError, ConnectionLost, RequestTimeout: as :meth:`ask_namesrv`; some of them may have
                made the change.
        """
        answers = yield from ask_all(self.call(address, command) for address in sorted(self._needed_namesrv()))
        return [accepted(call, answer, *codes) for call, answer in answers]

    # --- Brokers ------------------------------------------------------------------------------------------------------

    def brokers(
        self, *, cluster: str | None = None, broker_name: str | None = None, slaves: bool = False
    ) -> Operation[tuple[BrokerRef, ...]]:
        """Return the brokers of the cluster, masters first, by name.

        Args:
            cluster: only this one; name servers may know several.
            broker_name: only this one.
            slaves: slaves, too.

        Raises:
            NotFound: there is none.
        """
        return (yield from self.brokers_and_lost(cluster=cluster, broker_name=broker_name, slaves=slaves))[0]

    def brokers_and_lost(
        self, *, cluster: str | None = None, broker_name: str | None = None, slaves: bool = False
    ) -> Operation[tuple[tuple[BrokerRef, ...], tuple[BrokerRef, ...]]]:
        """Return the brokers as :meth:`brokers` does, and the masters among them that cannot be asked: lost ones.

        A master is lost where its name has slaves alone, and where a name server of CometMQ says so of the last day;
        upstream's forgets the name of a broker whose connection ended.

        Raises:
            NotFound: there is none that can be asked.
        """
        found, lost = ((yield from self._only_broker()), ()) if self.is_direct else (yield from self._all_brokers())
        chosen = tuple(
            broker
            for broker in found
            if (cluster is None or broker.cluster == cluster)
            and (broker_name is None or broker.broker_name == broker_name)
            and (slaves or broker.is_master or self.is_direct)
        )
        if not chosen:
            wanted = f"broker {broker_name}" if broker_name is not None else "master" if not slaves else "broker"
            where = "" if cluster is None else f" in cluster {cluster}"
            known = ", ".join(sorted({f"{broker.cluster}/{broker.broker_name}" for broker in found}))
            gone = ", ".join(sorted({f"{broker.cluster}/{broker.broker_name}" for broker in lost}))
            raise NotFound(
                f"no {wanted} is registered{where}; known are: {known or 'none'}" + (f"; lost: {gone}" if gone else "")
            )
        missing = tuple(
            broker
            for broker in lost
            if (cluster is None or broker.cluster == cluster)
            and (broker_name is None or broker.broker_name == broker_name)
        )
        return chosen, missing

    def _all_brokers(self) -> Operation[tuple[tuple[BrokerRef, ...], tuple[BrokerRef, ...]]]:
        """Return the brokers that live, and the masters that are lost."""
        answer = yield from self.ask_namesrv(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        info = ClusterInfo.from_json(answer.body)
        found = [
            BrokerRef(cluster=data.cluster or "", broker_name=name, broker_id=broker_id, address=address)
            for name, data in info.brokers.items()
            for broker_id, address in data.broker_addresses.items()
        ]
        in_order = sorted(found, key=lambda broker: (broker.cluster, broker.broker_id != 0, broker.broker_name))
        return tuple(in_order), lost_masters(info)

    def _only_broker(self) -> Operation[tuple[BrokerRef, ...]]:
        if self._broker_ref is None:
            assert self._broker is not None
            call = self.call(self._broker, request(RequestCode.GET_BROKER_CONFIG))
            answer = yield from succeeded(call)
            settings = parse_properties(answer.body)
            broker_id = settings.get("brokerId", "0")
            self._broker_ref = BrokerRef(
                cluster=settings.get("brokerClusterName", ""),
                broker_name=settings.get("brokerName", ""),
                broker_id=int(broker_id) if broker_id.isascii() and broker_id.isdigit() else 0,
                address=self._broker,
            )
        return (self._broker_ref,)

    def ask_brokers(
        self, brokers: Iterable[BrokerRef], command: Command, *, timeout_ms: int | None = None
    ) -> Operation[list[tuple[BrokerRef, Call, Answer]]]:
        """Ask several brokers the same at the same time; return what each answered, or why it did not."""
        asked = tuple(brokers)
        answers = yield from ask_all(self.call(broker.address, command, timeout_ms=timeout_ms) for broker in asked)
        return [(broker, call, answer) for broker, (call, answer) in zip(asked, answers, strict=True)]

    def invoke_brokers(
        self, brokers: Iterable[BrokerRef], command: Command
    ) -> Operation[list[tuple[BrokerRef, Command]]]:
        """Ask several brokers; all must say success. All are asked before the first refusal is raised.

        Raises:
            BrokerError, ConnectionLost, RequestTimeout: of the first that did not; the others may have done it.
        """
        answers = yield from self.ask_brokers(brokers, command)
        return [(broker, accepted(call, answer)) for broker, call, answer in answers]

    # --- Topics -------------------------------------------------------------------------------------------------------

    def find_route(self, topic: str) -> Operation[Route | None]:
        """Return where a topic is, or None where nobody has it."""
        if self.is_direct:
            return (yield from self._direct_route(topic))
        answer = yield from self.ask_namesrv(
            request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic), ResponseCode.TOPIC_NOT_EXIST
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        data = TopicRouteData.from_json(answer.body)
        masters = {
            broker.broker_name: BrokerRef(
                cluster=broker.cluster or "",
                broker_name=broker.broker_name,
                broker_id=0,
                address=broker.broker_addresses[0],
            )
            for broker in data.broker_datas
            if 0 in broker.broker_addresses
        }
        parts = [
            _part(masters[queues.broker_name], queues) for queues in data.queue_datas if queues.broker_name in masters
        ]
        parts.sort(key=lambda part: part.broker.broker_name)
        return Route(topic=topic, parts=tuple(parts), order_conf=data.order_topic_conf)

    def _direct_route(self, topic: str) -> Operation[Route | None]:
        (broker,) = yield from self._only_broker()
        config = yield from self.topic_config(broker, topic)
        if config is None:
            return None
        part = TopicQueues(
            broker=broker,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            perm=int(config.perm),
        )
        return Route(topic=topic, parts=(part,))

    def route(self, topic: str) -> Operation[Route]:
        """Return where a topic is.

        Raises:
            BrokerError: nobody has it (code 17).
        """
        found = yield from self.find_route(topic)
        if found is None or not found.parts:
            where = self._broker if self._broker is not None else self._namesrv[0]
            raise no_topic(topic, where)
        return found

    def topic_config(self, broker: BrokerRef, topic: str) -> Operation[TopicConfig | None]:
        """Return a topic's configuration at one broker, or None where it does not have the topic."""
        call = self.call(broker.address, request(RequestCode.GET_TOPIC_CONFIG, topic=topic, lo=True))
        answer = yield from succeeded(call, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a 4.9 broker, which gives them all at once
            return (yield from self.topic_configs(broker)).get(topic)
        return decode_body("TopicConfig", answer.body, decode_topic)

    def topic_configs(self, broker: BrokerRef) -> Operation[Mapping[str, TopicConfig]]:
        """Return all topics of one broker, by name."""
        found: dict[str, TopicConfig] = {}
        while True:
            # A broker that gives them in pages says how many there are; others give all, and look at no field.
            command = request(RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=len(found), maxTopicNum=_PAGE)
            answer = yield from succeeded(self.call(broker.address, command))
            page = TopicConfigAndMappingSerializeWrapper.from_json(answer.body).topics
            known = len(found)
            found.update(page)
            if len(found) >= Members(answer.fields).int32("totalTopicNum", 0) or len(found) == known:
                return found


def lost_masters(info: ClusterInfo) -> tuple[BrokerRef, ...]:
    """Return the masters that cannot be asked, by a name server's answer: :meth:`Servers.brokers_and_lost`."""
    without_master = {name: data for name, data in info.brokers.items() if 0 not in data.broker_addresses}
    lost = [
        BrokerRef(cluster=data.cluster or "", broker_name=name, broker_id=0, address=data.broker_addresses.get(0, ""))
        for name, data in {**(info.lost or {}), **without_master}.items()
        if name in without_master or name not in info.brokers
    ]
    return tuple(sorted(lost, key=lambda broker: (broker.cluster, broker.broker_name)))


def lost_broker(broker: BrokerRef) -> ConnectionLost:
    """Return the error of a master that cannot be asked, because it is lost."""
    where = f" (last at {broker.address})" if broker.address else ""
    return ConnectionLost(
        f"broker {broker.broker_name}{where} is lost: it went without unregistering. Start it again, or have it "
        f"forgotten if it was removed on purpose: cometmq cluster forget {broker.broker_name}"
    )


def _part(broker: BrokerRef, queues: QueueData) -> TopicQueues:
    return TopicQueues(
        broker=broker, read_queues=queues.read_queue_nums, write_queues=queues.write_queue_nums, perm=queues.perm
    )


def no_topic(topic: str, address: str) -> BrokerError:
    """Return the error of a topic that nobody has."""
    return BrokerError(
        f"topic {topic} does not exist",
        code=ResponseCode.TOPIC_NOT_EXIST,
        address=address,
        advice=_advice_for_missing(topic),
    )


def _advice_for_missing(topic: str) -> str:
    """Return the advice of that error."""
    for prefix, kind in ((DLQ_PREFIX, "dead letters"), (RETRY_PREFIX, "messages to retry")):
        if topic.startswith(prefix):
            return f"group {topic.removeprefix(prefix)} has no {kind}; a broker creates the topic with the first one"
    if topic == TRACE_TOPIC:
        return "no client has traced a message: set enable_trace=True on producers and consumers"
    return f"check the name, or create it: cometmq topic create {topic}"
