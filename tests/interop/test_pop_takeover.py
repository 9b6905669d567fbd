"""Pops across the two brokers: messages in flight at one's end are revived by the other; acknowledged ones stay away.

Our client pops from either. The first leaves before anything is due again, so all is the second one's: checkpoints
and acks as timer messages in its log, the wheel, the revive queues, the offsets.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cometmq.client import ReceivedMessage, SimpleConsumer
from interop.members import QUICK, as_arguments, keyed, keys_of, producer
from interop.sites import SHARED_SETTINGS, Maker, Peer
from interop.waiting import LIMIT_S

pytestmark = pytest.mark.java(full=True)

MESSAGES = 60
QUEUES = 2
OUT_S = {"clean": 25, "kill": 40}
"""So long one broker has to leave, and the other to start."""
WRITTEN_S = 12
"""Upstream writes offsets down every 5 s, after the first 10: a kill before that gives all that was popped again."""


def member(peer: Peer, topic: str) -> SimpleConsumer:
    quick = {name: value for name, value in QUICK.items() if name.startswith(("poll", "heartbeat"))}
    consumer = SimpleConsumer(
        "takeover",
        name_servers=peer.namesrv.address,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        **quick,
    )
    consumer.subscribe(topic)
    return consumer


def receive(consumer: SimpleConsumer, count: int, *, invisible_s: float, until: float) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while len(messages) < count and time.monotonic() < until:
        messages += consumer.receive(32, invisible_s=invisible_s, wait_s=1)
    return messages


def key(message: ReceivedMessage) -> str:
    (found,) = message.keys
    return found


@pytest.mark.parametrize(
    ("first", "second", "end", "merge"),
    [
        (Maker.OURS, Maker.JAVA, "clean", "true"),
        (Maker.JAVA, Maker.OURS, "clean", "true"),
        (Maker.OURS, Maker.JAVA, "kill", "false"),
        (Maker.JAVA, Maker.OURS, "kill", "false"),
    ],
)
def test_other_broker_revives_messages_in_flight(
    peer: Peer, tmp_path: Path, first: Maker, second: Maker, end: str, merge: str
) -> None:
    topic = f"Takeover-{first.value}-{second.value}-{end}"
    path, settings = tmp_path / "store", {**SHARED_SETTINGS, "enablePopBufferMerge": merge}
    with peer.broker(path, maker=first, name="shared", settings=settings) as broker:
        peer.client.create_topic(broker, topic, queues=QUEUES)
        specs = keyed(topic, range(MESSAGES), queues=QUEUES)
        with producer(peer) as sender:
            for spec in specs:
                sender.send(**as_arguments(spec))
        with member(peer, topic) as consumer:
            popped = time.monotonic()  # before the first of them: on a busy machine the last comes seconds later
            messages = receive(consumer, MESSAGES, invisible_s=OUT_S[end], until=popped + LIMIT_S)
            assert sorted(map(key, messages)) == sorted(keys_of(specs))
            consumer.ack_many(messages[:20])
            for message in messages[20:30]:
                consumer.extend(message, invisible_s=120)
        if end == "clean":
            broker.stop()
        else:
            time.sleep(WRITTEN_S)
            broker.kill()
    out = sorted(map(key, messages[30:]))
    with peer.broker(path, maker=second, name="shared", settings=settings) as broker:
        with member(peer, topic) as consumer:
            early = consumer.receive(32, invisible_s=120, wait_s=0)
            assert time.monotonic() - popped < OUT_S[end], (
                "the second broker started too late for this test to say anything"
            )
            assert early == []
            again = receive(consumer, len(out), invisible_s=120, until=time.monotonic() + OUT_S[end] + LIMIT_S)
            again += consumer.receive(32, invisible_s=120, wait_s=4)
            consumer.ack_many(again)
        broker.kill()
    assert sorted(map(key, again)) == out
    assert {message.reconsume_times for message in again} == {1}
