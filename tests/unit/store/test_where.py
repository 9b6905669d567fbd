"""``read(where=)`` and ``cat --where``: messages by SQL92 expressions over their properties, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import cometmq
from cometmq import aio, errors
from support.command_line import run

WHERE = "price > 10 AND region = 'eu'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with cometmq.open(tmp_path) as store:
        for n in range(30):
            region = "eu" if n % 2 == 0 else "us"
            tag = "paid" if n % 3 == 0 else "open"
            store.append("orders", b"%d" % n, tags=tag, properties={"price": str(n), "region": region})
        store.append("orders", b"bare")
        store.append("orders", b"text", properties={"price": "much", "region": "eu"})
    return tmp_path


@pytest.fixture
def store(path: Path) -> Iterator[cometmq.Store]:
    with cometmq.open(path) as store:
        yield store


def bodies(messages: Iterable[cometmq.Message]) -> list[int]:
    return [int(bytes(message.body)) for message in messages]


def test_read_returns_matching_messages_alone(store: cometmq.Store) -> None:
    expected = [n for n in range(11, 30) if n % 2 == 0]
    assert sorted(bodies(store.read("orders", where=WHERE))) == expected
    assert sorted(bodies(store.read(where=WHERE))) == expected, "also over the whole log"
    assert bodies(store.read("orders", where=WHERE, backwards=True)) == bodies(store.read("orders", where=WHERE))[::-1]
    assert sorted(bodies(store.read("orders", where=WHERE, tags="paid"))) == [n for n in expected if n % 3 == 0]
    assert [bytes(m.body) for m in store.read("orders", where="price IS NULL")] == [b"bare"]


def test_asyncio_reads_by_expression(path: Path) -> None:
    async def read() -> int:
        async with aio.open(path) as store:
            return len([message async for message in store.read("orders", where=WHERE)])

    assert asyncio.run(read()) == 9


def test_expressions_that_do_not_compile_are_refused(store: cometmq.Store) -> None:
    with pytest.raises(errors.InvalidArgument, match="byte 8: only numbers and properties"):
        store.read("orders", where="price > 'x'")
    with pytest.raises(errors.LimitReached):
        store.read("orders", where="(" * 1_000)


def test_cat_prints_matching_messages(path: Path) -> None:
    done = run("cat", path, "orders", "--format", "raw", "--where", WHERE)
    assert sorted(map(int, done.out.split())) == [n for n in range(11, 30) if n % 2 == 0]
    assert run("cat", path, "orders", "--where", WHERE, "--key", "k").code == 2
    refused = run("cat", path, "orders", "--where", "price >")
    assert refused.code == 3
    assert "the expression ends" in refused.err
