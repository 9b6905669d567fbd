"""The data plane's interface for the control plane: the C loops' tables, progress, and storing for the broker.

The compiled ``BrokerPlane`` is one; tests use a twin in memory. The control plane decides, the data plane only knows:
nothing here returns a refusal for a client.

Threads: any thread may call; each call is atomic and waits for nothing but a short mutex, except where it says that it
waits for the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cometmq._types import Host
from cometmq.broker.plane_options import TransactionOptions
from cometmq.remoting.answers import Caller
from cometmq.remoting.bodies.heartbeat import ConsumeType, MessageModel, SubscriptionData
from cometmq.store_config.order_info import OrderedQueue
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import TopicConfig

__all__ = ["DataPlane", "HalfQuestion", "OffsetChange", "OutgoingMessage", "PoppedQueue", "StoredPlace", "put_for"]


class OffsetChange(NamedTuple):
    """One queue's progress, or the end of a group's progress in a topic.

    Attributes:
        group, topic: whose.
        queue_id: the queue; -1: everything that the group had in the topic is gone.
        offset: next offset to consume; -1 where everything is gone.
    """

    group: str
    topic: str
    queue_id: int
    offset: int


class DelayMark(NamedTuple):
    """A place in the log with the delay levels' progress that held there.

    Attributes:
        log_end: physical offset; all messages delivered up to the mark lie before it.
        offsets: next queue offset of each level, from 1.
    """

    log_end: int
    offsets: Mapping[int, int]


class HalfQuestion(NamedTuple):
    """A half message that a producer of its group is to be asked about.

    Attributes:
        group: the producer group.
        unique_id: its ``UNIQ_KEY``, or "".
        queue_offset, physical_offset, message_id: where its newest copy lies.
        body: the message in the layout of stored ones, with its own topic and queue.
    """

    group: str
    unique_id: str
    queue_offset: int
    physical_offset: int
    message_id: str
    body: bytes


class PoppedQueue(NamedTuple):
    """A queue of which a group has popped messages since the broker started that are neither acknowledged nor back.

    Attributes:
        topic, queue_id: the queue; of messages that came back the retry topic's.
        messages: how many.
        oldest_ms: when the oldest was popped, or its invisible time changed; perhaps somewhat earlier, never later.
        due_ms: when the first comes back; perhaps somewhat later, never earlier.
    """

    topic: str
    queue_id: int
    messages: int
    oldest_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message that the broker stores itself: a copy of one that it had.

    Attributes:
        topic, queue_id: where to.
        body: as stored, compressed or not.
        properties: everything but what the engine adds.
        flag, sys_flag: the producer's flag, and the record's bits; host bits are the engine's.
        born_timestamp_ms, born_host: the producer's.
        reconsume_times: how often consuming it failed.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    reconsume_times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlace:
    """Where such a message lies.

    Attributes:
        queue_offset, physical_offset: of the record.
        message_id: its offset message id.
    """

    queue_offset: int
    physical_offset: int
    message_id: str


class DataPlane(Protocol):
    """The loops' side."""

    # --- Tables

    def put_topic(self, topic: TopicConfig) -> None:
        """Make a topic known, or change what is known of it."""

    def remove_topic(self, topic: str) -> None:
        """Forget a topic; sends and pulls of it are handed to the control plane again, or refused."""

    def put_group(self, group: SubscriptionGroupConfig) -> None:
        """Make a consumer group known, or change what is known of it."""

    def remove_group(self, group: str) -> None:
        """Forget a consumer group."""

    def put_consumer(
        self,
        group: str,
        model: MessageModel,
        consume_type: ConsumeType,
        subscriptions: Iterable[SubscriptionData],
        forbidden_topics: Collection[str],
        selectors: Mapping[str, tuple[str, int]],
        *,
        end_holds: bool,
    ) -> None:
        """Say what the online members of a group subscribe to, and which of it they must not read.

        Args:
            group, model, consume_type, subscriptions, forbidden_topics: the group now.
            selectors: by topic, the SQL92 expressions in effect and their versions.
            end_holds: answer the group's held pulls, since they were made for something else.
        """

    def remove_consumer(self, group: str) -> None:
        """Say that nobody of a group is online."""

    def set_broker_perm(self, perm: int) -> None:
        """Say what the broker as a whole allows: 4 read, 2 write."""

    # --- Progress

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None) -> None:
        """Set a group's next offset to consume. ``address``: of the client that asks, whose share counts."""

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's next offset to consume (a pending reset first), or None where it has none."""

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a group's last pull, or None."""

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None) -> None:
        """Set progress so that the next pull is answered with it; commits in between do nothing."""

    def remove_offsets(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget the progress of a group, or of all groups in a topic."""

    def take_offset_changes(self) -> list[OffsetChange]:
        """Return what was committed or removed since the last call, oldest first."""

    def offset_version(self) -> int:
        """Return what the data version of the progress has moved by since the start."""

    # --- Ordered batches

    def ordered_batches(self) -> list[OrderedQueue]:
        """Return the batch that each queue of a group popping in order has out."""

    def restore_ordered(self, queue: OrderedQueue) -> None:
        """Take over a batch as it was written down.

        Raises:
            InvalidArgument: there can be no such batch.
        """

    def clear_ordered(self, group: str, topic: str, queue_id: int) -> None:
        """Forget a queue's batch, so that nothing blocks the queue."""

    def ordered_version(self) -> int:
        """Return a number that rises with every change of a batch."""

    # --- Delay levels

    def set_delay_progress(self, level: int, offset: int) -> None:
        """Set a level's next offset, before :meth:`start_delay`. Levels count from 1."""

    def recover_delay(self, log_end: int) -> int:
        """Move levels on by the deliveries that lie in the log behind a mark; returns their number.

        Raises:
            OffsetOutOfRange: the log does not reach back to the mark: nothing was moved.
        """

    def delay_version(self) -> int:
        """Return what the data version of the levels' progress has moved by since the start."""

    def start_delay(self) -> None:
        """Begin to deliver."""

    def stop_delay(self) -> None:
        """Deliver nothing more. Delivered messages are confirmed and counted on return. May wait for the disk."""

    def delay_mark(self) -> DelayMark:
        """Return the levels' progress and the place in the log where it holds; levels never used are left out.

        Waits for the disk, so that nothing counts as delivered which a power loss takes.

        Raises:
            Error: the log could not be brought to the disk.
        """

    def delay_progress(self) -> Mapping[int, int]:
        """Return the levels' progress as it is; levels never used are left out."""

    # --- Timers

    def start_timers(self) -> None:
        """Begin to enter and deliver timer messages, where they are on."""

    def stop_timers(self) -> None:
        """Deliver no more timers, and write their files. Waits for the disk.

        Raises:
            Error: the files could not be written; the next start finds what they miss in the log.
        """

    def timer_check(self) -> bytes | None:
        """Return the used part of ``timercheck`` as it was last written, or None where timers are off."""

    # --- Transactions

    def start_transactions(self) -> None:
        """Read which half messages are open. The progress must be loaded; reads the log behind the first of them.

        Raises:
            Error: it could not be read.
        """

    def stop_transactions(self) -> None:
        """Write the ends that wait to be written; no loop runs any more.

        Raises:
            Error: they could not be written; the next start finds commits in the log, and asks about the rest.
        """

    def set_transaction_rules(self, rules: TransactionOptions) -> None:
        """Let other settings hold."""

    def step_transactions(self, producers: Container[str]) -> tuple[bool, list[HalfQuestion]]:
        """Write ends that are due, and do a part of the round of checks. Waits for the disk.

        Args:
            producers: the producer groups that are connected.

        Returns:
            Whether to call again at once, and the questions to ask.

        Raises:
            Error: some is left to do, as for want of space.
        """

    def resume_half(self, physical_offset: int) -> None:
        """Append a discarded message as a half message that was never checked; waits for the disk.

        Raises:
            Error: there is none at this place, or it could not be stored.
        """

    def half_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return how many half messages came by their topic, and how many of them ended, since the start."""

    # --- Pops

    def start_pops(self) -> None:
        """Begin to revive what was popped and not acknowledged, where pops are on."""

    def stop_pops(self) -> None:
        """Revive nothing more, and store what is popped and not done with.

        Raises:
            Error: it could not be stored; its messages are redelivered.
        """

    def take_wanted_topics(self) -> list[str]:
        """Return the retry topics that revived messages wait for; each is to be made with one queue."""

    def wanted_topics_made(self) -> None:
        """Say that those are known now."""

    def pop_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group's next pop begins, where that is behind what was committed, or None."""

    def pops_in_flight(self, group: str) -> list[PoppedQueue]:
        """Return the queues of which a group has popped messages that are not done, ordered pops' left out."""

    # --- Storing, counting

    def flush(self) -> None:
        """Bring all that was stored to the disk; waits for it.

        Raises:
            Error: it could not be brought there.
        """

    @property
    def waits_for_disk(self) -> bool:
        """Whether :meth:`put` waits for the disk: under sync flush."""

    def put(self, message: OutgoingMessage) -> StoredPlace:
        """Store a message as a send would: parked by DELAY or as a timer; waits for the disk under sync flush.

        Raises:
            Error: it was not stored.
        """

    def traffic(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Return messages and their bytes since the start: received, by topic and "", given out, by topic and group."""

    def counters(self) -> Mapping[str, int]:
        """Return the loops' totals since their start by name, as ``cmq_broker_counters`` has them."""


async def put_for(caller: Caller, plane: DataPlane, message: OutgoingMessage) -> StoredPlace:
    """Store a message of the broker's own for a request.

    Where that waits for the disk it is done apart from the event loop. Elsewhere the hand-over to a thread and back
    would cost several times as much as the append itself.

    Raises:
        Refusal: too much work of the connection waits.
        Error: it was not stored.
    """
    if plane.waits_for_disk:
        return await caller.store_apart(lambda: plane.put(message))
    return plane.put(message)
