"""The control plane of a broker: its parts, put together, without sockets and without a clock of its own.

    request -> table of handlers -> part (topics, groups, clients, ...) -> store and books, data plane, link to clients
    time    -> jobs              -> part

Threads: the event loop's, but for the store's notifications of changes, which may come from any thread and are moved to
the loop where they need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from cometmq.broker.admin import Admin
from cometmq.broker.assignment import AssignmentRules, Assignments
from cometmq.broker.client_forwarding import ClientForwarding
from cometmq.broker.clients import ClientRules, Clients
from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays import BrokerDelays
from cometmq.broker.filters import BrokerFilters
from cometmq.broker.groups import BrokerGroups
from cometmq.broker.in_flight import InFlight
from cometmq.broker.link import ClientLink
from cometmq.broker.locks import QueueLocks, monotonic_ms
from cometmq.broker.offsets import BrokerOffsets
from cometmq.broker.ordered import OrderedBatches
from cometmq.broker.plane import DataPlane
from cometmq.broker.queries import Queries
from cometmq.broker.queues import Queues
from cometmq.broker.replicas import Replicas
from cometmq.broker.replies import Replies
from cometmq.broker.routes import Routes, RouteSource
from cometmq.broker.send_back import SendBack
from cometmq.broker.sends import Sends
from cometmq.broker.settings_file import SettingsFile
from cometmq.broker.staged_writes import StagedWrites
from cometmq.broker.stats import Statistics
from cometmq.broker.timers import BrokerTimers
from cometmq.broker.topics import BrokerTopics, TopicRules
from cometmq.broker.transactions import BrokerTransactions, transaction_options
from cometmq.errors import Error, NotFound
from cometmq.remoting.answers import Table, table_of
from cometmq.remoting.bodies.config_tables import KVTable
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store.options import Retention
from cometmq.store.serving import served_parts
from cometmq.store.store import Store
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.built_in_topics import system_topics
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.names import is_light_queue, is_system_topic
from cometmq.store_config.request_modes import RequestMode
from cometmq.store_config.subscription_groups import SYSTEM_GROUPS
from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = ["ControlPlane", "Job", "NameServers"]

_log = logging.getLogger("cometmq.broker")

_ORDERED_MS = 10_000
_FILTERS_MS = 10_000
_EXPIRE_MS = 10_000
_TRANSACTIONS_MS = 500
_TRANSACTION_METRICS_MS = 3_000
_NOTICES_MS = 15_000
_WANTED_MS = 100
"""A group's first message that comes back waits so long for its topic, once."""
_SAMPLE_MS = 10_000
_STAGED_MS = 60_000
_DAY_MS = 86_400_000
_NAMES_LOGGED_MAX = 20
_THREADS = {
    "delay_state_now": "delivery of delayed messages",
    "timer_state_now": "delivery of timers",
    "pop_revive_state_now": "return of popped messages",
}
_DAMAGE = {
    "timer_remade_now": "the files of the timers are damaged, or were written with another timerPrecisionMs: timers "
    "were read from rmq_sys_wheel_timer again; messages may be delivered twice, and recalled messages once",
    "timer_skipped": "timers were not delivered: their records in rmq_sys_wheel_timer are damaged; run "
    "`cometmq verify`",
    "delay_skipped": "delayed messages were not delivered: their records in SCHEDULE_TOPIC_XXXX are damaged; run "
    "`cometmq verify`",
}
"""Counters whose growth is logged."""
_RETRYING = 2
_STATES = {
    0: "stopped",
    1: "works again",
    _RETRYING: "waits and tries again: the disk is full, or memory or descriptors are short",
    3: "has ended: the store is fenced; start the broker again",
}
"""As ``cmq_timer_state``, ``cmq_delay_state`` and ``cmq_pop_revive_state`` have them."""


