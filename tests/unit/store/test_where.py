"""``read(where=)``, ``scan(where=)``, ``--where``: messages by SQL92 expressions over properties, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import cometmq
from cometmq import aio, errors
from cometmq.arrow import Scan
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
    with pytest.raises(errors.InvalidArgument, match="byte 8: only numbers and properties"):
        store.scan("orders", where="price > 'x'")
    with pytest.raises(errors.LimitReached):
        store.scan("orders", where="(" * 1_000)
    with pytest.raises(errors.WrongType, match="where"):
        store.scan("orders", where=17)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["region LIKE 'e%'", "price + 1 > 10", "upper(region) = 'EU'", "price > 10 LIMIT 5"])
def test_text_behind_the_condition_is_refused(path: Path, store: cometmq.Store, where: str) -> None:
    """A broker ignores it, and warns; a reader of a file would miss messages, or get too many, without a word."""
    reads: list[Callable[..., object]] = [store.read, store.follow, store.scan]
    for read in reads:
        with pytest.raises(errors.InvalidArgument, match="the condition ends before"):
            read("orders", where=where)
    assert "the condition ends before" in run("cat", path, "orders", "--where", where).err
    assert len(list(store.read("orders", where=" price > 10 \n"))) == 19


EXPECTED = [n for n in range(11, 30) if n % 2 == 0]


def scanned(scan: Scan) -> list[int]:
    return [int(body) for body in scan.to_table().column("body").to_pylist()]


def test_follow_and_consumers_take_expressions(store: cometmq.Store) -> None:
    properties = [{"price": str(n), "region": "eu"} for n in (5, 20, 7, 30)]
    with store.follow("orders", where=WHERE, timeout_s=0) as following:
        store.append_many("orders", [b"5", b"20", b"7", b"30"], properties=properties)
        assert sorted(bodies(following)) == [20, 30]
    with store.consumer("g", "orders", where=WHERE, tags="paid") as consumer:
        assert sorted(bodies(consumer)) == [12, 18, 24]
        consumer.commit()
    with store.consumer("g", "orders", where=WHERE) as consumer:
        assert bodies(consumer) == [], "passed messages that do not match count as consumed"
        for queue in store.queues("orders"):
            consumer.seek("orders", queue.queue_id, 0)
        assert sorted(bodies(consumer)) == [12, 14, 16, 18, 20, 20, 22, 24, 26, 28, 30]
    for call in (store.follow, lambda topic, where: store.consumer("g", topic, where=where)):
        with pytest.raises(errors.InvalidArgument, match="byte 8: only numbers and properties"):
            call("orders", where="price > 'x'")


def test_asyncio_follows_and_consumes_by_expression(path: Path) -> None:
    async def run_both() -> tuple[int, int]:
        async with aio.open(path) as store:
            async with store.consumer("g", "orders", where=WHERE) as consumer:
                consumed = len([message async for message in consumer])
            following = store.follow("orders", where=WHERE, timeout_s=0)
            await store.append("orders", b"x", properties={"price": "1"})
            await store.append("orders", b"y", properties={"price": "11", "region": "eu"})
            return consumed, len([message async for message in following])

    assert asyncio.run(run_both()) == (9, 1)


def test_scan_returns_matching_messages_alone(store: cometmq.Store) -> None:
    scan = store.scan("orders", where=WHERE)
    assert sorted(scanned(scan)) == EXPECTED
    assert scan.count() == scan.count(exact=True) == len(EXPECTED)
    assert f"where {WHERE}" in repr(scan)
    assert sorted(scanned(store.scan(where=WHERE))) == EXPECTED, "also over the whole log"
    assert sorted(scanned(store.scan("orders", where=WHERE, tags="paid"))) == [n for n in EXPECTED if n % 3 == 0]
    assert store.scan("orders", where="price IS NULL", columns=["body"]).to_table().to_pylist() == [{"body": b"bare"}]


def test_scan_limits_and_times_count_matching_messages(store: cometmq.Store) -> None:
    in_order = scanned(store.scan("orders", where=WHERE))
    assert scanned(store.scan("orders", where=WHERE, limit=4)) == in_order[:4]
    assert store.scan("orders", where=WHERE, limit=4).count() == 4
    moment = next(m.store_timestamp_ms for m in store.read("orders", where="price = 20"))
    later = store.scan("orders", where=WHERE, start_time=moment)
    assert scanned(later) == bodies(store.read("orders", where=WHERE, start_time=moment))
    assert later.count() == len(scanned(later))


def test_scan_by_expression_since_last_time(store: cometmq.Store) -> None:
    scan = store.scan("orders", where=WHERE, group="etl")
    assert sorted(scanned(scan)) == EXPECTED
    scan.commit()
    assert scanned(store.scan("orders", where=WHERE, group="etl")) == []
    assert sum(one.offset for one in store.progress("etl", "orders")) == 32, "messages that do not match count as read"
    store.append("orders", b"40", properties={"price": "40", "region": "eu"})
    store.append("orders", b"41", properties={"price": "41", "region": "us"})
    scan = store.scan("orders", where=WHERE, start=scan.cursor)
    assert scanned(scan) == [40]
    assert sum(scan.cursor.offsets.values()) == 34


def test_libraries_query_matching_messages_alone(store: cometmq.Store) -> None:
    scan = store.scan("orders", where=WHERE)
    pl = pytest.importorskip("polars", reason="polars is not installed (pip install cometmq[polars])")
    assert scan.to_lazy().select(pl.len()).collect().item() == len(EXPECTED)
    assert scan.to_lazy().filter(pl.col("tags") == "paid").collect().height == 3
    assert sorted(map(int, scan.to_dataset().to_table(columns=["body"]).column("body").to_pylist())) == EXPECTED


def test_asyncio_scans_by_expression(path: Path) -> None:
    async def scan() -> int:
        async with aio.open(path) as store:
            return sum([batch.num_rows async for batch in store.scan("orders", where=WHERE)])

    assert asyncio.run(scan()) == len(EXPECTED)


def test_cat_prints_matching_messages(path: Path) -> None:
    done = run("cat", path, "orders", "--format", "raw", "--where", WHERE)
    assert sorted(map(int, done.out.split())) == [n for n in range(11, 30) if n % 2 == 0]
    assert run("cat", path, "orders", "--where", WHERE, "--key", "k").code == 2
    refused = run("cat", path, "orders", "--where", "price >")
    assert refused.code == 3
    assert "the expression ends" in refused.err


def test_sql_tables_have_matching_messages_alone(path: Path) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    done = run("sql", path, "select count(*) as n from orders", "--where", WHERE, "--csv")
    assert done.out.split() == ['"n"', str(len(EXPECTED))]
    refused = run("sql", path, "select 1", "--where", "price >")
    assert refused.code == 3
    assert "the expression ends" in refused.err
