"""The difference between a consumer's queues and a new allocation: decisions that :mod:`.rebalance` carries out.

Threads: any; nothing is kept. Source: consumption specification 1.6.2, 1.6.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cometmq.client.group.allocation import AllocateStrategy
from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.group.subscriptions import queue_order, text_order
from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.assignments import MessageQueueAssignment, MessageRequestMode
from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["additions_of", "allocation_of", "is_balanced", "queues_without_topic", "removals_of", "split_by_mode"]


def allocation_of(
    strategy: AllocateStrategy,
    *,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> tuple[MessageQueue, ...]:
    """Return the queues that this member is to have, each once.

    Args:
        strategy: shares out the queues.
        group: the group.
        client_id: this member.
        queues: all queues of a topic, in any order: they are sorted as every member sorts them.
        client_ids: all members, likewise.

    Raises:
        Exception: the strategy's error.
    """
    in_order = sorted(queues, key=queue_order)
    members = sorted(client_ids, key=text_order)
    return tuple(dict.fromkeys(strategy.allocate(group, client_id, in_order, members)))


def removals_of(
    topic: str,
    wanted: Collection[MessageQueue],
    table: Mapping[MessageQueue, ProcessQueue],
    *,
    now_ms: int,
    is_push: bool,
    kept: Collection[MessageQueue],
) -> list[tuple[MessageQueue, ProcessQueue]]:
    """Return which entries of a topic have to go.

    Args:
        topic: the topic.
        wanted: the queues that this member is to have.
        table: the queues that it has.
        now_ms: milliseconds by the clock that the table's times are of.
        is_push: queues are pulled without being asked, so that one whose pulls stopped must be replaced.
        kept: queues that were to go before and could not: they are removed also where they are wanted again, and then
            added as new.
    """
    return [
        (queue, held)
        for queue, held in table.items()
        if queue.topic == topic and (queue not in wanted or queue in kept or (is_push and held.pull_expired(now_ms)))
    ]


def additions_of(wanted: Sequence[MessageQueue], table: Mapping[MessageQueue, ProcessQueue]) -> list[MessageQueue]:
    """Return which queues have to come, once those that had to go are gone."""
    return [queue for queue in wanted if queue not in table]


def queues_without_topic(
    topics: Collection[str], table: Mapping[MessageQueue, ProcessQueue]
) -> list[tuple[MessageQueue, ProcessQueue]]:
    """Return the entries whose topic is not subscribed to any more."""
    return [(queue, held) for queue, held in table.items() if queue.topic not in topics]


def is_balanced(topic: str, wanted: Collection[MessageQueue], table: Mapping[MessageQueue, ProcessQueue]) -> bool:
    """Return whether the queues of a topic that are worked on are those that this member is to have."""
    working = {queue for queue, held in table.items() if queue.topic == topic and not held.dropped}
    return working == set(wanted)


def split_by_mode(assignments: Iterable[MessageQueueAssignment]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Return the queues that a broker says are to be pulled, and those that are to be popped.

    Raises:
        MalformedBody: an assignment names no queue.
    """
    pulled: list[MessageQueue] = []
    popped: list[MessageQueue] = []
    for assignment in assignments:
        if assignment.queue is None:
            raise MalformedBody("a broker assigned a queue without naming it")
        (popped if assignment.mode is MessageRequestMode.POP else pulled).append(assignment.queue)
    return pulled, popped
