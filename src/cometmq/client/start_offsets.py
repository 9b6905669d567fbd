"""Where a consumer begins in a queue: where its group was, or where a new group begins.

Source: consumption specification 1.11.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client.offset_stores import NEVER_CONSUMED
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.store_config.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.client.instance import ClientInstance
    from cometmq.client.offset_stores import OffsetStore, ReadOffset
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
    """Return the offset to begin at; below 0 where that cannot be told now.

    Args:
        queue: the queue.
        store: the group's progress.
        read: where of it to look.
        instance: asks the brokers.
        settings: where a new group begins.
        made_ms: when the consumer was made, in milliseconds since 1970.

    Raises:
        Error: the broker could not be asked.
    """
    stored = await store.read(queue, read)
    if stored != NEVER_CONSUMED:
        return stored
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    where = settings.consume_from_where
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return 0
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        if is_retry:
            return await instance.max_offset(queue)
        return await instance.search_offset(queue, settings.first_start_ms(made_ms))
    # What was given back before the group's first member saw the retry topic is not to be missed.
    return 0 if is_retry else await instance.max_offset(queue)
