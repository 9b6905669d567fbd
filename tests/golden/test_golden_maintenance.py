"""Every store of a real RocketMQ, clean and crashed: inspected, verified as healthy, repaired, and whole afterwards."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import cometmq
from cometmq.store.inspection import inspect
from cometmq.store.repairing import repair
from cometmq.store.verification import Problem, Severity, verify
from conftest import GoldenStoreFixture
from support.command_line import run, run_json
from support.golden import StoreKind, expected_records, golden_names

STORES = [(name, kind) for kind in ("clean", "crashed") for name in golden_names(kind)]  # type: ignore[arg-type]
ROLLED_BACK = 0xC


def queues_of(path: Path) -> dict[tuple[str, int], tuple[int, int]]:
    with cometmq.open(path, mode="r") as store:
        return {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in store.queues()}


def contents_of(path: Path) -> list[tuple[str, int, int, int, bytes]]:
    with cometmq.open(path, mode="r") as store, store.read(unwrap=False) as reader:
        return [(m.topic, m.queue_id, m.queue_offset, m.physical_offset, bytes(m.raw_body)) for m in reader]


@pytest.mark.parametrize(("name", "kind"), STORES)
def test_verify_says_healthy(name: str, kind: StoreKind, golden_store: GoldenStoreFixture) -> None:
    path = golden_store(name, kind)
    problems: list[Problem] = []
    with cometmq.open(path, mode="r") as store:
        result = verify(store, on_problem=problems.append)
    assert result.verdict is Severity.NOTE
    assert result.complete
    # Left by a crash of upstream: keys that are not in the index.
    assert {problem.kind for problem in problems} <= {"index-missing"}
    assert result.keys_missing == sum(problem.count for problem in problems)
    if kind == "clean":
        assert result.records == len(expected_records(name))
    assert run("verify", path).code == 0


@pytest.mark.parametrize(("name", "kind"), STORES)
def test_inspect_sees_all_of_it(name: str, kind: StoreKind, golden_store: GoldenStoreFixture) -> None:
    path = golden_store(name, kind)
    report = run_json("inspect", path, "--json")
    assert report["health"]["unclean"] is (kind == "crashed")
    assert report["health"]["writer_pid"] == 0
    found = {
        (topic["name"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
        for topic in report["topics"]
        for queue in topic["queues"]
    }
    assert found == queues_of(path)
    assert report["groups"]
    assert run("inspect", path).code == 0
    with cometmq.open(path, mode="r") as store:
        assert inspect(store).messages == report["messages"]


@pytest.mark.parametrize(("name", "kind"), STORES)
def test_after_a_repair_every_key_is_found(name: str, kind: StoreKind, golden_store: GoldenStoreFixture) -> None:
    path = golden_store(name, kind)
    queues, contents = queues_of(path), contents_of(path)
    lengths = {file: file.stat().st_size for file in (path / "commitlog").iterdir()}
    report = repair(path)
    assert report.complete
    assert (report.damaged_places, report.gaps, report.unwanted, report.cut_at) == (0, 0, 0, None)
    assert report.records == len(contents)
    assert {file: file.stat().st_size for file in (path / "commitlog").iterdir()} == lengths
    assert contents_of(path) == contents
    assert queues_of(path) == queues
    assert run_json("verify", path, "--json")["problems"] == []
    _check_every_key(path)


def _check_every_key(path: Path) -> None:
    records = defaultdict(set)
    with cometmq.open(path, mode="r") as store:
        with store.read(unwrap=False) as reader:
            for message in reader:
                if message.sys_flag & ROLLED_BACK == ROLLED_BACK:
                    continue
                for key in {*message.keys, message.unique_id} - {None}:
                    records[message.topic, key].add(message.physical_offset)
        for (topic, key), expected in records.items():
            assert {message.physical_offset for message in store.find(topic, key)} == expected
    assert records


@pytest.mark.parametrize("name", golden_names("crashed"))
def test_a_crashed_store_opens_after_its_repair(name: str, golden_store: GoldenStoreFixture) -> None:
    path = golden_store(name, "crashed")
    queues = queues_of(path)
    outcome = run("repair", path, "--yes")
    assert outcome.code == 0, outcome.err
    with cometmq.open(path) as store:
        opening = store.opening()
        assert not opening.was_unclean
        assert opening.trusted_point
        assert (opening.records, opening.cut_bytes, opening.gaps) == (0, 0, 0)
        (topic, queue_id), (_, end) = max(queues.items(), key=lambda item: item[1][1])
        assert store.max_offset(topic, queue_id) == end
        store.create_topic("AfterRepair")
        store.append("AfterRepair", b"goes on", keys="after")
        assert len(list(store.find("AfterRepair", "after"))) == 1
    assert run("verify", path).code == 0


def test_cat_prints_the_messages_that_upstream_reads(golden_store: GoldenStoreFixture) -> None:
    import json

    path = golden_store("apache-5.3.3", "clean")
    rows = [json.loads(line) for line in run("cat", path, "--format", "json").lines]
    expected = expected_records("apache-5.3.3")
    assert [row["physical_offset"] for row in rows] == [record["physicalOffset"] for record in expected]
    for row, record in zip(rows, expected, strict=True):
        assert (row["topic"], row["queue_id"], row["queue_offset"]) == (
            record["topic"],
            record["queueId"],
            record["queueOffset"],
        )
