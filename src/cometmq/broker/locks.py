"""Queues locked by members of a group, for consuming in order (41, 42).

A lock lives for 60 seconds unless its owner renews it. It keeps no message from anybody: clients ask for it and honour
it, and a send to the group's retry topic goes to the dead letters while one is held.

Invariant: a queue of a group has at most one owner whose lock has not expired.
Threads: one, the control plane's. Source: consumption specification 3.10, upstream's RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cometmq.remoting.answers import Caller, Table, ok
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command

__all__ = ["LOCK_MS", "QueueLocks"]

LOCK_MS = 60_000
"""How long a lock lives; upstream's ``rocketmq.broker.rebalance.lockMaxLiveTime``."""


@dataclass(slots=True)
class _Lock:
    owner: str
    renewed_ms: int


class QueueLocks:
    """All locks of a broker."""

    def __init__(self, *, now_ms: Callable[[], int], lock_ms: int = LOCK_MS) -> None:
        """Nothing is locked. ``now_ms`` is the clock."""
        self._now_ms = now_ms
        self._lock_ms = lock_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock what is free or expired, renew what the client holds; return those that it holds now."""
        now = self._now_ms()
        table = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = table.get(queue)
            if lock is None or lock.owner == client_id or self._is_expired(lock, now):
                table[queue] = _Lock(client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Let go of those that the client holds."""
        table = self._groups.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.owner == client_id:
                del table[queue]
        if not table:
            self._groups.pop(group, None)

    def is_group_locked(self, group: str) -> bool:
        """Tell whether any lock of the group has not expired. A group without locks is not locked."""
        now = self._now_ms()
        return any(not self._is_expired(lock, now) for lock in self._groups.get(group, {}).values())

    def drop_expired(self) -> None:
        """Forget what expired, so that queues that went away take no room."""
        now = self._now_ms()
        for group, table in list(self._groups.items()):
            for queue in [queue for queue, lock in table.items() if self._is_expired(lock, now)]:
                del table[queue]
            if not table:
                del self._groups[group]

    def _is_expired(self, lock: _Lock, now: int) -> bool:
        return now - lock.renewed_ms > self._lock_ms

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {RequestCode.LOCK_BATCH_MQ: self._serve_lock, RequestCode.UNLOCK_BATCH_MQ: self._serve_unlock}

    def _serve_lock(self, request: Command, caller: Caller) -> Command:
        body = LockBatchRequestBody.from_json(request.body)
        held = self.lock(body.consumer_group, body.client_id, body.queues)
        return ok(request, body=LockBatchResponseBody(locked_queues=tuple(held)).to_json())

    def _serve_unlock(self, request: Command, caller: Caller) -> Command:
        body = UnlockBatchRequestBody.from_json(request.body)
        self.unlock(body.consumer_group, body.client_id, body.queues)
        return ok(request)
