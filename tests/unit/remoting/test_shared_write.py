"""Checks: changes wait for a write that began after them, share it, and leave pauses between long writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.remoting.shared_write import SharedWrite
from support.virtual_loop import VirtualLoop, run_virtual


class SlowFile:
    """A table whose writes take virtual time, by the loop's executor."""

    def __init__(self, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, *, takes_s: float) -> None:
        self.changes = 0
        self.written: list[tuple[float, int]] = []
        self.write = SharedWrite(lambda: None)
        self._loop = loop
        self._takes_s = takes_s
        monkeypatch.setattr(loop, "run_in_executor", self._run)

    async def _run(self, executor: None, call: Callable[[], Any]) -> None:
        self.written.append((self._loop.time(), self.changes))
        await asyncio.sleep(self._takes_s)
        call()

    async def change(self) -> None:
        self.changes += 1
        mine = self.changes
        await self.write()
        assert any(content >= mine for _, content in self.written)


def test_changes_one_after_the_other_leave_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        file = SlowFile(loop, monkeypatch, takes_s=0.2)
        for _ in range(5):
            await file.change()
        assert [round(began, 3) for began, _ in file.written] == [0.0, 0.4, 0.8, 1.2, 1.6]

    run_virtual(main)


def test_changes_in_a_pause_share_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        file = SlowFile(loop, monkeypatch, takes_s=0.5)
        await file.change()
        changes = []
        for _ in range(100):
            changes.append(asyncio.ensure_future(file.change()))
            await asyncio.sleep(0.004)
        await asyncio.gather(*changes)
        assert [content for _, content in file.written] == [1, 101]

    run_virtual(main)


def test_a_pause_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        file = SlowFile(loop, monkeypatch, takes_s=30.0)
        await file.change()
        await file.change()
        assert [began for began, _ in file.written] == [0.0, 31.0]

    run_virtual(main)


def test_quick_writes_have_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        file = SlowFile(loop, monkeypatch, takes_s=0.001)
        for _ in range(10):
            await file.change()
        assert loop.time() == pytest.approx(0.01)

    run_virtual(main)
