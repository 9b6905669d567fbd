"""Checks: another process's hand-off is applied exactly once, also when the writer dies at any step; it is durable
when left; the one who waits learns where his messages are; work that cannot be applied is put aside and reported.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from struct import Struct

import numpy as np
import pyarrow as pa
import pytest

from cometmq import HandedOff, Store, errors
from cometmq._engine import Reader
from cometmq.store.handoff import HandoffApplier
from cometmq.store.handoff_door import STORED
from cometmq.store.handoff_files import (
    HANDOFF_PROPERTY,
    CallWork,
    CommitWork,
    HandoffFolder,
    Journal,
    MessagesWork,
    NewerWork,
    StagedWork,
    Work,
    decode_work,
    encode_work,
    new_work_id,
)
from cometmq.store.staged_files import Owner, StagedFolder
from cometmq.store_config.file_ops import SystemFileOps
from support.small_store import SMALL, open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"first")
    return tmp_path / "store"


@pytest.fixture
def writer(path: Path) -> Iterator[Store]:
    with open_small(path) as store:
        yield store


@pytest.fixture
def reader(path: Path, writer: Store) -> Iterator[Store]:
    with open_small(path, mode="r") as store:
        yield store


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [bytes(message) for message in store.read(topic)]


def leave(path: Path, *batches: list[bytes]) -> list[MessagesWork]:
    """Leave messages as another process would, while nobody writes."""
    folder = HandoffFolder(path)
    works = [
        MessagesWork(
            work_id=new_work_id(),
            topic="t",
            bodies=batch,
            tags=None,
            keys=None,
            properties=None,
            queues=None,
            flag=0,
            born_timestamps_ms=[5] * len(batch),
        )
        for batch in batches
    ]
    for work in works:
        folder.leave(work)
    return works


# --- With a writer


def test_a_reader_appends_through_the_writer(reader: Store, writer: Store) -> None:
    result = reader.append("t", b"second", tags="tag", keys=["k1", "k2"], properties={"p": "v"}, flag=3)
    message = writer.get("t", 0, 1)
    assert (bytes(message), message.tags, message.keys, message.flag) == (b"second", "tag", ("k1", "k2"), 3)
    assert message.properties["p"] == "v"
    assert re.fullmatch(r"[0-9a-f]{32}:0", message.properties[HANDOFF_PROPERTY])
    assert abs(message.born_timestamp_ms - time.time() * 1000) < 60_000
    assert (result.queue_offset, result.physical_offset) == (1, message.physical_offset)
    assert result.message_id == message.message_id
    assert HandoffFolder(reader.path).waiting() == []


def test_the_writer_is_woken(reader: Store) -> None:
    reader.append("t", b"warm")
    began = time.monotonic()
    for _ in range(10):
        reader.append("t", b"x")
    # Without the wake-up each would take the look-around time of a second.
    assert time.monotonic() - began < 5


def test_many_from_any_container(reader: Store, writer: Store) -> None:
    writer.create_topic("u", queues=3)
    reader.append_many("u", [b"a", bytearray(b"b")], tags=["x", None], keys=[["k", "l"], None], queue=[2, 1])
    reader.append_many("u", np.array([b"c", b"d"], dtype="S1"), tags="y", queue=0, born_timestamps_ms=np.array([7, 8]))
    result = reader.append_many("u", pa.array([b"e", b"f"]), properties=[{"p": "1"}, None])
    assert bodies(writer, "u") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    messages = list(writer.read("u"))
    assert [message.tags for message in messages] == ["x", None, "y", "y", None, None]
    assert messages[0].keys == ("k", "l")
    assert [message.queue_id for message in messages[:4]] == [2, 1, 0, 0]
    assert [message.born_timestamp_ms for message in messages[2:4]] == [7, 8]
    assert [message.properties.get("p") for message in messages[4:]] == ["1", None]
    assert result.physical_offsets.tolist() == [message.physical_offset for message in messages[4:]]
    assert result.queue_ids.tolist() == [message.queue_id for message in messages[4:]]


def test_a_new_topic_is_made_by_the_writer(reader: Store, writer: Store) -> None:
    reader.append("new", b"x")
    assert writer.topic("new").is_configured
    assert reader.topic("new").messages == 1


def test_without_waiting(reader: Store, writer: Store) -> None:
    handed = reader.hand_off("t", [b"a", b"b"])
    assert isinstance(handed, HandedOff)
    assert handed.wait(30).queue_offsets.tolist() == [1, 2]
    assert handed.applied
    with pytest.raises(errors.InvalidArgument, match="append directly"):
        writer.hand_off("t", [b"x"])


def test_commits_go_through_the_writer(reader: Store, writer: Store) -> None:
    writer.append_many("t", [b"1", b"2", b"3"])
    with reader.consumer("g", "t") as consumer:
        consumer.fetch(2)
        consumer.commit()
        assert {one.offset for one in reader.progress("g")} <= {2}
    with reader.consumer("g", "t") as consumer:
        assert [bytes(message) for message in consumer] == [b"2", b"3"]
    deadline = time.monotonic() + 20
    while not writer.progress("g") and time.monotonic() < deadline:
        time.sleep(0.001)  # the hand-off waits for nobody; the writer's notification is another test
    assert [one.offset for one in writer.progress("g")] == [2]
    assert "g" in writer.groups()


@pytest.mark.parametrize(
    ("error", "topic", "arguments"),
    [
        (errors.InvalidTopic, "a/b", {}),
        (errors.InvalidArgument, "SCHEDULE_TOPIC_XXXX", {}),
        (errors.MessageTooLarge, "t", {"body": b"x" * 400_000}),
        (errors.HandoffRejected, "t", {"queue": 7}),
        (errors.HandoffRejected, "t", {"tags": "a\x01b"}),
    ],
)
def test_inapplicable_work_is_rejected(
    reader: Store, writer: Store, error: type[Exception], topic: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(error):
        reader.append(topic, **{"body": b"x", **arguments})  # type: ignore[arg-type]
    assert reader.append("t", b"goes on").queue_offset == 1
    assert bodies(writer) == [b"first", b"goes on"]
    folder = HandoffFolder(reader.path)
    assert folder.waiting() == []
    assert not folder.rejected.exists()
    if error is errors.HandoffRejected:
        with pytest.raises(error):
            reader.hand_off(topic, [b"x"], **arguments).wait(30)  # type: ignore[arg-type]
        assert len(list(folder.rejected.iterdir())) == 2


def test_a_piece_is_appended_whole_or_not_at_all(path: Path, writer: Store) -> None:
    """One of its messages is larger than the writer takes, which the writer alone can tell."""
    with (
        open_small(path, mode="r", settings={**SMALL, "maxMessageSize": 600_000}) as reader,
        pytest.raises(errors.HandoffRejected, match="400000 bytes"),
    ):
        reader.append_many("t", [b"1", b"x" * 400_000, b"3"])
    assert bodies(writer) == [b"first"]


def test_a_rejected_piece_does_not_stop_those_behind_it(path: Path) -> None:
    leave(path, [b"1"])
    (work,) = leave(path, [b"2"])
    HandoffFolder(path).leave(
        MessagesWork(
            work_id=new_work_id(),
            topic="t",
            bodies=[b"x"],
            tags=None,
            keys=None,
            properties=None,
            queues=[5],
            flag=0,
            born_timestamps_ms=[0],
        )
    )
    leave(path, [b"3"])
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"1", b"2", b"3"]
        assert store.read("t").fetch()[2].properties[HANDOFF_PROPERTY] == f"{work.work_id}:0"


# --- Without a writer


def test_where_nobody_writes_the_reader_does_it_himself(path: Path) -> None:
    with open_small(path, mode="r") as reader:
        assert reader.append("t", b"second").queue_offset == 1
        assert bodies(reader) == [b"first", b"second"]
        reader.set_progress("g", "t", 0, 2)
        assert [one.offset for one in reader.progress("g")] == [2]
    assert HandoffFolder(path).waiting() == []
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"second"]
        assert [one.offset for one in store.progress("g")] == [2]


def test_the_next_writer_applies_waiting_work(path: Path) -> None:
    leave(path, [b"1", b"2"], [b"3"])
    HandoffFolder(path).leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, 2)]))
    with open_small(path, mode="r") as reader:
        # Progress that waits counts for readers.
        assert [bytes(message) for message in reader.consumer("g", "t")] == []
    with open_small(path, background=False) as store:
        assert bodies(store) == [b"first", b"1", b"2", b"3"]
        assert [one.offset for one in store.progress("g")] == [2]
        leave(path, [b"4"])
        assert store.apply_handoffs() == 1
        assert store.apply_handoffs() == 0
        assert bodies(store)[-1] == b"4"


def test_waiting_has_an_end(path: Path) -> None:
    with open_small(path, background=False) as writer, open_small(path, mode="r") as reader:
        handed = reader.hand_off("t", [b"x"])
        assert not handed.applied
        with pytest.raises(errors.HandoffWaiting, match="on disk") as caught:
            handed.wait(0.2)
        assert isinstance(caught.value, TimeoutError)
        writer.apply_handoffs()
        assert handed.wait(30)[0].queue_offset == 1


def test_a_java_broker_does_not_look_here(path: Path) -> None:
    """A broker is any process that holds the POSIX lock and publishes nothing."""
    (path / "cometmq" / "follow").unlink()
    code = f"""
