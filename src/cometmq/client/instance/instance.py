"""The client instance, shared by the producers and consumers of one client id (upstream's ``MQClientInstance``).

It owns the connections, the routes, the heartbeats and the rhythm: routes are refreshed, brokers hear from us, progress
is persisted and queues are shared out at their intervals. The state of one group belongs to its part
(:mod:`cometmq.client.instance.registrants`). Route look-ups are in ``route_updates``, background tasks in
``loop_tasks``.

Invariants: everything happens on one event loop; rounds of one kind never overlap; a failure of a server or a part ends
that round alone.

Threads: the loop's, except where a method says otherwise. Source: consumption specification 1.4 to 1.6.1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Protocol, TypeVar

from cometmq.client.instance.awaited_replies import AwaitedReplies
from cometmq.client.instance.heartbeat_sender import INNER_PRODUCER_GROUP, HeartbeatSender
from cometmq.client.instance.loop_tasks import LoopTasks
from cometmq.client.instance.name_servers import NameServers, look_up, look_up_url
from cometmq.client.instance.registrants import ConsumerPart, InnerSender, ProducerPart
from cometmq.client.instance.route_updates import RouteUpdates
from cometmq.client.instance.routes import MASTER_ID, RouteTable
from cometmq.client.instance.server_requests import ServerRequests
from cometmq.client.instance.service_state import ServiceState, not_startable
from cometmq.client.settings import DEFAULT_INSTANCE_NAME, ClientSettings
from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ClientStateError,
    Error,
    ForkedClient,
    GroupTaken,
)
from cometmq.remoting.addresses import host_port, own_address, parse_address
from cometmq.remoting.bodies.connections import GetConsumerListByGroupResponseBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.channel import checked
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, request
from cometmq.remoting.network import Network, RpcHook

__all__ = [
    "INNER_PRODUCER_GROUP",
    "OFFSET_TIMEOUT_MS",
    "ClientInstance",
    "NetworkFactory",
    "build_client_id",
    "own_instance_name",
    "vip_address",
    "wall_clock_ms",
]

OFFSET_TIMEOUT_MS = 5_000
"""How long a broker may take to return a group's progress."""

_LOOK_UP_FIRST_MS, _LOOK_UP_PERIOD_MS = 10_000, 120_000
_ROUTES_FIRST_MS = 10
_MISSING_FIRST_MS, _MISSING_PERIOD_MS = 500, 1_000
"""When name servers are asked for subscribed topics that they did not know."""
_HEARTBEAT_FIRST_MS = 1_000
_PERSIST_FIRST_MS = 10_000
_REBALANCE_RETRY_MS = 1_000
_VIP_PORT_DISTANCE = 2

T = TypeVar("T")

_log = logging.getLogger(__name__)


class NetworkFactory(Protocol):
    """Makes the way to the servers for one instance; called on the loop."""

    def __call__(
        self,
        settings: ClientSettings,
        *,
        on_request: Callable[[str, Command], Awaitable[Command | None] | Command | None],
        on_connected: Callable[[str], None],
        on_lost: Callable[[str], None],
        hooks: tuple[RpcHook, ...],
    ) -> Network:
        """Return the network; the callbacks get the server's address and run on the loop."""
        ...


def _hub(
    settings: ClientSettings,
    *,
    on_request: Callable[[str, Command], Awaitable[Command | None] | Command | None],
    on_connected: Callable[[str], None],
    on_lost: Callable[[str], None],
    hooks: tuple[RpcHook, ...],
) -> Network:
    from cometmq.remoting.hub import Hub

    return Hub(
        on_request=on_request,
        on_connected=on_connected,
        on_lost=on_lost,
        hooks=hooks,
        header_format=settings.header_format,
        connect_timeout_ms=settings.connect_timeout_ms,
        idle_timeout_ms=settings.idle_timeout_ms,
    )


def build_client_id(settings: ClientSettings) -> str:
    """Return ``ip@instance``, with the unit and the mark of pulling clients where there are any."""
    unit = settings.unit_name if settings.unit_name and settings.unit_name.strip() else None
    stream = "STREAM" if settings.enable_stream_request_type else None
    head = (settings.client_ip or own_address(), settings.instance_name)
    return "@".join(part for part in (*head, unit, stream) if part is not None)


