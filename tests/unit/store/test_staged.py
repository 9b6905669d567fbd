"""Checks: staged files are appended exactly once, whoever applies them and wherever it stops; a key is done once;
remains of dead jobs are swept, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq import Store, errors
from cometmq._engine import StoreHandle, encode_properties, java_hash
from cometmq.store.handoff_files import (
    HANDOFF_PROPERTY,
    HandoffFolder,
    NewerWork,
    StagedFile,
    StagedWork,
    Work,
    decode_work,
    encode_work,
)
from cometmq.store.staged_client import commit_staged, leave_once, work_id_of
from cometmq.store.staged_files import Owner, StagedFolder
from cometmq.store_config.file_ops import SystemFileOps
from support.small_store import SMALL, open_small

JOB = "job-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"first")
    return tmp_path / "store"


@pytest.fixture
def reader(path: Path) -> Iterator[Store]:
    with open_small(path, mode="r") as store:
        yield store


def stage(path: Path, *batches: pa.RecordBatch, job: str = JOB, name: str = "a.arrow") -> StagedFile:
    """Leave one file as a task would."""
    folder = StagedFolder(path)
    if not (folder.path / job).exists():
        folder.begin(job, Owner(os.getpid()))
    file = folder.path / job / name
    with pa.ipc.new_file(str(file), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content = file.read_bytes()
    rows = sum(batch.num_rows for batch in batches)
    return StagedFile(name=name, rows=rows, size_bytes=len(content), crc32=zlib.crc32(content))


def work(*files: StagedFile, key: str | None = None, number: int = 0, **other: object) -> StagedWork:
    values: dict[str, object] = {"folder": JOB, "topic": "t", "topic_queues": 1, "born_timestamp_ms": 5, **other}
    return StagedWork(
        work_id=work_id_of(key, number),
        files=files,
        done_key=key,
        done_number=number,
        **values,  # type: ignore[arg-type]
    )


def rows(*bodies: bytes, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(bodies, pa.binary()), **columns})


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [bytes(message) for message in store.read(topic)]


def many(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def left_over(path: Path) -> list[str]:
    folder = path / "cometmq" / "staged"
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "done") if folder.exists() else []


# --- Applying


def test_all_columns(path: Path, reader: Store) -> None:
    batch = rows(
        b"a",
        b"b",
        b"c",
        tags=pa.array(["x", None, "y"]),
        keys=pa.array(["k l", None, "m"]),
        properties=pa.array([encode_properties({"p": "1"}), None, b""], pa.binary()),
    )
    assert commit_staged(reader, work(stage(path, batch)), timeout_s=30)
    messages = list(reader.read("t"))[1:]
    assert [bytes(message) for message in messages] == [b"a", b"b", b"c"]
    assert [message.tags for message in messages] == ["x", None, "y"]
    assert [message.keys for message in messages] == [("k", "l"), (), ("m",)]
    assert [message.properties.get("p") for message in messages] == ["1", None, None]
    assert {message.born_timestamp_ms for message in messages} == {5}
    assert left_over(path) == []
    assert HandoffFolder(path).waiting() == []


def test_topics_and_queues(path: Path, reader: Store) -> None:
    batch = rows(
        *many(6),
        topic=pa.array(["u", None, "u", "v", "v", "u"]),
        queue=pa.array([2, None, None, 1, None, 0], pa.int32()),
        shard=pa.array([None, None, java_hash("a"), None, None, None], pa.int32()),
    )
    assert commit_staged(reader, work(stage(path, batch), topic_queues=3), timeout_s=30)
    found = {bytes(message): (message.topic, message.queue_id) for message in reader.read(("t", "u", "v"))}
    assert found == {
        b"first": ("t", 0),
        b"0": ("u", 2),
        b"1": ("t", 0),
        b"2": ("u", java_hash("a") % 3),
        b"3": ("v", 1),
        b"4": ("v", 0),
        b"5": ("u", 0),
    }
    assert reader.topic("v").write_queues == 3


def test_a_negative_hash_chooses_as_upstream_does(path: Path, reader: Store) -> None:
    batch = rows(b"x", topic=pa.array(["u"]), shard=pa.array([-7], pa.int32()))
    commit_staged(reader, work(stage(path, batch), topic_queues=4), timeout_s=30)
    assert [message.queue_id for message in reader.read("u")] == [3]


def test_a_writer_of_this_process_applies(path: Path, reader: Store) -> None:
    with open_small(path) as writer:
        assert commit_staged(reader, work(stage(path, rows(*many(5)))), timeout_s=30)
        assert bodies(writer) == [b"first", *many(5)]
        writer.append("t", b"later")


def test_synchronous_flush(path: Path, reader: Store) -> None:
    with open_small(path, flush="sync"):
        files = [stage(path, rows(*many(50, 50 * index)), name=f"{index}.arrow") for index in range(4)]
        assert commit_staged(reader, work(*files), timeout_s=30)
    assert bodies(reader) == [b"first", *many(200)]


def test_done_once(path: Path, reader: Store) -> None:
    for number in (0, 1):
        assert commit_staged(reader, work(stage(path, rows(b"%d" % number)), key="q", number=number), timeout_s=30)
    for number in (0, 1):
        assert not commit_staged(reader, work(stage(path, rows(b"again")), key="q", number=number), timeout_s=30)
    assert bodies(reader) == [b"first", b"0", b"1"]
    assert StagedFolder(path).done_number("q") == 1
    assert left_over(path) == []


def test_left_twice_while_it_waits(path: Path, reader: Store) -> None:
    """The driver died after leaving the work; it is started again before the work is applied."""
    first = work(stage(path, rows(b"a")), key="q", number=3)
    HandoffFolder(path).leave(first)
    second = work(stage(path, rows(b"a"), job="job-2"), key="q", number=3, folder="job-2")
    assert not commit_staged(reader, second, timeout_s=30)
    assert bodies(reader) == [b"first", b"a"]
    assert left_over(path) == []


def test_work_that_is_applied_while_it_is_looked_for_counts_as_done(path: Path, reader: Store) -> None:
    """A driver whose commit got no answer repeats it; the writer applies the first between two looks."""
    again = work(stage(path, rows(b"a")), key="q", number=3)
    handoff = HandoffFolder(path)
    handoff.leave(again)

    class Applying(HandoffFolder):
        def waiting(self) -> list[str]:
            with open_small(path):
                pass  # a writer applies all that waits when it opens
            return super().waiting()

    def leave(_: StagedWork) -> str:
        raise AssertionError("left a second time")

    assert leave_once(StagedFolder(path), Applying(path), again, leave) == (None, False)
    assert bodies(reader) == [b"first", b"a"]


def test_names_are_durable_before_the_work_is_left(path: Path, reader: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss must not leave the work and take the names of its files."""
    events: list[str] = []
    sync, leave = SystemFileOps.sync_folder, HandoffFolder.leave

    def note_sync(ops: SystemFileOps, folder: Path) -> None:
        events.append(folder.name)
        sync(ops, folder)

    def note_leave(folder: HandoffFolder, one: Work) -> str:
        events.append("left")
        return leave(folder, one)

    monkeypatch.setattr(SystemFileOps, "sync_folder", note_sync)
    monkeypatch.setattr(HandoffFolder, "leave", note_leave)
    one = work(stage(path, rows(b"a")))
    events.clear()
    assert commit_staged(reader, one, timeout_s=30)
    assert JOB in events[: events.index("left")]


