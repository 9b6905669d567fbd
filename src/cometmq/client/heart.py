"""The heart of a client instance: tells brokers who is there, what they subscribe to, and who has left.

What stays true: heartbeats and un-registrations never overlap, so that none brings a group back that has left; what a
broker was told is forgotten with its connection, for whoever answers there next may know nothing.

Threads: the client's loop. Source: consumption specification 1.5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from cometmq.client.heartbeats import HeartbeatMemory, heartbeat_data, heartbeat_fingerprint
from cometmq.errors import Error
from cometmq.remoting.channel import checked
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request

if TYPE_CHECKING:
    from cometmq.client.parts import ConsumerPart, ProducerPart
    from cometmq.client.routes import RouteTable
    from cometmq.client.settings import ClientSettings
    from cometmq.remoting.bodies.heartbeat import HeartbeatData
    from cometmq.remoting.command import Command
    from cometmq.remoting.network import Network

__all__ = ["INNER_PRODUCER_GROUP", "Heart"]

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""The producer group of what consumers put back; every instance has it."""

_log = logging.getLogger(__name__)


class Heart:
    """The heartbeats of one client id.

    Attributes:
        versions: broker address to the version in its last answer.
    """

    def __init__(
        self,
        client_id: str,
        settings: ClientSettings,
        *,
        routes: RouteTable,
        network: Network,
        consumers: Mapping[str, ConsumerPart],
        producers: Mapping[str, ProducerPart],
    ) -> None:
        """Tell nobody yet.

        Args:
            client_id: who is there.
            settings: the client's.
            routes: say which brokers there are.
            network: reaches them.
            consumers, producers: the parts by group, as they are when a heartbeat is made.
        """
        self.versions: dict[str, int] = {}
        self._client_id = client_id
        self._settings = settings
        self._routes = routes
        self._network = network
        self._consumers = consumers
        self._producers = producers
        self._lock = asyncio.Lock()
        self._memory = HeartbeatMemory()

    def __repr__(self) -> str:
        """Tell whose it is, and how many brokers answer."""
        return f"Heart({self._client_id}, {len(self.versions)} brokers)"

    def drop_gone_brokers(self) -> None:
        """Forget the brokers that no route names any more."""
        for address in self._routes.drop_gone_brokers():
            _log.info("%s: broker %s is in no route any more", self._client_id, address)
            self._memory.forget(address)
            self.versions.pop(address, None)

    async def beat(self, *, queues_changed: bool = False) -> bool:
        """Tell every broker; see :meth:`ClientInstance.heartbeat`."""
        if self._lock.locked() and not queues_changed:
            _log.debug("%s: a heartbeat is under way", self._client_id)
            return False
        async with self._lock:
            addresses = self._routes.targets(slaves=bool(self._consumers))
            if not addresses:
                return False
            if queues_changed:
                self._memory.forget()
            await self._beat(addresses)
            return True

    async def greet(self, address: str) -> bool:
        """Tell one broker, unless it hears of us anyway; return whether it took it."""
        if self._lock.locked():
            return False
        async with self._lock:
            return await self._beat([address])

    def lost(self, address: str) -> None:
        """Take note that the connection with a broker has ended."""
        # Whoever answers there next may be another process, which knows nothing of us.
        self._memory.forget(address)

    async def tell_left(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Tell every broker that a group of this client has left."""
        command = request(
            RequestCode.UNREGISTER_CLIENT,
            clientID=self._client_id,
            producerGroup=producer_group,
            consumerGroup=consumer_group,
        )
        # Waits for a heartbeat under way: it would bring the group back.
        async with self._lock:
            await asyncio.gather(*(self.tell(address, command) for address in self._routes.targets(slaves=True)))

    async def tell(self, address: str, command: Command) -> Command | None:
        """Return a broker's answer that says success, or None after having logged what came instead."""
        try:
            answer = await self._network.invoke(address, command, timeout_ms=self._settings.mq_client_api_timeout_ms)
            return checked(answer, address=address)
        except Error as error:
            _log.info("%s: request %d to %s failed: %s", self._client_id, command.code, address, error)
            return None

    async def _beat(self, addresses: Collection[str]) -> bool:
        """Send heartbeats; tell whether all were taken. With the lock held."""
        data = heartbeat_data(
            self._client_id,
            producers=[INNER_PRODUCER_GROUP, *self._producers],
            consumers=self._consumers.values(),
        )
        fingerprint = heartbeat_fingerprint(data) if self._settings.use_heartbeat_v2 else 0
        taken = await asyncio.gather(*(self._beat_one(address, data, fingerprint) for address in addresses))
        return all(taken)

    async def _beat_one(self, address: str, full: HeartbeatData, fingerprint: int) -> bool:
        data = self._memory.body_for(address, full, fingerprint) if fingerprint else full
        answer = await self.tell(address, request(RequestCode.HEART_BEAT, body=data.to_json()))
        if answer is None:
            self._memory.forget(address)
            return False
        self.versions[address] = answer.version
        if fingerprint:
            self._memory.answered(address, data, answer)
        return True
