"""Files that are cut while they are mapped: an error for each message that cannot be read, and the process lives on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cometmq

BODY = bytes(range(256)) * 80  # five pages
PAGE = 4096


@pytest.fixture
def cut(tmp_path: Path) -> cometmq.Store:
    """A read-only store of ten messages whose segment is cut within the body of message 5, once it is mapped."""
    with cometmq.open(tmp_path) as writer:
        for number in range(10):
            writer.append("orders", BODY, tags=f"t{number}")
    store = cometmq.open(tmp_path, mode="r")
    message = store.get("orders", 0, 5)
    os.truncate(tmp_path / "commitlog" / f"{0:020d}", (message.physical_offset + 2 * PAGE) // PAGE * PAGE)
    return store


def test_cut_segment_gives_errors_for_the_messages_in_it(cut: cometmq.Store) -> None:
    with cut as store:
        for number in range(5):
            assert store.get("orders", 0, number).body_bytes == BODY
        for number in range(5, 10):
            with pytest.raises(cometmq.CorruptRecord, match="cannot be read"):
                store.get("orders", 0, number)


def test_body_with_a_lost_page_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    with cometmq.open(tmp_path) as writer:
        writer.append("orders", BODY)
        writer.append("orders", BODY)
    with cometmq.open(tmp_path, mode="r") as store:
        messages = list(store.read("orders"))
        assert [message.body_bytes for message in messages] == [BODY, BODY]
        os.truncate(tmp_path / "commitlog" / f"{0:020d}", PAGE)
        for message in messages:
            with pytest.raises(cometmq.CorruptRecord, match="cannot be read"):
                bytes(message)
            with pytest.raises(cometmq.CorruptRecord, match="cannot be read"):
                memoryview(message)
            with pytest.raises(cometmq.CorruptRecord, match="cannot be read"):
                _ = message.raw_body


def test_scan_over_a_cut_segment_fails_or_skips(cut: cometmq.Store) -> None:
    pytest.importorskip("pyarrow")
    with cut as store:
        skipping = store.scan("orders", columns=["body"], on_corrupt="skip")
        bodies = skipping.to_table()["body"].to_pylist()
        assert bodies == [BODY] * 5
        assert skipping.report is not None
        assert skipping.report.skipped == 5
        with pytest.raises(cometmq.CorruptRecord):
            store.scan("orders", columns=["body"]).to_table()
