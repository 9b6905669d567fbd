"""The name server's memory: which brokers live, which topics they have, and the routes made of both.

No sockets and no clock in here: connections are opaque values, and the time is a parameter. The table holds the latest
registration of each broker; nothing of it is on disk, since every broker registers again within 30 seconds.

Rules worth knowing, all upstream's: a registration adds and changes topics and never removes one (unless
``deleteTopicWithBrokerRegistration``); a broker that is not known yet may not register with a single topic, since that
is how a known one reports a change; a broker goes when it is silent for longer than it promised, when it says so, and
when the connection that carried its last registration closes. Not upstream's: a broker name that went without saying so
is remembered as lost, so that tools can name what they could not ask.

Invariant: a topic has at least one broker, a broker name at least one address, a cluster at least one broker name, and
           every address of a broker name is alive. A change of a broker with very many topics pauses (Steps); until it
           is through, some of its topics are as before, and no route names a broker that is gone.
Threads:   one at a time, the server's event loop; one change at a time (Turns), look-ups also during its pauses.
Source:    remoting specification 2.11; upstream's RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cometmq.errors import InvalidArgument, LimitReached
from cometmq.namesrv.turns import Steps
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicQueueMappingInfo, TopicRouteData
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = [
    "BROKER_EXPIRY_MS",
    "DEFAULT_LIMITS",
    "LOST_BROKERS_MAX",
    "LOST_BROKER_MS",
    "Registered",
    "Registration",
    "RouteLimits",
    "RouteTable",
]

BROKER_EXPIRY_MS = 120_000
"""Silence after which a broker is gone that did not say otherwise."""

LOST_BROKER_MS = 24 * 60 * 60 * 1_000
"""How long a broker is remembered that went without unregistering, unless it registers again."""

LOST_BROKERS_MAX = 256
"""Most of them; the oldest make room. Each answer about the cluster has all, and anybody can register."""

STEP_TOPICS = 500
"""Topics that a step of a change enters, changes or removes: under a millisecond."""

MASTER_ID = 0

_UNIT_FLAG = 1
_UNIT_SUBSCRIBED_FLAG = 2
_SYNC_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLimits:
    """Limits of a name server's tables. A registration beyond them is refused."""

    brokers: int = 10_000
    """Addresses of brokers."""
    topics: int = 500_000
    """Topics of all brokers together."""
    name_chars: int = 255
    """Length of a name or an address."""


