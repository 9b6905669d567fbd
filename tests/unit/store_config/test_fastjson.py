"""Checks: texts are read as fastjson 1.2.83 reads them and written as it writes them; bad ones give one typed error.

The vectors were captured from the real library (vectors/README.md). CMQ_SEED repeats a random run.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from cometmq.errors import InvalidArgument
from cometmq.store_config import fastjson_reader
from cometmq.store_config.errors import ConfigSyntaxError
from cometmq.store_config.fastjson import (
    BODY_LIMITS,
    DEFAULT_LIMITS,
    JavaList,
    JsonObject,
    JsonValue,
    Layout,
    Limits,
    ObjectKey,
    bean,
    dumps,
    encode,
    loads,
)

VECTORS = Path(__file__).parent / "vectors"
SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)

# fastjson takes these; we do not, and say so in the reader's text.
REFUSED_BY_US = {"{a:5B}", "{a:new Date(5)}", "{a:Set[1,2]}", "{a:x'41'}", "{[1]:2}", "", "  "}
# fastjson looks up what this refers to; here it is an object like any other, so that a rewrite keeps it.
REFERENCES = {'{a:{"$ref":"$"}}'}
# The standard library does not read the captured text.
OBJECTS_AS_KEYS = {"{{a:1}:2}"}
# fastjson refuses these only when it reads without a type; into a typed map, as upstream reads, it takes the first
# three. The rest differ in blanks, or in an exponent without digits, which it takes for a separate word.
REFUSED_BY_FASTJSON = {"{ 0 : 1}", "{0 :1}", "{+1:2}", "{\x0ba:1}"}


def column(text: str) -> str:
    return base64.b64decode(text).decode("utf-8")


def rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (VECTORS / name).read_text("ascii").splitlines()]


def plain(value: JsonValue) -> object:
    """Bring a value to what fastjson's untyped output keeps of it: string keys, no null members, JSON numbers."""
    if isinstance(value, dict):
        return {str(key): plain(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


@pytest.mark.parametrize("row", rows("fastjson_read.tsv"), ids=lambda row: repr(column(row[0])))
def test_reader_accepts_the_dialect_of_fastjson(row: list[str]) -> None:
    text, verdict, expected = column(row[0]), row[1], column(row[2])
    if (verdict == "error" and text not in REFUSED_BY_FASTJSON) or text in REFUSED_BY_US:
        with pytest.raises(ConfigSyntaxError):
            loads(text)
    elif text in OBJECTS_AS_KEYS:
        assert dumps(loads(text), layout=Layout.COMPACT) == expected
    elif verdict == "ok" and text not in REFERENCES:
        assert plain(loads(text)) == json.loads(expected)
    else:
        loads(text)


CHARS = "".join(map(chr, [*range(0x180), *range(0x2020, 0x2030)]))
VALUES: dict[str, JsonValue] = {
    "text": {"chars": CHARS, "beyond": "\U0001f600 \ufeff\ufffd", "a\x01\"\\/\u4e2d\t'": 1, "": 2},
    "bean": {
        "array": [1, 2],
        "beans": JavaList([{"x": 3}, {"x": 4}]),
        "empty": [],
        "flag": True,
        "list": JavaList([1, 2]),
        "map": {0: {"x": 5}, 7: {"x": 6}},
        "set": [{"x": 1}, {"x": 2}],
    },
    "empty": {"null": None, "onlyNull": {"x": None}, "emptyList": [], "list": JavaList([[], {}, None, True, "s"])},
    "mixed": {1: "a", "k": "b", 2: "c", -3: None, 4: {5: 6}},
    "numbers": {
        "scaled": Decimal("1.50"),
        "large": Decimal("1E+3"),
        "small": Decimal("1.5E-10"),
        "big": 123456789012345678901234567890,
        "least": -(2**63),
        "most": 2**63 - 1,
        "safe": 2**53 - 1,
        "unsafe": 2**53,
    },
}


@pytest.mark.parametrize("row", rows("fastjson_write.tsv"), ids=lambda row: row[0])
def test_writer_output_equals_fastjson(row: list[str]) -> None:
    value = VALUES[row[0]]
    for layout, expected in zip((Layout.PRETTY, Layout.COMPACT, Layout.BROWSER), row[1:], strict=True):
        assert encode(value, layout=layout) == base64.b64decode(expected)


def test_every_written_vector_is_tested() -> None:
    assert {row[0] for row in rows("fastjson_write.tsv")} == set(VALUES)


def random_value(rng: random.Random, depth: int = 0) -> JsonValue:
    kind = rng.randrange(9 if depth < 5 else 6)
    if kind == 0:
        return rng.choice([True, False])
    if kind in (1, 2):
        return rng.randint(-(2 ** rng.randint(1, 70)), 2 ** rng.randint(1, 70))
    if kind == 3:
        return Decimal(rng.randint(-(10**9), 10**9)).scaleb(-rng.randint(1, 12))
    if kind in (4, 5):
        return "".join(chr(rng.choice([rng.randrange(0x250), rng.randrange(0xE000, 0x11000)])) for _ in range(8))
    count = rng.randrange(5)
    if kind == 6:
        return {rng.randrange(-5, 500): random_value(rng, depth + 1) for _ in range(count)}
    if kind == 7:
        return {f"k{rng.randrange(500)}'\"\\": random_value(rng, depth + 1) for _ in range(count)}
    items = [random_value(rng, depth + 1) for _ in range(count)]
    return JavaList(items) if rng.random() < 0.5 and items else items


def test_written_values_round_trip() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(1500):
        value = random_value(rng)
        pretty = encode(value)
        again = loads(pretty)
        assert again == value
        assert encode(again) == pretty
        assert loads(encode(value, layout=Layout.COMPACT)) == value


def test_a_list_keeps_its_form() -> None:
    assert type(loads("[\n1\n]")) is JavaList
    assert type(loads("[1,\n2]")) is list
    assert type(loads("[\n]")) is JavaList
    assert dumps(JavaList()) == "[]"


def forms(value: JsonValue) -> object:
    """Return the value with each list's kind."""
    if isinstance(value, list):
        return type(value), [forms(item) for item in value]
    return {key: forms(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_pretty_texts_without_broken_arrays_are_read_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topics.json of 20 MB takes the lenient reader 3.4 s, and the strict one 0.4 s; the values are the same."""
    rng = random.Random(SEED)
    texts = [
        '{\n\t"a":[1,2],\n\t"b[\\n":"[\\n",\n\t"c":{}\n}',
        '{\n"a":[1,\n2]}',
        *(dumps(random_value(rng)) for _ in range(2_000)),
    ]
    strict = []
    for text in texts:
        lenient = fastjson_reader._Reader(text, DEFAULT_LIMITS).document()
        assert forms(loads(text)) == forms(lenient), text
        if "\n" in text and not fastjson_reader._BROKEN_ARRAY.search(text):
            strict.append((text, lenient))
    monkeypatch.setattr(fastjson_reader, "_Reader", None)
    read = 0
    for text, lenient in strict:
        with contextlib.suppress(TypeError):  # integer keys are not strict JSON
            assert loads(text) == lenient
            read += 1
    assert read > 10


def test_an_object_as_key_is_its_text() -> None:
    text = '{{"queueId":0,"topic":"a\\"}b"}:5,{"queueId":1,"topic":"t"}:{{}:1}}'
    value = loads(text)
    assert isinstance(value, dict)
    first, second = value
    assert isinstance(first, ObjectKey)
    assert loads(first) == {"queueId": 0, "topic": 'a"}b'}
    assert value[second] == {"{}": 1}, "equal to the string with the same text"
    assert dumps(value, layout=Layout.COMPACT) == text
    assert loads(dumps({str(first): 5})) == {first: 5}
    assert loads("{{ 'queueId' : 0 , topic:'x' }:1}") == {'{"queueId":0,"topic":"x"}': 1}, "in one form"
    assert loads(dumps(value, layout=Layout.BROWSER)) == value, "strict JSON has it as a string"


def test_a_pretty_object_as_key_is_written_like_any_object() -> None:
    value = loads('{{"queueId":0,"topic":"t"}:5,{"queueId":1,"topic":"u"}:6}')
    expected = '{{\n\t\t"queueId":0,\n\t\t"topic":"t"\n\t}:5,{\n\t\t"queueId":1,\n\t\t"topic":"u"\n\t}:6\n}'
    assert dumps(value) == expected
    assert loads(expected) == value


def test_objects_inside_keys_count_as_depth() -> None:
    with pytest.raises(ConfigSyntaxError, match="inside each other"):
        loads("{" * 1000 + ":1}" * 999)


def refusal(text: str | bytes) -> ConfigSyntaxError | None:
    try:
        loads(text)
    except ConfigSyntaxError as error:
        return error
    return None


BASES = [
    '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"timestamp":1795260258855\n\t},\n\t"offsetTable":{\n'
    '\t\t"%RETRY%g@g":{0:12,1:12\n\t\t},\n\t\t"T@g":{0:1\n\t\t}\n\t}\n}',
    "{a:[1,'x',/*c*/{b:-1.5e3,c:null}], // end\n \"\\u4e2d\\x41\\n\":true,}",
]


def test_damaged_texts_raise_the_one_error_or_are_read() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    noise = "{}[]:,'\"\\/*0123456789-+.eExu\n\t \x00\x7fnulltrue\ud800\U0001f600"
    refused = 0
    for _ in range(6000):
        text = list(rng.choice(BASES))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text) + 1)
            action = rng.randrange(4)
            if action == 0:
                text.insert(at, rng.choice(noise))
            elif action == 1:
                del text[at : at + rng.randint(1, 9)]
            elif action == 2 and at < len(text):
                text[at] = rng.choice(noise)
            else:
                del text[at:]
        damaged = "".join(text)
        problem = refusal(damaged)
        if problem is not None:
            refused += 1
            assert 1 <= problem.line <= damaged.count("\n") + 1
            assert 1 <= problem.column <= len(damaged) + 1
        else:
            written = loads(dumps(loads(damaged)))
            assert plain(written) == plain(loads(damaged))
            assert loads(dumps(written)) == written
    assert refused > 1000


def test_random_bytes_raise_the_one_error_or_are_read() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(3000):
        data = bytearray(BASES[0].encode())
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        refusal(bytes(data))


@pytest.mark.parametrize(
    ("text", "line", "column_number", "part"),
    [
        ("{a:1,\n  b:?}", 2, 5, "expected a value, found '?'"),
        ('{\n"a":1\n"b":2}', 3, 1, "expected ',' or '}', found '\"'"),
        ('{"a"', 1, 5, "expected ':' after the name 'a', found the end of the text"),
        ('{a:"\\q"}', 1, 5, "unknown escape \\q"),
        ("{a:1}\n}", 2, 1, "text after the end"),
        ("{a:/* }", 1, 4, "a comment begins and does not end"),
        ("{a:maybe}", 1, 4, "unknown word 'maybe'; a string needs quotes"),
        ("\x00\x00\x00", 1, 4, "expected a value, found the end of the text"),
    ],
)
def test_an_error_names_its_place(text: str, line: int, column_number: int, part: str) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        loads(text)
    assert (caught.value.line, caught.value.column) == (line, column_number)
    assert part in str(caught.value)
    assert str(caught.value).startswith(f"line {line}, column {column_number}: ")


def test_invalid_utf8_names_its_place() -> None:
    with pytest.raises(ConfigSyntaxError, match="line 2, column 3: not UTF-8"):
        loads(b'{\n"a\xff":1}')


@pytest.mark.parametrize("text", ["[" * 121, '{"a":' * 121, "[{a:" * 61, "[" * 1_000_000, "{0:" * 200_000])
def test_depth_is_limited(text: str) -> None:
    with pytest.raises(ConfigSyntaxError, match="more than 120 objects and arrays"):
        loads(text)


def test_depth_up_to_the_limit_is_read() -> None:
    assert dumps(loads("[" * 120 + "]" * 120)) == "[" * 120 + "]" * 120


STRICT_VALUES = ('"a"', "1", "-0", "0.5", "1e3", "null", "true", '"\\ud83d\\ude00"', "[]", '{"b":[2]}')


def strict_texts(rng: random.Random) -> Iterator[str]:
    """Yield strict JSON around every limit of the reader, and some without any."""
    for limits in (DEFAULT_LIMITS, BODY_LIMITS):
        for digits in (limits.number_chars - 1, limits.number_chars, limits.number_chars + 1):
            yield "9" * digits
            yield "-" + "9" * (digits - 1)
            yield "1." + "7" * (digits - 2)
        for exponent in (limits.exponent - 1, limits.exponent, limits.exponent + 1):
            yield f"[1e{exponent},2.5E-{exponent}]"
        for depth in (limits.depth - 1, limits.depth, limits.depth + 1):
            yield "[" * depth + "]" * depth
            yield '{"a":' * depth + "1" + "}" * depth
    for _ in range(200):
        parts = rng.choices(STRICT_VALUES, k=5)
        yield f'{{"x":[{",".join(parts)}],"x":{parts[0]}}}'


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, BODY_LIMITS], ids=["files", "bodies"])
def test_strict_and_lenient_readers_agree(limits: Limits) -> None:
    # A comment in front makes a text that only the lenient reader takes.
    for text in strict_texts(random.Random(SEED)):
        assert outcome(text, limits) == outcome("/**/" + text, limits), text[:80]


def outcome(text: str, limits: Limits) -> str:
    try:
        return repr(loads(text, limits=limits))
    except ConfigSyntaxError as error:
        return error.reason


def test_accepted_bodies_can_be_written_into_files_and_read_again() -> None:
    for text in strict_texts(random.Random(SEED)):
        try:
            body = loads(text, limits=BODY_LIMITS, keep_layout=False)
        except ConfigSyntaxError:
            continue
        content: JsonValue = {"topicConfigTable": {"orders": {"unknown": body}}}
        written = loads(encode(content))  # without the members that are null
        assert loads(encode(written)) == written, text[:80]


@pytest.mark.parametrize(
    "value", [10**1000, -(10**1000), Decimal("1" * 1001), Decimal("1e10001"), Decimal("1e-10001"), 10**998]
)
def test_numbers_that_could_not_be_read_again_are_not_written(value: JsonValue) -> None:
    with pytest.raises(InvalidArgument, match="cannot write a number"):
        dumps({"a": value})


@pytest.mark.parametrize(
    "text",
    [
        '"' + "a\\n" * 300_000,
        "'" + "a" * 1_000_000,
        '{"' + "\\" * 600_001,
        "/*" + "/*" * 500_000,
        "{0:1" + ",0:1" * 30_000,
    ],
)
def test_unterminated_text_is_refused_in_one_pass(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ConfigSyntaxError):
        loads(text)
    assert time.process_time() - started < 5


def test_length_and_numbers_are_limited() -> None:
    with pytest.raises(ConfigSyntaxError, match="longer than 5 characters"):
        loads("[1,2,3]", limits=Limits(text_chars=5))
    assert loads("9" * 1000) == int("9" * 1000)
    for text in ("9" * 1001, "9" * 100_000, "1." + "0" * 100_000, "1e10001", "1e" + "9" * 900, "1e-99999"):
        with pytest.raises(ConfigSyntaxError):
            loads(text)


def test_a_table_of_many_queues_is_read_quickly_and_exactly() -> None:
    table: JsonObject = {f"T{i}@g": {q: i * 1000 + q for q in range(8)} for i in range(5_000)}
    assert loads(encode({"offsetTable": table})) == {"offsetTable": table}


@pytest.mark.parametrize("value", [1.5, Decimal("NaN"), b"x", {1.5: 1}, {True: 1}, {(): 1}])
def test_values_without_a_json_form_are_refused(value: JsonValue) -> None:
    with pytest.raises(InvalidArgument, match="cannot write"):
        dumps(value)


def test_a_value_inside_itself_is_refused() -> None:
    loop: list[JsonValue] = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="contains itself"):
        dumps(loop)


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert loads('"\\ud83d\\ude00\\ud83d"') == "\U0001f600\ud83d"
    assert encode("\ud83d") == b'"?"'


def test_a_bean_is_sorted_and_keeps_unknown_members() -> None:
    assert list(bean({"b": 1, "d": 2}, {"c": 3, "a": 4, "b": 9})) == ["a", "b", "c", "d"]
    assert bean({"b": 1}, {"b": 9}) == {"b": 1}