def own_instance_name(name: str) -> str:
    """Return an instance name that nobody else has where ``name`` is the default one: ``pid#nanoseconds``."""
    return f"{os.getpid()}#{time.monotonic_ns()}" if name == DEFAULT_INSTANCE_NAME else name


def vip_address(address: str) -> str:
    """Return the address of a broker's second port, two below its own."""
    host, port = parse_address(address)
    return host_port(host, port - _VIP_PORT_DISTANCE) if port > _VIP_PORT_DISTANCE else address


_instances: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, ClientInstance]]
_instances = weakref.WeakKeyDictionary()


class ClientInstance:
    """The state that the clients of one client id share. Made by :meth:`shared`.

    Attributes:
        client_id: the id that brokers know.
        settings: those of the first client with this id.
        loop: the loop that it belongs to.
        now_ms: the wall clock, milliseconds since 1970.
        routes: which topics are where.
        replies: the requests that wait for replies.
        network: the way to the servers.
        name_servers: the choice among them.
        broker_versions: broker address to the version in its last answer to a heartbeat.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        network_factory: NetworkFactory = _hub,
        now_ms: Callable[[], int] | None = None,
        hooks: tuple[RpcHook, ...] = (),
        random: Random | None = None,
        look_up_name_servers: Callable[[str, int], Awaitable[tuple[str, ...]]] | None = None,
    ) -> None:
        """Connect to nobody yet; on the loop.

        Args:
            settings: the client's.
            network_factory: makes the network.
            now_ms: the wall clock; None for the machine's.
            hooks: see every request and answer, behind those of the settings.
            random: chooses among name servers and brokers.
            look_up_name_servers: asks a web server (URL, timeout in ms) for the name servers; None asks by HTTP.
        """
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.client_id = build_client_id(settings)
        self.now_ms = wall_clock_ms if now_ms is None else now_ms
        self.routes = RouteTable(random=random)
        self.replies = AwaitedReplies(
            self.loop, client_id=self.client_id, namespace=settings.namespace, now_ms=self.now_ms
        )
        self.requests = ServerRequests(self)
        self.network = network_factory(
            settings,
            on_request=self.requests.answer,
            on_connected=self._connected,
            on_lost=self._lost,
            hooks=(*settings.rpc_hooks, *hooks),
        )
        self.name_servers = NameServers(self.network, settings.name_servers, random=random)
        self._look_up = self._look_up_by_http if look_up_name_servers is None else look_up_name_servers
        self._pid = os.getpid()
        self._state = ServiceState.CREATE_JUST
        self._users = 0
        self._consumers: dict[str, ConsumerPart] = {}
        self._producers: dict[str, ProducerPart] = {}
        self._inner_sender: InnerSender | None = None
        self._starting = asyncio.Lock()
        self._heartbeats = HeartbeatSender(
            self.client_id,
            settings,
            routes=self.routes,
            network=self.network,
            consumers=self._consumers,
            producers=self._producers,
        )
        self.broker_versions: Mapping[str, int] = self._heartbeats.versions
        self._route_updates = RouteUpdates(
            self.routes,
            self.name_servers,
            consumers=self._consumers,
            producers=self._producers,
            client_id=self.client_id,
            timeout_ms=settings.mq_client_api_timeout_ms,
            on_changed=self.wake_rebalance,
        )
        self._tasks = LoopTasks(self.client_id)
        self._rebalance_wanted = asyncio.Event()
        self._last_rebalance_s = self.loop.time()

    def __repr__(self) -> str:
        """Return client id, state and groups."""
        groups = ", ".join(sorted([*self._consumers, *self._producers]))
        return f"<ClientInstance {self.client_id} {self._state.value} groups=[{groups}]>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @classmethod
    def shared(
        cls,
        settings: ClientSettings,
        *,
        network_factory: NetworkFactory | None = None,
        now_ms: Callable[[], int] | None = None,
        hooks: tuple[RpcHook, ...] = (),
    ) -> ClientInstance:
        """Return the running loop's instance of this client id; made of these settings if it does not exist yet.

        Each call of it is to be paired with one :meth:`release`.
        """
        table = _instances.setdefault(asyncio.get_running_loop(), {})
        client_id = build_client_id(settings)
        instance = table.get(client_id)
        if instance is None:
            instance = cls(
                settings,
                network_factory=_hub if network_factory is None else network_factory,
                now_ms=now_ms,
                hooks=hooks,
            )
            table[client_id] = instance
        instance._users += 1
        return instance

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return self._state

    def steady_ms(self) -> int:
        """Return milliseconds by the loop's clock, which is never set: the clock of leases and expiries."""
        return round(self.loop.time() * 1000)

    async def start(self) -> None:
        """Start what happens by the clock; nothing where it runs already.

        Raises:
            ClientStateError: an earlier start failed, or no name server is known.
            ConnectionLost, MalformedBody: the web server did not return the name servers.
            ForkedClient: it belongs to the process of which this one is a fork.
        """
        self.require_own_process()
        async with self._starting:
            if self._state is ServiceState.START_FAILED:
                raise not_startable(f"client instance {self.client_id}", self._state)
            if self._state is not ServiceState.CREATE_JUST:
                return
            self._state = ServiceState.START_FAILED
            settings = self.settings
            if not self.name_servers.addresses:
                await self.fetch_name_servers()
                self._tasks.repeat(_LOOK_UP_FIRST_MS, _LOOK_UP_PERIOD_MS, self.fetch_name_servers)
            self._tasks.repeat(_ROUTES_FIRST_MS, settings.poll_name_server_interval_ms, self.refresh_routes)
            self._tasks.repeat(_MISSING_FIRST_MS, _MISSING_PERIOD_MS, self._find_missing_routes)
            self._tasks.repeat(_HEARTBEAT_FIRST_MS, settings.heartbeat_broker_interval_ms, self._heartbeat_round)
            self._tasks.repeat(_PERSIST_FIRST_MS, settings.persist_consumer_offset_interval_ms, self._persist_offsets)
            self.spawn(self._rebalance_rounds())
            self._state = ServiceState.RUNNING

    async def release(self) -> None:
        """Give up one :meth:`shared`; the last one closes the connections and stops the clock."""
        self._users -= 1
        if self._users > 0 or self._state is ServiceState.SHUTDOWN_ALREADY:
            return
        was_running = self._state is ServiceState.RUNNING
        self._state = ServiceState.SHUTDOWN_ALREADY
        table = _instances.get(self.loop, {})
        if table.get(self.client_id) is self:
            del table[self.client_id]
        try:
            await self._tasks.cancel(self._route_updates.calls)
            if was_running:
                await self._heartbeats.send_unregister(producer_group=INNER_PRODUCER_GROUP)
        finally:
            await self.network.close()

    def require_own_process(self) -> None:
        """Return where this process made the instance.

        Raises:
            ForkedClient: its parent did.
        """
        if os.getpid() != self._pid:
            raise ForkedClient(
                f"client {self.client_id} belongs to process {self._pid}, of which this one is a fork: "
                "make and start producers and consumers after the fork"
            )

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run work beside the caller until it ends or the instance is closed; its exceptions are logged."""
        return self._tasks.spawn(work)

    # --- Parts --------------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Mapping[str, ConsumerPart]:
        """The consumers by group."""
        return self._consumers

    @property
    def producers(self) -> Mapping[str, ProducerPart]:
        """The producers by group, without the inner one."""
        return self._producers

    def register_consumer(self, part: ConsumerPart) -> None:
        """Make a consumer a part of this instance.

        Raises:
            GroupTaken: there is one of this group.
        """
        self._register(self._consumers, part, "consumer")

    def register_producer(self, part: ProducerPart) -> None:
        """Make a producer a part of this instance.

        Raises:
            GroupTaken: there is one of this group.
        """
        self._register(self._producers, part, "producer")

    def _register(self, table: dict[str, T], part: T, kind: str) -> None:
        group: str = part.group  # type: ignore[attr-defined]
        if group in table:
            raise GroupTaken(
                f"{kind} group {group} runs on client instance {self.client_id} already: close that {kind}, use "
                "another group, or give this one an instance_name of its own",
                group=group,
            )
        table[group] = part
        self._route_updates.add(part)

    async def unregister_consumer(self, group: str) -> None:
        """Remove a consumer and unregister it at every broker; nothing without one of this group."""
        part = self._consumers.pop(group, None)
        if part is not None:
            self._route_updates.remove(part)
            await self._heartbeats.send_unregister(consumer_group=group)

    async def unregister_producer(self, group: str) -> None:
        """Remove a producer and unregister it at every broker; nothing without one of this group."""
        part = self._producers.pop(group, None)
        if part is not None:
            self._route_updates.remove(part)
            await self._heartbeats.send_unregister(producer_group=group)

    # --- Routes -------------------------------------------------------------------------------------------------------

    async def fetch_name_servers(self) -> None:
        """Ask the configured web server for the name servers.

        Raises:
            ClientStateError: none is configured.
            ConnectionLost, MalformedBody: it did not return them.
        """
        settings = self.settings
        if settings.name_server_domain is None:
            raise ClientStateError(
                "no name server is known: give name_servers='host:9876', or set NAMESRV_ADDR in the environment"
            )
        url = look_up_url(
            settings.name_server_domain, subgroup=settings.name_server_subgroup, unit_name=settings.unit_name
        )
        addresses = await self._look_up(url, settings.mq_client_api_timeout_ms)
        if self.name_servers.replace(addresses):
            _log.info("%s: name servers are now %s", self.client_id, ";".join(addresses))

    async def _look_up_by_http(self, url: str, timeout_ms: int) -> tuple[str, ...]:
        return await asyncio.to_thread(look_up, url, timeout_ms=timeout_ms)

    async def refresh_routes(self) -> None:
        """Ask for the routes of all topics that parts subscribe to or send to."""
        await self._route_updates.refresh()

    async def _find_missing_routes(self) -> None:
        """Ask for the routes of subscribed topics that have none, so that a topic is consumed once it is created."""
        if await self._route_updates.find_missing():
            await self._heartbeats.greet_new_brokers()  # they list this member only after its heartbeat
            self.wake_rebalance()

    async def update_route(
        self,
        topic: str,
        *,
        default_topic: str | None = None,
        default_queues: int = 4,
        must_exist: bool = False,
        must_answer: bool = False,
    ) -> bool:
        """Look up a topic's route and pass it to the parts; concurrent callers for one topic share the request.

        Args:
            topic: the topic.
            default_topic: take this one's route instead, for a topic that the first send will create.
            default_queues: most queues that such a topic gets at a broker.
            must_exist: raise what went wrong; else it is logged.
            must_answer: raise what kept the name servers from answering; that they do not know the topic is logged.

        Returns:
            Whether something changed.

        Raises:
            RouteNotFound: no name server knows the topic, and it must exist.
            Error: none could be asked, and one must answer.
        """
        return await self._route_updates.update(
            topic,
            default_topic=default_topic,
            default_queues=default_queues,
            must_exist=must_exist,
            must_answer=must_answer,
        )

    def master_address(self, broker_name: str) -> str | None:
        """Return the address that is written to, or None. Any thread."""
        return self.routes.master_address(broker_name)

    def broker_address(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        """Return an address that can be read from, and whether it is a slave's (:meth:`RouteTable.broker_address`)."""
        return self.routes.broker_address(broker_name, broker_id, only_this=only_this)

    def api_address(self, address: str) -> str:
        """Return where a broker is asked what is neither a pull nor a heartbeat: its second port, if that is wanted."""
        return vip_address(address) if self.settings.vip_channel_enabled else address

    # --- Heartbeats ---------------------------------------------------------------------------------------------------

    async def _heartbeat_round(self) -> None:
        self._heartbeats.drop_gone_brokers()
        await self.heartbeat()

    async def heartbeat(self, *, queues_changed: bool = False) -> bool:
        """Send every broker our groups and subscriptions.

        Args:
            queues_changed: the versions of subscriptions changed: leave nothing out, and where a heartbeat is under way
                send one more behind it. It may have been made before the change, and brokers refuse the pulls of a
                version that they have not heard of.

        Returns:
            False where nothing was sent: there is no broker, or a heartbeat is in progress.
        """
        return await self._heartbeats.beat(queues_changed=queues_changed)

    def _connected(self, address: str) -> None:
        wanted = self.settings.enable_heartbeat_channel_event_listener
        if wanted and self._state is ServiceState.RUNNING and self.routes.is_known(address):
            self.spawn(self._greet(address))

    async def _greet(self, address: str) -> None:
        """Send a broker a heartbeat as soon as it is connected: it counts members by their connections."""
        if await self._heartbeats.greet(address):
            self.wake_rebalance()

    async def introduce(self, broker_names: Iterable[str]) -> None:
        """Send a heartbeat to the masters that have taken none over their present connection."""
        addresses = [address for name in broker_names if (address := self.master_address(name)) is not None]
        await self._heartbeats.introduce(addresses)

    async def greet_again(self, address: str, group: str) -> bool:
        """Send a heartbeat to a broker that knows no member of a group: it may have created the group just now.

        A broker that keeps knowing none gets one each second at first, then less and less often.

        Returns:
            Whether one was sent; else the last one was not long ago.
        """
        delay_s = await self._heartbeats.greet_again(address, group)
        if delay_s is None:
            return False
        self.wake_rebalance(round(delay_s * 1000))
        return True

    def _lost(self, address: str) -> None:
        self._heartbeats.lost(address)

    # --- Rebalance and progress ---------------------------------------------------------------------------------------

    def wake_rebalance(self, delay_ms: int = 0) -> None:
        """Let the next sharing-out of queues begin now, or after a delay; it keeps its distance to the last one."""
        if delay_ms > 0:
            self.loop.call_later(delay_ms / 1000, self._rebalance_wanted.set)
        else:
            self._rebalance_wanted.set()

    async def _rebalance_rounds(self) -> None:
        wait_ms: float = self.settings.rebalance_wait_interval_ms
        while True:
            timer = self.loop.call_later(wait_ms / 1000, self._rebalance_wanted.set)
            try:
                await self._rebalance_wanted.wait()
            finally:
                timer.cancel()
            self._rebalance_wanted.clear()
            since_ms = (self.loop.time() - self._last_rebalance_s) * 1000
            # A timer may fire early by the clock's resolution; the rest is not worth another wait.
            left_ms = self.settings.rebalance_min_interval_ms - since_ms
            if left_ms > 1:
                wait_ms = left_ms
                continue
            is_balanced = await self._rebalance()
            wait_ms = self.settings.rebalance_wait_interval_ms if is_balanced else _REBALANCE_RETRY_MS
            self._last_rebalance_s = self.loop.time()

    async def _rebalance(self) -> bool:
        """Let every consumer share out its queues; return whether all have the right ones."""
        return all(await asyncio.gather(*(self._rebalance_one(part) for part in list(self._consumers.values()))))

    async def _rebalance_one(self, part: ConsumerPart) -> bool:
        try:
            return await part.do_rebalance()
        except Exception:  # noqa: BLE001 - the other groups have theirs
            _log.exception("%s: group %s could not share out its queues", self.client_id, part.group)
            return False

    async def _persist_offsets(self) -> None:
        await asyncio.gather(*(self._persist_one(part) for part in list(self._consumers.values())))

    async def _persist_one(self, part: ConsumerPart) -> None:
        try:
            await part.persist_offsets()
        except Exception:  # noqa: BLE001 - the other groups have theirs
            _log.exception("%s: the progress of group %s could not be stored", self.client_id, part.group)

    # --- Questions to brokers -----------------------------------------------------------------------------------------

    async def consumer_ids(self, topic: str, group: str) -> list[str] | None:
        """Return the client ids of a group's members as some broker of the topic knows them, or None."""
        address = self.routes.broker_of_topic(topic)
        if address is None:
            await self.update_route(topic)
            address = self.routes.broker_of_topic(topic)
        if address is None:
            return None
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
        timeout_ms = self.settings.mq_client_api_timeout_ms
        try:
            answer = checked(
                await self.network.invoke(self.api_address(address), command, timeout_ms=timeout_ms), address=address
            )
        except BrokerError as error:
            _log.debug("%s: %s", self.client_id, error)
            if error.code == ResponseCode.SYSTEM_ERROR:  # brokers' answer for a group without members
                await self.greet_again(address, group)
            return None
        except Error as error:
            _log.info("%s: request %d to %s failed: %s", self.client_id, command.code, address, error)
            return None
        try:
            return list(GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_ids) or None
        except Error as error:
            _log.warning("%s: %s gave no list of members: %s", self.client_id, address, error)
            return None

    async def ask_broker(
        self,
        broker_name: str,
        command: Command,
        *,
        timeout_ms: int,
        master_only: bool = True,
        topic: str | None = None,
    ) -> Command:
        """Ask a broker by its name and return its answer with any code.

        Args:
            broker_name: the broker. Where it is not known, routes are refreshed once.
            command: the question.
            timeout_ms: longest wait.
            master_only: its master; else a slave will do where there is no master.
            topic: whose route to refresh; None for the one that the command's field ``topic`` names, or all topics.

        Raises:
            BrokerNotFound: no name server knows an address of it.
            ConnectionLost, RequestTimeout, LimitReached: no answer came, also from the name servers.
        """
        address = self._address_of(broker_name, master_only=master_only)
        if address is None:
            wanted = command.fields.get("topic") if topic is None else topic
            await (self.refresh_routes() if wanted is None else self.update_route(wanted, must_answer=True))
            address = self._address_of(broker_name, master_only=master_only)
        if address is None:
            what = "master" if master_only else "address"
            raise BrokerNotFound(
                f"no name server knows a {what} of broker {broker_name}: check that it runs and is registered "
                "(cometmq cluster show)",
                broker_name=broker_name,
            )
        return await self.network.invoke(self.api_address(address), command, timeout_ms=timeout_ms)

    def _address_of(self, broker_name: str, *, master_only: bool) -> str | None:
        if master_only:
            return self.routes.master_address(broker_name)
        found = self.routes.broker_address(broker_name)
        return None if found is None else found[0]

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's progress in a queue as the broker has it, or None where it has none.

        Raises:
            BrokerError, BrokerNotFound, ConnectionLost, RequestTimeout, LimitReached, MalformedCommand: the topic's
            route cannot be fetched.
        """
        command = request(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=queue.topic, queueId=queue.queue_id
        )
        answer = await self.ask_broker(queue.broker_name, command, timeout_ms=OFFSET_TIMEOUT_MS, master_only=False)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return self._number(answer, "offset", queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get. Raises as :meth:`query_offset`."""
        return await self._ask_queue(RequestCode.GET_MAX_OFFSET, queue, "offset")

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message. Raises as :meth:`query_offset`."""
        return await self._ask_queue(RequestCode.GET_MIN_OFFSET, queue, "offset")

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the queue's first message was stored, ms since 1970; -1 where it has none."""
        return await self._ask_queue(RequestCode.GET_EARLIEST_MSG_STORETIME, queue, "timestamp")

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at a time (ms since 1970) or later."""
        return await self._ask_queue(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, "offset", timestamp_ms=timestamp_ms)

    async def _ask_queue(
        self, code: RequestCode, queue: MessageQueue, member: str, *, timestamp_ms: int | None = None
    ) -> int:
        command = request(code, topic=queue.topic, queueId=queue.queue_id, timestamp=timestamp_ms)
        answer = await self.ask_broker(queue.broker_name, command, timeout_ms=self.settings.mq_client_api_timeout_ms)
        return self._number(answer, member, queue)

    def _number(self, answer: Command, member: str, queue: MessageQueue) -> int:
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"{answer.remark or 'no remark'} (queue {queue.queue_id} of {queue.topic} at {queue.broker_name})",
                code=answer.code,
            )
        return Members(answer.fields).required_int64(member)

    # --- Messages sent back -------------------------------------------------------------------------------------------

    async def send_inner(
        self, topic: str, body: bytes, *, properties: Mapping[str, str], flag: int = 0, timeout_ms: int = 5_000
    ) -> None:
        """Send a message that a consumer puts back, as it is.

        Raises:
            Error: it is not known to be stored.
        """
        if self._inner_sender is None:
            # Most consumers never need it, and what sends is built on this module.
            from cometmq.client.send.inner_producer import InnerProducer

            self._inner_sender = InnerProducer(self)
        await self._inner_sender.send(topic, body, properties=properties, flag=flag, timeout_ms=timeout_ms)


def wall_clock_ms() -> int:
    """Return milliseconds since 1970 by the machine's clock."""
    return time.time_ns() // 1_000_000
