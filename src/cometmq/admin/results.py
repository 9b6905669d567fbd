"""Results of administration calls: frozen values with units in their names.

Records that are the same on disk and on the wire are those of ``cometmq.store_config`` and ``cometmq.remoting.bodies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cometmq.client.send.outgoing import SendStatus
from cometmq.remoting.bodies.connections import Connection
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from cometmq.store_config.request_modes import MessageRequestMode
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import TopicConfig

__all__ = [
    "BrokerRef",
    "BrokerStatus",
    "ConsumeMode",
    "GroupDescription",
    "GroupInFlight",
    "GroupLag",
    "GroupMembers",
    "GroupProgress",
    "QueueEnds",
    "QueueInFlight",
    "QueueOffset",
    "QueueProgress",
    "QueueRange",
    "ReviveState",
    "SendReport",
    "SendResult",
    "TopicDescription",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRef:
    """One broker of a cluster.

    Attributes:
        cluster: the cluster's name, empty where it is not known.
        broker_name: the name that a master and its slaves share.
        broker_id: 0 for the master.
        address: ``host:port``.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """True for the one that takes messages and changes."""
        return self.broker_id == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A broker's report on itself.

    Attributes:
        broker: which one.
        version: of RocketMQ, such as ``V5_3_3``: a CometMQ broker says the one that it answers as.
        cometmq_version: of CometMQ; None from other brokers.
        put_messages_per_s, get_messages_per_s: rates of the last ten seconds, or None where it has none yet.
        messages_put_today, messages_got_today: since midnight, broker's time.
        log_min_offset, log_max_offset: physical offsets of its commit log.
        earliest_timestamp_ms: when its oldest message was stored; -1 in an empty store.
        disk_used_ratio: of the disk that its log is on, as ``df`` has it, 0 to 1; None where it does not say.
        boot_timestamp_ms: when it was started; 0 where it does not say.
        table: everything that it said, by upstream's names.
    """

    broker: BrokerRef
    version: str
    cometmq_version: str | None
    put_messages_per_s: float | None
    get_messages_per_s: float | None
    messages_put_today: int
    messages_got_today: int
    log_min_offset: int
    log_max_offset: int
    earliest_timestamp_ms: int
    disk_used_ratio: float | None
    boot_timestamp_ms: int
    table: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QueueEnds:
    """Where a queue begins and ends.

    Attributes:
        broker_name, queue_id: the queue.
        min_offset: first message that is there.
        max_offset: where the next one will be.
        last_store_timestamp_ms: when the newest was stored; 0 for an empty queue.
    """

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_timestamp_ms: int

    @property
    def messages(self) -> int:
        """How many messages the queue has."""
        return max(self.max_offset - self.min_offset, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic in a cluster.

    Attributes:
        topic: its name.
        configs: its configuration at each broker that has it, by broker name.
        queues: its queues, in order.
        groups: the groups that consume it, or did.
        order_conf: ``broker:queues`` joined by ``;`` where its order spans queues, else None.
    """

    topic: str
    configs: Mapping[str, TopicConfig]
    queues: tuple[QueueEnds, ...]
    groups: tuple[str, ...]
    order_conf: str | None

    @property
    def messages(self) -> int:
        """Messages in all of its queues."""
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QueueOffset:
    """A place in a queue."""

    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QueueProgress:
    """A group's place in one queue.

    Attributes:
        topic, broker_name, queue_id: the queue.
        broker_offset: its end.
        consumer_offset: the group's committed offset; -1 where it committed nothing.
        pull_offset: up to where it pulled; 0 from a 4.9 broker.
        last_timestamp_ms: store time of the message before the committed offset; 0 without one.
    """

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp_ms: int

    @property
    def lag(self) -> int:
        """Messages that were not consumed yet."""
        return self.broker_offset - max(self.consumer_offset, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """Where a group is.

    Attributes:
        group: its name.
        queues: its queues, in order.
        consumed_messages_per_s: how quickly it consumes, summed over brokers.
        lost: masters that could not be asked, as :meth:`~cometmq.admin.cluster.ClusterOperations.lost`; their queues
            are not among these.
    """

    group: str
    queues: tuple[QueueProgress, ...]
    consumed_messages_per_s: float
    lost: tuple[BrokerRef, ...] = ()

    @property
    def lag(self) -> int:
        """Messages of all these queues that were not consumed yet; more where a broker is lost."""
        return sum(queue.lag for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GroupLag:
    """A group in a list of groups.

    Attributes:
        group: its name.
        topics: the topics that it has progress in.
        lag: messages that it has not consumed.
        consumed_messages_per_s: how quickly it consumes.
    """

    group: str
    topics: tuple[str, ...]
    lag: int
    consumed_messages_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembers:
    """The connected members of a group.

    Attributes:
        connections: its members.
        subscriptions: its subscriptions, by topic.
        consume_type, message_model, consume_from_where: how it consumes.
    """

    connections: tuple[Connection, ...]
    subscriptions: Mapping[str, SubscriptionData]
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ConsumeMode:
    """How a group gets a topic's messages from a broker.

    Attributes:
        topic, broker_name: where that was set.
        mode: by pulls, or by pops.
        pop_share_queue_num: with POP, whose queues a member pops besides its own: those of so many members behind it;
            0, a negative number, or one that reaches round: all queues.
    """

    topic: str
    broker_name: str
    mode: MessageRequestMode = field(compare=False)
    pop_share_queue_num: int = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInFlight:
    """A group's messages in flight of one queue.

    Attributes:
        topic, broker_name, queue_id: the queue; of messages that came back the group's retry topic.
        broker_offset: its end.
        consumer_offset: the group's committed offset; -1 where it committed nothing.
        next_offset: where its next pop begins; where it pulls, or nobody can say, the committed offset.
        in_flight: messages that were popped and are neither acknowledged nor back; None where the broker does not say.
        oldest_unacked_ms: for how long the oldest of them has been, since its pop, regardless of changes of its
            invisible time; None without one.
        overdue_ms: for how long the first of them could have been back; 0 where none could.
    """

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    next_offset: int
    in_flight: int | None
    oldest_unacked_ms: int | None
    overdue_ms: int

    @property
    def waiting(self) -> int:
        """Messages that nobody has been given yet; where the group pulls: that are not committed."""
        return max(self.broker_offset - self.next_offset, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviveState:
    """How far a broker is with bringing back what was not acknowledged, of all groups.

    Attributes:
        lag_ms: for how long the first checkpoint that was read could have been revived: a few seconds are normal, as
            its acknowledgements are waited for.
        unread: records of the revive topic that were not read yet.
    """

    lag_ms: int
    unread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInFlight:
    """A group's messages in flight.

    Attributes:
        group: its name.
        queues: its queues, in order.
        revives: by broker name; without those that do not say.
        lost: masters that could not be asked, as :attr:`GroupProgress.lost`.
    """

    group: str
    queues: tuple[QueueInFlight, ...]
    revives: Mapping[str, ReviveState]
    lost: tuple[BrokerRef, ...] = ()

    @property
    def waiting(self) -> int:
        """Messages of all queues that nobody has been given yet."""
        return sum(queue.waiting for queue in self.queues)

    @property
    def in_flight(self) -> int:
        """Messages of all queues that are in flight, as far as brokers say."""
        return sum(queue.in_flight or 0 for queue in self.queues)

    @property
    def oldest_unacked_ms(self) -> int | None:
        """For how long the oldest message in flight has been; None without one."""
        return max(
            (queue.oldest_unacked_ms for queue in self.queues if queue.oldest_unacked_ms is not None), default=None
        )

    @property
    def revive_lag_ms(self) -> int:
        """For how long the first message of the group could have been back; 0 where none could."""
        return max((queue.overdue_ms for queue in self.queues), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group in a cluster.

    Attributes:
        group: its name.
        configs: its configuration at each broker that has it, by broker name.
        members: the connected members, or None without any.
        progress: where it is.
        consume_modes: for which topics it was set whether it pulls or pops, by topic and broker.
    """

    group: str
    configs: Mapping[str, SubscriptionGroupConfig]
    members: GroupMembers | None
    progress: GroupProgress
    consume_modes: tuple[ConsumeMode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Where a message was stored.

    Attributes:
        topic, broker_name, queue_id, queue_offset: its place. For one that is held back (a delay) the queue is the one
            that was asked for and the offset is that of the place where it waits.
        message_id: its offset message id.
        unique_id: the id that was given to it here (``UNIQ_KEY``); empty where it brought its own.
        status: the broker's promise.
        attempts: how often it was sent; after more than one it may be stored more than once.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    message_id: str
    unique_id: str
    status: SendStatus
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QueueRange:
    """Where messages went in one queue; between first and last may be those of other senders.

    Attributes:
        broker_name, queue_id: the queue.
        first, last: queue offsets.
        messages: how many.
    """

    broker_name: str
    queue_id: int
    first: int
    last: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport:
    """A sender's result.

    Attributes:
        topic: the topic.
        messages: messages that a broker acknowledged.
        body_bytes: bytes of their bodies.
        requests: requests that it took.
        retries: of them, how many were sent again.
        maybe_twice: messages that were sent again after no answer had come: each of them may be stored twice.
        not_durable: messages that are stored, but not on disk or at a slave as the broker's settings ask for.
        delayed: messages that wait for their delivery; they are in no queue of the topic yet.
        queues: where the others are, in order.
        elapsed_s: seconds that it took.
    """

    topic: str
    messages: int
    body_bytes: int
    requests: int
    retries: int
    maybe_twice: int
    not_durable: int
    delayed: int
    queues: tuple[QueueRange, ...]
    elapsed_s: float
