"""Checks: processes that share a store by ``mode="auto"``: one writer, the hand-off, the role when its holder goes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

import cometmq.aio
from cometmq import Store, errors
from cometmq._engine import Message, StoreHandle, lock_holder
from cometmq.store import handoff
from cometmq.store.handoff_client import HandoffClient
from cometmq.store.handoff_files import CallWork, HandoffFolder, MessagesWork, new_work_id
from cometmq.store.topic_calls import CALLS, Books
from cometmq.store.writer_role import WriterRole
from support.any_disk import retention_on_request
from support.small_store import SMALL, open_small

SHARER = """
import itertools, sys
import cometmq
with cometmq.open(sys.argv[1], mode="auto", settings=eval(sys.argv[3])) as store:
    store.create_topic("t", queues=2, exist_ok=True)
    for number in itertools.count():
        body = f"{sys.argv[2]}-{number}"
        store.append("t", body.encode())
        print(body, flush=True)  # acknowledged
"""


class Sharer:
    """A process that appends to a shared store for ever, and prints each body that was acknowledged."""

    def __init__(self, path: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHARER, path, name, repr(SMALL)], stdout=subprocess.PIPE, text=True
        )
        self.acknowledged: list[str] = []

    def read(self, count: int) -> None:
        assert self.process.stdout is not None
        for _ in range(count):
            line = self.process.stdout.readline()
            assert line.endswith("\n"), "it ended"
            self.acknowledged.append(line.strip())

    def kill(self) -> None:
        self.process.kill()
        assert self.process.stdout is not None
        with self.process.stdout:
            self.acknowledged += [line.strip() for line in self.process.stdout if line.endswith("\n")]
        assert self.process.wait() == -signal.SIGKILL


@contextmanager
def sharers(path: Path, count: int) -> Iterator[dict[int, Sharer]]:
    started = [Sharer(path, f"p{number}") for number in range(count)]
    try:
        yield {one.process.pid: one for one in started}
    finally:
        for one in started:
            if one.process.poll() is None:
                one.kill()


def open_shared(path: Path, **options: object) -> Store:
    return open_small(path, **{"mode": "auto", **options})


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [bytes(message) for message in store.read(topic)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


# --- Two stores


def test_one_store_writes_and_the_others_append_through_it(path: Path) -> None:
    with open_shared(path) as first, open_shared(path) as second:
        assert (first.is_writer, second.is_writer) == (True, False)
        assert not first.read_only
        assert not second.read_only
        assert (repr(first), repr(second)) == (
            f"<Store '{path}' shared, writing, flush async>",
            f"<Store '{path}' shared, reading>",
        )
        assert first.append("t", b"1", tags="a", keys=["k"]).queue_offset == 0
        assert second.append("t", b"2", wait=False).queue_offset == 1
        assert first.append_many("t", [b"3", b"4"]).queue_offsets.tolist() == [2, 3]
        assert second.append_many("t", [b"5"], wait=False).queue_offsets.tolist() == [4]
        for store in (first, second):
            store.flush()
            store.wait_durable(store.info().log_end)
            assert bodies(store) == [b"1", b"2", b"3", b"4", b"5"]
            assert [bytes(message) for message in store.find("t", "k")] == [b"1"]
        assert first.info().flush is cometmq.FlushMode.ASYNC
        assert second.info().flush is None
        assert first.opening().created
        assert not second.opening().created


def test_waiting_work_is_taken_by_the_writer_in_the_same_process(path: Path) -> None:
    with open_shared(path) as store:
        handed = store.hand_off("t", [b"1"])
        assert handed.wait(30).queue_offsets.tolist() == [0]


def test_topics_and_groups_are_changed_from_any_process(path: Path) -> None:
    with open_shared(path) as first, open_shared(path) as second:
        for store, topic in ((first, "mine"), (second, "theirs")):
            assert store.create_topic(topic, queues=2, attributes={"message.type": "FIFO"}).write_queues == 2
            assert store.create_topic(topic, queues=9, exist_ok=True).write_queues == 2
            with pytest.raises(errors.InvalidArgument, match="exists already"):
                store.create_topic(topic)
            assert store.set_topic_queues(topic, 3).write_queues == 3
            store.append(topic, b"x", queue=0)
            with store.consumer("g", topic) as consumer:
                assert len(consumer.fetch()) == 1
                consumer.commit()
        for store in (first, second):
            assert {(one.topic, one.offset, one.lag) for one in store.progress("g")} == {
                ("mine", 1, 0),
                ("theirs", 1, 0),
            }
        second.delete_group("g")
        second.delete_topic("mine")
        first.delete_topic("theirs")
        for store in (first, second):
            assert store.topics() == []
            assert store.groups() == []
            with pytest.raises(errors.TopicNotFound):
                store.delete_topic("mine")
            with pytest.raises(errors.TopicNotFound):
                store.set_topic_queues("mine", 3)
            with pytest.raises(errors.NotFound):
                store.delete_group("g")
        with pytest.raises(errors.HandoffRejected, match=r"message\.type"):
            second.create_topic("bad", attributes={"message.type": "SONG"})


def test_calls_of_the_writer_alone_name_its_process(path: Path) -> None:
    with open_shared(path, retention=retention_on_request(72)) as first, open_shared(path) as second:
        assert first.expire() == 0
        for store in (first, second):
            store.maintain()
            assert store.apply_handoffs() == 0
        with pytest.raises(errors.NotFound):
            first.restore_removed("x")
        for call in (second.expire, lambda: second.restore_removed("x")):
            with pytest.raises(errors.ReadOnlyStore, match=f'mode="auto".*process {os.getpid()}'):
                call()


def test_role_moves_when_the_writer_closes(path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_shared(path, background=False)) for _ in range(2))
        first.append_many("t", [b"1", b"2"])
        reader = stack.enter_context(second.read("t", follow=True, timeout_s=30))
        consumer = stack.enter_context(second.consumer("g", "t", follow=True, timeout_s=30))
        assert [bytes(next(reader)), bytes(next(consumer))] == [b"1", b"1"]
        consumer.commit()
        first.close()
        assert not second.is_writer  # nobody looked: these stores have no threads
        assert second.append("t", b"3").queue_offset == 2
        assert second.is_writer
        assert [bytes(next(reader)) for _ in range(2)] == [b"2", b"3"]
        assert [bytes(next(consumer)) for _ in range(2)] == [b"2", b"3"]
        consumer.commit()
        assert [(one.offset, one.lag) for one in second.progress("g")] == [(3, 0)]
        with pytest.raises(errors.StoreClosed):
            first.append("t", b"4")


def test_maintain_takes_a_free_role(path: Path) -> None:
    with open_shared(path, background=False) as first, open_shared(path, background=False) as second:
        second.maintain()
        assert not second.is_writer
        first.close()
        second.maintain()
        assert second.is_writer


def test_keeper_takes_a_free_role_and_ends_with_its_store(path: Path) -> None:
    before = set(threading.enumerate())
    with open_shared(path) as first, open_shared(path) as second:
        first.append("t", b"1")
        with second.read("t", follow=True, timeout_s=60) as reader:
            next(reader)
            first.close()
            # Only a writer applies it, and nobody appends: so the keeper takes the role.
            HandoffFolder(path).leave(work_of_one(b"2"))
            assert bytes(next(reader)) == b"2"
            assert second._role is not None
            second._role.take()  # returns once the keeper has taken it
            assert second.is_writer
    assert set(threading.enumerate()) <= before


def work_of_one(body: bytes) -> MessagesWork:
    return MessagesWork(
        work_id=new_work_id(),
        topic="t",
        bodies=[body],
        tags=None,
        keys=None,
        properties=None,
        queues=None,
        flag=0,
        born_timestamps_ms=[1],
    )


@pytest.mark.parametrize(
    ("call", "arguments", "reason"),
    [
        ("format_disk", {}, "no call 'format_disk'"),
        ("create_topic", {"name": "u"}, "create_topic has arguments that it cannot have"),
        ("set_topic_queues", {"name": "none", "queues": 2}, "no topic 'none'"),
        ("set_topic_queues", {"name": "t", "queues": 0}, "queues is 0"),
        ("delete_topic", {"name": 5}, "delete_topic has arguments that it cannot have"),
    ],
)
def test_calls_that_cannot_be_made_are_put_aside(
    path: Path, call: str, arguments: dict[str, object], reason: str
) -> None:
    with open_shared(path, background=False) as store:
        store.append("t", b"1")
        folder = HandoffFolder(path)
        name = folder.leave(CallWork(work_id=new_work_id(), call=call, arguments=arguments))
        store.maintain()
        assert reason in str(folder.rejection(name))
        assert store.topics() == ["t"]


def test_fenced_writer_steps_down_and_appends_go_on(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_shared(path, background=False) as store:
        store.append("t", b"1")
        role = store._role
        assert role is not None
        writer = role.writer
        assert writer is not None
        with caplog.at_level(logging.WARNING):
            role.step_down(writer)
        assert "no longer the writer" in caplog.text
        with pytest.raises(errors.StoreClosed):
            writer.append("t", b"x")
        assert store.append("t", b"2").queue_offset == 1
        assert store.is_writer
        role.step_down(writer)  # an old one: nothing happens
        assert store.is_writer


def test_a_failing_role_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Store:
        raise errors.StorageError("disk")

    role = WriterRole(path, fails)
    with caplog.at_level(logging.INFO):
        role.look()
        role.look()
    assert [record.message for record in caplog.records] == [
        f"cannot become the writer of {path}: disk; tried again every 0.25 s"
    ]
    role.close()
    role.look()
    with pytest.raises(errors.StoreClosed):
        role.take()


def test_opening_without_a_store_raises(path: Path) -> None:
    with pytest.raises(errors.NotFound):
        open_shared(path, create=False)
    with open_shared(path):
        pass
    with open_shared(path, create=False) as store:
        assert store.is_writer


# --- asyncio


def test_asyncio_appends_wherever_the_role_is(path: Path) -> None:
    async def scene() -> None:
        async with (
            cometmq.aio.open(path, mode="auto", settings=SMALL) as first,
            cometmq.aio.open(path, mode="auto", settings=SMALL) as second,
        ):
            assert (first.is_writer, second.is_writer) == (True, False)
            await second.create_topic("t")
            results = await asyncio.gather(
                *(first.append("t", b"a", wait=number % 2 == 0) for number in range(20)),
                *(second.append("t", b"b") for _ in range(5)),
            )
            assert sorted(result.queue_offset for result in results) == list(range(25))
            await first.wait_durable(results[-1].end)
            await first.close()
            assert (await second.append("t", b"c")).queue_offset == 25
            assert second.is_writer
            assert (await second.append("t", b"d")).queue_offset == 26
            with pytest.raises(errors.StoreClosed):
                await first.append("t", b"e")
            assert [bytes(one) async for one in second.read("t", start=25)] == [b"c", b"d"]

    asyncio.run(scene())


# --- Processes


def test_a_forked_child_opens_the_store_itself(path: Path) -> None:
    with open_shared(path) as store:
        store.append("t", b"from the parent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for call in (lambda: store.append("t", b"x"), store.maintain, lambda: store.create_topic("u")):
                    with pytest.raises(errors.StoreClosed, match=r'opened by the parent process.*"auto"'):
                        call()
                assert store.closed
                assert not store.is_writer
                store.close()
                with open_shared(path) as own:
                    assert not own.is_writer
                    own.append("t", b"from the child")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert store.is_writer
        assert bodies(store) == [b"from the parent", b"from the child"]


def test_killed_writers_lose_nothing_and_the_role_moves(path: Path) -> None:
    """Processes that start at once on an empty directory append until the last of them is killed."""
    with sharers(path, 3) as running:
        ended: list[Sharer] = []
        while running:
            holder = 0
            while holder not in running:
                for one in running.values():
                    one.read(5)  # the role has moved: each of them goes on
                holder = lock_holder(path)
            ended.append(running.pop(holder))
            ended[-1].kill()
    with open_small(path) as store:
        stored = Counter(bytes(message).decode() for message in store.read("t"))
    assert max(stored.values()) == 1
    assert [body for one in ended for body in one.acknowledged if body not in stored] == []


# --- The view


def test_view_that_retention_has_passed_is_reopened(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_shared(path, background=False, retention=retention_on_request(72)) as store:
        store.append("t", b"first")
        with store.read("t", follow=True, timeout_s=0) as reader:
            next(reader)
            expire_what_was_read(store, path)
            with pytest.raises(errors.StoreClosed):
                store._handle.refresh()
            with caplog.at_level(logging.WARNING):
                store.maintain()
            assert "was reopened" in caplog.text
            with pytest.raises(errors.StoreClosed):
                next(reader)
        store.append("t", b"last")
        with store.consumer("g", "t") as consumer:
            *_, last = consumer
            assert bytes(last) == b"last"
            consumer.commit()
        assert store.progress("g")[0].lag == 0
        with open_shared(path, background=False) as other:
            store.close()
            assert other.append("t", b"next").queue_offset == last.queue_offset + 1
    assert store.closed


def test_append_that_waits_goes_on_where_its_view_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer may cut the tail of the one before it, which the view has read."""
    real = HandoffClient._find_marked
    failures = [errors.StoreClosed("the view has ended")]

    def ends_once(
        client: HandoffClient, work_id: str, count: int, log_end: int, deadline: float | None
    ) -> list[Message]:
        if failures:
            raise failures.pop()
        return real(client, work_id, count, log_end, deadline)

    monkeypatch.setattr(HandoffClient, "_find_marked", ends_once)
    with open_shared(path), open_shared(path) as other:
        assert other.hand_off("t", [b"1"]).wait(600).queue_offsets.tolist() == [0]
    assert failures == []