# --- What goes wrong


@pytest.mark.parametrize("stop_after", [0, 1, 7, 10, 15, 24])
def test_a_writer_that_stops_half_way(path: Path, stop_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies between two batches or inside of one, before the disk was waited for; the next one goes on."""
    batches = [rows(*many(5, 0)), rows(*many(5, 5)), rows(*many(5, 10))]
    files = (stage(path, *batches), stage(path, rows(*many(10, 15)), name="b.arrow"))
    HandoffFolder(path).leave(work(*files))
    program = (
        "import os, sys, itertools, pyarrow as pa\n"
        "from pathlib import Path\n"
        "from cometmq.store import staged_apply\n"
        "from support.small_store import open_small\n"
        "real, left = staged_apply._append, [int(sys.argv[2])]\n"
        "def append(handle, chunk, rows, target, work):\n"
        "    count = min(left[0], rows.num_rows)\n"
        "    if count: end = real(handle, chunk, rows.slice(0, count), target, work)\n"
        "    left[0] -= count\n"
        "    if left[0] == 0: os._exit(9)\n"
        "    return end\n"
        "staged_apply._append = append\n"
        "open_small(Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    ended = subprocess.run([sys.executable, "-c", program, str(path), str(stop_after)], env=environment, check=False)
    assert ended.returncode == 9
    with open_small(path) as store:
        assert bodies(store) == [b"first", *many(25)]
        marks = [message.properties.get(HANDOFF_PROPERTY) for message in store.read("t")]
        assert len(set(marks[1:])) == 4
    assert left_over(path) == []


def test_a_writer_that_fails_goes_on_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cometmq.store import staged_apply

    real = staged_apply._append
    fails = [True]

    def append(handle: StoreHandle, chunk: object, batch: pa.RecordBatch, target: object, one: object) -> int:
        if fails.pop() if fails else False:
            real(handle, chunk, batch.slice(0, 2), target, one)  # type: ignore[arg-type]
            raise errors.DiskFull("no space")
        return real(handle, chunk, batch, target, one)  # type: ignore[arg-type]

    with open_small(path, background=False) as store:
        HandoffFolder(path).leave(work(stage(path, rows(*many(5)))))
        monkeypatch.setattr(staged_apply, "_append", append)
        with pytest.raises(errors.DiskFull):
            store.apply_handoffs()
        assert store.apply_handoffs() == 1
        assert bodies(store) == [b"first", *many(5)]


def test_a_writer_that_fails_again_and_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stays full: each attempt appends a part, or nothing, and the log's end moves meanwhile."""
    from cometmq.store import staged_apply

    real = staged_apply._append
    room = [2, 0, 1, 0, 5]

    def append(handle: StoreHandle, chunk: object, batch: pa.RecordBatch, target: object, one: object) -> int:
        count = min(room.pop(0), batch.num_rows)
        end = real(handle, chunk, batch.slice(0, count), target, one) if count else 0  # type: ignore[arg-type]
        if count < batch.num_rows:
            raise errors.DiskFull("no space")
        return end

    with open_small(path, background=False) as store:
        HandoffFolder(path).leave(work(stage(path, rows(*many(5)))))
        monkeypatch.setattr(staged_apply, "_append", append)
        while len(room) > 1:
            with pytest.raises(errors.DiskFull):
                store.apply_handoffs()
        assert store.apply_handoffs() == 1
        assert bodies(store) == [b"first", *many(5)]
        assert HandoffFolder(path).journal() is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda path: work(stage(path, rows(b"x", queue=pa.array([5], pa.int32())))), "no 5"),
        (lambda path: work(stage(path, rows(b"x")), topic=None), "no topic"),
        (lambda path: work(stage(path, rows(b"x", topic=pa.array(["a/b"])))), "a/b"),
        (lambda path: work(StagedFile(name="gone.arrow", rows=1, size_bytes=3, crc32=0)), "gone"),
    ],
)
def test_inapplicable_staged_write_leaves_nothing(path: Path, reader: Store, make: object, match: str) -> None:
    with pytest.raises(errors.HandoffRejected, match=match):
        commit_staged(reader, make(path), timeout_s=30)  # type: ignore[operator]
    assert bodies(reader) == [b"first"]
    assert left_over(path) == []
    with open_small(path) as store:
        assert bodies(store) == [b"first"]


