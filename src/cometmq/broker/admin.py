"""Administration requests to a broker: its state, settings, clients, statistics, cleaning up.

Threads: the event loop's; long work runs in its executor. Source: remoting specification 2.10, 5.6, 5.8;
upstream's AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from cometmq._engine import __version__
from cometmq.broker.clients import Clients
from cometmq.broker.config import SETTABLE
from cometmq.broker.offsets import BrokerOffsets
from cometmq.broker.queues import Queues
from cometmq.broker.registry import ClientConnection
from cometmq.broker.settings_file import SettingsFile
from cometmq.broker.stats import Statistics
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import Error, InvalidArgument
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.bodies.config_tables import GroupList, KVTable, TopicList
from cometmq.remoting.bodies.connections import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.queries import QuerySubscriptionResponseBody
from cometmq.remoting.bodies.stats import TopicOffset, TopicStatsTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import VERSION, Command
from cometmq.remoting.members import Members
from cometmq.store.disk_space import DiskSpace, disk_space
from cometmq.store.store import Store
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.errors import SettingError
from cometmq.store_config.java_properties import check_config_body, parse_properties
from cometmq.store_config.names import is_light_queue, is_system_topic
from cometmq.store_config.setting_names import OPTIONS, find_setting
from cometmq.store_config.setting_options import SettingValue, setting_text
from cometmq.store_config.setting_sources import from_mapping

__all__ = ["Admin", "LiveSettings"]

_log = logging.getLogger("cometmq.broker.admin")

_VERSION_TEXT = "V5_3_3"
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_POOLS = ("send", "pull", "litePull", "query", "ack")


class LiveSettings(Protocol):
    """The settings as they are now."""

    @property
    def settings(self) -> BrokerSettings:
        """Every setting."""

    @property
    def version(self) -> DataVersion:
        """How often they were changed since the start."""

    def change(self, changed: BrokerSettings) -> Awaitable[None]:
        """Let other settings hold from now on."""


class Admin:
    """Serves administration."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        settings_file: SettingsFile,
        stronger: Mapping[str, str],
        store: Store,
        topics: BrokerTopics,
        clients: Clients,
        offsets: BrokerOffsets,
        queues: Queues,
        stats: Statistics,
        counters: Callable[[], Mapping[str, int]],
        delay_progress: Callable[[], Mapping[int, int]],
        waiting_requests: Callable[[], int],
        broker_name: str,
        broker_address: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        """Take what is needed.

        Args:
            live: the settings.
            settings_file: where changed settings last.
            stronger: settings whose value at the next start is not the file's, and the name of its source.
            store, topics, clients, offsets, queues, stats: the broker's.
            counters: totals by name.
            delay_progress: next offset of each delay level.
            waiting_requests: how many requests wait for the control thread.
            broker_name: the broker.
            broker_address: the address for clients.
            now_ms: the clock.
        """
        self._live = live
        self._settings_file = settings_file
        self._stronger = stronger
        self._changing = asyncio.Lock()
        self._store = store
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._queues = queues
        self._stats = stats
        self._counters = counters
        self._delay_progress = delay_progress
        self._waiting_requests = waiting_requests
        self._broker_name = broker_name
        self._broker_address = broker_address
        self._now_ms = now_ms
        self._started_ms = now_ms()

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self._set_config,
            RequestCode.GET_BROKER_CONFIG: self._show_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._show_runtime,
            RequestCode.GET_TOPIC_STATS_INFO: self._show_topic,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._show_consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._show_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._show_all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._show_groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._show_topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._show_subscription,
            RequestCode.VIEW_BROKER_STATS_DATA: self._show_statistic,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._clean_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._clean_log,
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean_topics,
        }

    # --- 25, 26: settings

    def _show_config(self, request: Command, caller: Caller) -> Command:
        settings = self._live.settings
        lines = [
            f"{OPTIONS[field.name].upstream_name}={setting_text(getattr(settings, field.name))}\n" for field in _FIELDS
        ]
        version = self._live.version
        known = {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_ms}
        text = json.dumps(known, separators=(",", ":"))
        return ok(request, body="".join(sorted(lines)).encode("utf-8"), fields={"version": text})

    async def _set_config(self, request: Command, caller: Caller) -> Command:
        try:
            check_config_body(request.body)
            wanted = parse_properties(request.body)
        except InvalidArgument as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error.message}") from error
        for key in wanted:
            found = find_setting(key)
            if found is not None and found not in SETTABLE:
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"Can not update config in black list: {key} cannot be changed while the broker runs",
                )
        try:
            given = from_mapping(wanted, source="the request")
        except SettingError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
        changes: dict[str, Any] = {name: value.value for name, value in given.items()}
        if not changes:
            return ok(request)
        async with self._changing:
            try:
                await self._live.change(dataclasses.replace(self._live.settings, **changes))
            except Error as error:
                raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
            lost = await caller.apart(lambda: self._save(changes))
        shown = ", ".join(f"{OPTIONS[name].upstream_name}={setting_text(value)}" for name, value in changes.items())
        _log.info("settings changed", extra={"peer": caller.peer, "settings": shown})
        if lost:
            _log.warning("changed settings are lost at the next start", extra={"reason": lost})
        return request.response(ResponseCode.SUCCESS, remark=f"changed until the next start: {lost}" if lost else None)

    def _save(self, changes: Mapping[str, SettingValue]) -> str:
        """Make changed settings last; return why some do not, or an empty text."""
        stronger = {name: source for name, source in self._stronger.items() if name in changes}
        problems = [f"{source} gives {OPTIONS[name].upstream_name}, too" for name, source in stronger.items()]
        lasting = {name: value for name, value in changes.items() if name not in stronger}
        if lasting:
            try:
                self._settings_file.save(lasting)
            except Error as error:
                problems.append(str(error))
        return "; ".join(problems)

    # --- 28: the broker's state

    async def _show_runtime(self, request: Command, caller: Caller) -> Command:
        return ok(request, body=await caller.apart(lambda: KVTable(table=self._runtime()).to_json()))

    def _runtime(self) -> dict[str, str]:
        info, counters, now = self._store.info(), self._counters(), self._now_ms()
        messages, size = counters.get("messages_in", 0), counters.get("message_bytes_in", 0)
        put, got = self._stats.mornings("messages_in"), self._stats.mornings("messages_out")
        disk = disk_space(info.path)
        ratio = _ratio_text(disk)
        settings = self._live.settings
        log_folders = settings.commit_log_paths(info.path)
        table: dict[str, object] = {
            "brokerVersion": VERSION,
            "brokerVersionDesc": _VERSION_TEXT,
            "cometmqVersion": __version__,
            "brokerActive": True,
            "bootTimestamp": self._started_ms,
            "runtime": _duration(now - self._started_ms),
            "startAcceptSendRequestTimeStamp": 0,
            "msgPutTotalYesterdayMorning": put[0],
            "msgPutTotalTodayMorning": put[1],
            "msgPutTotalTodayNow": messages,
            "msgGetTotalYesterdayMorning": got[0],
            "msgGetTotalTodayMorning": got[1],
            "msgGetTotalTodayNow": counters.get("messages_out", 0),
            "putTps": self._rates("messages_in"),
            "getTransferredTps": self._rates("messages_out"),
            "getFoundTps": self._rates("pulls_found"),
            "getMissTps": self._rates("pulls_missed"),
            "getTotalTps": self._rates("pulls", empty=0.0),
            "putMessageTimesTotal": messages,
            "putMessageFailedTimes": counters.get("send_failures", 0),
            "putMessageSizeTotal": size,
            "putMessageAverageSize": size / messages if messages else 0.0,
            "putMessageDistributeTime": "null",
            "putMessageEntireTimeMax": 0,
            "getMessageEntireTimeMax": 0,
            "putLatency99": "0.00",
            "putLatency999": "0.00",
            "dispatchMaxBuffer": 0,
            "dispatchBehindBytes": 0,
            "pageCacheLockTimeMills": 0,
            "remainTransientStoreBufferNumbs": 2**31 - 1,
            "remainHowManyDataToFlush": _bytes_text(max(info.log_end - (info.flushed or 0), 0)),
            "commitLogMinOffset": info.log_min,
            "commitLogMaxOffset": info.log_end,
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_bytes_text(disk.total)}, Free : {_bytes_text(disk.available)}.",
            "earliestMessageTimeStamp": -1 if info.earliest_timestamp_ms is None else info.earliest_timestamp_ms,
            "EndTransactionQueueSize": 0,
            "EndTransactionThreadPoolQueueCapacity": 0,
            "timerReadBehind": counters.get("timer_read_behind_ms_now", 0) // 1_000,
            "timerOffsetBehind": counters.get("timer_queue_behind_now", 0),
            "timerCongestNum": counters.get("timer_pending_now", 0),
            "timerEnqueueTps": self._stats.minute_rate("timer_entered", ""),
            "timerDequeueTps": self._stats.minute_rate("timer_delivered", ""),
        }
        table |= self._pools()
        table |= {f"commitLogDiskRatio_{folder}": _ratio(folder, ratio) for folder in log_folders}
        table |= self._delays()
        return {name: setting_text(value) for name, value in table.items()}

    def _pools(self) -> dict[str, object]:
        """Upstream's thread pools; ours have no queues of their own but the one to the control thread."""
        table: dict[str, object] = {}
        waiting = self._waiting_requests()
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = waiting if pool == "query" else 0
            table[f"{pool}ThreadPoolQueueCapacity"] = 10_000
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
        return table

    def _delays(self) -> dict[str, object]:
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._queues.bounds('SCHEDULE_TOPIC_XXXX', level - 1).high}"
            for level, offset in self._delay_progress().items()
        }

    def _rates(self, name: str, *, empty: float | None = None) -> str:
        """Three rates as upstream shows them; an unknown one is empty, and its blank stays."""
        rates = (empty if rate is None else rate for rate in self._stats.rates(name, ""))
        return " ".join("" if rate is None else repr(rate) for rate in rates)

    # --- 202: a topic's queues

    async def _show_topic(self, request: Command, caller: Caller) -> Command:
        topic = self._topics.require(Members(request.fields).required("topic"))
        name = topic.topic_name
        count = max(topic.read_queue_nums, topic.write_queue_nums)

        def look() -> bytes:
            table = {
                MessageQueue(topic=name, broker_name=self._broker_name, queue_id=queue_id): self._ends(name, queue_id)
                for queue_id in range(count)
            }
            rate = self._stats.minute_rate("TOPIC_PUT_NUMS", name)
            return TopicStatsTable(offsets=table, topic_put_tps=rate).to_json()

        return ok(request, body=await caller.apart(look))

    def _ends(self, topic: str, queue_id: int) -> TopicOffset:
        low, high = self._queues.bounds(topic, queue_id)
        stored_ms = max(self._queues.stored_ms(topic, queue_id, high - 1), 0)
        return TopicOffset(min_offset=low, max_offset=high, last_update_timestamp_ms=stored_ms)

    # --- 203, 204, 328, 300, 343, 345: clients and groups

    async def _show_consumers(self, request: Command, caller: Caller) -> Command:
        name = Members(request.fields).required("consumerGroup")
        group = self._clients.consumers.get(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connections=_connections(group.members.values()),
            subscriptions=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return ok(request, body=await caller.apart(body.to_json))

    async def _show_producers(self, request: Command, caller: Caller) -> Command:
        name = Members(request.fields).required("producerGroup")
        members = self._clients.producers.get(name)
        if members is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        found = tuple(members.values())
        text = await caller.apart(lambda: ProducerConnection(connections=_connections(found)).to_json())
        return ok(request, body=text)

    async def _show_all_producers(self, request: Command, caller: Caller) -> Command:
        groups = {group: tuple(members.values()) for group, members in self._clients.producers.groups().items()}
        return ok(request, body=await caller.apart(lambda: self._producers_body(groups)))

    def _producers_body(self, groups: Mapping[str, Iterable[ClientConnection]]) -> bytes:
        now_ms = self._now_ms()
        table = {
            group: tuple(
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.peer,
                    language=member.language.name,
                    version=member.version,
                    last_update_timestamp_ms=now_ms - self._clients.silent_ms(member),
                )
                for member in members
            )
            for group, members in groups.items()
        }
        return ProducerTableInfo(groups=table).to_json()

    async def _show_groups_of_topic(self, request: Command, caller: Caller) -> Command:
        topic = Members(request.fields).required("topic")
        online = self._clients.consumers.groups_of_topic(topic)

        def look() -> bytes:
            return GroupList(groups=tuple(dict.fromkeys((*online, *self._offsets.groups_of(topic))))).to_json()

        return ok(request, body=await caller.apart(look))

    async def _show_topics_of_group(self, request: Command, caller: Caller) -> Command:
        group = Members(request.fields).required("group")

        def look() -> bytes:
            topics = self._offsets.topics_of(group)
            return TopicList(topics=topics, broker_address=self._broker_address()).to_json()

        return ok(request, body=await caller.apart(look))

    def _show_subscription(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        name, topic = members.required("group"), members.text("topic", "")
        group = self._clients.consumers.get(name)
        found = None if group is None else group.subscriptions.get(topic)
        return ok(request, body=QuerySubscriptionResponseBody(group=name, topic=topic, subscription=found).to_json())

    # --- 315: statistics

    def _show_statistic(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        name, key = members.required("statsName"), members.required("statsKey")
        found = self._stats.view(name, key)
        if found is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return ok(request, body=found.to_json())

    # --- 306, 329, 316: cleaning up

    async def _clean_queues(self, request: Command, caller: Caller) -> Command:
        await self._clean(self._delete_expired, "consume queues", caller)
        return ok(request)

    async def _clean_log(self, request: Command, caller: Caller) -> Command:
        await self._clean(self._store.expire, "commit log files", caller)
        return ok(request)

    async def _clean_topics(self, request: Command, caller: Caller) -> Command:
        await self._clean(self._delete_unused, "unused topics", caller)
        return ok(request)

    async def _clean(self, action: Callable[[], int], what: str, caller: Caller) -> None:
        try:
            count = await caller.apart(action)
        except Error as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
        _log.info("cleaned up", extra={"what": what, "count": count, "peer": caller.peer})

    def _delete_expired(self) -> int:
        """Delete queues all of whose messages have expired. They restart at 0, and so does progress in them."""
        empty = [queue for queue in self._store.queues() if queue.min_offset == queue.max_offset > 0]
        count = self._store.handle.delete_expired_queues()
        restarted = set()
        for queue in empty:
            now = self._store.handle.queue(queue.topic, queue.queue_id)
            if now is None or now[1] < queue.min_offset:
                restarted.add((queue.topic, queue.queue_id))
        self._offsets.restart(restarted)
        return count

    def _delete_unused(self) -> int:
        """Delete the queues of topics that have no entry, but for those that need none."""
        known = {topic.topic_name for topic in self._topics.all()}
        doomed = {queue.topic for queue in self._store.queues()} - known
        doomed = {topic for topic in doomed if not is_system_topic(topic) and not is_light_queue(topic)}
        for topic in sorted(doomed):
            self._store.handle.delete_topic(topic)
        return len(doomed)


_FIELDS = dataclasses.fields(BrokerSettings)


def _connections(members: Iterable[ClientConnection]) -> tuple[Connection, ...]:
    return tuple(
        Connection(
            client_id=member.client_id,
            client_address=member.peer,
            language=member.language.name,
            version=member.version,
        )
        for member in members
    )


def _duration(elapsed_ms: int) -> str:
    seconds = max(elapsed_ms, 0) // 1000
    days, seconds = divmod(seconds, _DAY_S)
    hours, seconds = divmod(seconds, _HOUR_S)
    minutes, seconds = divmod(seconds, _MINUTE_S)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes_text(count: int) -> str:
    """Return a size as upstream's tables have it."""
    if count < 1024:
        return f"{count} B"
    size, unit = float(count), 0
    while size >= 1024 and unit < 6:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {'KMGTPE'[unit - 1]}iB"


def _ratio(folder: Path, whole: str) -> str:
    """Return the use of a folder's disk; a folder that is not there yet lies on the store's."""
    if not folder.is_dir():
        return whole
    return _ratio_text(disk_space(folder))


def _ratio_text(disk: DiskSpace) -> str:
    return repr(round(disk.used_ratio, 4))
