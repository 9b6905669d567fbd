"""Checks: a running broker whose wall clock is set, years ahead and weeks back, keeps its clients, locks and messages.

Leases and expiries go by clocks that nobody sets; the wall clock is for time stamps.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.bodies.connections import GetConsumerListByGroupResponseBody
from cometmq.remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store_config.data_version import wall_clock_ms
from hostile.test_system_topics import SETTINGS, send
from support.any_disk import ANY_DISK

TIMEOUT_MS = 10_000
DAY_MS = 24 * 3600 * 1000
JUMPS_MS = (0, 7 * DAY_MS, -7 * DAY_MS, 3650 * DAY_MS, -3650 * DAY_MS, 0)
QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)


def ask(channel: Channel, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    answer: Command = channel.invoke(Command(code=code, fields=fields or {}, body=body), timeout_ms=TIMEOUT_MS)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


def locked(channel: Channel, client: str) -> bool:
    body = LockBatchRequestBody(consumer_group="g", client_id=client, queues=(QUEUE,)).to_json()
    answer = ask(channel, RequestCode.LOCK_BATCH_MQ, body=body)
    return QUEUE in LockBatchResponseBody.from_json(answer.body).locked_queues


def test_clients_locks_and_messages_outlast_every_jump(tmp_path: Path) -> None:
    jump = [0]
    config = load_broker_config(tmp_path, listen=":0", settings=SETTINGS, environ=ANY_DISK)
    beat = HeartbeatData(
        client_id="owner",
        consumers=(ConsumerData(group_name="g", subscriptions=(SubscriptionData(topic="orders"),)),),
    ).to_json()
    with (
        Broker(config, now_ms=lambda: wall_clock_ms() + jump[0]) as broker,
        Channel(broker.address) as owner,
        Channel(broker.address) as other,
    ):
        assert send(owner, "orders", b"first").code == ResponseCode.SUCCESS
        ask(owner, RequestCode.HEART_BEAT, body=beat)
        assert locked(owner, "owner")
        for jump[0] in JUMPS_MS:
            assert send(other, "orders", b"next").code == ResponseCode.SUCCESS
            listed = ask(other, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
            assert GetConsumerListByGroupResponseBody.from_json(listed.body).consumer_ids == ("owner",)
            assert not locked(other, "thief")
            assert locked(owner, "owner")
            ask(owner, RequestCode.HEART_BEAT, body=beat)
            ask(other, RequestCode.GET_BROKER_RUNTIME_INFO)
        queue = {"topic": "orders", "queueId": "0"}
        assert ask(other, RequestCode.GET_MAX_OFFSET, queue).fields["offset"] == str(1 + len(JUMPS_MS))
