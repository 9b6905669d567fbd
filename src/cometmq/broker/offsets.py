"""Progress of consumer groups: kept by the loops, written down every five seconds, shown, moved and copied.

The loops commit by the hundred thousand; changes are copied into ``consumerOffset.json``'s table (shared with the
store) before it is written or listed. The loops keep a reset until they have answered the group's next pull with it.

Threads: the event loop's, but :meth:`BrokerOffsets.persist`, which any thread may call.
Source: consumption specification 1.16, 3.5, 3.6; remoting specification 2.6, 2.10; upstream's ConsumerOffsetManager and
AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set
from ipaddress import ip_address

from cometmq.broker.groups import BrokerGroups
from cometmq.broker.link import ClientLink
from cometmq.broker.plane import DataPlane
from cometmq.broker.queues import Queues
from cometmq.broker.registry import ClientConnection, ConsumerRegistry
from cometmq.broker.stats import Statistics
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import InvalidArgument
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import QueueOffset, ResetOffsetBody, ResetOffsetBodyForC
from cometmq.remoting.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, Language
from cometmq.remoting.members import Members
from cometmq.store_config.consumer_offsets import ConsumerOffsets
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.fields import INT64_MAX
from cometmq.store_config.names import SYSTEM_GROUP_PREFIX
from cometmq.store_config.topic_config import TopicConfig

__all__ = ["QUEUES_OF_REQUEST_MAX", "BrokerOffsets"]

_log = logging.getLogger("cometmq.broker.offsets")

QUEUES_OF_REQUEST_MAX = 100_000
"""Queues that one answer is about; as many fit a frame."""

_VERSION_WITH_RESET = 28
"""V3_0_7_SNAPSHOT: from there on clients take code 220."""


class BrokerOffsets:
    """All progress of one broker."""

    def __init__(
        self,
        table: ConsumerOffsets,
        *,
        write: Callable[[], object],
        plane: DataPlane,
        topics: BrokerTopics,
        groups: BrokerGroups,
        consumers: ConsumerRegistry,
        queues: Queues,
        stats: Statistics,
        link: ClientLink,
        broker_name: str,
        broker_address: Callable[[], str],
        reset_on_server: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """Take what is needed; the loops know nothing before :meth:`start`.

        Args:
            table: all stored progress, within what the queues hold; shared with the store.
            write: writes the table where it changed, behind the log that it covers.
            plane, topics, groups, consumers, queues, stats, link: the broker's.
            broker_name, broker_address: how clients know the broker.
            reset_on_server: resets move progress here, not at the clients.
            now_ms: the clock.
        """
        self._table = table
        self._write = write
        self._plane = plane
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._queues = queues
        self._stats = stats
        self._link = link
        self._broker_name = broker_name
        self._broker_address = broker_address
        self.reset_on_server = reset_on_server
        self._now_ms = now_ms
        self._taking = threading.Lock()
        self._version = 0

    # --- The table

    def start(self) -> None:
        """Give the loops all progress that was stored."""
        for group, topic, queue_id, offset in self._table.all():
            if group and topic and queue_id >= 0 and offset >= 0:
                self._plane.commit_offset(group, topic, queue_id, offset)
        self._plane.take_offset_changes()
        self._version = self._plane.offset_version()

    def sync(self) -> None:
        """Take over what the loops committed since the last time. Any thread."""
        with self._taking:
            version = self._plane.offset_version()
            # A client may commit any number, and a negative one says as little as none. A removal has one, too.
            taken = self._plane.take_offset_changes()
            changes = [change for change in taken if change.offset >= 0 or change.queue_id < 0]
            self._table.merge(changes, versions=version - self._version)
            self._version = version

    def persist(self) -> None:
        """Write the progress down, durably, where it changed. Any thread; waits for the disk.

        Raises:
            StorageError: it could not be written; the next call tries again.
        """
        self.sync()
        # Changes that other threads copy meanwhile are written the next time: the log was made durable for these ones.
        # A group may also have been moved on behind popped messages because the log has their checkpoints.
        self._write()

    def forget_group(self, group: str) -> None:
        """Drop a group's progress everywhere."""
        self._plane.remove_offsets(group=group)
        self.sync()

    def restart(self, queues: Set[tuple[str, int]]) -> None:
        """Set the progress of every group back to 0 in queues that were deleted while their topic stays. Any thread."""
        self.sync()
        for group, topic, queue_id, offset in self._table.all():
            if (topic, queue_id) in queues and offset > 0:
                _log.warning(
                    "progress of group %s restarts: queue %d of topic %s expired and was deleted",
                    group,
                    queue_id,
                    topic,
                )
                self._plane.commit_offset(group, topic, queue_id, 0)

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """Return the groups that have progress in a topic."""
        self.sync()
        return self._table.groups_of(topic)

    def topics_of(self, group: str) -> tuple[str, ...]:
        """Return the topics in which a group has progress."""
        self.sync()
        return self._table.topics_of(group)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue_id)

    def _is_subscribed(self, group: str, topic: str) -> bool:
        """Return whether a group subscribes to a topic; one that is not online, or subscribes to nothing, counts so."""
        online = self._consumers.get(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.GET_CONSUME_STATS: self._show_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self._show_all_stats,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._show_table,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._show_time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self._show_corrections,
        }

    async def _show_table(self, request: Command, caller: Caller) -> Command:
        def look() -> bytes:
            self.sync()
            return encode(self._table.encode(), layout=Layout.COMPACT)

        return ok(request, body=await caller.apart(look))

    # --- 208, 317: how far groups are

    async def _show_stats(self, request: Command, caller: Caller) -> Command:
        return ok(request, body=await caller.apart(lambda: self._stats_of_group(Members(request.fields)).to_json()))

    def _stats_of_group(self, members: Members) -> ConsumeStats:
        group = members.required("consumerGroup")
        named = [name for name in members.text("topicList", "").split(";") if name.strip()]
        one = members.text("topic", "").strip()
        wanted = named or [one or name for name in ((one,) if one else self.topics_of(group))]
        if not named:
            wanted = [topic for topic in wanted if self._is_subscribed(group, topic)]
        table: dict[MessageQueue, OffsetWrapper] = {}
        consume_tps = 0.0
        queues_left = QUEUES_OF_REQUEST_MAX
        for topic in dict.fromkeys(wanted):
            config = self._topics.get(topic)
            if config is not None:
                queues_left = _less(queues_left, config.read_queue_nums)
                table |= self._offsets_of(group, config, config.read_queue_nums, with_pulls=True)
                consume_tps += self._stats.minute_rate("GROUP_GET_NUMS", f"{topic}@{group}")
        return ConsumeStats(offsets=table, consume_tps=consume_tps)

    def _offsets_of(
        self, group: str, topic: TopicConfig, queues: int, *, with_pulls: bool
    ) -> dict[MessageQueue, OffsetWrapper]:
        name = topic.topic_name
        table = {}
        for queue_id in range(queues):
            consumed = self._plane.query_offset(group, name, queue_id) or 0
            pulled = self._read_up_to(group, name, queue_id) if with_pulls else 0
            stored_ms = self._queues.stored_ms(name, queue_id, consumed - 1) if consumed > 0 else 0
            table[self._queue(name, queue_id)] = OffsetWrapper(
                broker_offset=self._queues.bounds(name, queue_id).high,
                consumer_offset=consumed,
                # The list of all groups has never had it in upstream: it shows 0.
                pull_offset=max(consumed, pulled) if with_pulls else 0,
                last_timestamp_ms=max(stored_ms, 0),
            )
        return table

    def _read_up_to(self, group: str, topic: str, queue_id: int) -> int:
        """Return where a group's next pull or pop begins; upstream's newer POP service shows its pops so, too."""
        pulled = self._plane.pull_offset(group, topic, queue_id) or 0
        return max(pulled, self._plane.pop_offset(group, topic, queue_id) or 0)

    async def _show_all_stats(self, request: Command, caller: Caller) -> Command:
        only_ordered = Members(request.fields).required_boolean("isOrder")
        return ok(request, body=await caller.apart(lambda: self._all_stats(only_ordered).to_json()))

    def _all_stats(self, only_ordered: bool) -> ConsumeStatsList:
        queues_left = QUEUES_OF_REQUEST_MAX
        lines: list[Mapping[str, tuple[ConsumeStats, ...]]] = []
        behind = in_flight = 0
        for group in self._groups.all():
            found = []
            for name in self.topics_of(group.group_name):
                topic = self._topics.get(name)
                if topic is None or (only_ordered and not topic.order):
                    continue
                if not self._is_subscribed(group.group_name, name):
                    continue
                queues_left = _less(queues_left, topic.write_queue_nums)
                table = self._offsets_of(group.group_name, topic, topic.write_queue_nums, with_pulls=False)
                rate = self._stats.minute_rate("GROUP_GET_NUMS", f"{name}@{group.group_name}")
                found.append(ConsumeStats(offsets=table, consume_tps=rate))
                behind += sum(queue.broker_offset - queue.consumer_offset for queue in table.values())
                in_flight += sum(queue.pull_offset - queue.consumer_offset for queue in table.values())
            lines.append({group.group_name: tuple(found)})
        return ConsumeStatsList(
            groups=tuple(lines),
            broker_address=self._broker_address(),
            total_diff=behind,
            total_inflight_diff=in_flight,
        )

    # --- 222: moving progress

    async def _reset(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        topic, group = members.required("topic"), members.required("group")
        _check_group(group)
        time_ms, force = members.required_int64("timestamp"), members.required_boolean("isForce")
        queue_id, offset = members.int32("queueId", -1), members.int64("offset")
        if self.reset_on_server:
            address = _address_of(caller.peer)
            targets = await caller.apart(lambda: self._reset_here(topic, group, time_ms, queue_id, offset, address))
        else:
            language = request.language
            targets, order = await caller.apart(lambda: self._targets(language, topic, group, time_ms, force))
            self._send_order(group, topic, time_ms, order)
        _log.info("offsets reset", extra={"group": group, "topic": topic, "queues": len(targets)})
        return ok(request, body=await caller.apart(lambda: self._reset_body(topic, targets)))

    def _reset_body(self, topic: str, targets: Mapping[int, int]) -> bytes:
        table = {self._queue(topic, queue): target for queue, target in targets.items()}
        return ResetOffsetBody(offsets=table).to_json()

    def _reset_here(
        self, topic: str, group: str, time_ms: int, queue_id: int, offset: int | None, address: bytes
    ) -> dict[int, int]:
        config = self._topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if self._groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        queues = range(config.read_queue_nums) if queue_id < 0 else (queue_id,)
        if queue_id >= config.read_queue_nums:
            raise InvalidArgument(f"queueId is {queue_id}; the topic {topic} has {config.read_queue_nums} queues")
        targets = {}
        for queue in queues:
            if queue_id >= 0 and offset not in (None, -1):
                targets[queue] = self._checked_target(topic, queue, offset)
            else:
                targets[queue] = self._queues.offset_at(topic, queue, time_ms)
        if not targets:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue, target in targets.items():
            self._plane.reset_offset(group, topic, queue, target, address)
        return targets

    def _checked_target(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = self._queues.bounds(topic, queue_id)
        if not low <= offset <= high + 1:
            text = f"Target offset {offset} not in consume queue range [{low}-{high}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        return offset

    def _targets(
        self, language: Language, topic: str, group: str, time_ms: int, force: bool
    ) -> tuple[dict[int, int], Command]:
        """Return where a group is to go on, and the request (220) that resets its members. Any thread."""
        config = self._topics.get(topic)
        if config is None:
            text = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        targets = {}
        for queue in range(config.write_queue_nums):
            consumed = self._plane.query_offset(group, topic, queue)
            if consumed is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            wanted = self._queues.offset_at(topic, queue, time_ms)
            targets[queue] = wanted if force or wanted < consumed else consumed
        return targets, self._reset_order(language, topic, group, time_ms, targets)

    def _send_order(self, group: str, topic: str, time_ms: int, order: Command) -> None:
        """Let the members of a group move their offsets themselves."""
        online = self._consumers.get(group)
        if online is None:
            text = f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {time_ms}"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, text)
        self._check_versions(online.members.values())
        for conn in list(online.members):
            self._link.send_oneway(conn, order)

    @staticmethod
    def _check_versions(members: Iterable[ClientConnection]) -> None:
        for member in members:
            if member.version < _VERSION_WITH_RESET:
                text = f"the client does not support this feature. version={member.version}"
                raise Refusal(ResponseCode.SYSTEM_ERROR, text)

    def _reset_order(
        self, language: Language, topic: str, group: str, time_ms: int, targets: Mapping[int, int]
    ) -> Command:
        if language is Language.CPP:
            places = tuple(
                QueueOffset(topic=topic, broker_name=self._broker_name, queue_id=queue, offset=target)
                for queue, target in targets.items()
            )
            body = ResetOffsetBodyForC(offsets=places).to_json()
        else:
            body = ResetOffsetBody(
                offsets={self._queue(topic, queue): target for queue, target in targets.items()}
            ).to_json()
        fields = {"topic": topic, "group": group, "timestamp": str(time_ms), "isForce": "false", "queueId": "-1"}
        return Command(code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields=fields, body=body).as_oneway()

    # --- 314, 303, 308

    async def _clone(self, request: Command, caller: Caller) -> Command:
        await caller.apart(lambda: self._copy_progress(Members(request.fields), _address_of(caller.peer)))
        return ok(request)

    def _copy_progress(self, members: Members, address: bytes) -> None:
        source, target = members.required("srcGroup"), members.required("destGroup")
        _check_group(target)
        one, offline = members.text("topic", "").strip(), members.boolean("offline")
        for topic in (one,) if one else self.topics_of(source):
            if self._topics.get(topic) is None or not (offline or self._is_subscribed(source, topic)):
                continue
            for queue_id, offset in self._progress(source, topic).items():
                self._plane.commit_offset(target, topic, queue_id, offset, address)

    def _progress(self, group: str, topic: str) -> dict[int, int]:
        self.sync()
        return self._table.queues(group, topic)

    async def _show_time_span(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        topic, group = self._topics.require(members.required("topic")), members.required("group")
        name, count = topic.topic_name, topic.write_queue_nums

        def look() -> bytes:
            spans = tuple(self._time_span(name, group, queue_id) for queue_id in range(count))
            return QueryConsumeTimeSpanBody(spans=spans).to_json()

        return ok(request, body=await caller.apart(look))

    def _time_span(self, topic: str, group: str, queue_id: int) -> QueueTimeSpan:
        earliest_ms = self._queues.earliest_ms(topic, queue_id)
        consumed = self._plane.query_offset(group, topic, queue_id)
        consumed = -1 if consumed is None else consumed
        delay_ms = 0
        low, high = self._queues.bounds(topic, queue_id)
        if max(consumed, low) < high:
            delay_ms = self._now_ms() - self._queues.stored_ms(topic, queue_id, max(consumed, low))
        consumed_ms = self._queues.stored_ms(topic, queue_id, consumed - 1) if consumed > 0 else earliest_ms
        latest_ms = self._queues.latest_ms(topic, queue_id)
        return QueueTimeSpan(
            queue=self._queue(topic, queue_id),
            min_timestamp_ms=earliest_ms,
            min_timestamp_text=_text_of(earliest_ms),
            max_timestamp_ms=latest_ms,
            max_timestamp_text=_text_of(latest_ms),
            consume_timestamp_ms=consumed_ms,
            consume_timestamp_text=_text_of(consumed_ms),
            delay_ms=delay_ms,
        )

    async def _show_corrections(self, request: Command, caller: Caller) -> Command:
        """Show the least progress of all groups. Upstream deletes the progress of those to be left out; we do not."""
        return ok(request, body=await caller.apart(lambda: self._corrections(Members(request.fields)).to_json()))

    def _corrections(self, members: Members) -> QueryCorrectionOffsetBody:
        topic, compared = members.required("topic"), members.required("compareGroup")
        left_out = set(members.text("filterGroups", "").split(","))
        least: dict[int, int] = {}
        for group in self.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, offset in self._table.queues(group, topic).items():
                if offset >= self._queues.bounds(topic, queue_id).low:
                    least[queue_id] = min(offset, least.get(queue_id, INT64_MAX))
        for queue_id, offset in self._table.queues(compared, topic).items():
            if queue_id in least and least[queue_id] > offset:
                least[queue_id] = INT64_MAX
        return QueryCorrectionOffsetBody(offsets=least)


def _check_group(group: str) -> None:
    """Refuse to move the progress of a group of the broker's own: popped messages would not be redelivered."""
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise Refusal(ResponseCode.NO_PERMISSION, f"the broker alone commits the progress of group {group}")


def _address_of(peer: str) -> bytes:
    """Return the bytes of a client's address, ``ip:port`` with brackets around an IPv6 one."""
    return ip_address(peer.rpartition(":")[0].strip("[]")).packed


def _less(queues_left: int, queues: int) -> int:
    """Return how many queues may be looked at beside those; Refusal where they are too many."""
    if queues > queues_left:
        text = f"the request is about more than {QUEUES_OF_REQUEST_MAX} queues; ask for fewer topics at a time"
        raise Refusal(ResponseCode.SYSTEM_ERROR, text)
    return queues_left - queues


def _text_of(time_ms: int) -> str:
    """Return a time as upstream shows it: local, ``yyyy-MM-dd#HH:mm:ss:SSS``."""
    seconds, millis = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{millis:03d}"
