"""``cometmq inspect`` on stores of our own: live, clean and crashed; the output for people and for scripts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cometmq
from support.command_line import run, run_json
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.create_topic("orders", queues=3)
        for number in range(30):
            store.append("orders", b"body %d" % number, tags="paid", keys=f"o-{number}")
        store.append("other", b"x")
        store.set_progress("billing", "orders", 0, 4)
        store.set_progress("billing", "orders", 1, 10)
    return path


def test_json_has_topics_groups_and_health(path: Path) -> None:
    report = run_json("inspect", path, "--json", "--no-system")
    assert report["path"] == str(path)
    assert report["messages"] == 31
    assert report["log_min"] == 0 < report["log_end"]
    assert report["earliest_timestamp_ms"] <= report["latest_timestamp_ms"]
    orders, other = report["topics"]
    assert (orders["name"], orders["messages"], orders["write_queues"], orders["configured"]) == ("orders", 30, 3, True)
    assert [(q["queue_id"], q["min_offset"], q["max_offset"]) for q in orders["queues"]] == [
        (0, 0, 10),
        (1, 0, 10),
        (2, 0, 10),
    ]
    assert orders["earliest_timestamp_ms"] == report["earliest_timestamp_ms"]
    assert other["messages"] == 1
    (group,) = report["groups"]
    assert (group["group"], group["topic"], group["lag"]) == ("billing", "orders", 6)
    assert group["queues"] == [{"queue_id": 0, "offset": 4, "lag": 6}, {"queue_id": 1, "offset": 10, "lag": 0}]
    assert {folder["name"] for folder in report["folders"]} >= {"commitlog", "consumequeue", "index", "config"}
    sizes = {size["setting"]: (size["value"], size["default"]) for size in report["layout"]}
    assert sizes["mappedFileSizeCommitLog"] == (1 << 20, 1 << 30)
    assert report["index"]["keys"] == 30
    assert report["index"]["gap_from"] is None
    health = report["health"]
    assert (health["writer_pid"], health["unclean"], health["repair_interrupted"], health["remarks"]) == (
        0,
        False,
        False,
        [],
    )
    assert health["checkpoint_log_ms"] == report["latest_timestamp_ms"]


def test_the_tree_shows_the_same(path: Path) -> None:
    text = run("inspect", path).out
    for piece in (
        "31 messages",
        "orders: 30 messages, 3 of 3 queues in use",
        "queue 0: 10 messages, 0 to 10",
        "billing in orders: lag 6 messages",
        "queue 0: at 4, lag 6",
        "not open for writing",
        "mappedFileSizeCommitLog = 1,048,576",
    ):
        assert piece in text


def test_one_topic(path: Path) -> None:
    report = run_json("inspect", path, "--topic", "other", "--json")
    assert [topic["name"] for topic in report["topics"]] == ["other"]
    assert report["groups"] == []
    missing = run("inspect", path, "--topic", "nosuch")
    assert (missing.code, missing.out) == (3, "")
    assert "nosuch" in missing.err


def test_many_queues_are_summed_up(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.create_topic("wide", queues=40)
        store.append_many("wide", [b"x"] * 40)
    assert "40 queues; use --topic wide to list them" in run("inspect", tmp_path / "store").out
    assert "queue 39: 1 message" in run("inspect", tmp_path / "store", "--topic", "wide").out


def test_beside_a_writer(path: Path) -> None:
    with open_small(path) as store:
        store.append("orders", b"while it is open")
        health = run_json("inspect", path, "--json")
    assert health["messages"] == 32
    assert health["health"]["writer_pid"] == os.getpid()
    assert health["health"]["writer_is_ours"] is True
    assert health["health"]["unclean"] is False


def test_a_crashed_store(path: Path, tmp_path: Path) -> None:
    with open_small(path) as store:
        store.append("orders", b"while it is open")
        shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("wake"))
    report = run_json("inspect", tmp_path / "copy", "--json")
    assert report["health"]["unclean"] is True
    assert report["messages"] == 32
    assert "did not close" in report["health"]["remarks"][0]


def test_a_store_killed_before_its_first_checkpoint_shows_no_time(tmp_path: Path) -> None:
    with open_small(tmp_path / "young") as store:
        store.append("orders", b"x")
        shutil.copytree(tmp_path / "young", tmp_path / "copy", ignore=shutil.ignore_patterns("wake"))
    report = run_json("inspect", tmp_path / "copy", "--json")
    assert report["health"]["remarks"][1:] == [
        "there is no checkpoint: the next opening for writing reads the whole log"
    ]
    assert "1970" not in run("inspect", tmp_path / "copy").out


def test_a_lost_index_is_remarked(path: Path) -> None:
    shutil.rmtree(path / "index")
    report = run_json("inspect", path, "--json")
    assert (report["index"]["gap_from"], report["index"]["gap_to"]) == (0, report["log_end"])
    assert "cometmq repair" in report["health"]["remarks"][0]


def test_messages_without_keys_are_no_gap(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("plain", [b"x"] * 50)
    report = run_json("inspect", tmp_path / "store", "--json")
    assert report["index"]["gap_from"] is None
    assert report["health"]["remarks"] == []


def test_missing_store_is_refused(tmp_path: Path) -> None:
    for target, word in ((tmp_path / "nothing", "no store"), (tmp_path, "not a RocketMQ store")):
        (tmp_path / "file").write_text("x")
        outcome = run("inspect", target)
        assert (outcome.code, outcome.out) == (3, "")
        assert word in outcome.err
        assert outcome.err.startswith("cometmq: ")
        assert outcome.err.count("\n") == 1


def test_a_wrong_setting_is_named(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.properties"
    config.write_text("mappedFileSizeCommitLog=4194304\n")
    outcome = run("inspect", path, "--config", config)
    assert outcome.code == 3
    assert "mappedFileSizeCommitLog" in outcome.err
    config.write_text("mappedFileSizeCommitLog=1048576\n")
    assert run("inspect", path, "--config", config).code == 0


def test_names_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("orders", b"x")
    folder = tmp_path / "store" / "consumequeue"
    (folder / "orders").rename(folder / "or\x1b[31mders")
    text = run("inspect", tmp_path / "store").out
    assert "\x1b" not in text
    assert r"or\x1b[31mders" in text
    assert cometmq.__version__


def test_topic_that_is_not_utf8_is_shown(path: Path) -> None:
    """As somebody else's store may have one: its name cannot be looked up, and all else is shown all the same."""
    (path / "consumequeue" / "other").rename(path / "consumequeue" / os.fsdecode(b"oth\xffr"))
    report = run_json("inspect", path, "--json", "--no-system")
    messages = {topic["name"]: topic["messages"] for topic in report["topics"]}
    assert (messages["orders"], messages["oth\ufffdr"]) == (30, 1)


def test_folder_among_index_files_is_no_index_file(path: Path) -> None:
    (path / "index" / "20990101000000000").mkdir()
    report = run_json("inspect", path, "--json", "--no-system")
    assert (report["index"]["files"], report["index"]["keys"]) == (1, 30)
