"""Checks: shared rules of all bodies: leniency as Java's, typed errors that name the field, fastjson's form."""

from __future__ import annotations

import os
import random

import pytest

from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.connections import ProducerTableInfo
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType, HeartbeatData, MessageModel
from cometmq.remoting.bodies.locks import LockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo
from cometmq.remoting.bodies.stats import BrokerStatsData

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)


def test_members_may_come_in_any_order_and_unknown_ones_are_skipped() -> None:
    body = b'{"topic":"t","deep":{"a":[{"b":{1:2}}]},"queueId":"3","brokerName":"b","more":null}'
    assert MessageQueue.from_json(body) == MessageQueue(topic="t", broker_name="b", queue_id=3)


def test_null_and_missing_members_are_the_default() -> None:
    assert LockBatchRequestBody.from_json(b'{"mqSet":null,"clientId":null}') == LockBatchRequestBody()


def test_enums_come_by_name_or_ordinal() -> None:
    body = b'{"consumeType":"CONSUME_POP","messageModel":0,"consumeFromWhere":4}'
    data = ConsumerData.from_json(body)
    assert data.consume_type is ConsumeType.CONSUME_POP
    assert data.message_model is MessageModel.BROADCASTING
    assert data.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.parametrize(
    "body",
    [
        b'{"brokerAddrs":{0:"a:1",7:"b:2"}}',
        b'{"brokerAddrs":{"0":"a:1","7":"b:2"}}',
        b"{'brokerAddrs':{0:'a:1',7:'b:2',},}",
    ],
)
def test_integer_keys_bare_or_quoted(body: bytes) -> None:
    assert BrokerData.from_json(body).broker_addresses == {0: "a:1", 7: "b:2"}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "line 1"),
        (b"[]", "object"),
        (b"nonsense", "nonsense"),
        (b'{"mqSet":{}}', "mqSet"),
        (b'{"mqSet":[null]}', "mqSet.0"),
        (b'{"mqSet":[{"queueId":"x"}]}', "mqSet.0.queueId"),
        (b'{"mqSet":[{"queueId":2147483648}]}', "mqSet.0.queueId"),
        (b'{"mqSet":[{"queueId":1.5}]}', "mqSet.0.queueId"),
        (b'{"onlyThisBroker":"perhaps"}', "onlyThisBroker"),
        (b'{"clientId":["a"]}', "clientId"),
        (b'{"clientId":"' + b"\xff" + b'"}', "UTF-8"),
        (b"[" * 100_000, "inside each other"),
        (b'{"a":' * 100_000, "inside each other"),
        (b'{"mqSet":[{"queueId":' + b"9" * 10_000 + b"}]}", "900"),
    ],
)
def test_invalid_field_is_named(body: bytes, place: str) -> None:
    with pytest.raises(MalformedBody, match=place) as caught:
        LockBatchRequestBody.from_json(body)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("number", [b"9223372036854775808", b'"x"', b"{}"])
def test_a_long_is_64_bits(number: bytes) -> None:
    with pytest.raises(MalformedBody, match="lastUpdateTimestamp"):
        ProducerTableInfo.from_json(b'{"data":{"g":[{"lastUpdateTimestamp":' + number + b"}]}}")


def test_an_unknown_constant_is_refused() -> None:
    with pytest.raises(MalformedBody, match=r"consumerDataSet\.0\.messageModel.*BROADCASTING, CLUSTERING"):
        HeartbeatData.from_json(b'{"consumerDataSet":[{"messageModel":"SHARED"}]}')


def test_damaged_bodies_raise_nothing_else() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    whole = ClusterInfo(
        brokers={"b": BrokerData(cluster="c", broker_name="b", broker_addresses={0: "h:1", 1: "ü:2"})},
        clusters={"c": ("b",)},
    ).to_json()
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 8)]
                case _:
                    data[at:at] = rng.choice([b"{", b"}", b'"', b"[", b",", b"null", b"1e99", b"\\u12"])
            data = data or bytearray(b"{")
        try:
            ClusterInfo.from_json(bytes(data))
        except MalformedBody:
            refused += 1
    assert refused > 500


ITEM = '{"avgpt":0.0,"sum":3,"tps":0.5}'


@pytest.mark.parametrize("reference", ["$.statsDay", "$.more[1]", "$.more[2].deep"])
def test_reference_repeats_an_earlier_value(reference: str) -> None:
    """fastjson writes one where a document has the same object twice."""
    text = f'{{"more":[0,{ITEM},{{"deep":{ITEM}}}],"statsDay":{ITEM},"statsHour":{{"$ref":"{reference}"}}}}'
    body = BrokerStatsData.from_json(text.encode())
    assert body.hour == body.day
    assert body.hour.sum == 3


@pytest.mark.parametrize(
    "reference", ["..", "@", "$.nothing", "$.more[9]", "$.statsHour", "statsDay", "$..x", "$.more[x]"]
)
def test_a_reference_that_leads_nowhere_is_refused(reference: str) -> None:
    text = f'{{"more":[],"statsDay":{ITEM},"statsHour":{{"$ref":"{reference}"}}}}'
    with pytest.raises(MalformedBody, match="ref"):
        BrokerStatsData.from_json(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"statsDay":{"$ref":"$"}}',
        '{"$ref":' + "[" * 900 + "]" * 900 + "}",
        '{"statsDay":{"a":{"$ref":"$"}},"statsHour":{"$ref":"$.statsDay"}}',
        '{"a":[' + "0," * 2_000 + "0]," + ",".join(f'"b{n}":{{"$ref":"$.a"}}' for n in range(1_000)) + "}",
    ],
    ids=["circle", "deep", "one behind another", "a thousand of two thousand"],
)
def test_references_without_end_are_refused(text: str) -> None:
    with pytest.raises(MalformedBody, match=r"ref|inside each other"):
        BrokerStatsData.from_json(text.encode())


def test_the_words_of_a_reference_elsewhere_mean_nothing() -> None:
    assert MessageQueue.from_json(b'{"topic":"$ref","brokerName":"{\\"$ref\\":1}"}').topic == "$ref"
