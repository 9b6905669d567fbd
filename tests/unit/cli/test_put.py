"""``cometmq put``: lines, files, batches, where they went; and what happens beside another writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cometmq
from cometmq.cli import lines as lines_module
from support.command_line import run
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    open_small(path).close()
    return path


def bodies(path: Path, topic: str = "orders") -> list[bytes]:
    with cometmq.open(path, mode="r") as store:
        return [message.body_bytes for message in store.read(topic)]


def test_lines_of_stdin(path: Path) -> None:
    outcome = run("put", path, "orders", input=b"one\ntwo\r\n\nfour, no end")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("appended 4 messages (18 B) to orders, flush sync")
    assert "queue 0: 4 messages, queue offsets 0 to 3" in outcome.out
    assert bodies(path) == [b"one", b"two", b"", b"four, no end"]


def test_a_line_of_many_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "_CHUNK_BYTES", 7)
    long = bytes(range(32, 127)) * 5
    assert run("put", path, "orders", input=b"a\n" + long + b"\nb\n").code == 0
    assert bodies(path) == [b"a", long, b"b"]


def test_files_and_stdin(path: Path, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"1\n2\n")
    (tmp_path / "last").write_bytes(b"4")
    assert run("put", path, "orders", tmp_path / "first", "-", tmp_path / "last", input=b"3\n").code == 0
    assert bodies(path) == [b"1", b"2", b"3", b"4"]


def test_whole_files(path: Path, tmp_path: Path) -> None:
    for name, content in (("a", b"\x00\n\xff"), ("b", b""), ("c", b"third\n")):
        (tmp_path / name).write_bytes(content)
    outcome = run("put", path, "orders", *(tmp_path / name for name in "abc"), "--whole-file", "--json")
    report = json.loads(outcome.out)
    assert (report["messages"], report["body_bytes"]) == (3, 9)
    assert bodies(path) == [b"\x00\n\xff", b"", b"third\n"]
    assert run("put", path, "orders", "--whole-file", input=b"all\nof it").code == 0
    assert bodies(path)[3] == b"all\nof it"


def test_tags_keys_properties(path: Path) -> None:
    outcome = run(
        "put", path, "orders", "--tags", "paid", "--keys", "o-1 c-7", "-p", "shop=7", "-p", "note=a=b", input=b"x\n"
    )
    assert outcome.code == 0
    with cometmq.open(path, mode="r") as store:
        (message,) = store.read("orders")
        assert (message.tags, message.keys) == ("paid", ("o-1", "c-7"))
        assert (message.properties["shop"], message.properties["note"]) == ("7", "a=b")
        assert len(list(store.find("orders", "c-7"))) == 1


def test_queues(path: Path) -> None:
    report = json.loads(run("put", path, "orders", "--topic-queues", "3", "--json", input=b"a\nb\nc\nd\n").out)
    assert [(one["queue_id"], one["first"], one["last"], one["messages"]) for one in report["queues"]] == [
        (0, 0, 1, 2),
        (1, 0, 0, 1),
        (2, 0, 0, 1),
    ]
    report = json.loads(run("put", path, "orders", "--queue", "2", "--json", input=b"e\nf\n").out)
    assert report["queues"] == [{"queue_id": 2, "first": 1, "last": 2, "messages": 2}]
    assert run("put", path, "orders", "--queue", "9", input=b"g\n").code == 3


def test_batches(path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(5000))
    report = json.loads(run("put", path, "orders", "--batch", "7", "--flush", "async", "--json", input=lines).out)
    assert (report["messages"], report["flush"]) == (5000, "async")
    assert report["queues"] == [{"queue_id": 0, "first": 0, "last": 4999, "messages": 5000}]
    assert bodies(path) == [b"%d" % number for number in range(5000)]


def test_a_new_store_is_made_and_said(tmp_path: Path) -> None:
    outcome = run("put", tmp_path / "new", "orders", input=b"x\n")
    assert outcome.code == 0
    assert "created a new store" in outcome.err
    assert bodies(tmp_path / "new") == [b"x"]


def test_nothing_to_append(path: Path) -> None:
    outcome = run("put", path, "orders", input=b"")
    assert outcome.code == 0
    assert outcome.out.startswith("appended 0 messages")


def test_invalid_messages_are_not_appended(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.properties"
    config.write_text("maxMessageSize=1000\n")
    outcome = run(
        "put", path, "orders", "--config", config, "--json", input=b"fits\nfits too\n" + b"x" * 2000 + b"\nnot read\n"
    )
    assert outcome.code == 3
    assert json.loads(outcome.out)["messages"] == 2
    assert "message 3 was not appended" in outcome.err
    assert bodies(path) == [b"fits", b"fits too"]
    assert run("put", path, "bad/topic", input=b"x\n").code == 3
    assert run("put", path, "orders", "--property", "noequals", input=b"x\n").code == 2
    assert run("put", path, "orders", tmp_path / "nosuch").code == 3
    assert run("put", path, "SCHEDULE_TOPIC_XXXX", input=b"x\n").code == 3


def test_beside_a_writer_of_ours_the_messages_are_left_to_it(path: Path) -> None:
    with open_small(path, background=True) as store:
        store.append("orders", b"mine")
        outcome = run("put", path, "orders", "--tags", "left", "--json", input=b"a\nb\n")
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["flush"] == "writer"
        assert [message.body_bytes for message in store.read("orders", tags="left")] == [b"a", b"b"]
