"""``cometmq cat``: formats, filters, ends, damage."""

from __future__ import annotations

import base64
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import cometmq
from support.command_line import run
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Orders in two queues, tags in turn; a few others."""
    path = tmp_path / "store"
    with open_small(path) as store:
        store.create_topic("orders", queues=2)
        for number in range(20):
            tag = ("paid", "shipped", "open")[number % 3]
            store.append(
                "orders", b"order %d" % number, tags=tag, keys=[f"o-{number}", "every"], properties={"n": str(number)}
            )
            time.sleep(0.001)
        store.append("other", b"\xff\x00raw", properties={"UNIQ_KEY": "AC110001"})
    return path


def rows(*arguments: str | Path) -> list[dict[str, Any]]:
    outcome = run("cat", *arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.lines]


def bodies(*arguments: str | Path) -> list[str]:
    return [row["body"] for row in rows(*arguments)]


def numbers(*arguments: str | Path) -> list[int]:
    return [int(body.split()[1]) for body in bodies(*arguments)]


def test_json_has_every_field(path: Path) -> None:
    row = rows(path, "orders")[5]
    with cometmq.open(path, mode="r") as store:
        message = store.get("orders", 1, 2)
        assert row == {
            "topic": "orders",
            "queue_id": 1,
            "queue_offset": 2,
            "physical_offset": message.physical_offset,
            "record_bytes": message.record_bytes,
            "message_id": message.message_id,
            "unique_id": None,
            "tags": "open",
            "keys": ["o-5", "every"],
            "properties": {"TAGS": "open", "KEYS": "o-5 every", "n": "5"},
            "store_timestamp_ms": message.store_timestamp_ms,
            "born_timestamp_ms": message.born_timestamp_ms,
            "store_host": "127.0.0.1:10911",
            "born_host": "127.0.0.1:0",
            "flag": 0,
            "sys_flag": 0,
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            "body_crc": message.body_crc,
            "body_bytes": 7,
            "body_encoding": "utf-8",
            "body": "order 5",
        }


def test_bodies_that_are_no_text_are_base64(path: Path) -> None:
    (row,) = rows(path, "other")
    assert (row["body_encoding"], base64.b64decode(row["body"])) == ("base64", b"\xff\x00raw")
    assert "base64:/wByYXc=" in run("cat", path, "other").out


def test_text_is_a_line_each(path: Path) -> None:
    lines = run("cat", path, "orders").lines
    assert len(lines) == 20
    assert lines[4].endswith(" orders/0@2 [shipped] (o-4 every) order 4")
    assert datetime.fromisoformat(lines[4][:23])


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("orders", "two\nlines \x1b[31mred Grüße".encode())
    assert run("cat", tmp_path / "store").lines[0].endswith(r"two\nlines \x1b[31mred Grüße")


def test_raw_bodies_with_any_delimiter(path: Path) -> None:
    assert run("cat", path, "orders", "-f", "raw", "-n", "2").out == "order 0\norder 1\n"
    assert run("cat", path, "orders", "-f", "raw", "-n", "2", "--delimiter", "").out == "order 0order 1"
    assert run("cat", path, "orders", "-f", "raw", "-n", "2", "--delimiter", r"\0|").out == "order 0\0|order 1\0|"


def test_everything_in_the_order_of_storing(path: Path) -> None:
    assert numbers(path, "orders") == list(range(20))
    assert len(rows(path)) == 21
    assert rows(path)[20]["topic"] == "other"


def test_filters(path: Path) -> None:
    assert numbers(path, "orders", "--tags", "paid || open", "--limit", "4") == [0, 2, 3, 5]
    assert numbers(path, "orders", "--queue", "1") == list(range(1, 20, 2))
    assert numbers(path, "orders", "--queue", "1", "--queue", "0", "-n", "3") == [0, 1, 2]
    assert numbers(path, "orders", "--start", "8", "--end", "9") == [16, 17]
    assert numbers(path, "orders", "--backwards", "-n", "3") == [19, 18, 17]
    assert numbers(path, "orders", "--tail", "3") == [17, 18, 19]
    assert numbers(path, "orders", "--tail", "3", "--backwards") == [19, 18, 17]
    assert numbers(path, "orders", "--tail", "2", "--tags", "paid") == [15, 18]
    assert numbers(path, "orders", "--tail", "0") == []
    assert numbers(path, "orders", "--limit", "0") == []


def test_times(path: Path) -> None:
    stored = [row["store_timestamp_ms"] for row in rows(path, "orders")]
    assert numbers(path, "orders", "--from-time", str(stored[15])) == list(range(15, 20))
    assert numbers(path, "orders", "--to-time", str(stored[4])) == list(range(4))
    moment = datetime.fromtimestamp(stored[15] / 1000).isoformat(timespec="milliseconds")
    assert numbers(path, "orders", "--start", moment) == list(range(15, 20))
    assert numbers(path, "orders", "--end", moment) == list(range(15))
    assert numbers(path, "orders", "--from-time", "1h") == list(range(20))
    assert numbers(path, "orders", "--to-time", "1h") == []
    assert numbers(path, "orders", "--from-time", "2000-01-01T00:00:00Z", "-n", "1") == [0]


def test_by_key(path: Path) -> None:
    assert numbers(path, "orders", "--key", "o-7") == [7]
    assert numbers(path, "orders", "--key", "o-7", "--keys", "o-3") == [7, 3]
    assert numbers(path, "orders", "--key", "every") == list(range(20))
    assert numbers(path, "orders", "--key", "every", "--tags", "paid", "--backwards", "-n", "2") == [18, 15]
    assert numbers(path, "orders", "--key", "every", "--start", "3", "--end", "4", "--queue", "0") == [6]
    assert rows(path, "orders", "--key", "none") == []


def test_a_key_of_very_many_messages(tmp_path: Path) -> None:
    """More than one look-up gives, and all in one millisecond: time does not distinguish them."""
    with open_small(tmp_path / "store") as store:
        store.append_many("orders", [b"order %d" % number for number in range(3000)], keys="every")
    assert numbers(tmp_path / "store", "orders", "--key", "every") == list(range(3000))


def test_by_id(path: Path) -> None:
    with cometmq.open(path, mode="r") as store:
        offset_id = store.get("orders", 0, 3).message_id
    assert bodies(path, "--id", offset_id) == ["order 6"]
    assert [row["topic"] for row in rows(path, "--id", "AC110001")] == ["other"]
    assert [row["topic"] for row in rows(path, "other", "--id", "AC110001", "--id", offset_id)] == ["other", "orders"]
    missing = run("cat", path, "--id", "7F00000100002A9F00000000000FFFFF")
    assert (missing.code, missing.out) == (3, "")
    assert "no message with id" in missing.err


def test_invalid_requests_are_rejected(path: Path) -> None:
    for arguments in (
        ["--key", "k"],
        ["--queue", "0"],
        ["--start", "3"],
        ["orders", "--follow", "--backwards"],
        ["orders", "--from-time", "soon"],
        ["orders", "--format", "xml"],
        ["orders", "--start", "2026-01-01", "--from-time", "1h"],
        ["orders", "--limit", "-1"],
    ):
        outcome = run("cat", path, *arguments)
        assert (outcome.code, outcome.out) == (2, ""), arguments
    assert run("cat", path, "nosuch").code == 3
    assert run("cat", path, "orders", "--queue", "9").code == 3


def test_damaged_records_are_passed_over_and_named(path: Path) -> None:
    with cometmq.open(path, mode="r") as store:
        at = store.get("orders", 0, 3).physical_offset
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at + 95)
        file.write(b"!")
    outcome = run("cat", path, "orders", "--format", "raw")
    assert outcome.code == 4
    assert outcome.lines == [f"order {number}" for number in range(20) if number != 6]
    assert f"damaged record at physical offset {at}" in outcome.err
    assert "skipped 1 damaged place" in outcome.err


def test_a_compressed_body_that_does_not_decompress_is_shown_as_stored(tmp_path: Path) -> None:
    import zlib

    with open_small(tmp_path / "store") as store:
        store.append("orders", zlib.compress(b"whole"))
    # The flag of a compressed body, which producers set, put in by hand: sound bytes first, then none.
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(36)
        file.write((0x301).to_bytes(4, "big"))
    assert bodies(tmp_path / "store", "orders") == ["whole"]
    with log.open("r+b") as file:
        file.seek(36)
        file.write((0x201).to_bytes(4, "big"))  # says ZSTD
    (row,) = rows(tmp_path / "store", "orders")
    assert base64.b64decode(row["body"]) == zlib.compress(b"whole")
    assert row["body_problem"]
