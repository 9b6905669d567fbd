"""Attack: senders set POP_CK, the handle of a popped message, as where an application forwards what it got.

Believed, such a handle acknowledges another message or none, so that this one came for ever, or made the whole answer
one that cannot be read, so that its queue gave nothing.
"""

from __future__ import annotations

import time

import pytest

from cometmq.client.producer import Producer
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.testing import cluster

LIMIT_S = 40
FORGED = ("nonsense", "0 1700000000000 60000 0 0 broker-a 0 0", "0 1700000000000 60000 0 1 broker-a 0 7", " " * 600)


@pytest.mark.parametrize("comes_back", [False, True])
def test_forged_handles_stop_no_queue_and_make_no_message_immortal(comes_back: bool) -> None:
    with cluster(settings={"popCkStayBufferTime": "100"}) as running:
        servers = running.name_server_address
        with Producer("p", name_servers=servers) as producer:
            producer.send_batch(
                [
                    OutgoingMessage(b"%d" % number, topic="orders", properties={"POP_CK": FORGED[number % len(FORGED)]})
                    for number in range(8)
                ]
            )
        with SimpleConsumer("g", name_servers=servers, consume_from_where="CONSUME_FROM_FIRST_OFFSET") as consumer:
            consumer.subscribe("orders")
            first: list[bytes] = []
            end_s = time.monotonic() + LIMIT_S
            while len(first) < 8:
                assert time.monotonic() < end_s, first
                for message in consumer.receive(32, invisible_s=1 if comes_back else 30, wait_s=1):
                    first.append(message.body_bytes)
                    if not comes_back:
                        consumer.ack(message)
            assert sorted(first) == [b"%d" % number for number in range(8)]
            again: list[bytes] = []
            while comes_back and len(again) < 8:
                assert time.monotonic() < end_s, again
                for message in consumer.receive(32, invisible_s=30, wait_s=1):
                    assert message.reconsume_times == 1
                    consumer.ack(message)
                    again.append(message.body_bytes)
            assert consumer.receive(32, wait_s=3 if comes_back else 0) == []
