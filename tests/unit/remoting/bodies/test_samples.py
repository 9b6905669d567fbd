"""Checks: each body reads the text that upstream's own class wrote, and writes the same bytes.

The texts are the literal output of upstream's classes through fastjson 1.2.83 (remoting specification, section 5).
"""

from __future__ import annotations

import pytest

from cometmq.remoting.bodies.body import Body
from cometmq.remoting.bodies.config_tables import (
    ConsumerOffsetSerializeWrapper,
    CreateTopicListRequestBody,
    DelayOffsetSerializeWrapper,
    GroupForbidden,
    GroupList,
    KVTable,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
    TopicConfigSerializeWrapper,
    TopicList,
)
from cometmq.remoting.bodies.connections import (
    ConsumerConnection,
    GetConsumerListByGroupResponseBody,
    ProducerConnection,
    ProducerTableInfo,
)
from cometmq.remoting.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import ClusterInfo, GetBrokerMemberGroupResponseBody, TopicRouteData

SUBSCRIPTION = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}'
)
VERSION = '{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
TOPIC = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    '"topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}'
)
GROUP = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"CG","groupRetryPolicy":{"type":"CUSTOMIZED"},'
    '"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    '"whichBrokerWhenConsumeSlowly":1}'
)
QUEUE = '{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}'
WRAPPER = (
    f'{{"dataVersion":{VERSION},"mappingDataVersion":{{"counter":0,"stateVersion":0,"timestamp":1700000000000}},'
    f'"topicConfigTable":{{"TopicTest":{TOPIC}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}'
)
MAPPING = (
    '{"bname":"broker-a","currIdMap":{0:0},"dirty":false,"epoch":1,"scope":"__global__","topic":"t","totalQueues":4}'
)

MADE_BY_HAND = {TopicConfigAndQueueMapping}
SAMPLES: list[tuple[type[Body], str]] = [
    (
        HeartbeatData,
        '{"clientID":"10.0.0.9@1234#5","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
        f'[{SUBSCRIPTION}],"unitMode":false}}],"heartbeatFingerprint":0,"producerDataSet":[{{"groupName":"PG"}}],'
        '"withoutSub":false}',
    ),
    (
        CheckClientRequestBody,
        f'{{"clientId":"c1","group":"CG","namespace":"","subscriptionData":{SUBSCRIPTION}}}',
    ),
    (CheckClientRequestBody, f'{{"clientId":"c1","group":"CG","subscriptionData":{SUBSCRIPTION}}}'),
    (
        ConsumerConnection,
        '{"connectionSet":[{"clientAddr":"10.0.0.9:5555","clientId":"c1","language":"JAVA","version":479}],'
        '"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"TopicTest":{SUBSCRIPTION}}}}}',
    ),
    (
        ProducerConnection,
        '{"connectionSet":[{"clientAddr":"10.0.0.9:5555","clientId":"c1","language":"JAVA","version":479}]}',
    ),
    (
        ProducerTableInfo,
        '{"data":{"PG":[{"clientId":"c1","language":"JAVA","lastUpdateTimestamp":1700000000000,'
        '"remoteIP":"10.0.0.9:5555","version":479}]}}',
    ),
    (GetConsumerListByGroupResponseBody, '{"consumerIdList":["c1","c2"]}'),
    (
        LockBatchRequestBody,
        f'{{"clientId":"c1","consumerGroup":"CG","mqSet":[{QUEUE}],"onlyThisBroker":false}}',
    ),
    (LockBatchResponseBody, f'{{"lockOKMQSet":[{QUEUE}]}}'),
    (
        UnlockBatchRequestBody,
        f'{{"clientId":"c1","consumerGroup":"CG","mqSet":[{QUEUE}],"onlyThisBroker":false}}',
    ),
    (
        TopicRouteData,
        '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
        '"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        TopicRouteData,
        '{"brokerDatas":[],"filterServerTable":{},"orderTopicConf":"brokerA:4;brokerB:4","queueDatas":[],'
        f'"topicQueueMappingByBroker":{{"broker-a":{MAPPING}}}}}',
    ),
    (
        ClusterInfo,
        '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":'
        '"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
    ),
    (ClusterInfo, '{"brokerAddrTable":{},"clusterAddrTable":{}}'),
    (
        GetBrokerMemberGroupResponseBody,
        '{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}}',
    ),
    (RegisterBrokerBody, f'{{"filterServerList":[],"topicConfigSerializeWrapper":{WRAPPER}}}'),
    (TopicConfigAndMappingSerializeWrapper, WRAPPER),
    (TopicConfigSerializeWrapper, f'{{"dataVersion":{VERSION},"topicConfigTable":{{"TopicTest":{TOPIC}}}}}'),
    (TopicConfigAndQueueMapping, TOPIC),
    (
        SubscriptionGroupWrapper,
        f'{{"dataVersion":{VERSION},"forbiddenTable":{{}},"subscriptionGroupTable":{{"CG":{GROUP}}}}}',
    ),
    (CreateTopicListRequestBody, f'{{"topicConfigList":[{TOPIC}]}}'),
    (SubscriptionGroupList, f'{{"groupConfigList":[{GROUP}]}}'),
    (ConsumerOffsetSerializeWrapper, f'{{"dataVersion":{VERSION},"offsetTable":{{"TopicTest@CG":{{0:5,1:6}}}}}}'),
    (DelayOffsetSerializeWrapper, '{"offsetTable":{3:12,4:0}}'),
    (DelayOffsetSerializeWrapper, f'{{"dataVersion":{VERSION},"offsetTable":{{3:12}}}}'),
    (GroupForbidden, '{"group":"CG","readable":true,"topic":"t"}'),
    (TopicList, '{"topicList":["TopicTest"]}'),
    (TopicList, '{"brokerAddr":"10.0.0.1:10911","topicList":[]}'),
    (GroupList, '{"groupList":["CG"]}'),
    (KVTable, '{"table":{"brokerVersionDesc":"V5_3_3"}}'),
]


@pytest.mark.parametrize(("kind", "text"), SAMPLES, ids=[kind.__name__ for kind, _ in SAMPLES])
def test_the_same_bytes_come_back(kind: type[Body], text: str) -> None:
    body = kind.from_json(text.encode())
    assert body.to_json().decode() == text
    assert kind.from_json(body.to_json()) == body


@pytest.mark.parametrize(
    "kind", sorted({kind for kind, _ in SAMPLES if kind not in MADE_BY_HAND}, key=lambda kind: kind.__name__)
)
def test_no_field_of_a_sample_is_left_at_its_default(kind: type[Body]) -> None:
    """A misspelled member would read as its default, and the sample could not show it where both are empty."""
    for name in [member[1] for member in kind._wire_members()]:
        texts = [text for sampled, text in SAMPLES if sampled is kind]
        assert any(f'"{name}":' in text for text in texts), f"no sample of {kind.__name__} has {name}"
