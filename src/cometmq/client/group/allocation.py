"""Which member of a group gets which queues: the allocation strategies.

Every member computes the allocation of all from the same sorted queues and ids, so all strategies are plain functions
of those and must give the same answer on every machine and in every language: upstream's, to the queue. A strategy of
the user's own is a function, or an object with ``name`` and ``allocate``.

When a group grows or shrinks, the new owner of a queue gets the messages again that the old one handled and had not
committed: delivery is at least once.

Threads: one at a time for :class:`ConsistentHash`, which keeps its last ring; any for the others.
Source: consumption specification 1.7.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from cometmq.client.arguments import hook_instance, plain_hook
from cometmq.client.group.subscriptions import text_order
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = [
    "AllocateFunction",
    "AllocateStrategy",
    "Averagely",
    "AveragelyByCircle",
    "ByConfig",
    "ByMachineRoom",
    "ConsistentHash",
    "FunctionStrategy",
    "MachineRoomNearby",
    "RoomOf",
    "as_strategy",
    "md5_position",
]

_log = logging.getLogger(__name__)

AllocateFunction: TypeAlias = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], Iterable[MessageQueue]]
"""A strategy as a function of group, own client id, sorted queues and sorted client ids."""


@runtime_checkable
class AllocateStrategy(Protocol):
    """Gives a member its queues. The same arguments must give the same answer in every member."""

    @property
    def name(self) -> str:
        """The name that admin tools show."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of ``client_id``, one of ``client_ids``; both lists are sorted alike in all members."""
        ...


