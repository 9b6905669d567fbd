"""Checks: simple consumers with ``orderly=True``: each queue's messages in order, one batch at a time in the group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cometmq._engine import ReceivedMessage
from cometmq.aio import SimpleConsumer as AsyncSimpleConsumer
from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.pop.pop_handles import set_order_counts
from cometmq.client.pop.pop_kernel import PopKernel
from cometmq.client.producer import Producer
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.errors import ConnectionLost, MalformedCommand, SendFailed
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.command import Command
from cometmq.testing import Cluster, cluster

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=-1)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as servers:
        yield servers


def is_sent(producer: Producer, body: bytes, queue: MessageQueue) -> bool:
    """Send it, where the name server knows the topic's broker: that registers it a moment later."""
    try:
        producer.send(queue.topic, body, queue=queue)
    except SendFailed as error:
        if error.is_uncertain:
            raise
        return False
    return True


@contextmanager
def members(running: Cluster, group: str, topic: str, count: int, *, queues: int = 2) -> Iterator[list[SimpleConsumer]]:
    """Members of an ordered group, and a topic with so many messages in each queue."""
    running.broker.store.create_topic(topic, queues=queues)
    with Producer(f"p-{group}", name_servers=running.name_server_address) as producer:
        for number in range(count):
            for queue_id in range(queues):
                queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)
                while not is_sent(producer, b"%d" % number, queue):
                    pass
    with ExitStack() as stack:
        made = []
        for name in "ab":
            member = SimpleConsumer(
                group,
                name_servers=running.name_server_address,
                instance_name=f"{group}-{name}",
                orderly=True,
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            )
            member.subscribe(topic)
            made.append(stack.enter_context(member))
        yield made


def received(member: SimpleConsumer, count: int, *, wait_s: float = 30.0) -> list[ReceivedMessage]:
    return member.receive(count, wait_s=wait_s)


def places(messages: list[ReceivedMessage]) -> list[tuple[int, int]]:
    return [(message.queue_id, message.queue_offset) for message in messages]


def test_queue_with_unfinished_messages_gives_nothing_to_anybody(running: Cluster) -> None:
    with members(running, "g_blocks", "t_blocks", 6) as (a, b):
        first = received(a, 2)
        queue = first[0].queue_id
        assert places(first) == [(queue, 0), (queue, 1)]
        others = received(b, 32)
        assert places(others) == [(1 - queue, offset) for offset in range(6)]
        assert received(b, 32, wait_s=0) == []
        a.ack(first[0])
        assert received(b, 32, wait_s=0) == [], "the second one is unfinished"
        a.ack(first[1])
        rest = received(b, 32)
        assert places(rest) == [(queue, offset) for offset in range(2, 6)]
        b.ack_many([*rest, *others])
        assert received(a, 32, wait_s=0) == []


def test_message_given_back_is_redelivered_in_its_place(running: Cluster) -> None:
    with members(running, "g_back", "t_back", 3, queues=1) as (a, b):
        first, second = received(a, 2)
        a.ack(first)
        a.extend(second, invisible_s=0)
        again = received(b, 32)
        assert places(again) == [(0, 1), (0, 2)]
        assert [message.reconsume_times for message in again] == [1, 0]
        b.ack_many(again)
        assert received(a, 32, wait_s=0) == []


def test_loop_keeps_the_order(running: Cluster) -> None:
    with members(running, "g_loop", "t_loop", 20) as (a, _):
        seen: dict[int, list[int]] = {0: [], 1: []}
        for count, message in enumerate(a, 1):
            seen[message.queue_id].append(message.queue_offset)
            if count == 40:
                a.ack(message)
                break
        assert seen == {0: list(range(20)), 1: list(range(20))}


def test_left_loop_gives_back_the_messages_behind_the_one_that_it_was_at(running: Cluster) -> None:
    with members(running, "g_left", "t_left", 12, queues=1) as (a, b):
        for message in a:
            if message.queue_offset == 5:
                break
        assert a.receive(32, wait_s=0) == []
        assert [one.queue_offset for one in a._engine._ready] == []
        a.extend(message, invisible_s=0)
        again = received(b, 32)
        assert places(again) == [(0, offset) for offset in range(5, 12)]
        b.ack_many(again)


