"""Attacks: clients that ask for long looks and leave. The look ends with its connection and frees its thread.

Before, a client that asked for the progress in a topic of 65,536 queues and left kept one of the two threads for the
whole look, and could connect again for the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.queues import QueueStore
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.lanes import Lanes
from cometmq.store_config.topic_config import TopicConfig
from support.broker_twins import LaneCaller, Rig

QUEUES = 1_000
LOOKS_BEFORE = 3

REQUESTS: dict[str, tuple[int, dict[str, str]]] = {
    "progress of a group": (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "wide"}),
    "time spans": (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "g", "topic": "wide"}),
    "statistics of a topic": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "wide"}),
    "reset": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "wide", "group": "TOOLS_CONSUMER", "timestamp": "0", "isForce": "true"},
    ),
}


class LeavingStore:
    """A store whose asker leaves at the third queue."""

    def __init__(self, store: QueueStore, leave: Callable[[], None]) -> None:
        self._store = store
        self._leave = leave
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def queue(self, topic: str, queue_id: int) -> tuple[bool, int, int] | None:
        self.looks += 1
        if self.looks == LOOKS_BEFORE:
            self._leave()
        return self._store.queue(topic, queue_id)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, settings={"useServerSideResetOffset": True}) as rig:
        wide = TopicConfig(topic_name="wide", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        asyncio.run(rig.make_topics(wide))
        yield rig


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_look_ends_with_its_connection(rig: Rig, request_of: tuple[int, dict[str, str]]) -> None:
    async def check() -> int:
        lanes, loop = Lanes(threads=1), asyncio.get_running_loop()

        def leave() -> None:
            gone = threading.Event()
            loop.call_soon_threadsafe(lambda: (lanes.forget(1), gone.set()))
            gone.wait()

        store = LeavingStore(rig.control.queues._store, leave)
        rig.control.queues._store = store
        code, fields = request_of
        answer = await rig.ask(code, fields, caller=LaneCaller(lanes=lanes))
        assert answer.code == ResponseCode.SYSTEM_BUSY
        lanes.close()
        return store.looks

    assert asyncio.run(check()) == LOOKS_BEFORE
