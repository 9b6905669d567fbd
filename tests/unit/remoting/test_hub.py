"""Checks: the client's connections to a real broker and name server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from cometmq._engine import PullAnswer, PullRequest, SendAnswer, SendRequest, decode_pulled
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.hub import Hub
from cometmq.testing import Cluster, cluster

T = TypeVar("T")


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def with_hub(body: Callable[[Hub], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        hub = Hub(**options)
        try:
            return await body(hub)
        finally:
            await hub.close()

    return asyncio.run(run())


def a_send(topic: str, body: bytes = b"hello", **members: Any) -> SendRequest:
    given: dict[str, Any] = {"code": 310, "producer_group": "PG", "queue_id": 0, "properties": b"TAGS\x01A\x02"}
    return SendRequest(topic=topic, body=body, born_timestamp_ms=1_700_000_000_000, **{**given, **members})


def a_pull(topic: str, **members: Any) -> PullRequest:
    given: dict[str, Any] = {
        "group": "CG",
        "queue_id": 0,
        "queue_offset": 0,
        "max_messages": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_ms": 1_000,
        "sub_version": 0,
        "max_bytes": 1 << 18,
        "subscription": "*",
    }
    return PullRequest(topic=topic, **{**given, **members})


def sent(hub: Hub, address: str, request: SendRequest, *, timeout_ms: int = 10_000) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hub.send(address, request, future.set_result, timeout_ms=timeout_ms)
    return future


def pulled(hub: Hub, address: str, request: PullRequest, *, timeout_ms: int = 10_000) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hub.pull(address, request, future.set_result, timeout_ms=timeout_ms)
    return future


@pytest.mark.parametrize("header_format", list(HeaderFormat))
def test_sends_pulls_and_calls(servers: Cluster, header_format: HeaderFormat) -> None:
    topic = f"Hub{header_format.name}"
    bodies = [b"%d" % i for i in range(100)]

    async def body(hub: Hub) -> None:
        route = await hub.invoke(
            servers.name_server_address,
            Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TBW102"}),
            timeout_ms=10_000,
        )
        assert route.code == ResponseCode.SUCCESS
        assert b"broker-a" in route.body
        address = servers.broker.address
        first = await sent(hub, address, a_send(topic))
        assert isinstance(first, SendAnswer)
        assert (first.code, first.queue_id, first.queue_offset, first.trace_on) == (0, 0, 0, True)
        assert first.message_id is not None
        assert first.region_id == "DefaultRegion"
        more = await asyncio.gather(*[sent(hub, address, a_send(topic, one)) for one in bodies])
        assert [answer.queue_offset for answer in more] == list(range(1, 101))
        found = await pulled(hub, address, a_pull(topic, queue_offset=1))
        assert isinstance(found, PullAnswer)
        assert (found.code, found.min_offset, found.max_offset, found.offset_delta) == (0, 0, 101, None)
        messages = decode_pulled(found.body, broker_name="broker-a", topic=topic, queue_id=0).messages
        assert found.next_begin_offset == 1 + len(messages)
        assert [bytes(message) for message in messages] == bodies[: len(messages)]

    with_hub(body, header_format=header_format)
