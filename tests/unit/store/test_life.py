"""Checks: opening and closing, also under running calls; one writer; forks; forgotten closes; nothing leaks."""

from __future__ import annotations

import errno
import gc
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq
from cometmq import Retention, Store, errors
from cometmq.store.core import log_overwrites
from cometmq.store.inspection import inspect
from cometmq.store.verification import Severity, verify
from support.any_disk import retention_on_request
from support.small_store import SMALL, open_small


def test_appended_messages_are_there_again(tmp_path: Path) -> None:
    for number in range(3):
        with open_small(tmp_path / "store") as store:
            store.append("t", b"%d" % number, keys=f"k{number}")
            assert store.opening().created == (number == 0)
            assert not store.opening().was_unclean
    with open_small(tmp_path / "store", mode="r") as store:
        assert [bytes(message) for message in store.read("t")] == [b"0", b"1", b"2"]
        assert [bytes(message) for message in store.find("t", "k1")] == [b"1"]


def test_closing_twice_and_calls_afterwards(tmp_path: Path) -> None:
    store = open_small(tmp_path / "store")
    store.append("t", b"x")
    reader = store.read("t", follow=True)
    store.close()
    store.close()
    assert store.closed
    assert reader.closed
    assert "closed" in repr(store)
    calls = [
        lambda: store.append("t", b"x"),
        lambda: store.append("new", b"x"),
        lambda: store.append_many("t", [b"x"]),
        lambda: store.append_many("t", []),
        lambda: store.read("t"),
        lambda: store.get("t", 0, 0),
        lambda: store.find("t", "k"),
        lambda: store.topics(),
        lambda: store.info(),
        lambda: store.flush(),
        lambda: store.wait(0),
        lambda: store.consumer("g", "t"),
        lambda: store.set_progress("g", "t", 0, 1),
        lambda: store.apply_handoffs(),
        lambda: next(reader),
        lambda: reader.fetch(),
    ]
    for call in calls:
        with pytest.raises(errors.StoreClosed):
            call()
    reader.close()


def test_closing_inside_a_call_that_holds_the_store_is_refused(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x")
        with store.handle.hold(), store.handle.hold():
            for close in (store.close, store.handle.close):
                with pytest.raises(errors.StoreBusy, match="inside a call"):
                    close()
            thread = threading.Thread(target=store.close)  # another thread waits for the end, and is no mistake
            thread.start()
            while not store.closed:
                time.sleep(0.001)
        thread.join()
        assert store.closed
    store = open_small(tmp_path / "store")
    with pytest.raises(errors.StoreBusy):
        verify(store, on_progress=lambda done, total: store.close() is None)
    assert store.append("t", b"x").queue_offset == 1
    store.close()
    assert store.closed


def test_closing_ends_calls_that_wait(tmp_path: Path) -> None:
    store = open_small(tmp_path / "store")
    store.append("t", b"x")
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            list(store.follow("t"))
        except errors.StoreClosed as error:
            ended.append(error)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)  # so that most of them wait; the test holds for any of them, whenever it comes
    store.close()
    for thread in threads:
        thread.join(10)
    assert len(ended) == 3


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_close_races_appends_and_reads(tmp_path: Path, flush: str) -> None:
    """Every append either is in the store or was refused; nothing crashes."""
    for round_number in range(5):
        path = tmp_path / f"store-{round_number}"
        store = open_small(path, flush=flush)
        store.create_topic("t", queues=1)
        done: list[int] = []

        def append(store: Store = store, done: list[int] = done) -> None:
            try:
                while True:
                    done.append(store.append("t", b"x").queue_offset)
                    done.extend(store.append_many("t", [b"x"] * 10).queue_offsets.tolist())
            except errors.StoreClosed:
                return

        def read(store: Store = store) -> None:
            try:
                while True:
                    sum(len(message.body) for message in store.read("t"))
            except errors.StoreClosed:
                return

        threads = [threading.Thread(target=target) for target in (append, append, read)]
        for thread in threads:
            thread.start()
        time.sleep(0.01 * round_number)
        store.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        with open_small(path, mode="r") as again:
            assert len(list(again.read("t"))) == len(done)
        assert sorted(done) == list(range(len(done)))


# --- One writer