import fcntl, sys
with open({str(path / "lock")!r}, "r+b") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("locked", flush=True)
    sys.stdin.read()
"""
    broker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    assert broker.stdin is not None
    assert broker.stdout.readline() == "locked\n"
    with open_small(path, mode="r") as reader:
        for call in (lambda: reader.append("t", b"x"), lambda: reader.set_progress("g", "t", 0, 1)):
            with pytest.raises(errors.StoreLocked, match="over the wire") as caught:
                call()
            assert caught.value.holder_pid == broker.pid
    assert HandoffFolder(path).waiting() == []
    broker.stdin.close()
    broker.wait()
    broker.stdout.close()


# --- Two processes


def test_several_processes_at_once(path: Path, writer: Store) -> None:
    code = f"""
import sys, cometmq
with cometmq.open({str(path)!r}, mode="r", settings={SMALL!r}) as store:
    for number in range(20):
        assert store.append("t", b"%d-%d" % (int(sys.argv[1]), number)).queue_offset > 0
"""
    children = [subprocess.Popen([sys.executable, "-c", code, str(number)]) for number in range(3)]
    own = [writer.append("t", b"own").queue_offset for _ in range(50)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    found = bodies(writer)
    for number in range(3):
        prefix = b"%d-" % number
        assert [body for body in found if body.startswith(prefix)] == [prefix + b"%d" % n for n in range(20)]
    assert len(found) == 1 + len(own) + 60


# --- The writer dies at any step


class Died(BaseException):
    """The process ends here. No handler of errors may catch it."""


class DyingOps(SystemFileOps):
    """Dies before the n-th operation that changes something."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Died

    def write_synced(self, path: Path, data: bytes) -> None:
        self.step()
        super().write_synced(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self.step()
        super().sync_folder(folder)

    def make_folder(self, folder: Path, *, root: Path | None = None) -> None:
        self.step()
        super().make_folder(folder, root=root)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)


