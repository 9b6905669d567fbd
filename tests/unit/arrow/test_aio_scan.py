"""Checks: scans of the asyncio store."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

import cometmq.aio
from cometmq import errors
from cometmq.aio import AsyncScan
from cometmq.arrow import Scan
from support.small_store import SMALL


def test_scan(tmp_path: Path) -> None:
    async def main() -> None:
        async with cometmq.aio.open(tmp_path / "store", settings=SMALL, flush="async") as store:
            await store.append_many("t", [b"%d" % number for number in range(100)], tags=["a", "b"] * 50)
            scan = store.scan("t", batch_rows=30)
            assert [batch.num_rows async for batch in scan] == [30, 30, 30, 10]
            assert (await scan.to_table()).num_rows == await scan.count() == 100
            assert await store.scan("t", tags="a").count() == 50
            assert (await scan.to_table()).schema == scan.schema
            assert scan.columns == store.store.scan("t").columns
            assert scan.report.skipped == 0
            assert scan.failure is None
            assert repr(scan).startswith("<AsyncScan of 't'")
            decoded = await store.scan("t", schema={"number": "int64"}, body_format="csv").to_table()
            assert decoded.column("number").to_pylist() == list(range(100))
            with pytest.raises(errors.TopicNotFound):
                store.scan("nowhere")

    asyncio.run(main())


def test_follow(tmp_path: Path) -> None:
    async def main() -> None:
        async with cometmq.aio.open(tmp_path / "store", settings=SMALL, flush="async") as store:
            await store.append_many("t", [b"0", b"1"])
            found: list[bytes] = []

            async def collect() -> None:
                async for batch in store.scan("t", follow=True, limit=5):
                    found.extend(batch.column("body").to_pylist())

            task = asyncio.create_task(collect())
            for number in range(2, 6):
                await asyncio.sleep(0.01)
                await store.append("t", b"%d" % number)
            await asyncio.wait_for(task, 30)
            assert found == [b"0", b"1", b"2", b"3", b"4"]
            # Until nothing has come for so long, or until the end that was asked for.
            assert [batch.num_rows async for batch in store.scan("t", follow=True, timeout_s=0.02)] == [6]
            assert [batch.num_rows async for batch in store.scan("t", follow=True, end=4)] == [4]
            with pytest.raises(errors.InvalidArgument, match="never ends"):
                await store.scan("t", follow=True).to_table()

    asyncio.run(main())


def test_closing_wakes_a_scan_that_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with cometmq.aio.open(tmp_path / "store", settings=SMALL, flush="async") as store:
            await store.append("t", b"x")
            scan = store.scan("t", follow=True).batches()
            assert (await anext(scan)).num_rows == 1
            waiting = asyncio.create_task(anext(scan))
            await asyncio.sleep(0.02)
            await store.close()
            with pytest.raises(errors.StoreClosed):
                await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


def test_the_names_and_arguments_are_scan_s() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    # Only the scan has the methods that make no sense in an event loop, or that make something of the scan itself.
    of_the_scan = {"begin", "decoder", "query", "select", "to_dataset", "to_lazy", "to_reader"}
    assert public(AsyncScan) == public(Scan) - of_the_scan
    for name in ("to_table", "to_pandas", "to_polars", "count"):
        assert inspect.iscoroutinefunction(getattr(AsyncScan, name))
        plain, waiting = (inspect.signature(getattr(kind, name)).parameters for kind in (Scan, AsyncScan))
        assert [*plain] == [*waiting]
