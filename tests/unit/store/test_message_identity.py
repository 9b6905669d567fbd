"""Checks: messages are equal when they are the same stored message, whoever found them; hashes agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import cometmq
from support.small_store import open_small


def test_the_same_message_found_in_every_way(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        first = store.append("t", b"same", tags="a", keys="k")
        store.append("t", b"same", tags="a", keys="k")
        with open_small(tmp_path / "store", mode="r") as reader:
            found = [
                store.get("t", 0, 0),
                store.get_by_id(first.message_id),
                store.get_physical(first.physical_offset),
                [*store.find("t", "k")][-1],
                next(store.read("t")),
                next(store.read()),
                reader.get("t", 0, 0),
            ]
            other = reader.get("t", 0, 1)
        assert all(message == found[0] for message in found)
        assert len({*found}) == 1
        assert bytes(other) == bytes(found[0])
        assert other != found[0]
        assert len({*found, other}) == 2
        assert [message for message in store.read("t") if message in {other}] == [other]
    with open_small(tmp_path / "store") as store:
        assert store.get("t", 0, 0) == found[0]  # which outlived its store
        assert found[0] != b"same"
        assert found[0] != store.append("t", b"same")


def test_the_same_place_in_another_store(tmp_path: Path) -> None:
    with open_small(tmp_path / "one") as one, open_small(tmp_path / "other") as other:
        one.append("t", b"x", born_timestamp_ms=1)
        other.append("t", b"y", born_timestamp_ms=1)
        mine, theirs = one.get("t", 0, 0), other.get("t", 0, 0)
        assert (mine.physical_offset, mine.record_bytes) == (theirs.physical_offset, theirs.record_bytes)
        assert mine != theirs
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with cometmq.open(tmp_path / "copy", mode="r") as copy:
        assert copy.get("t", 0, 0) == mine
