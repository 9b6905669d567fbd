"""Checks: a group's messages in flight, where a broker does not report them."""

from __future__ import annotations

from cometmq.admin.groups import GroupOperations
from cometmq.admin.operation import Answer, Call
from cometmq.admin.servers import Servers
from cometmq.remoting.bodies.config_tables import SubscriptionGroupWrapper
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo
from cometmq.remoting.bodies.stats import ConsumeStats, OffsetWrapper
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from support.operations import run_operation


def other_broker(call: Call) -> Answer:
    """One of Apache's: it knows the group, and no code of ours."""
    match call.request.code:
        case RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: "10.0.0.1:10911"})
            return Command(code=0, body=ClusterInfo(brokers={"a": broker}).to_json())
        case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            groups = {"g": SubscriptionGroupConfig(group_name="g")}
            return Command(code=0, body=SubscriptionGroupWrapper(groups=groups).to_json())
        case RequestCode.GET_CONSUME_STATS:
            place = OffsetWrapper(broker_offset=9, consumer_offset=4, pull_offset=6)
            queue = MessageQueue(topic="t", broker_name="a", queue_id=0)
            return Command(code=0, body=ConsumeStats(offsets={queue: place}).to_json())
    assert call.request.code == RequestCode.GET_GROUP_IN_FLIGHT
    return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="request type 31005 not supported")


def test_broker_without_in_flight_figures() -> None:
    found = run_operation(GroupOperations(Servers(namesrv=["n:9876"])).in_flight("g"), other_broker)
    (queue,) = found.queues
    assert (queue.next_offset, queue.waiting, queue.in_flight, queue.oldest_unacked_ms) == (4, 5, None, None)
    assert (found.in_flight, found.oldest_unacked_ms, found.revive_lag_ms, found.revives) == (0, None, 0, {})
