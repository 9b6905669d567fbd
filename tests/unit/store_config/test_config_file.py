"""Checks: a file and its .bak load as upstream's do; no crash, lost write, lost rename or error loses a generation.

``Disk`` remembers what was synced. A crash may happen at every operation, and before it was durable any part of a write
and any subset of the renames may be lost; each such image is loaded again.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.errors import DiskFull, Error, PermissionDenied, StorageError
from cometmq.store_config.config_file import ConfigFile, Origin
from cometmq.store_config.errors import ConfigError, ConfigSyntaxError, ConfigValueError
from cometmq.store_config.fastjson import JsonValue, encode, loads
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import FileOps, SystemFileOps

NAME = Path("/store/config/topics.json")
BACKUP = Path("/store/config/topics.json.bak")
TEMPORARY = Path("/store/config/topics.json.tmp")
BROKEN = Path("/store/config/topics.json.broken")


class PowerLossError(BaseException):
    """The machine stops here. Not an Exception, so that nothing on the way can take it for a failure."""


@dataclass
class Change:
    """A change of names that the folder's next sync makes durable: a new file, or a rename."""

    target: Path
    data: bytes
    source: Path | None = None


@dataclass
class Disk:
    """Files in memory. ``stop_at`` is the number of the operation at which power fails or ``failure`` is raised."""

    durable: dict[Path, bytes] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    visible: dict[Path, bytes] = field(default_factory=dict)
    stop_at: int | None = None
    failure: OSError | None = None
    operations: int = 0

    @staticmethod
    def with_files(files: dict[Path, bytes]) -> Disk:
        return Disk(durable=dict(files), visible=dict(files))

    def _begin(self) -> None:
        self.operations += 1
        if self.stop_at == self.operations:
            self.stop_at = None
            if self.failure is not None:
                raise self.failure
            raise PowerLossError

    def read(self, path: Path, *, bytes_max: int) -> bytes | None:
        return self.visible.get(path)

    def write_synced(self, path: Path, data: bytes) -> None:
        # The old content is gone as soon as the file is emptied, synced or not.
        new = path not in self.durable
        for part in (b"", data[: len(data) // 2], b"\0" * len(data)):
            self.visible[path] = part
            if new:
                self.pending = [change for change in self.pending if change.target != path]
                self.pending.append(Change(path, part))
            else:
                self.durable[path] = part
            self._begin()
        self.visible[path] = data
        if new:
            self.pending[-1].data = data
        else:
            self.durable[path] = data
        self._begin()

    def rename(self, source: Path, target: Path) -> None:
        self._begin()
        if source not in self.visible:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        data = self.visible.pop(source)
        self.visible[target] = data
        self.pending.append(Change(target, data, source))
        self._begin()

    def sync_folder(self, folder: Path) -> None:
        self._begin()
        assert folder == NAME.parent
        self.durable = dict(self.visible)
        self.pending.clear()
        self._begin()

    def make_folder(self, folder: Path, *, root: Path | None = None) -> None:
        self._begin()

    def images(self) -> Iterator[dict[Path, bytes]]:
        """Yield every content that the disk may have after the power is back."""
        for kept in itertools.product((False, True), repeat=len(self.pending)):
            image = dict(self.durable)
            for change in itertools.compress(self.pending, kept):
                if change.source is not None:
                    image.pop(change.source, None)
                image[change.target] = change.data
            yield image


def content(value: JsonValue) -> int:
    return Fields(value).int32("generation", -1)


def generation(number: int) -> JsonValue:
    return {"generation": number, "text": "some text that takes some bytes"}


def text(number: int) -> bytes:
    return encode(generation(number))


def load(ops: FileOps) -> int | None:
    return ConfigFile(NAME, file_ops=ops).load(content).content


def check_image(image: dict[Path, bytes], allowed: set[int | None]) -> None:
    """Require one of the allowed generations, a backup at most one behind it, and a store that goes on."""
    disk = Disk.with_files(image)
    found = load(disk)
    assert found in allowed, image
    if found == 2 and image.get(NAME) == text(2) and image.get(BACKUP):
        assert image[BACKUP] in (text(found - 1), text(found)), image
    file = ConfigFile(NAME, file_ops=disk)
    file.load(content)
    file.persist(generation(9))
    assert load(disk) == 9
    if found is not None:
        assert disk.visible[BACKUP] in (text(found), image.get(BACKUP))
        assert load(Disk.with_files({BACKUP: disk.visible[BACKUP]})) in allowed


def not_wrapped(disk: Disk) -> FileOps:
    return disk


def survive_every_crash(
    start: dict[Path, bytes],
    before: int | None,
    *,
    load_first: bool = True,
    wrap: Callable[[Disk], FileOps] = not_wrapped,
) -> int:
    """Persist generation 2 over ``start``, stop at every operation, and check every image. Returns their number."""
    count = 0
    finished = False
    stop_at = 0
    while not finished:
        stop_at += 1
        disk = Disk.with_files(start)
        file = ConfigFile(NAME, file_ops=wrap(disk))
        if load_first:
            assert file.load(content).content == before
        disk.stop_at = stop_at
        try:
            file.persist(generation(2))
            finished = True
        except PowerLossError:
            finished = False
        for image in disk.images():
            count += 1
            check_image(image, {2} if finished else {before, 2})
    return count


STARTS: list[tuple[dict[Path, bytes], int | None]] = [
    ({}, None),
    ({NAME: text(1)}, 1),
    ({NAME: text(1), BACKUP: text(0)}, 1),
    ({NAME: text(1), BACKUP: text(1)}, 1),
    ({NAME: text(1), BACKUP: text(0), TEMPORARY: text(7)}, 1),
    ({BACKUP: text(1)}, 1),
    ({NAME: b"", BACKUP: text(1)}, 1),
    ({NAME: b"{broken", BACKUP: text(1)}, 1),
    ({NAME: b"{broken", BACKUP: text(1), TEMPORARY: b"{"}, 1),
    ({NAME: b"", BACKUP: b""}, None),
]


@pytest.mark.parametrize("load_first", [True, False])
@pytest.mark.parametrize(("start", "before"), STARTS)
def test_every_crash_leaves_the_old_or_the_new_content(
    start: dict[Path, bytes], before: int | None, load_first: bool
) -> None:
    assert survive_every_crash(start, before, load_first=load_first) >= 15


def test_the_crash_test_would_find_a_missing_sync() -> None:
    class WithoutFolderSync(Disk):
        def sync_folder(self, folder: Path) -> None:
            self._begin()

    def wrap(disk: Disk) -> FileOps:
        disk.__class__ = WithoutFolderSync
        return disk

    with pytest.raises(AssertionError):
        survive_every_crash({NAME: text(1), BACKUP: text(0)}, 1, wrap=wrap)


def test_the_crash_test_would_find_a_write_in_place() -> None:
    class InPlace(Disk):
        def rename(self, source: Path, target: Path) -> None:
            if target == NAME:
                self.write_synced(target, self.visible[source])

    def wrap(disk: Disk) -> FileOps:
        disk.__class__ = InPlace
        return disk

    with pytest.raises((AssertionError, ConfigSyntaxError)):
        survive_every_crash({NAME: text(1)}, 1, wrap=wrap)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageError), (errno.EACCES, PermissionDenied)]
)
def test_every_failing_operation_leaves_a_whole_file_and_can_be_tried_again(number: int, kind: type[Error]) -> None:
    for start, before in STARTS:
        for stop_at in itertools.count(1):
            disk = Disk.with_files(start)
            file = ConfigFile(NAME, file_ops=disk)
            file.load(content)
            disk.stop_at, disk.failure = stop_at, OSError(number, os.strerror(number))
            failed = persist_failing(file)
            if failed is None:
                break
            assert type(failed) is kind
            assert failed.errno == number
            assert str(NAME) in str(failed)
            assert load(disk) in {before, 2}
            file.persist(generation(2))
            assert load(disk) == 2
            if before is not None:
                assert load(Disk.with_files({BACKUP: disk.visible[BACKUP]})) in {before, 2}


