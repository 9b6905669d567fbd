"""Where a consumer's progress is kept.

A store holds the next offset to consume of each queue in memory, and knows one place behind: the broker for members
that share the messages, a file for members that each get all. Offsets in memory are persisted every few seconds, when a
queue is given up and when the consumer closes, so after a crash some messages are redelivered: at least once.

An offset that was frozen (:meth:`OffsetStore.update_and_freeze`) stays as it is until the queue is removed: late
listeners of a queue that was reset must not undo the reset.

Threads: the client's loop. Source: consumption specification 1.11.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from cometmq.client.arguments import hook_instance
from cometmq.client.group.offset_file import OffsetFile, offset_path
from cometmq.errors import BrokerError, BrokerNotFound, Error, InvalidArgument
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.members import request
from cometmq.store_config.fields import INT64_MAX

if TYPE_CHECKING:
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.settings import ConsumerSettings

__all__ = [
    "BAD_QUEUE",
    "NEVER_CONSUMED",
    "READ_FAILED",
    "AdaptedOffsetStore",
    "LocalOffsetStore",
    "OffsetStore",
    "OwnOffsetStore",
    "ReadOffset",
    "RemoteOffsetStore",
    "check_own_store",
    "usual_store",
]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_TIMEOUT_MS = 5_000

NEVER_CONSUMED = -1
"""The group has no progress in the queue."""
READ_FAILED = -2
"""Nobody knows: the place behind could not be asked."""
BAD_QUEUE = -3
"""The queue does not exist."""


class ReadOffset(enum.Enum):
    """From where an offset is read."""

    FROM_MEMORY = "memory"
    FROM_STORE = "store"
    MEMORY_FIRST_THEN_STORE = "memory, then store"


class OffsetStore(Protocol):
    """Progress of one group in one consumer. Offsets are the next to consume."""

    async def load(self) -> None:
        """Fill the memory from the place behind, where that is how the store works."""
        ...

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Set the offset in memory; nothing happens where it is frozen, or where it would go back and must not."""
        ...

    def update_and_freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset in memory and keep it until :meth:`remove`."""
        ...

    async def read(self, queue: MessageQueue | None, kind: ReadOffset) -> int:
        """Return the offset, or :data:`NEVER_CONSUMED`, :data:`READ_FAILED` or :data:`BAD_QUEUE`."""
        ...

    def memory(self, queue: MessageQueue) -> int:
        """Return the offset in memory, or -1."""
        ...

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Persist what is known of these queues. Nothing happens for an empty collection.

        Raises:
            Error: it could not be persisted. Memory stays as it was; the next call tries again.
        """
        ...

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        """Persist what is known of one queue.

        Args:
            queue: the queue.
            wait: come back only when the place behind has it; else the call may leave it on the way.

        Raises:
            Error: it could not be persisted, as far as that is known.
        """
        ...

    def remove(self, queue: MessageQueue) -> None:
        """Forget what memory knows of the queue."""
        ...

    def snapshot(self, topic: str | None) -> dict[MessageQueue, int]:
        """Return a copy of memory, of one topic or of all."""
        ...