def test_a_damaged_file(path: Path, reader: Store) -> None:
    file = stage(path, rows(*many(100)))
    whole = path / "cometmq" / "staged" / JOB / file.name
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 1
    whole.write_bytes(content)
    with pytest.raises(errors.HandoffRejected, match="checksum"):
        commit_staged(reader, work(file), timeout_s=30)
    assert bodies(reader) == [b"first"]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (pa.record_batch({"text": pa.array(["x"])}), "has the columns text"),
        (pa.record_batch({"body": pa.array([1])}), "'body' of type int64"),
        (pa.record_batch({"body": pa.array([b"x"]), "queue": pa.array(["first"])}), "'queue' of type string"),
        (pa.record_batch({"body": pa.array([b"x"]), "more": pa.array(["first"])}), "'more' of type string"),
        (pa.record_batch({"body": pa.array([b"x", None])}), "without a body"),
        (
            pa.record_batch({"body": pa.array([b"x"]), "topic": pa.array(["t"]).dictionary_encode()}),
            "of type dictionary",
        ),
    ],
)
def test_files_that_no_task_leaves(path: Path, batch: pa.RecordBatch, reason: str) -> None:
    """They are put aside, and the writer goes on."""
    with open_small(path) as writer, open_small(path, mode="r") as reader:
        with pytest.raises(errors.HandoffRejected, match=reason):
            commit_staged(reader, work(stage(path, batch)), timeout_s=30)
        one = stage(path, rows(b"goes on"), job="job-2")
        assert commit_staged(reader, work(one, folder="job-2"), timeout_s=30)
        assert bodies(writer) == [b"first", b"goes on"]


