"""Checks: a tag that no subscription can name is refused, with the reason, wherever it comes from; others match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cometmq import Store, errors
from cometmq.store.options import parse_tags
from support.small_store import open_small


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("tag", ["a||b", "||", "a || b", b"a||"])
def test_a_tag_with_the_divider(store: Store, tag: str | bytes) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"tags is '.*': a message has one tag, and \|\| divides tags"):
        store.append("t", b"x", tags=tag)
    assert list(store.read()) == []


@pytest.mark.parametrize("tag", [" a", "a ", "\ta", "a\n", " "])
def test_a_tag_with_blanks_at_its_ends(store: Store, tag: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="blanks around a tag are taken off"):
        store.append("t", b"x", tags=tag)
    assert list(store.read()) == []


@pytest.mark.parametrize(
    "tags", [["a", None, "b||c"], np.array([b"a", b"b", b"b||c"]), pa.array(["a", None, "b||c"]), ("a", b"b", "c ")]
)
def test_batches_name_the_element(store: Store, tags: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"tags\[2\] is"):
        store.append_many("t", [b"1", b"2", b"3"], tags=tags)
    assert list(store.read()) == []


def test_one_tag_for_a_batch(store: Store) -> None:
    with pytest.raises(errors.InvalidArgument, match="tags is 'a "):
        store.append_many("t", [b"1"], tags="a ")


def test_tags_of_handed_off_messages(store: Store) -> None:
    store.append("t", b"x")
    with open_small(store.path, mode="r") as reader:
        with pytest.raises(errors.InvalidArgument, match=r"\|\| divides tags"):
            reader.append("t", b"x", tags="a||b")
        with pytest.raises(errors.InvalidArgument, match=r"tags\[1\]"):
            reader.hand_off("t", [b"1", b"2"], tags=["a", "a||b"])


@pytest.mark.parametrize("tag", ["a|b", "a b", "|", "*a", "ü", "\u00a0a"])
def test_every_other_tag_can_be_asked_for(store: Store, tag: str) -> None:
    store.append("t", b"with", tags=tag)
    store.append_many("t", [b"other", b"with"], tags=["other", tag])
    assert [bytes(message) for message in store.read("t", tags=f"none || {tag} ")] == [b"with", b"with"]


def test_an_empty_tag_is_none(store: Store) -> None:
    store.append("t", b"x", tags="")
    assert [message.tags for message in store.read("t")] == [None]


@pytest.mark.parametrize("tag", ["order(v2)", "a=b", "Bob's", "made in china", "R&&D", "rock and roll", "a<b>", "is"])
def test_a_tag_with_the_signs_of_a_condition_can_be_asked_for(store: Store, tag: str) -> None:
    store.append("t", b"with", tags=tag)
    assert [bytes(message) for message in store.read("t", tags=f"none || {tag}")] == [b"with"]


COMPARISONS = ["a = 'x'", 'a="x"', "price > 10", "a <> -1.5", "a = b and c = d"]
CONDITIONS = [*COMPARISONS, "a && b", "x in (1, 2)", "TAGS in ('a')", "x like 'a%'", "x between 1 and 2", "x IS NULL"]


@pytest.mark.parametrize("expression", [*CONDITIONS, "a,b", "a;b", "a | b", "a or b"])
def test_conditions_and_lists_in_another_syntax_are_refused(expression: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"has no meaning there, only \|\| divides tags"):
        parse_tags(expression)
    assert parse_tags([expression]) == (expression,)


def test_blanks_are_java_s() -> None:
    assert parse_tags(" a ||\tb\n|| \u00a0c") == ("a", "b", "\u00a0c")


def test_delayed_messages_are_found_by_their_tags(store: Store) -> None:
    """Their queue's units have delivery times where others have hashes of tags."""
    for number in range(10):
        store.handle.append(
            "SCHEDULE_TOPIC_XXXX",
            b"%d" % number,
            tags="a" if number % 2 else "b",
            properties=b"DELAY\x013\x02",
            queue_id=2,
        )
    odd = [b"1", b"3", b"5", b"7", b"9"]
    assert [bytes(message.body) for message in store.read("SCHEDULE_TOPIC_XXXX", tags="a")] == odd
    for scan in (
        store.scan("SCHEDULE_TOPIC_XXXX", tags="a"),
        store.scan("SCHEDULE_TOPIC_XXXX", tags="a", start={2: 0}),
    ):
        assert scan.to_table().column("body").to_pylist() == odd
    filtered = store.scan("SCHEDULE_TOPIC_XXXX").to_dataset().to_table(filter=pc.field("tags") == "a")
    assert filtered.column("body").to_pylist() == odd