class _Memory:
    """The state of every store: the offsets in memory, and which of them are frozen."""

    __slots__ = ("_frozen", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if self._frozen and queue in self._frozen:
            return
        known = self.offsets.get(queue)
        if known is None or not increase_only or offset > known:
            self.offsets[queue] = offset

    def update_and_freeze(self, queue: MessageQueue, offset: int) -> None:
        self.offsets[queue] = offset
        self._frozen.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        self.offsets.pop(queue, None)
        self._frozen.discard(queue)


class _MemoryStore(ABC):
    """The base of the stores: the calls that need no place behind."""

    def __init__(self) -> None:
        self._memory = _Memory()
        self._unread: set[MessageQueue] = set()
        """Queues whose offset could not be read last, which was logged then: rounds ask again each second."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """See :meth:`OffsetStore.update`."""
        self._memory.update(queue, offset, increase_only=increase_only)

    def update_and_freeze(self, queue: MessageQueue, offset: int) -> None:
        """See :meth:`OffsetStore.update_and_freeze`."""
        self._memory.update_and_freeze(queue, offset)

    def memory(self, queue: MessageQueue) -> int:
        """See :meth:`OffsetStore.memory`."""
        return self._memory.offsets.get(queue, NEVER_CONSUMED)

    def remove(self, queue: MessageQueue) -> None:
        """See :meth:`OffsetStore.remove`."""
        self._memory.remove(queue)

    def snapshot(self, topic: str | None) -> dict[MessageQueue, int]:
        """See :meth:`OffsetStore.snapshot`."""
        return {queue: offset for queue, offset in self._memory.offsets.items() if topic in (None, queue.topic)}

    async def read(self, queue: MessageQueue | None, kind: ReadOffset) -> int:
        """See :meth:`OffsetStore.read`."""
        if queue is None:
            return BAD_QUEUE
        if kind is not ReadOffset.FROM_STORE:
            known = self.memory(queue)
            if known >= 0 or kind is ReadOffset.FROM_MEMORY:
                return known
        try:
            stored = await self._read_behind(queue)
        except Error as error:
            _log.log(
                logging.DEBUG if queue in self._unread else logging.WARNING,
                "the progress in queue %d of %s at %s is not known: %s",
                queue.queue_id,
                queue.topic,
                queue.broker_name,
                error,
            )
            self._unread.add(queue)
            return self._failed_read
        self._unread.discard(queue)
        if kind is ReadOffset.MEMORY_FIRST_THEN_STORE and self.memory(queue) >= 0:
            return self.memory(queue)  # consumed meanwhile
        if stored is None:
            return NEVER_CONSUMED
        self.update(queue, stored, increase_only=False)
        return stored

    _failed_read = READ_FAILED

    @abstractmethod
    async def _read_behind(self, queue: MessageQueue) -> int | None:
        """Ask the place behind; None where it knows of no progress."""


class RemoteOffsetStore(_MemoryStore):
    """Progress kept by the brokers, for members that share the messages."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        """``instance`` reaches the brokers; ``group`` is whose progress it is."""
        super().__init__()
        self._instance = instance
        self._group = group

    async def load(self) -> None:
        """Nothing is loaded: each queue's progress is asked for when the queue comes."""

    async def _read_behind(self, queue: MessageQueue) -> int | None:
        return await self._instance.query_offset(self._group, queue)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Commit to the brokers, one-way, even if nothing changed; offsets of other queues are forgotten."""
        if not queues:
            return
        wanted = set(queues)
        for queue in list(self._memory.offsets):
            if queue not in wanted:
                self._memory.remove(queue)
                continue
            try:
                await self.persist(queue)
            except Error as error:
                # One broker that is gone must not keep the others from getting their commits.
                _log.warning("cannot commit the offset of %s: %s", queue, error)

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        """Commit to the queue's master, or to another where no master is known."""
        offset = self.memory(queue)
        if offset < 0:
            return
        command = request(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=self._group,
            topic=queue.topic,
            queueId=queue.queue_id,
            commitOffset=offset,
            bname=queue.broker_name,
        )
        if not wait:
            self._instance.network.oneway(await self._address(queue), command)
            return
        answer = await self._instance.ask_broker(queue.broker_name, command, timeout_ms=_TIMEOUT_MS, master_only=False)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"{answer.remark or 'no remark'} (progress of group {self._group} in queue {queue.queue_id} of "
                f"{queue.topic} at {queue.broker_name})",
                code=answer.code,
            )

    async def _address(self, queue: MessageQueue) -> str:
        found = self._instance.broker_address(queue.broker_name, only_this=True)
        if found is None:
            has_slave = self._instance.broker_address(queue.broker_name) is not None
            await self._instance.update_route(queue.topic, must_answer=not has_slave)
            found = self._instance.broker_address(queue.broker_name)
        if found is None:
            raise BrokerNotFound(
                f"no name server knows an address of broker {queue.broker_name}: check that it runs and is registered "
                "(cometmq cluster show)",
                broker_name=queue.broker_name,
            )
        return self._instance.api_address(found[0])


