"""Checks: progress never is ahead of the log: after a power loss, a cut, a left commit; commits survive a kill, are
seen at once by other processes, and give way to a Java broker that ran in between.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq import Store, errors
from cometmq.store import core
from cometmq.store.handoff import HandoffApplier
from cometmq.store.handoff_files import CommitWork, HandoffFolder, StagedWork, new_work_id
from cometmq.store.repairing import repair
from cometmq.store.staged_files import StagedFolder
from cometmq.store_config.consumer_offsets import ConsumerOffsets
from cometmq.store_config.delay_offsets import DelayOffsets
from cometmq.store_config.file_ops import SystemFileOps
from cometmq.store_config.order_info import OrderedBatch, OrderedQueue, OrderInfo
from support.small_store import SMALL, open_small, spoil

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def consumed(store: Store, group: str = "g", *, commit: bool = True) -> list[bytes]:
    with store.consumer(group, "t") as consumer:
        found = [bytes(message) for message in consumer]
        if commit:
            consumer.commit()
    return found


def in_json(path: Path, group: str = "g", topic: str = "t") -> dict[int, int]:
    """Return the offsets that a Java broker would take."""
    offsets = ConsumerOffsets(path / "config")
    offsets.load()
    return offsets.queues(group, topic)


def offsets(store: Store, group: str = "g", topic: str = "t") -> dict[int, int]:
    return {found.queue_id: found.offset for found in store.progress(group, topic)}


def journal(path: Path) -> Path:
    return path / "cometmq" / "progress"


def as_killed(store: Store, image: Path) -> Path:
    """Copy what a process that dies now leaves."""
    shutil.copytree(store.path, image, ignore=shutil.ignore_patterns("wake"))
    return image


def lose_power(durable: Path, store: Store) -> Path:
    """Put into an older image of a store the progress that it has now: the kernel wrote that, and not the log."""
    shutil.copytree(store.path / "config", durable / "config", dirs_exist_ok=True)
    if journal(store.path).exists():
        shutil.copy(journal(store.path), journal(durable))
    return durable


# --- Power losses


@pytest.mark.parametrize("json_written", [False, True])
def test_a_power_loss_under_async_flush_skips_no_new_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, json_written: bool
) -> None:
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("old", 50))
        store.handle.flush()
        durable = as_killed(store, tmp_path / "image")
        store.append_many("t", bodies("lost", 50))
        assert len(consumed(store)) == 100
        if json_written:
            store._group_book.persist()
        lose_power(durable, store)
    with caplog.at_level(logging.WARNING), open_small(durable) as store:
        assert offsets(store) == {0: 50}
        assert in_json(durable) == {0: 50}, "a Java broker that is started next takes the file as it is"
        store.append_many("t", bodies("new", 60))
        assert consumed(store) == bodies("new", 60)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "cometmq.progress"]
    assert line == "progress of group g in topic t, queue 0 is past the queue's end: set back from 100 to 50"


def test_the_json_is_written_behind_the_log(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("m", 50))
        consumed(store)
        flushed = []
        real = store._group_book._journal._cover
        store._group_book._journal._cover = lambda: flushed.append(in_json(store.path)) or real()  # type: ignore[func-returns-value]
        store._group_book.persist()
        assert flushed == [{}], "flushed before the file was written"
        assert in_json(store.path) == {0: 50}


# --- Cuts


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_cut_sets_progress_back(tmp_path: Path, flush: str) -> None:
    path = tmp_path / "store"
    with open_small(path, flush=flush) as store:
        store.append_many("t", bodies("m", 100))
        assert len(consumed(store)) == 100
    spoil(path, "t", 0, 40)
    report = repair(path, cut_damage=True, settings=SMALL)
    assert report.cut_at is not None
    assert in_json(path) == {0: 40}, "a Java broker that is started next takes the file as it is"
    with open_small(path) as store:
        store.append_many("t", bodies("new", 60))
        assert consumed(store) == bodies("new", 60)


def test_cut_forgets_commits_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def work(key: str) -> StagedWork:
        return StagedWork(
            work_id=new_work_id(),
            topic="t",
            folder="job",
            files=(),
            born_timestamp_ms=0,
            topic_queues=1,
            done_key=key,
            done_number=1,
        )

    with open_small(path) as store:
        store.append_many("t", bodies("m", 50))
        StagedFolder(path).set_done(work("before"), store.info().log_end)
        store.append_many("t", bodies("m", 50))
        StagedFolder(path).set_done(work("behind"), store.info().log_end)
    spoil(path, "t", 0, 60)
    repair(path, cut_damage=True, settings=SMALL)
    assert StagedFolder(path).is_done(work("before"))
    assert not StagedFolder(path).is_done(work("behind"))


# --- What a broker keeps besides


def test_every_opening_for_writing_sets_a_brokers_progress_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    batch = OrderedBatch(pop_ms=1, used_ms=1, acked=0b101, offsets=(3, 4, 9))
    with open_small(path) as store:
        for topic, queue, count in (("SCHEDULE_TOPIC_XXXX", 2, 4), ("t", 0, 5), ("rmq_sys_wheel_timer", 0, 2)):
            store.handle.append_many(topic, [b"m"] * count, queue=queue, queue_count=3)
    delays = DelayOffsets(path / "config")
    delays.merge({3: 9, 4: 7, 5: 0}, versions=1)
    delays.persist()
    ordered = OrderInfo(path / "config")
    ordered.replace([OrderedQueue("g", "t", 0, batch), OrderedQueue("g", "gone", 0, batch)])
    ordered.persist()
    check = path / "config" / "timercheck"
    checksum = b"cmqtick1" + struct.pack(">qqI", 16, 17, 18)
    check.write_bytes((struct.pack(">7q", 11, 12, 8, 1, 15, 16, 17) + bytes(8) + checksum).ljust(4096, b"\0"))
    with caplog.at_level(logging.WARNING):
        open_small(path, mode="r").close()
        assert caplog.records == []
        open_small(path).close()
    delays.load()
    assert delays.all() == {3: 4, 4: 0, 5: 0}
    ordered.load()
    assert ordered.all() == [OrderedQueue("g", "t", 0, replace(batch, offsets=(3, 4), acked=1))]
    left = struct.pack(">7q", 11, 12, 2, 1, 15, 16, 17) + bytes(16) + checksum[8:]
    assert check.read_bytes() == left.ljust(4096, b"\0")
    assert [record.getMessage() for record in caplog.records] == [
        "progress of delay level 3 is past the end of its queue: set back from 9 to 4",
        "progress of delay level 4 is past the end of its queue: set back from 7 to 0",
        "ordered batch of group g in topic t, queue 0 is past the queue's end at 5: 2 of its 3 messages stay",
        "ordered batch of group g in topic gone, queue 0 is past the queue's end at 0: 0 of its 3 messages stay",
        "progress of timers is past the end of their queue: set back from 8 to 2",
    ]
    caplog.clear()
    open_small(path).close()
    assert caplog.records == []


# --- Commits that were left


def test_a_left_commit_does_not_pass_the_queues_end(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("t", bodies("m", 50))
    left = CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, 100), ("none", 3, 7)])
    HandoffFolder(path).leave(left)
    with open_small(path) as store:
        assert offsets(store) == {0: 50}
        assert offsets(store, topic="none") == {3: 0}
        store.append_many("t", bodies("new", 60))
        assert consumed(store) == bodies("new", 60)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_left_commit_is_on_disk_when_its_file_goes(tmp_path: Path, flush: str) -> None:
    """It was durable when it was left, whatever the writer's flush mode."""
    with open_small(tmp_path / "store", flush=flush, background=False) as store:
        store.append_many("t", bodies("m", 5))
        for number in range(1, 4):
            HandoffFolder(store.path).leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, number)]))
            with open_small(store.path, mode="r") as reader:
                assert offsets(reader) == {0: number}, "seen as made"
            store.apply_handoffs()
            assert in_json(store.path) == {0: number} or flush == "sync"
            assert offsets(store) == {0: number}


