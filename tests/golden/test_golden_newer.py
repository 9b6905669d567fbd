"""Checks: stores that a broker of RocketMQ 5.5.0 left, cleanly or killed, are read, found in, continued and repaired.

Since 5.4 a broker enters the tags of messages into the index, beside unique ids and keys.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import pytest

import cometmq
from cometmq import Message
from cometmq.store.repairing import repair
from cometmq.store.verification import Problem, Severity, Verification, verify
from support.golden import GOLDEN, unpack

KINDS = ("clean", "killed")
MESSAGES = {"clean": 40, "killed": 60}
"""Both stores are of one run: 40 messages, a clean stop; 20 more, kill -9."""


def rows(kind: str) -> list[dict[str, Any]]:
    """Return the messages as the official Java client pulled them, in log order."""
    lines = (GOLDEN / "newer" / "5.5.0-rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines][: MESSAGES[kind]]


def row_of(message: Message) -> dict[str, Any]:
    return {
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "message_id": message.unique_id,
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
    }


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The end of the broker that wrote the store."""
    return str(request.param)


@pytest.fixture
def path(kind: str, tmp_path: Path) -> Path:
    """A store of 5.5.0 that the test may change."""
    unpack(GOLDEN / "newer" / f"5.5.0-{kind}.tar.xz", tmp_path)
    return tmp_path / "store"


def verified(path: Path) -> Verification:
    """Return the result of a verification without any finding."""
    problems: list[Problem] = []
    with cometmq.open(path, mode="r") as store:
        result = verify(store, on_problem=problems.append)
    assert problems == []
    assert result.verdict is Severity.NOTE
    return result


def entries(messages: list[dict[str, Any]]) -> int:
    """Return the number of index entries: of unique ids, keys and tags."""
    return sum(1 + len((row["keys"] or "").split()) + (row["tags"] is not None) for row in messages)


def test_tags_in_the_index_are_no_damage(kind: str, path: Path) -> None:
    assert verified(path).index_entries == entries(rows(kind))


@pytest.mark.parametrize("mode", ["r", "a"])
def test_messages_are_read_and_found(kind: str, path: Path, mode: Literal["a", "r"]) -> None:
    expected = rows(kind)
    with cometmq.open(path, mode=mode) as store:
        assert [row_of(message) for message in store.read("orders")] == expected
        assert list(map(row_of, store.find("orders", "every"))) == [
            row for row in reversed(expected) if "every" in (row["keys"] or "").split()
        ]
        for tag in ("paid", "AaAa", "BBBB", "αβγ"):
            assert list(map(row_of, store.find("orders", tag=tag))) == [
                row for row in reversed(expected) if row["tags"] == tag
            ]


def test_appends_continue_the_index_with_tags(path: Path) -> None:
    with cometmq.open(path):
        """A recovery enters the last message's keys again, as upstream's does."""
    before = verified(path).index_entries
    for round_ in range(1, 3):
        with cometmq.open(path) as store:
            store.append("orders", b"of ours", tags="paid", keys="ours")
            store.append("orders", b"of ours")
        assert verified(path).index_entries == before + 2 * round_
    with cometmq.open(path, settings={"messageIndexTags": "OFF"}) as store:
        store.append("orders", b"of ours", tags="paid", keys="ours")
        assert len(list(store.find("orders", tag="paid", limit=3))) == 3
    assert verified(path).index_entries == before + 5


def test_a_repair_keeps_tags(kind: str, path: Path) -> None:
    repair(path)
    assert verified(path).index_entries == entries(rows(kind))


def test_a_repair_builds_a_lost_index_with_tags(kind: str, path: Path) -> None:
    """Its newest file shows that tags belong there."""
    oldest = min((path / "index").iterdir())
    oldest.unlink()
    repair(path)
    assert verified(path).index_entries == entries(rows(kind))
