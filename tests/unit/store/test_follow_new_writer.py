"""A follower that outlives a writer, or came before there was anything: the files under it change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cometmq

SEGMENT_BYTES = 1 << 20
BODY = b"x" * 900


def test_a_blank_segment_that_the_next_writer_makes_again(tmp_path: Path) -> None:
    """A killed writer leaves its prewarmed segment; the next one deletes it, and makes another file of that name."""
    path = tmp_path / "store"
    with cometmq.open(path, segment_bytes=SEGMENT_BYTES) as store:
        store.append_many("orders", [BODY] * 10)
    prewarmed = path / "commitlog" / f"{SEGMENT_BYTES:020d}"
    prewarmed.touch()
    os.truncate(prewarmed, SEGMENT_BYTES)

    with cometmq.open(path, mode="r") as follower, follower.read("orders", follow=True, timeout_s=0) as reader:
        assert len(list(reader)) == 10
        with cometmq.open(path) as store:
            assert not prewarmed.exists()
            store.append_many("orders", [BODY] * 3000)
            assert prewarmed.exists()
            assert len(list(reader)) == 3000
            assert follower.info().log_end == store.info().log_end


def test_an_empty_store_tells_how_long_its_files_will_be(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with (
        cometmq.open(path, segment_bytes=SEGMENT_BYTES) as store,
        cometmq.open(path, mode="r") as early,
        early.read(follow=True, timeout_s=0) as reader,
    ):
        assert list(reader) == []
        store.append("orders", BODY)
        assert len(list(reader)) == 1


def test_an_empty_store_whose_files_turn_out_to_have_other_lengths(tmp_path: Path) -> None:
    """Where nothing tells how long they will be, a follower that assumed wrongly says so instead of seeing nothing."""
    path = tmp_path / "store"
    with cometmq.open(path, segment_bytes=SEGMENT_BYTES) as store:
        (path / "cometmq" / "point").unlink()  # as in a store that a RocketMQ broker is about to begin
        with cometmq.open(path, mode="r") as early, early.read(follow=True, timeout_s=0) as reader:
            assert list(reader) == []
            store.append("orders", BODY)
            with pytest.raises(cometmq.StoreClosed, match="open it again"):
                next(reader)
        with cometmq.open(path, mode="r") as again:
            assert len(list(again.read("orders"))) == 1
