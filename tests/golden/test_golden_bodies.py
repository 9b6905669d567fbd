"""Checks: every kind of body that real servers and clients exchanged is read, and written again with the same bytes.

``bodies.jsonl.xz`` has up to four different ones of each kind and run, with the code of the request and whether it is
the request's or the answer's; where the whole capture is at hand, all of its bodies are looked at.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.assignments import (
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from cometmq.remoting.bodies.body import Body, decode_body
from cometmq.remoting.bodies.config_tables import (
    GroupList,
    KVTable,
    SubscriptionGroupWrapper,
    TopicConfigAndQueueMapping,
    TopicList,
    decode_subscription_group,
)
from cometmq.remoting.bodies.connections import (
    ConsumerConnection,
    GetConsumerListByGroupResponseBody,
    ProducerConnection,
    ProducerTableInfo,
)
from cometmq.remoting.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.offset_changes import ResetOffsetBody
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.bodies.stats import BrokerStatsData, ConsumeStats, ConsumeStatsList, TopicStatsTable
from cometmq.store_config.fastjson import Layout, encode
from support.frames import all_frames, exchanges
from support.golden import GOLDEN, golden_names

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)
MUTATIONS = 2_000 if os.environ.get("CMQ_LONG") else 20

REQUESTS: dict[int, type[Body]] = {
    34: HeartbeatData,
    41: LockBatchRequestBody,
    42: UnlockBatchRequestBody,
    46: CheckClientRequestBody,
    103: RegisterBrokerBody,
    400: QueryAssignmentRequestBody,
    401: SetMessageRequestModeRequestBody,
}
ANSWERS: dict[int, type[Body]] = {
    28: KVTable,
    38: GetConsumerListByGroupResponseBody,
    41: LockBatchResponseBody,
    103: KVTable,
    105: TopicRouteData,
    106: ClusterInfo,
    201: SubscriptionGroupWrapper,
    202: TopicStatsTable,
    203: ConsumerConnection,
    204: ProducerConnection,
    206: TopicList,
    208: ConsumeStats,
    222: ResetOffsetBody,
    300: GroupList,
    307: ConsumerRunningInfo,
    315: BrokerStatsData,
    317: ConsumeStatsList,
    328: ProducerTableInfo,
    351: TopicConfigAndQueueMapping,
    400: QueryAssignmentResponseBody,
}
UPDATE_GROUP = 200
"""Its body is a record of the store's configuration, and no Body."""

# 4.9 leaves members out that were not there yet: they are written with their defaults.
WITHOUT_NEW_MEMBERS = {("apache-4.9.7", 103), ("apache-4.9.7", 105)}


@dataclass(frozen=True)
class Sample:
    run: str
    code: int
    of_request: bool
    data: bytes


def samples() -> Iterator[Sample]:
    with lzma.open(GOLDEN / "bodies.jsonl.xz", "rt", encoding="ascii") as lines:
        for line in lines:
            row = json.loads(line)
            yield Sample(row["run"], row["code"], row["of"] == "request", base64.b64decode(row["body"]))


def check(sample: Sample) -> None:
    if sample.code == UPDATE_GROUP:
        group = decode_body("group", sample.data, decode_subscription_group)
        assert encode(group.encode(), layout=Layout.COMPACT) == sample.data
        return
    kind = (REQUESTS if sample.of_request else ANSWERS)[sample.code]
    body = kind.from_json(sample.data)
    written = {body.to_json(), body.to_standard_json()} if isinstance(body, TopicRouteData) else {body.to_json()}
    if (sample.run, sample.code) in WITHOUT_NEW_MEMBERS:
        assert sample.data not in written
        assert kind.from_json(body.to_json()) == body
        return
    assert sample.data in written


def test_captured_bodies_round_trip() -> None:
    seen: set[tuple[bool, int]] = set()
    for sample in samples():
        check(sample)
        seen.add((sample.of_request, sample.code))
    wanted = {(True, code) for code in (*REQUESTS, UPDATE_GROUP)} | {(False, code) for code in ANSWERS}
    assert seen == wanted, "each kind was there"


@pytest.mark.parametrize("run", golden_names())
def test_and_all_of_a_whole_capture(run: str) -> None:
    frames = all_frames(run)
    if frames is None:
        pytest.skip("the whole capture is not beside the tree; the selection was looked at")
    done: set[bytes] = set()
    for _, request, answer in exchanges(frames):
        found = [Sample(run, request.code, True, request.body)] if request.code in REQUESTS else []
        if answer is not None and answer.code == 0 and request.code in ANSWERS:
            found.append(Sample(run, request.code, False, answer.body))
        for sample in found:
            if sample.data and sample.data not in done:
                done.add(sample.data)
                check(sample)
    assert len(done) > 20


BYTES = [b"\x00", b"\xff", b"9", b"-", b'"', b"{", b"}", b"[", b"]", b",", b":"]
WORDS = [b"null", b"{}", b"[]", b"99999999999999999999", b"1e999", b"true", b"\\u00"]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The same with a few bytes changed, taken away, or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(3):
            case 0:
                changed[at : at + 1] = rng.choice(
                    [b"\x00", b"\xff", b"9", b"-", b'"', b"{", b"}", b"[", b"]", b",", b":"]
                )
            case 1:
                del changed[at : at + rng.choice([1, 2, 10, 200])]
            case _:
                changed[at:at] = rng.choice(
                    [b"null", b"{}", b"[]", b"99999999999999999999", b"1e999", b"true", b"\\u00"]
                )
    return bytes(changed)


def test_damaged_bodies_are_read_or_refused_with_one_error() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    mutated = [
        (kind, damaged(rng, sample.data))
        for sample in samples()
        for kind in [(REQUESTS if sample.of_request else ANSWERS).get(sample.code)]
        if kind is not None
        for _ in range(MUTATIONS)
    ]
    refused = sum(is_refused(kind, data) for kind, data in mutated)
    assert MUTATIONS < refused < len(mutated) - MUTATIONS


def is_refused(kind: type[Body], data: bytes) -> bool:
    """Tell whether it is; an accepted body can be written, and read again."""
    try:
        body = kind.from_json(data)
    except MalformedBody:
        return True
    kind.from_json(body.to_json())
    return False
