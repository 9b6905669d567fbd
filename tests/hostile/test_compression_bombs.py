"""Attacks: bodies that a sender compressed, and that inflate to more than memory has.

The broker stores what it gets. A reader inflates no further than its limit, says so for that message, and goes on with
the others. The limit is lowered here, so that the tests inflate megabytes and not gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import cometmq
from cometmq import _compression
from cometmq._engine import decode_pulled
from cometmq.errors import Error, LimitReached
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.sync_channel import Channel
from hostile.test_system_topics import make, send
from support.command_line import run

LIMIT = 1 << 20
BOMB_BYTES = 64 * LIMIT
COMPRESSED, LZ4, ZSTD = 0x1, 1 << 8, 2 << 8
TOPIC = "orders"
BROKEN = ("no zlib", "no lz4", "no zstd", "unknown")


def bombs() -> dict[str, tuple[int, bytes]]:
    zeros = bytes(BOMB_BYTES)
    return {
        "zlib": (COMPRESSED, zlib.compress(zeros, 9)),
        "lz4": (COMPRESSED | LZ4, pa.compress(zeros, codec="lz4", asbytes=True)),
        "zstd": (COMPRESSED | ZSTD, pa.compress(zeros, codec="zstd", asbytes=True)),
        "zstd, many frames": (COMPRESSED | ZSTD, pa.compress(bytes(LIMIT), codec="zstd", asbytes=True) * 64),
        "no zlib": (COMPRESSED, b"garbage"),
        "no lz4": (COMPRESSED | LZ4, b"garbage"),
        "no zstd": (COMPRESSED | ZSTD, b"garbage"),
        "half a frame": (COMPRESSED | ZSTD, pa.compress(zeros, codec="zstd", asbytes=True)[:-20]),
        "unknown": (COMPRESSED | 7 << 8, b"garbage"),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose broker took a bomb of each kind, and a message before and behind each."""
    path = tmp_path_factory.mktemp("bombs")
    with make(path) as broker, Channel(broker.address) as channel:
        for name, (flag, body) in bombs().items():
            assert send(channel, TOPIC, b"before").code == ResponseCode.SUCCESS
            assert send(channel, TOPIC, body, sys_flag=flag).code == ResponseCode.SUCCESS, name
        assert send(channel, TOPIC, b"behind").code == ResponseCode.SUCCESS
    return path


@pytest.fixture(autouse=True)
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compression.decompress_body, "__defaults__", (LIMIT,))


@pytest.fixture
def store(path: Path) -> Iterator[cometmq.Store]:
    with cometmq.open(path, mode="r") as store:
        yield store


def test_the_store_reads_all_others_and_refuses_each_bomb(store: cometmq.Store) -> None:
    messages = list(store.read(TOPIC))
    assert [message.body_bytes for message in messages[::2]] == [b"before"] * len(bombs()) + [b"behind"]
    for message, (name, (_, body)) in zip(messages[1::2], bombs().items(), strict=True):
        with pytest.raises(Error) as raised:
            _ = message.body_bytes
        assert name in BROKEN or isinstance(raised.value, LimitReached), name
        assert bytes(message.raw_body) == body


def records_of(path: Path) -> bytes:
    """All records of the log, as an answer to a pull has them."""
    log = (path / "commitlog" / f"{0:020d}").read_bytes()
    end = 0
    while (size := int.from_bytes(log[end : end + 4], "big")) > 0:
        end += size
    return log[:end]


def test_a_client_gets_all_others_and_refuses_each_bomb(path: Path) -> None:
    answer = records_of(path)
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=0)
    assert [message.body_bytes for message in pulled.messages[::2]] == [b"before"] * len(bombs()) + [b"behind"]
    for message in pulled.messages[1::2]:
        with pytest.raises(Error):
            _ = message.body_bytes


def test_a_scan_reports_each_bomb_and_returns_all_others(store: cometmq.Store) -> None:
    scan = store.scan(TOPIC, columns=["queue_offset", "body"], on_corrupt="skip")
    rows = pa.table(scan).to_pylist()
    assert [row["body"] for row in rows] == [b"before"] * len(bombs()) + [b"behind"]
    assert scan.report.skipped == len(bombs())
    with pytest.raises(OSError, match="1048576"):
        pa.table(store.scan(TOPIC, columns=["body"]))
    raw = pa.table(store.scan(TOPIC, columns=["body"], compressed="raw"))
    assert raw.num_rows == 2 * len(bombs()) + 1


def test_cat_prints_the_stored_bytes_of_each_bomb(path: Path) -> None:
    result = run("cat", str(path), TOPIC, "--format", "json")
    assert result.code == 0
    assert result.out.count("unfolds to more than the limit") == len(bombs()) - len(BROKEN)
    assert "YmVoaW5k" in result.out or "behind" in result.out
