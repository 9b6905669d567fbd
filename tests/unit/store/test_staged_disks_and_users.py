"""Checks, as root: staged rows on a full disk are appended whole or not at all, and once; another user's work that the
writer may not read stops nobody else's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq import Retention, errors
from cometmq.store.handoff_files import HandoffFolder, MessagesWork, StagedFile, StagedWork, new_work_id
from cometmq.store.staged_check import Disks
from cometmq.store.staged_client import commit_staged, work_id_of
from cometmq.store.staged_files import Owner, StagedFolder
from support.small_store import SMALL, open_small

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system, and other users, need root")

NOBODY = 65_534


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Other users may read new files, also where the tests were started with another umask."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def stage(path: Path, bodies: list[bytes], job: str = "job-1") -> StagedFile:
    folder = StagedFolder(path)
    folder.begin(job, Owner(os.getpid()))
    file = folder.path / job / "a.arrow"
    with pa.ipc.new_file(str(file), pa.schema([("body", pa.binary())])) as writer:
        for start in range(0, len(bodies), 10):
            writer.write_batch(pa.record_batch({"body": pa.array(bodies[start : start + 10], pa.binary())}))
    content = file.read_bytes()
    return StagedFile(name="a.arrow", rows=len(bodies), size_bytes=len(content), crc32=zlib.crc32(content))


def work_of(file: StagedFile, job: str = "job-1", key: str | None = "key") -> StagedWork:
    return StagedWork(
        work_id=work_id_of(key, 0),
        folder=job,
        files=(file,),
        topic="t",
        topic_queues=1,
        done_key=key,
        done_number=0,
        born_timestamp_ms=5,
    )


ROWS = [b"%03d" % number * 30_000 for number in range(60)]


def bodies(path: Path) -> list[bytes]:
    with open_small(path, mode="r") as reader:
        return [bytes(message)[:3] for message in reader.read("t")]


EXPECTED = [b"fir", *(row[:3] for row in ROWS)]


@pytest.mark.parametrize("room", ["9m", "5600k"])
def test_a_full_disk_leaves_no_part_of_a_job(disk: Path, room: str) -> None:
    """5.4 MB of rows that are staged on the same disk need as much again in the log."""
    path = disk / "store"
    with open_small(path) as store:
        store.append("t", b"first")
    file = stage(path, ROWS)
    resize(disk, room)
    with open_small(path, mode="r") as reader:
        for _ in range(2):  # run again, the job finds that it waits
            with pytest.raises(errors.HandoffWaiting, match="do not write it again"):
                commit_staged(reader, work_of(file), timeout_s=0.2)
            assert bodies(path) == [b"fir"]
        resize(disk, "40m")
        assert not commit_staged(reader, work_of(file), timeout_s=30)
    assert bodies(path) == EXPECTED


@pytest.mark.parametrize("second", [False, True])
def test_full_disk_of_a_log_elsewhere_leaves_no_part_of_a_job(disk: Path, tmp_path: Path, second: bool) -> None:
    """The disk of ``storePathCommitLog`` counts, not the one of the store's folder, which has room."""
    path = tmp_path / "store"
    folders = [disk / "log", disk / "more"] if second else [disk / "log"]  # two folders of one disk are one disk
    settings = {**SMALL, "storePathCommitLog": ",".join(map(os.fspath, folders))}
    resize(disk, "4m")
    with open_small(path, background=False, settings=settings) as store:
        store.append("t", b"first")
        HandoffFolder(path).leave(work_of(stage(path, ROWS)))
        for _ in range(2):
            with pytest.raises(errors.DiskFull, match=f"the disk of {disk / 'log'} .*Do not write them again"):
                store.apply_handoffs()
            assert [bytes(message)[:3] for message in store.read("t")] == [b"fir"]
        resize(disk, "40m")
        assert store.apply_handoffs() == 1
        assert [bytes(message)[:3] for message in store.read("t")] == EXPECTED


def test_full_disk_of_the_store_folder_does_not_count_for_the_log(disk: Path, tmp_path: Path) -> None:
    """Its queue files need 24 bytes a row there, and the rows 90 KB each on the other disk."""
    path = disk / "store"
    settings = {**SMALL, "storePathCommitLog": os.fspath(tmp_path / "log")}
    with open_small(path, background=False, settings=settings) as store:
        store.append("t", b"first")
        HandoffFolder(path).leave(work_of(stage(path, ROWS)))
        resize(disk, "6400k")
        assert store.apply_handoffs() == 1
        assert [bytes(message)[:3] for message in store.read("t")] == EXPECTED