def die_while_applying(path: Path, steps: int) -> bool:
    """Apply what waits in a process that dies before a step; False when it lived."""
    with open_small(path, background=False) as store:
        folder = HandoffFolder(path, file_ops=DyingOps(steps))
        applier = HandoffApplier(store.handle, folder, store._topic_book, store._group_book, disks=store._plan.disks)
        leave(path, [b"a", b"b"], [b"c"])
        HandoffFolder(path).leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, 3)]))
        try:
            applier.apply_all()
        except Died:
            return True
    return False


def test_exactly_once_wherever_the_writer_dies(tmp_path: Path) -> None:
    steps = 0
    while True:
        path = tmp_path / f"store-{steps}"
        died = die_while_applying(path, steps)
        with open_small(path) as store:
            assert Counter(bodies(store)) == Counter([b"a", b"b", b"c"]), f"died before step {steps}"
            assert [one.offset for one in store.progress("g")] == [3]
        assert HandoffFolder(path).waiting() == []
        assert HandoffFolder(path).journal() is None
        if not died:
            break
        steps += 1
    assert steps >= 6, "the steps of a round were not all tried"


def test_exactly_once_where_half_of_a_piece_was_appended(path: Path) -> None:
    """The process died inside the engine: some messages of a piece are in the log, and others of the writer follow."""
    first, second = leave(path, [b"a", b"b", b"c"], [b"d"])
    folder = HandoffFolder(path)
    with open_small(path, background=False) as store:
        done = bodies(store)
        assert done == [b"first", b"a", b"b", b"c", b"d"]
        end = store.read("t").fetch()[1].physical_offset
    # Put the files back as if only a part had been applied.
    names = [folder.leave(work) for work in (first, second)]
    folder.begin_round(Journal(end, tuple(names)))
    with open_small(path) as store:
        assert bodies(store) == done
        assert folder.waiting() == []
    name = folder.leave(
        MessagesWork(
            work_id=second.work_id,
            topic="t",
            bodies=[b"d", b"e"],
            tags=None,
            keys=None,
            properties=None,
            queues=None,
            flag=0,
            born_timestamps_ms=[0, 0],
        )
    )
    folder.begin_round(Journal(end, (name,)))
    with open_small(path) as store:
        assert bodies(store) == [*done, b"e"]


