"""Checks: failed messages go back in an order that brokers can keep up with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cometmq.client import send_backs
from cometmq.client.send_backs import SendBacks


def test_only_so_many_are_under_way(monkeypatch: Any) -> None:
    most = 0
    under_way = 0

    async def ask_broker(*given: object, **named: object) -> None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    async def main() -> None:
        backs = SendBacks(SimpleNamespace(ask_broker=ask_broker), "g", most=16, unit_mode=False)  # type: ignore[arg-type]
        message: Any = SimpleNamespace(broker_name="b", stored_topic="t")
        assert all(await asyncio.gather(*(backs.give_back(message, 0) for _ in range(1_000))))

    monkeypatch.setattr(send_backs, "send_back_command", lambda message, **given: None)
    monkeypatch.setattr(send_backs, "checked", lambda answer, *, address: answer)
    asyncio.run(main())
    assert most == 64