def test_a_left_commit_that_was_set_before_a_crash_is_applied_again(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("m", 5))
        folder = HandoffFolder(store.path)
        for before, offset in ((None, 2), (None, 2), (2, 4)):
            folder.leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, offset)], expected=[before]))
        assert store.apply_handoffs() == 3
        assert offsets(store) == {0: 4}
        folder.leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, 3)], expected=[2]))
        assert store.apply_handoffs() == 0
        assert offsets(store) == {0: 4}


def test_commits_of_a_loop_that_a_crash_has_applied_are_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one changed the progress that the first one expected."""
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("m", 5))
        folder = HandoffFolder(store.path)
        left = [
            folder.leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, offset)], expected=[before]))
            for before, offset in ((None, 2), (2, 4))
        ]
        with monkeypatch.context() as crash:
            crash.setattr(HandoffApplier, "_end_round", ends)
            with pytest.raises(OSError, match="ended"):
                store.apply_handoffs()
    with open_small(store.path, background=False) as store:
        assert offsets(store) == {0: 4}
        assert not any(map(folder.is_waiting, left))
        assert [folder.rejection(name) for name in left] == [None, None]


def ends(applier: HandoffApplier, finished: Sequence[str]) -> None:
    raise OSError("the process ended")


# --- Queues that do not exist


def test_progress_in_a_queue_that_does_not_exist_begins_with_its_first_message(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append("t", b"m")
    table = ConsumerOffsets(path / "config")
    table.commit("g", "later", 0, 1_000)
    table.merge([], versions=1)
    table._table["later@g@broadcast"] = {0: 1_000}
    table.persist()
    with open_small(path) as store:
        store.append_many("later", bodies("m", 3))
        with store.consumer("g", "later", start="latest") as consumer:
            assert [bytes(message) for message in consumer] == bodies("m", 3)
    table.load()
    assert table.by_key("later@g@broadcast") == {0: 1_000}, "a broadcasting group's is its clients'"


# --- Commits


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_killed_writers_commits_are_there(tmp_path: Path, flush: str) -> None:
    with open_small(tmp_path / "store", flush=flush) as store:
        store.append_many("t", bodies("m", 20))
        with store.consumer("g", "t") as consumer:
            for number in range(1, 11):
                next(consumer)
                consumer.commit()
                image = as_killed(store, tmp_path / f"image-{number}")
                with open_small(image) as again:
                    assert offsets(again) == {0: number}
                assert not journal(image).exists()
                assert in_json(image) == {0: number}


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_other_processes_see_commits_at_once(tmp_path: Path, flush: str) -> None:
    with open_small(tmp_path / "store", flush=flush) as store:
        store.append_many("t", bodies("m", 30))
        with open_small(tmp_path / "store", mode="r") as reader, store.consumer("g", "t") as consumer:
            for number in range(1, 31):
                next(consumer)
                consumer.commit()
                assert offsets(reader) == {0: number}
                if number % 7 == 0:
                    store._group_book.persist()
                    assert offsets(reader) == {0: number}
                    assert in_json(store.path) == {0: number}
        with open_small(tmp_path / "store", mode="r") as reader:
            store.close()
            assert offsets(reader) == {0: 30}


def test_progress_in_a_retry_topic_before_its_first_message(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x")
        store.set_progress("g", "%RETRY%g", 0, 0)
        store.commit_progress("g", {("t", 0): 1, ("%RETRY%g", 0): 0})
        assert offsets(store, topic="%RETRY%g") == {0: 0}
        for topic, offset in (("%RETRY%g", 1), ("%RETRY%h", 0), ("nope", 0)):
            with pytest.raises(errors.TopicNotFound, match="there is no topic"):
                store.set_progress("g", topic, 0, offset)


def test_a_reader_beside_a_busy_writer_never_sees_progress_go_back(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("m", 2_000))
        committed = 0

        def commit() -> None:
            nonlocal committed
            for number in range(1, 2_001):
                store.set_progress("g", "t", 0, number)
                committed = number
                if number % 40 == 0:
                    store._group_book.persist()

        writer = threading.Thread(target=commit)
        writer.start()
        with open_small(tmp_path / "store", mode="r") as reader:
            while writer.is_alive():
                before = committed
                assert offsets(reader).get(0, 0) >= before
        writer.join()


def test_the_json_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("m", 3))
        consumed(store)
        store.maintain()
        assert in_json(store.path) == {}
        monkeypatch.setattr(core, "_KEEP_PROGRESS_S", 0.0)
        store.maintain()
        assert in_json(store.path) == {0: 3}


def test_full_journal_restarts(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", background=False) as store:
        store.append_many("t", bodies("m", 5))
        for number in range(30_000):
            store.set_progress("g", "t", 0, number % 5)
        assert journal(store.path).stat().st_size <= 1 << 20
        with open_small(as_killed(store, tmp_path / "image")) as again:
            assert offsets(again) == {0: 29_999 % 5}


def test_a_commit_larger_than_the_journal_is_whole(tmp_path: Path) -> None:
    many = {("t" * 100, queue): 0 for queue in range(20_000)}
    with open_small(tmp_path / "store", background=False) as store:
        store._commit_progress("g", many)
        with open_small(as_killed(store, tmp_path / "image")) as again:
            assert len(offsets(again, topic="t" * 100)) == 20_000


def test_a_journal_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", flush="sync") as store:
        store.append_many("t", bodies("m", 9))
        for number in range(1, 4):
            store.set_progress("g", "t", 0, number)
        log = store._group_book._journal._log
        assert log is not None
        log.remove()  # as after a failed sync: nothing more is taken
        with pytest.raises(errors.StorageError):
            store.set_progress("g", "t", 0, 4)
        for number in range(5, 8):
            store.set_progress("g", "t", 0, number)
            with open_small(as_killed(store, tmp_path / f"image-{number}")) as again:
                assert offsets(again) == {0: number}


class FailingOps(SystemFileOps):
    """Files of which one operation fails, before or after it has had its effect."""

    def __init__(self, nth: int, *, done: bool) -> None:
        self.left, self.done = nth, done

    def _count(self, operation: Callable[[], None]) -> None:
        self.left -= 1
        if self.left != 0 or self.done:
            operation()
        if self.left == 0:
            raise OSError(errno.EIO, "a fault")

    def write_synced(self, path: Path, data: bytes) -> None:
        self._count(lambda: super(FailingOps, self).write_synced(path, data))

    def rename(self, source: Path, target: Path) -> None:
        self._count(lambda: super(FailingOps, self).rename(source, target))

    def sync_folder(self, folder: Path) -> None:
        self._count(lambda: super(FailingOps, self).sync_folder(folder))


@pytest.mark.filterwarnings("ignore:.*consumerOffset.json is missing; its .bak was used:RuntimeWarning")
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("nth", range(1, 6))
def test_commits_after_a_json_that_could_not_be_written_are_there(tmp_path: Path, nth: int, done: bool) -> None:
    """It is not known which JSON is there, so the journal is not used until one was written."""
    with open_small(tmp_path / "store", flush="sync") as store:
        store.append_many("t", bodies("m", 20))
        for number in range(1, 4):
            store.set_progress("g", "t", 0, number)
        store._group_book.persist()
        store.set_progress("g", "t", 0, 4)
        ops = FailingOps(nth, done=done)
        store._group_book._offsets._file._ops = ops
        try:
            store._group_book.persist()
        except errors.StorageError:
            assert ops.left == 0
        for number in range(5, 8):
            image = as_killed(store, tmp_path / f"image-{number}")
            with open_small(image) as again:
                assert offsets(again) == {0: number - 1}
            store.set_progress("g", "t", 0, number)


def test_threads_commit_beside_each_other(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", flush="sync") as store:
        store.append_many("t", bodies("m", 100))

        def commit(group: str) -> None:
            for number in range(1, 51):
                store.set_progress(group, "t", 0, number)

        threads = [threading.Thread(target=commit, args=(f"g{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with open_small(as_killed(store, tmp_path / "image")) as again:
            assert {group: offsets(again, group) for group in again.groups()} == {f"g{n}": {0: 50} for n in range(4)}


def test_nothing_is_committed_after_a_close(tmp_path: Path) -> None:
    store = open_small(tmp_path / "store")
    store.append("t", b"m")
    consumer = store.consumer("g", "t")
    next(consumer)
    consumer.commit()
    store.close()
    assert not journal(store.path).exists()
    with pytest.raises(errors.StoreClosed):
        store.set_progress("g", "t", 0, 0)
    assert in_json(store.path) == {0: 1}


# --- Beside Java


def as_java_broker(path: Path, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Load, move and write progress as a broker does that knows nothing of the journal."""
    table = ConsumerOffsets(path / "config")
    table.load()
    table.commit(group, topic, queue_id, offset)
    table.merge([], versions=1)
    table.persist()