def _own_index(group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> int | None:
    """Check what nearly all strategies check; None where the member is not in the list (yet, or any more)."""
    if not client_id:
        raise InvalidArgument(f"group {group!r}: the own client id is empty")
    if not queues:
        raise InvalidArgument(f"group {group!r}: there are no queues to allocate")
    if not client_ids:
        raise InvalidArgument(f"group {group!r}: there are no members to allocate queues to")
    try:
        return client_ids.index(client_id)
    except ValueError:
        _log.info("group %s: %s is not among its %d members and gets no queues", group, client_id, len(client_ids))
        return None


class Averagely:
    """Upstream's default: runs of neighbouring queues, the first members one more where it does not divide."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See :meth:`AllocateStrategy.allocate`."""
        index = _own_index(group, client_id, queues, client_ids)
        if index is None:
            return []
        share, rest = divmod(len(queues), len(client_ids))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AveragelyByCircle:
    """Queues dealt out one by one, round and round."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See :meth:`AllocateStrategy.allocate`."""
        index = _own_index(group, client_id, queues, client_ids)
        return [] if index is None else list(queues[index :: len(client_ids)])


class ByConfig:
    """A fixed list, independent of the members: the user must give every queue one owner."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        """``queues`` are this member's."""
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return those of the fixed list that belong to the topic at hand."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


class ByMachineRoom:
    """Averages the queues of brokers named ``room@…`` whose room is one of the given; nobody gets the others."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        """``rooms`` are those that this group consumes from."""
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See :meth:`AllocateStrategy.allocate`."""
        index = _own_index(group, client_id, queues, client_ids)
        if index is None:
            return []
        kept = [queue for queue in queues if self._is_ours(queue.broker_name)]
        share, rest = divmod(len(kept), len(client_ids))
        mine = kept[index * share : (index + 1) * share]
        if index < rest:
            mine.append(kept[share * len(client_ids) + index])
        return mine

    def _is_ours(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        while parts and not parts[-1]:  # Java's split leaves empty parts at the end out
            parts.pop()
        return len(parts) == 2 and parts[0] in self._rooms


class RoomOf(Protocol):
    """Returns the rooms of brokers and members. The rooms must not be empty."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """Return the room of the queue's broker."""
        ...

    def consumer_deploy_in(self, client_id: str) -> str:
        """Return the room of a member."""
        ...


class MachineRoomNearby:
    """Members get queues of their own room; queues of rooms without a member are shared by all."""

    def __init__(self, inner: AllocateStrategy, room_of: RoomOf) -> None:
        """``inner`` divides within a room; ``room_of`` knows the rooms.

        Raises:
            InvalidArgument: one of them is a class.
        """
        hook_instance("inner", inner)
        hook_instance("room_of", room_of)
        self._inner = inner
        self._room_of = room_of

    @property
    def name(self) -> str:
        """Upstream's name with the inner strategy's behind it."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See :meth:`AllocateStrategy.allocate`."""
        if _own_index(group, client_id, queues, client_ids) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._room_of.broker_deploy_in(queue)
            queues_of.setdefault(_checked_room(room, f"the broker of {queue}"), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in client_ids:
            room = self._room_of.consumer_deploy_in(member)
            members_of.setdefault(_checked_room(room, f"the member {member!r}"), []).append(member)
        own_room = self._room_of.consumer_deploy_in(client_id)
        mine: list[MessageQueue] = []
        if own_room in queues_of:
            mine += self._inner.allocate(group, client_id, queues_of[own_room], members_of[own_room])
        for room in sorted(queues_of, key=text_order):
            if room not in members_of:
                mine += self._inner.allocate(group, client_id, queues_of[room], client_ids)
        return mine


def _checked_room(room: str, whose: str) -> str:
    if not room:
        raise InvalidArgument(f"the machine room of {whose} is empty: the resolver must know a room for everyone")
    return room


def md5_position(key: str) -> int:
    """Return a key's place on the ring: the first four bytes of its MD5, as Java's ``MD5Hash`` takes them."""
    # Java replaces what UTF-8 cannot hold, too.
    digest = hashlib.md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class ConsistentHash:
    """Queues and members on one ring: a member that comes or goes moves only its own share of the queues."""

    name = "CONSISTENT_HASH"

    def __init__(self, *, virtual_nodes: int = 10, hash_function: Callable[[str], int] = md5_position) -> None:
        """Make the strategy.

        Args:
            virtual_nodes: places of each member on the ring; more spread the queues more evenly.
            hash_function: gives a text its place; all members must use the same.

        Raises:
            InvalidArgument: a negative number of places, or a hash function that cannot be called.
        """
        plain_hook("hash_function", hash_function)
        if virtual_nodes < 0:
            raise InvalidArgument(f"virtual_nodes is {virtual_nodes}: it must not be negative")
        self._virtual_nodes = virtual_nodes
        self._hash = hash_function
        self._ring: tuple[tuple[str, ...], list[int], dict[int, str]] = ((), [], {})

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See :meth:`AllocateStrategy.allocate`."""
        if _own_index(group, client_id, queues, client_ids) is None:
            return []
        positions, owners = self._ring_of(tuple(client_ids))
        if not positions:
            return []
        mine = []
        for queue in queues:
            at = bisect_left(positions, self._hash(_java_text(queue)))
            if owners[positions[at if at < len(positions) else 0]] == client_id:
                mine.append(queue)
        return mine

    def _ring_of(self, client_ids: tuple[str, ...]) -> tuple[list[int], dict[int, str]]:
        known, positions, owners = self._ring
        if known != client_ids:
            owners = {
                self._hash(f"{member}-{replica}"): member
                for member in client_ids
                for replica in range(self._virtual_nodes)
            }
            positions = sorted(owners)
            self._ring = client_ids, positions, owners
        return positions, owners


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


class FunctionStrategy:
    """A function of the user's as a strategy."""

    def __init__(self, function: AllocateFunction) -> None:
        """``function`` is called as :meth:`allocate` is; its name becomes the strategy's."""
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See :meth:`AllocateStrategy.allocate`.

        Raises:
            InvalidArgument: the function returned something else than queues.
        """
        mine = list(self._function(group, client_id, queues, client_ids))
        for queue in mine:
            if not isinstance(queue, MessageQueue):
                raise InvalidArgument(
                    f"the allocation function {self.name} returned {queue!r}, which is not a MessageQueue"
                )
        return mine


_BY_NAME: dict[str, Callable[[], AllocateStrategy]] = {
    Averagely.name: Averagely,
    AveragelyByCircle.name: AveragelyByCircle,
    ConsistentHash.name: ConsistentHash,
}


def as_strategy(given: AllocateStrategy | AllocateFunction | str) -> AllocateStrategy:
    """Return a strategy for what a user gave: one of upstream's names, a function, or a strategy.

    Raises:
        InvalidArgument: it is none of them, or a strategy's class; the text lists the valid ones.
    """
    if isinstance(given, str):
        make = _BY_NAME.get(given.upper())
        if make is None:
            near = difflib.get_close_matches(given.upper(), _BY_NAME, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgument(
                f"allocate_strategy {given!r} is none of {', '.join(_BY_NAME)}{hint} "
                "Strategies that need arguments are given as objects: ByConfig, ByMachineRoom, MachineRoomNearby"
            )
        return make()
    if isinstance(given, type):
        made = given.__name__
        raise InvalidArgument(f"allocate_strategy is the class {made}: give an instance of it, {made}(...)")
    if isinstance(given, AllocateStrategy):
        return given
    if callable(given):
        return FunctionStrategy(given)
    raise InvalidArgument(
        f"allocate_strategy is {given!r}: give a name, a function, or an object with name and allocate"
    )
