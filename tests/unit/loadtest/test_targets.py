"""Where a topic's queues are: from a name server, from a broker, made, missing, too few."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cometmq.errors import ConnectionLost, InvalidArgument, TopicNotFound
from cometmq.loadtest import Target, find_target
from cometmq.testing import Cluster, cluster

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(brokers=2) as running:
        yield running


def registered(two: Cluster, topic: str, queues: int | None = None) -> Target:
    """Ask the name server until the brokers have registered the topic."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        with suppress(TopicNotFound):
            found = find_target(namesrv=two.name_server_address, topic=topic, queues=queues)
            if len(found.endpoints) == len(two.brokers):
                return found
    raise AssertionError(f"the brokers did not register {topic}")


def test_made_at_every_broker_of_a_name_server(two: Cluster) -> None:
    made = find_target(namesrv=two.name_server_address, topic="made", queues=3, create=True)
    assert sorted(made.addresses) == sorted(broker.address for broker in two.brokers)
    assert made.queues == tuple((broker, queue) for broker in range(2) for queue in range(3))
    assert sorted(registered(two, "made").queues) == sorted(made.queues)
    assert registered(two, "made", queues=2).queues == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_at_one_broker(two: Cluster) -> None:
    address = two.broker.address
    made = find_target(broker=address, topic="one", create=True)
    assert (made.addresses, made.queues) == ((address,), ((0, 0), (0, 1), (0, 2), (0, 3)))
    assert find_target(broker=address, topic="one") == made
    assert find_target(broker=address, topic="one", queues=1).queues == ((0, 0),)


def test_a_topic_that_is_there_is_made_no_smaller(two: Cluster) -> None:
    address = two.broker.address
    made = find_target(broker=address, topic="kept", queues=6, create=True)
    assert find_target(broker=address, topic="kept", create=True) == made
    assert find_target(broker=address, topic="kept", queues=2, create=True).queues == ((0, 0), (0, 1))
    assert find_target(broker=address, topic="kept") == made
    assert len(find_target(broker=address, topic="kept", queues=9, create=True).queues) == 9
    assert len(find_target(broker=address, topic="kept").queues) == 9


def test_more_queues_than_there_are(two: Cluster) -> None:
    find_target(broker=two.broker.address, topic="few", queues=2, create=True)
    with pytest.raises(InvalidArgument, match=r"topic few has 2 queues on .*, expected 5"):
        find_target(broker=two.broker.address, topic="few", queues=5)


def test_no_such_topic(two: Cluster) -> None:
    with pytest.raises(TopicNotFound, match=r"there is no topic nowhere at .*--create"):
        find_target(namesrv=two.name_server_address, topic="nowhere")
    with pytest.raises(TopicNotFound):
        find_target(broker=two.broker.address, topic="nowhere")


def test_a_name_server_as_a_broker(two: Cluster) -> None:
    with pytest.raises(InvalidArgument, match="is a name server, not a broker: pass it as --namesrv"):
        find_target(broker=two.name_server_address, topic="t")


def test_neither_or_both() -> None:
    with pytest.raises(InvalidArgument, match="a name server's or a broker's address"):
        find_target(topic="t")
    with pytest.raises(InvalidArgument, match="a name server's or a broker's address"):
        find_target(topic="t", namesrv="127.0.0.1:1", broker="127.0.0.1:1")


def test_the_first_name_server_that_answers(two: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
    found = find_target(namesrv=f"{dead};{two.name_server_address}", topic="second", create=True)
    assert len(found.endpoints) == 2
    with pytest.raises(ConnectionLost, match="cannot connect"):
        find_target(namesrv=dead, topic="second")


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(ConnectionLost):
        find_target(broker="no.such.host.invalid:1", topic="t")
