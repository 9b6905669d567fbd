"""Where a consumer begins in a queue: where its group was, or where a new group begins.

Invariant: a group that begins in the middle of a queue has that place in its progress before it pulls anything. Else
    the next member to get the queue would choose a later start, and messages in between would be lost to the group.

Source: consumption specification 1.11.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client.group.offset_stores import NEVER_CONSUMED
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.store_config.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.client.group.offset_stores import OffsetStore, ReadOffset
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.settings import ConsumerSettings
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["start_offset"]


async def start_offset(
    queue: MessageQueue,
    *,
    store: OffsetStore,
    read: ReadOffset,
    instance: ClientInstance,
    settings: ConsumerSettings,
    made_ms: int,
) -> int:
    """Return the offset to begin at; below 0 where it is not known now.

    Args:
        queue: the queue.
        store: the group's progress.
        read: where of it to look.
        instance: asks the brokers.
        settings: where a new group begins.
        made_ms: when the consumer was made, in milliseconds since 1970.

    Raises:
        Error: the broker could not be asked, or the place that was chosen could not be stored.
    """
    stored = await store.read(queue, read)
    if stored != NEVER_CONSUMED or settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return 0 if stored == NEVER_CONSUMED else stored
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if settings.consume_from_where is not ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        if is_retry:
            # Messages sent back before the group's first member saw the retry topic must not be missed.
            return 0
        chosen = await instance.max_offset(queue)
    elif is_retry:
        chosen = await instance.max_offset(queue)
    else:
        chosen = await instance.search_offset(queue, settings.first_start_ms(made_ms))
    store.update(queue, chosen, increase_only=True)
    await store.persist(queue, wait=True)
    return store.memory(queue)
