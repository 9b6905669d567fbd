"""A view of a store whose writer was killed and whose log is damaged in the middle: whatever reads up to the end of the
view reports the damage with its place; reads of the messages before it do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.errors import CorruptRecord
from support.command_line import run, run_json
from support.killed_writer import write_and_die

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

SOUND = 40


@pytest.fixture(params=["head", "topic", "page"])
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """A store, and where its message 40 of 100 is damaged."""
    path = tmp_path / "store"
    write_and_die(
        path,
        """
for n in range(100):
    store.append('orders', b'm%d' % n + b'.' * 200, keys=f'k{n}', tags='a')
store.append('later', b'm')
""",
    )
    with cometmq.open(path, mode="r") as store:
        at = store.get("orders", 0, SOUND).physical_offset
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        record = file.read(600)
        if request.param == "page":
            at_byte, damage = at, b"\0" * 4096
        elif request.param == "topic":
            at_byte, damage = at + record.index(b"\x06orders") + 1, b"/"
        else:
            at_byte, damage = at + 4, b"!"
        file.seek(at_byte)
        file.write(damage)
    return path, at


def test_every_way_of_reading_reports_the_place(damaged: tuple[Path, int]) -> None:
    path, at = damaged
    ways: list[Callable[[cometmq.Store], Any]] = [
        lambda store: list(store.read("orders")),
        lambda store: list(store.read()),
        lambda store: list(store.read("orders", tags="a")),
        lambda store: list(store.read("orders", tags="b")),
        lambda store: list(store.read("orders", backwards=True)),
        lambda store: list(store.read("orders", queues=[0], start=SOUND, end=SOUND + 5)),
        lambda store: list(store.read("later")),
        lambda store: store.get("orders", 0, SOUND),
        lambda store: store.get("orders", 0, 99),
        lambda store: store.get("later", 0, 0),
        lambda store: list(store.find("orders", "k70")),
        lambda store: list(store.find("orders", "k7", limit=10)),
        lambda store: store.scan("orders").to_table(),
        lambda store: store.scan().to_table(),
        lambda store: store.scan("orders").count(),
        lambda store: store.scan("orders", keys="k70").to_table(),
    ]
    with cometmq.open(path, mode="r") as store:
        for number, way in enumerate(ways):
            with pytest.raises(CorruptRecord) as caught:
                way(store)
            assert caught.value.offset == at, number
            assert "cometmq verify" in str(caught.value)
        assert store.get("orders", 0, SOUND - 1).keys == ("k39",)
        assert len(list(store.read("orders", queues=[0], start=3, end=SOUND))) == SOUND - 3
        assert store.scan("orders", queues=[0], end=SOUND).to_table().num_rows == SOUND
        assert store.scan("orders", queues=[0], end=SOUND).count() == SOUND
        scan = store.scan("orders", on_corrupt="skip")
        assert scan.count() == SOUND
        assert scan.to_table().num_rows == SOUND
        with store.read("orders") as reader:
            assert sum(1 for _ in zip(range(SOUND), reader, strict=False)) == SOUND
            with pytest.raises(CorruptRecord):
                next(reader)
            assert list(reader) == []


def test_commands_report_the_place(damaged: tuple[Path, int]) -> None:
    path, at = damaged
    for arguments, lines in (
        (["orders"], SOUND),
        ([], SOUND),
        (["orders", "--tail", "3"], 3),
        (["orders", "--key", "k7"], 1),
        (["orders", "--key", "k70"], 0),
    ):
        outcome = run("cat", path, *arguments)
        assert (outcome.code, len(outcome.lines)) == (4, lines), arguments
        assert f"damaged at physical offset {at}" in outcome.err
    assert run("cat", path, "orders", "--start", "0", "--end", str(SOUND), "--queue", "0").code == 0
    assert run("sql", path, "select count(*) from orders").code != 0
    (remark,) = [one for one in run_json("inspect", path, "--json")["health"]["remarks"] if "damaged" in one]
    assert str(at) in remark


def test_spark_plans_fail_or_warn(damaged: tuple[Path, int], caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from cometmq.spark.default_source import CometMQSource

    path, at = damaged
    schema = StructType([StructField("queueOffset", LongType())])
    options = {"path": str(path), "topic": "orders", "startingOffsets": "earliest"}
    with pytest.raises(CorruptRecord, match="onCorrupt=skip") as caught:
        CometMQSource(options).reader(schema).partitions()
    assert caught.value.offset == at
    skipping: Any = CometMQSource({**options, "onCorrupt": "skip"}).reader(schema)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        (partition,) = skipping.partitions()
        assert sum(batch.num_rows for batch in skipping.read(partition)) == SOUND
    assert f"damaged at physical offset {at}" in caplog.text
    # a stream reads the messages before the damage first
    stream: Any = CometMQSource(options).streamReader(schema)
    try:
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        with pytest.raises(CorruptRecord):
            stream.latestOffset(end, ReadAllAvailable())
    finally:
        stream.stop()


def test_follower_raises(tmp_path: Path) -> None:
    """Beside the writer, which goes on: the bytes are damaged behind its back."""
    path = tmp_path / "store"
    with cometmq.open(path, flush="sync") as writer, cometmq.open(path, mode="r") as view:
        writer.append("orders", b"first")
        with view.read("orders", follow=True, timeout_s=0) as reader:
            assert [message.body.tobytes() for message in reader] == [b"first"]
            at = writer.append("orders", b"second").physical_offset
            with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
                file.seek(at + 4)
                file.write(b"!")
            writer.append("orders", b"third")
            with pytest.raises(CorruptRecord) as caught:
                list(reader)
            assert caught.value.offset == at