def test_a_disk_that_fills_behind_the_check(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes the room that was there: the part that is in the log is gone on from."""
    monkeypatch.setattr(Disks, "check", lambda *_, **__: None)
    path = disk / "store"
    with open_small(path) as store:
        store.append("t", b"first")
    file = stage(path, ROWS)
    resize(disk, "9m")
    with open_small(path, mode="r") as reader:
        with pytest.raises(errors.HandoffWaiting, match="do not write it again"):
            commit_staged(reader, work_of(file), timeout_s=0.2)
        assert 1 < len(bodies(path)) < len(EXPECTED)
        resize(disk, "40m")
        assert not commit_staged(reader, work_of(file), timeout_s=30)
    assert bodies(path) == EXPECTED


def test_files_are_not_read_again_and_again_while_the_disk_is_full(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cometmq.store import staged_apply

    path = disk / "store"
    with open_small(path, background=False) as store:
        store.append("t", b"first")
        HandoffFolder(path).leave(work_of(stage(path, ROWS)))
        resize(disk, "8m")
        with monkeypatch.context() as patched:
            patched.delattr(staged_apply, "check_file")
            with pytest.raises(errors.DiskFull, match="Do not write them again"):
                store.apply_handoffs()
        resize(disk, "40m")
        assert store.apply_handoffs() == 1
    assert bodies(path) == EXPECTED


def test_the_warning_ratio_counts_as_full(disk: Path) -> None:
    """The writer would refuse appends half-way: its retention refuses them above a share of the disk."""
    path = disk / "store"
    retention = Retention(max_used_ratio=0.4, force_ratio=0.45, warning_ratio=0.5)
    with open_small(path, background=False, retention=retention) as store:
        store.append("t", b"first")
        HandoffFolder(path).leave(work_of(stage(path, ROWS)))
        with pytest.raises(errors.DiskFull, match="Do not write them again"):
            store.apply_handoffs()
        resize(disk, "60m")
        assert store.apply_handoffs() == 1
    assert bodies(path) == EXPECTED


# --- Two users


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user reaches."""
    folder = Path(tempfile.mkdtemp(prefix="cometmq-shared-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_nobody(action: Callable[[], None]) -> None:
    """Run an action as another user, in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def messages(*bodies: bytes) -> MessagesWork:
    return MessagesWork(
        work_id=new_work_id(),
        topic="t",
        bodies=bodies,
        tags=None,
        keys=None,
        properties=None,
        queues=None,
        flag=0,
        born_timestamps_ms=[5] * len(bodies),
    )


def leave_unreadable(path: Path, staged: bool) -> Path:
    """Leave work as root with umask 077; return the path that nobody else may read."""
    before = os.umask(0o077)
    try:
        if not staged:
            return path / "cometmq" / "handoff" / f"{HandoffFolder(path).leave(messages(b'private'))}.work"
        file = stage(path, [b"private"])
    finally:
        os.umask(before)
    HandoffFolder(path).leave(work_of(file))
    return path / "cometmq" / "staged" / "job-1"


@pytest.mark.parametrize("staged", [False, True], ids=["messages", "staged"])
def test_work_of_another_user_stops_nobody_elses(shared: Path, staged: bool) -> None:
    path = shared / "store"

    def write() -> None:
        with open_small(path) as store:
            store.append("t", b"first")
        for name in ("handoff", "staged"):
            (path / "cometmq" / name).mkdir(exist_ok=True)
            (path / "cometmq" / name).chmod(0o777)

    def apply() -> None:
        with open_small(path, background=False) as store:
            assert store.apply_handoffs() == 0
            store.append("t", b"second")
        StagedFolder(path).sweep()

    as_nobody(write)
    private = leave_unreadable(path, staged)
    HandoffFolder(path).leave(messages(b"public"))
    as_nobody(apply)
    assert bodies(path) == [b"fir", b"pub", b"sec"]
    if private.is_dir():
        for file in private.iterdir():
            file.chmod(0o644)
    private.chmod(0o777)
    as_nobody(apply)
    assert bodies(path) == [b"fir", b"pub", b"sec", b"pri", b"sec"]
    assert HandoffFolder(path).waiting() == []


def test_applied_work_that_cannot_be_removed_is_not_applied_again(shared: Path) -> None:
    """In a folder with the sticky bit only its user may remove a file."""
    path = shared / "store"

    def write() -> None:
        with open_small(path) as store:
            store.append("t", b"first")

    as_nobody(write)
    folder = path / "cometmq" / "handoff"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    os.chown(folder, 0, 0)
    HandoffFolder(path).leave(messages(b"other user's"))
    for _ in range(3):
        as_nobody(write)
    assert bodies(path) == [b"fir", b"oth", b"fir", b"fir", b"fir"]
