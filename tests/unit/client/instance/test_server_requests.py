"""Checks: servers' requests to a client, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client.instance.instance import ClientInstance
from cometmq.client.instance.server_requests import read_message, thread_dump
from cometmq.client.settings import ClientSettings
from cometmq.errors import CorruptRecord, MalformedBody, MalformedCommand
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import GetConsumerStatusBody, ResetOffsetBody
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumeResult, ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from support.client_parts import FakeConsumer
from support.fake_cluster import FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

SETTINGS = ClientSettings(name_servers=("ns:9876",), client_ip="10.0.0.9", instance_name="i")
QUEUE = MessageQueue(topic="T", broker_name="b0", queue_id=0)


def with_consumer(test: Any) -> Any:
    """Run a test as a coroutine of a virtual loop with a started instance and its consumer of group g."""

    def run() -> None:
        async def main(loop: VirtualLoop) -> None:
            cluster = FakeCluster(loop)
            cluster.brokers[0].create("T", 1)
            instance = ClientInstance(SETTINGS, network_factory=cluster.factory, now_ms=loop.now_ms)
            part = FakeConsumer("g", "T")
            instance.register_consumer(part)
            await instance.start()
            await asyncio.sleep(5)
            await test(cluster, instance, part)
            await instance.release()

        run_virtual(main)

    run.__name__ = test.__name__
    return run


async def ask(cluster: FakeCluster, command: Command) -> Command | None:
    """Let the broker ask the client; return its answer, or None where there is none."""
    network = cluster.networks[0]
    network.receive("b0:10911", command)
    await asyncio.sleep(0.01)
    return network.answers.pop()


async def answer_of(cluster: FakeCluster, command: Command) -> Command:
    answer = await ask(cluster, command)
    assert answer is not None
    return answer


@with_consumer
async def test_resets(cluster: FakeCluster, instance: ClientInstance, part: FakeConsumer) -> None:
    body = ResetOffsetBody(offsets={QUEUE: 9}).to_json()
    reset = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic="T", group="g", timestamp=1, body=body)
    assert await ask(cluster, reset) is None
    assert part.resets == [("T", {QUEUE: 9})]
    other = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic="T", group="other", timestamp=1, body=body)
    assert await ask(cluster, other) is None
    with pytest.raises(MalformedCommand, match="group"):
        instance.requests.answer("b0:1", request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic="T", body=body))
    with pytest.raises(MalformedBody):
        instance.requests.answer(
            "b0:1", request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic="T", group="g", body=b"{")
        )
    assert len(part.resets) == 1


@with_consumer
async def test_progress(cluster: FakeCluster, instance: ClientInstance, part: FakeConsumer) -> None:
    part.progress = {QUEUE: 4, MessageQueue(topic="U", broker_name="b0", queue_id=0): 5}
    for group, queues in (("g", {QUEUE: 4}), ("other", {})):
        answer = await answer_of(cluster, request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="T", group=group))
        assert answer.code == ResponseCode.SUCCESS
        assert GetConsumerStatusBody.from_json(answer.body).queues == queues


@with_consumer
async def test_running_info(cluster: FakeCluster, instance: ClientInstance, part: FakeConsumer) -> None:
    asked = {"consumerGroup": "g", "clientId": "10.0.0.9@i"}
    info = ConsumerRunningInfo.from_json(
        (await answer_of(cluster, request(RequestCode.GET_CONSUMER_RUNNING_INFO, **asked))).body
    )
    assert info.properties == {
        "PROP_NAMESERVER_ADDR": "ns:9876",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": "V5_3_3",
        "PROP_CONSUMEORDERLY": "false",
    }
    assert info.jstack is None
    with_threads = await answer_of(cluster, request(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable=True, **asked))
    assert "test_server_requests.py" in (ConsumerRunningInfo.from_json(with_threads.body).jstack or "")
    unknown = await answer_of(
        cluster, request(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="other", clientId="x")
    )
    assert unknown.code == ResponseCode.SYSTEM_ERROR
    assert "other" in (unknown.remark or "")


@with_consumer
async def test_one_message_directly(cluster: FakeCluster, instance: ClientInstance, part: FakeConsumer) -> None:
    record = cluster.brokers[0].append("T", 0, b"body", {"TAGS": "a"})
    command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="g", brokerName="b0", body=record.encode())
    result = ConsumeMessageDirectlyResult.from_json((await answer_of(cluster, command)).body)
    assert (result.consume_result, result.remark) == (ConsumeResult.CR_LATER, "b0")
    (message,) = part.consumed
    assert (message.topic, message.queue_id, message.tags, message.body_bytes) == ("T", 0, "a", b"body")
    assert message.broker_name == "b0"
    command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="other", body=record.encode())
    assert (await answer_of(cluster, command)).code == ResponseCode.SYSTEM_ERROR
    for damaged in (b"", record.encode()[:-1], record.encode() * 2):
        with pytest.raises(CorruptRecord):
            read_message(damaged, broker_name="b0")


@with_consumer
async def test_unknown_requests_are_refused(cluster: FakeCluster, instance: ClientInstance, part: FakeConsumer) -> None:
    answer = await answer_of(cluster, request(9_999))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_threads_are_named() -> None:
    assert "MainThread" in thread_dump()
    assert "test_threads_are_named" in thread_dump()
