"""Checks: JSON and CSV bodies become rows; no content of a body moves another row or invents one."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from cometmq import errors
from cometmq.arrow.bodies import BodyDecoder, body_schema
from cometmq.arrow.type_names import type_of

SCHEMA = {"id": "int64", "name": "string"}


def decode(bodies: list[bytes], body_format: Any = "json", schema: Any = SCHEMA) -> tuple[list[Any], list[int]]:
    """Return the rows as tuples, None where a body does not fit, and the bad rows."""
    decoder = BodyDecoder(body_schema(schema), body_format)
    decoded = decoder.decode(pa.array(bodies, pa.binary()))
    bad = decoded.bad.tolist()
    for column, field in zip(decoded.columns, decoder.schema, strict=True):
        assert len(column) == len(bodies)
        assert column.type == field.type
        column.validate(full=True)
        assert all(not column[row].is_valid for row, reason in decoded.reasons.items() if reason.startswith("not one"))
    assert bad == sorted(decoded.reasons)
    rows = list(zip(*(column.to_pylist() for column in decoded.columns), strict=True))
    return [None if row in bad else values for row, values in enumerate(rows)], bad


# --- JSON

BAD_JSON = [
    b"",
    b" ",
    b"\n\n",
    b"null",
    b" null",
    b"true",
    b"1",
    b'"text"',
    b"[]",
    b'[{"id": 1}]',
    b'{"id": 1',
    b'"id": 1}',
    b"{",
    b"}",
    b"}{",
    b'{"id": 1} x',
    b'{"id": 1},',
    b'{"id": 1}]',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 1}\n\n{"id": 2}\n',
    b'{"id": 1},{"id": 2}',
    b'{"id": 1} null',
    b'{"id": 1}, "name": "outside"',
    b'{"id": 1}], "name": ["outside"',
    b'{"name": "not closed',
    b'{"name": {"a": {',
    b'{"id": "text"}',
    b'{"id": 1.5}',
    b'{"id": 99999999999999999999}',
    b'{"id": 1, "id": 2}',
    b'{"name": "\xff"}',
    b'{"name": "\\ud800"}',
    b'{"name": "a\nb"}',
    b"\xef\xbb\xbf{}",
    b"\x00",
]


def test_json_bodies() -> None:
    rows, bad = decode(
        [
            b'{"id": 1, "name": "one"}',
            b'{"name": "two", "other": [1, {"deep": null}], "id": 2}',
            b"{}",
            b' \r\n\t{"id":\n3,\n"name":\n"three"}\n',
            b'{"id": null, "name": "a\\nb\\u0000"}',
        ]
    )
    assert bad == []
    assert rows == [(1, "one"), (2, "two"), (None, None), (3, "three"), (None, "a\nb\0")]


@pytest.mark.parametrize("body", BAD_JSON)
def test_a_body_that_is_no_object_is_one_null_row(body: bytes) -> None:
    good = b'{"id": 7, "name": "x"}'
    for bodies in ([body], [good, body, good], [body, good], [good, body, body, good, good]):
        rows, bad = decode(bodies)
        assert bad == [row for row, one in enumerate(bodies) if one == body]
        assert [row for row in rows if row is not None] == [(7, "x")] * bodies.count(good)


def test_halves_in_two_bodies_are_no_row() -> None:
    rows, bad = decode([b'{"id": 1', b', "name": "x"}', b'{"id": 2}', b'{"name": "', b'"}', b'{"name": {"a":', b"}}"])
    assert bad == [0, 1, 3, 4, 5, 6]
    assert rows[2] == (2, None)


def test_two_objects_do_not_stand_in_for_a_missing_one() -> None:
    """The number of rows alone would fit."""
    rows, bad = decode([b'{"id": 1}{"id": 2}', b"", b'{"id": 3}'])
    assert bad == [0, 1]
    assert rows == [None, None, (3, None)]


def test_nested_types() -> None:
    schema = {"at": pa.timestamp("ms"), "tags": pa.list_(pa.string()), "place": pa.struct([("x", pa.float64())])}
    rows, bad = decode(
        [
            b'{"at": "2026-11-21 10:00:00", "tags": ["a", null], "place": {"x": 1.5}}',
            b"[]",
            b'{"tags": [], "place": {}}',
        ],
        schema=schema,
    )
    assert bad == [1]
    assert rows[0][1:] == (["a", None], {"x": 1.5})
    assert rows[0][0].isoformat() == "2026-11-21T10:00:00"
    assert rows[2] == (None, [], {"x": None})


BODIES = st.lists(
    st.one_of(
        st.sampled_from(BAD_JSON),
        st.binary(max_size=12),
        st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1), "name": st.text(max_size=5)}).map(
            lambda value: json.dumps(value).encode()
        ),
        st.lists(st.sampled_from([b"{", b"}", b'"id"', b":", b"1", b",", b" ", b"null", b"\n"]), max_size=8).map(
            b"".join
        ),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(BODIES)
@example([b'{"id": 1}{"id": 2}', b"", b"null"])
def test_any_json_bodies_give_the_rows_that_each_gives_alone(bodies: list[bytes]) -> None:
    alone = [decode([body])[0][0] for body in bodies]
    rows, bad = decode(bodies)
    assert rows == alone
    for body, row in zip(bodies, rows, strict=True):
        try:
            value = json.loads(body)
        except ValueError:
            continue  # Arrow takes NaN and the like, and so may we
        if isinstance(value, dict) and isinstance(value.get("id"), int) and body.count(b'"id"') == 1:
            assert row is not None or not -(2**63) <= value["id"] < 2**63 or "\\ud" in body.decode("ascii")
    assert bad == [index for index, row in enumerate(rows) if row is None]


# --- CSV

BAD_CSV = [b"", b"\n", b"1", b"1,a,b", b"x,a", b"1,a\n2,b", b'1,"a', b'"1,a', b"1,\xff", b"\n1,a", b"1\r,a"]


def test_a_byte_order_mark_is_no_part_of_a_csv_body() -> None:
    rows, bad = decode([b"1,one", b"\xef\xbb\xbf2,two\n", "\ufeff3,\ufeffthree".encode()], "csv")
    assert rows == [(1, "one"), (2, "two"), (3, "\ufeffthree")]
    assert bad == []


def test_csv_bodies() -> None:
    rows, bad = decode([b"1,one", b"2,two\n", b"3,three\r\n", b',""', b'"4","a""b"', b'5,"x\ny,z"', b"6,"], "csv")
    assert bad == []
    assert rows == [(1, "one"), (2, "two"), (3, "three"), (None, ""), (4, 'a"b'), (5, "x\ny,z"), (6, "")]


@pytest.mark.parametrize("body", BAD_CSV)
def test_a_body_that_is_no_line_is_one_null_row(body: bytes) -> None:
    good = b"7,x"
    for bodies in ([body], [good, body, good], [body, good], [good, body, body, good, good]):
        rows, bad = decode(bodies, "csv")
        assert bad == [row for row, one in enumerate(bodies) if one == body]
        assert [row for row in rows if row is not None] == [(7, "x")] * bodies.count(good)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(BAD_CSV),
            st.lists(st.sampled_from([b"1", b",", b'"', b"\n", b"\r", b"a", b" "]), max_size=8).map(b"".join),
        ),
        max_size=40,
    )
)
def test_any_csv_bodies_give_the_rows_that_each_gives_alone(bodies: list[bytes]) -> None:
    assert decode(bodies, "csv")[0] == [decode([body], "csv")[0][0] for body in bodies]


# --- Fields


def fields(bodies: list[bytes], schema: Any, body_format: Any = "json") -> tuple[list[Any], dict[int, str]]:
    """Return the rows, whatever did not fit, and the reasons."""
    decoder = BodyDecoder(body_schema(schema), body_format)
    decoded = decoder.decode(pa.array(bodies, pa.binary()))
    assert decoded.bad.tolist() == sorted(decoded.reasons)
    return list(zip(*(column.to_pylist() for column in decoded.columns), strict=True)), decoded.reasons


def test_a_field_that_does_not_fit_costs_no_other_field() -> None:
    bodies = [b'{"id": 1, "name": "a"}', b'{"id": "x", "name": "b"}', b'{"id": 3, "name": [4]}', b"no"]
    rows, reasons = fields(bodies, SCHEMA)
    assert rows == [(1, "a"), (None, "b"), (3, None), (None, None)]
    assert reasons == {1: "id: not int64", 2: "name: not string", 3: "not one JSON object"}
    rows, reasons = fields([b"1,a", b"x,b", b"3"], SCHEMA, "csv")
    assert rows == [(1, "a"), (None, "b"), (None, None)]
    assert reasons == {1: "id: not int64", 2: "not one line of CSV with a value for each field"}


NOON = dt.datetime(2023, 11, 14, 22, 13, 20, 500_000)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("timestamp[ms]", "1700000000500", NOON),
        ("timestamp[ms]", "1700000000500.0", NOON),
        ("timestamp[ms]", '"2023-11-14T22:13:20.500"', NOON),
        ("timestamp[us]", "1700000000500000", NOON),
        ("timestamp[ms, tz=UTC]", "1700000000500", NOON.replace(tzinfo=dt.timezone.utc)),
        ("timestamp[ms, tz=UTC]", '"2023-11-14T22:13:20.500Z"', NOON.replace(tzinfo=dt.timezone.utc)),
        ("date32", "19675", dt.date(2023, 11, 14)),
        ("date32", '"2023-11-14"', dt.date(2023, 11, 14)),
        ("duration[s]", "90", dt.timedelta(seconds=90)),
        ("time32[s]", "90", dt.time(0, 1, 30)),
        ("int64", "17.0", 17),
        ("int64", "1.7e1", 17),
        ("int64", '"17"', 17),
        ("int64", "17.5", None),
        ("int64", "1e300", None),
        ("int64", "9007199254740993.0", None),  # no float64 is this number
        ("int64", '"seventeen"', None),
        ("int8", "300", None),
        ("uint8", "-1", None),
        ("float64", "17", 17.0),
        ("float64", '"17.5"', 17.5),
        ("string", "17", "17"),
        ("string", "true", None),
        ("bool", "1", None),
        ("bool", "true", True),
    ],
)
def test_a_number_becomes_each_type_that_it_can_mean(kind: str, value: str, expected: object) -> None:
    bodies = [b'{"v": %s}' % value.encode()] * 3
    rows, reasons = fields([*bodies, b"{}"], {"v": kind})
    assert rows == [(expected,)] * 3 + [(None,)]
    assert reasons == ({} if expected is not None else dict.fromkeys(range(3), f"v: not {type_of(kind)}"))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("date32", "20240101", None),
        ("date64", "20240101", None),
        ("date32", "19675", None),
        ("date32", "20240101.0", None),
        ("date32", "2024-01-01", dt.date(2024, 1, 1)),
        ("date32", "0000-12-31", None),
        ("date32", "0001-01-01", dt.date(1, 1, 1)),
        ("date32", "9999-12-31", dt.date(9999, 12, 31)),
        ("timestamp[s]", "20240101", None),
        ("timestamp[s]", "20240101.0", None),
        ("timestamp[ms]", "-20240101", None),
        ("timestamp[ms]", "20240101120000", None),
        ("timestamp[us]", "20240101120000", None),
        ("timestamp[ms]", "20240101120000.0", None),
        ("time32[s]", "120000", None),
        ("time64[us]", "120000", None),
        ("time32[s]", "12:00:00", dt.time(12)),
        ("timestamp[s]", "100000000", dt.datetime(1973, 3, 3, 9, 46, 40)),
        ("timestamp[ms]", "1700000000500", NOON),
        ("timestamp[ms]", "1700000000500.0", NOON),
        ("timestamp[ms]", "2023-11-14 22:13:20.500", NOON),
    ],
)
def test_whole_numbers_in_csv_are_no_dates(kind: str, text: str, expected: object) -> None:
    rows, reasons = fields([b"%s,1" % text.encode()] * 3 + [b",2"], {"v": kind, "n": "int8"}, "csv")
    assert rows == [(expected, 1)] * 3 + [(None, 2)]
    assert reasons == ({} if expected is not None else dict.fromkeys(range(3), f"v: not {type_of(kind)}"))


@pytest.mark.parametrize(("kind", "fits"), [("s", False), ("ms", True), ("us", True), ("ns", True)])
def test_timestamps_beyond_the_calendar_do_not_fit(kind: str, fits: bool) -> None:
    rows, reasons = fields([b'{"v": 1700000000500}'], {"v": f"timestamp[{kind}]"})
    assert (rows[0][0] is not None, len(reasons)) == (fits, 0 if fits else 1)


@pytest.mark.parametrize("value", ["20240101", "-719163", "2932897", "20240101.0", '"0000-12-31"'])
def test_dates_beyond_the_calendar_do_not_fit(value: str) -> None:
    for kind in ("date32", "date64"):
        days = value if kind == "date32" or value.startswith('"') else f"{float(value) * 86_400_000:.0f}"
        rows, reasons = fields([b'{"v": %s}' % days.encode()], {"v": kind})
        assert (rows, len(reasons)) == ([(None,)], 1)


def test_every_form_of_a_value_in_one_batch() -> None:
    forms = [b"1700000000500", b'"2023-11-14T22:13:20.500"', b"1700000000500.0", b"null", b'"soon"']
    rows, reasons = fields([b'{"at": %s, "n": 1}' % form for form in forms * 10], {"at": "timestamp[ms]", "n": "int8"})
    assert rows == [(NOON, 1), (NOON, 1), (NOON, 1), (None, 1), (None, 1)] * 10
    assert sorted(reasons) == list(range(4, 50, 5))


def test_another_form_in_the_next_batch_is_read_too() -> None:
    decoder = BodyDecoder(body_schema({"at": "timestamp[ms]"}), "json")
    for form in (b"1700000000500", b'"2023-11-14T22:13:20.500"', b"1700000000500.0", b"1700000000500"):
        decoded = decoder.decode(pa.array([b'{"at": %s}' % form] * 4, pa.binary()))
        assert decoded.columns[0].to_pylist() == [NOON] * 4
        assert decoded.reasons == {}


def test_an_error_column_has_the_reasons() -> None:
    decoder = BodyDecoder(body_schema(SCHEMA), "json", error_column="error")
    assert decoder.schema.names == ["id", "name", "error"]
    decoded = decoder.decode(pa.array([b"{}", b'{"id": true, "name": 1.5}', b""], pa.binary()))
    assert decoded.columns[2].to_pylist() == [None, "id: not int64; name: not string", "not one JSON object"]
    assert decoded.fields == {"id": 1, "name": 1}
    wrong: list[Any] = ["", "id", 5]
    for name in wrong:
        with pytest.raises(errors.InvalidArgument, match="error_column is"):
            BodyDecoder(body_schema(SCHEMA), "json", error_column=name)


PLACE = pa.struct([("city", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
NESTED = pa.struct([("city", pa.string()), ("geo", pa.struct([("lat", pa.float64())]))])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int", pa.int64()),
        ("BIGINT", pa.int64()),
        ("integer", pa.int64()),
        ("Int64", pa.int64()),
        ("SMALLINT", pa.int16()),
        ("DOUBLE", pa.float64()),
        ("varchar(20)", pa.string()),
        ("TEXT", pa.string()),
        ("BOOLEAN", pa.bool_()),
        ("date", pa.date32()),
        ("timestamp[ms]", pa.timestamp("ms")),
        ("timestamp[ms, tz=UTC]", pa.timestamp("ms", "UTC")),
        ("timestamp[us,Europe/Berlin]", pa.timestamp("us", "Europe/Berlin")),
        ("TIMESTAMP WITH TIME ZONE", pa.timestamp("us", "UTC")),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("list<item: int64>", pa.list_(pa.int64())),
        ("BIGINT[]", pa.list_(pa.int64())),
        ("struct<city: string, at: timestamp[ms, tz=UTC]>", PLACE),
        ({"city": "string", "geo": {"lat": float}}, NESTED),
        (["int"], pa.list_(pa.int64())),
        (int, pa.int64()),
        (dt.datetime, pa.timestamp("us")),
        (pa.int8(), pa.int8()),
    ],
    ids=str,
)
def test_names_of_types(text: Any, kind: pa.DataType) -> None:
    assert type_of(text) == kind
    assert body_schema({"a": text}) == pa.schema([("a", kind)])


def test_arrow_types_are_known_by_the_text_that_they_show() -> None:
    for kind in (pa.int64(), pa.timestamp("ns", "UTC"), pa.date32(), pa.list_(pa.string()), pa.decimal128(9, 3)):
        assert type_of(str(kind)) == kind


def test_a_schema_as_text() -> None:
    made = body_schema('id BIGINT, "a b" text, to struct<city: string, at: timestamp[ms, tz=UTC]>, n: int[]')
    assert made == pa.schema([("id", pa.int64()), ("a b", pa.string()), ("to", PLACE), ("n", pa.list_(pa.int64()))])


def test_quoted_names_may_hold_any_sign() -> None:
    made = body_schema('`a, b` int, "c`d, e" text, `f"g` bool, `h<` struct<`i, j`: int, "k>": int>, "l""m, n" float')
    nested = pa.struct([("i, j", pa.int64()), ("k>", pa.int64())])
    kinds = [pa.int64(), pa.string(), pa.bool_(), nested, pa.float32()]
    assert made == pa.schema(list(zip(["a, b", "c`d, e", 'f"g', "h<", 'l"m, n'], kinds, strict=True)))


@pytest.mark.parametrize("text", ["", "id", "id nope", "id int,", "id timestamp[hours]", 'id int, "a', "id int, `a"])
def test_texts_that_are_no_schema(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"schema is a pyarrow\.Schema"):
        body_schema(text)


# --- Both


@pytest.mark.parametrize("body_format", ["json", "csv"])
def test_nothing_to_decode(body_format: str) -> None:
    assert decode([], body_format) == ([], [])
    assert decode([b""], body_format) == ([None], [0])


def test_a_slice_of_bodies() -> None:
    bodies = pa.array([b'{"id": %d}' % number for number in range(10)], pa.binary()).slice(3, 4)
    decoded = BodyDecoder(body_schema({"id": "int64"}), "json").decode(bodies)
    assert decoded.columns[0].to_pylist() == [3, 4, 5, 6]


def test_the_first_bad_row_is_found_without_decoding_the_rest() -> None:
    bodies = [b'{"id": %d}' % number for number in range(1000)]
    bodies[700], bodies[800] = b'{"id": "x"}', b""
    decoded = BodyDecoder(body_schema(SCHEMA), "json").decode(pa.array(bodies, pa.binary()), stop_at_bad=True)
    assert decoded.bad[0] == 700
    assert decoded.columns == []


@pytest.mark.parametrize(
    "schema",
    [{}, 17, {"a": "no such type"}, {"a": 5}, pa.schema([("a", pa.int8()), ("a", pa.int8())]), ["a"]],
)
def test_no_schema(schema: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        body_schema(schema)


def test_types_that_the_reader_does_not_make() -> None:
    with pytest.raises(errors.InvalidArgument, match="'a' of the schema cannot be map"):
        BodyDecoder(body_schema({"a": pa.map_(pa.string(), pa.string())}), "json")
    with pytest.raises(errors.InvalidArgument, match="list"):
        BodyDecoder(body_schema({"a": pa.list_(pa.int8())}), "csv")
    with pytest.raises(errors.InvalidArgument, match="body_format"):
        BodyDecoder(body_schema({"a": "int8"}), "xml")  # type: ignore[arg-type]


def test_fields_come_nullable() -> None:
    schema = body_schema(pa.schema([pa.field("a", pa.int8(), nullable=False)]))
    assert schema.field("a").nullable
