"""SQL92 end to end: our push, pull and simple consumers at a broker of ours, by its filters."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cometmq.testing
from cometmq._engine import ReceivedMessage
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.errors import BrokerError
from cometmq.testing.clusters import Cluster

TOPIC = "Orders"
WHERE = "price > 10 AND region = 'eu'"
COUNT = 60
EXPECTED = {b"%d" % n for n in range(COUNT) if n > 10 and n % 2 == 0}
FIRST: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}
WAIT_S = 60


def send(cluster: Cluster) -> None:
    with Producer("p", name_servers=cluster.name_server_address) as producer:
        for n in range(COUNT):
            region = "eu" if n % 2 == 0 else "us"
            producer.send(TOPIC, b"%d" % n, properties={"price": str(n), "region": region})


SETTINGS = {"enablePropertyFilter": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cometmq.testing.cluster(settings=SETTINGS) as running:
        send(running)
        yield running


class Seen:
    """A listener that waits for bodies."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self._changed = threading.Condition()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.bodies.add(bytes(message.body))
            self._changed.notify_all()

    def wait_for(self, bodies: set[bytes]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.bodies >= bodies, WAIT_S), self.bodies


def test_push_consumers_get_selected_messages_alone(tmp_path: Path) -> None:
    seen = Seen()
    with cometmq.testing.cluster(path=tmp_path, settings=SETTINGS) as cluster:
        send(cluster)
        consumer = PushConsumer("g_push", listener=seen, name_servers=cluster.name_server_address, **FIRST)
        with consumer.subscribe(TOPIC, WHERE, expression_type="SQL92"):
            seen.wait_for(EXPECTED)
            with Producer("later", name_servers=cluster.name_server_address) as producer:
                producer.send(TOPIC, b"no", properties={"price": "5", "region": "eu"})
                producer.send(TOPIC, b"yes", properties={"price": "500", "region": "eu"})
            seen.wait_for({b"yes"})
        assert seen.bodies == EXPECTED | {b"yes"}
    path = tmp_path / "broker-a" / "config" / "consumerFilter.json"
    entry = json.loads(path.read_text())["filterDataByTopic"][TOPIC]["groupFilterData"]["g_push"]
    assert (entry["expression"], entry["dead"]) == (WHERE, True)


def test_pull_consumers_get_selected_messages_alone(cluster: Cluster) -> None:
    with PullConsumer("g_pull", name_servers=cluster.name_server_address, **FIRST) as consumer:
        consumer.subscribe(TOPIC, WHERE, expression_type="SQL92")
        got: set[bytes] = set()
        while not got >= EXPECTED:
            got |= {bytes(message.body) for message in consumer.poll(timeout_ms=WAIT_S * 1000)}
    assert got == EXPECTED


def test_simple_consumers_get_selected_messages_alone(cluster: Cluster) -> None:
    with SimpleConsumer("g_simple", name_servers=cluster.name_server_address, **FIRST) as consumer:
        consumer.subscribe(TOPIC, WHERE, expression_type="SQL92")
        got: set[bytes] = set()
        while not got >= EXPECTED:
            for message in consumer.receive(16, invisible_s=60, wait_s=1):
                got.add(bytes(message.body))
                consumer.ack(message)
    assert got == EXPECTED


def test_refusals_name_the_reason(cluster: Cluster) -> None:
    consumer = PushConsumer("g", listener=Seen(), name_servers=cluster.name_server_address)
    consumer.subscribe(TOPIC, "price > 'x'", expression_type="SQL92")
    with pytest.raises(BrokerError, match="only numbers and properties") as refused:
        consumer.start()
    assert refused.value.code == 23


def test_brokers_refuse_sql_where_property_filters_are_off() -> None:
    with cometmq.testing.cluster() as running:
        send(running)
        consumer = PushConsumer("g", listener=Seen(), name_servers=running.name_server_address)
        consumer.subscribe(TOPIC, WHERE, expression_type="SQL92")
        with pytest.raises(BrokerError, match="enablePropertyFilter is false"):
            consumer.start()
