"""SQL92 filters of our client, on our broker and on upstream's: pulls, a push consumer, pops, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.client import SimpleConsumer
from cometmq.errors import BrokerError
from interop.landscapes import on_each_server
from interop.members import Seen, create_topic, producer, puller, push
from interop.sites import SHARED_SETTINGS, Site

SETTINGS = {**SHARED_SETTINGS, "enablePropertyFilter": "true"}
EXPRESSION = "price > 10 AND region = 'eu'"
COUNT = 40
MATCHING = [f"n{number}" for number in range(0, COUNT, 4)]


def send_priced(site: Site, topic: str) -> None:
    with producer(site, "py_sql_senders") as sender:
        for number in range(COUNT):
            price, region = ("11", "eu") if number % 4 == 0 else ("9", "eu") if number % 4 == 1 else ("11", "us")
            sender.send(topic, b"x", keys=f"n{number}", properties={"price": price, "region": region})


def keys_of(messages: list[str]) -> list[str]:
    return sorted(messages, key=lambda key: int(key[1:]))


@on_each_server()
def test_sql92_consumers_of_our_client_get_matching_messages_alone(servers: Site, tmp_path: Path) -> None:
    topic = "PySqlConsumers"
    with servers.broker(tmp_path / "store", name="sql", settings=SETTINGS):
        create_topic(servers, topic, queues=2, broker_names=["sql"])
        seen = Seen()
        with push(servers, "py_sql_push", seen).subscribe(topic, EXPRESSION, expression_type="SQL92"):
            send_priced(servers, topic)
            seen.wait_for_keys(MATCHING)
        with puller(servers, "py_sql_pull") as consumer:
            found: list[str] = []
            for queue in consumer.queues(topic):
                offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
                while offset < end:
                    result = consumer.pull(queue, offset, expression=EXPRESSION, expression_type="SQL92")
                    found += [key for message in result.messages for key in message.keys]
                    offset = result.next_begin_offset
            assert keys_of(found) == MATCHING
            with pytest.raises(BrokerError) as refused:
                push(servers, "py_sql_wrong", Seen()).subscribe(topic, "price >", expression_type="SQL92").start()
            assert refused.value.code == 23


@on_each_server(old=False)
def test_sql92_pops_of_our_client_get_matching_messages_alone(servers: Site, tmp_path: Path) -> None:
    topic = "PySqlPops"
    with servers.broker(tmp_path / "store", name="sql", settings=SETTINGS):
        create_topic(servers, topic, queues=2, broker_names=["sql"])
        send_priced(servers, topic)
        consumer = SimpleConsumer(
            "py_sql_pops", name_servers=servers.namesrv.address, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
        )
        consumer.subscribe(topic, EXPRESSION, expression_type="SQL92")
        found: list[str] = []
        with consumer:
            while len(found) < len(MATCHING):
                for message in consumer.receive(16, invisible_s=60, wait_s=1):
                    found += message.keys
                    consumer.ack(message)
        assert keys_of(found) == MATCHING
