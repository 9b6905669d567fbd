"""Checks: the schema that is inferred from JSON bodies, and schemas as text."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq import InvalidArgument
from cometmq.arrow.inferring import schema_of
from cometmq.arrow.type_names import fields_of, fields_text
from support.small_store import open_small


@pytest.mark.parametrize(
    ("bodies", "wanted"),
    [
        (['{"a": 1}', '{"b": "x"}'], {"a": pa.int64(), "b": pa.string()}),
        (['{"a": 1}', '{"a": 1.5}', '{"a": null}'], {"a": pa.float64()}),
        (['{"a": null}'], {"a": pa.string()}),
        (['{"a": true}', '{"a": false}'], {"a": pa.bool_()}),
        (['{"a": 1}', '{"a": "17"}'], {"a": pa.string()}),
        (['{"a": 9223372036854775807}'], {"a": pa.int64()}),
        (['{"a": 9223372036854775808}'], {"a": pa.float64()}),
        (['{"a": "2024-01-01"}'], {"a": pa.string()}),
        (['{"a": []}', '{"a": [1]}', '{"a": [null, 2.5]}'], {"a": pa.list_(pa.float64())}),
        (['{"a": {"b": 1}}', '{"a": {"c": []}}'], {"a": pa.struct([("b", pa.int64()), ("c", pa.list_(pa.string()))])}),
        (['{"a": 1, "b": 1}', '{"a": {}}'], {"b": pa.int64()}),  # an object here, a number there
        (['{"a": [1, {}], "b": 1}'], {"b": pa.int64()}),
        (['{"a": true}', '{"a": 1, "b": 1}'], {"b": pa.int64()}),
        (['{"a": {}, "b": 1}'], {"b": pa.int64()}),
        (["no JSON", "17", "[1]", "\xff", '{"a": 1}', ""], {"a": pa.int64()}),
        (["[" * 100_000, '{"a": 1}'], {"a": pa.int64()}),
        (['{"": 1, "a": {"": 1, "b": 2}}'], {"a": pa.struct([("b", pa.int64())])}),
        (['{"\\ud800": 1, "x\\udfff": 1, "a": {"\\udc00y": 1}, "b": 2}'], {"b": pa.int64()}),
        (['{"\\ud83d\\ude00": 1}'], {"\U0001f600": pa.int64()}),
    ],
)
def test_a_field_has_the_type_that_holds_its_values(bodies: list[str], wanted: dict[str, pa.DataType]) -> None:
    assert schema_of([body.encode("latin-1") for body in bodies]) == pa.schema(wanted)


@pytest.mark.parametrize(
    "name", ["a b", " ", 'a"b', "a,b", "a<b>", "a:b", "\n", "\0", "int", "\U0001f600", "a=b", "\\"]
)
def test_an_inferred_schema_can_be_read_again_from_its_text(name: str) -> None:
    found = schema_of([json.dumps({name: {name: 1}}).encode()])
    assert found is not None
    assert pa.schema(fields_of(fields_text(found))) == found


def test_deeper_objects_are_left_out() -> None:
    body = b'{"a":' * 100 + b"1" + b"}" * 100
    assert schema_of([body[:-1] + b',"b":1}']) == pa.schema({"b": pa.int64()})


@pytest.mark.parametrize("body", [b"x", b"{}", b'{"a": {}}', b"[1]"])
def test_bodies_without_fields_give_no_schema(body: bytes) -> None:
    assert schema_of([body]) is None


def test_a_scan_infers_its_schema(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.create_topic("t", queues=3)
        store.append_many("t", [b'{"id": %d}' % number for number in range(5000)], queue=[n % 3 for n in range(5000)])
        store.append("t", b'{"id": 1.5, "newest": true}', queue=1)
        scan = store.scan("t", columns=["queue_id"], schema="infer")
        assert scan.schema.field("id").type == pa.float64()
        assert scan.columns == ("queue_id", "id", "newest")
        assert scan.to_table().num_rows == 5001
        assert scan.report.bad_bodies == 0
        assert store.scan("t", queues=[0], schema="infer").schema.field("id").type == pa.int64()
        store.append("other", b"x")
        with pytest.raises(InvalidArgument, match="cannot infer a schema of other"):
            store.scan("other", schema="infer")


@pytest.mark.parametrize(
    "schema",
    [
        {"id": pa.int64(), "at": pa.timestamp("ms", "UTC"), "local": pa.timestamp("us"), "d": pa.date32()},
        {"a b": pa.decimal128(10, 2), 'quo"te': pa.string(), "c,d": pa.list_(pa.list_(pa.float32()))},
        {"s": pa.struct([("x y", pa.int8()), ("l<", pa.list_(pa.struct([("t", pa.time64("us"))])))]), "b": pa.bool_()},
        {
            "binary": pa.binary(),
            "u": pa.uint16(),
            "dur": pa.duration("s"),
            "t": pa.time32("ms"),
            "large": pa.large_string(),
        },
    ],
)
def test_schemas_as_text_are_read_back(schema: dict[str, pa.DataType]) -> None:
    fields = [pa.field(name, kind) for name, kind in schema.items()]
    assert fields_of(fields_text(fields)) == fields
