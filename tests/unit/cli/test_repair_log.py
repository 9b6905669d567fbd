"""Checks: verify's report before and after each repair of a damaged log, that its advice helps, and the kept bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cometmq
from support.command_line import run, run_json
from support.small_store import open_small

MESSAGES = 2500
SEGMENT = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 900] * MESSAGES, keys=[f"o-{number}" for number in range(MESSAGES)])
    return path


def place(path: Path, number: int) -> int:
    with cometmq.open(path, mode="r") as store:
        return store.get("orders", 0, number).physical_offset


def poke(path: Path, offset: int, data: bytes) -> None:
    with (path / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}").open("r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(data)


def body(path: Path) -> None:
    poke(path, place(path, 1200) + 200, b"!!!!")


def magic(path: Path) -> None:
    poke(path, place(path, 1200) + 4, b"\xff\xff\xff\xff")


def page(path: Path) -> None:
    poke(path, place(path, 1200) // 4096 * 4096, bytes(4096))


def end_of_a_segment(path: Path) -> None:
    poke(path, place(path, 1200) // SEGMENT * SEGMENT + SEGMENT - 4096, bytes(4096))


DAMAGES = [body, magic, page, end_of_a_segment]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_filled_log_is_healthy(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    found = run("verify", path)
    assert found.code == 4
    assert "`cometmq repair --fill` keeps the damaged bytes aside" in found.lines[-1]
    plan = run_json("repair", path, "--fill", "--dry-run", "--json")
    assert plan["filled_bytes"] == plan["damaged_bytes"] > 0
    assert "filler records will replace" in run("repair", path, "--fill", "--dry-run").out
    report = run_json("repair", path, "--fill", "--yes", "--json")
    assert (report["filled_bytes"], report["cut_at"]) == (plan["filled_bytes"], None)
    assert run("verify", path).code == 0
    kept = list((Path(report["kept"]) / "commitlog").glob("*.damaged"))
    assert sum(file.stat().st_size for file in kept) == report["damaged_bytes"]
    lost = MESSAGES - report["messages"]
    assert 1 <= lost <= 6
    with cometmq.open(path) as store:
        assert len(list(store.read("orders"))) == len(list(store.read())) == MESSAGES - lost
        assert store.append("orders", b"next").queue_offset == MESSAGES
    assert run("verify", path).code == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_that_was_passed_over_is_still_named(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    outcome = run("repair", path, "--yes")
    assert outcome.code == 0
    assert "stay in the log and are skipped: `cometmq verify` reports them" in outcome.out
    after = run("verify", path)
    assert after.code == 4
    assert "--fill" in after.lines[-1]
    with cometmq.open(path) as store:
        assert store.append("orders", b"next").queue_offset == MESSAGES
    assert run("repair", path, "--fill", "--yes").code == 0
    assert run("verify", path).code == 0


def test_a_torn_tail(path: Path) -> None:
    with cometmq.open(path, mode="r") as store:
        end = store.info().log_end
    poke(path, end, b"\x00\x00\x01\x00\xda\xa3\x20\xa7torn")
    outcome = run("repair", path, "--yes")
    assert "are a torn tail: the next writer blanks them" in outcome.out
    found = run("verify", path)
    assert found.code == 1
    assert "`cometmq repair --cut-tail`" in found.lines[-1]
    assert not any(line.startswith("`cometmq repair` builds") for line in found.lines)
    assert "will cut a torn tail of 12 B and keep it aside" in run("repair", path, "--cut-tail", "--dry-run").out
    assert "cut a torn tail of 12 B and kept it aside" in run("repair", path, "--cut-tail", "--yes").out
    assert run("verify", path).code == 0


def test_filling_blanks_a_torn_tail_too(path: Path) -> None:
    body(path)
    with cometmq.open(path, mode="r") as store:
        end = store.info().log_end
    poke(path, end, b"\x00\x00\x01\x00\xda\xa3\x20\xa7torn")
    assert run("verify", path).code == 4
    assert run("repair", path, "--fill", "--yes").code == 0
    assert run("verify", path).code == 0


def test_fill_or_cut(path: Path) -> None:
    outcome = run("repair", path, "--fill", "--cut", "--yes")
    assert outcome.code == 2
    assert "exclude each other" in outcome.err
