"""Checks: a heartbeat's content, its fingerprint, and the brokers that may get less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cometmq.client.instance.heartbeats import HeartbeatMemory, heartbeat_data, heartbeat_fingerprint
from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.heartbeat import HeartbeatData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from support.client_parts import FakeConsumer
from support.frames import broker_frames, exchanges

SUPPORTED = Command(code=0, fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"})


def data(*topics: str, client_id: str = "c") -> HeartbeatData:
    return heartbeat_data(client_id, producers=["p"], consumers=[FakeConsumer("g", *topics)])


def test_groups_and_subscriptions_have_an_order() -> None:
    beat = heartbeat_data(
        "c", producers=["z", "a"], consumers=[FakeConsumer("h", "U", "T"), FakeConsumer("g"), FakeConsumer("i")]
    )
    assert [one.group_name for one in beat.producers] == ["a", "z"]
    assert [one.group_name for one in beat.consumers] == ["g", "h", "i"]
    assert [one.topic for one in beat.consumers[1].subscriptions] == ["T", "U"]
    assert HeartbeatData.from_json(beat.to_json()) == beat


def test_java_s_heartbeats_are_read_and_written_alike() -> None:
    beats = [
        request.body
        for _, request, _ in exchanges(broker_frames("apache-5.3.3-groups"))
        if request.code == RequestCode.HEART_BEAT
    ]
    assert beats
    for body in beats:
        beat = HeartbeatData.from_json(body)
        assert HeartbeatData.from_json(beat.to_json()) == beat
        assert "CLIENT_INNER_PRODUCER" in [one.group_name for one in beat.producers]


def test_the_fingerprint_is_that_of_the_subscriptions() -> None:
    one = data("T")
    newer = replace(
        one,
        consumers=tuple(
            replace(part, subscriptions=tuple(replace(sub, sub_version=99) for sub in part.subscriptions))
            for part in one.consumers
        ),
    )
    number = heartbeat_fingerprint(one)
    assert number == heartbeat_fingerprint(newer) == heartbeat_fingerprint(data("T", client_id="other"))
    assert number not in (0, heartbeat_fingerprint(data("U")), heartbeat_fingerprint(data("T", "U")))
    for seed in range(200):
        beat = replace(data(f"topic-{seed}"), fingerprint=heartbeat_fingerprint(data(f"topic-{seed}")))
        assert HeartbeatData.from_json(beat.to_json()) == beat, "it fits Java's int"


def test_a_broker_that_knows_them_gets_less() -> None:
    memory, full = HeartbeatMemory(), data("T")
    first = memory.body_for("b", full, 7)
    assert first == replace(full, fingerprint=7)
    memory.answered("b", first, SUPPORTED)
    second = memory.body_for("b", full, 7)
    assert second.without_sub
    assert second.fingerprint == 7
    assert [part.subscriptions for part in second.consumers] == [()]
    assert not memory.body_for("other", full, 7).without_sub
    assert not memory.body_for("b", full, 8).without_sub, "they changed"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"IS_SUPPORT_HEART_BEAT_V2": "false"},
        {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"},
    ],
)
def test_a_broker_that_does_not_gets_all(fields: dict[str, str]) -> None:
    memory, full = HeartbeatMemory(), data("T")
    memory.answered("b", memory.body_for("b", full, 7), Command(code=0, fields=fields))
    assert not memory.body_for("b", full, 7).without_sub


def test_a_broker_whose_memory_differs_gets_all() -> None:
    memory, full = HeartbeatMemory(), data("T")
    memory.answered("b", memory.body_for("b", full, 7), SUPPORTED)
    short = memory.body_for("b", full, 7)
    memory.answered("b", short, Command(code=0, fields={**SUPPORTED.fields, "IS_SUB_CHANGE": "true"}))
    assert not memory.body_for("b", full, 7).without_sub


@pytest.mark.parametrize("address", [None, "b"])
def test_forgetting(address: str | None) -> None:
    memory, full = HeartbeatMemory(), data("T")
    memory.answered("b", memory.body_for("b", full, 7), SUPPORTED)
    memory.forget(address)
    memory.forget("unknown")
    assert not memory.body_for("b", full, 7).without_sub


def test_bad_bodies_are_refused() -> None:
    with pytest.raises(MalformedBody):
        HeartbeatData.from_json(b'{"clientID":"c","heartbeatFingerprint":3379571101}')