def persist_failing(file: ConfigFile) -> StorageError | None:
    try:
        file.persist(generation(2))
    except StorageError as error:
        return error
    return None


def test_the_backup_follows_one_generation_behind() -> None:
    disk = Disk()
    file = ConfigFile(NAME, file_ops=disk)
    for number in range(1, 6):
        file.persist(generation(number))
        assert disk.visible[NAME] == text(number)
        assert disk.visible.get(BACKUP) == (text(number - 1) if number > 1 else None)
    assert disk.durable == disk.visible == {NAME: text(5), BACKUP: text(4)}


@pytest.mark.parametrize(
    ("files", "expected", "origin", "warning"),
    [
        ({}, None, Origin.NONE, None),
        ({NAME: text(1)}, 1, Origin.MAIN, None),
        ({NAME: text(1), BACKUP: text(0)}, 1, Origin.MAIN, None),
        ({NAME: text(1), BACKUP: b"{broken"}, 1, Origin.MAIN, None),
        ({BACKUP: text(1)}, 1, Origin.BACKUP, f"{NAME} is missing; its .bak was used"),
        ({NAME: b"", BACKUP: text(1)}, 1, Origin.BACKUP, f"{NAME} is empty; its .bak was used"),
        ({NAME: b"", BACKUP: b""}, None, Origin.NONE, f"{NAME} is empty; there is no .bak, so the defaults were used"),
    ],
)
def test_load(files: dict[Path, bytes], expected: int | None, origin: Origin, warning: str | None) -> None:
    loaded = ConfigFile(NAME, file_ops=Disk.with_files(files)).load(content)
    assert (loaded.content, loaded.origin, loaded.main_problem, loaded.warning) == (expected, origin, None, warning)