@pytest.mark.parametrize("moved_to", [1, 9])
def test_a_java_brokers_progress_is_not_overruled(tmp_path: Path, moved_to: int) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", bodies("m", 20))
        store.set_progress("g", "t", 0, 3)
        store._group_book.persist()
        store.set_progress("g", "t", 0, 5)
        image = as_killed(store, tmp_path / "image")
    assert journal(image).exists()
    as_java_broker(image, "g", "t", 0, moved_to)
    with open_small(image, mode="r") as reader:
        assert offsets(reader) == {0: moved_to}
    with open_small(image) as again:
        assert offsets(again) == {0: moved_to}
    assert not journal(image).exists()


def test_deleted_progress_does_not_come_back(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", bodies("m", 20))
        store.set_progress("g", "t", 0, 3)
        store.set_progress("h", "t", 0, 3)
        store.delete_group("g")
        with open_small(as_killed(store, tmp_path / "image-1")) as again:
            assert again.groups() == ["h"]
        store.delete_topic("t")
        with open_small(as_killed(store, tmp_path / "image-2")) as again:
            assert again.progress() == []


def test_a_damaged_journal_is_used_as_far_as_it_is_whole(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", bodies("m", 20))
        for number in range(1, 9):
            store.set_progress("g", "t", 0, number)
        image = as_killed(store, tmp_path / "image")
    content = journal(image).read_bytes()
    for at in range(0, len(content), 3):
        copy = tmp_path / "copy"
        shutil.copytree(image, copy)
        journal(copy).write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        with open_small(copy) as again:
            assert offsets(again).get(0, 0) in range(9)
        shutil.rmtree(copy)


# --- Kills

_COMMITTER = """
import sys
import cometmq
store = cometmq.open(sys.argv[1], flush=sys.argv[2], settings={settings!r})
offset = max((found.offset for found in store.progress("g")), default=0)
while True:
    end = store.append_many("t", [b"m"] * 3).queue_offsets[-1] + 1
    while offset < end:
        offset += 1
        store.set_progress("g", "t", 0, offset)
        print(offset, flush=True)
"""


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_kills_lose_no_commit(tmp_path: Path, flush: str) -> None:
    rng = random.Random(SEED)
    acknowledged = 0
    for _ in range(6):
        code = _COMMITTER.format(settings=SMALL)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "store"), flush], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for _ in range(rng.randrange(1, 60)):
                acknowledged = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines(keepends=True)
            acknowledged = max([acknowledged, *(int(line) for line in rest if line.endswith("\n"))])
        with open_small(tmp_path / "store", mode="r") as reader:
            assert offsets(reader)[0] >= acknowledged
        with open_small(tmp_path / "store") as store:
            found = offsets(store)[0]
            assert acknowledged <= found <= store.queues("t")[0].max_offset
        acknowledged = found