def test_the_writer_does_not_come(path: Path, reader: Store) -> None:
    with open_small(path, background=False):
        with pytest.raises(errors.HandoffWaiting):
            commit_staged(reader, work(stage(path, rows(b"x")), key="q"), timeout_s=0.2)
        assert bodies(reader) == [b"first"]
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"x"]
    assert not commit_staged(reader, work(stage(path, rows(b"x")), key="q"), timeout_s=30)


# --- Sweeping


def test_dead_jobs_are_swept(path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for job in ("dead", "alive", "waits", "foreign", "container", "old"):
        stage(path, rows(b"x"), job=job)
    folder = StagedFolder(path).path
    for job in ("dead", "waits"):
        owner = json.loads((folder / job / "owner.json").read_bytes())
        (folder / job / "owner.json").write_text(json.dumps(owner | {"pid": int(dead.stdout), "started": 1}))
    for job in ("foreign", "old"):
        owner = json.loads((folder / job / "owner.json").read_bytes())
        (folder / job / "owner.json").write_text(json.dumps(owner | {"host": "elsewhere"}))
    owner = json.loads((folder / "container" / "owner.json").read_bytes())
    (folder / "container" / "owner.json").write_text(json.dumps(owner | {"processes": "pid:[1]", "started": 1}))
    day_before = time.time() - 100_000
    for entry in ((folder / "old"), *(folder / "old").iterdir()):
        os.utime(entry, (day_before, day_before))
    (folder / ".removed-x").mkdir()
    content = (folder / "waits" / "a.arrow").read_bytes()
    file = StagedFile(name="a.arrow", rows=1, size_bytes=len(content), crc32=zlib.crc32(content))
    HandoffFolder(path).leave(work(file, folder="waits"))
    StagedFolder(path).sweep()
    assert left_over(path) == ["alive", "container", "foreign", "waits"]
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"x"]
    assert left_over(path) == ["alive", "container", "foreign"]


@pytest.mark.parametrize("days", [-400, 400])
def test_set_clock_removes_no_work_that_waits(days: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stage(path, rows(b"x"), job="elsewhere-1")
    owner = StagedFolder(path).path / "elsewhere-1" / "owner.json"
    owner.write_text(json.dumps(json.loads(owner.read_bytes()) | {"host": "elsewhere"}))
    HandoffFolder(path).leave(work(file, folder="elsewhere-1"))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + days * 86_400)
    StagedFolder(path).sweep()
    HandoffFolder(path).sweep()
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"x"]


def test_a_host_that_was_restarted(path: Path) -> None:
    stage(path, rows(b"x"))
    owner = StagedFolder(path).path / JOB / "owner.json"
    owner.write_text(json.dumps(json.loads(owner.read_bytes()) | {"boot": "another"}))
    StagedFolder(path).sweep()
    assert left_over(path) == []


# --- The format


def test_round_trip() -> None:
    one = work(StagedFile(name="a.arrow", rows=1, size_bytes=2, crc32=3), key="q", number=7)
    assert decode_work(encode_work(one)) == one
    assert one.work_id == work_id_of("q", 7) != work_id_of("q", 8)


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_names_stay_in_their_folder(name: str) -> None:
    for one in (work(folder=name), work(StagedFile(name=name, rows=1, size_bytes=2, crc32=3))):
        with pytest.raises(errors.CorruptRecord, match="outside"):
            decode_work(encode_work(one))


def test_older_versions_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from cometmq.store import handoff_files

    encoded = encode_work(work())
    monkeypatch.setattr(handoff_files, "_LATER_VERSION", 1)
    with pytest.raises(NewerWork):
        decode_work(encoded)