DEFAULT_LIMITS = RouteLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The header of a broker's registration.

    Attributes:
        cluster: the cluster's name.
        broker_name: the name that a master and its slaves share.
        broker_id: 0 for the master.
        address: ``host:port`` for clients.
        ha_address: ``host:port`` for slaves.
        zone: the zone, or None.
        expiry_ms: the silence after which it is gone, or None for the default.
        enable_acting_master: whether a slave may stand in for the master; None from brokers before 5.0.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    zone: str | None = None
    expiry_ms: int | None = None
    enable_acting_master: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The answer to a registration: a slave learns its master."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _Broker:
    """A broker name. ``addresses`` is by broker id."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    zone: str | None = None
    acting_master: bool = False

    @property
    def least_id(self) -> int:
        return min(self.addresses)


@dataclass(slots=True)
class _Live:
    """One living address."""

    broker_name: str
    last_ms: int
    expiry_ms: int
    version: DataVersion
    connection: Hashable
    ha_address: str
    filter_servers: tuple[str, ...]

    def is_late(self, now_ms: int) -> bool:
        return self.last_ms + self.expiry_ms < now_ms


@dataclass(slots=True)
class _Lost:
    """A broker name that went without unregistering; ``since_ms`` is of the next look at the clock."""

    data: BrokerData
    since_ms: int | None = None


_Key = tuple[str, str]
"""Cluster and address: the key of a living broker."""


class RouteTable:
    """All brokers and topics. No method waits; those that may have much to do return it as steps."""

    def __init__(
        self,
        *,
        limits: RouteLimits = DEFAULT_LIMITS,
        delete_missing_topics: bool = False,
        support_acting_master: bool = False,
    ) -> None:
        """Begin empty.

        Args:
            limits: limits of the tables.
            delete_missing_topics: a registration removes the broker's topics that are not in it.
            support_acting_master: routes show the slave of least id as the master of a name that has lost its own.
        """
        self._limits = limits
        self.delete_missing_topics = delete_missing_topics
        self.support_acting_master = support_acting_master
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}  # by broker name
        self._brokers: dict[str, _Broker] = {}
        # Sets in the order of their making: dictionaries without values.
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[_Key, _Live] = {}
        self._connections: dict[Hashable, set[_Key]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self._lost: dict[str, _Lost] = {}

    @property
    def broker_count(self) -> int:
        """Number of living addresses."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """Number of topics."""
        return len(self._topics)

    # --- Brokers ------------------------------------------------------------------------------------------------------

    def register(
        self, registration: Registration, body: RegisterBrokerBody, *, connection: Hashable, now_ms: int
    ) -> Steps[Registered | None]:
        """Take a broker's registration, in steps.

        Args:
            registration: the header's part.
            body: its topics.
            connection: the connection that it came by, whose end is the broker's.
            now_ms: the time.

        Returns:
            The answer to the broker; None where it was refused because it is not known and named one topic alone.

        Raises:
            InvalidArgument: the broker name is another cluster's; nothing was changed.
            LimitReached: a limit of the table would be passed; nothing was changed.
        """
        version = body.wrapper.data_version
        topics = body.wrapper.topics
        known = self._brokers.get(registration.broker_name)
        key = (registration.cluster, registration.address)
        if known is not None and self._is_outdated(registration, version):
            # A master that was replaced while it could not be reached still tries; it learns nothing and is forgotten.
            self._forget_live(key)
            return Registered()
        if len(topics) == 1 and (known is None or registration.broker_id not in known.addresses):
            return None
        if known is not None and known.cluster != registration.cluster:
            raise InvalidArgument(f"the broker name {registration.broker_name} is of the cluster {known.cluster} here")
        yield from self._check_limits(registration, topics)
        before = self._live.get(key)
        if before is not None and before.broker_name != registration.broker_name:
            # The address has been given to a broker of another name.
            yield from self.unregister(
                cluster=registration.cluster, broker_name=before.broker_name, address=registration.address
            )
        broker = self._enter_broker(registration)
        is_first = registration.broker_id not in broker.addresses
        self._enter_address(broker, registration)
        is_changed = is_first or self.is_changed(registration.cluster, registration.address, version)
        # Before the first pause: a connection that closes meanwhile finds its broker.
        self._enter_live(key, registration, body, connection=connection, now_ms=now_ms)
        learned = self._learned(broker, registration)
        if self._speaks_for_topics(broker, registration):
            yield from self._take_topics(broker, registration, body, is_changed=is_changed)
        return learned

    def _is_outdated(self, registration: Registration, version: DataVersion) -> bool:
        """True where another address has the broker id in a later state."""
        other = self.rival_of(registration)
        live = None if other is None else self._live.get((registration.cluster, other))
        return live is not None and live.version.state_version > version.state_version

    def rival_of(self, registration: Registration) -> str | None:
        """Return the other living address that has the same broker name and id, or None."""
        broker = self._brokers.get(registration.broker_name)
        other = None if broker is None else broker.addresses.get(registration.broker_id)
        if other is None or other == registration.address or (registration.cluster, other) not in self._live:
            return None
        return other

    def _check_limits(self, registration: Registration, topics: Mapping[str, TopicConfig]) -> Steps[None]:
        names = (registration.cluster, registration.broker_name, registration.address, registration.ha_address)
        further = len(self._topics)
        for number, name in enumerate((*names, *topics)):
            if number % (4 * STEP_TOPICS) == 4 * STEP_TOPICS - 1:
                yield
            further += number >= len(names) and name not in self._topics
            if len(name) > self._limits.name_chars:
                raise LimitReached(f"{name[:40]}... has more than {self._limits.name_chars} characters")
        if (registration.cluster, registration.address) not in self._live and len(self._live) >= self._limits.brokers:
            raise LimitReached(f"this name server keeps {self._limits.brokers} brokers at most")
        if further > self._limits.topics:
            raise LimitReached(f"this name server keeps {self._limits.topics} topics at most")

    def _enter_broker(self, registration: Registration) -> _Broker:
        broker = self._brokers.get(registration.broker_name)
        if broker is None:
            broker = self._brokers[registration.broker_name] = _Broker(registration.cluster)
            self._lost.pop(registration.broker_name, None)
        self._clusters.setdefault(registration.cluster, {})[registration.broker_name] = None
        broker.acting_master = bool(registration.enable_acting_master)
        broker.zone = registration.zone
        return broker

    def _enter_address(self, broker: _Broker, registration: Registration) -> None:
        # An address has one id: a slave that became the master left its old one.
        for broker_id, address in list(broker.addresses.items()):
            if address == registration.address and broker_id != registration.broker_id:
                del broker.addresses[broker_id]
        replaced = broker.addresses.get(registration.broker_id)
        if replaced is not None and replaced != registration.address:
            self._forget_live((broker.cluster, replaced))
        broker.addresses[registration.broker_id] = registration.address

    @staticmethod
    def _speaks_for_topics(broker: _Broker, registration: Registration) -> bool:
        """True for a master, and for the first slave of a name without one."""
        if registration.broker_id == MASTER_ID:
            return True
        return registration.enable_acting_master is not None and registration.broker_id == broker.least_id

    def _take_topics(
        self, broker: _Broker, registration: Registration, body: RegisterBrokerBody, *, is_changed: bool
    ) -> Steps[None]:
        name = registration.broker_name
        topics, mappings = body.wrapper.topics, body.wrapper.queue_mappings
        if self.delete_missing_topics and not mappings:
            missing = [topic for topic in self._topics_of.get(name, ()) if topic not in topics]
            yield from self._remove_topics(name, missing)
        is_acting = registration.broker_id != MASTER_ID and broker.acting_master
        for number, topic in enumerate(topics.values()):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            queues = self._topics.get(topic.topic_name)
            if is_changed or queues is None or name not in queues:
                self._enter_topic(name, replace(topic, perm=topic.perm & ~Perm.WRITE) if is_acting else topic)
        if is_changed:
            for number, mapping in enumerate(mappings.values()):
                if number % STEP_TOPICS == STEP_TOPICS - 1:
                    yield
                self._mappings.setdefault(mapping.topic, {})[mapping.broker_name] = mapping

    def _enter_topic(self, broker_name: str, topic: TopicConfig) -> None:
        self._topics_of.setdefault(broker_name, {})[topic.topic_name] = None
        self._topics.setdefault(topic.topic_name, {})[broker_name] = QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=int(topic.perm),
            topic_sys_flag=topic.topic_sys_flag,
        )

    def _enter_live(
        self, key: _Key, registration: Registration, body: RegisterBrokerBody, *, connection: Hashable, now_ms: int
    ) -> None:
        self._forget_live(key)
        self._live[key] = _Live(
            broker_name=registration.broker_name,
            last_ms=now_ms,
            expiry_ms=BROKER_EXPIRY_MS if registration.expiry_ms is None else registration.expiry_ms,
            version=body.wrapper.data_version,
            connection=connection,
            ha_address=registration.ha_address,
            filter_servers=body.filter_servers,
        )
        self._connections.setdefault(connection, set()).add(key)

    def _forget_live(self, key: _Key) -> _Live | None:
        live = self._live.pop(key, None)
        if live is not None:
            keys = self._connections[live.connection]
            keys.discard(key)
            if not keys:
                del self._connections[live.connection]
        return live

    def _learned(self, broker: _Broker, registration: Registration) -> Registered:
        master = broker.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return Registered()
        live = self._live.get((broker.cluster, master))
        return Registered() if live is None else Registered(master_address=master, ha_address=live.ha_address)

    def unregister(self, *, cluster: str, broker_name: str, address: str) -> Steps[bool]:
        """Forget one address, and all entries that no other address shares, in steps. False where it was not known."""
        lost = self._lost.get(broker_name)
        if lost is not None and lost.data.cluster == cluster:
            del self._lost[broker_name]
        broker = self._brokers.get(broker_name)
        if broker is None or broker.cluster != cluster or address not in broker.addresses.values():
            return False
        self._forget_live((cluster, address))
        broker.addresses = {broker_id: known for broker_id, known in broker.addresses.items() if known != address}
        if not broker.addresses:
            yield from self._remove_broker(broker_name, broker)
        elif broker.acting_master and broker.least_id != MASTER_ID:
            yield from self._set_perms(broker_name, lambda perm: perm & ~Perm.WRITE)
        return True

    def _remove_broker(self, broker_name: str, broker: _Broker) -> Steps[None]:
        del self._brokers[broker_name]
        names = self._clusters.get(broker.cluster, {})
        names.pop(broker_name, None)
        if not names:
            self._clusters.pop(broker.cluster, None)
        yield from self._remove_topics(broker_name, list(self._topics_of.get(broker_name, ())))

    def _remove_topics(self, broker_name: str, topics: Iterable[str]) -> Steps[None]:
        """Remove topics of one broker; one that has no other broker goes altogether."""
        for number, topic in enumerate(topics):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            self._remove_topic(broker_name, topic)

    def _remove_topic(self, broker_name: str, topic: str) -> None:
        for table in (self._topics, self._mappings):
            of_topic = table.get(topic, {})
            of_topic.pop(broker_name, None)
            if not of_topic:
                table.pop(topic, None)
        own = self._topics_of.get(broker_name, {})
        own.pop(topic, None)
        if not own:
            self._topics_of.pop(broker_name, None)

    def connection_closed(self, connection: Hashable) -> Steps[list[_Key]]:
        """Forget the brokers whose last registration came by this connection; return cluster and address of each."""
        keys = sorted(self._connections.get(connection, ()))
        for key in keys:
            yield from self._drop(key)
        return keys

    def expire(self, now_ms: int) -> Steps[list[tuple[_Key, Hashable]]]:
        """Forget the brokers that were silent too long, in steps; return cluster, address and connection of each."""
        for name, lost in list(self._lost.items()):
            lost.since_ms = now_ms if lost.since_ms is None else lost.since_ms
            if lost.since_ms + LOST_BROKER_MS < now_ms:
                del self._lost[name]
        gone: list[tuple[_Key, Hashable]] = []
        for key, live in list(self._live.items()):
            # One that was heard of during a pause stays.
            if live.is_late(now_ms):
                gone.append((key, live.connection))
                yield from self._drop(key)
        return gone

    def _drop(self, key: _Key) -> Steps[None]:
        cluster, address = key
        live = self._live.get(key)
        if live is None:
            return
        name = live.broker_name
        data = _broker_data(name, self._brokers[name])
        yield from self.unregister(cluster=cluster, broker_name=name, address=address)
        if name not in self._brokers:
            self._lost.pop(name, None)
            if len(self._lost) == LOST_BROKERS_MAX:
                del self._lost[next(iter(self._lost))]
            self._lost[name] = _Lost(data)

    def is_changed(self, cluster: str, address: str, version: DataVersion) -> bool:
        """True where the broker is not known, or its topics are in another version than it says."""
        return self.version_of(cluster, address) != version

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of a broker's topics as it registered them last, or None."""
        live = self._live.get((cluster, address))
        return None if live is None else live.version

    def heard_of(self, cluster: str, address: str, *, now_ms: int) -> None:
        """Note that a broker is alive; one that is not known stays so."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.last_ms = now_ms

    def members(self, broker_name: str) -> dict[int, str]:
        """Return broker id and address of each member of a broker name; empty for an unknown name."""
        broker = self._brokers.get(broker_name)
        return {} if broker is None else dict(broker.addresses)

    def cluster_info(self) -> Steps[ClusterInfo]:
        """Return all brokers and clusters, in steps."""
        brokers = {}
        for number, (name, broker) in enumerate(list(self._brokers.items())):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            brokers[name] = _broker_data(name, broker)
        return ClusterInfo(
            brokers=brokers,
            clusters={cluster: tuple(names) for cluster, names in self._clusters.items()},
            lost={name: lost.data for name, lost in self._lost.items()} or None,
        )

    def wipe_write_perm(self, broker_name: str) -> Steps[int]:
        """Take the write permission from all topics of a broker, in steps; return their number."""
        return self._set_perms(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> Steps[int]:
        """Make all topics of a broker readable and writable, and no more, in steps; return their number."""
        return self._set_perms(broker_name, lambda _: Perm.READ | Perm.WRITE)

    def _set_perms(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        count = 0
        for number, topic in enumerate(list(self._topics_of.get(broker_name, ()))):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            queues = self._topics.get(topic, {})
            known = queues.get(broker_name)
            if known is not None:
                queues[broker_name] = replace(known, perm=int(change(known.perm)))
                count += 1
        return count

    # --- Topics -------------------------------------------------------------------------------------------------------

    def route(self, topic: str, *, order_topic_conf: str | None = None) -> Steps[TopicRouteData | None]:
        """Return a topic's route, with its order configuration if it has one, or None where no living broker has it."""
        with_acting_masters = self.support_acting_master and not topic.startswith(_SYNC_GROUP_PREFIX)
        queues: list[QueueData] = []
        brokers: list[BrokerData] = []
        filter_servers: dict[str, tuple[str, ...]] = {}
        for number, (name, queue) in enumerate(list(self._topics.get(topic, {}).items())):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            if name not in self._brokers:
                continue
            broker = _broker_data(name, self._brokers[name])
            if with_acting_masters:
                broker = _with_acting_master(broker, queue)
            queues.append(queue)
            brokers.append(broker)
            filter_servers.update(self._filter_servers(broker))
        if not brokers:
            return None
        return TopicRouteData(
            queue_datas=tuple(queues),
            broker_datas=tuple(brokers),
            filter_servers=filter_servers,
            order_topic_conf=order_topic_conf,
            queue_mappings=self._mappings.get(topic),
        )

    def _filter_servers(self, broker: BrokerData) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for address in broker.broker_addresses.values():
            live = self._live.get((broker.cluster or "", address))
            if live is not None and live.filter_servers:
                found[address] = live.filter_servers
        return found

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> Steps[bool]:
        """Enter a topic of brokers that are known, in steps. False, and nothing changed, where one is not.

        Raises:
            LimitReached: the table is full, or the name too long; nothing was changed.
        """
        queues: dict[str, QueueData] = {}
        for number, queue in enumerate(queue_datas):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            if queue.broker_name not in self._brokers:
                return False
            queues[queue.broker_name] = queue
        if not queues:
            return False
        if len(topic) > self._limits.name_chars:
            raise LimitReached(f"{topic[:40]}... has more than {self._limits.name_chars} characters")
        if topic not in self._topics and len(self._topics) >= self._limits.topics:
            raise LimitReached(f"this name server keeps {self._limits.topics} topics at most")
        for number, (broker_name, queue) in enumerate(queues.items()):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            self._topics.setdefault(topic, {})[broker_name] = queue
            self._topics_of.setdefault(broker_name, {})[topic] = None
        return True

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> Steps[None]:
        """Forget a topic, or its queues in one cluster. Its brokers register it again unless they forgot it too."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        of_cluster = None if cluster is None else self._clusters.get(cluster, {})
        for number, broker_name in enumerate(list(queues)):
            if number % STEP_TOPICS == STEP_TOPICS - 1:
                yield
            if of_cluster is None or broker_name in of_cluster:
                self._remove_topic(broker_name, topic)
        if cluster is None:
            self._mappings.pop(topic, None)

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics."""
        return tuple(self._topics)

    def topics_of_cluster(self, cluster: str) -> Steps[tuple[str, ...]]:
        """Return the topics that a broker of the cluster has, in steps; none where there is no such cluster."""
        brokers = self._clusters.get(cluster, {})
        return self._topics_where(lambda queues: not brokers.keys().isdisjoint(queues))

    def _topics_where(self, is_wanted: Callable[[Mapping[str, QueueData]], bool]) -> Steps[tuple[str, ...]]:
        found = []
        for number, topic in enumerate(self.topics()):
            if number % (4 * STEP_TOPICS) == 4 * STEP_TOPICS - 1:
                yield
            queues = self._topics.get(topic)
            if queues and is_wanted(queues):
                found.append(topic)
        return tuple(found)

    def system_topics(self) -> tuple[tuple[str, ...], str | None]:
        """Return the names of clusters and brokers, which are topics as well, and the address of one broker."""
        names: dict[str, None] = {}
        for cluster, brokers in self._clusters.items():
            names.update({cluster: None, **brokers})
        first = next(iter(self._brokers.values()), None)
        return tuple(names), None if first is None else first.addresses[first.least_id]

    def unit_topics(self) -> Steps[tuple[str, ...]]:
        """Return the topics of unit mode, in steps."""
        return self._flagged(lambda flag: bool(flag & _UNIT_FLAG))

    def unit_subscribed_topics(self) -> Steps[tuple[str, ...]]:
        """Return the topics that groups of unit mode subscribe to, in steps."""
        return self._flagged(lambda flag: bool(flag & _UNIT_SUBSCRIBED_FLAG))

    def unit_subscribed_plain_topics(self) -> Steps[tuple[str, ...]]:
        """Return those of them that are not topics of unit mode, in steps."""
        return self._flagged(lambda flag: bool(flag & _UNIT_SUBSCRIBED_FLAG) and not flag & _UNIT_FLAG)

    def _flagged(self, wanted: Callable[[int], bool]) -> Steps[tuple[str, ...]]:
        return self._topics_where(lambda queues: wanted(next(iter(queues.values())).topic_sys_flag))


def _broker_data(name: str, broker: _Broker) -> BrokerData:
    return BrokerData(
        cluster=broker.cluster,
        broker_name=name,
        broker_addresses=dict(sorted(broker.addresses.items())),
        zone_name=broker.zone,
        enable_acting_master=broker.acting_master,
    )


def _with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Return the broker with its first slave as id 0, where it has no master and the topic takes no writes."""
    addresses = dict(broker.broker_addresses)
    if not broker.enable_acting_master or MASTER_ID in addresses or queues.perm & Perm.WRITE:
        return broker
    acting = addresses.pop(min(addresses))
    return replace(broker, broker_addresses={MASTER_ID: acting, **addresses})
