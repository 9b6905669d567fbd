"""Checks: progress is kept in memory, read and persisted as upstream's do, by brokers, files and users' stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from cometmq.client.group.offset_file import OffsetFile
from cometmq.client.group.offset_stores import (
    AdaptedOffsetStore,
    LocalOffsetStore,
    OffsetStore,
    ReadOffset,
    RemoteOffsetStore,
)
from cometmq.errors import BrokerError, BrokerNotFound, DiskFull, Error, RequestTimeout
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.store_config.file_ops import SystemFileOps

MEMORY, STORE, BOTH = ReadOffset.FROM_MEMORY, ReadOffset.FROM_STORE, ReadOffset.MEMORY_FIRST_THEN_STORE


def _queue(number: int, *, topic: str = "t", broker: str = "b") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=number)


class _Network:
    """Keeps what is sent one-way. Only what the store uses."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Command]] = []

    def oneway(self, address: str, command: Command) -> None:
        self.sent.append((address, command))


class _Host:
    """Brokers with progress, masters and slaves."""

    def __init__(self) -> None:
        self.network = _Network()
        self.addresses: dict[str, dict[int, str]] = {"b": {0: "m:1"}}
        self.after_update: dict[str, dict[int, str]] = {}
        self.stored: dict[MessageQueue, int] = {}
        self.failure: Error | None = None
        self.answer = Command(code=0)
        self.asked: list[Command] = []

    def broker_address(
        self, broker_name: str, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        known = self.addresses.get(broker_name, {})
        if broker_id in known:
            return known[broker_id], broker_id != 0
        return None if only_this or not known else (next(iter(known.values())), True)

    def api_address(self, address: str) -> str:
        return address + "0"

    async def update_route(self, topic: str, *, must_answer: bool = False) -> bool:
        self.addresses.update(self.after_update)
        return True

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        assert group == "g"
        if self.failure is not None:
            raise self.failure
        return self.stored.get(queue)

    async def ask_broker(
        self, broker_name: str, command: Command, *, timeout_ms: int, master_only: bool = True
    ) -> Command:
        assert (broker_name, timeout_ms, master_only) == ("b", 5_000, False)
        self.asked.append(command)
        return self.answer


@pytest.fixture
def host() -> _Host:
    return _Host()


@pytest.fixture
def remote(host: _Host) -> RemoteOffsetStore:
    return RemoteOffsetStore(host, "g")  # type: ignore[arg-type]  # a network of one call


def _read(store: OffsetStore, queue: MessageQueue | None, kind: ReadOffset) -> int:
    return asyncio.run(store.read(queue, kind))


def test_updates() -> None:
    """Promise 71: finished messages move the offset; late reports do not move it back."""
    store = AdaptedOffsetStore(_Own())
    queue = _queue(0)
    assert store.memory(queue) == -1
    store.update(queue, 0, increase_only=True)
    assert store.memory(queue) == 0
    store.update(queue, 7, increase_only=True)
    store.update(queue, 5, increase_only=True)
    assert store.memory(queue) == 7
    store.update(queue, 5, increase_only=False)
    assert store.memory(queue) == 5
    store.remove(queue)
    assert store.memory(queue) == -1


def test_a_frozen_offset_stays_until_it_is_removed() -> None:
    """Promise 41: reports of late listeners do not undo a repaired offset."""
    store = AdaptedOffsetStore(_Own())
    queue = _queue(0)
    store.update_and_freeze(queue, 3)
    for increase_only in (True, False):
        store.update(queue, 9, increase_only=increase_only)
        assert store.memory(queue) == 3
    store.update_and_freeze(queue, 4)
    assert store.memory(queue) == 4
    store.remove(queue)
    store.update(queue, 9, increase_only=True)
    assert store.memory(queue) == 9


def test_snapshots() -> None:
    store = AdaptedOffsetStore(_Own())
    store.update(_queue(0), 1, increase_only=False)
    store.update(_queue(0, topic="u"), 2, increase_only=False)
    assert store.snapshot("u") == {_queue(0, topic="u"): 2}
    snapshot = store.snapshot(None)
    assert snapshot == {_queue(0): 1, _queue(0, topic="u"): 2}
    snapshot.clear()
    assert store.memory(_queue(0)) == 1


def test_reads_of_the_remote_store(host: _Host, remote: RemoteOffsetStore) -> None:
    """Promises 4, 32, 88."""
    queue = _queue(0)
    host.stored[queue] = 5
    assert _read(remote, queue, MEMORY) == -1
    assert _read(remote, queue, STORE) == 5
    assert remote.memory(queue) == 5, "the offset that was read is kept"
    host.stored[queue] = 6
    assert _read(remote, queue, BOTH) == 5
    assert _read(remote, queue, STORE) == 6
    assert _read(remote, _queue(1), STORE) == -1
    assert _read(remote, None, STORE) == -3
    for failure in (RequestTimeout("late"), BrokerError("no", code=1), BrokerNotFound("gone")):
        host.failure = failure
        assert _read(remote, _queue(2), BOTH) == -2


def test_offset_consumed_during_a_read_wins(host: _Host) -> None:
    queue = _queue(0)
    store = RemoteOffsetStore(host, "g")  # type: ignore[arg-type]

    async def query(group: str, wanted: MessageQueue) -> int | None:
        store.update(wanted, 9, increase_only=True)
        return 5

    host.query_offset = query  # type: ignore[method-assign]
    assert _read(store, queue, BOTH) == 9
    assert store.memory(queue) == 9


def test_the_remote_store_tells_brokers_one_way(host: _Host, remote: RemoteOffsetStore) -> None:
    """Promises 4, 71, 88: changed or not, one request for each queue; released queues are forgotten."""
    for number in range(3):
        remote.update(_queue(number), number, increase_only=False)
    asyncio.run(remote.persist_all([]))
    assert (host.network.sent, len(remote.snapshot(None))) == ([], 3), "an empty table does nothing"
    for _ in range(2):
        asyncio.run(remote.persist_all([_queue(0), _queue(1), _queue(9)]))
    assert remote.snapshot(None) == {_queue(0): 0, _queue(1): 1}
    assert [address for address, _ in host.network.sent] == ["m:10"] * 4
    command = host.network.sent[1][1]
    assert command.code == RequestCode.UPDATE_CONSUMER_OFFSET
    assert command.fields == {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "1",
        "commitOffset": "1",
        "bname": "b",
    }


def test_where_no_master_is_known_routes_are_asked_for_and_a_slave_will_do(
    host: _Host, remote: RemoteOffsetStore
) -> None:
    host.addresses = {}
    host.after_update = {"b": {1: "s:1"}}
    remote.update(_queue(0), 5, increase_only=False)
    asyncio.run(remote.persist(_queue(0)))
    assert [address for address, _ in host.network.sent] == ["s:10"]


def test_a_broker_that_is_gone_keeps_no_other_from_hearing(host: _Host, remote: RemoteOffsetStore) -> None:
    gone = _queue(0, broker="a")
    for queue in (gone, _queue(0)):
        remote.update(queue, 5, increase_only=False)
    asyncio.run(remote.persist_all([gone, _queue(0)]))
    assert len(host.network.sent) == 1
    assert remote.memory(gone) == 5, "it is committed when the broker is back"
    with pytest.raises(BrokerNotFound):
        asyncio.run(remote.persist(gone))


def test_a_commit_that_waits(host: _Host, remote: RemoteOffsetStore) -> None:
    asyncio.run(remote.persist(_queue(0), wait=True))
    assert host.asked == [], "nothing is known, nothing is committed"
    remote.update(_queue(0), 5, increase_only=False)
    asyncio.run(remote.persist(_queue(0), wait=True))
    assert [command.fields["commitOffset"] for command in host.asked] == ["5"]
    host.answer = Command(code=26, remark="no group")
    with pytest.raises(BrokerError, match=r"no group.*queue 0 of t at b"):
        asyncio.run(remote.persist(_queue(0), wait=True))


def test_the_local_store_begins_where_it_was(tmp_path: Path) -> None:
    """Promises 7, 14: broadcasting members keep their progress themselves."""
    file = OffsetFile(tmp_path / "offsets.json")
    store = LocalOffsetStore(file)
    asyncio.run(store.load())
    assert _read(store, _queue(0), STORE) == -1
    for number in range(3):
        store.update(_queue(number), 10 + number, increase_only=False)
    asyncio.run(store.persist_all([]))
    assert not file.path.exists()
    asyncio.run(store.persist_all([_queue(0), _queue(1)]))
    asyncio.run(store.persist(_queue(2)))
    again = LocalOffsetStore(file)
    assert _read(again, _queue(0), MEMORY) == -1
    asyncio.run(again.load())
    assert again.snapshot(None) == {_queue(number): 10 + number for number in range(3)}
    file.merge({_queue(0): 50})
    assert _read(again, _queue(0), BOTH) == 10
    assert _read(again, _queue(0), STORE) == 50


def test_local_progress_survives_a_full_disk(tmp_path: Path) -> None:
    class Full(SystemFileOps):
        full = False

        def write_synced(self, path: Path, data: bytes) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().write_synced(path, data)

    ops = Full()
    store = LocalOffsetStore(OffsetFile(tmp_path / "offsets.json", file_ops=ops))
    store.update(_queue(0), 1, increase_only=False)
    asyncio.run(store.persist(_queue(0)))
    ops.full = True
    store.update(_queue(0), 2, increase_only=False)
    with pytest.raises(DiskFull):
        asyncio.run(store.persist_all([_queue(0)]))
    assert (store.memory(_queue(0)), _read(store, _queue(0), BOTH)) == (2, 2)
    ops.full = False
    asyncio.run(store.persist_all([_queue(0)]))
    assert OffsetFile(tmp_path / "offsets.json").read() == {_queue(0): 2}


def test_a_local_file_that_is_no_good_reads_as_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / name).write_text("{{")
    store = LocalOffsetStore(OffsetFile(path))
    with pytest.raises(Error):
        asyncio.run(store.load())
    assert _read(store, _queue(0), STORE) == -1