class NameServers(RouteSource, Protocol):
    """The way to the name servers."""

    async def announce(self, topics: Sequence[TopicConfig]) -> None:
        """Announce new and changed topics."""

    async def announce_all(self) -> None:
        """Announce a change that concerns all topics."""

    def change_pace(self, *, period_ms: int, force: bool) -> None:
        """Register at another pace from the next registration on, as :class:`Timing` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something that is done again and again.

    Attributes:
        name: for the log.
        period_ms: returns how long to wait between two runs.
        run: does it once.
    """

    name: str
    period_ms: Callable[[], int]
    run: Callable[[], Awaitable[None]]


class ControlPlane:
    """The control plane of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: Store,
        plane: DataPlane,
        link: ClientLink,
        name_servers: NameServers,
        port: int,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] = monotonic_ms,
        waiting_requests: Callable[[], int] = lambda: 0,
    ) -> None:
        """Put the parts together; nobody knows of anything before :meth:`start`.

        Args:
            config: how the broker runs.
            store: the store that is served, opened for writing.
            plane: the loops.
            link: the way to clients.
            name_servers: the way to the name servers.
            port: the port that clients connect to.
            now_ms: the clock.
            steady_ms: a clock that is never set, for leases.
            waiting_requests: how many requests wait for the control thread.

        Raises:
            ConfigError: a file under ``config/`` cannot be used.
        """
        self._config = config
        self._settings = config.settings
        self._version = DataVersion.first(now_ms())
        self._store = store
        self._plane = plane
        self._undelivered = 0
        self._damaged: dict[str, int] = {}
        self._thread_states: dict[str, int] = {}
        self._name_servers = name_servers
        self._port = port
        self._now_ms = now_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._parts = served_parts(store)
        self.stats = Statistics(now_ms=now_ms)
        self.queues = Queues(store.handle)
        self.locks = self._make_locks(steady_ms)
        self.topics = self._make_topics()
        self.groups = self._make_groups()
        self.filters = self._make_filters()
        self.clients = Clients(
            topics=self.topics,
            groups=self.groups,
            plane=plane,
            link=link,
            filters=self.filters,
            rules=self._client_rules(),
            now_ms=steady_ms,
        )
        self.offsets = self._make_offsets(link)
        self.delays = BrokerDelays(store.path, plane, now_ms=now_ms)
        self.transactions = BrokerTransactions(
            store.path / "config",
            plane=plane,
            topics=self.topics,
            producers=self.clients.producers,
            link=link,
            broker_name=config.broker_name,
            now_ms=now_ms,
        )
        self.ordered = OrderedBatches(
            store.path / "config", plane=plane, topics=self.topics, groups=self.groups, now_ms=now_ms
        )
        self.routes = Routes(name_servers, self.topics, broker_name=config.broker_name, now_ms=steady_ms)
        self.assignments = self._make_assignments()
        self.staged_writes = StagedWrites(store, topics=self.topics, settings=lambda: self._settings, now_ms=steady_ms)
        self.handlers: Table = table_of(
            part.handlers()
            for part in (
                self.topics,
                self.groups,
                self.clients,
                self.offsets,
                self.delays,
                self._make_timers(),
                self.transactions,
                self.locks,
                self.assignments,
                self.staged_writes,
                InFlight(plane=plane, topics=self.topics, offsets=self.offsets, queues=self.queues, now_ms=now_ms),
                self._make_sends(),
                self._make_replies(link),
                self._make_send_back(),
                self._make_queries(),
                Replicas(lambda: store.info().log_end),
                self._make_forwarding(link),
                self._make_admin(waiting_requests),
            )
        )

    # --- Parts

    def _make_filters(self) -> BrokerFilters:
        settings = self._settings
        return BrokerFilters(
            self._store.path / "config",
            error_percent=settings.max_error_rate_of_bloom_filter_percent,
            groups_expected=settings.expect_consumer_num_use_filter,
            clean_ms=lambda: self._settings.filter_data_clean_time_span_ms,
            now_ms=self._now_ms,
        )

    def _make_locks(self, steady_ms: Callable[[], int]) -> QueueLocks:
        return QueueLocks(
            now_ms=steady_ms,
            path=self._store.path / "cometmq" / "locks.json",
            exists=self._has_queue,
            is_group=lambda group: self.groups.get(group) is not None,
        )

    def _make_topics(self) -> BrokerTopics:
        return BrokerTopics(
            self._parts.topics,
            self._plane,
            self._name_servers,
            rules=self._topic_rules(),
            delete=self._delete_topic,
            make_batch=self._store.handle.set_batch_topic,
            groups_with_progress=lambda topic: self.offsets.groups_of(topic),
        )

    def _make_groups(self) -> BrokerGroups:
        return BrokerGroups(
            self._parts.groups,
            self._plane,
            auto_create=self._settings.auto_create_subscription_group,
            auto_create_max=self._settings.auto_create_group_max,
            forget_progress=lambda group: self.offsets.forget_group(group),
            forbidden_changed=lambda group: self.clients.forbidden_changed(group),
        )

    def _make_offsets(self, link: ClientLink) -> BrokerOffsets:
        return BrokerOffsets(
            self._parts.groups.offsets,
            write=self._parts.groups.persist,
            plane=self._plane,
            topics=self.topics,
            groups=self.groups,
            consumers=self.clients.consumers,
            queues=self.queues,
            stats=self.stats,
            link=link,
            broker_name=self._config.broker_name,
            broker_address=self._address,
            reset_on_server=self._settings.use_server_side_reset_offset,
            now_ms=self._now_ms,
        )

    def _make_assignments(self) -> Assignments:
        return Assignments(
            self._store.path / "config",
            routes=self.routes,
            topics=self.topics,
            groups=self.groups,
            consumers=self.clients.consumers,
            broker_name=self._config.broker_name,
            rules=self._assignment_rules(),
        )

    def _make_timers(self) -> BrokerTimers:
        return BrokerTimers(
            topics=self.topics,
            plane=self._plane,
            settings=lambda: self._settings,
            broker_name=self._config.broker_name,
            region=self._settings.region_id,
            now_ms=self._now_ms,
        )

    def _make_sends(self) -> Sends:
        answer_fields = self._answer_fields()
        return Sends(
            topics=self.topics,
            groups=self.groups,
            locks=self.locks,
            plane=self._plane,
            answer_fields=answer_fields,
            properties={**answer_fields, "CLUSTER": self._settings.broker_cluster_name},
            body_bytes_max=self._settings.max_message_size_bytes,
            broker_ip=self._config.advertised_ip,
        )

    def _make_replies(self, link: ClientLink) -> Replies:
        return Replies(
            topics=self.topics,
            producers=self.clients.producers,
            plane=self._plane,
            link=link,
            settings=lambda: self._settings,
            answer_fields=self._answer_fields(),
            broker_ip=self._config.advertised_ip,
            broker_address=self._address,
            now_ms=self._now_ms,
        )

    def _make_send_back(self) -> SendBack:
        return SendBack(
            topics=self.topics,
            groups=self.groups,
            plane=self._plane,
            stats=self.stats,
            read=self._store.get_physical,
            is_writable=lambda: bool(self._settings.broker_permission & Perm.WRITE),
            broker_ip=self._config.advertised_ip,
        )

    def _make_queries(self) -> Queries:
        return Queries(
            self._store,
            queues=self.queues,
            consumers=self.clients.consumers,
            unique_max=self._settings.default_query_max_num,
            batch_max=self._settings.max_msgs_num_batch,
        )

    def _make_forwarding(self, link: ClientLink) -> ClientForwarding:
        return ClientForwarding(
            consumers=self.clients.consumers,
            topics=self.topics,
            groups=self.groups,
            store=self._store,
            link=link,
            broker_name=self._config.broker_name,
        )

    def _make_admin(self, waiting_requests: Callable[[], int]) -> Admin:
        return Admin(
            live=self,
            settings_file=SettingsFile(self._config.settings_file, may_create=self._config.is_own_file),
            stronger=self._config.stronger,
            store=self._store,
            topics=self.topics,
            clients=self.clients,
            offsets=self.offsets,
            queues=self.queues,
            stats=self.stats,
            counters=self._plane.counters,
            delay_progress=self._plane.delay_progress,
            waiting_requests=waiting_requests,
            broker_name=self._config.broker_name,
            broker_address=self._address,
            now_ms=self._now_ms,
        )

    # --- Settings

    @property
    def settings(self) -> BrokerSettings:
        """The settings as they are now."""
        return self._settings

    @property
    def version(self) -> DataVersion:
        """How often administration changed them."""
        return self._version

    async def change(self, changed: BrokerSettings) -> None:
        """Apply new settings. The next start takes them from its own sources again.

        Raises:
            StorageError, StoreClosed: the store does not take them. Nothing has changed.
        """
        before = self._settings
        retention = Retention.from_settings(changed)
        if retention != Retention.from_settings(before):
            await self._in_executor(lambda: self._parts.change_retention(retention))
        self._settings = changed
        self._version = self._version.next(self._now_ms())
        self.topics.rules = self._topic_rules()
        self.clients.rules = self._client_rules()
        self.assignments.rules = self._assignment_rules()
        self.groups.auto_create = changed.auto_create_subscription_group
        self.offsets.reset_on_server = changed.use_server_side_reset_offset
        self._name_servers.change_pace(period_ms=changed.register_name_server_period_ms, force=changed.force_register)
        self._plane.set_transaction_rules(transaction_options(changed))
        if changed.broker_permission != before.broker_permission:
            self._plane.set_broker_perm(changed.broker_permission)
            self.topics.touch()
            await self._name_servers.announce_all()

    def _topic_rules(self) -> TopicRules:
        settings = self._settings
        return TopicRules(
            auto_create=settings.auto_create_topic_enable,
            auto_create_max=settings.auto_create_topic_max,
            refuse_system_names=settings.validate_system_topic_when_update_topic,
            clear_pop_retry=settings.clear_retry_topic_when_delete_topic,
        )

    def _client_rules(self) -> ClientRules:
        settings = self._settings
        return ClientRules(
            refuse_pull_consumers=settings.reject_pull_consumer_enable,
            notify_changes=settings.notify_consumer_ids_changed_enable,
            notify_at_once=settings.real_time_notify_consumer_change,
            expire_ms=settings.channel_expired_timeout_ms,
            property_filter=settings.enable_property_filter,
        )

    def _assignment_rules(self) -> AssignmentRules:
        settings = self._settings
        default = RequestMode(
            mode=settings.default_message_request_mode, pop_share_queue_num=settings.default_pop_share_queue_num
        )
        return AssignmentRules(
            default_mode=default,
            share_out=settings.server_load_balancer_enable,
            serves_pops=settings.timer_wheel_enable,
        )

    def _has_queue(self, queue: MessageQueue) -> bool:
        topic = self.topics.get(queue.topic)
        if topic is None or queue.broker_name != self._config.broker_name:
            return False
        return 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)

    def _answer_fields(self) -> dict[str, str]:
        trace = "true" if self._settings.trace_on else "false"
        return {"MSG_REGION": self._settings.region_id, "TRACE_ON": trace}

    def _address(self) -> str:
        return self._config.advertised(self._port)

    # --- Life

    def start(self) -> None:
        """Give the loops what they decide by, and begin to deliver delayed messages and timers. Blocks."""
        settings = self._settings
        own = system_topics(
            broker_cluster_name=settings.broker_cluster_name,
            broker_name=self._config.broker_name,
            auto_create_topic_enable=settings.auto_create_topic_enable,
            default_topic_queue_nums=settings.default_topic_queue_nums,
            cluster_topic_enable=settings.cluster_topic_enable,
            broker_topic_enable=settings.broker_topic_enable,
            trace_topic_enable=settings.trace_topic_enable,
            msg_trace_topic_name=settings.msg_trace_topic_name,
            revive_queue_num=settings.revive_queue_num,
            timer_wheel_enable=settings.timer_wheel_enable,
        )
        self._plane.set_broker_perm(settings.broker_permission)
        self.topics.start(own)
        self.groups.start(SYSTEM_GROUPS)
        self.offsets.start()
        self.ordered.start()
        self.locks.load()
        self.staged_writes.start()
        self._parts.topics.listener = self._topic_changed
        self._parts.groups.listener = self
        self.delays.start()
        self._plane.start_timers()
        self._plane.start_pops()
        self.transactions.start()
        self._warn_of_unknown_topics()

    def _warn_of_unknown_topics(self) -> None:
        """Name topics that have queues in the store and no entry: ``topics.json`` was lost, or is another store's."""
        found = {queue[0] for queue in self._store.handle.queues()}
        own = {name for name in found if is_system_topic(name) or is_light_queue(name)}
        names = sorted(name for name in found - own if self.topics.get(name) is None)
        if names:
            _log.warning(
                "queues of topics that are not configured: clients cannot read them until the topics are created",
                extra={"topics": len(names), "names": ", ".join(names[:_NAMES_LOGGED_MAX])},
            )

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop on which the store's notifications are handled."""
        self._loop = loop

    def stop(self) -> None:
        """End delivering, and write down what is in memory alone. Blocks. Nothing may be asked any more.

        Raises:
            StorageError: something could not be written.
        """
        self._parts.topics.listener = None
        self._parts.groups.listener = None
        with ExitStack() as whole:
            whole.callback(self.offsets.persist)
            whole.callback(self.transactions.stop)
            whole.callback(self.ordered.persist)
            whole.callback(self.filters.persist)
            whole.callback(self.locks.persist)
            whole.callback(self.delays.stop)
            whole.callback(self._plane.stop_timers)
            self._plane.stop_pops()

    def connection_closed(self, conn: int) -> None:
        """Hear that a connection is gone."""
        self.clients.connection_closed(conn)

    def _delete_topic(self, name: str) -> None:
        try:
            self._store.delete_topic(name)
        except NotFound:
            # Deleting what is not there is fine.
            return

    # --- Changes by the store's own handle: any thread

    def _topic_changed(self, name: str) -> None:
        found = self.topics.changed_elsewhere(name)
        if found is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._announce_later, found)

    def _announce_later(self, topic: TopicConfig) -> None:
        task = asyncio.get_running_loop().create_task(self._name_servers.announce([topic]))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Progress was set by the store's own side."""
        self._plane.commit_offset(group, topic, queue_id, offset)

    def group_changed(self, group: str) -> None:
        """A group was made or removed by the store's own side."""
        self.groups.changed_elsewhere(group)

    def forgotten(self, group: str | None, topic: str | None) -> None:
        """Progress was dropped by the store's own side."""
        self._plane.remove_offsets(group=group, topic=topic)

    # --- Order of topics, as the name servers keep it

    async def order_config(self, table: KVTable) -> None:
        """Make the topics ordered that the name servers say are, and no others."""
        changed = [
            replace(topic, order=topic.topic_name in table.table)
            for topic in self.topics.all()
            if topic.order != (topic.topic_name in table.table)
        ]
        if changed:
            await self.topics.take_order(changed)

    # --- Jobs

    def jobs(self) -> tuple[Job, ...]:
        """Return what is to be done again and again."""
        return (
            Job(
                name="offsets",
                period_ms=lambda: self._settings.flush_consumer_offset_interval_ms,
                run=lambda: self._in_executor(self.offsets.persist),
            ),
            Job(
                name="delays",
                period_ms=lambda: self._settings.flush_delay_offset_interval_ms,
                run=lambda: self._in_executor(self.delays.persist),
            ),
            Job(name="transactions", period_ms=lambda: _TRANSACTIONS_MS, run=self.transactions.step),
            Job(
                name="transaction metrics",
                period_ms=lambda: _TRANSACTION_METRICS_MS,
                run=lambda: self._in_executor(self.transactions.persist),
            ),
            Job(name="filters", period_ms=lambda: _FILTERS_MS, run=lambda: self._in_executor(self.filters.persist)),
            Job(name="ordered", period_ms=lambda: _ORDERED_MS, run=lambda: self._in_executor(self.ordered.persist)),
            Job(name="clients", period_ms=lambda: _EXPIRE_MS, run=self._expire),
            Job(
                name="routes",
                period_ms=lambda: self._settings.load_balance_poll_name_server_interval_ms,
                run=self.routes.refresh,
            ),
            Job(name="pop retries", period_ms=lambda: _WANTED_MS, run=self._make_wanted),
            Job(name="notices", period_ms=lambda: _NOTICES_MS, run=self._flush_notices),
            Job(name="statistics", period_ms=lambda: _SAMPLE_MS, run=lambda: self._in_executor(self.sample)),
            Job(name="staged writes", period_ms=lambda: _STAGED_MS, run=self.staged_writes.sweep),
        )

    @staticmethod
    async def _in_executor(work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)

    async def _expire(self) -> None:
        self.clients.expire()
        self.locks.drop_expired()

    async def _make_wanted(self) -> None:
        """Make the retry topics that revived messages wait for."""
        wanted = self._plane.take_wanted_topics()
        for name in wanted:
            await self._make_retry(name)
        if wanted:
            self._plane.wanted_topics_made()

    async def _make_retry(self, name: str) -> None:
        try:
            await self.topics.make_for_group(name, queues=1)
        except Error as error:
            # It is asked for again; the others need not wait for that.
            _log.error("retry topic not made", extra={"topic": name, "error": str(error)})

    async def _flush_notices(self) -> None:
        self.clients.flush_notices()

    def sample(self) -> None:
        """Take over the loops' totals into the statistics. Any thread."""
        totals = self._plane.counters()
        stats = self.stats
        cluster = self._settings.broker_cluster_name
        for name in ("messages_in", "messages_out", "pulls", "pulls_found"):
            stats.follow(name, "", totals.get(name, 0))
        stats.follow("pulls_missed", "", totals.get("pulls", 0) - totals.get("pulls_found", 0))
        for name in ("timer_entered", "timer_delivered"):
            stats.follow(name, "", totals.get(name, 0))
        stats.follow("BROKER_PUT_NUMS", cluster, totals.get("messages_in", 0))
        stats.follow("BROKER_GET_NUMS", cluster, totals.get("messages_out", 0))
        for (topic, group), (messages, size) in self._plane.traffic().items():
            kind, key = ("GROUP_GET", f"{topic}@{group}") if group else ("TOPIC_PUT", topic)
            stats.follow(f"{kind}_NUMS", key, messages)
            stats.follow(f"{kind}_SIZE", key, size)
        self._log_states(totals)
        self._log_undelivered(totals.get("delay_undelivered", 0) + totals.get("timer_undelivered", 0))
        self._log_damage(totals)
        stats.counters = {**totals, "connections_in_groups_now": self._members_now()}
        stats.sample()
        stats.turn_day_at(self._now_ms() // _DAY_MS, totals)

    def _log_states(self, totals: Mapping[str, int]) -> None:
        """Log where a thread of the loops' side met something that it waits for, and where it goes on."""
        for name, what in _THREADS.items():
            state, before = totals.get(name, 0), self._thread_states.get(name, 0)
            self._thread_states[name] = state
            if state == before or max(state, before) < _RETRYING:
                continue
            log = _log.info if state < _RETRYING else _log.error
            log("background service", extra={"service": what, "state": _STATES.get(state, str(state))})

    def _log_undelivered(self, count: int) -> None:
        if count > self._undelivered:
            _log.warning(
                "delayed messages went to rmq_sys_UNDELIVERED: their topic, its write permission or queue is not there",
                extra={"messages": count - self._undelivered},
            )
        self._undelivered = count

    def _log_damage(self, totals: Mapping[str, int]) -> None:
        """Log parked messages that cannot be delivered, and timer files that opening did not believe."""
        for name, text in _DAMAGE.items():
            count, before = totals.get(name, 0), self._damaged.get(name, 0)
            if count > before:
                _log.error(text, extra={"count": count - before})
            self._damaged[name] = count

    def _members_now(self) -> int:
        return sum(len(group.members) for group in self.clients.consumers.groups())