def test_appended_messages_are_found_before_the_end_of_a_view_that_has_ended(path: Path) -> None:
    """A writer cuts the tail that the view had read, and appends the messages where it cut: before the view's end."""
    with open_shared(path) as writer, open_shared(path) as other:
        handed = other.hand_off("t", [b"1", b"2"])
        handed.wait(600)
        client, ended = other._client, writer._handle
        assert client is not None
        for end in (handed._log_end, writer.info().log_end, writer.info().log_end - 1, 1 << 40):
            found = client.find_marked(handed.work_id, 2, (ended, end), time.monotonic() + 600)
            assert [bytes(message.body) for message in found] == [b"1", b"2"]


def test_view_that_cannot_be_reopened_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_shared(path, background=False, retention=retention_on_request(72)) as store:
        expire_what_was_read(store, path)
        with monkeypatch.context() as full:
            full.setattr(store, "_open_topic_book", no_descriptor)
            with pytest.raises(errors.StorageError):
                store.maintain()
        store.maintain()
        assert store._client is not None
        assert store._client._handle is store._handle
        store.append("t", b"last")
        assert bodies(store)[-1] == b"last"


def test_calls_on_a_view_that_has_ended_hold_up_nobody(path: Path) -> None:
    began, may_end = threading.Event(), threading.Event()

    def verify(view: StoreHandle) -> None:
        with view.hold():
            began.set()
            may_end.wait()

    with open_shared(path, background=False, retention=retention_on_request(72)) as store:
        call = threading.Thread(target=verify, args=(store._handle,))
        call.start()
        began.wait()
        try:
            expire_what_was_read(store, path)
            store.maintain()
            store.append("t", b"last")
            store.close()
        finally:
            may_end.set()
            call.join()


