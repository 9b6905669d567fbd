"""Checks: failed messages go back in an order that brokers can keep up with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.group import send_backs
from cometmq.client.group.retry_policy import Resend
from cometmq.client.group.send_backs import SendBacks
from cometmq.errors import ConnectionLost

MESSAGE: Any = SimpleNamespace(broker_name="b", stored_topic="t")


@pytest.fixture(autouse=True)
def plain_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages here are stand-ins: the requests made of them do not matter."""
    monkeypatch.setattr(send_backs, "send_back_command", lambda message, **given: None)
    monkeypatch.setattr(send_backs, "checked", lambda answer, *, address: answer)
    monkeypatch.setattr(
        send_backs, "resend_of", lambda message, **given: Resend(topic="t", body=b"", properties={}, flag=0)
    )


def backs_of(**instance: Any) -> SendBacks:
    given: Any = SimpleNamespace(**instance)
    return SendBacks(given, "g", most=16, unit_mode=False)


def test_only_so_many_are_under_way() -> None:
    most = 0
    under_way = 0

    async def ask_broker(*given: object, **named: object) -> None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    async def main() -> None:
        backs = backs_of(ask_broker=ask_broker)
        assert all(await asyncio.gather(*(backs.give_back(MESSAGE, 0) for _ in range(1_000))))

    asyncio.run(main())
    assert most == 64


def test_unassigned_queues_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    is_gone = True

    async def ask_broker(*given: object, **named: object) -> None:
        if is_gone:
            raise ConnectionLost("b is gone")

    async def send_inner(*given: object, **named: object) -> None:
        raise ConnectionLost("all are gone")

    async def main() -> None:
        nonlocal is_gone
        backs = backs_of(ask_broker=ask_broker, send_inner=send_inner)
        for _ in range(2):
            is_gone = True
            taken = [await backs.give_back(MESSAGE, 0) for _ in range(50)]
            assert not any(taken)
            told = [one.getMessage() for one in caplog.records]
            assert [("did not take" in text, "could not be sent again" in text) for text in told] == [
                (True, False),
                (False, True),
            ]
            caplog.clear()
            is_gone = False
            assert await backs.give_back(MESSAGE, 0)
            assert not caplog.records

    asyncio.run(main())
