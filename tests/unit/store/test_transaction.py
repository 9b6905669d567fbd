"""Checks: ``store.transaction()``: all messages or none, also after kill -9; errors, wrong uses, asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import cometmq
from cometmq import aio, errors
from cometmq.store.transaction import Transaction
from support.small_store import open_small


def bodies(store: cometmq.Store, topic: str | None = None) -> list[bytes]:
    return [bytes(message.body) for message in store.read(topic)]


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_messages_become_visible_together(tmp_path: Path, flush: str) -> None:
    with cometmq.open(tmp_path, flush=flush) as store, cometmq.open(tmp_path, mode="r") as view:
        with store.transaction() as t:
            t.append("orders", b"one", tags="paid", keys=["k1"], properties={"price": "5"})
            t.append("stock", b"two", queue=0)
            t.append("orders", b"three")
            assert (len(t), t.results) == (3, [])
            assert bodies(store) == bodies(view) == []
        assert bodies(store) == bodies(view) == [b"one", b"two", b"three"]
        assert [result.topic for result in t.results] == ["orders", "stock", "orders"]
        first = store.get("orders", t.results[0].queue_id, t.results[0].queue_offset)
        assert (first.tags, first.keys, first.properties["price"]) == ("paid", ("k1",), "5")
        assert [bytes(message.body) for message in store.find("orders", key="k1")] == [b"one"]
        store.append("orders", b"four")
        assert bodies(view) == [b"one", b"two", b"three", b"four"]
    with cometmq.open(tmp_path) as store:
        assert bodies(store) == [b"one", b"two", b"three", b"four"]


def test_a_block_that_raises_stores_nothing(tmp_path: Path) -> None:
    with cometmq.open(tmp_path) as store:
        with suppress(KeyError), store.transaction() as t:
            t.append("orders", b"one")
            raise KeyError
        with store.transaction() as t:
            t.append("orders", b"two")
            t.discard()
        with store.transaction() as t:
            pass
        assert t.results == []
        assert bodies(store) == []


def test_a_message_that_is_refused_is_not_in_the_transaction(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        with store.transaction() as t:
            t.append("orders", b"one")
            with pytest.raises(errors.InvalidTopic):
                t.append("bad topic", b"x")
            with pytest.raises(errors.MessageTooLarge):
                t.append("orders", bytes(5 << 20))
            with pytest.raises(errors.InvalidArgument):
                t.append("orders", b"x", tags="a || b")
            with pytest.raises(errors.WrongType):
                t.append("orders", "text")  # type: ignore[arg-type]
            t.append("orders", memoryview(b"two"))
        assert bodies(store) == [b"one", b"two"]


def test_more_than_a_segment_takes_is_refused_whole(tmp_path: Path) -> None:
    with cometmq.open(tmp_path, segment_bytes=1 << 20) as store:
        store.append("orders", b"before")
        t = store.transaction()
        for _ in range(5):
            t.append("orders", bytes(300_000))
        with pytest.raises(errors.MessageTooLarge):
            t.commit()
        with pytest.raises(errors.InvalidArgument, match="discarded"):
            t.append("orders", b"x")
        store.append("orders", b"behind")
        assert bodies(store) == [b"before", b"behind"]


def test_transactions_do_not_cross_segments(tmp_path: Path) -> None:
    with cometmq.open(tmp_path, segment_bytes=1 << 20) as store:
        for _ in range(6):
            with store.transaction() as t:
                for n in range(4):
                    t.append(f"t{n % 2}", bytes(100_000))
            first, last = t.results[0].physical_offset, t.results[-1].physical_offset
            assert first >> 20 == last >> 20
        assert len(bodies(store)) == 24


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    with cometmq.open(tmp_path) as store:
        with store.transaction() as t:
            t.append("orders", b"one")
            with pytest.raises(errors.InvalidArgument, match="in a with block already"), t:
                pass
        for use in (t.commit, t.discard, lambda: t.append("orders", b"x"), t.__enter__):
            with pytest.raises(errors.InvalidArgument, match="was committed: begin another"):
                use()
        t = store.transaction()
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                t.append("orders", b"x")
            except errors.InvalidArgument as error:
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "begin one in each thread" in str(caught[0])
        for _ in range(8192):
            t.append("orders", b"")
        with pytest.raises(errors.LimitReached, match="8,192"):
            t.append("orders", b"")
        t.discard()
        t.discard()
        with cometmq.open(tmp_path, mode="r") as view, pytest.raises(errors.ReadOnlyStore, match="transactions"):
            view.transaction()
        assert bodies(store) == [b"one"]
        late = store.transaction()
        late.append("orders", b"late")
    with pytest.raises(errors.StoreClosed):
        late.commit()


def test_asyncio_transactions(tmp_path: Path) -> None:
    async def work() -> list[bytes]:
        async with aio.open(tmp_path) as store:
            async with store.transaction() as t:
                await t.append("orders", b"one")
                await t.append("stock", b"two")
            assert len(t.results) == 2
            with suppress(KeyError):
                async with store.transaction() as t:
                    await t.append("orders", b"three")
                    raise KeyError
            return [bytes(message.body) async for message in store.read()]

    assert asyncio.run(work()) == [b"one", b"two"]


WRITER = """
import sys, cometmq
with cometmq.open(sys.argv[1], flush=sys.argv[2]) as store:
    print("ready", flush=True)
    n = 0
    while True:
        with store.transaction() as t:
            for part in range(20):
                t.append("ab"[part % 2], b"%d" % n + bytes(500))
        n += 1
        if n == 20:
            print("working", flush=True)
