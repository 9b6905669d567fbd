"""Checks: levels go on where they were, exactly after a crash with its mark, at least once without; files are sound."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cometmq.broker.delays import BrokerDelays
from cometmq.broker.plane import DelayMark
from cometmq.errors import StoreFenced
from cometmq.remoting.bodies.config_tables import KVTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store_config.delay_offsets import DelayOffsets
from support.broker_twins import MemoryPlane, Rig


def begun(root: Path, plane: MemoryPlane) -> BrokerDelays:
    delays = BrokerDelays(root, plane, now_ms=lambda: 77)
    delays.start()
    return delays


def written(root: Path, *, log_end: int = 100) -> None:
    plane = MemoryPlane(log_end=log_end)
    delays = begun(root, plane)
    assert plane.delivering
    plane.levels = {1: 5, 3: 2}
    plane.levels_version = 4
    delays.stop()
    assert not plane.delivering


def test_progress_is_kept(tmp_path: Path) -> None:
    written(tmp_path)
    stored = DelayOffsets(tmp_path / "config")
    stored.load()
    assert stored.all() == {1: 5, 3: 2}
    assert stored.data_version.counter == 4
    plane = MemoryPlane(log_end=100)
    begun(tmp_path, plane)
    assert plane.levels == {1: 5, 3: 2}


def test_delivery_found_behind_the_mark_is_not_repeated(tmp_path: Path) -> None:
    written(tmp_path)
    plane = MemoryPlane(log_end=500, redelivered=3)
    begun(tmp_path, plane)
    assert plane.levels == {1: 8, 3: 5}


def test_a_mark_of_another_log_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, log_end=1_000)
    plane = MemoryPlane(log_end=500, redelivered=3)
    begun(tmp_path, plane)
    assert plane.levels == {1: 5, 3: 2}


def test_a_mark_of_another_progress_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path)
    table = DelayOffsets(tmp_path / "config")
    table.load()
    table.set(1, 6)  # as a Java broker that ran in between leaves it
    table.persist()
    plane = MemoryPlane(log_end=500, redelivered=3)
    begun(tmp_path, plane)
    assert plane.levels == {1: 6, 3: 2}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-5],
        lambda data: data.replace(b'"log_end": 100', b'"log_end": 101'),
        lambda data: b"zzzzzzzz " + data[9:],
        lambda data: b"00000000 []\n",
        lambda data: b"\xff\xfe",
    ],
)
def test_a_damaged_mark_is_passed_over(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    written(tmp_path)
    mark = tmp_path / "cometmq" / "delay.json"
    mark.write_bytes(damage(mark.read_bytes()))
    plane = MemoryPlane(log_end=500, redelivered=3)
    begun(tmp_path, plane)
    assert plane.levels == {1: 5, 3: 2}


def test_nothing_is_written_where_nothing_moved(tmp_path: Path) -> None:
    written(tmp_path)
    mark = tmp_path / "cometmq" / "delay.json"
    mark.unlink()
    delays = begun(tmp_path, MemoryPlane(log_end=100))
    delays.persist()
    assert not mark.exists()


def test_one_writes_after_the_other(tmp_path: Path) -> None:
    plane = MemoryPlane(log_end=100)
    delays = begun(tmp_path, plane)
    plane.levels = {1: 5}
    second = threading.Thread(target=delays.persist)
    order: list[str] = []
    take_mark, write_mark = plane.delay_mark, delays._write_mark

    def mark() -> DelayMark:
        order.append("begins")
        if len(order) == 1:
            second.start()
        return take_mark()

    def write(mark: DelayMark) -> None:
        assert delays._writing.locked()
        write_mark(mark)
        plane.levels = {1: 9}
        order.append("written")

    plane.delay_mark = mark  # type: ignore[method-assign]
    delays._write_mark = write  # type: ignore[method-assign]
    delays.persist()
    second.join()
    assert order == ["begins", "written", "begins", "written"]
    stored = DelayOffsets(tmp_path / "config")
    stored.load()
    assert stored.all() == {1: 9}


def test_odd_levels_in_the_file_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "delayOffset.json").write_text('{"offsetTable":{0:4,1:-1,2:7}}')
    plane = MemoryPlane()
    begun(tmp_path, plane)
    assert plane.levels == {2: 7}


def test_the_table_as_slaves_read_it(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.plane.levels = {2: 7}
        answer = rig.run(RequestCode.GET_ALL_DELAY_OFFSET)
        assert b'"offsetTable":{2:7}' in answer.body


def test_a_look_neither_waits_for_the_disk_nor_goes_ahead_of_it(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.plane.flush_fails = StoreFenced("a write failed before")
        rig.plane.levels = {2: 7}
        assert b'"offsetTable":{2:7}' in rig.run(RequestCode.GET_ALL_DELAY_OFFSET).body
        assert rig.control.delays._table.all() == {}, "progress that is not on disk must not get into the file"
        answer = rig.run(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert answer.code == ResponseCode.SUCCESS
        assert "scheduleMessageOffset_2" in KVTable.from_json(answer.body).table
