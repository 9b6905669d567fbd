"""Finding messages and units: by key and time (12), by physical offset (33), the oldest one (32), queue units (321).

Answers of 12 hold stored records one behind the other, as upstream's do, and end before a frame would be too long.

Threads: the event loop's; the looks into the log run apart from it. Source: remoting specification 2.8.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

from cometmq._engine import KeySearch, Message, record_of
from cometmq.broker.queues import Queues
from cometmq.broker.registry import ConsumerRegistry
from cometmq.errors import CorruptRecord, LimitReached, NotFound, OffsetOutOfRange
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.bodies.queries import ConsumeQueueData, QueryConsumeQueueResponseBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.lanes import stop_if_gone
from cometmq.remoting.members import Members
from cometmq.store.reading import tagged
from cometmq.store.store import Store

__all__ = ["BODY_BYTES_MAX", "MISSES_MAX", "UNITS_MAX", "Queries"]

_log = logging.getLogger("cometmq.broker.queries")

_UNIQUE_KEY = "_UNIQUE_KEY_QUERY"
_INDEX_TYPE = "indexType"
_TAG_TYPE = "T"
"""The key is a tag; since 5.4. With the other types, K and U, upstream's index files give keys and unique ids alike."""
BODY_BYTES_MAX = 15 << 20
"""Records of one answer."""
UNITS_MAX = 65_536
"""Queue units of one answer."""
MISSES_MAX = 10_000
"""Messages of other keys with the same hash that a query reads; anybody can send such keys."""
_NOT_THERE = (NotFound, OffsetOutOfRange, CorruptRecord)


class Queries:
    """Serves the queries of one broker."""

    def __init__(
        self,
        store: Store,
        *,
        queues: Queues,
        consumers: ConsumerRegistry,
        unique_max: int,
        batch_max: int,
    ) -> None:
        """Take what is needed.

        Args:
            store: the store that is served.
            queues: its queues.
            consumers: the online consumers.
            unique_max: most messages of a query by unique id (``defaultQueryMaxNum``).
            batch_max: most messages of any query (``maxMsgsNumBatch``).
        """
        self._store = store
        self._queues = queues
        self._consumers = consumers
        self._unique_max = unique_max
        self._batch_max = batch_max

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.QUERY_MESSAGE: self._find,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
            RequestCode.QUERY_CONSUME_QUEUE: self._units,
        }

    async def _find(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        topic, key = members.required("topic"), members.required("key")
        limit = members.required_int32("maxNum")
        begin_ms, end_ms = members.required_int64("beginTimestamp"), members.required_int64("endTimestamp")
        is_unique = members.text(_UNIQUE_KEY) == "true"
        if is_unique:
            limit = self._unique_max
        limit = min(limit, self._batch_max)
        by_tag = members.text(_INDEX_TYPE) == _TAG_TYPE and not is_unique

        def look() -> bytes:
            return self._records(topic, key, begin_ms, end_ms, limit, by_tag=by_tag) if limit > 0 else b""

        body = await caller.apart(look)
        info = self._store.info()
        fields = {
            "indexLastUpdateTimestamp": str(info.latest_timestamp_ms or 0),
            "indexLastUpdatePhyoffset": str(info.log_end),
        }
        if not body:
            return request.response(
                ResponseCode.QUERY_NOT_FOUND,
                remark="can not find message, maybe time range not correct",
                fields=fields,
            )
        return ok(request, body=body, fields=fields)

    def _search(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, by_tag: bool
    ) -> Iterator[Message]:
        if by_tag:
            messages = tagged(self._store.handle, topic, key, max(begin_ms, 0), end_ms, unwrap=False)
            return itertools.islice(messages, limit)
        return KeySearch(
            self._store.handle,
            topic,
            key,
            begin_ms=max(begin_ms, 0),
            end_ms=end_ms,
            limit=limit,
            misses_max=MISSES_MAX,
            only_queued=True,
        )

    def _records(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, by_tag: bool) -> bytes:
        found: list[bytes] = []
        size = 0
        try:
            for message in self._search(topic, key, begin_ms, end_ms, limit, by_tag=by_tag):
                stop_if_gone()
                record = record_of(message)
                size += len(record)
                if size > BODY_BYTES_MAX and found:
                    break
                found.append(record)
        except NotFound:
            return b""
        except LimitReached as error:
            if not found:
                raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
            _log.warning(
                "search by key ended early", extra={"topic": topic, "found": len(found), "error": error.message}
            )
        # By place in the log, as upstream sorts what the index gave newest first.
        return b"".join(reversed(found))

    async def _view(self, request: Command, caller: Caller) -> Command:
        offset = Members(request.fields).required_int64("offset")
        body = await caller.apart(lambda: self._look(offset))
        return ok(request, body=body)

    def _look(self, offset: int) -> bytes:
        try:
            if offset >= 0:
                return record_of(self._store.get_physical(offset))
        except _NOT_THERE as error:
            raise _no_message(offset) from error
        raise _no_message(offset)

    def _earliest(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        time_ms = self._queues.earliest_ms(members.required("topic"), members.required_int32("queueId"))
        return ok(request, fields={"timestamp": str(time_ms)})

    async def _units(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        topic, queue_id = members.required("topic"), members.required_int32("queueId")
        index, count = members.required_int64("index"), members.required_int32("count")
        if not self._queues.exists(topic, queue_id):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = self._queues.bounds(topic, queue_id)
        group = members.text("consumerGroup")
        online = None if group is None else self._consumers.get(group)
        subscription = None if online is None else online.subscriptions.get(topic)
        is_there = low <= index < high
        # Upstream's answer has no body here, of which its own command dies.
        remark = None if is_there else f"Index {index} of {queue_id}@{topic} is not exist!"

        def look() -> bytes:
            units = self._listed(topic, queue_id, index, min(count, UNITS_MAX)) if is_there else []
            return QueryConsumeQueueResponseBody(
                min_queue_index=low,
                max_queue_index=high,
                queue_data=tuple(units),
                subscription=subscription,
                filter_data=f"{group}@{topic} is not online!" if group is not None and subscription is None else None,
            ).to_json()

        return request.response(ResponseCode.SUCCESS, remark=remark, body=await caller.apart(look))

    def _listed(self, topic: str, queue_id: int, index: int, count: int) -> list[ConsumeQueueData]:
        if count <= 0:
            return []
        try:
            units, _ = self._store.handle.queue_units(topic, queue_id, index, count)
        except NotFound:  # deleted since the look at its bounds
            return []
        return [
            ConsumeQueueData(physic_offset=physical, physic_size=size, tags_code=code)
            for _, physical, size, code, _ in units
        ]


def _no_message(offset: int) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