"""


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_killed_process_leaves_whole_transactions(tmp_path: Path, flush: str) -> None:
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, flush], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == "ready\n"
            assert process.stdout.readline() == "working\n"
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        with cometmq.open(tmp_path, mode="r") as view:
            assert len(bodies(view)) % 20 == 0
        with cometmq.open(tmp_path) as store:
            found = bodies(store)
            assert len(found) % 20 == 0
            assert len(found) >= 400


def test_bytes_of_a_transaction_are_limited_where_it_is_filled(tmp_path: Path) -> None:
    with cometmq.open(tmp_path, body_bytes_max=40 << 20) as store:
        t = store.transaction()
        t.append("t", bytes(40 << 20))
        with pytest.raises(errors.MessageTooLarge, match="at most 67,108,864 bytes"):
            t.append("t", bytes(40 << 20))
        assert (len(t), t.is_open) == (1, True)
        t.discard()


class _Failing:
    """A store whose commit fails."""

    def __init__(self, store: cometmq.Store, error: BaseException) -> None:
        self.error = error
        self.handle = self
        self._target_of = store._target_of
        self._checked_queue = store._checked_queue

    def append_together(self, messages: object) -> object:
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyboardInterrupt(), "committed or not"),
        (errors.StoreFenced("the disk refused the second sync"), "committed or not"),
        (errors.DiskFull("no space"), "discarded"),
    ],
)
def test_a_failed_commit_says_whether_anything_was_stored(tmp_path: Path, error: BaseException, text: str) -> None:
    with cometmq.open(tmp_path) as store:
        t = store.transaction()
        t.append("t", b"x")
        t._store = cast("cometmq.Store", _Failing(store, error))
        with pytest.raises(type(error)):
            t.commit()
        assert text in repr(t)
        with pytest.raises(errors.InvalidArgument, match=text):
            t.commit()


@pytest.mark.parametrize("cancels", [False, True])
def test_appends_of_asyncio_wait_for_a_commit_that_has_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancels: bool
) -> None:
    committing, may_end = threading.Event(), threading.Event()
    store_messages = Transaction._store_messages

    def slow(self: Transaction, messages: list[Any]) -> list[cometmq.AppendResult]:
        committing.set()
        assert may_end.wait(30)
        return store_messages(self, messages)

    async def work() -> None:
        async with aio.open(tmp_path, flush="async") as store:
            await store.append("t", b"first")
            transaction = store.transaction()
            await transaction.append("t", b"together")
            monkeypatch.setattr(Transaction, "_store_messages", slow)
            commit = asyncio.create_task(transaction.commit())
            await asyncio.to_thread(committing.wait, 30)
            if cancels:
                commit.cancel()
                with suppress(asyncio.CancelledError):
                    await commit
            appends = [asyncio.create_task(store.append("t", b"%d" % n)) for n in range(3)]
            for _ in range(10):
                await asyncio.sleep(0)  # the loop turns
            assert not any(append.done() for append in appends)
            appends[1].cancel()
            may_end.set()
            late = asyncio.create_task(store.append("t", b"late"))
            await asyncio.gather(appends[0], appends[2], late)
            assert [bytes(m.body) async for m in store.read("t")] == [b"first", b"together", b"0", b"2", b"late"]
            await store.append("t", b"at once")

    asyncio.run(work())


def test_failed_commit_of_asyncio_lets_appends_pass(tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.open(tmp_path, flush="async") as store:
            transaction = store.transaction()
            await transaction.append("t", b"x")
            await store.append("t", b"first")
            await store.close()
            with pytest.raises(errors.StoreClosed):
                await transaction.commit()
            assert store._turns.is_free

    asyncio.run(work())


def test_topic_deleted_before_the_commit_is_re_created(tmp_path: Path) -> None:
    with open_small(tmp_path) as store, store.transaction() as t:
        t.append("orders", b"one")
        t.append("stock", b"two")
        store.delete_topic("orders")
        t.commit()
        assert sorted(store.topics()) == ["orders", "stock"]
        store.append("orders", b"three")
    with open_small(tmp_path, mode="r") as view:
        assert sorted(bodies(view, "orders")) == [b"one", b"three"]


def test_topic_re_created_with_fewer_queues_refuses_the_commit(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", queues=4)
        t = store.transaction()
        t.append("stock", b"one")
        t.append("orders", b"two", queue=3)
        store.delete_topic("orders")
        store.create_topic("orders", queues=2)
        with pytest.raises(errors.InvalidArgument, match="orders"):
            t.commit()
        assert bodies(store) == []
        with pytest.raises(errors.InvalidArgument, match="discarded"):
            t.commit()