class LocalOffsetStore(_MemoryStore):
    """Progress kept in a file of this machine, for members that each get all. The disk's work is done in a thread."""

    _failed_read = NEVER_CONSUMED  # as upstream: a file that cannot be read says nothing

    def __init__(self, file: OffsetFile) -> None:
        """``file`` holds the progress."""
        super().__init__()
        self._file = file

    async def load(self) -> None:
        """Fill the memory from the file.

        Raises:
            ConfigError: neither the file nor its ``.bak`` can be decoded.
            StorageError: it cannot be read.
        """
        for queue, offset in (await _in_thread(self._file.read)).items():
            self.update(queue, offset, increase_only=False)

    async def _read_behind(self, queue: MessageQueue) -> int | None:
        return (await _in_thread(self._file.read)).get(queue)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Write these queues' offsets over what the file holds.

        Raises:
            StorageError: a step failed (DiskFull or PermissionDenied where that is why); nothing is lost.
            ConfigError: neither the file nor its ``.bak`` can be decoded.
        """
        offsets = self._memory.offsets
        changes = {queue: offsets[queue] for queue in queues if queue in offsets}
        if changes:
            await _in_thread(lambda: self._file.merge(changes))

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        """Write one queue's offset; it is on disk when the call comes back, in either way."""
        del wait
        await self.persist_all((queue,))


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


class OwnOffsetStore(Protocol):
    """A store of the user's own: a table, a key-value server, the transaction of what the listener writes.

    Each call may be a plain function, which is then called on the client's loop and must not block for long, or an
    ``async def``. Their exceptions are logged; the client goes on and tries again.
    """

    def load(self, queue: MessageQueue) -> int | Awaitable[int | None] | None:
        """Return the next offset to consume, or None without progress."""
        ...

    def save(self, offsets: Mapping[MessageQueue, int]) -> Awaitable[None] | None:
        """Store these next offsets to consume."""
        ...


def check_own_store(own: object) -> None:
    """Check a store of the user's own, which may be None.

    Raises:
        InvalidArgument: it is a class, or has no ``load`` or ``save``.
    """
    if own is None:
        return
    hook_instance("offset_store", own)
    for name in ("load", "save"):
        if not callable(getattr(own, name, None)):
            raise InvalidArgument(f"offset_store is {own!r:.100}, without {name}(): give an object with load and save")


class AdaptedOffsetStore(_MemoryStore):
    """A store of the user's own as the client uses it."""

    def __init__(self, own: OwnOffsetStore) -> None:
        """``own`` is the user's."""
        super().__init__()
        self._own = own

    async def load(self) -> None:
        """Nothing is loaded: each queue's progress is asked for when the queue comes."""

    async def _read_behind(self, queue: MessageQueue) -> int | None:
        stored = await self._call("load", queue)
        if stored is not None and (not isinstance(stored, int) or not 0 <= stored <= INT64_MAX):
            raise InvalidArgument(f"load() of {self._own!r} returned {stored!r} for {queue}: return an offset or None")
        return stored

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Give these queues' offsets to the user's store.

        Raises:
            Error: it raised; the cause is the user's exception.
        """
        offsets = self._memory.offsets
        changes = {queue: offsets[queue] for queue in queues if queue in offsets}
        if changes:
            await self._call("save", changes)

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        """Give one queue's offset to the user's store; it has it when the call comes back, in either way."""
        del wait
        await self.persist_all((queue,))

    async def _call(self, name: str, argument: object) -> object:
        try:
            result = getattr(self._own, name)(argument)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            raise Error(f"{name}() of the offset store {self._own!r} failed: {error!r}") from error


def usual_store(
    own: OwnOffsetStore | None, instance: ClientInstance, settings: ConsumerSettings, *, group: str
) -> OffsetStore:
    """Return where a consumer's progress goes: the user's ``own`` store, else the brokers or this client's own file."""
    if own is not None:
        return AdaptedOffsetStore(own)
    if settings.message_model is MessageModel.CLUSTERING:
        return RemoteOffsetStore(instance, group)
    path = offset_path(settings.offset_folder, client_id=instance.client_id, group=group)
    return LocalOffsetStore(OffsetFile(path))