def test_exactly_once_where_applying_fails_more_than_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes a part of a piece, then nothing, while work that was left with an earlier time is applied."""
    real = HandoffApplier._append
    room = [2, 2, 3, 3, 3]

    def append(self: HandoffApplier, work: MessagesWork, done: Counter[int]) -> None:
        if work.work_id != piece.work_id:
            real(self, work, done)
            return
        bodies = work.bodies[: room.pop(0)]
        real(self, replace(work, bodies=bodies), done)
        if len(bodies) < len(work.bodies) or len(room) > 0:
            raise errors.DiskFull("no space")

    with open_small(path, background=False) as store:
        monkeypatch.setattr(HandoffApplier, "_append", append)
        (piece,) = leave(path, [b"a", b"b", b"c"])
        with pytest.raises(errors.DiskFull):
            store.apply_handoffs()
        StagedFolder(path).begin("job", Owner(os.getpid()))
        folder = HandoffFolder(path)
        name = folder.leave(staged_nothing())
        (folder.path / f"{name}.work").rename(folder.path / f"{0:020d}-s-{name[-32:]}.work")
        while room[1:]:
            with pytest.raises(errors.DiskFull):
                store.apply_handoffs()
        assert folder.journal() is not None
        assert store.apply_handoffs() == 1
        assert bodies(store) == [b"first", b"a", b"b", b"c"]
        assert folder.journal() is None


def staged_nothing() -> StagedWork:
    return StagedWork(
        work_id=new_work_id(),
        folder="job",
        files=(),
        topic="t",
        topic_queues=1,
        done_key=None,
        done_number=0,
        born_timestamp_ms=5,
    )


@pytest.mark.parametrize("log_end", [0, 1, 93, 1 << 40])
def test_a_journal_from_elsewhere_is_survived(path: Path, log_end: int) -> None:
    """Recovery may have cut the log below what the journal says, and it may have grown again since."""
    (work,) = leave(path, [b"a"])
    with open_small(path) as store:
        before = bodies(store)
    name = HandoffFolder(path).leave(work)
    HandoffFolder(path).begin_round(Journal(log_end, (name,)))
    with open_small(path) as store:
        found = bodies(store)
        assert found == before or (log_end > 93 and found == [*before, b"a"])


def test_a_damaged_journal_costs_a_search(path: Path) -> None:
    (work,) = leave(path, [b"a"])
    with open_small(path) as store:
        before = bodies(store)
    HandoffFolder(path).leave(work)
    (path / "cometmq" / "handoff" / "journal").write_bytes(b"00000000\nrubbish")
    with open_small(path) as store:
        assert bodies(store) == before


# --- The files


def works() -> list[Work]:
    messages = MessagesWork(
        work_id="a" * 32,
        topic="t",
        bodies=[b"", b"\x00\xff"],
        tags=["x", None],
        keys=[None, "k l"],
        properties=[b"", b"a\x01b\x02"],
        queues=[0, 1],
        flag=-1,
        born_timestamps_ms=[1, 2],
    )
    return [
        messages,
        replace(messages, sought_from=1 << 40),
        CommitWork(work_id="b" * 32, group="g", offsets=[("t", 0, 5), ("u", 3, 1 << 40)]),
        CommitWork(work_id="b" * 32, group="g", offsets=[("t", 0, 5), ("u", 3, 1 << 40)], expected=[4, None]),
        CallWork(work_id="c" * 32, call="create_topic", arguments={"name": "t", "attributes": {"a": "b"}}),
    ]


@pytest.mark.parametrize("work", works(), ids=["messages", "sought", "commit", "expecting commit", "call"])
def test_work_survives_its_file(work: Work) -> None:
    assert decode_work(encode_work(work)) == work


@pytest.mark.parametrize("work", works(), ids=["messages", "sought", "commit", "expecting commit", "call"])
def test_damage_is_noticed(work: Work) -> None:
    data = encode_work(work)
    for size in range(len(data)):
        with pytest.raises(errors.CorruptRecord):
            decode_work(data[:size])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(errors.CorruptRecord):
            decode_work(bytes(damaged))


def test_handed_off_messages_carry_their_id(path: Path) -> None:
    with open_small(path, background=False) as writer, open_small(path, mode="r") as reader:
        handed = reader.hand_off("t", [b"a"])
        assert repr(handed) == f"<HandedOff t: 1 message, waiting, id {handed.work_id}>"
        writer.apply_handoffs()
        assert repr(handed) == f"<HandedOff t: 1 message, taken by the writer, id {handed.work_id}>"


def test_a_closed_store_can_be_copied(path: Path, tmp_path: Path) -> None:
    """No FIFO is left in it, before which shutil.copytree stops."""
    shutil.copytree(path, tmp_path / "copy")
    with open_small(tmp_path / "copy") as store:
        assert bodies(store) == [b"first"]


def test_damaged_work_is_put_aside(path: Path) -> None:
    leave(path, [b"a"], [b"b"])
    damaged = sorted((path / "cometmq" / "handoff").glob("*.work"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"b"]
    reason = HandoffFolder(path).rejection(damaged.stem)
    assert reason is not None
    assert "its header says" in reason


def test_work_of_a_newer_version_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.store.handoff_files._VERSION", 2)
    leave(path, [b"new"])
    monkeypatch.undo()
    with open_small(path) as store:
        assert bodies(store) == [b"first"]
        assert len(HandoffFolder(path).waiting()) == 1
        with pytest.raises(NewerWork):
            HandoffFolder(path).read(HandoffFolder(path).waiting()[0])


def test_too_much_work_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.store.handoff_files.WAITING_MAX", 2)
    leave(path, [b"1"], [b"2"])
    with pytest.raises(errors.LimitReached):
        leave(path, [b"3"])


def test_half_written_work_is_swept(path: Path) -> None:
    folder = path / "cometmq" / "handoff"
    folder.mkdir(parents=True, exist_ok=True)
    for name, age_s in ((".old.tmp", 7200), (".young.tmp", 0)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    with open_small(path) as store:
        assert bodies(store) == [b"first"]
    assert [entry.name for entry in folder.glob("*.tmp")] == [".young.tmp"]


def test_no_thread_stays_behind(path: Path) -> None:
    before = threading.active_count()
    stores: list[Callable[[], None]] = []
    for _ in range(3):
        store = open_small(path)
        assert threading.active_count() == before + 2  # the folder's and the door's
        stores.append(store.close)
        store.close()
    assert threading.active_count() == before


def test_a_reader_that_was_there_before_the_writer(path: Path) -> None:
    with open_small(path, mode="r") as reader:
        assert bodies(reader) == [b"first"]
        with open_small(path) as writer:
            assert reader.append("t", b"x").queue_offset == 1
            assert bodies(writer) == [b"first", b"x"]
        assert reader.append("t", b"y").queue_offset == 2


# --- What cannot be applied now


FAILURES = [
    errors.DiskFull("no space"),
    OSError(errno.EMFILE, "Too many open files"),
    PermissionError(errno.EACCES, "no"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=["full", "descriptors", "permission"])
def test_waiting_work_does_not_keep_a_store_from_being_opened(
    path: Path, failure: OSError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leave(path, [b"waits"])
    with monkeypatch.context() as patched:
        patched.setattr(HandoffApplier, "apply_all", raising(failure))
        with caplog.at_level(logging.WARNING, "cometmq.store"), open_small(path, background=False) as store:
            assert bodies(store) == [b"first"]
            store.append("t", b"second")
        assert "waits, durably, and is tried again" in caplog.text
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"second", b"waits"]


@pytest.mark.parametrize("failure", FAILURES, ids=["full", "descriptors", "permission"])
def test_a_reader_learns_that_its_work_waits(path: Path, failure: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody writes it applies the work itself; run again, the messages would be there twice."""
    with open_small(path, mode="r") as reader:
        with monkeypatch.context() as patched:
            patched.setattr(HandoffApplier, "apply_all", raising(failure))
            with pytest.raises(errors.HandoffWaiting, match="do not write it again"):
                reader.append("t", b"x")
        assert reader.append("t", b"y").queue_offset == 2
        assert bodies(reader) == [b"first", b"x", b"y"]