class _Own:
    """A store of a user's with plain functions."""

    def __init__(self) -> None:
        self.table: dict[MessageQueue, object] = {}

    def load(self, queue: MessageQueue) -> int | None:
        return self.table.get(queue)  # type: ignore[return-value]

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.table.update(offsets)


class _OwnAsync:
    """One whose calls are awaited, and which may fail."""

    def __init__(self) -> None:
        self.table: dict[MessageQueue, int] = {}
        self.fails = False

    async def load(self, queue: MessageQueue) -> int | None:
        await asyncio.sleep(0)
        if self.fails:
            raise KeyError("no such table")
        return self.table.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise KeyError("no such table")
        self.table.update(offsets)


@pytest.mark.parametrize("own", [_Own(), _OwnAsync()], ids=["plain", "async"])
def test_a_store_of_the_users_own(own: _Own | _OwnAsync) -> None:
    """Promise 14."""
    store = AdaptedOffsetStore(own)
    asyncio.run(store.load())
    assert _read(store, _queue(0), STORE) == -1
    store.update(_queue(0), 5, increase_only=False)
    store.update(_queue(1), 6, increase_only=False)
    asyncio.run(store.persist_all([_queue(0), _queue(9)]))
    asyncio.run(store.persist_all([]))
    assert own.table == {_queue(0): 5}
    asyncio.run(store.persist(_queue(1), wait=True))
    own.table[_queue(0)] = 8
    assert (_read(store, _queue(0), BOTH), _read(store, _queue(0), STORE)) == (5, 8)


def test_errors_of_a_users_store() -> None:
    own = _OwnAsync()
    store = AdaptedOffsetStore(own)
    own.fails = True
    assert _read(store, _queue(0), STORE) == -2
    store.update(_queue(0), 5, increase_only=False)
    with pytest.raises(Error, match=r"save.* failed: KeyError"):
        asyncio.run(store.persist(_queue(0)))
    assert store.memory(_queue(0)) == 5
    plain = _Own()
    for wrong in (-1, "5", 1 << 63):
        plain.table[_queue(0)] = wrong
        assert _read(AdaptedOffsetStore(plain), _queue(0), STORE) == -2


def test_an_offset_that_cannot_be_read_is_logged_once_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    host = _Host()
    store = RemoteOffsetStore(host, group="g")  # type: ignore[arg-type]

    async def read(*, failure: Error | None) -> None:
        host.failure = failure
        await store.read(_queue(0), STORE)

    async def main() -> None:
        for failure in (RequestTimeout("one"), RequestTimeout("two"), None, RequestTimeout("three")):
            await read(failure=failure)

    asyncio.run(main())
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.rpartition(": ")[2] for text in warnings] == ["one", "three"]
