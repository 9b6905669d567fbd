"""Checks: timers that a real RocketMQ left are taken over: its wheel, log and check are read and made as it made them.

``golden_timer`` does the work, a C program that `make golden-programs` builds; without it these tests are skipped.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import cometmq
from support.golden import StoreKind
from support.programs import built_program

NAME = "apache-5.3.3"
PARKED, DELIVERED = 103, 102
"""Messages that the broker parked in its run, and those that it delivered."""

UNIT = struct.Struct(">iqiqiqiiq")
SLOT = struct.Struct(">qqqii")
DAY_MS = 86_400_000
TIMER_TOPIC = "rmq_sys_wheel_timer"


class Unit(NamedTuple):
    size: int
    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    phy: int
    bytes: int
    topic_hash: int
    reserved: int


class Went(NamedTuple):
    entered: int
    delivered: int
    skipped: int
    pending: int


def units_of(root: Path) -> list[Unit]:
    data = (root / "timerlog" / f"{0:020}").read_bytes()
    units = [Unit(*UNIT.unpack_from(data, at)) for at in range(0, len(data) - 68, 52)]
    return [unit for unit in units if unit.size]


def slots_of(root: Path) -> dict[int, tuple[int, ...]]:
    slots = SLOT.iter_unpack((root / "timerwheel").read_bytes())
    return {slot[0]: slot for slot in slots if slot[0]}


def check_of(root: Path) -> tuple[int, ...]:
    return struct.unpack(">7q", (root / "config" / "timercheck").read_bytes()[:56])


def go_on(root: Path, now_ms: int) -> Went:
    done = subprocess.run(
        [built_program("golden_timer"), root, str(now_ms)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Went(*map(int, done.stdout.split()))


def delivered(root: Path, start: int = 0) -> list[tuple[object, ...]]:
    """Return what timers delivered behind a place in the log, but for what each delivery has of its own."""
    with cometmq.open(root, mode="r") as store:
        return sorted(
            (
                message.topic,
                message.queue_id,
                bytes(message.raw_body),
                sorted((name, text) for name, text in message.properties.items() if name != "TIMER_DEQUEUE_MS"),
                message.flag,
                message.sys_flag,
                message.born_timestamp_ms,
                message.born_host,
                message.store_host,
                message.reconsume_times,
            )
            for message in store.read(unwrap=False)
            if "TIMER_DEQUEUE_MS" in message.properties and message.physical_offset >= start
        )


def log_end(root: Path) -> int:
    with cometmq.open(root, mode="r") as store:
        return store.info().log_end


@pytest.mark.parametrize("kind", ["clean", "crashed"])
def test_pending_timers_alone_are_delivered(kind: StoreKind, golden_store: Callable[[str, StoreKind], Path]) -> None:
    root = golden_store(NAME, kind)
    before, start = delivered(root), log_end(root)
    went = go_on(root, check_of(root)[0] + DAY_MS)
    assert went.skipped == went.pending == 0
    fresh = delivered(root, start)
    assert len(fresh) == went.delivered
    if kind == "clean":
        assert (len(before), went.delivered) == (DELIVERED, PARKED - DELIVERED)
    # At least once: after the crash messages delivered since the last check are delivered again.
    assert {str(one) for one in before} | {str(one) for one in fresh} >= {str(one) for one in before}


def test_a_clean_stop_changes_nothing_but_the_check(golden_store: Callable[[str, StoreKind], Path]) -> None:
    root = golden_store(NAME, "clean")
    wheel, log, check = (root / "timerwheel").read_bytes(), units_of(root), check_of(root)
    now_ms = check[0]
    assert go_on(root, now_ms) == Went(0, 0, 0, pending=PARKED - DELIVERED)
    assert (root / "timerwheel").read_bytes() == wheel
    assert units_of(root) == log
    assert check_of(root) == (*check[:5], now_ms, check[6] + 1)


def test_the_wheel_is_made_again_from_the_log(golden_store: Callable[[str, StoreKind], Path]) -> None:
    root = golden_store(NAME, "clean")
    slots, check = slots_of(root), check_of(root)
    (root / "timerwheel").unlink()
    # As if nothing had been read: every slot counts, and is delivered again.
    (root / "config" / "timercheck").write_bytes(struct.pack(">7q", 0, *check[1:]) + bytes(4040))
    before, start = delivered(root), log_end(root)
    went = go_on(root, check[0] + DAY_MS)
    assert slots_of(root) == slots
    assert went == Went(0, PARKED, 0, 0)
    again = [str(one) for one in delivered(root, start)]
    assert [one for one in map(str, before) if one not in again] == []


def test_units_and_slots_are_made_as_the_broker_made_them(golden_store: Callable[[str, StoreKind], Path]) -> None:
    root = golden_store(NAME, "clean")
    theirs, slots = units_of(root), slots_of(root)
    for lost in (root / "timerwheel", root / "timerlog" / f"{0:020}", root / "config" / "timercheck"):
        lost.unlink()
    # At the time of the first one, so that all are entered; each was entered at its own time by the broker.
    now_ms = theirs[0].write_ms
    went = go_on(root, now_ms)
    assert went == Went(PARKED, 0, 0, PARKED)
    ours = units_of(root)
    assert [unit._replace(write_ms=0, delay_ms=unit.write_ms + unit.delay_ms) for unit in ours] == [
        unit._replace(write_ms=0, delay_ms=unit.write_ms + unit.delay_ms) for unit in theirs
    ]
    assert slots_of(root) == slots
    assert check_of(root)[:4] == (now_ms // 1000 * 1000, 52 * PARKED, PARKED, PARKED)