def test_a_damaged_note_is_reported(path: Path) -> None:
    StagedFolder(path).set_done(work(key="q", number=1), 0)
    (path / "cometmq" / "staged" / "done" / "q.json").write_text("{")
    with pytest.raises(errors.CorruptRecord, match="damaged"):
        StagedFolder(path).done_number("q")


# --- All or nothing


def test_rows_with_and_without_a_topic_keep_their_order(path: Path, reader: Store) -> None:
    """Null means the job's topic, which other rows of the task name."""
    batch = rows(*many(6), topic=pa.array([None, "t", None, "t", None, "t"]))
    assert commit_staged(reader, work(stage(path, batch)), timeout_s=30)
    assert bodies(reader) == [b"first", *many(6)]


def test_rejected_rows_make_no_topic(path: Path, reader: Store) -> None:
    batch = rows(b"a", b"b", topic=pa.array(["new", "t"]), queue=pa.array([0, 7], pa.int32()))
    with pytest.raises(errors.HandoffRejected, match="no 7"):
        commit_staged(reader, work(stage(path, batch)), timeout_s=30)
    assert reader.topics() == ["t"]


def test_a_body_over_the_writers_limit_is_found_before_the_first_row(path: Path, reader: Store) -> None:
    """The writer was opened with smaller limits than the job knows."""
    file = stage(path, rows(*many(5)), rows(b"x" * 2000))
    with open_small(path, settings={**SMALL, "maxMessageSize": 1000}) as writer:
        with pytest.raises(errors.HandoffRejected, match="2000"):
            commit_staged(reader, work(file), timeout_s=30)
        assert bodies(writer) == [b"first"]


def test_a_file_that_is_cut_while_it_is_read_ends_no_process(path: Path, reader: Store) -> None:
    from cometmq.store.staged_check import read_batches

    stage(path, rows(*(b"%d" % n * 3000 for n in range(100))), rows(*many(100)))
    file = path / "cometmq" / "staged" / JOB / "a.arrow"
    batches = read_batches(file)
    first = next(batches)
    os.truncate(file, 100)
    assert first.column("body")[99].as_py() == b"99" * 3000
    with pytest.raises(errors.CorruptRecord, match="was cut while it was read"):
        list(batches)


def test_a_file_has_the_rows_that_the_commit_names(path: Path, reader: Store) -> None:
    file = replace(stage(path, rows(*many(5))), rows=6)
    with pytest.raises(errors.HandoffRejected, match="has 5 rows, not 6"):
        commit_staged(reader, work(file), timeout_s=30)
    assert bodies(reader) == [b"first"]


def test_a_record_batch_above_the_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cometmq.store import staged_check

    monkeypatch.setattr(staged_check, "BATCH_BYTES_MAX", 10_000)
    stage(path, rows(b"x" * 20_000))
    with pytest.raises(errors.CorruptRecord, match=r"record batch of 20,\d+ bytes; at most 10,000"):
        list(staged_check.read_batches(path / "cometmq" / "staged" / JOB / "a.arrow"))


def test_forwarded_messages_count_for_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program forwards rows, with their properties, of work of which the writer died half-way."""
    from cometmq.store import staged_apply

    real = staged_apply._append

    def append(handle: StoreHandle, chunk: object, batch: pa.RecordBatch, target: object, one: object) -> int:
        real(handle, chunk, batch.slice(0, 2), target, one)  # type: ignore[arg-type]
        raise errors.DiskFull("no space")

    with open_small(path, background=False) as store:
        HandoffFolder(path).leave(work(stage(path, rows(*many(5)))))
        with monkeypatch.context() as patched:
            patched.setattr(staged_apply, "_append", append)
            with pytest.raises(errors.DiskFull):
                store.apply_handoffs()
        forwarded = [message for message in store.read("t") if bytes(message) != b"first"]
        store.append("u", bytes(forwarded[0]), properties=forwarded[0].properties)
        store.append_many("u", [bytes(forwarded[1])], properties=[forwarded[1].properties])
        assert store.apply_handoffs() == 1
        assert bodies(store) == [b"first", *many(5)]
        assert bodies(store, "u") == many(2)
