"""CometMQ and its rivals behind one small interface: append one, append a batch, read all, consume all.

Each engine has two modes, and says in words what each promises:

* ``durable``: appended messages are on disk when the call returns.
* ``relaxed``: the engine's fast setting; a power loss may take the newest messages, the death of the process may not.

Each is used as its documentation advises for speed, through its own interface: batches where it has them, one
transaction for many messages where it has transactions. Features that an engine lacks are left out, never imitated.
"""

from __future__ import annotations

import abc
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONSUME_BATCH = 1000
"""Messages per stored progress (commit, done, task_done) where an engine can store it for several at once."""


class Engine(abc.ABC):
    """A durable queue that is open. One of these at a time in a process."""

    name: str
    durable_setting: str
    """Empty: it has no such mode."""
    relaxed_setting: str

    @abc.abstractmethod
    def __init__(self, path: Path, *, durable: bool) -> None:
        """Open in an empty directory."""

    @abc.abstractmethod
    def append(self, body: bytes) -> None:
        """Append one message."""

    def append_batch(self, bodies: list[bytes]) -> None:
        """Append several at once; NotImplementedError where the engine has no such call."""
        raise NotImplementedError

    @abc.abstractmethod
    def read_all(self) -> Iterator[bytes]:
        """Yield every body in order, leaving all in place."""

    @abc.abstractmethod
    def consume_all(self) -> Iterator[bytes]:
        """Yield every body in order, storing progress: consumed messages are not redelivered after a restart."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close."""


class CometMQ(Engine):
    """CometMQ, embedded."""

    name = "cometmq"
    durable_setting = 'flush="sync": pwrite + fdatasync before the call returns'
    relaxed_setting = 'flush="async": page cache, synced every half second'
    topic = "rival"

    def __init__(self, path: Path, *, durable: bool) -> None:
        import cometmq

        self._store = cometmq.open(path, flush="sync" if durable else "async")

    def append(self, body: bytes) -> None:
        self._store.append(self.topic, body)

    def append_batch(self, bodies: list[bytes]) -> None:
        self._store.append_many(self.topic, bodies)

    def read_all(self) -> Iterator[bytes]:
        for message in self._store.read(self.topic):
            yield bytes(message)

    def consume_all(self) -> Iterator[bytes]:
        with self._store.consumer("rivals", self.topic) as consumer:
            while messages := consumer.fetch(CONSUME_BATCH):
                for message in messages:
                    yield bytes(message)
                consumer.commit()

    def close(self) -> None:
        self._store.close()


class LiteQueue(Engine):
    """SQLite through litequeue. Bodies go in as BLOBs, which SQLite allows in its TEXT column."""

    name = "litequeue (SQLite)"
    durable_setting = "journal_mode=WAL, synchronous=FULL: the WAL is synced at each commit"
    relaxed_setting = "journal_mode=WAL, synchronous=NORMAL (litequeue's own setting): synced at checkpoints"

    def __init__(self, path: Path, *, durable: bool) -> None:
        from litequeue import LiteQueue as Queue

        self._queue = Queue(path / "queue.sqlite3")
        if durable:
            self._queue.conn.execute("PRAGMA synchronous = FULL")
        expected = 2 if durable else 1
        (found,) = self._queue.conn.execute("PRAGMA synchronous").fetchone()
        if found != expected:
            raise RuntimeError(f"SQLite's synchronous is {found}, not {expected}")

    def append(self, body: bytes) -> None:
        self._queue.put(body)

    def append_batch(self, bodies: list[bytes]) -> None:
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body)

    def read_all(self) -> Iterator[bytes]:
        for row in self._queue.conn.execute(f"SELECT data FROM {self._queue.table} ORDER BY rowid"):
            yield row[0]

    def consume_all(self) -> Iterator[bytes]:
        while (message := self._queue.pop()) is not None:
            yield message.data
            self._queue.done(message.message_id)

    def close(self) -> None:
        self._queue.close()


