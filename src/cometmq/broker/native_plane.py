"""The compiled data plane behind :class:`~cometmq.broker.plane.DataPlane`: configuration values taken apart for it.

Threads: as the protocol says.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from cometmq._engine import BrokerPlane
from cometmq.broker.plane import DelayMark, HalfQuestion, OffsetChange, OutgoingMessage, PoppedQueue, StoredPlace
from cometmq.broker.plane_options import TransactionOptions
from cometmq.remoting.bodies.heartbeat import ConsumeType, MessageModel, SubscriptionData
from cometmq.store_config.order_info import OrderedBatch, OrderedQueue
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import QueueType, TopicConfig

__all__ = ["NativePlane"]

_CONSUME_TYPES = {ConsumeType.CONSUME_ACTIVELY: 0, ConsumeType.CONSUME_PASSIVELY: 1, ConsumeType.CONSUME_POP: 2}


class NativePlane:
    """The loops' side, compiled. Close it before the store and after the server that it serves."""

    def __init__(self, plane: BrokerPlane, *, waits_for_disk: bool) -> None:
        """``plane`` is closed by :meth:`close`; ``waits_for_disk`` says whether its store flushes synchronously."""
        self.engine = plane
        self._waits_for_disk = waits_for_disk

    def close(self) -> None:
        """Free the plane and let the store go."""
        self.engine.close()

    # --- Tables

    def put_topic(self, topic: TopicConfig) -> None:
        """Make a topic known, or change what is known of it."""
        self.engine.put_topic(
            topic.topic_name,
            read_queues=topic.read_queue_nums,
            write_queues=topic.write_queue_nums,
            perm=topic.perm,
            sys_flag=topic.topic_sys_flag,
            order=topic.order,
            batch=topic.queue_type is QueueType.BATCH,
        )

    def remove_topic(self, topic: str) -> None:
        """Forget a topic."""
        self.engine.remove_topic(topic)

    def put_group(self, group: SubscriptionGroupConfig) -> None:
        """Make a consumer group known, or change what is known of it."""
        self.engine.put_group(
            group.group_name,
            consume_enable=group.consume_enable,
            consume_broadcast_enable=group.consume_broadcast_enable,
            consume_from_min=group.consume_from_min_enable,
            order=group.consume_message_orderly,
            notify=group.notify_consumer_ids_changed_enable,
            retry_queues=group.retry_queue_nums,
            retry_max=group.retry_max_times,
            sys_flag=group.group_sys_flag,
            broker_id=group.broker_id,
            which_broker_when_slow=group.which_broker_when_consume_slowly,
        )

    def remove_group(self, group: str) -> None:
        """Forget a consumer group."""
        self.engine.remove_group(group)

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
        """Say what the online members of a group subscribe to, and which of it they must not read."""
        self.engine.put_consumer(
            group,
            broadcasting=model is MessageModel.BROADCASTING,
            consume_type=_CONSUME_TYPES[consume_type],
            subscriptions=[
                (
                    one.topic,
                    _tag_expression(one),
                    one.sub_version,
                    one.topic in forbidden_topics,
                    selectors.get(one.topic),
                )
                for one in subscriptions
            ],
            end_holds=end_holds,
        )

    def remove_consumer(self, group: str) -> None:
        """Say that nobody of a group is online."""
        self.engine.remove_consumer(group)

    def release_holds(self) -> None:
        """Answer every held pull now."""
        self.engine.release_holds()

    def set_broker_perm(self, perm: int) -> None:
        """Say what the broker as a whole allows."""
        self.engine.set_broker_perm(perm)

    # --- Progress

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None) -> None:
        """Set a group's next offset to consume."""
        self.engine.commit_offset(group, topic, queue_id, offset, address)

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's next offset to consume, or None."""
        return self.engine.query_offset(group, topic, queue_id)

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group's next pull will begin, or None."""
        return self.engine.pull_offset(group, topic, queue_id)

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None) -> None:
        """Set progress so that the next pull is answered with it."""
        self.engine.reset_offset(group, topic, queue_id, offset, address)

    def remove_offsets(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget the progress of a group, or of all groups in a topic."""
        self.engine.remove_offsets(group=group, topic=topic)

    def take_offset_changes(self) -> list[OffsetChange]:
        """Return what was committed or removed since the last call."""
        return [OffsetChange(*change) for change in self.engine.take_offset_changes()]

    def offset_version(self) -> int:
        """Return what the data version of the progress has moved by."""
        return self.engine.offset_version()

    # --- Ordered batches

    def ordered_batches(self) -> list[OrderedQueue]:
        """Return the batch that each queue of a group popping in order has out."""
        return [_ordered_queue(*row) for row in self.engine.ordered_batches()]

    def restore_ordered(self, queue: OrderedQueue) -> None:
        """Take over a batch as it was written down."""
        batch = queue.batch
        self.engine.restore_ordered(
            queue.group,
            queue.topic,
            queue.queue_id,
            attempt=batch.attempt,
            pop_ms=batch.pop_ms,
            invisible_ms=batch.invisible_ms,
            used_ms=batch.used_ms,
            acked=batch.acked,
            counted=batch.times is not None,
            offsets=batch.offsets,
            visible_ms=tuple((batch.visible_ms or {}).get(offset, 0) for offset in batch.offsets),
            times=tuple((batch.times or {}).get(offset, 0) for offset in batch.offsets),
        )

    def clear_ordered(self, group: str, topic: str, queue_id: int) -> None:
        """Forget a queue's batch."""
        self.engine.clear_ordered(group, topic, queue_id)

    def ordered_version(self) -> int:
        """Return a number that rises with every change of a batch."""
        return self.engine.ordered_version()

    # --- Delay levels

    def set_delay_progress(self, level: int, offset: int) -> None:
        """Set a level's next offset."""
        self.engine.set_delay_progress(level, offset)

    def recover_delay(self, log_end: int) -> int:
        """Move levels on by the deliveries behind a mark."""
        return self.engine.recover_delay(log_end)

    def delay_version(self) -> int:
        """Return what the data version of the levels' progress has moved by."""
        return self.engine.delay_version()

    def start_delay(self) -> None:
        """Begin to deliver."""
        self.engine.start_delay()

    def stop_delay(self) -> None:
        """Deliver nothing more."""
        self.engine.stop_delay()

    def delay_mark(self) -> DelayMark:
        """Return the levels' progress and the place in the log where it holds."""
        return DelayMark(*self.engine.delay_mark())

    def delay_progress(self) -> Mapping[int, int]:
        """Return the levels' progress as it is."""
        return self.engine.delay_progress()

    # --- Timers

    def start_timers(self) -> None:
        """Begin to enter and deliver timer messages."""
        self.engine.start_timers()

    def stop_timers(self) -> None:
        """Deliver no more timers, and write their files."""
        self.engine.stop_timers()

    def timer_check(self) -> bytes | None:
        """Return the used part of ``timercheck``."""
        return self.engine.timer_check()

    # --- Transactions

    def start_transactions(self) -> None:
        """Read which half messages are open."""
        self.engine.start_transactions()

    def stop_transactions(self) -> None:
        """Write the ends that wait to be written."""
        self.engine.stop_transactions()

    def set_transaction_rules(self, rules: TransactionOptions) -> None:
        """Let other settings hold."""
        self.engine.set_transaction_rules(rules)

    def step_transactions(self, producers: Container[str]) -> tuple[bool, list[HalfQuestion]]:
        """Write ends that are due, and do a part of the round of checks."""
        more, questions = self.engine.step_transactions(producers)
        return more, [HalfQuestion(*question) for question in questions]

    def resume_half(self, physical_offset: int) -> None:
        """Append a discarded message as a half message that was never checked."""
        self.engine.resume_half(physical_offset)

    def half_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return how many half messages came by topic, and how many ended."""
        return self.engine.half_counts()

    # --- Pops

    def start_pops(self) -> None:
        """Begin to revive what was popped and not acknowledged."""
        self.engine.start_pops()

    def stop_pops(self) -> None:
        """Revive nothing more, and store what is popped and not done with."""
        self.engine.stop_pops()

    def take_wanted_topics(self) -> list[str]:
        """Return the retry topics that revived messages wait for."""
        return self.engine.take_wanted_topics()

    def wanted_topics_made(self) -> None:
        """Say that there are more topics than before."""
        self.engine.wanted_topics_made()

    def pop_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group's next pop begins, or None where that is what was committed."""
        return self.engine.pop_offset(group, topic, queue_id)

    def pops_in_flight(self, group: str) -> list[PoppedQueue]:
        """Return the queues of which a group has popped messages in flight."""
        return [PoppedQueue(*queue) for queue in self.engine.pops_in_flight(group)]

    # --- Storing, counting

    def flush(self) -> None:
        """Bring all that was stored to the disk."""
        self.engine.flush()

    @property
    def waits_for_disk(self) -> bool:
        """Whether a message stored on the broker's own behalf waits for the disk."""
        return self._waits_for_disk

    def put(self, message: OutgoingMessage) -> StoredPlace:
        """Store a message on the broker's own behalf."""
        host, port = message.born_host
        queue_offset, physical_offset, message_id = self.engine.put(
            message.topic,
            message.queue_id,
            message.body,
            message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_address=ipaddress.ip_address(host).packed,
            born_port=port,
            reconsume_times=message.reconsume_times,
        )
        return StoredPlace(queue_offset=queue_offset, physical_offset=physical_offset, message_id=message_id)

    def traffic(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Return messages and their bytes by topic and group."""
        return self.engine.traffic()

    def counters(self) -> Mapping[str, int]:
        """Return the loops' totals by name."""
        return self.engine.counters()


def _tag_expression(subscription: SubscriptionData) -> str | None:
    """The TAG expression to filter by; None where it is of another kind."""
    if subscription.expression_type not in (None, "", "TAG"):
        return None
    if subscription.class_filter_mode:
        return "*"
    return subscription.sub_string or "*"


def _ordered_queue(
    group: str,
    topic: str,
    queue_id: int,
    attempt: str | None,
    pop_ms: int,
    invisible_ms: int,
    used_ms: int,
    acked: int,
    counted: bool,
    offsets: tuple[int, ...],
    visible_ms: tuple[int, ...],
    times: tuple[int, ...],
) -> OrderedQueue:
    batch = OrderedBatch(
        attempt=attempt,
        pop_ms=pop_ms,
        invisible_ms=invisible_ms,
        used_ms=used_ms,
        acked=acked,
        offsets=offsets,
        visible_ms=_where_set(offsets, visible_ms) or None,
        times=_where_set(offsets, times) if counted else None,
    )
    return OrderedQueue(group, topic, queue_id, batch)


def _where_set(offsets: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    return {offset: value for offset, value in zip(offsets, values, strict=True) if value}
