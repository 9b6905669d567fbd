"""Templates and the other formats of messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import cometmq
from cometmq.cli.formats import Format, delimiter_of, encoder_of, template_of
from support.small_store import open_small


@pytest.fixture
def message(tmp_path: Path) -> Iterator[cometmq.Message]:
    with open_small(tmp_path / "store") as store:
        store.append("orders", b"\xff{}\n", tags="paid", keys="a b", properties={"x": "é"})
        yield next(iter(store.read("orders")))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"{topic}/{queue}@{offset} {tags} {keys}\n", b"orders/0@0 paid a b\n"),
        ("{body}|", b"\xff{}\n|"),
        (r"{{{offset:>3}}}\t{bytes}", b"{  0}\t4"),
        ("{property.x}{property.none}.", "é.".encode()),
        ("{broker}{retries}", b"0"),
        ("{tags:>6}", b"  paid"),
        ("{offset:,}{topic:,}", b"0orders"),
    ],
)
def test_templates(message: cometmq.Message, template: str, expected: bytes) -> None:
    assert template_of(template)(message) == expected


def test_times_and_properties_of_a_template(message: cometmq.Message) -> None:
    out = template_of("{time_ms} {born_ms} {properties} {id}")(message).decode()
    time_ms, born_ms, rest = out.split(" ", 2)
    assert int(time_ms) == message.store_timestamp_ms
    assert int(born_ms) == message.born_timestamp_ms
    properties, end = json.JSONDecoder().raw_decode(rest)
    assert properties["x"] == "é"
    assert rest[end:] == f" {message.unique_id or message.message_id}"
    assert template_of("{time}")(message).startswith(b"20")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{nothing}", "unknown template field {nothing}; known fields: topic,"),
        ("{topic", "invalid template"),
        ("{topic!r}", "do not support conversions"),
        ("{body:>9}", "takes no format"),
        ("{offset:%}{topic:^%q}", "is not a format"),
        ("{}", "unknown template field {}"),
    ],
)
def test_templates_that_cannot_be(template: str, problem: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        template_of(template)
    assert problem in str(raised.value)


def test_bodies_can_be_left_out(message: cometmq.Message) -> None:
    whole = json.loads(encoder_of(Format.JSON, delimiter=b"")(message))
    assert (whole["body"], whole["body_encoding"]) == ("/3t9Cg==", "base64")
    bare = json.loads(encoder_of(Format.JSON, delimiter=b"", with_body=False)(message))
    assert bare == {name: value for name, value in whole.items() if name not in ("body", "body_encoding")}
    assert encoder_of(Format.TEXT, delimiter=b"", with_body=False)(message).endswith(b"orders/0@0 [paid] (a b)\n")
    assert encoder_of(Format.TEXT, delimiter=b"")(message).endswith(b"(a b) base64:/3t9Cg==\n")


def test_the_delimiter(message: cometmq.Message) -> None:
    assert encoder_of(Format.RAW, delimiter=delimiter_of(r"\0;"))(message) == b"\xff{}\n\0;"
