"""Checks: messages that are kept hidden, on virtual time; the rest of it is checked through the consumers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

import pytest

from cometmq.client.pop.pop_extending import Extender
from cometmq.errors import ConnectionLost, StaleHandle
from support.virtual_loop import VirtualLoop, run_virtual

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage


@pytest.mark.parametrize("is_stale", [False, True])
def test_message_that_is_held_again_during_its_release_is_extended_once(is_stale: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        begun: list[float] = []
        may_end = asyncio.Event()

        async def change(of: ReceivedMessage, invisible_ms: int) -> None:
            begun.append(loop.time())
            if len(begun) == 1:
                await may_end.wait()
                if is_stale:
                    raise StaleHandle("nobody knows it", handle="", code=13)

        message = cast("ReceivedMessage", object())
        extender = Extender(change, longest_s=1_000)
        extender.keep(message, invisible_ms=10_000, left_ms=10_000)
        await asyncio.sleep(6)
        going = asyncio.create_task(extender.let_go([message]))
        await asyncio.sleep(0)
        extender.keep(message, invisible_ms=10_000, left_ms=10_000)
        may_end.set()
        assert await going == [message]
        await asyncio.sleep(12)
        assert begun == [5, 11, 16]
        assert await extender.let_go([message]) == [message]
        await asyncio.sleep(100)
        assert begun == [5, 11, 16]

    run_virtual(main)


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        outages = [(5, 60), (100, 130)]

        async def change(of: ReceivedMessage, invisible_ms: int) -> None:
            if any(begin_s <= loop.time() < end_s for begin_s, end_s in outages):
                raise ConnectionLost("nobody is there")

        messages = [cast("ReceivedMessage", object()) for _ in range(8)]
        extender = Extender(change, longest_s=1_000)
        for message in messages:
            extender.keep(message, invisible_ms=10_000, left_ms=10_000)
        await asyncio.sleep(200)
        assert await extender.let_go(messages) == messages
        told = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(told) == len(outages)
        assert all("nobody is there" in record.getMessage() for record in told)

    run_virtual(main)