# --- Histories


class History:
    """A store, and what its progress may be."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.root, self.rng = path, rng
        self.path = path / "0"
        self.images = 0
        self.committed: dict[str, int] = {}
        self.durable_image: Path | None = None
        self.store = open_small(self.path, background=False)
        self.store.append("t", b"first")

    def end(self) -> int:
        return self.store.queues("t")[0].max_offset

    def fresh(self) -> Path:
        self.images += 1
        return self.root / str(self.images)

    def append(self) -> None:
        self.store.append_many("t", [b"m"] * self.rng.randrange(1, 20))

    def commit(self) -> None:
        group = self.rng.choice("abc")
        self.committed[group] = self.rng.randrange(self.end() + 1)
        self.store.set_progress(group, "t", 0, self.committed[group])

    def write_json(self) -> None:
        self.flush()
        self.store._group_book.persist()

    def flush(self) -> None:
        """From here on a power loss takes no message that is there now."""
        self.store.handle.flush()
        if self.durable_image is not None:
            shutil.rmtree(self.durable_image)
        self.durable_image = as_killed(self.store, self.fresh())

    def reopen(self, path: Path) -> None:
        self.store.close()
        self.path = path
        self.durable_image = None
        self.store = open_small(path, background=False)

    def close(self) -> None:
        self.reopen(self.path)

    def kill(self) -> None:
        self.reopen(as_killed(self.store, self.fresh()))

    def lose_power(self) -> None:
        """The journal and the JSON are as they are, the log as it was flushed last."""
        if self.durable_image is not None:
            self.reopen(lose_power(self.durable_image, self.store))
            self.committed = {group: min(offset, self.end()) for group, offset in self.committed.items()}

    def run_java(self) -> None:
        """A kill, and a broker that moves one group and knows of the JSON alone."""
        image = as_killed(self.store, self.fresh())
        table = ConsumerOffsets(image / "config")
        table.load()
        self.committed = {group: table.queues(group, "t")[0] for group in "abc" if table.queues(group, "t")}
        group = self.rng.choice("abc")
        self.committed[group] = self.rng.randrange(self.end() + 1)
        as_java_broker(image, group, "t", 0, self.committed[group])
        self.reopen(image)

    def check(self) -> None:
        found = {group: offsets(self.store, group).get(0) for group in "abc"}
        assert {group: offset for group, offset in found.items() if offset is not None} == self.committed
        with open_small(self.path, mode="r") as reader:
            assert {group: offsets(reader, group)[0] for group in self.committed} == self.committed
        assert all(offset <= self.end() for offset in json_offsets(self.path).values())


def json_offsets(path: Path) -> dict[str, int]:
    table = ConsumerOffsets(path / "config")
    table.load()
    return {group: offset for group, _, _, offset in table.all()}


def test_histories(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for round_number in range(4):
        history = History(tmp_path / f"round-{round_number}", rng)
        steps = [history.append] * 5 + [history.commit] * 10 + [history.write_json] * 2 + [history.flush] * 2
        steps += [history.close, history.kill, history.lose_power, history.run_java]
        for _ in range(60):
            rng.choice(steps)()
            history.check()
        history.store.close()
