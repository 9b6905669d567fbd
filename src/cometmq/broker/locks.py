"""Queues locked by members of a group, for consuming in order (41, 42).

A lock lives for 60 seconds unless its owner renews it. It keeps no message from anybody: clients ask for it and honour
it, and a send to the group's retry topic goes to the dead letters while one is held.

Locks and unlocks are written to ``cometmq/locks.json`` before they are answered. A broker that starts knows them from
there, each with 60 seconds to renew, so that no listener begins beside one that was at work when the broker ended.
(Upstream forgets.)

Invariant: a queue of a group has at most one owner whose lock has not expired.
Threads: one, the control plane's; the file is written in an executor's. Source: consumption specification 3.10,
upstream's RebalanceLockManager.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cometmq.remoting.answers import Caller, Refusal, Table, ok, with_body
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.own_json import loads_own

__all__ = ["LOCKS_MAX", "LOCKS_OF_REQUEST_MAX", "LOCK_MS", "QueueLocks", "monotonic_ms"]

LOCK_MS = 60_000
"""How long a lock lives; upstream's ``rocketmq.broker.rebalance.lockMaxLiveTime``."""


LOCKS_OF_REQUEST_MAX = 65_536
"""Queues that one request locks or unlocks: all of a topic."""
LOCKS_MAX = 200_000
"""Locks of all groups; further queues are not locked."""

_CLIENT_ID_CHARS_MAX = 4_096
_INLINE_QUEUES = 200
_FILE_BYTES_MAX = 64 << 20
_VERSION = 1

_log = logging.getLogger("cometmq.broker.locks")


