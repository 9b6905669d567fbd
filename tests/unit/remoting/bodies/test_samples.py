"""Checks: each body reads the text that upstream's own class wrote, and writes the same bytes.

The texts are the literal output of upstream's classes through fastjson 1.2.83 (remoting specification, section 5).
"""

from __future__ import annotations

import pytest

from cometmq.remoting.bodies.acks import BatchAckMessageRequestBody
from cometmq.remoting.bodies.assignments import (
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
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
from cometmq.remoting.bodies.offset_changes import GetConsumerStatusBody, ResetOffsetBody, ResetOffsetBodyForC
from cometmq.remoting.bodies.queries import QueryConsumeQueueResponseBody, QuerySubscriptionResponseBody
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import ClusterInfo, GetBrokerMemberGroupResponseBody, TopicRouteData
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    TopicStatsTable,
)

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
CONSUME_STATS = (
    f'{{"consumeTps":1.5,"offsetTable":{{{QUEUE}:{{"brokerOffset":10,"consumerOffset":7,'
    '"lastTimestamp":1700000000000,"pullOffset":8}}}'
)
MODE = '{"consumerGroup":"CG","mode":"POP","popShareQueueNum":-1,"topic":"TopicTest"}'
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
        ClusterInfo,
        '{"brokerAddrTable":{},"clusterAddrTable":{},"cometmqLostBrokers":{"broker-b":{"brokerAddrs":'
        '{0:"10.0.0.3:10911"},"brokerName":"broker-b","cluster":"DefaultCluster","enableActingMaster":false}}}',
    ),
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
    (
        TopicStatsTable,
        f'{{"offsetTable":{{{QUEUE}:{{"lastUpdateTimestamp":1700000000000,"maxOffset":10,"minOffset":0}}}},'
        '"topicPutTps":0.0}',
    ),
    (ConsumeStats, CONSUME_STATS),
    (
        ConsumeStatsList,
        f'{{"brokerAddr":"10.0.0.1:10911","consumeStatsList":[{{"CG":[{CONSUME_STATS}]}},{{"EMPTY":[]}}],'
        '"totalDiff":3,"totalInflightDiff":-7}',
    ),
    (
        BrokerStatsData,
        '{"statsDay":{"avgpt":0.0,"sum":3,"tps":0.5},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        '"statsMinute":{"avgpt":1.25,"sum":9223372036854775807,"tps":0.001}}',
    ),
    (
        QueryConsumeTimeSpanBody,
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":0,"consumeTimeStampStr":"1970-01-01#00:00:00:000","delayTime":0,'
        f'"maxTimeStamp":0,"maxTimeStampStr":"1970-01-01#00:00:00:000","messageQueue":{QUEUE},"minTimeStamp":0,'
        '"minTimeStampStr":"1970-01-01#00:00:00:000"}]}',
    ),
    (QueryCorrectionOffsetBody, '{"correctionOffsets":{0:5}}'),
    (
        ConsumerRunningInfo,
        f'{{"jstack":"main","mqPopTable":{{{QUEUE}:{{"droped":false,"lastPopTimestamp":0,"waitAckCount":0}}}},'
        f'"mqTable":{{{QUEUE}:{{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,'
        '"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,"lastLockTimestamp":0,'
        '"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        '"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},'
        '"statusTable":{"TopicTest":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,'
        f'"consumeRT":0.0,"pullRT":0.0,"pullTPS":0.0}}}},"subscriptionSet":[{SUBSCRIPTION}],"userConsumerInfo":{{}}}}',
    ),
    (
        ConsumeMessageDirectlyResult,
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
    ),
    (
        ConsumeMessageDirectlyResult,
        '{"autoCommit":false,"consumeResult":"CR_RETURN_NULL","order":true,"remark":"nothing","spentTimeMills":0}',
    ),
    (ResetOffsetBody, f'{{"offsetTable":{{{QUEUE}:5}}}}'),
    (
        ResetOffsetBodyForC,
        '{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"TopicTest"}]}',
    ),
    (GetConsumerStatusBody, f'{{"consumerTable":{{"c1":{{{QUEUE}:5}}}},"messageQueueTable":{{{QUEUE}:5}}}}'),
    (
        QueryAssignmentRequestBody,
        '{"clientId":"c1","consumerGroup":"CG","messageModel":"CLUSTERING","strategyName":"AVG","topic":"TopicTest"}',
    ),
    (
        QueryAssignmentResponseBody,
        '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,"topic":"TopicTest"},'
        '"mode":"POP"}]}',
    ),
    (QueryAssignmentResponseBody, "{}"),
    (SetMessageRequestModeRequestBody, MODE),
    (MessageRequestModeSerializeWrapper, f'{{"messageRequestModeMap":{{"TopicTest":{{"CG":{MODE}}}}}}}'),
    (
        BatchAckMessageRequestBody,
        '{"acks":[{"b":"BQI=","c":"CG","it":60000,"pt":1700000000000,"q":0,"r":"0","rq":3,"so":100,"t":"TopicTest"}],'
        '"brokerName":"broker-a"}',
    ),
    (QuerySubscriptionResponseBody, '{"group":"CG","topic":"TopicTest"}'),
    (
        QuerySubscriptionResponseBody,
        f'{{"group":"CG","subscriptionData":{SUBSCRIPTION},"topic":"TopicTest"}}',
    ),
    (
        QueryConsumeQueueResponseBody,
        '{"filterData":"null","maxQueueIndex":7,"minQueueIndex":1,"queueData":[{"bitMap":"b","eval":false,'
        '"extendDataJson":"e","msg":"m","physicOffset":9,"physicSize":120,"tagsCode":-1}],'
        f'"subscriptionData":{SUBSCRIPTION}}}',
    ),
    (QueryConsumeQueueResponseBody, '{"maxQueueIndex":0,"minQueueIndex":0,"queueData":[]}'),
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
