"""Checks: consumers pass over a message whose body was damaged on the broker's disk, log its place, and go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq.admin
from cometmq import CorruptRecord
from cometmq.cli.failures import ExitCode
from cometmq.client import Producer, PullConsumer, SimpleConsumer
from cometmq.testing import Cluster, cluster
from support.command_line import run

_LIMIT_S = 30
_BODIES = [b"first body", b"second body", b"third body"]


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A cluster with the topic ``orders``: one queue with three messages, the second of them damaged."""
    with cluster() as running:
        with cometmq.admin.connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("orders", queues=1)
        with Producer("p", name_servers=running.name_server_address) as producer:
            for body in _BODIES:
                producer.send("orders", body)
        (segment,) = Path(running.path, "broker-a", "commitlog").iterdir()
        with segment.open("r+b") as file:
            place = file.read().index(_BODIES[1])
            file.seek(place)
            file.write(bytes(8))
        yield running


def test_pull_consumers_pass_over_a_damaged_body(running: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with PullConsumer(
        "pull", name_servers=running.name_server_address, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
    ) as consumer:
        consumer.subscribe("orders")
        found: list[bytes] = []
        while len(found) < 2:
            found += [message.body_bytes for message in consumer.poll(_LIMIT_S * 1000)]
    assert found == [_BODIES[0], _BODIES[2]]
    (record,) = [record for record in caplog.records if record.name == "cometmq.client.pull.pull_kernel"]
    assert record.levelno == logging.ERROR
    assert "passed over 1 unreadable record(s) of queue 0 of orders at broker-a" in record.getMessage()
    assert record.getMessage().endswith("at broker-a: offset 1 (the record of queue 0 is damaged)")


def test_simple_consumers_pass_over_a_damaged_body(running: Cluster) -> None:
    with SimpleConsumer(
        "simple", name_servers=running.name_server_address, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
    ) as consumer:
        consumer.subscribe("orders")
        found: list[bytes] = []
        while len(found) < 2:
            for message in consumer.receive(wait_s=_LIMIT_S):
                found.append(message.body_bytes)
                consumer.ack(message)
    assert sorted(found) == [_BODIES[0], _BODIES[2]]


def test_look_ups_name_a_damaged_body(running: Cluster) -> None:
    with cometmq.admin.connect(namesrv=running.name_server_address) as admin:
        with pytest.raises(CorruptRecord, match="body of message 1 of queue 0, topic orders, does not match its CRC"):
            admin.messages.at("orders", 0, 1)
        with pytest.raises(CorruptRecord):
            admin.messages.peek("orders")
        damaged: list[CorruptRecord] = []
        found = admin.messages.peek("orders", damaged=damaged)
        assert [message.queue_offset for message in found] == [0, 2]
        assert len(damaged) == 1


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["get", "--topic", "orders", "--queue", "0", "--offset", "1"], 0),
        (["peek", "orders"], 2),
    ],
)
def test_commands_name_a_damaged_body_and_end_with_4(running: Cluster, arguments: list[str], lines: int) -> None:
    outcome = run("message", *arguments, "--namesrv", running.name_server_address)
    assert outcome.code == ExitCode.DAMAGED
    assert len(outcome.out.splitlines()) == lines
    assert outcome.err.startswith("cometmq: damaged record at physical offset ")
    assert len(outcome.err.splitlines()) == 1