def monotonic_ms() -> int:
    """Return milliseconds by a clock that is never set."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class _Lock:
    owner: str
    renewed_ms: int


class QueueLocks:
    """All locks of a broker."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        lock_ms: int = LOCK_MS,
        path: Path | None = None,
        files: FileOps = SYSTEM_FILE_OPS,
        exists: Callable[[MessageQueue], bool] = lambda queue: True,
        is_group: Callable[[str], bool] = lambda group: True,
    ) -> None:
        """Nothing is locked.

        Args:
            now_ms: a clock that is never set: a lease is a length of time.
            lock_ms: how long a lock lives.
            path: where owners are kept; None keeps them in memory alone.
            files: reaches the file.
            exists: returns whether the broker has a queue; others are not locked.
            is_group: returns whether the broker has a group; others lock nothing.
        """
        self._now_ms = now_ms
        self._lock_ms = lock_ms
        self._path = path
        self._files = files
        self._exists = exists
        self._is_group = is_group
        self._count = 0
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._changes = 0
        self._written = 0
        self._writing = asyncio.Lock()

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock what is free or expired, renew what the client holds; return those that it holds now."""
        now = self._now_ms()
        table = self._groups.get(group, {})
        held = []
        for queue in queues:
            lock = table.get(queue)
            if lock is None and (self._count >= LOCKS_MAX or not self._exists(queue)):
                continue
            if lock is None or lock.owner == client_id or self._is_expired(lock, now):
                self._changes += lock is None or lock.owner != client_id
                self._count += lock is None
                table[queue] = _Lock(client_id, now)
                held.append(queue)
        if table:
            self._groups[group] = table
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Let go of those that the client holds."""
        table = self._groups.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.owner == client_id:
                del table[queue]
                self._count -= 1
                self._changes += 1
        if not table:
            self._groups.pop(group, None)

    def is_group_locked(self, group: str) -> bool:
        """Return whether any lock of the group has not expired. A group without locks is not locked."""
        now = self._now_ms()
        return any(not self._is_expired(lock, now) for lock in self._groups.get(group, {}).values())

    def drop_expired(self) -> None:
        """Forget what expired, so that queues that went away take no room."""
        now = self._now_ms()
        for group, table in list(self._groups.items()):
            for queue in [queue for queue, lock in table.items() if self._is_expired(lock, now)]:
                del table[queue]
                self._count -= 1
                self._changes += 1
            if not table:
                del self._groups[group]

    def _is_expired(self, lock: _Lock, now: int) -> bool:
        return now - lock.renewed_ms > self._lock_ms

    # --- The file

    def load(self) -> None:
        """Take over the locks of the broker's last run, as if they had been renewed now. Blocks."""
        if self._path is None:
            return
        now = self._now_ms()
        try:
            data = self._files.read(self._path, bytes_max=_FILE_BYTES_MAX)
            groups = {} if data is None else _decoded(data)
        except (OSError, ValueError, TypeError, KeyError) as error:
            _log.warning("the locks of the last run cannot be read", extra={"path": self._path, "error": str(error)})
            return
        self._groups = {
            group: {queue: _Lock(owner, now) for queue, owner in owners.items()} for group, owners in groups.items()
        }
        self._count = sum(map(len, self._groups.values()))

    def persist(self) -> None:
        """Write what is locked, at the end. Blocks."""
        self.drop_expired()
        changes = self._changes
        if self._path is not None and self._written != changes and self._write(self._path, self._copy()):
            self._written = changes

    async def _store(self) -> None:
        """Have the owners in the file, where they changed since it was written."""
        async with self._writing:
            if self._path is None or self._written == self._changes:
                return
            changes, groups = self._changes, self._copy()
            if await asyncio.get_running_loop().run_in_executor(None, self._write, self._path, groups):
                self._written = changes

    def _copy(self) -> dict[str, dict[MessageQueue, _Lock]]:
        """Return what is locked, for a thread to write; a lock is never changed, but replaced."""
        return {group: dict(table) for group, table in self._groups.items()}

    def _write(self, path: Path, groups: Mapping[str, Mapping[MessageQueue, _Lock]]) -> bool:
        """Write the file; False, and the log says why, where that failed: the next change tries again."""
        locks = [
            [group, queue.topic, queue.broker_name, queue.queue_id, lock.owner]
            for group, table in groups.items()
            for queue, lock in table.items()
        ]
        data = json.dumps({"version": _VERSION, "locks": locks}).encode()
        fresh = path.with_suffix(".tmp")
        try:
            self._files.make_folder(path.parent, root=path.parent.parent)
            self._files.write_synced(fresh, data)
            self._files.rename(fresh, path)
            self._files.sync_folder(path.parent)
        except OSError as error:
            _log.warning(
                "locks are in memory alone: after a restart listeners may overlap",
                extra={"path": path, "error": str(error)},
            )
            return False
        return True

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.LOCK_BATCH_MQ: with_body(LockBatchRequestBody.from_request, self._serve_lock),
            RequestCode.UNLOCK_BATCH_MQ: with_body(UnlockBatchRequestBody.from_request, self._serve_unlock),
        }

    @staticmethod
    def _check(client_id: str, queues: Collection[MessageQueue]) -> None:
        if len(client_id) > _CLIENT_ID_CHARS_MAX:
            text = f"a clientId has at most {_CLIENT_ID_CHARS_MAX} characters, not {len(client_id)}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        if len(queues) > LOCKS_OF_REQUEST_MAX:
            text = f"a request names at most {LOCKS_OF_REQUEST_MAX} queues, not {len(queues)}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)

    async def _serve_lock(self, request: Command, caller: Caller, body: LockBatchRequestBody) -> Command:
        self._check(body.client_id, body.queues)
        is_known = self._is_group(body.consumer_group)
        held = tuple(self.lock(body.consumer_group, body.client_id, body.queues)) if is_known else ()
        await self._store()
        answer = LockBatchResponseBody(locked_queues=held)
        text = answer.to_json() if len(held) <= _INLINE_QUEUES else await caller.apart(answer.to_json)
        return ok(request, body=text)

    async def _serve_unlock(self, request: Command, caller: Caller, body: UnlockBatchRequestBody) -> Command:
        self._check(body.client_id, body.queues)
        self.unlock(body.consumer_group, body.client_id, body.queues)
        await self._store()  # else a broker that is killed would keep the queue from its next owner for a lease
        return ok(request)


def _decoded(data: bytes) -> dict[str, dict[MessageQueue, str]]:
    content = loads_own(data)
    if content["version"] != _VERSION:
        raise ValueError(f"version {content['version']!r} is not known")
    groups: dict[str, dict[MessageQueue, str]] = {}
    for group, topic, broker_name, queue_id, owner in content["locks"]:
        if not all(isinstance(text, str) for text in (group, topic, broker_name, owner)) or type(queue_id) is not int:
            raise TypeError(f"{[group, topic, broker_name, queue_id, owner]!r:.200} is not a lock")
        queue = MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)
        groups.setdefault(group, {})[queue] = owner
    return groups