@pytest.mark.parametrize("failure", [*FAILURES, RuntimeError("a mistake of ours")], ids=["full", "fds", "perm", "bug"])
@pytest.mark.parametrize("where", ["waiting", "apply"])
def test_the_watcher_outlives_every_failure(
    path: Path, where: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> object:
        if threading.current_thread() is threading.main_thread():
            return []
        failed.set()
        raise failure

    with open_small(path) as writer:
        with monkeypatch.context() as patched:
            if where == "waiting":
                patched.setattr(HandoffFolder, "waiting", fail)
            else:
                patched.setattr(HandoffApplier, "apply_all", fail)
            leave(path, [b"later"])
            HandoffFolder(path).wake()
            assert failed.wait(30)
        HandoffFolder(path).wake()
        with writer.follow("t", timeout_s=30) as new:
            assert bodies(writer)[1:] == [b"later"] or next(new).body_bytes == b"later"


def raising(failure: Exception) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise failure

    return fail


def test_a_deleted_topic_takes_commits_of_the_same_round_with_it(path: Path, tmp_path: Path) -> None:
    """Progress that came back would hide the first messages of a re-created topic."""
    copy = tmp_path / "copy"
    with open_small(path, flush="sync", background=False) as store:
        folder = HandoffFolder(path)
        folder.leave(CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, 1)]))
        folder.leave(CallWork(work_id=new_work_id(), call="delete_topic", arguments={"name": "t"}))
        store.maintain()
        with open_small(path, mode="r") as view:
            assert view.progress("g") == store.progress("g") == []
        shutil.copytree(path, copy)  # as a crash leaves it
    with open_small(copy) as store:
        assert store.progress("g") == []


