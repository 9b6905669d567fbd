"""Brokers as a source: topics, the ends of their queues at every master, times, and sizes of messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import TracebackType

from cometmq._engine import decode_pulled
from cometmq.admin.results import QueueEnds, QueueOffset
from cometmq.client.pull.pull_policy import PullStatus, pull_status
from cometmq.errors import BrokerError, ConnectionLost, NotFound, RequestTimeout
from cometmq.remoting.codes import ResponseCode
from cometmq.spark.catalog import Ends
from cometmq.spark.offsets import QueueKey
from cometmq.spark.planning import QueueRange
from cometmq.spark.wire import Retry, Wire
from cometmq.store_config.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

__all__ = ["WireCatalog"]

_SAMPLES = 4
_SAMPLE_MESSAGES = 32
_SAMPLED_RANGES_MAX = 64
_UNKNOWN_ROW_BYTES = 1024.0


class WireCatalog:
    """A cluster as a catalog; a context manager. One thread at a time.

    A broker that was there before and is not now is waited for: it may be starting again.
    """

    def __init__(self, name_servers: Sequence[str], *, timeout_ms: int) -> None:
        """Connect to nobody yet. Arguments as of :class:`cometmq.spark.wire.Wire`."""
        self._wire = Wire(name_servers, timeout_ms=timeout_ms)
        self._ends: dict[str, tuple[QueueEnds, ...]] = {}
        """As they were last seen."""
        self._row_bytes: dict[tuple[str, str, Collection[str]], float] = {}
        """Means of the ranges that were sampled, by topic and broker: for those that are not."""
        self._sampled = 0

    def refresh(self) -> None:
        """Nothing is kept that could be old: brokers are asked each time."""

    def check_end(self) -> None:
        """Nothing to check: brokers serve what they have opened whole."""

    def topics(self) -> list[str]:
        """See :class:`cometmq.spark.catalog.Catalog`; without those that brokers name after themselves."""
        return self._wire.run(self._topics())

    async def _topics(self) -> list[str]:
        retry = Retry(self._wire.timeout_ms)
        while True:
            try:
                plain = set(await self._wire.admin.topics.list())
                known = [
                    name
                    for name in await self._wire.admin.topics.list(system=True)
                    if name in plain or is_system_topic(name) or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
                ]
                gone = self._ends.keys() - set(known)
                if not gone:
                    return known
                if not await retry.pause():
                    for topic in gone:
                        del self._ends[topic]  # waited for, and not again: it was deleted
                    return known
            except (ConnectionLost, RequestTimeout, NotFound):  # noqa: PERF203 - a pause is between them
                if not await retry.pause():
                    raise

    def ends(self, topic: str) -> dict[QueueKey, Ends]:
        """See :class:`cometmq.spark.catalog.Catalog`: the ends at every master, confirmed messages only.

        Raises:
            ConnectionLost, RequestTimeout, BrokerError: a broker did not answer in time, or refused.
        """
        found = self._ends[topic] = self._wire.run(self._queues(topic))
        return {
            QueueKey(topic, one.queue_id, one.broker_name): Ends(one.min_offset, max(one.max_offset, one.min_offset))
            for one in found
        }

    async def _queues(self, topic: str) -> tuple[QueueEnds, ...]:
        retry = Retry(self._wire.timeout_ms)
        before = {one.broker_name for one in self._ends.get(topic, ())}
        while True:
            try:
                found = await self._wire.admin.topics.queues(topic)
                if before <= {one.broker_name for one in found} or not await retry.pause():
                    return found
            except (ConnectionLost, RequestTimeout):  # noqa: PERF203 - a pause is between them
                if not await retry.pause():
                    raise
            except BrokerError as error:
                # A topic whose brokers are all gone is not known either.
                if error.code != ResponseCode.TOPIC_NOT_EXIST or not await retry.pause():
                    raise

    def offset_at(self, key: QueueKey, time_ms: int) -> int:
        """See :class:`cometmq.spark.catalog.Catalog`.

        Brokers differ in what they answer for a time between two messages (4.9 names the nearer one) or behind the
        last: so their answer is only where the search begins.
        """
        (ends,) = [
            one
            for one in self._ends.get(key.topic) or self._wire.run(self._queues(key.topic))
            if (one.broker_name, one.queue_id) == (key.broker, key.queue_id)
        ]
        if ends.max_offset <= ends.min_offset or time_ms > ends.last_store_timestamp_ms:
            return ends.max_offset
        if time_ms <= 0:
            return ends.min_offset
        return self._wire.run(self._search(key, time_ms, ends))

    async def _search(self, key: QueueKey, time_ms: int, ends: QueueEnds) -> int:
        (place,) = await self._wire.admin.offsets.at_time(
            key.topic, time_ms, broker_name=key.broker, queue_id=key.queue_id
        )
        low, high = ends.min_offset, ends.max_offset
        probes = [place.offset - 1, place.offset]  # where the broker is right these two show it
        while low < high:
            at = probes.pop() if probes else (low + high) // 2
            if not low <= at < high:
                continue
            stored_ms = await self._stored_ms(key, at)
            if stored_ms is None or stored_ms < time_ms:
                low = at + 1
            else:
                high = at
        return low

    async def _stored_ms(self, key: QueueKey, offset: int) -> int | None:
        """Return when a message was stored, or None where it is not there any more."""
        answer = await self._wire.pull(key, offset, max_messages=1)
        if pull_status(answer.code) is not PullStatus.FOUND:
            return None
        messages = decode_pulled(answer.body, broker_name=key.broker, topic=key.topic, queue_id=key.queue_id).messages
        return messages[0].store_timestamp_ms if messages else None

    def stored_ms(self, key: QueueKey, offset: int) -> int | None:
        """See :class:`cometmq.spark.catalog.Catalog`: from the ends for a queue's last message, else pulled."""
        for one in self._ends.get(key.topic, ()):
            if (one.broker_name, one.queue_id) == (key.broker, key.queue_id) and offset == one.max_offset - 1:
                return one.last_store_timestamp_ms
        return self._wire.run(self._stored_ms(key, offset))

    def row_bytes(self, one: QueueRange, tags: Collection[str] = ()) -> float:
        """See :class:`cometmq.spark.catalog.Catalog`: by a few messages of the range; of the first ranges only."""
        known = (one.topic, one.broker, frozenset(tags))
        if self._sampled >= _SAMPLED_RANGES_MAX and known in self._row_bytes:
            return self._row_bytes[known]
        self._sampled += 1
        found = self._row_bytes[known] = self._wire.run(self._sample(one, tags))
        return found

    async def _sample(self, one: QueueRange, tags: Collection[str]) -> float:
        size = messages = fitting = 0
        step = max(one.rows // _SAMPLES, 1)
        for start in range(one.start, one.end, step)[:_SAMPLES]:
            answer = await self._wire.pull(one.key, start, max_messages=min(_SAMPLE_MESSAGES, one.end - start))
            if pull_status(answer.code) is not PullStatus.FOUND:
                continue  # it expired just now: a sample is missing, no more
            pulled = decode_pulled(
                answer.body,
                broker_name=one.broker,
                topic=one.topic,
                queue_id=one.queue_id,
                tags=frozenset(tags) if tags else None,
            )
            size += len(answer.body)
            messages += pulled.decoded
            fitting += len(pulled.messages)
        if not messages:
            return _UNKNOWN_ROW_BYTES
        # Few samples cannot prove that no message matches.
        return size / messages * (fitting + 1) / (messages + 1)

    def commit_progress(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Commit a consumer group's next offsets, as one of its members would.

        Raises:
            BrokerError: a broker does not know the group.
            ConnectionLost, RequestTimeout: a broker did not answer in time.
        """
        for topic in sorted({key.topic for key in offsets}):
            places = [
                QueueOffset(broker_name=key.broker, queue_id=key.queue_id, offset=offset)
                for key, offset in offsets.items()
                if key.topic == topic
            ]
            self._wire.ask(partial(self._wire.admin.offsets.commit, group, topic, places))

    def close(self) -> None:
        """End all connections."""
        self._wire.close()

    def __enter__(self) -> WireCatalog:
        """Return the catalog itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
