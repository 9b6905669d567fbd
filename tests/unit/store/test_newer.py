"""Checks: parts of a store that only RocketMQ 5.4 and newer read are named by verify and refused by the broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cometmq
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.errors import NotAStore
from cometmq.store.newer import unread_parts
from cometmq.store.verification import Problem, Severity, verify

EMPTY_LOG = {"CURRENT": b"MANIFEST-000005\n", "000004.log": b"", "MANIFEST-000005": b"\x01timer\x02trans"}
"""As every broker of 5.4 and newer leaves the folder, whatever its settings."""


def table(*families: str) -> bytes:
    """Return a table file as far as it is looked at: data, and properties that share the beginning of their names."""
    names = b"".join(b"\x15\x04\x05name" + family.encode() + b"\x00" for family in families)
    return b"nametimer nametrans, which a message may say" + b"rocksdb.block.based.table.index.type" + names


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with cometmq.open(tmp_path / "store") as store:
        store.append("t", b"x")
    return tmp_path / "store"


def database(**files: bytes) -> Callable[[Path], None]:
    def write(store: Path) -> None:
        (store / "rocksdbstore").mkdir()
        for name, content in {**EMPTY_LOG, **files}.items():
            (store / "rocksdbstore" / name).write_bytes(content)

    return write


@pytest.mark.parametrize("write", [database(), database(**{"000013.sst": table("default")})], ids=["empty", "index"])
def test_a_store_without_pending_parts_is_served(write: Callable[[Path], None], store: Path) -> None:
    write(store)
    assert unread_parts(store) == []
    with Broker(load_broker_config(store, listen="127.0.0.1:0")):
        pass


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (database(**{"000013.sst": table("timer")}), r"rocksdbstore has timers \(timerRocksDBEnable\)"),
        (database(**{"1.sst": table("trans"), "2.sst": table("timer")}), "has timers .* and transactions"),
        (database(**{"000012.log": b"x"}), "rocksdbstore was not closed, and may have timers and transactions"),
        (lambda store: (store / "timerwheel.123").write_bytes(b"x"), "timerwheel.123 is a snapshot of the timer wheel"),
    ],
    ids=["timers", "both", "not-closed", "snapshot"],
)
def test_a_store_with_pending_parts_is_refused_by_the_broker(
    write: Callable[[Path], None], text: str, store: Path
) -> None:
    write(store)
    with pytest.raises(NotAStore, match=text), Broker(load_broker_config(store, listen="127.0.0.1:0")):
        pass
    problems: list[Problem] = []
    with cometmq.open(store) as opened:
        assert [bytes(message) for message in opened.read("t")] == [b"x"], "messages are read all the same"
        assert verify(opened, on_problem=problems.append).verdict is Severity.NOTE
    assert [problem.kind for problem in problems] == ["unread-part"]
