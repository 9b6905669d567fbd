"""Checks: a staged file with any bytes and a fitting checksum is appended as it is meant, or put aside.

Each damaged file is applied by a program of its own, since what is tested for would take the process along.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import cometmq
from cometmq import errors
from cometmq.store.handoff_files import HandoffFolder, StagedFile, StagedWork, new_work_id
from cometmq.store.staged_files import Owner, StagedFolder
from support.small_store import open_small

SEED = int(os.environ.get("CMQ_SEED", "20261123"), 0)
MUTATIONS = 20_000 if os.environ.get("CMQ_LONG") else 400


def content_of(batch: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def honest() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "body": pa.array([b"first body", b"", b"third body"], pa.binary()),
            "tags": pa.array(["x", None, "y"]),
            "queue": pa.array([0, None, 0], pa.int32()),
        }
    )


def leave(path: Path, content: bytes, *, job: str = "job-1", topic: str = "t") -> str:
    folder = StagedFolder(path)
    folder.begin(job, Owner(os.getpid()))
    (folder.path / job / "a.arrow").write_bytes(content)
    file = StagedFile(name="a.arrow", rows=3, size_bytes=len(content), crc32=zlib.crc32(content))
    work = StagedWork(
        work_id=new_work_id(),
        folder=job,
        files=(file,),
        topic=topic,
        topic_queues=1,
        done_key=None,
        done_number=0,
        born_timestamp_ms=5,
    )
    return HandoffFolder(path).leave(work)


def offsets_at(content: bytes) -> int:
    """Return where the body column's four offsets lie."""
    return content.index(b"".join(offset.to_bytes(4, "little") for offset in (0, 10, 10, 20)))


def patched(at: int, value: int) -> Callable[[bytes], bytes]:
    def patch(content: bytes) -> bytes:
        place = offsets_at(content) + 4 * at
        return content[:place] + value.to_bytes(4, "little", signed=True) + content[place + 4 :]

    return patch


LIES = {
    "end-behind-the-file": patched(3, 4 << 20),
    "end-far-away": patched(3, 2**31 - 1),
    "start-behind-the-file": patched(0, 1 << 30),
    "negative": patched(1, -1),
    "falling": patched(1, 15),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_offsets_that_lie_are_put_aside(tmp_path: Path, lie: Callable[[bytes], bytes]) -> None:
    with open_small(tmp_path, background=False) as store:
        store.create_topic("t")
        name = leave(tmp_path, lie(content_of(honest())))
        assert store.apply_handoffs() == 0
        assert list(store.read("t")) == []
        reason = HandoffFolder(tmp_path).rejection(name)
        assert reason is not None
        assert "is not what it should be" in reason


def test_compressed_files_are_put_aside_before_they_are_inflated(tmp_path: Path) -> None:
    zeros = pa.record_batch({"body": pa.array([b"\0" * 250_000] * 64, pa.binary())})
    content = content_of(zeros, compression="zstd")
    assert len(content) < 100_000
    with open_small(tmp_path, background=False) as store:
        store.create_topic("t")
        name = leave(tmp_path, content)
        before = pa.total_allocated_bytes()
        assert store.apply_handoffs() == 0
        assert pa.total_allocated_bytes() == before
        assert "compressed" in (HandoffFolder(tmp_path).rejection(name) or "")


def test_a_row_that_cannot_be_appended_leaves_none(tmp_path: Path) -> None:
    rows = pa.record_batch({"body": pa.array([b"good", b"x" * 300_001, b"good"], pa.binary())})
    with open_small(tmp_path, background=False) as store:
        store.create_topic("t")
        name = leave(tmp_path, content_of(rows))
        assert store.apply_handoffs() == 0
        assert list(store.read("t")) == []
        assert "300001 bytes" in (HandoffFolder(tmp_path).rejection(name) or "")


def test_links_and_devices_in_the_place_of_a_file_are_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.arrow"
    content = content_of(honest())
    outside.write_bytes(content)
    for make in (lambda at: at.symlink_to(outside), os.mkfifo):
        root = tmp_path / f"store-{make.__name__}".replace("<lambda>", "link")
        with open_small(root, background=False) as store:
            store.create_topic("t")
            leave(root, content)
            file = root / "cometmq" / "staged" / "job-1" / "a.arrow"
            file.unlink()
            make(file)
            assert store.apply_handoffs() == 0
            assert list(store.read("t")) == []


def test_mutated_files_kill_nobody(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from hostile.test_staged_files import apply_mutations\n"
        "from pathlib import Path\n"
        "apply_mutations(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))\n"
    )
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests}"}
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(SEED), str(MUTATIONS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"CMQ_SEED={SEED}\n{ended.stdout[-500:]}\n{ended.stderr[-3000:]}"


def apply_mutations(path: Path, seed: int, count: int) -> None:
    """Apply damaged files one after the other; every row that comes of them has only bytes of its file."""
    rng = random.Random(seed)
    source = content_of(honest())
    seen = 0
    with open_small(path, background=False) as store:
        store.create_topic("t")
        for number in range(count):
            content = bytearray(source)
            for _ in range(rng.choice((1, 1, 2, 4))):
                at = rng.randrange(len(content))
                content[at] = rng.choice((0, 1, 127, 128, 255, content[at] ^ (1 << rng.randrange(8))))
            print(f"mutation {number}", flush=True)
            leave(path, bytes(content), job=f"job-{number}")
            store.apply_handoffs()
            seen = check_rows(store, bytes(content), seen)


def check_rows(store: cometmq.Store, content: bytes, seen: int) -> int:
    """Compare what was appended since ``seen``; return the new end."""
    for message in store.read("t", start=seen):
        assert message.body_bytes in content
        seen = message.queue_offset + 1
    return seen


def test_arrow_arrays_that_lie_are_refused(tmp_path: Path) -> None:
    content = LIES["end-behind-the-file"](content_of(honest()))
    batch = pa.ipc.open_file(pa.py_buffer(content)).get_batch(0)
    with open_small(tmp_path) as store:
        store.create_topic("t")
        for bodies in (batch.column("body"), pa.chunked_array([batch.column("body")])):
            with pytest.raises(ValueError, match="the Arrow array is damaged"):
                store.append_many("t", bodies)
        assert list(store.read("t")) == []


def test_views_that_lie_are_refused(tmp_path: Path) -> None:
    sound = pa.array([b"x" * 20], pa.binary_view())
    view, data = sound.buffers()[1].to_pybytes(), sound.buffers()[2]
    for offset, length in ((1, 20), (0, 21), (2**31 - 1, 20), (0, 2**31 - 1)):
        lying = length.to_bytes(4, "little") + view[4:12] + offset.to_bytes(4, "little")
        array = pa.Array.from_buffers(pa.binary_view(), 1, [None, pa.py_buffer(lying), data])
        with open_small(tmp_path) as store:
            store.create_topic("t", exist_ok=True)
            with pytest.raises((ValueError, errors.Error), match="Arrow"):
                store.append_many("t", Foreign(array))
            assert list(store.read("t")) == []


class Foreign:
    """An array of a library that is not pyarrow."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        exported: tuple[object, object] = self._array.__arrow_c_array__(requested_schema)
        return exported