def no_descriptor(handle: StoreHandle) -> NoReturn:
    raise errors.StorageError("no descriptor")


def expire_what_was_read(store: Store, path: Path) -> None:
    store.append("t", b"0")
    assert bodies(store)[-1] == b"0"
    store.append_many("t", [b"x" * 100_000] * 100)
    role = store._role
    assert role is not None
    assert role.writer is not None
    role.step_down(role.writer)  # the close makes a durable point: only what is before it expires
    old = time.time() - 100 * 3600
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (old, old))
    role.take()
    assert store.expire() > 5


def test_keeper_follows_the_log(path: Path) -> None:
    """A process that only appends reads nothing itself."""
    with open_shared(path) as store:
        followed = threading.Event()
        keeper = store._keeper
        assert keeper is not None
        keeper._keep_view = lambda: followed.set  # type: ignore[assignment]
        assert followed.wait(60)


def test_keepers_outlive_every_failure(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Store:
        raise RuntimeError("can't start new thread")

    role = WriterRole(path, fails)
    with caplog.at_level(logging.ERROR):
        role.look()
    assert "can't start new thread" in caplog.text


# --- Flushes


@pytest.mark.parametrize("mode", ["auto", "r"])
def test_flush_is_the_writers(path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under asynchronous flush an append through the door is not on disk when it returns."""
    flushed: list[int] = []
    with open_shared(path) as writer, open_shared(path, mode=mode) as other:
        assert writer._role is not None
        inner = writer._role.writer
        assert inner is not None
        if mode == "auto":
            other.flush()  # nothing was appended, and the writer is not asked
        other.append("t", b"1")
        end = inner.info().log_end
        real = CALLS["flush"]

        def flush(books: Books) -> None:
            real(books)
            flushed.append(inner._handle.info()["flushed"])

        monkeypatch.setattr(handoff, "CALLS", {**CALLS, "flush": flush})
        other.flush()
        assert flushed[0] >= end


def test_flush_after_a_failed_write_raises_once(path: Path) -> None:
    with open_shared(path, background=False) as store:
        store.append("t", b"1")
        role = store._role
        assert role is not None
        assert role.writer is not None
        role.step_down(role.writer)
        with pytest.raises(errors.StoreFenced, match="may be lost"):
            store.flush()
        store.append("t", b"2")
        store.flush()


def test_flush_that_the_role_moves_under_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_shared(path, background=False) as store:
        store.append("t", b"1")
        role = store._role
        assert role is not None
        writer = role.writer
        assert writer is not None

        def moves() -> Store:
            role.step_down(writer)
            return writer

        monkeypatch.setattr(store, "_appender", moves)
        with pytest.raises(errors.StoreFenced, match="may be lost"):
            store.flush()


def test_calls_that_the_role_moves_under_go_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_shared(path, background=False, retention=retention_on_request(72)) as store:
        store.append("t", b"1")
        role = store._role
        assert role is not None
        writer = role.writer
        assert writer is not None
        role.step_down(writer)
        monkeypatch.setattr(store, "_appender", lambda: writer)
        assert store.info().path == path
        assert not store.opening().created
        for call in (store.expire, lambda: store.restore_removed("x")):
            with pytest.raises(errors.ReadOnlyStore, match="shared"):
                call()
        monkeypatch.setattr(role, "look", lambda: None)
        monkeypatch.setattr(role, "_writer", writer)
        store.maintain()
        monkeypatch.setattr(role, "_writer", None)