def test_work_of_the_door_is_sought_once_a_round(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    real = HandoffApplier._reader_from

    def counted_reader_from(applier: HandoffApplier, log_end: int) -> Reader:
        begins.append(log_end)
        return real(applier, log_end)

    monkeypatch.setattr(HandoffApplier, "_reader_from", counted_reader_from)
    with open_small(path, background=False) as store:
        ends = [store.append("t", b"before").end for _ in range(5)]
        for work, end in zip(leave(path, *([b"%d" % number] for number in range(4))), ends[1:], strict=True):
            HandoffFolder(path).leave(replace(work, work_id=new_work_id(), sought_from=end))
        store.maintain()
        assert begins == [ends[1]]
        assert len(bodies(store)) == 14


def test_values_that_no_sender_writes_are_put_aside(path: Path) -> None:
    """Work behind them is applied."""
    good = leave(path, [b"good"])[0]
    folder = HandoffFolder(path)
    odd: list[Work] = [
        *(
            replace(good, **{name: value})  # type: ignore[arg-type]
            for name, value in (
                ("queues", {"0": 0}),
                ("queues", [True]),
                ("queues", [1 << 80]),
                ("tags", "t"),
                ("keys", [5]),
                ("born_timestamps_ms", [1 << 80]),
                ("flag", 1 << 80),
            )
        ),
        CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 1 << 80, 1)]),
    ]
    names = [folder.leave(work) for work in odd]
    leave(path, [b"behind"])
    with open_small(path, background=False) as store:
        assert [name for name in names if folder.rejection(name) is None] == []
        assert bodies(store) == [b"first", b"good", b"behind"]
        for work in odd:
            (answer,) = store._append_from_door([encode_work(work)])
            assert answer[0] != STORED


def test_nesting_without_end_is_damage() -> None:
    text = b"[" * 1_000_000
    data = Struct("<8sIQI").pack(b"CMQWORK1", len(text), 0, zlib.crc32(text)) + text
    with pytest.raises(errors.CorruptRecord, match="content"):
        decode_work(data)