class PersistQueueSQLite(Engine):
    """persist-queue's SQLiteQueue. Each put is a transaction of its own: it has no batches."""

    name = "persist-queue (SQLite)"
    durable_setting = "SQLiteQueue, journal_mode=WAL, synchronous=FULL (SQLite's default)"
    relaxed_setting = "SQLiteQueue, journal_mode=WAL, synchronous=NORMAL"

    def __init__(self, path: Path, *, durable: bool) -> None:
        import persistqueue
        from persistqueue.serializers import pickle

        self._queue = persistqueue.SQLiteQueue(str(path), auto_commit=False, serializer=pickle)
        self._connection: sqlite3.Connection = self._queue._conn
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")

    def append(self, body: bytes) -> None:
        self._queue.put(body)

    def read_all(self) -> Iterator[bytes]:
        for item in self._queue.queue():
            yield item["data"]

    def consume_all(self) -> Iterator[bytes]:
        import persistqueue

        count = 0
        while True:
            try:
                body = self._queue.get(block=False)
            except persistqueue.Empty:
                break
            yield body
            count += 1
            if count % CONSUME_BATCH == 0:
                self._queue.task_done()
        self._queue.task_done()

    def close(self) -> None:
        self._queue.close()


class PersistQueueFile(Engine):
    """persist-queue's file queue: pickles in chunk files, which it flushes and does not sync."""

    name = "persist-queue (files)"
    durable_setting = ""
    relaxed_setting = "Queue, flush of the file at each put, no fsync"

    def __init__(self, path: Path, *, durable: bool) -> None:
        import persistqueue

        if durable:
            raise NotImplementedError("persist-queue syncs a file only when it is full")
        # A temporary folder on the same file system, as its documentation asks for.
        (path / "tmp").mkdir()
        self._queue = persistqueue.Queue(str(path / "queue"), tempdir=str(path / "tmp"), chunksize=10_000)

    def append(self, body: bytes) -> None:
        self._queue.put(body)

    def read_all(self) -> Iterator[bytes]:
        raise NotImplementedError

    def consume_all(self) -> Iterator[bytes]:
        count = 0
        while not self._queue.empty():
            yield self._queue.get(block=False)
            count += 1
            if count % CONSUME_BATCH == 0:
                self._queue.task_done()
        self._queue.task_done()

    def close(self) -> None:
        """It has nothing to close: each put leaves its files whole."""


class Lmdb(Engine):
    """lmdb with a running number as the key, and the consumer's progress in a second database."""

    name = "lmdb"
    durable_setting = "sync=True (default): msync + fsync at each commit"
    relaxed_setting = "sync=False, writemap=True, map_async=True: the kernel writes when it likes"

    def __init__(self, path: Path, *, durable: bool) -> None:
        import lmdb

        fast: dict[str, Any] = {} if durable else {"sync": False, "writemap": True, "map_async": True}
        self._environment = lmdb.open(str(path), map_size=8 << 30, max_dbs=2, **fast)
        self._messages = self._environment.open_db(b"messages", integerkey=False)
        self._progress = self._environment.open_db(b"progress")
        self._next = 0

    def _key(self) -> bytes:
        self._next += 1
        return (self._next - 1).to_bytes(8, "big")

    def append(self, body: bytes) -> None:
        with self._environment.begin(write=True, db=self._messages) as transaction:
            transaction.put(self._key(), body, append=True)

    def append_batch(self, bodies: list[bytes]) -> None:
        with self._environment.begin(write=True, db=self._messages) as transaction, transaction.cursor() as cursor:
            cursor.putmulti([(self._key(), body) for body in bodies], append=True)

    def read_all(self) -> Iterator[bytes]:
        with self._environment.begin(db=self._messages) as transaction, transaction.cursor() as cursor:
            yield from cursor.iternext(keys=False, values=True)

    def consume_all(self) -> Iterator[bytes]:
        at = 0
        while True:
            with self._environment.begin(db=self._messages) as transaction, transaction.cursor() as cursor:
                if not cursor.set_range(at.to_bytes(8, "big")):
                    return
                for _, body in zip(range(CONSUME_BATCH), cursor.iternext(keys=False, values=True), strict=False):
                    yield body
                    at += 1
            with self._environment.begin(write=True, db=self._progress) as transaction:
                transaction.put(b"consumer", at.to_bytes(8, "big"))

    def close(self) -> None:
        self._environment.close()


ENGINES: dict[str, type[Engine]] = {
    "cometmq": CometMQ,
    "litequeue": LiteQueue,
    "persistqueue-sqlite": PersistQueueSQLite,
    "persistqueue-files": PersistQueueFile,
    "lmdb": Lmdb,
}