def test_a_second_writer_gets_the_first_ones_pid(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        with pytest.raises(errors.StoreLocked) as caught:
            open_small(tmp_path / "store")
        assert caught.value.holder_pid == os.getpid()
        assert caught.value.retriable
        assert str(os.getpid()) in str(caught.value)
        with open_small(tmp_path / "store", mode="r") as reader:
            assert reader.info().writer_alive
            assert reader.info().writer_is_ours
        # The lock is still held: closing the second handle must not drop it.
        code = f"import cometmq; cometmq.open({str(tmp_path / 'store')!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "StoreLocked" in other.stderr
        store.append("t", b"still the writer")


def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    code = f"""
import sys, cometmq
with cometmq.open({str(tmp_path / "store")!r}, flush="async", settings={SMALL!r}) as store:
    store.append("t", b"first")
    print("ready", flush=True)
    for line in sys.stdin:
        store.append_many("t", [b"%d" % number for number in range(int(line))])
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    with open_small(tmp_path / "store", mode="r") as store:
        reader = store.read("t", follow=True, timeout_s=30)
        assert bytes(next(reader)) == b"first"
        child.stdin.write("5000\n")
        child.stdin.flush()
        assert [int(bytes(next(reader))) for _ in range(5000)] == list(range(5000))
        child.stdin.close()
        assert child.wait(30) == 0
        child.stdout.close()
        assert reader.fetch() == []


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    code = f"""
import os, cometmq
store = cometmq.open({str(tmp_path / "store")!r}, flush="async", settings={SMALL!r})
number = 0
while True:
    store.append("t", b"%d" % number)
    os.write(1, b"%d\\n" % number)
    number += 1
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(500)]
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines(keepends=True)
    child.wait()
    child.stdout.close()
    with open_small(tmp_path / "store") as store:
        assert store.opening().was_unclean
        found = [int(bytes(message)) for message in store.read("t")]
        acknowledged = int(lines[-1])
        assert found == list(range(len(found)))
        assert len(found) > acknowledged
        assert store.append("t", b"life goes on").queue_offset == len(found)


# --- Wrong places


def test_missing_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").write_text("x")
    with pytest.raises(errors.NotAStore):
        cometmq.open(tmp_path / "other")
    with pytest.raises(errors.Error):
        cometmq.open(tmp_path / "file")
    with pytest.raises(errors.NotFound):
        cometmq.open(tmp_path / "missing", mode="r")
    with pytest.raises(errors.NotFound):
        cometmq.open(tmp_path / "missing", create=False)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(errors.InvalidArgument):
        cometmq.open(tmp_path / "new", mode="w")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument):
        cometmq.open(tmp_path / "new", flush="sometimes")
    with pytest.raises(errors.InvalidArgument):
        cometmq.open(tmp_path / "new", settings={"mappedFileSizeComitLog": 5})
    with pytest.raises(errors.InvalidArgument):
        cometmq.open(tmp_path / "new", default_queues=0)
    with pytest.raises(errors.InvalidArgument):
        cometmq.open(tmp_path / "new", settings={"storeType": "defaultRocksDB"})
    with pytest.raises(errors.StorageError):
        cometmq.open(tmp_path / "new", config=tmp_path / "no.properties")
    assert not (tmp_path / "new").exists()


