"""Checks: groups are moved as the broker can do it, and never more queues than were named."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cometmq.admin.offsets import OffsetOperations
from cometmq.admin.operation import Answer, Call
from cometmq.admin.results import QueueOffset
from cometmq.admin.servers import Servers
from cometmq.errors import InvalidArgument, NotFound
from cometmq.remoting.bodies.connections import ConsumerConnection
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import ResetOffsetBody
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.remoting.bodies.stats import ConsumeStats, OffsetWrapper
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.operations import run_operation

ADDRESS = "10.0.0.1:10911"


class OneBroker:
    """A cluster of one broker with a topic of two queues, which end at 100 and 200."""

    def __init__(self, *, moves_single_queues: bool = True, online: bool = False, wants_members: bool = False) -> None:
        self.moves_single_queues = moves_single_queues
        self.online = online
        self.wants_members = wants_members
        self.committed: list[tuple[str, int, int]] = []
        self.resets: list[dict[str, str]] = []

    def __call__(self, call: Call) -> Answer:
        fields = dict(call.request.fields)
        match call.request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6)
                broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: ADDRESS})
                return Command(code=0, body=TopicRouteData(queue_datas=(queues,), broker_datas=(broker,)).to_json())
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: ADDRESS})
                return Command(code=0, body=ClusterInfo(brokers={"a": broker}).to_json())
            case RequestCode.GET_BROKER_CONFIG:
                text = f"useServerSideResetOffset={str(self.moves_single_queues).lower()}\n"
                return Command(code=0, body=text.encode())
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                if self.online:
                    return Command(code=0, body=ConsumerConnection().to_json())
                return Command(code=ResponseCode.CONSUMER_NOT_ONLINE)
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
                self.resets.append(fields)
                if self.wants_members and not self.online:
                    return Command(code=ResponseCode.CONSUMER_NOT_ONLINE, remark="not online")
                moved = {MessageQueue(topic="orders", broker_name="a", queue_id=0): 7}
                return Command(code=0, body=ResetOffsetBody(offsets=moved).to_json())
            case RequestCode.GET_MAX_OFFSET:
                return Command(code=0, fields={"offset": str(100 * (1 + int(fields["queueId"])))})
            case RequestCode.GET_MIN_OFFSET:
                return Command(code=0, fields={"offset": "10"})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return Command(code=0, fields={"offset": str(50 + int(fields["queueId"]))})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.committed.append((fields["consumerGroup"], int(fields["queueId"]), int(fields["commitOffset"])))
                return Command(code=0)
            case RequestCode.GET_CONSUME_STATS:
                places = {
                    MessageQueue(topic=topic, broker_name="a", queue_id=queue): OffsetWrapper(
                        broker_offset=100, consumer_offset=60 - 20 * queue
                    )
                    for topic, queue in (("orders", 0), ("orders", 1), ("%RETRY%g", 0))
                }
                return Command(code=0, body=ConsumeStats(offsets=places).to_json())
        raise AssertionError(RequestCode(call.request.code).name)


@pytest.fixture
def offsets() -> OffsetOperations:
    return OffsetOperations(Servers(namesrv=["n:9876"]))


def place(queue_id: int, offset: int) -> QueueOffset:
    return QueueOffset(broker_name="a", queue_id=queue_id, offset=offset)


def test_the_broker_moves_the_group(offsets: OffsetOperations) -> None:
    broker = OneBroker(online=True)
    assert run_operation(offsets.reset("g", "orders", timestamp_ms=1000), broker) == (place(0, 7),)
    (asked,) = broker.resets
    assert asked == {
        "topic": "orders",
        "group": "g",
        "timestamp": "1000",
        "isForce": "true",
        "queueId": "-1",
        "offset": "-1",
    }
    assert broker.committed == []


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"), [(-1, [(0, 100), (1, 200)]), (0, [(0, 10), (1, 10)]), (1000, [(0, 50), (1, 51)])]
)
def test_offsets_are_committed_where_the_broker_wants_members_and_there_are_none(
    offsets: OffsetOperations, timestamp_ms: int, expected: list[tuple[int, int]]
) -> None:
    broker = OneBroker(wants_members=True)
    moved = run_operation(offsets.reset("g", "orders", timestamp_ms=timestamp_ms), broker)
    assert moved == tuple(place(*one) for one in expected)
    assert broker.committed == [("g", *one) for one in expected]


def test_without_force_only_backwards(offsets: OffsetOperations) -> None:
    broker = OneBroker(wants_members=True)
    run_operation(offsets.reset("g", "orders", timestamp_ms=1000, force=False), broker)
    assert broker.committed == [("g", 0, 50)]  # from 60; queue 1 was at 40 and stays


def test_one_queue(offsets: OffsetOperations) -> None:
    broker = OneBroker(online=True)
    run_operation(offsets.reset("g", "orders", offset=33, queue_id=1), broker)
    assert [(one["queueId"], one["offset"]) for one in broker.resets] == [("1", "33")]


def test_one_queue_where_the_broker_would_move_all(offsets: OffsetOperations) -> None:
    """Without this, a 4.9 broker would pass over the queue and move all of them to their ends."""
    broker = OneBroker(moves_single_queues=False)
    assert run_operation(offsets.reset("g", "orders", offset=33, queue_id=1), broker) == (place(1, 33),)
    assert (broker.resets, broker.committed) == ([], [("g", 1, 33)])
    online = OneBroker(moves_single_queues=False, online=True)
    with pytest.raises(InvalidArgument, match="stop them first"):
        run_operation(offsets.reset("g", "orders", offset=33, queue_id=1), online)
    assert (online.resets, online.committed) == ([], [])


def test_clone_leaves_the_retry_topic_out(offsets: OffsetOperations) -> None:
    broker = OneBroker()
    run_operation(offsets.clone("g", "h"), broker)
    assert broker.committed == [("h", 0, 60), ("h", 1, 40)]
    with pytest.raises(NotFound, match="no progress in topic bills"):
        run_operation(offsets.clone("g", "h", topic="bills"), broker)


@pytest.mark.parametrize(
    "wrong", [{}, {"timestamp_ms": 1, "offset": 1, "queue_id": 0}, {"offset": 1}, {"timestamp_ms": 1, "queue_id": 9}]
)
def test_impossible_requests_are_rejected(offsets: OffsetOperations, wrong: dict[str, int]) -> None:
    broker = OneBroker()
    with pytest.raises((InvalidArgument, NotFound)):
        run_operation(offsets.reset("g", "orders", **wrong), broker)
    assert (broker.resets, broker.committed) == ([], [])


def test_the_first_commit_goes_alone(offsets: OffsetOperations) -> None:
    """A Java broker loses one of two commits that make a group's table at the same time."""
    rounds: list[list[int]] = []
    operation = offsets.commit(
        "g", "orders", [QueueOffset(broker_name="a", queue_id=queue, offset=1) for queue in (0, 1)]
    )
    broker = OneBroker()
    asked = next(operation)
    with suppress(StopIteration):
        while True:
            rounds.append([int(call.request.fields["queueId"]) for call in asked if "queueId" in call.request.fields])
            asked = operation.send([broker(call) for call in asked])
    assert [queues for queues in rounds if queues] == [[0], [1]]
