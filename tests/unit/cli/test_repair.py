"""``cometmq repair``: plans, questions, what is kept; and the store afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cometmq
from cometmq.store.repairing import repair
from support.command_line import run, run_json
from support.small_store import open_small

MESSAGES = 2500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 900] * MESSAGES, keys=[f"o-{number}" for number in range(MESSAGES)])
    return path


def tree(path: Path) -> dict[str, bytes]:
    return {
        os.fspath(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock"
    }


def damage(path: Path, offset: int) -> int:
    """Flip a bit in the body of a message; return where its record begins."""
    with cometmq.open(path, mode="r") as store:
        at = store.get("orders", 0, offset).physical_offset
    with (path / "commitlog" / f"{at >> 20 << 20:020d}").open("r+b") as file:
        file.seek(at % (1 << 20) + 200)
        file.write(b"!")
    return at


def test_lost_records_are_restored(path: Path) -> None:
    shutil.rmtree(path / "index")
    (path / "consumequeue" / "orders" / "0" / f"{20000:020d}").unlink()
    assert run("verify", path).code == 1
    outcome = run("repair", path, "--yes")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"rebuilt 1 queue with {MESSAGES:,} messages and an index of {MESSAGES:,} keys" in outcome.out
    assert run_json("verify", path, "--json")["problems"] == []
    with cometmq.open(path) as store:
        assert [message.queue_offset for message in store.find("orders", "o-1234")] == [1234]
        assert store.append("orders", b"next").queue_offset == MESSAGES
    kept = Path(outcome.lines[-1].removeprefix("the previous files are in "))
    assert kept.parent == path / "cometmq" / "removed"
    assert (kept / "consumequeue" / "orders" / "0" / f"{0:020d}").exists()


def test_a_dry_run_changes_nothing(path: Path) -> None:
    shutil.rmtree(path / "index")
    before = tree(path)
    outcome = run("repair", path, "--dry-run")
    assert outcome.code == 0
    assert f"{MESSAGES:,} messages in 2.4 MiB of log, {MESSAGES:,} keys" in outcome.out
    assert "will rebuild queues and index" in outcome.out
    assert tree(path) == before
    plan = run_json("repair", path, "--dry-run", "--json")
    assert (plan["dry_run"], plan["complete"], plan["keys"], plan["kept"], plan["cut_at"]) == (
        True,
        True,
        MESSAGES,
        None,
        None,
    )


def test_nobody_to_ask_needs_yes(path: Path) -> None:
    before = tree(path)
    outcome = run("repair", path)
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert tree(path) == before


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_it_asks(path: Path, answer: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.cli.repair._can_ask", lambda: True)
    outcome = run("repair", path, input=answer)
    assert outcome.code == code
    assert "Repair now?" in outcome.out
    assert (path / "cometmq" / "removed").exists() is (code == 0)


def test_damage_is_passed_over(path: Path) -> None:
    at = damage(path, 100)
    outcome = run("repair", path, "--yes")
    assert outcome.code == 0
    assert f"damaged at physical offset {at:,}" in outcome.out
    assert "are skipped" in outcome.out
    assert "1 queue offset without a message" in outcome.out
    with cometmq.open(path) as store:
        assert store.max_offset("orders") == MESSAGES
        assert len(list(store.find("orders", "o-2400"))) == 1
    assert run("verify", path).code == 4  # the log is unchanged


def test_cut_prints_its_losses_and_keeps_them(path: Path) -> None:
    at = damage(path, 1500)
    plan = run("repair", path, "--dry-run", "--cut")
    assert f"will cut the log at physical offset {at:,}" in plan.out
    assert f"{MESSAGES - 1501:,} messages behind it will be lost to readers" in plan.out
    report = run_json("repair", path, "--cut", "--yes", "--json")
    assert (report["cut_at"], report["cut_messages"], report["log_end"]) == (at, MESSAGES - 1501, at)
    kept = Path(report["kept"])
    assert (kept / "commitlog" / f"{at:020d}.cut").stat().st_size == report["cut_bytes"]
    assert (path / "commitlog" / f"{at >> 20 << 20:020d}").stat().st_size == 1 << 20
    assert run("verify", path).code == 0
    with cometmq.open(path) as store:
        assert store.append("orders", b"next").queue_offset == 1500


def test_a_store_that_is_open_is_refused(path: Path) -> None:
    with open_small(path):
        for arguments in (["--yes"], ["--dry-run"]):
            outcome = run("repair", path, *arguments)
            assert outcome.code == 3
            assert str(os.getpid()) in outcome.err or "this process" in outcome.err


def test_a_deleted_topic_stays_deleted(path: Path) -> None:
    with open_small(path) as store:
        store.append("other", b"stays")
        store.delete_topic("orders")
    report = run_json("repair", path, "--yes", "--json")
    assert (report["unwanted"], report["queues"]) == (MESSAGES, 1)
    assert not (path / "consumequeue" / "orders").exists()


def test_as_a_function(path: Path) -> None:
    at = damage(path, 7)
    places: list[tuple[int, int, str]] = []
    report = repair(path, on_damage=lambda *place: places.append(place))
    assert report.complete
    assert not report.dry_run
    assert [place[0] for place in places] == [at] == [report.first_damage]
    assert repair(path, on_progress=lambda done, total: False).complete is False
    with pytest.raises(cometmq.NotFound):
        repair(path / "nothing")
    with pytest.raises(cometmq.NotAStore):
        repair(path / "config")
