"""The heartbeat sender of a client instance: reports groups, their subscriptions, and groups that leave to brokers.

Invariants: heartbeats and un-registrations of one broker never overlap, so that none brings a group back that has left;
a broker that does not answer does not delay the others' heartbeats; the record of what a broker knows is dropped with
its connection, since the process that answers there next may know nothing.

Threads: the client's loop. Source: consumption specification 1.5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.client.instance.heartbeats import HeartbeatMemory, heartbeat_data, heartbeat_fingerprint
from cometmq.errors import Error
from cometmq.remoting.channel import checked
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request

if TYPE_CHECKING:
    from cometmq.client.instance.registrants import ConsumerPart, ProducerPart
    from cometmq.client.instance.routes import RouteTable
    from cometmq.client.settings import ClientSettings
    from cometmq.remoting.command import Command
    from cometmq.remoting.network import Network

__all__ = ["INNER_PRODUCER_GROUP", "HeartbeatSender"]

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""The producer group of what consumers put back; every instance has it."""

_AGAIN_MIN_S: Final = 1.0
_AGAIN_MAX_S: Final = 30.0
_AGAIN_SHARE: Final = 1 / 30
"""A broker that does not know a group gets its next heartbeat after this share of the time for which it has not."""

_log = logging.getLogger(__name__)


class HeartbeatSender:
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
        """Send nothing yet.

        Args:
            client_id: the client's id.
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
        self._locks: dict[str, asyncio.Lock] = {}
        self._taken: dict[str, int] = {}
        """How many heartbeats each broker has taken."""
        self._introduced: set[str] = set()
        """The brokers that have taken one over their present connection."""
        self._unknown: dict[tuple[str, str], tuple[float, float]] = {}
        """By broker and group that it did not know: when that was seen first, and when the next heartbeat is due."""
        self._is_beating = False
        self._memory = HeartbeatMemory()

    def __repr__(self) -> str:
        """Return the client id, and how many brokers answer."""
        return f"HeartbeatSender({self._client_id}, {len(self.versions)} brokers)"

    def drop_gone_brokers(self) -> None:
        """Forget the brokers that no route names any more."""
        for address in self._routes.drop_gone_brokers():
            _log.info("%s: broker %s is in no route any more", self._client_id, address)
            self._memory.forget(address)
            self.versions.pop(address, None)
            self._taken.pop(address, None)
            self._introduced.discard(address)
            self._forget_unknown(address)
            if (lock := self._locks.get(address)) is not None and not lock.locked():
                del self._locks[address]

    async def beat(self, *, queues_changed: bool = False) -> bool:
        """Send a heartbeat to every broker; see :meth:`ClientInstance.heartbeat`."""
        addresses = self._routes.targets(slaves=bool(self._consumers))
        if queues_changed:
            await asyncio.gather(*(self._beat(address, in_full=True) for address in addresses))
            return bool(addresses)
        if self._is_beating or not addresses:
            _log.debug("%s: a heartbeat is under way, or there is no broker", self._client_id)
            return False
        self._is_beating = True
        try:
            await asyncio.gather(*(self._beat(address) for address in addresses))
        finally:
            self._is_beating = False
        return True

    async def greet(self, address: str) -> bool:
        """Send one broker a heartbeat, unless it takes another one meanwhile; return whether it took this one."""
        taken = self._taken.get(address, 0)
        async with self._lock_of(address):
            if self._taken.get(address, 0) != taken:
                return False
            return await self._beat_one(address)

    async def introduce(self, addresses: Iterable[str]) -> None:
        """Send a heartbeat to each broker that has taken none over its present connection."""
        await asyncio.gather(*(self._introduce(address) for address in addresses if address not in self._introduced))

    async def _introduce(self, address: str) -> None:
        async with self._lock_of(address):
            if address not in self._introduced:
                await self._beat_one(address)

    async def greet_again(self, address: str, group: str) -> float | None:
        """Send one broker that does not know a group a heartbeat that leaves nothing out.

        Returns:
            Seconds until the next one may be sent, or None where the last one was sent too shortly ago.
        """
        now_s = asyncio.get_running_loop().time()
        first_s, due_s = self._unknown.get((address, group), (now_s, now_s))
        if now_s < due_s:
            return None
        if now_s - due_s > _AGAIN_MAX_S:  # the broker knew the group meanwhile
            first_s = now_s
        delay_s = min(max((now_s - first_s) * _AGAIN_SHARE, _AGAIN_MIN_S), _AGAIN_MAX_S)
        self._unknown[address, group] = (first_s, now_s + delay_s)
        await self._beat(address, in_full=True)
        return delay_s

    async def greet_new_brokers(self) -> None:
        """Send a heartbeat to each broker that has taken none yet."""
        addresses = self._routes.targets(slaves=bool(self._consumers))
        await asyncio.gather(*(self.greet(address) for address in addresses if address not in self._taken))

    def _lock_of(self, address: str) -> asyncio.Lock:
        return self._locks.setdefault(address, asyncio.Lock())

    def lost(self, address: str) -> None:
        """Take note that the connection with a broker has ended."""
        # The next to answer there may be another process, which knows nothing of us.
        self._memory.forget(address)
        self._introduced.discard(address)
        self._forget_unknown(address)

    def _forget_unknown(self, address: str) -> None:
        for key in [key for key in self._unknown if key[0] == address]:
            del self._unknown[key]

    async def send_unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Unregister a group of this client at every broker."""
        command = request(
            RequestCode.UNREGISTER_CLIENT,
            clientID=self._client_id,
            producerGroup=producer_group,
            consumerGroup=consumer_group,
        )
        await asyncio.gather(
            *(self._send_unregister(address, command) for address in self._routes.targets(slaves=True))
        )

    async def _send_unregister(self, address: str, command: Command) -> None:
        # Waits for a heartbeat under way: it would bring the group back.
        async with self._lock_of(address):
            await self.invoke(address, command)

    async def invoke(self, address: str, command: Command) -> Command | None:
        """Return a broker's answer that says success, or None after logging another outcome."""
        try:
            answer = await self._network.invoke(address, command, timeout_ms=self._settings.mq_client_api_timeout_ms)
            return checked(answer, address=address)
        except Error as error:
            _log.info("%s: request %d to %s failed: %s", self._client_id, command.code, address, error)
            return None

    async def _beat(self, address: str, *, in_full: bool = False) -> None:
        async with self._lock_of(address):
            if in_full:
                self._memory.forget(address)
            await self._beat_one(address)

    async def _beat_one(self, address: str) -> bool:
        """Send a heartbeat; return whether it was taken. With the broker's lock held."""
        full = heartbeat_data(
            self._client_id,
            producers=[INNER_PRODUCER_GROUP, *self._producers],
            consumers=self._consumers.values(),
        )
        fingerprint = heartbeat_fingerprint(full) if self._settings.use_heartbeat_v2 else 0
        data = self._memory.body_for(address, full, fingerprint) if fingerprint else full
        answer = await self.invoke(address, request(RequestCode.HEART_BEAT, body=data.to_json()))
        if answer is None:
            self._memory.forget(address)
            return False
        self.versions[address] = answer.version
        self._taken[address] = self._taken.get(address, 0) + 1
        self._introduced.add(address)
        if fingerprint:
            self._memory.answered(address, data, answer)
        return True
