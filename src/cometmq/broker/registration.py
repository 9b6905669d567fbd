"""Registering with name servers: in full at start, ten seconds later and every thirty; a changed topic at once.

Name servers do not know of each other: each gets everything, over a connection of its own that is kept open, since its
closing is how a name server learns that the broker is gone. One that cannot be reached is tried again and again, and
holds nobody up for longer than a moment.

Threads: the event loop's. Source: remoting specification 2.11, 5.4; upstream's BrokerController and BrokerOuterAPI.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cometmq._engine import crc31
from cometmq.broker.routes import Unanswered
from cometmq.errors import BrokerError, ConnectionLost, Error, LimitReached, MalformedBody, RequestTimeout
from cometmq.remoting.bodies.body import decode_body
from cometmq.remoting.bodies.config_tables import (
    KVTable,
    TopicConfigAndMappingSerializeWrapper,
    decode_data_version,
)
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import flag_text, request
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = [
    "BrokerIdentity",
    "NameServerChannel",
    "Registrar",
    "RegistrationSource",
    "Registrations",
    "Timing",
    "bounded_period_ms",
]

_log = logging.getLogger("cometmq.broker.registration")

_HURRY_MS = 50
"""Least pause between two registrations, also where a name server ends every connection as soon as it has answered."""

_PERIOD_MS_MIN, _PERIOD_MS_MAX = 10_000, 60_000

_READ_WRITE = Perm.READ | Perm.WRITE
_TROUBLE = (ConnectionLost, RequestTimeout, BrokerError, LimitReached, MalformedBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The broker's identity in a registration.

    Attributes:
        cluster, name: the broker's.
        broker_id: 0 for a master.
        address: the address for clients, ``host:port``.
        ha_address: the address for slaves.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str

    def fields(self) -> dict[str, str]:
        """Return the members that every request to a name server begins with."""
        return {
            "brokerName": self.name,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }


class RegistrationSource(Protocol):
    """Where the topics come from."""

    def topics(self) -> Sequence[TopicConfig]:
        """Return every topic."""

    def data_version(self) -> DataVersion:
        """Return the version of the table."""

    def broker_permission(self) -> int:
        """Return what the broker as a whole allows."""


class Registrations:
    """The requests of a registration, without a connection."""

    def __init__(self, identity: BrokerIdentity, source: RegistrationSource, *, now_ms: Callable[[], int]) -> None:
        """Take what is needed."""
        self._identity = identity
        self._source = source
        # We do not have static topics: their version never changes.
        self._mapping_version = DataVersion.first(now_ms())

    def of(self, topics: Iterable[TopicConfig] | None = None) -> Command:
        """Return a registration (103) of these topics alone, or of all."""
        perm = self._source.broker_permission()
        chosen = self._source.topics() if topics is None else topics
        if perm & _READ_WRITE != _READ_WRITE:
            chosen = [replace(topic, perm=topic.perm & perm) for topic in chosen]
        table = {topic.topic_name: topic for topic in chosen}
        wrapper = TopicConfigAndMappingSerializeWrapper(
            data_version=self._source.data_version(), mapping_data_version=self._mapping_version, topics=table
        )
        body = RegisterBrokerBody(wrapper=wrapper).to_json()
        fields = self._identity.fields() | {
            "haServerAddr": self._identity.ha_address,
            "enableActingMaster": flag_text(False),
            "compressed": flag_text(False),
            "bodyCrc32": str(crc31(body)),
        }
        return Command(code=RequestCode.REGISTER_BROKER, fields=fields, body=body)

    def question(self) -> Command:
        """Return the question whether a name server has our version (322)."""
        body = encode(self._source.data_version().encode(), layout=Layout.COMPACT)
        return Command(code=RequestCode.QUERY_DATA_VERSION, fields=self._identity.fields(), body=body)

    def is_known(self, answer: Command) -> bool:
        """Return whether a name server that answered a :meth:`question` so has our version."""
        if answer.code != ResponseCode.SUCCESS or answer.fields.get("changed") != "false":
            return False
        if not answer.body:
            return True
        return decode_body("DataVersion", answer.body, decode_data_version) == self._source.data_version()

    def goodbye(self) -> Command:
        """Return the request that takes the broker out (104)."""
        return Command(code=RequestCode.UNREGISTER_BROKER, fields=self._identity.fields())


class NameServerChannel(Protocol):
    """The way to one name server."""

    async def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and wait for its answer.

        Raises:
            ConnectionLost, RequestTimeout: no answer came.
        """

    @property
    def is_connected(self) -> bool:
        """True while there is a connection. One is made when it is first used, and again after it was lost."""

    async def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When things happen, in milliseconds.

    Attributes:
        second_ms: from the first registration to the second.
        period_ms: from then on; upstream holds it between 10 s and 60 s.
        timeout_ms: longest wait for a name server's answer.
        start_ms: longest wait of the broker's start for all of them.
        announce_ms: longest wait of a request that made a topic: less than a client waits for its answer.
        retry_ms: pause before a name server that failed is tried again.
        goodbye_ms: longest wait for goodbyes.
        ask_ms: longest wait for the answer to a question: less than a client waits for the one that follows from it.
        force: register in full each time; else only where a name server has another version.
    """

    second_ms: int = 10_000
    period_ms: int = 30_000
    timeout_ms: int = 24_000
    start_ms: int = 3_000
    announce_ms: int = 2_000
    retry_ms: int = 1_000
    goodbye_ms: int = 3_000
    ask_ms: int = 3_000
    force: bool = True


def bounded_period_ms(wanted_ms: int) -> int:
    """Return a period of registrations that name servers accept: they drop a broker that is silent for two minutes."""
    return min(max(wanted_ms, _PERIOD_MS_MIN), _PERIOD_MS_MAX)


class Registrar:
    """Keeps a broker registered with its name servers."""

    def __init__(
        self,
        addresses: Sequence[str],
        registrations: Registrations,
        *,
        channel_to: Callable[[str, Callable[[], None]], NameServerChannel],
        timing: Timing,
        order_config: Callable[[KVTable], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing is announced before :meth:`start`.

        Args:
            addresses: the name servers, ``host:port``.
            registrations: makes the requests.
            channel_to: makes the way to an address; the function it gets is called whenever a connection has ended.
            timing: when.
            order_config: hears which topics the name servers keep in order, from every registration's answer.
            pause: waits for so many seconds.
        """
        self._timing = timing
        self._servers = [_NameServer(address, self) for address in dict.fromkeys(addresses)]
        self._registrations = registrations
        self._channel_to = channel_to
        self._order_config = order_config
        self._pause = pause
        self._stopping = False

    def change_pace(self, *, period_ms: int, force: bool) -> None:
        """Register at another pace from the next registration on, as :class:`Timing` has it."""
        self._timing = replace(self._timing, period_ms=bounded_period_ms(period_ms), force=force)

    async def start(self) -> None:
        """Register with all; returns when each has answered, or failed once, or took too long. Goes on in tasks."""
        for server in self._servers:
            server.start()
        tried = [asyncio.ensure_future(server.first_try.wait()) for server in self._servers]
        if tried:
            _, late = await asyncio.wait(tried, timeout=self._timing.start_ms / 1000)
            for task in late:
                task.cancel()

    async def announce(self, topics: Sequence[TopicConfig]) -> None:
        """Announce new and changed topics; returns when all have answered or the time for it is over."""
        if not self._servers or self._stopping:
            return
        request = self._registrations.of(topics)
        tasks = [asyncio.ensure_future(server.send(request)) for server in self._servers]
        await asyncio.wait(tasks, timeout=self._timing.announce_ms / 1000)

    async def announce_all(self) -> None:
        """Announce all topics, after a change that concerns all; returns as :meth:`announce`."""
        if not self._servers or self._stopping:
            return
        tasks = [asyncio.ensure_future(server.send(self._registrations.of())) for server in self._servers]
        await asyncio.wait(tasks, timeout=self._timing.announce_ms / 1000)

    def _pause_ms(self, rounds: int) -> int:
        return self._timing.second_ms if rounds == 1 else self._timing.period_ms

    # --- Asking

    @property
    def has_name_servers(self) -> bool:
        """True where there is one at all, reachable or not."""
        return bool(self._servers)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Ask for a topic's route: one name server after the other, until one answers. None where it has none.

        Raises:
            Unanswered: none of those that know us did.
            MalformedBody: the answer cannot be read.
        """
        question = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True)
        for server in self._servers:
            answer = await server.ask(question)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return TopicRouteData.from_json(answer.body)
            if answer is not None and answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
        raise Unanswered(f"no name server returned a route for {topic}")

    async def stop(self) -> None:
        """Say goodbye to all that can be reached, and close the connections."""
        self._stopping = True
        await asyncio.gather(*(server.stop() for server in self._servers))

    @property
    def registered(self) -> tuple[str, ...]:
        """The name servers that know us now."""
        return tuple(server.address for server in self._servers if server.is_registered)


class _NameServer:
    """One name server's connection and its task."""

    def __init__(self, address: str, owner: Registrar) -> None:
        self.address = address
        self.first_try = asyncio.Event()
        self.is_registered = False
        self._owner = owner
        self._channel: NameServerChannel | None = None
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._failure_logged = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        rounds = 0
        while True:
            is_old = self._is_connected()
            if await self._round(first=rounds == 0):
                rounds += 1
                self.first_try.set()
                await self._wait(self._owner._pause_ms(rounds))
            elif is_old and not self._is_connected():
                # The name server restarted, which closed the connection; a new connection may succeed at once.
                continue
            else:
                self.first_try.set()
                self._hurry.clear()
                await self._owner._pause(self._owner._timing.retry_ms / 1000)

    def _is_connected(self) -> bool:
        return self._channel is not None and self._channel.is_connected

    async def _wait(self, wait_ms: int) -> None:
        """Wait; only for a moment if a registration must be repeated."""
        sleeping = asyncio.ensure_future(self._owner._pause(wait_ms / 1000))
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((sleeping, hurried), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            hurried.cancel()
        if self._hurry.is_set():
            await self._owner._pause(_HURRY_MS / 1000)
        self._hurry.clear()

    async def _round(self, *, first: bool) -> bool:
        """Register once; return whether that succeeded."""
        registrations, timing = self._owner._registrations, self._owner._timing
        try:
            if self._channel is None:
                self._channel = self._owner._channel_to(self.address, self._lost)
            # A name server with which the connection has ended has forgotten us.
            first = first or not self._channel.is_connected
            if not first and not timing.force:
                answer = await self._channel.invoke(registrations.question(), timeout_ms=timing.timeout_ms)
                if registrations.is_known(answer):
                    return True
            await self._register(registrations.of())
        except _TROUBLE as error:
            self._failed(error)
            return False
        if self._failure_logged or first:
            _log.info("registered", extra={"name_server": self.address})
        self._failure_logged = False
        self.is_registered = True
        return True

    async def _register(self, request: Command) -> None:
        if self._channel is None:
            raise ConnectionLost(f"there is no connection to the name server {self.address}")
        answer = await self._channel.invoke(request, timeout_ms=self._owner._timing.timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.remark, code=answer.code, address=self.address)
        if answer.body:
            await self._take_order(KVTable.from_json(answer.body))

    async def _take_order(self, table: KVTable) -> None:
        try:
            await self._owner._order_config(table)
        except Error as error:
            # A full disk, say. We are registered all the same, and the next answer has the table again.
            _log.error("order of topics not taken", extra={"name_server": self.address, "error": str(error)})

    def _failed(self, error: Error) -> None:
        if not self._failure_logged:
            _log.warning("not registered", extra={"name_server": self.address, "error": str(error)})
        self._failure_logged = True
        self.is_registered = False

    def _lost(self) -> None:
        """Register again as soon as may be: the name server drops a broker whose connection has ended."""
        self.is_registered = False
        self._hurry.set()

    async def send(self, request: Command) -> None:
        """Send one registration now; where that fails, the next full one comes at once."""
        if not self.is_registered:
            # The next full registration will have it. One that is under way may have been made before.
            self._hurry.set()
            return
        try:
            await self._register(request)
        except _TROUBLE as error:
            _log.info("announcement failed", extra={"name_server": self.address, "error": str(error)})
            self._hurry.set()

    async def ask(self, question: Command) -> Command | None:
        """Ask something, and return the answer, or None."""
        if self._channel is None or not self.is_registered:
            return None
        try:
            return await self._channel.invoke(question, timeout_ms=self._owner._timing.ask_ms)
        except _TROUBLE as error:
            _log.info("question failed", extra={"name_server": self.address, "error": str(error)})
            return None

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._channel is not None and self.is_registered:
            goodbye = self._owner._registrations.goodbye()
            try:
                await self._channel.invoke(goodbye, timeout_ms=self._owner._timing.goodbye_ms)
            except _TROUBLE as error:
                _log.info("goodbye failed", extra={"name_server": self.address, "error": str(error)})
        self.is_registered = False
        if self._channel is not None:
            await self._channel.close()
