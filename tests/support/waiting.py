"""Waiting without a sleep: for a message by a held pull, for anything else by round trips to a server."""

from __future__ import annotations

import time
from collections.abc import Callable

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel

TIMEOUT_MS = 30_000


def wait_until(condition: Callable[[], bool], *, limit_s: float = 60) -> None:
    """Ask until it is true. Each question is a round trip, so that nothing spins."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end


def wait_for_message(channel: Channel, topic: str, *, queue: int = 0) -> None:
    """Pull until the topic exists and the queue has a first message; the broker holds each pull."""
    fields = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
    }
    request = Command(code=RequestCode.PULL_MESSAGE, fields=fields)
    wait_until(lambda: channel.invoke(request, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS)
