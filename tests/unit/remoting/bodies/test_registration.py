"""Checks: a registration in both forms; a compressed one with lying lengths ends in one typed error."""

from __future__ import annotations

import os
import random
import struct
import zlib

import pytest

from cometmq.errors import MalformedBody
from cometmq.remoting.bodies import registration
from cometmq.remoting.bodies.config_tables import TopicConfigAndMappingSerializeWrapper
from cometmq.remoting.bodies.registration import RegisterBrokerBody, body_checksum
from cometmq.remoting.bodies.routes import TopicQueueMappingInfo
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.topic_config import TopicConfig

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)
VERSION = DataVersion(counter=3, timestamp_ms=1700000000000)

# Written by upstream's class: one topic, no servers, no mappings.
CAPTURED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d6512a2e492c490d4b2d2acecccf53b232d0512ac9cc4d050ae6162859199a1b20402d0303032310cb"
    "86e41764268700d5289800a19942b0a79fbb8f6b7c88a3bb4235481153742c90640000532f1b63"
)


def test_the_compressed_form_of_upstream() -> None:
    body = RegisterBrokerBody.from_wire(CAPTURED, version=479)
    assert body.wrapper.data_version == VERSION
    assert body.wrapper.topics == {
        "TopicTest": TopicConfig(topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4)
    }
    assert body.to_compressed() == CAPTURED
    assert body_checksum(CAPTURED) == 2117459578


def test_both_forms_say_the_same() -> None:
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=4, perm=2, attributes=attributes)
        for name, attributes in [("a", {}), ("%RETRY%b", {"+message.type": "FIFO", "x y": "with blanks"})]
    }
    mapping = TopicQueueMappingInfo(topic="a", scope="s", total_queues=4, broker_name="b", epoch=1, current_ids={0: 1})
    wrapper = TopicConfigAndMappingSerializeWrapper(topics=topics, data_version=VERSION, queue_mappings={"a": mapping})
    body = RegisterBrokerBody(wrapper=wrapper, filter_servers=("h:1",))
    assert RegisterBrokerBody.from_wire(body.to_json(), version=479) == body
    assert RegisterBrokerBody.from_wire(body.to_compressed(), version=479) == body
    before_5 = RegisterBrokerBody.from_wire(body.to_compressed(), version=409)
    assert before_5.wrapper.topics == topics
    assert not before_5.wrapper.queue_mappings, "brokers before 5.0 end before the mappings"


def test_brokers_before_3_0_11_say_their_topics_alone() -> None:
    text = b'{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"a":{"readQueueNums":2}}}'
    body = RegisterBrokerBody.from_wire(text, version=36)
    assert body.wrapper.topics == {"a": TopicConfig(topic_name="a", read_queue_nums=2)}
    assert body.wrapper.data_version == VERSION
    assert not RegisterBrokerBody.from_wire(text, version=37).wrapper.topics


def pieces(*parts: bytes | int) -> bytes:
    packed = (
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part for part in parts
    )
    return zlib.compress(b"".join(packed))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (CAPTURED[:40], "zlib"),
        (b"\x78" + CAPTURED[5:], "zlib"),
        (pieces(), "ends before"),
        (pieces(-1), "length -1"),
        (pieces(2**31 - 1), "more than are left"),
        (pieces(b"{}", 200_000), "topics do not fit"),
        (pieces(b"{}", 200_001), "at most 200000"),
        (pieces(b"{a:1}"), "not strict JSON"),
        (pieces(b"{}", 1, b"orders 4 4"), "3 words"),
        (pieces(b"{}", 1, b"orders x 4 6 SINGLE_TAG {}"), "orders"),
        (pieces(b"{}", 1, b"orders 4 4 6 ANY_TAG {}"), "ANY_TAG"),
        (pieces(b"{}", 1, b"orders 4 4 6 SINGLE_TAG {"), "strict JSON"),
        (pieces(b"{}", 1, b"\xff 4 4 6 SINGLE_TAG {}"), "UTF-8"),
        (pieces(b"{}", 0, b"{}", 0), "filterServerList"),
        (pieces(b"{}", 0, b"[]", 1, b"x"), "TopicQueueMappingInfo"),
    ],
)
def test_invalid_field_is_named(body: bytes, text: str) -> None:
    with pytest.raises(MalformedBody, match=text):
        RegisterBrokerBody.from_wire(body, version=479)


def test_a_body_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1 << 20)
    bomb = zlib.compress(bytes(2 << 20))
    assert len(bomb) < 4096
    with pytest.raises(MalformedBody, match="inflates to more"):
        RegisterBrokerBody.from_wire(bomb, version=479)


def test_damaged_bodies_raise_nothing_else() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    whole = zlib.decompress(CAPTURED)
    refused = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 32, 34, 255, rng.randrange(256)])
        try:
            RegisterBrokerBody.from_wire(zlib.compress(bytes(data)), version=479)
        except MalformedBody:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_filter_servers_and_mappings_have_a_limit(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REGISTERED_TOPICS_MAX", 3)
    monkeypatch.setattr(registration, "REGISTERED_OTHERS_MAX", 2)

    def read(*, topics: int, servers: int, mappings: int) -> RegisterBrokerBody:
        wrapper = TopicConfigAndMappingSerializeWrapper(
            topics={f"t{n}": TopicConfig(topic_name=f"t{n}") for n in range(topics)},
            data_version=VERSION,
            queue_mappings={f"t{n}": TopicQueueMappingInfo(topic=f"t{n}") for n in range(mappings)},
        )
        body = RegisterBrokerBody(wrapper=wrapper, filter_servers=tuple(f"h:{n}" for n in range(servers)))
        return RegisterBrokerBody.from_wire(body.to_compressed() if compressed else body.to_json(), version=479)

    assert len(read(topics=3, servers=2, mappings=2).wrapper.topics) == 3
    for counts, text in [((4, 0, 0), "4 topics"), ((0, 3, 0), "3 filter servers"), ((0, 0, 3), "3 mappings")]:
        with pytest.raises(MalformedBody, match=f"{text}; at most"):
            read(**dict(zip(("topics", "servers", "mappings"), counts, strict=True)))


def test_topics_of_brokers_before_3_0_11_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REGISTERED_TOPICS_MAX", 1)
    with pytest.raises(MalformedBody, match="2 topics; at most 1"):
        RegisterBrokerBody.from_wire(b'{"topicConfigTable":{"a":{},"b":{}}}', version=36)