def test_sizes_that_contradict_the_files(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x")
    with pytest.raises(errors.SettingConflict):
        cometmq.open(tmp_path / "store", segment_bytes=2 << 20)


def test_reader_sees_the_state_of_the_writer(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", flush="async") as writer:
        writer.append("t", b"x")
        with open_small(tmp_path / "store", mode="r") as reader:
            info = reader.info()
            assert (info.read_only, info.flush, info.flushed) == (True, None, None)
            assert (info.writer_alive, info.log_end) == (True, writer.info().log_end)
        assert writer.info().flush is cometmq.FlushMode.ASYNC


def test_settings_from_files(tmp_path: Path) -> None:
    (tmp_path / "broker.properties").write_text("mappedFileSizeCommitLog=1048576\nflushDiskType=ASYNC_FLUSH\n")
    (tmp_path / "cometmq.toml").write_text(
        '[store]\nflush_disk_type = "SYNC_FLUSH"\nmapped_file_size_commit_log_bytes = 2097152\n'
    )
    with cometmq.open(tmp_path / "a", config=tmp_path / "broker.properties") as store:
        assert (store.flush_mode.value, store.info().segment_bytes) == ("async", 1 << 20)
    with cometmq.open(tmp_path / "b", config=tmp_path / "cometmq.toml") as store:
        assert (store.flush_mode.value, store.info().segment_bytes) == ("sync", 2 << 20)
    with cometmq.open(tmp_path / "c", config=tmp_path / "broker.properties", flush="sync") as store:
        assert store.flush_mode.value == "sync"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    with pytest.raises(errors.PermissionDenied):
        cometmq.open(tmp_path / "store")


def test_read_only_store_refuses_writes(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x")
    with open_small(tmp_path / "store", mode="r") as store:
        for call in (
            lambda: store.create_topic("u"),
            lambda: store.delete_topic("t"),
            lambda: store.set_topic_queues("t", 2),
            lambda: store.delete_group("g"),
            lambda: store.expire(),
            lambda: store.maintain(),
        ):
            with pytest.raises(errors.ReadOnlyStore, match='mode="a"'):
                call()
        assert not store.info().writer_alive


# --- Forks


def in_child(call: object) -> int:
    """Run a call in a fork; return its exit status."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads, which is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 99
        try:
            call()  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_may_only_close(tmp_path: Path) -> None:
    store = open_small(tmp_path / "store")
    store.append("t", b"from the parent")
    reader = store.read("t")
    messages = list(store.read("t"))

    def child() -> None:
        assert store.closed
        for call in (lambda: store.append("t", b"x"), lambda: store.info(), lambda: next(reader), store.topics):
            with pytest.raises(errors.StoreClosed, match="parent"):
                call()
        assert [bytes(message) for message in messages] == [b"from the parent"]
        reader.close()
        store.close()
        store.close()
        with open_small(tmp_path / "store", mode="r") as own:
            assert [bytes(message) for message in own.read("t")] == [b"from the parent"]
            assert own.info().writer_alive

    assert in_child(child) == 0
    assert in_child(gc.collect) == 0
    store.append("t", b"after the fork")
    assert [bytes(message) for message in reader] == [b"from the parent", b"after the fork"]
    with pytest.raises(errors.StoreLocked):
        open_small(tmp_path / "store")
    store.close()
    with open_small(tmp_path / "store", mode="r") as again:
        assert not again.opening().was_unclean
        assert len(list(again.read("t"))) == 2


def test_a_fork_while_another_thread_appends(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                store.append_many("t", [b"x"] * 100)

        thread = threading.Thread(target=append)
        thread.start()
        try:
            for _ in range(10):
                assert in_child(store.close) == 0
        finally:
            stop.set()
            thread.join()


# --- Forgotten closes and leaks


def test_a_forgotten_close_is_reported_and_harmless(tmp_path: Path) -> None:
    store = open_small(tmp_path / "store")
    store.append("t", b"x")
    kept = [store]
    del store
    with pytest.warns(ResourceWarning, match="unclosed store"):
        kept.clear()
    with open_small(tmp_path / "store") as store:
        assert not store.opening().was_unclean
        assert len(list(store.read("t"))) == 1


@pytest.mark.parametrize(
    "left_open",
    [
        "store",
        "store, store.read('t')",
        "store, next(store.read('t'))",
        "store, store.consumer('g', 't')",
        "store, store.follow('t', timeout_s=5)",
    ],
)
def test_a_process_that_forgets_everything_ends_quietly(tmp_path: Path, left_open: str) -> None:
    code = f"""
import cometmq
store = cometmq.open({str(tmp_path / "store")!r})
store.append("t", b"x")
kept = {left_open}
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    with cometmq.open(tmp_path / "store") as store:
        assert len(list(store.read("t"))) == 1


def resources() -> tuple[int, ...]:
    """Resident memory in KiB, descriptors and threads of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    return kib, *(len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task"))


def test_repeats_leak_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def once() -> None:
        with open_small(path) as store:
            store.append_many("t", [b"x" * 100] * 200, keys=["k"] * 200, tags="a")
            messages = [message.properties for message in store.read("t", tags="a")]
            assert messages
            store.find("t", "k")
            with store.consumer("g", "t") as consumer:
                consumer.fetch()
                consumer.commit()
            with pytest.raises(errors.StoreLocked):
                open_small(path)

    for _ in range(5):
        once()
    before = resources()
    for _ in range(20):
        once()
    after = resources()
    # Less is no leak: remains of an earlier test may end meanwhile.
    assert after[1] <= before[1], (before, after)
    assert after[2] <= before[2], (before, after)
    assert after[0] - before[0] < 4096, f"{after[0] - before[0]} KiB more"


def test_messages_let_the_map_go(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", [b"x" * 1000] * 5000)
        kept = list(store.read("t"))
    maps = Path("/proc/self/maps")
    assert str(tmp_path) in maps.read_text()
    del kept
    gc.collect()
    assert str(tmp_path) not in maps.read_text()


# --- Errors


def test_errors_survive_pickling_and_name_a_remedy(tmp_path: Path) -> None:
    with open_small(tmp_path / "store"), pytest.raises(errors.StoreLocked) as caught:
        open_small(tmp_path / "store")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.holder_pid) == (errors.StoreLocked, str(caught.value), os.getpid())


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    error = errors.from_engine(errors.Status.ERR_DISK_FULL, "no space", sys_errno=errno.ENOSPC)
    assert isinstance(error, OSError)
    assert error.retriable


# --- Retention


def test_retention_deletes_only_when_asked(tmp_path: Path) -> None:
    old = time.time() - 100 * 3600
    for retention, left in ((None, 5), (retention_on_request(72), 1)):
        path = tmp_path / f"store-{left}"
        with open_small(path) as store:
            store.append_many("t", [b"x" * 100_000] * 44)
        for segment in (path / "commitlog").iterdir():
            os.utime(segment, (old, old))
        with open_small(path, retention=retention) as store:
            if retention is None:
                store.maintain()
                with pytest.raises(errors.InvalidArgument, match="retention"):
                    store.expire()
            else:
                assert store.expire() == 4
            assert len(list((path / "commitlog").iterdir())) == left
            messages = list(store.read("t"))
            assert messages[0].queue_offset == store.min_offset("t") == (0 if retention is None else 40)
            assert messages[-1].queue_offset == store.max_offset("t") - 1 == 43
            assert store.info().log_min == (5 - left) << 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"reserved_hours": -1},
        {"reserved_hours": float("nan")},
        {"delete_hours": (24,)},
        {"max_used_ratio": 0.9, "force_ratio": 0.8},
        {"warning_ratio": 1.5},
        {"files_per_round": 0},
    ],
)
def test_wrong_retention(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        Retention(**wrong)  # type: ignore[arg-type]


# --- A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_reading_makes_no_pages_of_holes(small_disk: Path) -> None:
    """On tmpfs a page of a hole that is read through a mapping takes memory: views filled the disk with a segment."""
    path = small_disk / "store"
    with cometmq.open(path, segment_bytes=64 << 20) as store:
        for _ in range(10):
            store.append("t", b"x")
    before = shutil.disk_usage(small_disk).used
    with cometmq.open(path, mode="r") as view:
        assert len(list(view.read("t"))) == 10
        inspect(view)
        assert verify(view).verdict is Severity.NOTE
    assert shutil.disk_usage(small_disk).used - before <= 64 << 10  # small files, and what the last pages hold


def append_until_it_fails(store: Store) -> None:
    for _ in range(100):
        store.append("t", b"x" * 100_000, keys="k")


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_full_disk_refuses_appends_until_there_is_space(small_disk: Path, flush: str) -> None:
    filler = small_disk / "filler"
    with open_small(small_disk / "store", flush=flush) as store:
        store.append("t", b"x", keys="k")
        filler.write_bytes(b"x" * (5 << 20))
        with pytest.raises(errors.DiskFull) as caught:
            append_until_it_fails(store)
        assert caught.value.retriable
        count = store.max_offset("t")
        assert len(list(store.read("t"))) == count
        assert store.info().disk_full
        assert not store.info().fenced
        with pytest.raises(errors.DiskFull):
            store.append("other", b"x" * 200_000)
        assert store.handle.queues("other") == []
        filler.unlink()
        assert not store.info().disk_full  # without another append
        assert store.append("t", b"again").queue_offset == count
        assert not store.info().disk_full
    with open_small(small_disk / "store") as store:
        assert len(list(store.read("t"))) == count + 1


def test_a_failed_first_append_leaves_no_queue(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.create_topic("t", queues=2)
        with pytest.raises(errors.MessageTooLarge):
            store.append("t", b"x" * 300_001, queue=1)
        assert store.handle.queues("t") == []
        assert store.handle.queue("t", 1) is None
        assert store.info().queue_count == 0
        assert store.append("t", b"x", queue=1).queue_offset == 0
        assert [queue[1] for queue in store.handle.queues("t")] == [1]
        assert store.info().queue_count == 1


def test_upkeep_failures_are_logged_once_and_so_is_their_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cometmq.store")
    with cometmq.open(tmp_path, background=False) as store:
        store.append("orders", b"one")
        (tmp_path / "consumequeue").mkdir(exist_ok=True)
        (tmp_path / "consumequeue" / "orders").write_bytes(b"a file where a folder belongs")
        for _ in range(2):
            with pytest.raises(cometmq.Error):
                store.handle.maintain(force_durable_point=True)
            store._watch_upkeep()
        (tmp_path / "consumequeue" / "orders").unlink()
        store.handle.maintain(force_durable_point=True)
        store._watch_upkeep()
    assert len(caplog.messages) == 2, caplog.messages
    assert caplog.messages[0].startswith(f"upkeep of the store in {tmp_path} failed: ")
    assert "consumequeue/orders" in caplog.messages[0]
    assert caplog.messages[1] == f"upkeep of the store in {tmp_path} works again"


@pytest.mark.parametrize(
    ("overwrites", "remedy"), [("copied", "chattr +C"), ("shared", "cp --reflink=never"), ("in_place", None)]
)
def test_log_names_the_remedy_where_a_full_disk_is_a_signal(
    overwrites: str, remedy: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = None if remedy is None else "/data/commitlog"
    with caplog.at_level(logging.WARNING, "cometmq.store"):
        log_overwrites({"overwrites": overwrites, "overwritten": path})
    assert (remedy in caplog.text and "/data/commitlog" in caplog.text) if remedy else not caplog.records
