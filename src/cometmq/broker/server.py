"""A broker in this process: the store, the loops, the control plane and the registration, started and stopped together.

    start: store opened (its lock is the broker's) -> loops made -> tables filled -> listening -> registered
    stop:  goodbye to the name servers -> nothing new is taken, requests in progress are finished -> progress written ->
           loops ended -> store closed

Threads: :class:`Broker`'s methods may be called from any thread but the broker's own. Handlers, jobs and the
registration run on one event loop, in the server's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

from cometmq._engine import BrokerPlane, __version__
from cometmq.broker.config import BrokerConfig
from cometmq.broker.control import ControlPlane, Job
from cometmq.broker.native_plane import NativePlane
from cometmq.broker.plane_options import PlaneOptions, PopOptions, PullOptions, TimerOptions
from cometmq.broker.registration import BrokerIdentity, Registrar, Registrations, Timing, bounded_period_ms
from cometmq.broker.routes import Unanswered
from cometmq.broker.transactions import transaction_options
from cometmq.errors import Error, MalformedBody
from cometmq.remoting.bodies.config_tables import KVTable
from cometmq.remoting.channel import AsyncChannel
from cometmq.remoting.server import RemotingServer, ServerLimits
from cometmq.store.newer import refuse_newer_parts
from cometmq.store.options import FlushMode
from cometmq.store.serving import served_parts
from cometmq.store.store import Store
from cometmq.store_config.built_in_topics import revive_topic
from cometmq.store_config.data_version import DataVersion, wall_clock_ms
from cometmq.store_config.topic_config import TopicConfig

__all__ = ["Broker"]

_log = logging.getLogger("cometmq.broker")

T = TypeVar("T")

"""Upstream holds ``registerNameServerPeriod`` between these."""

_OWN_ROUTE_MS = 7_000
"""No divisor of the registrations' period: two brokers that register in turn are each other's route in turn."""
_RIVAL_QUIET_S = 600.0

_MS = 1_000
_REVIVE_QUEUES_MAX = 999
"""Handles of ordered pops name revive queue 999, which does not exist."""


class Broker:
    """One broker. Start it once; stopped, it is done with.

    >>> with Broker(load_broker_config("data", listen=":0")) as broker:  # doctest: +SKIP
    ...     print(broker.address)
    """

    def __init__(self, config: BrokerConfig, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        """Nothing is opened before :meth:`start`.

        Args:
            config: how the broker runs.
            now_ms: the wall clock.
        """
        self.config = config
        self._now_ms = now_ms
        self._life = threading.Lock()
        self._undo: ExitStack | None = None
        self._jobs: list[asyncio.Task[None]] = []
        self._port = 0
        self._control: ControlPlane | None = None
        self._rival_quiet_until_s = 0.0

    # --- Life

    def start(self) -> None:
        """Open the store, listen, and register. Returns when clients are served and every name server was tried once.

        Raises:
            StoreLocked: another process has the store; ``holder_pid`` says which.
            CannotListen: an address is taken.
            Error: as :func:`cometmq.open`, or a file under ``config/`` cannot be used. Nothing is left open.
        """
        with self._life:
            if self._port:
                raise RuntimeError("a broker is started once")
            with ExitStack() as undo:
                self._start(undo)
                self._undo = undo.pop_all()
        _log.info(
            "broker started",
            extra={
                "version": __version__,
                "broker": self.name,
                "cluster": self.config.settings.broker_cluster_name,
                "address": self.address,
                "store": self.config.path,
                "flush": self.config.flush.value,
                "deletes_after_hours": self.config.settings.file_reserved_time_hours,
                "name_servers": ",".join(self.config.name_servers) or "none",
            },
        )

    def _start(self, undo: ExitStack) -> None:
        """Start everything; ``undo`` stops it in reverse order."""
        config, settings = self.config, self.config.settings
        with _reserved_port(config.host, config.port) as port:
            self._port = port
            refuse_newer_parts(config.path)
            self.store = undo.enter_context(Store(config.plan(port), read_only=False))
            self._log_recovery()
            self._plane = plane = NativePlane(
                self._make_plane(self.store), waits_for_disk=config.flush is FlushMode.SYNC
            )
            undo.callback(plane.close)
            # Progress is written when no loop can change it any more, and before the loops' tables are freed.
            undo.callback(self._stop_control)
            self.server = RemotingServer(
                config.addresses(port),
                loops=settings.server_selector_threads,
                engine_handler=plane.engine,
                limits=ServerLimits(
                    # 0: the same number, and nobody asked for it; fewer are worth no line then.
                    connections_max=settings.connections_max if "connections_max" in config.given else 0,
                    address_conns_max=settings.connections_per_address_max,
                    idle_ms=settings.server_channel_max_idle_time_seconds * _MS,
                ),
            )
            undo.callback(self.server.stop, grace_ms=settings.shutdown_wait_time_seconds * _MS)
        self._registrar = self._make_registrar()
        self._control = ControlPlane(
            config,
            store=self.store,
            plane=plane,
            link=self.server,
            name_servers=self._registrar,
            port=port,
            now_ms=self._now_ms,
            waiting_requests=lambda: self.server.waiting,
        )
        self._control.start()
        self.server.on_closed(self._control.connection_closed)
        self.server.start(self._control.handlers)
        undo.callback(self._leave)
        self._control.attach(self.server.loop)
        self._on_loop(self._begin())

    def _log_recovery(self) -> None:
        opening = self.store.opening()
        if not opening.was_unclean:
            return
        _log.info(
            "store recovered",
            extra={
                "records": opening.records,
                "from": opening.scanned_from,
                "to": opening.scanned_to,
                "cut_bytes": opening.cut_bytes,
                "removed": opening.removed,
                "removed_records": opening.removed_records,
                "gaps": opening.gaps,
                "ms": opening.elapsed_us // 1000,
            },
        )

    def _make_plane(self, store: Store) -> BrokerPlane:
        settings = self.config.settings
        pull = PullOptions(
            long_polling=settings.long_polling_enable,
            short_polling_ms=settings.short_polling_time_ms,
            lite=settings.lite_pull_message_enable,
            property_filter=settings.enable_property_filter,
            transfer_count_memory=settings.max_transfer_count_on_message_in_memory,
            transfer_bytes_memory=settings.max_transfer_bytes_on_message_in_memory,
            transfer_count_disk=settings.max_transfer_count_on_message_in_disk,
            transfer_bytes_disk=settings.max_transfer_bytes_on_message_in_disk,
            memory_bytes=_share_of_memory(settings.access_message_in_memory_max_ratio_percent),
        )
        timers = TimerOptions(
            precision_ms=settings.timer_precision_ms,
            delay_ms_max=settings.timer_max_delay_seconds * _MS,
            roll_window_slots=settings.timer_roll_window_slots,
            slot_messages=settings.timer_congest_num_each_slot,
            flush_interval_ms=settings.timer_flush_interval_ms,
            log_file_bytes=settings.mapped_file_size_timer_log_bytes,
        )
        pops = PopOptions(
            revive_queues=settings.revive_queue_num,
            revive_queues_read=self._revive_queues(store),
            merge=settings.enable_pop_buffer_merge,
            stay_ms=settings.pop_ck_stay_buffer_time_ms,
            stay_out_ms=settings.pop_ck_stay_buffer_time_out_ms,
            merged_max=settings.pop_ck_max_buffer_size,
            lane_max=settings.pop_ck_offset_max_queue_size,
            retry_v2=settings.enable_retry_topic_v2,
            retry_v1=settings.retrieve_message_from_pop_retry_topic_v1,
            retry_percent=settings.pop_from_retry_probability,
            begin_early=settings.init_pop_offset_by_check_msg_in_mem,
            in_flight_max=settings.pop_inflight_message_threshold if settings.enable_pop_message_threshold else 0,
            waits_max=settings.max_pop_polling_size,
            waits_key_max=settings.pop_polling_size,
            give_up=settings.skip_when_ck_re_put_reach_max_times,
        )
        return BrokerPlane(
            store.handle,
            PlaneOptions(
                cluster=settings.broker_cluster_name,
                broker_ip=self.config.advertised_ip,
                store_address=ip_address(self.config.advertised_ip).packed,
                store_port=self._port,
                broker_name=self.config.broker_name,
                region=settings.region_id,
                trace=settings.trace_on,
                message_bytes_max=settings.max_message_size_bytes,
                flush_timeout_ms=settings.sync_flush_timeout_ms,
                pull=pull,
                timers=timers if settings.timer_wheel_enable else None,
                pops=pops,
                transactions=transaction_options(settings),
            ),
        )

    def _revive_queues(self, store: Store) -> int:
        """Return how many queues the revive topic has: a broker with a larger ``reviveQueueNum`` left some there."""
        wanted = self.config.settings.revive_queue_num
        topic = served_parts(store).topics.table.get(revive_topic(self.config.settings.broker_cluster_name))
        there = wanted if topic is None else max(wanted, topic.read_queue_nums)
        if there > wanted:
            _log.info("more revive queues are read than reviveQueueNum says", extra={"wanted": wanted, "read": there})
        return min(there, _REVIVE_QUEUES_MAX)

    def _make_registrar(self) -> Registrar:
        config, settings = self.config, self.config.settings
        identity = BrokerIdentity(
            cluster=settings.broker_cluster_name,
            name=config.broker_name,
            broker_id=settings.broker_id,
            address=self.address,
            # Slaves are not served yet; upstream's routes name the port all the same.
            ha_address=f"{settings.broker_ip2 or config.advertised_ip}:{settings.ha_listen_port or self._port + 1}",
        )
        timing = Timing(
            period_ms=bounded_period_ms(settings.register_name_server_period_ms),
            timeout_ms=settings.register_broker_timeout_ms,
            force=settings.force_register,
        )
        return Registrar(
            config.name_servers,
            Registrations(identity, self, now_ms=self._now_ms),
            channel_to=lambda address, lost: AsyncChannel(address, on_lost=lost),
            timing=timing,
            order_config=self._take_order,
        )

    async def _take_order(self, table: KVTable) -> None:
        await self.control.order_config(table)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        own_route = Job(name="own route", period_ms=lambda: _OWN_ROUTE_MS, run=self._look_for_rival)
        self._jobs = [loop.create_task(self._repeat(job)) for job in (*self.control.jobs(), own_route)]
        await self._registrar.start()

    async def _look_for_rival(self) -> None:
        """Warn, once in a while, of another living broker with this name and id: the two take each other's routes."""
        now_s = asyncio.get_running_loop().time()
        if not self._registrar.has_name_servers or now_s < self._rival_quiet_until_s:
            return
        try:
            route = await self._registrar.route(self.name)
        except (Unanswered, MalformedBody):
            return  # the registration logs its own trouble
        broker_id = self.config.settings.broker_id
        brokers = () if route is None else route.broker_datas
        known = (one.broker_addresses.get(broker_id) for one in brokers if one.broker_name == self.name)
        for address in known:
            if address is not None and address != self.address:
                self._rival_quiet_until_s = now_s + _RIVAL_QUIET_S
                _log.warning(
                    "another broker has this name and id, and the two take each other's routes; change one brokerName",
                    extra={"broker": self.name, "id": broker_id, "address": self.address, "other_address": address},
                )

    @staticmethod
    async def _repeat(job: Job) -> None:
        while True:
            await asyncio.sleep(job.period_ms() / _MS)
            try:
                await job.run()
            except Error as error:
                # A full disk, say: the next round tries again.
                _log.error("job failed", extra={"job": job.name, "error": str(error)})
            except Exception:  # noqa: BLE001 - one job's mistake must not end it for good
                _log.exception("job failed", extra={"job": job.name})

    def _leave(self) -> None:
        """Say goodbye to the name servers, end the jobs, and let nobody wait for a message any more."""
        self._on_loop(self._end())
        self.server.drain()
        self._plane.release_holds()

    async def _end(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._registrar.stop()

    def _stop_control(self) -> None:
        if self._control is not None:
            self._control.stop()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.server.loop).result()

    def stop(self) -> None:
        """Leave the name servers, finish what is under way, write everything down, let the store go. Twice is fine.

        Raises:
            StorageError: something could not be written. Everything is closed all the same.
        """
        with self._life:
            undo, self._undo = self._undo, None
            if undo is None:
                return
            _log.info("broker stopping", extra={"broker": self.name, "address": self.address})
            undo.close()
        _log.info("broker stopped", extra={"broker": self.name})

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # --- Properties

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.config.broker_name

    @property
    def port(self) -> int:
        """The port that clients connect to; 0 before the start."""
        return self._port

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``, as in routes."""
        return self.config.advertised(self._port)

    @property
    def control(self) -> ControlPlane:
        """The control plane. Not before the start."""
        if self._control is None:
            raise RuntimeError("the broker was not started")
        return self._control

    @property
    def registered(self) -> tuple[str, ...]:
        """The name servers that know the broker now."""
        return self._registrar.registered

    def counters(self) -> dict[str, int]:
        """Return what the loops counted since the start, by name; levels end in ``_now``."""
        network = {f"net_{name}": value for name, value in self.server.counters().items()}
        return {**self.control.stats.counters, **network}

    # --- Where the registration takes its content from

    def topics(self) -> Sequence[TopicConfig]:
        """Return every topic."""
        return self.control.topics.all()

    def data_version(self) -> DataVersion:
        """Return the version of the topics."""
        return self.control.topics.data_version

    def broker_permission(self) -> int:
        """Return what the broker as a whole allows."""
        return self.control.settings.broker_permission


def _share_of_memory(percent: int) -> int:
    """Return so much of the machine's memory in bytes; at least one, as 0 asks the loops for their own default."""
    return max(1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * percent // 100)


@contextmanager
def _reserved_port(host: str, port: int) -> Iterator[int]:
    """Give a port: the one asked for, or, for 0, a free one that nobody else is given before we listen on it."""
    if port:
        yield port
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        # Bound and not listening: with this option on both sides another socket may listen on it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield int(holder.getsockname()[1])
