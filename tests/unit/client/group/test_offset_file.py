"""Checks: ``offsets.json`` is upstream's, and no crash, full disk or second writer loses what it held."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cometmq.client.group.offset_file import OffsetFile, offset_path
from cometmq.errors import DiskFull, InvalidArgument, PermissionDenied
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store_config.errors import ConfigError
from cometmq.store_config.file_ops import SystemFileOps

_GOLDEN = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"BcT"
\t\t}:30,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"BcT"
\t\t}:30
\t}
}"""
"""As Java clients of 4.9.7 and 5.3.3 wrote it."""


def _queue(number: int) -> MessageQueue:
    return MessageQueue(topic="BcT", broker_name="broker-a", queue_id=number)


@pytest.fixture
def file(tmp_path: Path) -> OffsetFile:
    return OffsetFile(tmp_path / "c" / "g" / "offsets.json")


def test_the_place_is_upstreams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 14."""
    assert offset_path(tmp_path, client_id="1.2.3.4@c", group="g") == tmp_path / "1.2.3.4@c" / "g" / "offsets.json"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offset_path(None, client_id="c", group="g") == tmp_path / ".rocketmq_offsets" / "c" / "g" / "offsets.json"
    for bad in ("", ".", "..", "a/b", "a\0"):
        with pytest.raises(InvalidArgument):
            offset_path(tmp_path, client_id=bad, group="g")
        with pytest.raises(InvalidArgument):
            offset_path(tmp_path, client_id="c", group=bad)


def test_file_of_java_round_trips(file: OffsetFile) -> None:
    """Promise 14: the form of a real client, both ways."""
    file.merge({_queue(1): 30, _queue(0): 30})
    assert file.path.read_text() == _GOLDEN
    assert file.read() == {_queue(0): 30, _queue(1): 30}


def test_changes_override_the_file(file: OffsetFile) -> None:
    assert file.read() == {}
    file.merge({_queue(0): 1, _queue(1): 2})
    before = file.path.read_bytes()
    file.merge({_queue(1): 1})
    assert file.read() == {_queue(0): 1, _queue(1): 1}
    assert file.path.with_name("offsets.json.bak").read_bytes() == before


@pytest.mark.parametrize("left", [None, b"", b"{", b'{"offsetTable":{{"queueId":"x"}:1}}', b'{"offsetTable":[]}'])
def test_a_bad_file_is_passed_over_for_its_backup(file: OffsetFile, left: bytes | None) -> None:
    file.merge({_queue(0): 1})
    file.merge({_queue(0): 2})
    if left is None:
        file.path.unlink()
    else:
        file.path.write_bytes(left)
    assert file.read() == {_queue(0): 1}
    file.merge({_queue(1): 5})
    assert file.read() == {_queue(0): 1, _queue(1): 5}


def test_two_bad_files_are_an_error_and_are_left_alone(file: OffsetFile) -> None:
    file.path.parent.mkdir(parents=True)
    backup = file.path.with_name("offsets.json.bak")
    for path in (file.path, backup):
        path.write_bytes(b"{{")
    for call in (file.read, lambda: file.merge({_queue(0): 1})):
        with pytest.raises(ConfigError):
            call()
    assert file.path.read_bytes() == backup.read_bytes() == b"{{"


class _Disk(SystemFileOps):
    """Counts the operations that change something and lets one of them, and all behind it, fail."""

    def __init__(self) -> None:
        self.left = -1

    def _step(self) -> None:
        if self.left == 0:
            raise OSError(28, "No space left on device")
        self.left -= 1

    def write_synced(self, path: Path, data: bytes) -> None:
        if self.left == 0:
            path.write_bytes(data[: len(data) // 2])
        self._step()
        super().write_synced(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        super().sync_folder(folder)


@pytest.mark.parametrize("steps", range(5))
def test_a_full_disk_at_any_step_loses_nothing(tmp_path: Path, steps: int) -> None:
    disk = _Disk()
    file = OffsetFile(tmp_path / "offsets.json", file_ops=disk)
    file.merge({_queue(0): 1})
    disk.left = steps
    with pytest.raises(DiskFull):
        file.merge({_queue(0): 2})
    assert OffsetFile(file.path).read() in ({_queue(0): 1}, {_queue(0): 2})
    disk.left = -1
    file.merge({_queue(1): 3})
    file.merge({_queue(0): 2})
    assert OffsetFile(file.path).read() == {_queue(0): 2, _queue(1): 3}


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    class Closed(SystemFileOps):
        def make_folder(self, folder: Path, *, root: Path | None = None) -> None:
            raise OSError(13, "Permission denied", str(folder))

    with pytest.raises(PermissionDenied):
        OffsetFile(tmp_path / "a" / "offsets.json", file_ops=Closed()).merge({_queue(0): 1})


def test_writers_beside_each_other_keep_each_others_queues(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for offset in range(1, 21):
                OffsetFile(path).merge({_queue(number): offset})
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert OffsetFile(path).read() == {_queue(number): 20 for number in range(4)}
