"""Checks: a scan of a real broker's messages returns them as upstream's own decoder reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest

import cometmq
from support.command_line import run, run_json
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
        for topic in (None, *store.topics(system=True)):
            assert store.scan(topic).count() == store.scan(topic).count(exact=True), topic
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


def test_export_of_all_topics_has_each_message_once(golden_store: GoldenStore, tmp_path: Path) -> None:
    """This one has light queues, which point at other topics' messages."""
    name = "apache-5.3.3-rare"
    path = golden_store(name, "clean")
    with cometmq.open(path, mode="r", config=broker_properties(name)) as store:
        light = next(topic for topic in store.topics(system=True) if topic.startswith("%LMQ%"))
        wanted = [row["physical_offset"] for row in table_rows(store.scan(columns=["physical_offset"]).to_table())]
        of_light = store.scan(light).to_table().num_rows
    out = tmp_path / "out"
    columns = ("--columns", "physical_offset", "--config", broker_properties(name))
    assert run("export", path, "-o", out, *columns).code == 0
    found = pq.read_table(out / "part-00000.parquet").column("physical_offset").to_pylist()
    assert found == wanted
    report = run_json("export", path, light, "-o", tmp_path / "light", *columns, "--json")
    assert report["messages"] == of_light > 0
    assert "light queues" in run("export", path, light, "-o", tmp_path / "light", "--resume", *columns).err
