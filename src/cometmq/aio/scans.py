"""AsyncScan: a scan of an AsyncStore."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cometmq.aio.waiting import MoreWaiter
from cometmq.arrow.count import offsets_of
from cometmq.arrow.cursor import Cursor
from cometmq.arrow.scan import Scan, ScanPass, ScanReport
from cometmq.store import Store

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["AsyncScan"]


class AsyncScan:
    """Messages as columns, for ``async for`` over record batches; see :class:`cometmq.arrow.Scan`.

    Batches are made in the executor. Libraries that take an Arrow stream take :attr:`scan`, in their own threads.
    """

    def __init__(self, store: Store, scan: Scan, more: MoreWaiter, *, timeout_s: float | None) -> None:
        """Use :meth:`AsyncStore.scan`."""
        self.scan = scan
        self._store = store
        self._more = more
        self._timeout_s = timeout_s

    def __aiter__(self) -> AsyncIterator[pyarrow.RecordBatch]:
        """Iterate as :meth:`batches`."""
        return self.batches()

    def batches(self) -> AsyncGenerator[pyarrow.RecordBatch]:
        """Iterate over record batches, one pass, as :meth:`Scan.batches`."""
        return self._follow() if self.scan.query.follow else self._batches()

    async def _batches(self) -> AsyncGenerator[pyarrow.RecordBatch]:
        run = await asyncio.to_thread(self.scan.begin)
        try:
            while (batch := await self._read(run)) is not None:
                yield batch
        finally:
            run.close()

    @staticmethod
    async def _read(run: ScanPass) -> pyarrow.RecordBatch | None:
        """Return the next batch, counted as read: here, since nobody gets the batch of a task that was cancelled.

        A cancelled task waits for the thread first, which still reads from the pass.
        """
        # No task of its own: the end of asyncio.run() cancels all tasks.
        reading = asyncio.get_running_loop().run_in_executor(None, run.take)
        try:
            batch = await asyncio.shield(reading)
        except asyncio.CancelledError:
            while not reading.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([reading])
            reading.exception()  # retrieved; the caller gets the cancellation
            raise
        run.count()
        return batch

    async def _follow(self) -> AsyncGenerator[pyarrow.RecordBatch]:
        """No thread waits here: the pass says at once that there is nothing more, and the store's waiter wakes us."""
        run = await asyncio.to_thread(self.scan.begin, timeout_ms=0)
        left = self.scan.query.limit_rows
        try:
            while left is None or left > 0:
                batch = await self._next(run)
                if batch is None:
                    return
                left = None if left is None else left - batch.num_rows
                yield batch
        finally:
            run.close()

    async def _next(self, run: ScanPass) -> pyarrow.RecordBatch | None:
        handle = self._store.handle
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            seen_end = handle.confirmed_end
            batch = await self._read(run)
            left = None if deadline is None else deadline - time.monotonic()
            if batch is not None or (left is not None and left <= 0) or self._is_over():
                return batch
            await self._more.wait(seen_end, left)

    def _is_over(self) -> bool:
        """Return whether every queue has reached the requested end. The pass has returned all messages up to there."""
        end = self.scan.query.end
        if end is None:
            return False
        return all(reached >= end for _, _, _, reached in offsets_of(self._store.handle, self.scan.query))

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns' names and types."""
        return self.scan.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns' names."""
        return self.scan.columns

    @property
    def report(self) -> ScanReport:
        """Damage and misfits of the latest pass."""
        return self.scan.report

    @property
    def failure(self) -> BaseException | None:
        """The error of the latest pass, or None."""
        return self.scan.failure

    async def cursor(self) -> Cursor:
        """Return the cursor behind the messages read, as :attr:`Scan.cursor`."""
        return await asyncio.to_thread(lambda: self.scan.cursor)

    async def commit(self) -> None:
        """Store the cursor as the group's progress, as :meth:`Scan.commit`."""
        await asyncio.to_thread(self.scan.commit)

    async def to_table(self) -> pyarrow.Table:
        """Return everything, as :meth:`Scan.to_table`."""
        return await asyncio.to_thread(self.scan.to_table)

    async def to_pandas(self, *, arrow_types: bool = False, **options: Any) -> pandas.DataFrame:
        """Return everything, as :meth:`Scan.to_pandas`."""
        return await asyncio.to_thread(self.scan.to_pandas, arrow_types=arrow_types, **options)

    async def to_polars(self) -> polars.DataFrame:
        """Return everything, as :meth:`Scan.to_polars`."""
        return await asyncio.to_thread(self.scan.to_polars)

    async def count(self, *, exact: bool = False) -> int:
        """Return the number of rows, as :meth:`Scan.count`."""
        return await asyncio.to_thread(self.scan.count, exact=exact)

    def __repr__(self) -> str:
        """Say what is asked for."""
        return repr(self.scan).replace("Scan", "AsyncScan", 1)
