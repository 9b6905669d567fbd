"""Checks: for any store and any options, a scan's rows are the messages that read() returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from cometmq import Store
from support.rows import ALL_COLUMNS, rows_of, table_rows
from support.small_store import open_small

TOPICS = ("a", "b", "c")
QUEUES = 3
# The hashes of AaAa and BBBB are equal: only the text tells them apart.
TAGS = ("AaAa", "BBBB", "paid", "ünïcode")
KEYS = ("k1", "k2", "k3")

_numbers = itertools.count()


@dataclass(frozen=True)
class Stored:
    topic: str
    queue: int
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), max_size=6)
MESSAGES = st.lists(
    st.builds(
        Stored,
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        body=st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"x" * 12, b"y" * 13, b"z" * 5000])),
        tag=st.one_of(st.none(), st.sampled_from(TAGS)),
        keys=st.lists(st.sampled_from(KEYS), max_size=2, unique=True).map(tuple),
        properties=st.dictionaries(st.sampled_from(["region", "shop", "x"]), TEXTS, max_size=3),
    ),
    max_size=60,
)
MOMENTS = st.one_of(st.none(), st.floats(0, 1))
OFFSETS = st.one_of(st.none(), st.integers(0, 25))


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Options that read() and scan() share."""
    topic = draw(
        st.one_of(st.none(), st.sampled_from(TOPICS), st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    )
    options: dict[str, Any] = {
        "topic": topic,
        "tags": draw(st.sampled_from([None, "*", "AaAa", "paid || BBBB", "none"])),
        "where": draw(st.sampled_from([None, None, "region IS NOT NULL", "shop <> 'a' OR x IS NULL", "TAGS = 'paid'"])),
    }
    if topic is not None:
        options["queues"] = draw(st.one_of(st.none(), st.lists(st.integers(0, QUEUES - 1), min_size=1, unique=True)))
    if isinstance(topic, str) or (topic is not None and len(topic) == 1):
        start, end = draw(OFFSETS), draw(OFFSETS)
        options |= {"start": start, "end": end if start is None or end is None or end >= start else start}
    return options


def store_all(store: Store, messages: list[Stored]) -> None:
    for topic in TOPICS:
        store.create_topic(topic, queues=QUEUES)
    for one in messages:
        store.append(
            one.topic, one.body, tags=one.tag, keys=one.keys or None, properties=one.properties, queue=one.queue
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(
    messages=MESSAGES,
    options=questions(),
    moments=st.tuples(MOMENTS, MOMENTS),
    narrow=st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True),
    batch_rows=st.sampled_from([1, 3, 8192]),
)
def test_any_store_and_question(
    folder: Path,
    messages: list[Stored],
    options: dict[str, Any],
    moments: tuple[float | None, float | None],
    narrow: list[str],
    batch_rows: int,
) -> None:
    with open_small(folder / str(next(_numbers))) as store:
        store_all(store, messages)
        times = sorted({message.store_timestamp_ms for message in store.read()})
        bounds = [0, *times, (times[-1] if times else 0) + 1]
        # Which times there are depends on the clock; a share of them does not.
        start, end = (None if share is None else bounds[int(share * (len(bounds) - 1))] for share in moments)
        if start is None or end is None or start <= end:
            options = {**options, "start_time": start, "end_time": end}
        expected = rows_of(store.read(**options))
        scan = store.scan(**options, columns=ALL_COLUMNS, batch_rows=batch_rows)
        table = scan.to_table()
        assert table_rows(table) == expected
        assert scan.count() == scan.count(exact=True) == len(expected)
        gathered = store.scan(**options, columns=ALL_COLUMNS, body="binary", batch_rows=batch_rows, batch_bytes=64)
        assert table_rows(gathered.to_table()) == expected
        assert table_rows(store.scan(**options, columns=narrow).to_table()) == [
            {name: row[name] for name in narrow} for row in expected
        ]


@SETTINGS
@given(
    messages=MESSAGES, keys=st.lists(st.sampled_from([*KEYS, "nobody"]), min_size=1, unique=True), options=questions()
)
def test_any_keys(folder: Path, messages: list[Stored], keys: list[str], options: dict[str, Any]) -> None:
    if options["topic"] is None:
        options = {"topic": "a", "tags": options["tags"]}
    with open_small(folder / str(next(_numbers))) as store:
        store_all(store, messages)
        expected = [row for row in rows_of(store.read(**options)) if set((row["keys"] or "").split(" ")) & set(keys)]
        scan = store.scan(**options, keys=keys, columns=ALL_COLUMNS)
        found = table_rows(scan.to_table())
        assert sorted(found, key=lambda row: row["physical_offset"]) == expected
        assert scan.count() == len(expected)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        yield opened


def test_many_segments(store: Store) -> None:
    """A batch may point into several files."""
    store.create_topic("a", queues=2)
    store.append_many("a", [b"%d" % number * 200 for number in range(20_000)])
    expected = rows_of(store.read("a"))
    for rows in (8192, 100_000):
        assert (
            table_rows(store.scan("a", columns=ALL_COLUMNS, batch_rows=rows, batch_bytes=1 << 28).to_table())
            == expected
        )
    assert table_rows(store.scan(columns=ALL_COLUMNS).to_table()) == expected


def test_inner_batches(store: Store) -> None:
    store.create_topic("batches", batch=True)
    for number in range(20):
        store.append_many("batches", [b"%d.%d" % (number, part) for part in range(number % 5 + 1)], tags="t")
    expected = rows_of(store.read("batches"))
    scan = store.scan("batches", columns=ALL_COLUMNS)
    assert table_rows(scan.to_table()) == expected
    assert scan.count() == len(expected)
    raw = store.scan("batches", columns=ALL_COLUMNS, compressed="raw")
    assert table_rows(raw.to_table()) == rows_of(store.read("batches", unwrap=False), raw=True)