def test_left_loop_of_asyncio_gives_back_the_messages_behind_the_one_that_it_was_at(running: Cluster) -> None:
    async def leave() -> int:
        async with AsyncSimpleConsumer(
            "g_aio",
            name_servers=running.name_server_address,
            instance_name="g_aio-c",
            orderly=True,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        ) as consumer:
            await consumer.subscribe("t_aio")
            async with aclosing(cast(AsyncGenerator[ReceivedMessage, None], aiter(consumer))) as messages:
                async for message in messages:
                    if message.queue_offset == 5:
                        break
            rest = await consumer.receive(32, wait_s=0)
            await consumer.extend(message, invisible_s=0)
            return len(rest)

    with members(running, "g_aio", "t_aio", 12, queues=1) as (a, _):
        assert asyncio.run(leave()) == 0
        again = received(a, 32)
        assert places(again) == [(0, offset) for offset in range(5, 12)]
        a.ack_many(again)


def test_loop_that_gives_messages_back_gets_them_before_later_ones(running: Cluster) -> None:
    with members(running, "g_again", "t_again", 8, queues=1) as (a, _):
        seen: list[int] = []
        for message in a:
            seen.append(message.queue_offset)
            if seen.count(message.queue_offset) == 1:
                a.extend(message, invisible_s=0)
            if len(seen) == 16:
                a.ack(message)
                break
        assert seen == sorted([*range(8), *range(8)])


def test_batch_that_waits_for_a_caller_is_not_given_out_in_parts(running: Cluster) -> None:
    with members(running, "g_parts", "t_parts", 4, queues=1) as (a, _):
        batch = received(a, 3)
        a._on_loop(lambda: a._engine._ready.extend(batch))
        first = received(a, 1)
        assert places(first) == [(0, 0)]
        assert a.receive(1, wait_s=0) == [], "the first one is unfinished"
        a.ack(first[0])
        rest = received(a, 32)
        assert places(rest) == [(0, 1), (0, 2), (0, 3)]
        a.ack_many(rest)


class Broker:
    """Takes note of pops, and answers as the test says."""

    def __init__(self) -> None:
        self.fields: list[dict[str, str]] = []
        self.answers: list[Any] = []
        self.network = self

    def master_address(self, name: str) -> str:
        return "b:1"

    async def invoke(self, address: str, command: Command, *, timeout_ms: int) -> Command:
        self.fields.append(dict(command.fields))
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else SimpleNamespace(code=19, fields={})
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def test_lost_answer_is_asked_for_again_by_one_pop() -> None:
    async def work() -> list[str]:
        broker = Broker()
        kernel = PopKernel(broker, group="g", orderly=True)  # type: ignore[arg-type]

        async def pop() -> None:
            subscription = make_subscription("T", "*", now_ms=1)
            await kernel.pop(QUEUE, subscription, max_messages=1, invisible_ms=1, poll_ms=0, from_first=True)

        broker.answers.append(ConnectionLost("gone"))
        with pytest.raises(ConnectionLost):
            await pop()
        await asyncio.gather(pop(), pop())
        await pop()
        broker.answers.append(SimpleNamespace(code=0, fields={"hasMsg": "true"}))
        assert await kernel.has_messages(QUEUE, poll_ms=1)
        assert {fields["order"] for fields in broker.fields} == {"true"}
        return [fields["attemptId"] for fields in broker.fields[:-1]]

    lost, again, beside, later = asyncio.run(work())
    assert lost == again
    assert len({again, beside, later}) == 3


def test_pops_in_any_order_have_no_attempt() -> None:
    async def work() -> dict[str, str]:
        broker = Broker()
        kernel = PopKernel(broker, group="g")  # type: ignore[arg-type]
        subscription = make_subscription("T", "*", now_ms=1)
        await kernel.pop(QUEUE, subscription, max_messages=1, invisible_ms=1, poll_ms=0, from_first=True)
        return broker.fields[0]

    fields = asyncio.run(work())
    assert fields["order"] == "false"
    assert "attemptId" not in fields


@pytest.mark.parametrize("text", ["x", "0 qo0%5", "0 qo0%5 x", "0 qo0%5 -1", "0 0 1;"])
def test_counts_that_are_none_are_rejected(text: str) -> None:
    with pytest.raises(MalformedCommand, match="orderCountInfo"):
        set_order_counts([], text)
