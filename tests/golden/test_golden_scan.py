"""Checks: what a real broker wrote comes through a scan as upstream's own decoder reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import cometmq
from support.golden import StoreKind, broker_properties, expected_records, golden_names
from support.rows import ALL_COLUMNS, rows_of, table_rows

GoldenStore: TypeAlias = Callable[[str, StoreKind], Path]


def as_record(row: dict[str, Any]) -> dict[str, Any]:
    """Say a row in expected.jsonl's words, as far as the columns go."""
    return {
        "physicalOffset": row["physical_offset"],
        "topic": row["topic"],
        "queueId": row["queue_id"],
        "queueOffset": row["queue_offset"],
        "flag": row["flag"],
        "sysFlag": row["sys_flag"],
        "bodyCRC": row["body_crc"] & 0xFFFFFFFF,
        "bornTimestamp": round(row["born_timestamp"].timestamp() * 1000),
        "bornHost": f"/{row['born_host']}".replace("[", "").replace("]", ""),
        "storeTimestamp": round(row["store_timestamp"].timestamp() * 1000),
        "storeHost": f"/{row['store_host']}".replace("[", "").replace("]", ""),
        "reconsumeTimes": row["reconsume_times"],
        "preparedTransactionOffset": row["prepared_transaction_offset"],
        "offsetMsgId": row["message_id"],
        "bodySize": row["body_bytes"],
        "storedBodySha256": hashlib.sha256(row["body"]).hexdigest(),
        "properties": dict(row["properties"]),
    }


@pytest.mark.parametrize("name", golden_names())
def test_scan_equals_expected(golden_store: GoldenStore, name: str) -> None:
    path = golden_store(name, "clean")
    with cometmq.open(path, mode="r", config=broker_properties(name)) as store:
        table = store.scan(columns=ALL_COLUMNS, compressed="raw").to_table()
        found = [as_record(row) for row in table_rows(table)]
        expected = [
            {key: record[key] & 0xFFFFFFFF if key == "bodyCRC" else record[key] for key in found[0]}
            for record in expected_records(name)
        ]
        assert found == expected
        # Decompressed and unfolded, and gathered, it is what read() gives.
        for body in ("view", "binary"):
            rows = table_rows(store.scan(columns=ALL_COLUMNS, body=body).to_table())  # type: ignore[arg-type]
            assert rows == rows_of(store.read())


@pytest.mark.parametrize("name", golden_names("crashed"))
def test_topics_of_a_crashed_store(golden_store: GoldenStore, name: str) -> None:
    path = golden_store(name, "crashed")
    with cometmq.open(path, mode="r", config=broker_properties(name)) as store:
        for topic in store.topics(system=True):
            scan = store.scan(topic, columns=ALL_COLUMNS)
            assert table_rows(scan.to_table()) == rows_of(store.read(topic)), topic
