"""Checks: an asyncio client that was started on one event loop refuses calls on another at once, whether its loop goes
on or is closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from cometmq import ClientStateError
from cometmq.admin.aio import AsyncAdmin
from cometmq.aio import Producer, PullConsumer, PushConsumer, SimpleConsumer
from cometmq.client import OutgoingMessage
from cometmq.testing.clusters import cluster


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with cluster() as running:
        yield running.name_server_address


async def _listen(message: object) -> None:
    """Consume it."""


async def producer(name_server: str) -> Any:
    client = await Producer("p", name_servers=name_server).start()
    await client.send("orders", b"1")
    return client


async def push(name_server: str) -> Any:
    return await (await PushConsumer("push", name_servers=name_server, listener=_listen).subscribe("orders")).start()


async def pull(name_server: str) -> Any:
    client = await PullConsumer("pull", name_servers=name_server).start()
    await client.subscribe("orders")
    return client


async def simple(name_server: str) -> Any:
    client = await SimpleConsumer("simple", name_servers=name_server).start()
    await client.subscribe("orders")
    return client


async def admin(name_server: str) -> Any:
    client = AsyncAdmin(namesrv=name_server)
    await client.topics.list()
    return client


async def _first(messages: AsyncIterator[object]) -> object:
    return await anext(messages)


CLIENTS: list[tuple[Callable[[str], Awaitable[Any]], list[Callable[[Any], Any]]]] = [
    (
        producer,
        [
            lambda client: client.start(),
            lambda client: client.send("orders", b"2"),
            lambda client: client.send_async("orders", b"2"),
            lambda client: client.send_oneway("orders", b"2"),
            lambda client: client.send_batch([OutgoingMessage(b"2")], topic="orders"),
            lambda client: client.send_many([b"2"], topic="orders"),
            lambda client: client.flush(),
            lambda client: client.close(),
        ],
    ),
    (
        push,
        [
            lambda client: client.start(),
            lambda client: client.subscribe("other"),
            lambda client: client.unsubscribe("orders"),
            lambda client: client.progress("orders"),
            lambda client: client.suspend(),
            lambda client: client.resume(),
            lambda client: client.close(),
        ],
    ),
    (
        pull,
        [
            lambda client: client.start(),
            lambda client: client.subscribe("other"),
            lambda client: client.unsubscribe("orders"),
            lambda client: client.queues("orders"),
            lambda client: client.poll(10),
            lambda client: _first(aiter(client)),
            lambda client: client.commit(),
            lambda client: client.commit_async(),
            lambda client: client.close(),
        ],
    ),
    (
        simple,
        [
            lambda client: client.start(),
            lambda client: client.subscribe("other"),
            lambda client: client.unsubscribe("orders"),
            lambda client: client.receive(wait_s=0),
            lambda client: _first(aiter(client)),
            lambda client: client.close(),
        ],
    ),
    (
        admin,
        [
            lambda client: client.topics.list(),
            lambda client: client.groups.list(),
            lambda client: client.close(),
        ],
    ),
]


async def refused(call: Callable[[Any], Any], client: Any) -> None:
    with pytest.raises(ClientStateError, match=r"started on another event loop: make one per event loop"):
        await call(client)


@pytest.mark.parametrize(("start", "calls"), CLIENTS, ids=[start.__name__ for start, _ in CLIENTS])
class TestOtherLoops:
    # A session that was never closed on its own loop leaves its connection to the garbage collector, which warns.
    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_calls_after_the_loop_was_closed_are_refused(
        self,
        name_server: str,
        start: Callable[[str], Awaitable[Any]],
        calls: list[Callable[[Any], Any]],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        client = asyncio.run(_started(start, name_server))
        with caplog.at_level(logging.ERROR, logger="asyncio"):
            for call in calls:
                asyncio.run(refused(call, client))
            del client
            gc.collect()
        assert "never retrieved" not in caplog.text

    def test_calls_beside_the_running_loop_are_refused_and_its_own_go_on(
        self, name_server: str, start: Callable[[str], Awaitable[Any]], calls: list[Callable[[Any], Any]]
    ) -> None:
        async def main() -> None:
            client = await start(name_server)
            for call in calls:
                await asyncio.to_thread(asyncio.run, refused(call, client))
            await client.close()
            await asyncio.to_thread(asyncio.run, _close(client))  # nothing is left to do

        asyncio.run(main())


async def _started(start: Callable[[str], Awaitable[Any]], name_server: str) -> Any:
    return await start(name_server)


async def _close(client: Any) -> None:
    await client.close()
