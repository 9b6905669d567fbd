"""Checks: the columns and their names; the Arrow schema is the one that Spark derives; batches are brought to it."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.fetch import conformed, scan_columns
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.spark.schema import DEFAULT_COLUMNS, chosen_columns, columns_of_schema, ddl, spark_arrow_schema

types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not installed")

EVERYTHING = (
    "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,bodyBytes,flag,sysFlag,"
    "reconsumeTimes,msgId,uniqueId,commitLogOffset,bornHost,storeHost,brokerName,bodyCrc,preparedTransactionOffset,"
    "prop:a.b`c"
)


def options(**given: str) -> ReadOptions:
    return ReadOptions.of(OptionMap({"path": "/s", "topic": "t", **given}))


def struct(*fields: tuple[str, str, bool]) -> Any:
    kinds = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        "array<struct<key:string,value:binary>>": types.ArrayType(
            types.StructType(
                [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
            )
        ),
    }
    return types.StructType([types.StructField(name, kinds[kind], nullable) for name, kind, nullable in fields])


def test_default_columns() -> None:
    assert ddl(chosen_columns(options())) == (
        "`topic` string, `queueId` int, `queueOffset` bigint, `body` binary, `tags` string, `keys` string, "
        "`bornTimestamp` timestamp, `storeTimestamp` timestamp"
    )
    assert [one.name for one in chosen_columns(options(includeProperties="true"))] == [*DEFAULT_COLUMNS, "properties"]
    assert ddl(chosen_columns(options(columns="prop:a`b, body"))) == "`prop:a``b` string, `body` binary"


def test_kafkas_columns() -> None:
    kafka = chosen_columns(options(schema="kafka", includeHeaders="true"))
    assert [one.name for one in kafka] == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert "headers" not in [one.name for one in chosen_columns(options(schema="kafka"))]


@pytest.mark.parametrize(
    "given",
    [
        {"columns": EVERYTHING, "brokerName": "b"},
        {"schema": "kafka", "includeHeaders": "true"},
    ],
)
@pytest.mark.parametrize("nullable", [True, False])
def test_the_schema_is_sparks(given: dict[str, str], nullable: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    found = options(**given)
    optional = ("tags", "keys", "property", "unique_id")
    wanted = struct(*((one.name, one.spark_type, nullable or one.kind in optional) for one in chosen_columns(found)))
    columns = columns_of_schema(wanted, found)
    assert spark_arrow_schema(columns).equals(to_arrow_schema(wanted, timezone="UTC"))
    assert len(pickle.dumps(columns)) < 4000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"columns": "queueoffset"}, "did you mean queueOffset?"),
        ({"columns": "xyz"}, "prop:NAME"),
        ({"columns": "prop:"}, "no column"),
        ({"columns": "brokerName"}, "option brokerName"),
    ],
)
def test_unknown_columns(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        chosen_columns(options(**given))
    assert text in str(caught.value)


def test_a_narrowed_schema() -> None:
    found = columns_of_schema(struct(("queueOffset", "bigint", False), ("prop:region", "string", True)), options())
    assert [(one.kind, one.property) for one in found] == [("queue_offset", None), ("property", "region")]
    with pytest.raises(OptionError, match="queueOffset is bigint, not int"):
        columns_of_schema(struct(("queueOffset", "int", True)), options())
    with pytest.raises(OptionError, match="option schema: there is no column 'value'"):
        columns_of_schema(struct(("value", "binary", True)), options())
    assert columns_of_schema(struct(("value", "binary", True)), options(schema="kafka"))[0].kind == "body"
    for name in ("tags", "keys", "uniqueId", "prop:region"):
        with pytest.raises(OptionError, match="may have nulls: leave NOT NULL out"):
            columns_of_schema(struct((name, "string", False)), options())


def test_requested_columns_of_a_scan() -> None:
    asked = scan_columns(chosen_columns(options(columns="topic,body,storeTimestamp,queueId,prop:x")))
    assert asked == [
        ("topic", "plain", "c0", None),
        ("body", "plain", "c1", None),
        ("store_timestamp", "us", "c2", None),
        ("queue_id", "default", "c3", None),
        ("property", "plain", "c4", "x"),
    ]
    only_constant = columns_of_schema(struct(("timestampType", "int", True)), options(schema="kafka"))
    assert [kind for kind, *_ in scan_columns(only_constant)] == ["queue_offset"]


def test_batches_are_brought_into_form() -> None:
    columns = chosen_columns(options(schema="kafka", includeHeaders="true"))
    pairs = [[("a", "1"), ("b", "2")], [], [("c", "3")]]
    batch = pa.record_batch(
        {
            "c0": pa.array(["k", None, "l"]),
            "c1": pa.array([b"x", b"", b"y"]),
            "c2": pa.array(["t"] * 3),
            "c3": pa.array([0, 1, 2], pa.int32()),
            "c4": pa.array([5, 6, 7], pa.int64()),
            "c5": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
            "c6": pa.array(pairs, pa.map_(pa.string(), pa.string())),
        }
    )
    schema = spark_arrow_schema(columns)
    for part, first in ((batch, 0), (batch.slice(1), 1)):
        made = conformed(part, columns, schema)
        made.validate(full=True)
        assert made.schema.equals(schema)
        rows = made.to_pylist()
        assert [row["key"] for row in rows] == [b"k", None, b"l"][first:]
        assert {row["timestampType"] for row in rows} == {1}
        headers = [[(one["key"], one["value"]) for one in row["headers"]] for row in rows]
        assert headers == [[("a", b"1"), ("b", b"2")], [], [("c", b"3")]][first:]
    body = conformed(batch, columns, schema).column("value").buffers()[2]
    assert body.address == batch.column("c1").buffers()[2].address