BAD = {
    "torn": text(1)[:-5],
    "zeros": b"\0" * 100,
    "blanks": b" \n",
    "no object": b"[1]",
    "wrong type": b'{"generation":"x"}',
    "not UTF-8": b'{"\xff":1}',
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_bad_file_gives_way_to_its_backup_and_is_reported_and_kept(data: bytes) -> None:
    disk = Disk.with_files({NAME: data, BACKUP: text(1)})
    file = ConfigFile(NAME, file_ops=disk)
    loaded = file.load(content)
    assert (loaded.content, loaded.origin) == (1, Origin.BACKUP)
    assert loaded.main_problem is not None
    assert loaded.main_problem.path == NAME
    assert (
        loaded.warning
        == f"{loaded.main_problem}; its .bak was used; the next write keeps the damaged file as {NAME.name}.broken"
    )
    assert disk.visible == {NAME: data, BACKUP: text(1)}, "a load changes nothing"
    file.persist(generation(2))
    assert disk.visible == {NAME: text(2), BACKUP: text(1), BROKEN: data}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_bad_file_without_a_backup_gives_the_defaults_and_is_reported(data: bytes) -> None:
    loaded = ConfigFile(NAME, file_ops=Disk.with_files({NAME: data})).load(content)
    assert (loaded.content, loaded.origin) == (None, Origin.NONE)
    assert loaded.warning is not None
    assert loaded.warning.endswith(
        f"there is no .bak, so the defaults were used; the next write keeps the damaged file as {NAME.name}.broken"
    )


@pytest.mark.parametrize("main", [None, b"", b"{broken"])
@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_bad_backup_is_an_error_that_names_it(main: bytes | None, data: bytes) -> None:
    files = {BACKUP: data} if main is None else {NAME: main, BACKUP: data}
    with pytest.raises(ConfigError) as caught:
        ConfigFile(NAME, file_ops=Disk.with_files(files)).load(content)
    assert caught.value.path == BACKUP
    assert f"{BACKUP}: " in str(caught.value)
    assert isinstance(caught.value, ConfigSyntaxError | ConfigValueError)


def test_real_files(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / "topics.json"
    file = ConfigFile(path)
    assert file.load(content).origin is Origin.NONE
    file.persist(generation(1))
    file.persist(generation(2))
    assert path.read_bytes() == text(2)
    assert {entry.name for entry in path.parent.iterdir()} == {"topics.json", "topics.json.bak"}
    assert ConfigFile(path).load(content).content == 2


def test_real_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*topics\.json"):
        ConfigFile(path).load(content)
    path.rmdir()
    path.write_bytes(b"x" * 101)
    with pytest.raises(StorageError, match="larger than 100 bytes"):
        ConfigFile(path, bytes_max=100).load(content)


def test_real_files_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        ConfigFile(tmp_path / "store" / "config" / "topics.json").persist(generation(1))


def test_moved_store_is_not_created_again_at_its_old_place(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    file = ConfigFile(root / "config" / "topics.json", root=root)
    file.persist({"a": 1})
    root.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(StorageError, match="the store's folder was moved or deleted; put it back"):
            file.persist({"a": 2})
    assert not root.exists()
    (tmp_path / "away").rename(root)
    file.persist({"a": 3})
    assert loads(file.path.read_bytes()) == {"a": 3}


def test_a_write_is_synced_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    SystemFileOps().write_synced(tmp_path / "file", b"0123456789")
    assert synced == [10]


def test_a_reader_beside_the_writer_always_finds_a_whole_generation(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    ConfigFile(path).persist(generation(1))
    done = threading.Event()
    found: list[int | None] = []

    def follow() -> None:
        while not done.is_set():
            found.append(ConfigFile(path).load(content).content)

    reader = threading.Thread(target=follow)
    reader.start()
    writer = ConfigFile(path)
    for number in range(2, 40):
        writer.persist(generation(number))
    done.set()
    reader.join()
    assert found
    assert None not in found


def test_threads_take_turns(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "topics.json")

    def write(first: int) -> None:
        for number in range(first, first + 10):
            file.persist(generation(number))

    threads = [threading.Thread(target=write, args=(start,)) for start in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.load(content).origin is Origin.MAIN
    assert {entry.name for entry in tmp_path.iterdir()} == {"topics.json", "topics.json.bak"}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"generation":3}'])
def test_written_bytes_that_read_back_differently_replace_nothing(damage: bytes) -> None:
    class Forgetful(Disk):
        def write_synced(self, path: Path, data: bytes) -> None:
            super().write_synced(path, damage)

    files = {NAME: text(1), BACKUP: text(0)}
    disk = Forgetful(durable=dict(files), visible=files)
    file = ConfigFile(NAME, file_ops=disk)
    file.load(content)
    with pytest.raises(StorageError, match="does not read back"):
        file.persist(generation(2))
    assert load(disk) == 1


@pytest.mark.parametrize("copy", [TEMPORARY, BROKEN])
def test_an_unreadable_file_names_the_copy_to_start_with(copy: Path) -> None:
    disk = Disk.with_files({NAME: b"{broken", BACKUP: b"", copy: text(4)})
    disk.visible[BACKUP] = b"{broken too"
    with pytest.raises(ConfigError) as caught:
        load(disk)
    assert str(NAME) in str(caught.value)
    assert str(BACKUP) in str(caught.value)
    assert f"{copy.name} can be read. To start with it: cp {copy} {NAME}" in str(caught.value)
    disk.visible[NAME] = disk.visible[copy]  # as advised
    assert load(disk) == 4


def test_an_unreadable_file_without_copies_names_the_way_to_the_defaults() -> None:
    disk = Disk.with_files({NAME: b"{broken", BACKUP: b"{", TEMPORARY: b"{"})
    with pytest.raises(ConfigError, match=f"To start with the defaults: rm -f {NAME} {BACKUP}"):
        load(disk)
