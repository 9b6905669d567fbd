"""Checks: properties files are read as java.util.Properties reads them (vectors/README.md)."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cometmq.errors import InvalidArgument
from cometmq.store_config.java_hash import hash_map_order, string_hash
from cometmq.store_config.java_properties import parse_properties

VECTORS = Path(__file__).parent / "vectors"


def rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (VECTORS / name).read_text("ascii").splitlines()]


def column(text: str) -> str:
    return base64.b64decode(text).decode("utf-8")


def test_properties_as_java_reads_them() -> None:
    cases = rows("properties.tsv")
    assert len(cases) == 700
    for text, verdict, expected in cases:
        data = column(text).encode("iso-8859-1")
        if verdict == "error":
            with pytest.raises(InvalidArgument, match=r"line \d+: \\u needs four hexadecimal digits"):
                parse_properties(data)
        else:
            assert parse_properties(data) == json.loads(column(expected)), data


def test_the_last_of_equal_keys_wins() -> None:
    assert parse_properties(b"a=1\nb=2\na=3\n") == {"a": "3", "b": "2"}


def test_tables_give_keys_in_javas_order() -> None:
    for text, of_map, of_set in rows("hash_order.tsv"):
        keys = column(text).split(",")
        assert hash_map_order(keys, initial_capacity=128) == column(of_map).split(",")
        assert hash_map_order(keys, initial_capacity=8) == column(of_set).split(",")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("AaAa", 2031744),
        ("BBBB", 2031744),
        ("polygenelubricants", 2**31),
        ("\U0001f600", 1772899),
    ],
)
def test_string_hash(text: str, value: int) -> None:
    assert string_hash(text) == value


def test_many_continued_lines_are_joined_in_one_pass() -> None:
    """5 MiB of them, in a request of code 25, never came back: each line copied all before it."""
    count = 1_500_000
    assert parse_properties(b"key=" + b"a\\\n" * count + b"b") == {"key": "a" * count + "b"}
    assert parse_properties(b"key=a\\\\\\\n\\\\\\\nb\\") == {"key": "a\\\\b"}
