"""``cometmq verify``: exit codes, what is named, what only topics.json knows."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.store.verification import Problem, Severity, verify
from support.command_line import run, run_json
from support.small_store import open_small

MESSAGES = 2500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three log segments and three queue files."""
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many(
            "orders", [b"x" * 900] * MESSAGES, keys=[f"o-{number}" for number in range(MESSAGES)], tags="paid"
        )
    return path


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def test_healthy(path: Path) -> None:
    outcome = run("verify", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"healthy: no problem in {MESSAGES:,} records")
    report = run_json("verify", path, "--json")
    assert report["verdict"] == "healthy"
    assert report["complete"] is True
    assert (report["records"], report["units"], report["keys"], report["index_entries"]) == (MESSAGES,) * 4
    assert report["problems"] == []


def test_a_wrong_unit_is_repairable(path: Path) -> None:
    flip(path / "consumequeue" / "orders" / "0" / f"{20000:020d}", 100 * 20 + 7)
    outcome = run("verify", path)
    assert outcome.code == 1
    assert "repairable unit-wrong at orders/0, queue offset 1,100, physical offset" in outcome.out
    assert outcome.lines[-1].startswith("`cometmq repair`")
    (problem,) = run_json("verify", path, "--json")["problems"]
    assert (problem["kind"], problem["severity"], problem["topic"], problem["queue_id"], problem["queue_offset"]) == (
        "unit-wrong",
        "repairable",
        "orders",
        0,
        1100,
    )


def test_a_lost_log_is_damage(path: Path) -> None:
    shutil.rmtree(path / "commitlog")
    shutil.rmtree(path / "consumequeue")
    for command, code in ((["verify"], 4), (["repair", "--yes"], 3), (["inspect"], 3)):
        outcome = run(*command, path)
        assert "all of its files are missing" in outcome.err
        assert "cometmq/point" in outcome.err
        assert outcome.code == code


def test_a_damaged_record_is_damage(path: Path) -> None:
    with cometmq.open(path, mode="r") as store:
        at = store.get("orders", 0, 1500).physical_offset
    flip(path / "commitlog" / f"{at >> 20 << 20:020d}", at % (1 << 20) + 200)
    outcome = run("verify", path)
    assert outcome.code == 4
    assert f"damaged    record at physical offset {at:,}" in outcome.out
    report = run_json("verify", path, "--json")
    assert report["verdict"] == "damaged"
    assert [problem["physical_offset"] for problem in report["problems"]] == [at]


def test_many_problems_are_cut_short_unless_asked(path: Path) -> None:
    folder = path / "consumequeue" / "orders" / "0"
    for offset in range(0, 900, 10):
        flip(folder / f"{0:020d}", offset * 20 + 11)
    short, whole = run("verify", path), run("verify", path, "--all")
    assert sum("unit-wrong" in line for line in short.lines) == 21
    assert "70 more of kind unit-wrong (use --all to list them)" in short.out
    assert sum("unit-wrong" in line for line in whole.lines) == 90
    assert len(run_json("verify", path, "--json")["problems"]) == 90


def test_records_of_a_deleted_topic_are_a_note(path: Path) -> None:
    with open_small(path) as store:
        store.append("other", b"stays")
        store.delete_topic("orders")
    outcome = run("verify", path)
    assert outcome.code == 0
    assert f"note       queue-missing at orders/0, physical offset 0: {MESSAGES:,} records are" in outcome.out


def test_a_lost_queue_of_a_topic_is_repairable(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders")
    (path / "consumequeue" / "other" / "0").mkdir(parents=True)
    (problem,) = run_json("verify", path, "--json", "--config", _sizes(path))["problems"]
    assert (problem["kind"], problem["severity"], problem["count"]) == ("queue-missing", "repairable", MESSAGES)


def _sizes(path: Path) -> Path:
    file = path.parent / "broker.properties"
    file.write_text("mappedFileSizeConsumeQueue=20000\n")
    return file


def test_beside_a_writer(path: Path) -> None:
    with open_small(path) as store:
        for number in range(200):
            store.append("orders", b"live", keys=f"l-{number}")
        assert run("verify", path).code == 0


def test_a_store_that_does_not_open_gives_three(path: Path, tmp_path: Path) -> None:
    outcome = run("verify", tmp_path / "nothing")
    assert (outcome.code, outcome.out) == (3, "")
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(1000)
    outcome = run("verify", path)
    assert outcome.code == 3
    assert "has 1000 bytes, but " in outcome.err


def run_the_command_of(text: str, folder: Path) -> None:
    """Run what the first pair of backticks holds, which is a ``truncate``."""
    _, command, *_ = " ".join(text.split()).split("`")
    program, option, size, file = shlex.split(command)
    assert (program, option) == ("truncate", "-s")
    assert file == Path(file).name, "no path that a shell would have to be given in quotes"
    with (folder / file).open("ab") as segment:
        segment.truncate(int(size))


@pytest.mark.parametrize(("harm", "number"), [("truncated", 0), ("truncated", 1), ("missing", 1)])
def test_the_error_of_a_short_or_missing_segment_names_the_commands_that_mend_it(
    harm: str, number: int, path: Path
) -> None:
    segments = sorted((path / "commitlog").iterdir())
    assert len(segments) >= 3
    if harm == "missing":
        segments[number].unlink()
    else:
        os.truncate(segments[number], 500_000)
    outcome = run("verify", path)
    assert outcome.code == 3
    assert "then `cometmq repair --fill`" in outcome.err
    run_the_command_of(outcome.err, path / "commitlog")
    assert run("repair", path, "--fill", "--yes").code == 0
    assert run("verify", path).code == 0


def test_a_queue_file_of_another_length_leads_to_repair(path: Path) -> None:
    unit = path / "consumequeue" / "orders" / "0" / f"{20000:020d}"
    with unit.open("r+b") as file:
        file.truncate(500)
    outcome = run("verify", path)
    assert outcome.code == 3
    assert "run `cometmq repair` to rebuild all of them" in outcome.err
    assert run("repair", path, "--yes").code == 0
    assert unit.stat().st_size == 20000
    assert run("verify", path).code == 0


def test_a_wrong_option_gives_two(path: Path) -> None:
    assert run("verify", path, "--nonsense").code == 2
    assert run("verify").code == 2


def test_as_a_function(path: Path) -> None:
    flip(path / "consumequeue" / "orders" / "0" / f"{0:020d}", 7)
    problems: list[Problem] = []
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> bool:
        steps.append((done, total))
        return True

    with cometmq.open(path, mode="r") as store:
        result = verify(store, on_problem=problems.append, on_progress=progress)
    assert result.verdict is Severity.REPAIRABLE
    assert (result.repairable, result.notes, result.damaged) == (1, 0, 0)
    assert [problem.severity for problem in problems] == [Severity.REPAIRABLE]
    assert steps[-1] == (result.log_end, result.log_end)


def test_callbacks_stop_it_and_their_errors_come_back(path: Path) -> None:
    with cometmq.open(path, mode="r") as store:
        assert verify(store, on_progress=lambda done, total: False).complete is False

        def fails(*_: Any) -> bool:
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            verify(store, on_progress=fails)
        flip(path / "consumequeue" / "orders" / "0" / f"{0:020d}", 7)
        with pytest.raises(ZeroDivisionError, match="mine"):
            verify(store, on_problem=fails)
        assert verify(store).repairable == 1


def test_json_is_one_document(path: Path) -> None:
    assert isinstance(json.loads(run("verify", path, "--json").out), dict)
